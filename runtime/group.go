package runtime

import (
	"slices"
	"sync"

	"github.com/ppc-lang/ppc/plan"
)

// group joins ranks for collectives: those of one stage, or those of all stages with the same part of the rows. All members call the same collectives in the same order; a sum adds
// in rank order, so that it does not depend on who comes first.
type group struct {
	mu      sync.Mutex
	arrived []bool
	count   int
	open    chan struct{} // closed when all have arrived
	stop    <-chan struct{}

	floats [][][]float32 // by member: what it gave to reduce
	values [][]float64   // by member: what it gave to gather
}

func newGroup(members int, stop <-chan struct{}) *group {
	return &group{
		arrived: make([]bool, members), open: make(chan struct{}), stop: stop,
		floats: make([][][]float32, members), values: make([][]float64, members),
	}
}

// meet returns when all members have called it, or false when the run is stopped. before tells, before waiting, who is
// missing.
func (g *group) meet(member int, waits func(member int)) bool {
	g.mu.Lock()
	open := g.open
	g.arrived[member] = true
	if g.count++; g.count == len(g.arrived) {
		g.count, g.open = 0, make(chan struct{})
		clear(g.arrived)
		close(open)
		g.mu.Unlock()
		return true
	}
	missing := 0
	for g.arrived[missing] {
		missing++
	}
	g.mu.Unlock()
	waits(missing)
	defer waits(-1)
	select {
	case <-open:
		return true
	case <-g.stop:
		return false
	}
}

// reduce replaces the buffers of every member by their sums over the members. Each adds up a part of the elements and then
// takes the other parts from their places.
func (g *group) reduce(member int, buffers [][]float32, waits func(int)) bool {
	g.floats[member] = buffers
	if !g.meet(member, waits) {
		return false
	}
	for i, own := range buffers {
		lo, hi := g.part(member, len(own))
		sum := own[lo:hi]
		// The own values are overwritten: they are added in their turn.
		total := make([]float32, hi-lo)
		copy(total, g.floats[0][i][lo:hi])
		for m := 1; m < len(g.floats); m++ {
			for e, x := range g.floats[m][i][lo:hi] {
				total[e] += x
			}
		}
		copy(sum, total)
	}
	if !g.meet(member, waits) {
		return false
	}
	for i, own := range buffers {
		for m := range g.floats {
			if lo, hi := g.part(m, len(own)); m != member {
				copy(own[lo:hi], g.floats[m][i][lo:hi])
			}
		}
	}
	// Nobody writes its buffers again before all have read them.
	return g.meet(member, waits)
}

// collect gives every member the parts of the buffers that the others have written: see plan.Plan.Part.
func (g *group) collect(member int, buffers [][]float32, p *plan.Plan, waits func(int)) bool {
	g.floats[member] = buffers
	if !g.meet(member, waits) {
		return false
	}
	for i, own := range buffers {
		for m := range g.floats {
			if lo, hi := p.Part(len(own), m); m != member {
				copy(own[lo:hi], g.floats[m][i][lo:hi])
			}
		}
	}
	return g.meet(member, waits)
}

// part is the elements that a member adds up.
func (g *group) part(member, elements int) (lo, hi int) {
	n := len(g.floats)
	return elements * member / n, elements * (member + 1) / n
}

// gather returns copies of the values of all members, in rank order.
func (g *group) gather(member int, values []float64, waits func(int)) (all [][]float64, ok bool) {
	g.values[member] = values
	if !g.meet(member, waits) {
		return nil, false
	}
	for _, v := range g.values {
		all = append(all, slices.Clone(v))
	}
	return all, g.meet(member, waits)
}
