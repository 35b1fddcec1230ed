package transport

import (
	"slices"
	"sync"
)

// group joins ranks of one process: what a member gives is read where it lies.
type group struct {
	Members
	mu      sync.Mutex
	arrived []bool
	count   int
	open    chan struct{} // closed when all have arrived

	floats [][][]float32 // by member: what it gave to Reduce, Scatter or Collect
	values [][]float64   // by member: what it gave to Gather
}

func newGroup(m Members) *group {
	n := len(m.Ranks)
	return &group{
		Members: m, arrived: make([]bool, n), open: make(chan struct{}),
		floats: make([][][]float32, n), values: make([][]float64, n),
	}
}

// member is a group as one of its ranks sees it.
type member struct {
	*local
	group *group
	index int
	one   [1][]float32
}

// meet returns when all members have called it.
func (m *member) meet() error {
	g := m.group
	g.mu.Lock()
	open := g.open
	g.arrived[m.index] = true
	if g.count++; g.count == len(g.arrived) {
		g.count, g.open = 0, make(chan struct{})
		clear(g.arrived)
		close(open)
		g.mu.Unlock()
		return nil
	}
	missing := slices.Index(g.arrived, false)
	g.mu.Unlock()
	m.waiting(g.Ranks[missing])
	defer m.waiting(-1)
	select {
	case <-open:
		return nil
	case <-m.stop:
		return ErrStopped
	}
}

// Reduce lets each member add up a share of the elements and then take the others from their places.
func (m *member) Reduce(buffers [][]float32) error {
	g := m.group
	g.floats[m.index] = buffers
	if err := m.meet(); err != nil {
		return err
	}
	n := len(g.floats)
	for i, own := range buffers {
		lo, hi := Share(len(own), m.index, n)
		// The own values are overwritten: they are added in their turn.
		total := make([]float32, hi-lo)
		copy(total, g.floats[0][i][lo:hi])
		for k := 1; k < n; k++ {
			add(total, g.floats[k][i][lo:hi])
		}
		copy(own[lo:hi], total)
	}
	if err := m.meet(); err != nil {
		return err
	}
	for i, own := range buffers {
		for k := range g.floats {
			if lo, hi := Share(len(own), k, n); k != m.index {
				copy(own[lo:hi], g.floats[k][i][lo:hi])
			}
		}
	}
	// Nobody writes its buffers again before all have read them.
	return m.meet()
}

// Scatter adds up the own part from the places of the others. Nobody else reads it.
func (m *member) Scatter(buffer, scratch []float32) error {
	g := m.group
	m.one[0] = buffer
	g.floats[m.index] = m.one[:]
	if err := m.meet(); err != nil {
		return err
	}
	lo, hi := g.Part(len(buffer), m.index)
	total, own := buffer[lo:hi], scratch[:hi-lo]
	copy(own, total) // it is added in its turn
	for k, of := range g.floats {
		from := own
		if k != m.index {
			from = of[0][lo:hi]
		}
		if k == 0 {
			copy(total, from)
		} else {
			add(total, from)
		}
	}
	return m.meet()
}

func add(total, more []float32) {
	for e, x := range more {
		total[e] += x
	}
}

// Collect copies the parts of the others from their places.
func (m *member) Collect(buffers [][]float32) error {
	g := m.group
	g.floats[m.index] = buffers
	if err := m.meet(); err != nil {
		return err
	}
	for i, own := range buffers {
		for k := range g.floats {
			if lo, hi := g.Part(len(own), k); k != m.index {
				copy(own[lo:hi], g.floats[k][i][lo:hi])
			}
		}
	}
	return m.meet()
}

// Gather copies what all members give.
func (m *member) Gather(values []float64) (all [][]float64, err error) {
	g := m.group
	g.values[m.index] = values
	if err := m.meet(); err != nil {
		return nil, err
	}
	for _, v := range g.values {
		all = append(all, slices.Clone(v))
	}
	return all, m.meet()
}
