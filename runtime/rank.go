package runtime

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/transport"
)

// errStopped ends a rank because another one failed; it is never the error that is reported.
var errStopped = transport.ErrStopped

// rank executes the actions of one stage on its part of the rows, in one goroutine.
type rank struct {
	number   int // stage x degree + replica
	stage    int
	replica  int
	endpoint transport.Endpoint
	meetings // groups and queues beside the messages of the programs
	plan     *plan.Plan
	dev      device.Device
	programs []*rankProgram
	end
	session bool             // results stay where they are computed: see Session
	silent  bool             // the rank runs a program only since others need its parts of parameters
	pending []device.Pending // weight passes that have not run yet
	buffer  []float32        // see dense

	// What the watchdog reads: actions begun, the one under way (program and place), and for whom it waits.
	progress atomic.Uint64
	current  atomic.Uint64
	waitsFor atomic.Int64 // 1 + the rank at the other end; 0 while computing
	finished atomic.Bool
}

// rankProgram is a program with everything resolved that does not change from step to step.
type rankProgram struct {
	*plan.Program
	index   int
	actions []rankAction
	inputs  []*inputBuffer
	outputs []outputBuffer
	step    uint64                // steps of this program so far
	rows    rows                  // of the batches of the step
	links   map[int]transport.End // of this rank, by number among messages and then shared messages
	ends    []transfer            // the last transfer of a step on each link of this rank
}

// rankAction is an action with its link and buffers.
type rankAction struct {
	plan.Action
	transfer
	buffers [][]byte
	loads   []*inputBuffer // of a pass: inputs that it is the first to read
	stores  []store        // of a forward action: new values of buffers
	wants   []transfer     // of a compute action: received messages, and sends whose buffer it writes again
}

// transfer is the nth of perStep in a step on a link.
type transfer struct {
	link    transport.End
	nth     uint64
	perStep uint64
}

type inputBuffer struct {
	column int
	typ    ir.Type // of a micro-batch
	micros [][]byte
	loaded bool // by the passes, not before the step
}

// rows are those of a step that a rank has in the data.
type rows struct {
	data    *data.Dataset
	first   int
	replica int
	full    bool // all rows are read, and others' thrown away
}

type outputBuffer struct {
	value  int // index in Program.Outputs
	micros [][]byte
}

// prepare resolves the actions and buffers of every program. It returns the first number that no queue has.
func (r *rank) prepare() int {
	st := r.plan.Stages[r.stage]
	slot := func(ref plan.Ref, micro int) int { return micro % st.Areas[ref.Area].Slots }
	ids := 0 // of queues, the same on all ranks
	for i, q := range r.plan.Programs {
		p := &rankProgram{Program: q, index: i, links: map[int]transport.End{}}
		sent := map[[2]int]transfer{}
		var wants []transfer
		for _, a := range q.Actions[r.stage] {
			if r.session && (a.Kind == plan.SendResult || a.Kind == plan.RecvResult) {
				continue
			}
			x := rankAction{Action: a}
			switch {
			case a.Kind.IsShared():
				m := q.Shared[a.Message]
				x.tensors(r, m.Tensors, func(plan.Ref) int { return 0 })
				x.transfer = transfer{link: r.link(p, &x, ids, len(q.Messages)+a.Message, 1), perStep: 1}
				p.ends = append(p.ends, x.transfer)
				if a.Kind == plan.RecvGrad {
					wants = append(wants, x.transfer)
				}
			case a.Message >= 0:
				m := q.Messages[a.Message]
				x.tensors(r, m.Tensors, func(ref plan.Ref) int { return slot(ref, a.Micro) })
				x.transfer = transfer{link: r.link(p, &x, ids, a.Message, q.MicroBatches), nth: uint64(a.Micro), perStep: uint64(q.MicroBatches)}
				if a.Micro == q.MicroBatches-1 {
					p.ends = append(p.ends, x.transfer)
				}
				switch {
				case a.Kind == plan.RecvResult: // the end of the program waits for it
				case a.Kind.IsRecv():
					wants = append(wants, x.transfer)
				default:
					sent[[2]int{a.Message, a.Micro}] = x.transfer
				}
			case a.Kind == plan.Reduce || a.Kind == plan.Norm || a.Kind == plan.Update:
				x.wants, wants = wants, nil
			case a.Kind == plan.Forward || a.Kind == plan.InputGrad:
				x.wants, wants = wants, nil
				if a.Kind == plan.Forward {
					x.stores = r.stores(q.Chunks[a.Chunk], func(ref plan.Ref) int { return slot(ref, a.Micro) })
				}
				for _, m := range q.Messages {
					if m.From == a.Chunk && m.Backward == (a.Kind == plan.InputGrad) && a.Micro >= m.Window {
						x.wants = append(x.wants, sent[[2]int{m.ID, a.Micro - m.Window}])
					}
				}
			}
			p.actions = append(p.actions, x)
		}
		for k, ref := range st.Inputs[i] {
			if ref.Item < 0 {
				continue
			}
			a := &st.Areas[ref.Area]
			in := &inputBuffer{column: k, typ: a.Items[ref.Item].Type, loaded: a.Lifetime == plan.Loaded}
			for m := range q.MicroBatches {
				in.micros = append(in.micros, r.dev.Buffer(ref, slot(ref, m)))
			}
			p.inputs = append(p.inputs, in)
			if in.loaded {
				_, reads := r.plan.Touched(q, r.stage, ref.Area)
				p.loadedBy(in, reads)
			}
		}
		for k, o := range q.Outputs {
			ref, ok := q.OutputOn(r.stage, k)
			if !ok || r.session && o.Stage != r.stage {
				continue
			}
			out := outputBuffer{value: k}
			for m := range q.MicroBatches {
				out.micros = append(out.micros, r.dev.Buffer(ref, m))
			}
			p.outputs = append(p.outputs, out)
		}
		r.programs = append(r.programs, p)
		ids += (len(q.Messages) + len(q.Shared)) * r.plan.Degree
	}
	r.pending = make([]device.Pending, 0, 8)
	r.prepareEnd()
	return ids
}

