package cpu_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/passes"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// at is the position of an operation on a stage.
func at(stage int) ir.At { return ir.At{Stage: stage, Segment: -1, Chunk: -1} }

// model builds blocks for the tests.
type model struct {
	m     *ir.Module
	entry *ir.Func
	cells map[string]*ir.Func
}

func newModel() *model {
	m := ir.NewModule("test")
	return &model{m: m, entry: m.NewFunc("net"), cells: map[string]*ir.Func{}}
}

func (b *model) param(name string, shape ...int) ir.ValueID {
	return b.entry.ReadParam(b.m.AddParam(&ir.Param{Name: name, Type: ir.Tensor(ir.F32, shape...), Init: ir.Init{Kind: "zeros"}}))
}

// dense is a linear layer as a cell; the weight is [out, in] if transposed.
func (b *model) dense(name string, stage int, x ir.ValueID, out int, transposed bool) ir.ValueID {
	t := b.entry.TypeOf(x)
	in := t.Shape[t.Rank()-1]
	shape := []int{in, out}
	if transposed {
		shape = []int{out, in}
	}
	key := fmt.Sprint("Dense", t, shape, transposed)
	f := b.cells[key]
	if f == nil {
		f = b.m.NewFunc("Dense")
		x := f.AddArg("x", t)
		w := f.AddArg("weight", ir.Tensor(ir.F32, shape...))
		c := f.AddArg("bias", ir.Tensor(ir.F32, out))
		y := f.MustEmit(ir.MatMul, []ir.ValueID{x, w}, ir.Attrs{ir.BoolAttr("transpose_b", transposed)}, at(-1))
		f.Return(f.MustEmit(ir.Add, []ir.ValueID{y, c}, nil, at(-1)))
		b.cells[key] = f
	}
	a := at(stage)
	a.Instance = name
	return b.entry.Call(f, []ir.ValueID{x, b.param(name+".weight", shape...), b.param(name+".bias", out)}, a)[0]
}

func (b *model) emit(k ir.Kind, stage int, args []ir.ValueID, attrs ...ir.Attr) ir.ValueID {
	return b.entry.MustEmit(k, args, attrs, at(stage))
}

// loss ends the block with the mean cross entropy.
func (b *model) loss(logits, label ir.ValueID, stage int) {
	l := b.emit(ir.CrossEntropy, stage, []ir.ValueID{logits, label})
	b.entry.Return(b.emit(ir.Mean, stage, []ir.ValueID{l}))
}

// spec wraps the entry to a training block for `micro` micro-batches.
func (b *model) spec(micro, stages int, opt *plan.Optimizer, schedule string) *plan.Spec {
	s := &plan.Spec{
		Name: "test", Kind: "train", Module: b.m, Entry: b.entry, Results: []plan.Result{{Name: "loss"}},
		Accumulate: 1, MicroBatches: micro, Stages: stages, Marked: stages > 1, Reduction: "sum", Optimizer: opt, Schedule: schedule,
	}
	for _, a := range b.entry.Args {
		t := b.entry.TypeOf(a)
		shape := append([]int{t.Shape[0] * micro}, t.Shape[1:]...)
		s.Inputs = append(s.Inputs, plan.Input{Name: b.entry.Value(a).Name, Type: ir.Tensor(t.DType, shape...)})
	}
	return s
}

func sgd() *plan.Optimizer {
	f := ir.NewModule("sgd").NewFunc("SGD")
	p, g, lr := f.AddArg("p", ir.Tensor(ir.F32)), f.AddArg("g", ir.Tensor(ir.F32)), f.AddArg("lr", ir.Tensor(ir.F32))
	d := f.MustEmit(ir.Mul, []ir.ValueID{lr, g}, nil, at(-1))
	f.Return(f.MustEmit(ir.Sub, []ir.ValueID{p, d}, nil, at(-1)))
	return &plan.Optimizer{Name: "SGD", Func: f, Scalars: []plan.Scalar{{Name: "lr", Value: 0.1}}}
}

// mlp is 3 linear layers on `stages` (1 or 2) stages.
func mlp(micro, stages int, transposed bool, schedule string) *plan.Spec {
	b := newModel()
	last := stages - 1
	x := b.entry.AddArg("x", ir.Tensor(ir.F32, 5, 70))
	label := b.entry.AddArg("label", ir.Tensor(ir.I32, 5))
	y := b.emit(ir.Relu, 0, []ir.ValueID{b.dense("layer1", 0, x, 40, transposed)})
	y = b.emit(ir.Relu, last, []ir.ValueID{b.dense("layer2", last, y, 40, transposed)})
	b.loss(b.dense("layer3", last, y, 10, transposed), label, last)
	return b.spec(micro, stages, sgd(), schedule)
}

// run is a plan on devices, driven in one goroutine.
type run struct {
	t    testing.TB
	plan *plan.Plan
	devs []device.Device
}

