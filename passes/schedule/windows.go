package schedule

import (
	"math"

	"github.com/ppc-lang/ppc/plan"
)

// sendWindow is how many sends of a message may be outstanding where nothing asks for more: one on its way while the next
// is made.
const sendWindow = 2

// Windows gives, for every message, how many sends may be outstanding before their buffer is needed again. With one chunk
// on each stage and messages between neighbours that is sendWindow. With several chunks the receiver may first work through
// another one, and past a stage the two ends are several micro-batches apart; a smaller window than the order asks for would
// stall or deadlock: it is one more than what is outstanding, at most, when passes take one unit
// of time, transfers none, and no buffer is waited for. That run keeps to these windows, so they cannot close a cycle.
func Windows(p *plan.Program, stages int) ([]int, error) {
	windows := make([]int, len(p.Messages))
	for i := range windows {
		windows[i] = min(p.MicroBatches, sendWindow)
	}
	if !farther(p, stages) {
		return windows, nil
	}
	t := &Times{Pass: make([][3]float64, len(p.Chunks)), Update: make([]float64, stages)}
	for c := range t.Pass {
		t.Pass[c] = [3]float64{1, 1, 0}
	}
	for _, m := range p.Messages {
		m.Window = p.MicroBatches
	}
	s := newSimulation(p, t, 0, &plan.Costs{Link: math.Inf(1)})
	if err := s.run(); err != nil {
		return nil, err
	}
	for i, m := range p.Messages {
		arrived := 0
		for micro := range p.MicroBatches {
			k := key{m.ID, micro}
			begun := s.sent[k] - 1
			for arrived < micro && s.done[key{m.ID, arrived}] <= begun {
				arrived++
			}
			windows[i] = max(windows[i], min(p.MicroBatches, micro-arrived+2))
		}
	}
	return windows, nil
}

// farther reports whether a stage has several chunks or a message passes a stage by.
func farther(p *plan.Program, stages int) bool {
	if len(p.Chunks) > stages {
		return true
	}
	for _, m := range p.Messages {
		if d := p.Chunks[m.From].Stage - p.Chunks[m.To].Stage; d < -1 || d > 1 {
			return true
		}
	}
	return false
}
