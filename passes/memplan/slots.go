package memplan

import "github.com/ppc-lang/ppc/plan"

// sendWindow is how many sends of a message may be outstanding before their buffer is needed again.
const sendWindow = 2

// Slots gives every area its number of slots and every message its window, from the order of the actions.
func Slots(p *plan.Plan) {
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
			case plan.FToSend, plan.IToSend:
				a.Slots = min(q.MicroBatches, sendWindow)
			default:
				a.Slots = alive(q.Actions[s], a.Chunk, a.Lifetime, p.WLag)
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