func compile(t testing.TB, spec *plan.Spec, lag int) *plan.Plan {
	t.Helper()
	schedule := spec.Schedule
	if schedule == "" {
		schedule = "1f1b"
	}
	p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: max(spec.Stages, 1), Schedule: schedule, WLag: lag, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t testing.TB, p *plan.Plan, opt device.Options) *run {
	t.Helper()
	r := &run{t: t, plan: p}
	for s := range p.Stages {
		d, err := cpu.Open(context.Background(), p, s, opt)
		if err != nil {
			t.Fatal(err)
		}
		r.devs = append(r.devs, d)
		if ref := p.Stages[s].Seed; ref.Item >= 0 {
			floats(d.Buffer(ref, 0))[0] = 1
		}
	}
	return r
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func ints(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// initial gives parameters random values that depend on their names.
func (r *run) initial() {
	for s, st := range r.plan.Stages {
		for i, sp := range st.Params {
			if err := r.devs[s].SetParam(i, valuesOf(sp.Param)); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

func valuesOf(p *ir.Param) []float32 {
	random := rand.New(rand.NewPCG(uint64(p.Index()), 7))
	v := make([]float32, p.Type.Elems())
	for e := range v {
		v[e] = float32(random.NormFloat64() * 0.3)
	}
	return v
}

// inputsOf gives the values of input k of micro-batch m in a step.
func inputsOf(t ir.Type, k, m, step int) []float64 {
	random := rand.New(rand.NewPCG(uint64(k), uint64(m+100*step)))
	v := make([]float64, t.Elems())
	for e := range v {
		if t.DType == ir.I32 {
			v[e] = float64(random.IntN(10))
		} else {
			v[e] = float64(float32(random.NormFloat64()))
		}
	}
	return v
}

func (r *run) load(step int) {
	q := r.plan.Programs[0]
	for s, st := range r.plan.Stages {
		for k, ref := range st.Inputs[0] {
			if ref.Item < 0 {
				continue
			}
			t := st.Areas[ref.Area].Items[ref.Item].Type
			for m := range q.MicroBatches {
				b := r.devs[s].Buffer(ref, m)
				for e, v := range inputsOf(t, k, m, step) {
					if t.DType == ir.I32 {
						ints(b)[e] = int32(v)
					} else {
						floats(b)[e] = float32(v)
					}
				}
			}
		}
	}
}

// step runs one training step; lag is how many weight passes of a chunk may wait to run as one. It returns the losses.
func (r *run) step(lag int, norms bool) []float32 {
	r.t.Helper()
	q := r.plan.Programs[0]
	next := make([]int, len(r.devs))
	pending := make([][]device.Pending, len(r.devs))
	sent := map[int][][]byte{}
	flush := func(s int) {
		for _, p := range pending[s] {
			r.check(r.devs[s].Run(0, p.Chunk, ir.WeightPass, p.Lo, p.Hi))
		}
		pending[s] = nil
	}
	for moved := true; moved; {
		moved = false
		for s := range r.devs {
			for next[s] < len(q.Actions[s]) {
				a := q.Actions[s][next[s]]
				switch {
				case a.Kind == plan.Update:
					if norms {
						flush(s)
						r.check(r.devs[s].FoldGradients())
					}
					r.check(r.devs[s].Update(0, pending[s], [][]float32{{0.1}}, norms))
					pending[s] = nil
				case a.Kind == plan.WeightGrad && lag > 0:
					p := &pending[s]
					if k := len(*p) - 1; k >= 0 && (*p)[k].Chunk == a.Chunk && (*p)[k].Hi-(*p)[k].Lo < lag {
						(*p)[k].Hi++
					} else {
						flush(s)
						*p = append(*p, device.Pending{Chunk: a.Chunk, Lo: a.Micro, Hi: a.Micro + 1})
					}
				case a.Kind.IsCompute():
					pass := map[plan.ActionKind]ir.Pass{plan.Forward: ir.ForwardPass, plan.InputGrad: ir.InputPass, plan.WeightGrad: ir.WeightPass}[a.Kind]
					r.check(r.devs[s].Run(0, a.Chunk, pass, a.Micro, a.Micro+1))
				case a.Kind.IsSend():
					for _, t := range q.Messages[a.Message].Tensors {
						sent[a.Message] = append(sent[a.Message], bytes.Clone(r.devs[s].Buffer(t.From, r.slot(s, t.From, a.Micro))))
					}
				default:
					m := q.Messages[a.Message]
					if len(sent[a.Message]) < len(m.Tensors) {
						goto blocked
					}
					for k, t := range m.Tensors {
						copy(r.devs[s].Buffer(t.To, r.slot(s, t.To, a.Micro)), sent[a.Message][k])
					}
					sent[a.Message] = sent[a.Message][len(m.Tensors):]
				}
				next[s]++
				moved = true
			}
		blocked:
		}
	}
	for s := range next {
		if next[s] < len(q.Actions[s]) {
			r.t.Fatalf("stage %d is stuck at %v", s, q.Actions[s][next[s]])
		}
	}
	var losses []float32
	for m := range q.MicroBatches {
		o := q.Outputs[0]
		losses = append(losses, floats(r.devs[o.Stage].Buffer(o.Ref, m))[0])
	}
	return losses
}

func (r *run) slot(stage int, ref plan.Ref, micro int) int {
	return micro % r.plan.Stages[stage].Areas[ref.Area].Slots
}

func (r *run) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// params returns all parameters by name.
func (r *run) params() map[string][]float32 {
	out := map[string][]float32{}
	for s, st := range r.plan.Stages {
		for i, sp := range st.Params {
			v := make([]float32, sp.Param.Type.Elems())
			r.check(r.devs[s].Param(i, v))
			out[sp.Param.Name] = v
		}
	}
	return out
}
