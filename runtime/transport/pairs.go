package transport

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"
)

// Pair is both queues between this rank and another member, of one phase of the collectives of a group.
type Pair struct {
	send, receive End
	posted        uint64
}

// NewPair joins two ends.
func NewPair(send, receive End) *Pair { return &Pair{send: send, receive: receive} }

// post gives what leaves and where what comes goes.
func (p *Pair) post(out, in [][]byte) {
	p.receive.Post(in)
	p.send.Post(out)
	p.posted++
}

func (p *Pair) received() error { return p.receive.Wait(p.posted - 1) }
func (p *Pair) sent() error     { return p.send.Wait(p.posted - 1) }

// pairs makes collectives of messages between all pairs of members.
type pairs struct {
	Members
	index   int
	pairs   [Phases][]*Pair // by phase and member; nil for the own one
	scratch [][]float32     // by member: what it has of the own share of a round
	fill    [][]byte        // by member: what a share has behind the last element
	values  [][]byte
}

// mostReduced is how many elements a round of Reduce takes at the most: what it needs beside the buffers does not grow with them.
const mostReduced = 1 << 20

// The phases of collectives, which have messages of different sizes.
const (
	phaseScatter = iota // Reduce: to each member its share of what all have in a round
	phaseShare          // Reduce: sums to all
	phaseParts          // Scatter: to each member its part of what all have
	phaseCollect
	phaseValues
	Phases // how many there are
)

// NewPairs makes the group of a member out of queues. open gives the pair of a phase with another rank, with the bytes that
// leave and come.
func NewPairs(m Members, self int, open func(phase, rank, out, in int) *Pair) Group {
	g := &pairs{Members: m, index: slices.Index(m.Ranks, self)}
	n := len(m.Ranks)
	total := 0
	for _, e := range m.Reduce {
		total += e
	}
	share := (min(total, mostReduced) + n - 1) / n
	scattered := func(member int) int {
		if m.Scatter == 0 {
			return 0
		}
		lo, hi := m.Part(m.Scatter, member)
		return 4 * (hi - lo)
	}
	part := func(member int) (bytes int) {
		for _, e := range m.Collect {
			lo, hi := m.Part(e, member)
			bytes += 4 * (hi - lo)
		}
		return bytes
	}
	for i := range g.pairs {
		g.pairs[i] = make([]*Pair, n)
	}
	g.scratch, g.fill, g.values = make([][]float32, n), make([][]byte, n), make([][]byte, n)
	for k := range n {
		g.values[k] = make([]byte, 8*(m.Values+1))
		g.scratch[k], g.fill[k] = make([]float32, share), make([]byte, 4*share)
		if k == g.index {
			continue
		}
		to := m.Ranks[k]
		g.pairs[phaseScatter][k] = open(phaseScatter, to, 4*share, 4*share)
		g.pairs[phaseShare][k] = open(phaseShare, to, 4*share, 4*share)
		g.pairs[phaseParts][k] = open(phaseParts, to, scattered(k), scattered(g.index))
		g.pairs[phaseCollect][k] = open(phaseCollect, to, part(g.index), part(k))
		g.pairs[phaseValues][k] = open(phaseValues, to, len(g.values[k]), len(g.values[k]))
	}
	return g
}

