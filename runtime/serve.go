package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// DefaultQueue is how many requests of a session may be under way.
const DefaultQueue = 8

// ErrClosed is what requests to a closed session get.
var ErrClosed = errors.New("the session is closed")

// Session keeps the ranks of an inference program alive. Requests go through the pipeline one behind the other, in the order
// in which they came: a stage starts the next one as soon as it has done its part. All methods may be called at the same time.
//
// A session hands a result out itself, from the stage that computes it. The messages of `output_broadcast` are left out:
// they would only hold the first stages up.
type Session struct {
	r       *runner
	program *plan.Program
	free    chan *request // the queue's places that nobody uses
	mu      sync.Mutex    // every rank gets the requests in the same order
	closed  bool
	queues  []chan *request // by rank; never full: they are as long as there are places
	ended   chan struct{}
	err     error // why it ended; set before ended is closed
}

// request is a place of the queue.
type request struct {
	inputs  [][]byte
	outputs []data.Array
	change  func(k *rank) error // instead of a pass over a batch
	left    atomic.Int32        // ranks that are not done
	state   atomic.Int32
	done    chan struct{}
}

// The states of a request: somebody waits for it, nobody does any more, it is done.
const (
	awaited int32 = iota
	abandoned
	complete
)

// Serve starts the ranks of an inference program. queue is how many requests may be under way, DefaultQueue if it is 0; ctx
// ends the session. Of the options, those about devices, first values, seed and deadline count.
func Serve(ctx context.Context, p *plan.Plan, opt Options, queue int) (*Session, error) {
	q := p.Programs[0]
	if !q.Infer {
		return nil, fmt.Errorf("%s is no infer block: it cannot be served", q.Name)
	}
	if q.Feedback != nil {
		return nil, fmt.Errorf("%s generates: its requests make many passes, which a session does not have; use Run", q.Name)
	}
	if opt.Transport != nil {
		return nil, fmt.Errorf("the ranks of a session live in one process; use Run")
	}
	if queue < 0 {
		return nil, fmt.Errorf("a queue cannot hold %d requests", queue)
	}
	if queue == 0 {
		queue = DefaultQueue
	}
	opt.SkipParams = true // a session has requests instead of a result
	s := &Session{
		r: &runner{plan: p, opt: opt, stop: make(chan struct{}), session: true}, program: q,
		free: make(chan *request, queue), ended: make(chan struct{}),
	}
	if err := s.r.openRanks(ctx); err != nil {
		s.r.close()
		return nil, err
	}
	for range p.NumStages * p.Degree {
		s.queues = append(s.queues, make(chan *request, queue))
	}
	for range queue {
		x := &request{done: make(chan struct{}, 1)}
		for _, in := range q.Inputs {
			x.inputs = append(x.inputs, make([]byte, in.Type.Bytes()))
		}
		s.free <- x
	}
	go func() {
		err := s.r.all(ctx, s.work)
		s.r.close()
		s.mu.Lock()
		if s.closed, s.err = true, err; err == nil {
			s.err = ErrClosed
		}
		s.mu.Unlock()
		close(s.ended)
	}()
	return s, nil
}

// Close waits for the requests under way and ends the ranks. It returns what ended the session before, if anything did.
func (s *Session) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		for _, c := range s.queues {
			close(c)
		}
	}
	s.mu.Unlock()
	<-s.ended
	if s.err == ErrClosed {
		return nil
	}
	return s.err
}

// Submit runs one batch: an array per input of the block, of its type and shape, which may be used again once Submit
// returns. It returns an array per result. It waits for a place in the queue, then for the result; when ctx ends first it
// gives up, and the batch goes through unseen.
func (s *Session) Submit(ctx context.Context, inputs []data.Array) ([]data.Array, error) {
	q := s.program
	if len(inputs) != len(q.Inputs) {
		return nil, fmt.Errorf("block %s has %d inputs, not %d", q.Name, len(q.Inputs), len(inputs))
	}
	for i := range inputs {
		in, a := &q.Inputs[i], &inputs[i]
		want := data.F32
		if in.Type.DType == ir.I32 {
			want = data.I32
		}
		if a.DType != want || !slices.Equal(a.Shape, in.Type.Shape) || len(a.Data) != in.Type.Bytes() {
			return nil, fmt.Errorf("input `%s` is %s, not %s%s", in.Name, in.Type, a.DType, ir.ShapeString(a.Shape))
		}
	}
	x, err := s.place(ctx)
	if err != nil {
		return nil, err
	}
	for i := range inputs {
		copy(x.inputs[i], inputs[i].Data)
	}
	outputs := make([]data.Array, len(q.Outputs))
	for k := range outputs {
		outputs[k] = newOutput(q, k, q.Batch)
		allocate(&outputs[k])
	}
	x.outputs, x.change = outputs, nil
	if err := s.wait(ctx, x); err != nil {
		return nil, err
	}
	return outputs, nil
}

