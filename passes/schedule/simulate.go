package schedule

import (
	"fmt"

	"github.com/ppc-lang/ppc/plan"
)

// Times of a chunk's passes for one micro-batch, and of a stage's update, in seconds.
type Times struct {
	Pass   [][3]float64 // by chunk and pass
	Update []float64    // by stage
	Reduce []float64    // by stage
	Gather []float64    // by stage
}

// Simulate runs a program under the execution model: one in-order compute queue per stage, one in-order queue per message,
// a link per ordered pair of stages that carries one transfer at a time, a transfer starts when both sides have posted it, compute waits for its messages and for sends
// whose buffer it needs again, and a weight pass runs while the stage waits, or when its lag is used up, or at the end.
// It returns an error that names the actions when nothing can go on. The times of a program that generates are those of one
// round among others: what a third round adds to two.
func Simulate(p *plan.Program, t *Times, lag int, c *plan.Costs) (plan.Prediction, error) {
	if p.Feedback == nil {
		return simulate(p, t, lag, c)
	}
	two, err := simulate(unroll(p, 2), t, lag, c)
	if err != nil {
		return plan.Prediction{}, err
	}
	three, err := simulate(unroll(p, 3), t, lag, c)
	if err != nil {
		return plan.Prediction{}, err
	}
	out := plan.Prediction{Makespan: three.Makespan - two.Makespan}
	busy := 0.0
	for s := range three.Busy {
		out.Busy = append(out.Busy, three.Busy[s]-two.Busy[s])
		busy += out.Busy[s]
	}
	if out.Makespan > 0 {
		// The rounds may differ in the last bit.
		out.Bubble = max(0, 1-busy/(float64(len(out.Busy))*out.Makespan))
	}
	return out, nil
}

// unroll makes a program of several rounds of one that generates, with micro-batches of their own in each.
func unroll(p *plan.Program, rounds int) *plan.Program {
	q := *p
	q.MicroBatches *= rounds
	q.Actions = make([][]plan.Action, len(p.Actions))
	for s, list := range p.Actions {
		for i := range rounds * len(list) {
			a, round := list[i%len(list)], i/len(list)
			if a.Kind == plan.RecvToken {
				round-- // it is the one that was sent in the round before
			}
			if round < 0 || a.Kind == plan.SendToken && round == rounds-1 {
				continue
			}
			a.Micro += round * p.MicroBatches
			q.Actions[s] = append(q.Actions[s], a)
		}
	}
	return &q
}

func simulate(p *plan.Program, t *Times, lag int, c *plan.Costs) (plan.Prediction, error) {
	s := newSimulation(p, t, lag, c)
	if err := s.run(); err != nil {
		return plan.Prediction{}, err
	}
	var out plan.Prediction
	busy := 0.0
	for _, r := range s.ranks {
		out.Makespan = max(out.Makespan, r.now)
		out.Busy = append(out.Busy, r.busy)
		busy += r.busy
	}
	if out.Makespan > 0 {
		out.Bubble = 1 - busy/(float64(len(s.ranks))*out.Makespan)
	}
	return out, nil
}

func newSimulation(p *plan.Program, t *Times, lag int, c *plan.Costs) *simulation {
	s := &simulation{p: p, t: t, lag: lag, c: c, sent: map[key]float64{}, posted: map[key]float64{}, done: map[key]float64{}, normed: map[int]float64{}, link: map[[2]int]float64{}}
	for stage := range p.Actions {
		s.ranks = append(s.ranks, &rank{stage: stage})
	}
	return s
}

// run lets every rank go as far as it can, until all are at the end.
func (s *simulation) run() error {
	for moved := true; moved; {
		moved = false
		for _, r := range s.ranks {
			for s.advance(r) {
				moved = true
			}
		}
	}
	for _, r := range s.ranks {
		if list := s.p.Actions[r.stage]; r.next < len(list) {
			return fmt.Errorf("stage %d waits for ever before %s of micro-batch %d", r.stage, list[r.next].Kind, list[r.next].Micro)
		}
	}
	return nil
}

// key is a transfer; shared messages count down from -1.
type key struct{ message, micro int }

func keyOf(a plan.Action) key {
	if a.Kind.IsShared() {
		return key{-1 - a.Message, 0}
	}
	return key{a.Message, a.Micro}
}

type rank struct {
	stage, next int
	now, busy   float64
	pending     []plan.Action // weight passes not run yet
	wants       []key         // received messages the next compute action needs
}

type simulation struct {
	p                  *plan.Program
	t                  *Times
	lag                int
	c                  *plan.Costs
	ranks              []*rank
	sent, posted, done map[key]float64
	normed             map[int]float64 // by stage: when it came to Norm
	link               map[[2]int]float64
}