// raw looks at numbers as memory.
func raw(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// cut is the part lo..hi of every buffer as memory.
func cut(buffers [][]float32, bounds func(elements int) (lo, hi int)) (list [][]byte) {
	for _, b := range buffers {
		lo, hi := bounds(len(b))
		list = append(list, raw(b[lo:hi]))
	}
	return list
}

// exchange posts a phase with every other member and waits until it is over: what leaves may then be written again.
func (g *pairs) exchange(phase int, out, in func(member int) [][]byte) error {
	with := g.pairs[phase]
	for k, p := range with {
		if p != nil {
			p.post(out(k), in(k))
		}
	}
	for _, p := range with {
		if p == nil {
			continue
		}
		if err := p.received(); err != nil {
			return err
		}
		if err := p.sent(); err != nil {
			return err
		}
	}
	return nil
}

// Reduce goes through the buffers, one behind the other, in rounds. In each it sends every member its share, adds up the own one in
// the order of ranks, and sends it to all.
func (g *pairs) Reduce(buffers [][]float32) error {
	n, total := len(g.Ranks), 0
	for _, b := range buffers {
		total += len(b)
	}
	size := len(g.scratch[0])
	for first := 0; first < total; first += n * size {
		share := func(member int) [][]byte { return g.share(buffers, first+member*size, member) }
		if err := g.exchange(phaseScatter, share, func(k int) [][]byte { return [][]byte{raw(g.scratch[k])} }); err != nil {
			return err
		}
		own := share(g.index)
		to := raw(g.scratch[g.index])
		for _, b := range own {
			to = to[copy(to, b):]
		}
		sum := g.scratch[0]
		for _, more := range g.scratch[1:] {
			add(sum, more)
		}
		from := raw(sum)
		for _, b := range own {
			from = from[copy(b, from):]
		}
		if err := g.exchange(phaseShare, func(int) [][]byte { return own }, share); err != nil {
			return err
		}
	}
	return nil
}

// share is the memory of a member's share that begins at an element, of all buffers one behind the other. The last ones reach beyond
// the end: messages of a queue have one size.
func (g *pairs) share(buffers [][]float32, first, member int) (list [][]byte) {
	left := len(g.scratch[member])
	for _, b := range buffers {
		if first < len(b) && left > 0 {
			n := min(left, len(b)-first)
			list = append(list, raw(b[first:first+n]))
			left, first = left-n, first+n
		}
		first -= len(b)
		first = max(first, 0)
	}
	return append(list, g.fill[member][:4*left])
}

// Scatter sends every member its part, and takes the own one from the others in the order of ranks, one after the other: all have
// sent theirs to all before they wait for any.
func (g *pairs) Scatter(buffer, scratch []float32) error {
	with := g.pairs[phaseParts]
	for k, p := range with {
		if p != nil {
			lo, hi := g.Part(len(buffer), k)
			p.send.Post([][]byte{raw(buffer[lo:hi])})
			p.posted++
		}
	}
	lo, hi := g.Part(len(buffer), g.index)
	own := buffer[lo:hi]
	total, more := scratch[:len(own)], scratch[len(own):2*len(own)]
	for k, p := range with {
		from, to := own, more
		if k == 0 {
			to = total
		}
		if p != nil {
			from = to
			p.receive.Post([][]byte{raw(to)})
			if err := p.received(); err != nil {
				return err
			}
		}
		switch {
		case k > 0:
			add(total, from)
		case p == nil:
			copy(total, own)
		}
	}
	copy(own, total)
	for _, p := range with {
		if p == nil {
			continue
		}
		if err := p.sent(); err != nil {
			return err
		}
	}
	return nil
}

// Collect sends the own part to all.
func (g *pairs) Collect(buffers [][]float32) error {
	part := func(member int) [][]byte {
		return cut(buffers, func(e int) (int, int) { return g.Part(e, member) })
	}
	own := part(g.index)
	return g.exchange(phaseCollect, func(int) [][]byte { return own }, part)
}

// Gather sends the own values to all: their number, then as many, filled up.
func (g *pairs) Gather(values []float64) (all [][]float64, err error) {
	own := g.values[g.index]
	binary.LittleEndian.PutUint64(own, uint64(len(values)))
	for i, x := range values {
		binary.LittleEndian.PutUint64(own[8+8*i:], math.Float64bits(x))
	}
	send := [][]byte{own}
	if err := g.exchange(phaseValues, func(int) [][]byte { return send }, func(k int) [][]byte { return [][]byte{g.values[k]} }); err != nil {
		return nil, err
	}
	for k, b := range g.values {
		if k == g.index {
			all = append(all, slices.Clone(values))
			continue
		}
		v := make([]float64, min(binary.LittleEndian.Uint64(b), uint64(g.Members.Values)))
		for i := range v {
			v[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8+8*i:]))
		}
		all = append(all, v)
	}
	return all, nil
}
