package memplan

import "github.com/ppc-lang/ppc/plan"

// Slots gives every area its number of slots and every message its window, from the order of the actions. windows is, by
// program and message, how many sends may be outstanding before their buffer is needed again.
func Slots(p *plan.Plan, windows [][]int) {
	// need[s][i]: what messages ask of area i of stage s.
	need := make([][]int, len(p.Stages))
	for s, st := range p.Stages {
		need[s] = make([]int, len(st.Areas))
	}
	for i, q := range p.Programs {
		for k, m := range q.Messages {
			for _, t := range m.Tensors {
				n := &need[q.Chunks[m.From].Stage][t.From.Area]
				*n = max(*n, windows[i][k])
			}
		}
	}
	for s, st := range p.Stages {
		for i := range st.Areas {
			a := &st.Areas[i]
			if a.Program < 0 {
				continue
			}
			q := p.Programs[a.Program]
			switch a.Lifetime {
			case plan.PerMicro:
				a.Slots = q.MicroBatches
			case plan.Stored:
				a.Slots = 1
			case plan.Lent, plan.Loaded:
				a.Slots = lent(p, q, s, i)
			case plan.FToSend, plan.IToSend:
				a.Slots = need[s][i]
			default:
				a.Slots = max(alive(q.Actions[s], a.Chunk, a.Lifetime, p.WLag), need[s][i])
			}
		}
	}
	for _, q := range p.Programs {
		for _, m := range q.Messages {
			m.Window = q.MicroBatches
			for _, t := range m.Tensors {
				m.Window = min(m.Window, p.Stages[q.Chunks[m.From].Stage].Areas[t.From.Area].Slots)
			}
		}
	}
}

// alive is the number of micro-batches of a chunk for which the lifetime has begun and not ended, at most. A weight
// pass counts as late as its lag allows.
func alive(actions []plan.Action, chunk int, l plan.Lifetime, lag int) int {
	var begins, ends func(a plan.Action) bool
	kind := func(ks ...plan.ActionKind) func(plan.Action) bool {
		return func(a plan.Action) bool {
			for _, k := range ks {
				if a.Kind == k {
					return true
				}
			}
			return false
		}
	}
	switch l {
	case plan.RecvToF:
		begins, ends = kind(plan.RecvForward), kind(plan.Forward)
	case plan.SavedForI:
		begins, ends = kind(plan.RecvForward, plan.Forward), kind(plan.InputGrad)
	case plan.SavedForW:
		begins, ends = kind(plan.RecvForward, plan.Forward), kind(plan.WeightGrad)
	case plan.RecvToI:
		begins, ends = kind(plan.RecvBackward), kind(plan.InputGrad)
	case plan.GradForW:
		begins, ends = kind(plan.RecvBackward, plan.InputGrad), kind(plan.WeightGrad)
	}
	begun, ended, most := 0, 0, 1
	for _, a := range actions {
		if a.Chunk != chunk {
			continue
		}
		if begins(a) {
			begun = max(begun, a.Micro+1)
		}
		most = max(most, begun-ended)
		if ends(a) {
			end := a.Micro + 1
			if a.Kind == plan.WeightGrad {
				end = a.Micro + 1 - lag
			}
			ended = max(ended, end)
		}
	}
	return most
}

// lent is the least number of slots with which no micro-batch is written, in the order of the list, before the one whose
// slot it takes has been read for the last time.
func lent(p *plan.Plan, q *plan.Program, stage, area int) int {
	writes, reads := p.Touched(q, stage, area)
	list := q.Actions[stage]
	begin, end := make([]int, q.MicroBatches), make([]int, q.MicroBatches)
	for i := range begin {
		begin[i] = len(list)
	}
	for at, a := range list {
		if writes(a) {
			begin[a.Micro] = min(begin[a.Micro], at)
		}
		switch {
		case !reads(a):
		case a.Kind != plan.WeightGrad:
			end[a.Micro] = max(end[a.Micro], at)
		default:
			// It may wait until the weight pass of lag later micro-batches is due, or until the end.
			if a.Micro >= p.WLag {
				end[a.Micro-p.WLag] = max(end[a.Micro-p.WLag], at)
			}
			if a.Micro+p.WLag >= q.MicroBatches {
				end[a.Micro] = len(list)
			}
		}
	}
	slots := 1
	for i := range begin {
		for slots <= i && begin[i] <= end[i-slots] {
			slots++
		}
	}
	return slots
}
