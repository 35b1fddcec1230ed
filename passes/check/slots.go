package check

import (
	"fmt"
	"slices"

	"github.com/ppc-lang/ppc/plan"
)

// slots: no slot of a chunk's areas is written for a micro-batch while an earlier one still needs it, weight passes as
// late as their lag allows.
func slots(p *plan.Plan, q *plan.Program) error {
	for s, st := range p.Stages {
		for k, a := range st.Areas {
			if a.Program < 0 || p.Programs[a.Program] != q || a.Chunk < 0 && a.Lifetime != plan.Loaded {
				continue
			}
			if a.Lifetime == plan.Loaded && (!q.Train || a.Class != plan.InputsOf || leaves(q, s, k)) {
				return fmt.Errorf("stage %d: what is loaded pass by pass is an input of a training program that only passes read", s)
			}
			if a.Lifetime == plan.Lent || a.Lifetime == plan.Loaded {
				if err := lent(p, q, s, k); err != nil {
					return err
				}
				continue
			}
			first, last := lifetime(a.Lifetime)
			begin, end := make([]int, q.MicroBatches), make([]int, q.MicroBatches)
			for i := range end {
				begin[i], end[i] = -1, -1
			}
			for at, x := range q.Actions[s] {
				if x.Chunk != a.Chunk {
					continue
				}
				if begin[x.Micro] < 0 && first[x.Kind] {
					begin[x.Micro] = at
				}
				if x.Kind == last && x.Kind != plan.WeightGrad {
					end[x.Micro] = at
				}
				// The weight pass of this micro-batch may wait until that of WLag later ones is due.
				if x.Kind == last && x.Kind == plan.WeightGrad && x.Micro >= p.WLag {
					end[x.Micro-p.WLag] = at
				}
			}
			for i := a.Slots; i < q.MicroBatches; i++ {
				old := end[i-a.Slots]
				if old < 0 && last != plan.Update {
					old = len(q.Actions[s])
				}
				if begin[i] >= 0 && begin[i] <= old {
					return fmt.Errorf("stage %d: micro-batch %d would overwrite buffers (%s) that micro-batch %d still needs", s, i, a.Lifetime, i-a.Slots)
				}
			}
		}
	}
	return nil
}

// leaves reports whether something of an area is sent, or is a result.
func leaves(q *plan.Program, stage, area int) bool {
	for r := range q.Sent(stage) {
		if r.Area == area {
			return true
		}
	}
	return slices.ContainsFunc(q.Outputs, func(o plan.Output) bool { return o.Stage == stage && o.Ref.Area == area })
}

// lent: what several chunks of a stage share is not written before the micro-batch whose slot it takes has been read for
// the last time: an action that writes finds no reader of an older micro-batch of its slot behind it, and no weight
// pass that may still wait.
func lent(p *plan.Plan, q *plan.Program, s, area int) error {
	writes, reads := p.Touched(q, s, area)
	list, slots := q.Actions[s], p.Stages[s].Areas[area].Slots
	oldest := make([]int, len(list)+1) // the oldest micro-batch read from here on
	oldest[len(list)] = q.MicroBatches
	for at := len(list) - 1; at >= 0; at-- {
		oldest[at] = oldest[at+1]
		if a := list[at]; reads(a) {
			from := a.Micro
			if a.Kind == plan.WeightGrad {
				from = max(0, a.Micro-p.WLag)
			}
			oldest[at] = min(oldest[at], from)
		}
	}
	owed := map[int]int{} // by chunk: the oldest micro-batch whose weight pass may wait behind all that are due
	for _, a := range list {
		if a.Kind == plan.WeightGrad && reads(a) {
			owed[a.Chunk] = max(0, q.MicroBatches-p.WLag)
		}
	}
	for at, a := range list {
		limit := oldest[at]
		for _, micro := range owed {
			limit = min(limit, micro)
		}
		if writes(a) && a.Micro-slots >= limit {
			return fmt.Errorf("stage %d: micro-batch %d would overwrite buffers (%s) that micro-batch %d still needs", s, a.Micro, p.Stages[s].Areas[area].Lifetime, a.Micro-slots)
		}
	}
	return nil
}

// lifetime gives the kinds of action that may write a slot first, and the one that reads it last. Slots of sends end with
// the transfer, which is part of the deadlock graph; Update stands for no end here.
func lifetime(l plan.Lifetime) (first [plan.Norm + 1]bool, last plan.ActionKind) {
	last = plan.Update
	switch l {
	case plan.RecvToF:
		first[plan.RecvForward], last = true, plan.Forward
	case plan.SavedForI:
		first[plan.RecvForward], first[plan.Forward], last = true, true, plan.InputGrad
	case plan.SavedForW:
		first[plan.RecvForward], first[plan.Forward], last = true, true, plan.WeightGrad
	case plan.RecvToI:
		first[plan.RecvBackward], last = true, plan.InputGrad
	case plan.GradForW:
		first[plan.RecvBackward], first[plan.InputGrad], last = true, true, plan.WeightGrad
	}
	return first, last
}