// link is this rank's end of the queue of a message, whose buffers the action has. first is the queue's number of the first
// message of the program.
func (r *rank) link(p *rankProgram, a *rankAction, first, message, perStep int) transport.End {
	if l, ok := p.links[message]; ok {
		return l
	}
	q := transport.Queue{ID: first + message*r.plan.Degree + r.replica, From: r.number, To: a.Peer*r.plan.Degree + r.replica, Outstanding: perStep}
	if a.Kind.IsRecv() {
		q.From, q.To = q.To, q.From
	}
	for _, b := range a.buffers {
		q.Bytes += len(b)
	}
	l := r.endpoint.End(q)
	p.links[message] = l
	return l
}

// tensors resolves the buffers of a message on this rank's side.
func (a *rankAction) tensors(r *rank, list []plan.Tensor, slot func(plan.Ref) int) {
	for _, t := range list {
		ref := t.From
		if a.Kind.IsRecv() {
			ref = t.To
		}
		a.buffers = append(a.buffers, r.dev.Buffer(ref, slot(ref)))
	}
}

// loadedBy lets an input be read, for each micro-batch, before the first pass that needs it.
func (p *rankProgram) loadedBy(in *inputBuffer, reads func(plan.Action) bool) {
	done := make([]bool, p.MicroBatches)
	for i := range p.actions {
		if a := &p.actions[i]; reads(a.Action) && !done[a.Micro] {
			a.loads, done[a.Micro] = append(a.loads, in), true
		}
	}
}