// finish returns when a transfer is complete, if both sides have posted it.
func (s *simulation) finish(k key) (float64, bool) {
	if t, ok := s.done[k]; ok {
		return t, true
	}
	a, ok1 := s.sent[k]
	b, ok2 := s.posted[k]
	if !ok1 || !ok2 {
		return 0, false
	}
	var l [2]int
	bytes := 0
	if k.message < 0 {
		m := s.p.Shared[-1-k.message]
		l = [2]int{m.From, m.To}
		for _, t := range m.Tensors {
			bytes += t.Type.Bytes()
		}
	} else {
		m := s.p.Messages[k.message]
		l = [2]int{s.p.Chunks[m.From].Stage, s.p.Chunks[m.To].Stage}
		bytes = m.Bytes()
	}
	start := max(a, b, s.link[l])
	t := start + s.c.Latency + float64(bytes)/s.c.Link
	s.link[l] = start + float64(bytes)/s.c.Link
	s.done[k] = t
	return t, true
}

func (r *rank) run(d float64) { r.now += d; r.busy += d }

func (s *simulation) weight(r *rank) {
	r.run(s.t.Pass[r.pending[0].Chunk][2])
	r.pending = r.pending[1:]
}

// waitFor lets pending weight passes run until time t.
func (s *simulation) waitFor(r *rank, t float64) {
	for r.now < t && len(r.pending) > 0 {
		s.weight(r)
	}
	r.now = max(r.now, t)
}

func (s *simulation) advance(r *rank) bool {
	list := s.p.Actions[r.stage]
	if r.next >= len(list) {
		return false
	}
	a := list[r.next]
	switch {
	case a.Kind.IsRecv():
		k := keyOf(a)
		if a.Kind == plan.RecvResult {
			// The end of the program waits for results, and behind one there are only others.
			if _, ok := s.posted[k]; !ok {
				s.posted[k] = r.now
			}
			t, ok := s.finish(k)
			if !ok {
				return false
			}
			r.now = max(r.now, t)
			break
		}
		s.posted[k] = r.now
		r.wants = append(r.wants, k)
	case a.Kind.IsSend():
		for a.Kind == plan.SendGrad && len(r.pending) > 0 {
			s.weight(r)
		}
		s.sent[keyOf(a)] = r.now
	case a.Kind == plan.WeightGrad:
		r.pending = append(r.pending, a)
		waiting := 0
		for _, w := range r.pending {
			if w.Chunk == a.Chunk {
				waiting++
			}
		}
		for i := 0; waiting > s.lag; i++ {
			if r.pending[i].Chunk == a.Chunk {
				r.run(s.t.Pass[a.Chunk][2])
				r.pending = append(r.pending[:i:i], r.pending[i+1:]...)
				waiting--
				i--
			}
		}
	case a.Kind == plan.Reduce, a.Kind == plan.Norm, a.Kind == plan.Update, a.Kind == plan.Gather:
		for len(r.pending) > 0 {
			s.weight(r)
		}
		for _, k := range r.wants {
			t, ok := s.finish(k)
			if !ok {
				return false
			}
			r.now = max(r.now, t)
		}
		r.wants = r.wants[:0]
		switch a.Kind {
		case plan.Reduce:
			r.run(s.t.Reduce[r.stage])
		case plan.Gather:
			r.run(s.t.Gather[r.stage])
		case plan.Norm:
			s.normed[r.stage] = r.now
			if len(s.normed) < len(s.ranks) {
				return false
			}
			for _, t := range s.normed {
				r.now = max(r.now, t+2*s.c.Latency)
			}
		default:
			r.run(s.t.Update[r.stage])
		}
	default:
		for _, k := range s.reuse(a) {
			if _, ok := s.finish(k); !ok {
				return false
			}
		}
		ready := 0.0
		for _, k := range append(s.reuse(a), r.wants...) {
			t, ok := s.finish(k)
			if !ok {
				return false
			}
			ready = max(ready, t)
		}
		s.waitFor(r, ready)
		r.wants = r.wants[:0]
		pass := 0
		if a.Kind == plan.InputGrad {
			pass = 1
		}
		r.run(s.t.Pass[a.Chunk][pass])
	}
	r.next++
	return true
}

// reuse lists the sends that must be complete before a compute action writes their buffer again.
func (s *simulation) reuse(a plan.Action) []key {
	var out []key
	for _, m := range s.p.Messages {
		if m.From == a.Chunk && m.Backward == (a.Kind == plan.InputGrad) && a.Micro >= m.Window {
			out = append(out, key{m.ID, a.Micro - m.Window})
		}
	}
	return out
}
