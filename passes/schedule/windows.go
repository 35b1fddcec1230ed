package schedule

import (
	"math"

	"github.com/ppc-lang/ppc/plan"
)

// sendWindow is how many sends of a message may be outstanding where nothing asks for more: one on its way while the next
// is made.
const sendWindow = 2

// Windows gives, for every message, how many sends may be outstanding before their buffer is needed again. The receiver may
// first work through another chunk, or be many micro-batches behind where a message passes stages by; a smaller window than
// the order asks for would stall or deadlock. It is what is outstanding, at most, when passes take one unit of time,
// transfers none, and no buffer is waited for. That run keeps to these windows, so they cannot close a cycle.
func Windows(p *plan.Program) ([]int, error) {
	windows := make([]int, len(p.Messages))
	t := &Times{Pass: make([][3]float64, len(p.Chunks)), Update: make([]float64, len(p.Actions)), Reduce: make([]float64, len(p.Actions)), Gather: make([]float64, len(p.Actions))}
	for c := range t.Pass {
		t.Pass[c] = [3]float64{1, 1, 0}
	}
	for _, m := range p.Messages {
		m.Window = p.MicroBatches
	}
	run := p
	if p.Feedback != nil {
		run = unroll(p, 1) // rounds follow each other: a wait for the one before closes no cycle
	}
	s := newSimulation(run, t, 0, &plan.Costs{Link: math.Inf(1)})
	if err := s.run(); err != nil {
		return nil, err
	}
	for i, m := range p.Messages {
		arrived := 0
		windows[i] = min(p.MicroBatches, sendWindow)
		for micro := range p.MicroBatches {
			k := key{m.ID, micro}
			begun := s.sent[k] - 1
			for arrived < micro && s.done[key{m.ID, arrived}] <= begun {
				arrived++
			}
			windows[i] = max(windows[i], micro-arrived+1)
		}
	}
	return windows, nil
}