// load says which rows the next step has, and reads those that do not wait for their pass.
func (p *rankProgram) load(d *data.Dataset, row, replica int, full bool) error {
	p.rows = rows{data: d, first: row, replica: replica, full: full}
	for _, in := range p.inputs {
		if in.loaded {
			continue
		}
		for m := range in.micros {
			if err := p.read(in, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// loads reads the inputs that a pass is the first to need.
func (p *rankProgram) loads(a *rankAction) error {
	for _, in := range a.loads {
		if err := p.read(in, a.Micro); err != nil {
			return err
		}
	}
	return nil
}

// read fills an input with the rows that the rank has of a micro-batch.
func (p *rankProgram) read(in *inputBuffer, micro int) error {
	n := p.Batch / p.MicroBatches
	own := n / p.Degree
	at, b := p.rows.first+micro*n, in.micros[micro]
	if !p.rows.full {
		return p.fill(in, b, at+p.rows.replica*own, own)
	}
	size := in.typ.Bytes()
	all := make([]byte, size*p.Degree)
	if err := p.fill(in, all, at, n); err != nil {
		return err
	}
	copy(b, all[p.rows.replica*size:][:size])
	return nil
}

// fill puts rows of the data into memory.
func (p *rankProgram) fill(in *inputBuffer, b []byte, row, count int) error {
	elems := in.typ.Elems() / (p.Batch / p.MicroBatches / p.Degree) * count
	switch in.typ.DType {
	case ir.F32:
		return p.rows.data.FillFloat32(row, count, in.column, floats(b)[:elems])
	case ir.Bool:
		return p.rows.data.FillBool(row, count, in.column, b[:elems])
	}
	return p.rows.data.FillInt32(row, count, in.column, ints(b)[:elems])
}

// floats and ints look at device memory as numbers, raw at numbers as memory; the plan aligns buffers.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func raw(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func ints(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func (o *outputBuffer) at(micro int) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(o.micros[micro])))
}

// run executes one step of a program.
func (r *rank) run(index int) error {
	p := r.programs[index]
	for i := range p.actions {
		a := &p.actions[i]
		r.progress.Add(1)
		r.current.Store(uint64(index)<<32 | uint64(i))
		if err := r.action(p, a); err != nil {
			if err == errStopped {
				return err
			}
			return r.blame(a, err)
		}
	}
	// Every transfer of the step must be complete before the next step writes its buffers.
	for i := range p.ends {
		if err := r.wait(p, &p.ends[i]); err != nil {
			return r.during("the end of the step", err)
		}
	}
	p.step++
	return nil
}

// blame says where an error came up. A diagnostic, which is about the data, stays one.
func (r *rank) blame(a *rankAction, err error) error {
	var d diag.Diagnostic
	if errors.As(err, &d) {
		d.Message = fmt.Sprintf("rank %d: %s: %s", r.number, a.describe(), d.Message)
		return diag.List{d}
	}
	return fmt.Errorf("rank %d: %s: %w", r.number, a.describe(), err)
}

// during says where an error of the transport came up beside the actions.
func (r *rank) during(what string, err error) error {
	if err == nil || err == errStopped {
		return err
	}
	return fmt.Errorf("rank %d: %s: %w", r.number, what, err)
}

func (a *rankAction) describe() string {
	if a.Chunk < 0 {
		return a.Kind.String()
	}
	return fmt.Sprintf("%s of micro-batch %d", a.Kind, a.Micro)
}

func (r *rank) action(p *rankProgram, a *rankAction) error {
	switch a.Kind {
	case plan.Forward, plan.InputGrad:
		for i := range a.wants {
			if err := r.wait(p, &a.wants[i]); err != nil {
				return err
			}
		}
		if err := p.loads(a); err != nil {
			return err
		}
		if a.Kind == plan.Forward {
			return r.forward(p, a)
		}
		if err := r.dev.Run(p.index, a.Chunk, ir.InputPass, a.Micro, a.Micro+1); err != nil {
			return err
		}
		return nil
	case plan.WeightGrad:
		if err := p.loads(a); err != nil {
			return err
		}
		at := 0
		for at < len(r.pending) && r.pending[at].Chunk != a.Chunk {
			at++
		}
		if at == len(r.pending) {
			r.pending = append(r.pending, device.Pending{Chunk: a.Chunk, Lo: a.Micro})
		}
		w := &r.pending[at]
		w.Hi = a.Micro + 1
		// At most WLag weight passes of a chunk wait; what is over is done as one pass.
		if w.Hi-w.Lo > r.plan.WLag {
			return r.weight(p, at, w.Hi-w.Lo-r.plan.WLag)
		}
		return nil
	case plan.Reduce:
		return r.reduce(p, a)
	case plan.Norm:
		return r.norm(p, a)
	case plan.Gather:
		return r.gather()
	case plan.Update:
		return r.update(p, a)
	default:
		if a.Kind == plan.SendGrad {
			if err := r.flush(p); err != nil {
				return err
			}
		}
		a.link.Post(a.buffers)
		return nil
	}
}

// waits tells the watchdog for which rank this one waits; -1 ends it.
func (r *rank) waits(number int) { r.waitsFor.Store(int64(number) + 1) }

// forward runs a forward pass and keeps the new values of buffers.
func (r *rank) forward(p *rankProgram, a *rankAction) error {
	if err := r.dev.Run(p.index, a.Chunk, ir.ForwardPass, a.Micro, a.Micro+1); err != nil {
		return err
	}
	for _, s := range a.stores {
		copy(s.to, s.from)
	}
	return nil
}

// flush runs all pending weight passes.
func (r *rank) flush(p *rankProgram) error {
	for len(r.pending) > 0 {
		if err := r.weight(p, 0, r.pending[0].Hi-r.pending[0].Lo); err != nil {
			return err
		}
	}
	return nil
}

// weight runs the first n pending weight passes of an entry as one.
func (r *rank) weight(p *rankProgram, at, n int) error {
	w := &r.pending[at]
	lo := w.Lo
	w.Lo += n
	chunk := w.Chunk
	if w.Lo == w.Hi {
		copy(r.pending[at:], r.pending[at+1:])
		r.pending = r.pending[:len(r.pending)-1]
	}
	return r.dev.Run(p.index, chunk, ir.WeightPass, lo, lo+n)
}

// wait returns when a transfer is complete; meanwhile it runs pending weight passes.
func (r *rank) wait(p *rankProgram, t *transfer) error {
	l, seq := t.link, p.step*t.perStep+t.nth
	for len(r.pending) > 0 && !l.Done(seq) {
		if err := r.weight(p, 0, 1); err != nil {
			return err
		}
	}
	return l.Wait(seq)
}
