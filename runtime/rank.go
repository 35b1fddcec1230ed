package runtime

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
)

// rank executes the actions of one stage. It runs in one goroutine.
type rank struct {
	stage   int
	plan    *plan.Plan
	dev     device.Device
	spin    spinner
	links   map[[2]int]*link
	progs   []*rankProgram
	scalars []float32
	action  string // what it is doing, for error messages

	pending []plan.Action // weight passes not run yet, ascending micro-batches of a chunk
	pend    []device.Pending
}

// rankProgram is a program with everything resolved that does not change from step to step.
type rankProgram struct {
	*plan.Program
	index    int
	steps    []rankAction
	inputs   []inputBuffer
	outputs  []outputBuffer
	perLink  map[*link]uint64 // transfers of this program on a link, per step
	base     map[*link]uint64
	linkList []*link
}

// rankAction is an action with its link and buffers.
type rankAction struct {
	plan.Action
	link    *link
	nth     uint64 // number of the transfer on its link within a step
	buffers [][]byte
	wants   []transfer // what a compute action waits for: received messages, and sends whose buffer it writes again
}

type transfer struct {
	link *link
	nth  uint64
	side int
}

type inputBuffer struct {
	column int
	typ    ir.Type // of a micro-batch
	micros [][]byte
}

type outputBuffer struct {
	result int
	micros [][]byte
}

// prepare resolves the actions of every program.
func (r *rank) prepare() {
	for i, q := range r.plan.Programs {
		p := &rankProgram{Program: q, index: i, perLink: map[*link]uint64{}, base: map[*link]uint64{}}
		sent := map[[2]int]transfer{}
		var wants []transfer
		for _, a := range q.Actions[r.stage] {
			x := rankAction{Action: a}
			switch {
			case a.Message >= 0:
				m := q.Messages[a.Message]
				x.link = r.links[[2]int{q.Chunks[m.From].Stage, q.Chunks[m.To].Stage}]
				if p.perLink[x.link] == 0 {
					p.linkList = append(p.linkList, x.link)
				}
				x.nth = p.perLink[x.link]
				p.perLink[x.link]++
				for _, t := range m.Tensors {
					ref := t.From
					if a.Kind.IsRecv() {
						ref = t.To
					}
					b := r.dev.Buffer(ref, r.slot(ref, a.Micro))
					x.buffers = append(x.buffers, b[:t.Type.Bytes()])
				}
				if a.Kind.IsRecv() {
					wants = append(wants, transfer{x.link, x.nth, 1})
				} else {
					sent[[2]int{a.Message, a.Micro}] = transfer{x.link, x.nth, 0}
				}
			case a.Kind == plan.Forward || a.Kind == plan.InputGrad:
				x.wants, wants = wants, nil
				for _, m := range q.Messages {
					if m.From == a.Chunk && m.Backward == (a.Kind == plan.InputGrad) && a.Micro >= m.Window {
						x.wants = append(x.wants, sent[[2]int{m.ID, a.Micro - m.Window}])
					}
				}
			}
			p.steps = append(p.steps, x)
		}
		for k, ref := range r.plan.Stages[r.stage].Inputs[i] {
			if ref.Item < 0 {
				continue
			}
			in := inputBuffer{column: k, typ: r.plan.Stages[r.stage].Areas[ref.Area].Items[ref.Item].Type}
			for m := range q.MicroBatches {
				in.micros = append(in.micros, r.dev.Buffer(ref, m))
			}
			p.inputs = append(p.inputs, in)
		}
		for k, o := range q.Outputs {
			if o.Stage != r.stage {
				continue
			}
			out := outputBuffer{result: k}
			for m := range q.MicroBatches {
				out.micros = append(out.micros, r.dev.Buffer(o.Ref, m))
			}
			p.outputs = append(p.outputs, out)
		}
		r.progs = append(r.progs, p)
	}
}

// slot of a buffer for a micro-batch.
func (r *rank) slot(ref plan.Ref, micro int) int {
	return micro % r.plan.Stages[r.stage].Areas[ref.Area].Slots
}

// load reads rows row.. of the data into the input buffers.
func (p *rankProgram) load(d *data.Dataset, row int) error {
	n := p.Batch / p.MicroBatches
	for _, in := range p.inputs {
		for m, b := range in.micros {
			var err error
			if in.typ.DType == ir.F32 {
				err = d.FillFloat32(row+m*n, n, in.column, floats(b)[:in.typ.Elems()])
			} else {
				err = d.FillInt32(row+m*n, n, in.column, ints(b)[:in.typ.Elems()])
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// floats and ints look at device memory as numbers; buffers are aligned by the plan.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func ints(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func (o *outputBuffer) value(micro int) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(o.micros[micro])))
}

// run executes one step of a program. squares, if not nil, gets the sum of squares of every trained gradient.
func (r *rank) run(index int, squares []float64) error {
	p := r.progs[index]
	for i := range p.steps {
		if err := r.step(p, &p.steps[i], squares); err != nil {
			return fmt.Errorf("rank %d: %s: %w", r.stage, r.doing(&p.steps[i]), err)
		}
	}
	// Everything this rank sent must have left before its buffers are written by the next step.
	for _, l := range p.linkList {
		p.base[l] += p.perLink[l]
	}
	for _, l := range p.linkList {
		side := 0
		if l == nil {
			continue
		}
		if !r.spin.wait(l, r.total(l)-1, side+sideOf(l, r)) {
			return errStopped
		}
	}
	return nil
}

func (r *rank) doing(a *rankAction) string {
	if a.Chunk < 0 {
		return a.Kind.String()
	}
	return fmt.Sprintf("%s of micro-batch %d", a.Kind, a.Micro)
}