// SetParameter gives a parameter a new value, row-major, on the stage that owns it: the lowest that reads it. Requests that
// came before still see the old one. Other stages that read the parameter keep theirs until SyncSharedParameters.
func (s *Session) SetParameter(ctx context.Context, name string, values []float32) error {
	for stage, st := range s.r.plan.Stages {
		for i, sp := range st.Params {
			if sp.Param.Name != name || sp.Owner != stage {
				continue
			}
			if n := sp.Param.Type.Elems(); len(values) != n {
				return fmt.Errorf("parameter %s has %d elements, not %d", name, n, len(values))
			}
			values = slices.Clone(values) // the call may be given up while the rank has not come to it
			return s.do(ctx, func(k *rank) error {
				if k.stage != stage {
					return nil
				}
				return k.dev.SetParam(i, values)
			})
		}
	}
	return fmt.Errorf("no stage has a parameter %s", name)
}

// SyncSharedParameters copies every parameter that several stages read from its owner to the others. Requests that come
// after it see the same value everywhere.
func (s *Session) SyncSharedParameters(ctx context.Context) error {
	stages := s.r.plan.Stages
	values := make([][]float32, len(s.r.plan.Module.Params))
	sent := make([]chan struct{}, len(stages)) // closed once the values of a stage's own parameters are there
	shared := make([]bool, len(values))
	for s, st := range stages {
		sent[s] = make(chan struct{})
		for _, sp := range st.Params {
			shared[sp.Param.Index()] = shared[sp.Param.Index()] || sp.Owner != s
		}
	}
	return s.do(ctx, func(k *rank) error {
		for i, sp := range stages[k.stage].Params {
			if n := sp.Param.Index(); shared[n] && sp.Owner == k.stage && k.replica == 0 {
				values[n] = make([]float32, sp.Param.Type.Elems())
				if err := k.dev.Param(i, values[n]); err != nil {
					return err
				}
			}
		}
		if k.replica == 0 { // all ranks of a stage have the same values
			close(sent[k.stage])
		}
		for i, sp := range stages[k.stage].Params {
			if sp.Owner == k.stage {
				continue
			}
			select {
			case <-sent[sp.Owner]:
			case <-s.r.stop:
				return errStopped
			}
			if err := k.dev.SetParam(i, values[sp.Param.Index()]); err != nil {
				return err
			}
		}
		return nil
	})
}

// do has every rank run f between two requests.
func (s *Session) do(ctx context.Context, f func(k *rank) error) error {
	x, err := s.place(ctx)
	if err != nil {
		return err
	}
	x.outputs, x.change = nil, f
	return s.wait(ctx, x)
}

// place waits for a free place in the queue.
func (s *Session) place(ctx context.Context) (*request, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case x := <-s.free:
		return x, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ended:
		return nil, s.err
	}
}

// wait gives a request to all ranks and waits until they are done.
func (s *Session) wait(ctx context.Context, x *request) error {
	x.left.Store(int32(len(s.queues)))
	x.state.Store(awaited)
	s.mu.Lock()
	if s.closed {
		err := s.err
		s.mu.Unlock()
		if err == nil {
			err = ErrClosed
		}
		s.free <- x
		return err
	}
	for _, c := range s.queues {
		c <- x
	}
	s.mu.Unlock()
	select {
	case <-x.done:
	case <-ctx.Done():
		if x.state.CompareAndSwap(awaited, abandoned) {
			return ctx.Err()
		}
		<-x.done
	case <-s.ended:
		select {
		case <-x.done:
		default:
			return s.err
		}
	}
	s.free <- x
	return nil
}

// finish counts a rank that is done with a request; the last one lets the waiting call go on.
func (s *Session) finish(x *request) {
	if x.left.Add(-1) > 0 {
		return
	}
	if x.state.CompareAndSwap(awaited, complete) {
		x.done <- struct{}{}
	} else {
		s.free <- x
	}
}

// work is the loop of one rank.
func (s *Session) work(k *rank) error {
	p := k.programs[0]
	for {
		k.finished.Store(true) // nothing is under way that the watchdog should look at
		var x *request
		select {
		case x = <-s.queues[k.number]:
		case <-s.r.stop:
			return errStopped
		}
		if x == nil {
			return nil // closed
		}
		k.finished.Store(false)
		if x.change != nil {
			if err := x.change(k); err != nil {
				return err
			}
			s.finish(x)
			continue
		}
		p.put(x.inputs, 0, k.replica)
		if err := k.run(0); err != nil {
			return err
		}
		for i := range p.outputs {
			o := &p.outputs[i]
			place(x.outputs[o.value].Data, o.micros, k.replica, p.Degree)
		}
		s.finish(x)
	}
}
