package cpu_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/interp"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// TestBytes: the device allocates what the plan predicts, class by class.
func TestBytes(t *testing.T) {
	p := compile(t, mlp(4, 2, false, ""), 2)
	for s, d := range open(t, p, device.Options{}).devs {
		if diff := cmp.Diff(p.Memory[0].Stages[s].ByClass, d.Bytes()); diff != "" {
			t.Errorf("stage %d (-plan +device): %s", s, diff)
		}
	}
}

// TestNoAllocation: a step allocates nothing.
func TestNoAllocation(t *testing.T) {
	r := open(t, compile(t, mlp(2, 1, false, ""), 2), device.Options{})
	r.initial()
	r.load(0)
	d := r.devs[0]
	pending := []device.Pending{{Chunk: 0, Lo: 0, Hi: 2}}
	scalars := [][]float32{{0.1}}
	squares := make([]float64, len(r.plan.Stages[0].Params))
	run := func(pass ir.Pass) {
		for micro := range 2 {
			r.check(d.Run(0, 0, pass, micro, micro+1))
		}
	}
	if n := testing.AllocsPerRun(5, func() {
		run(ir.ForwardPass)
		run(ir.InputPass)
		r.check(d.Update(0, pending, scalars, false))
		r.check(d.Run(0, 0, ir.WeightPass, 0, 2))
		r.check(d.FoldGradients())
		r.check(d.Squares(squares))
		r.check(d.Update(0, nil, scalars, true))
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// TestNorms: the sums of squares of the gradients, which the first step of SGD shows.
func TestNorms(t *testing.T) {
	r := open(t, compile(t, mlp(2, 1, false, ""), 0), device.Options{})
	r.initial()
	r.load(0)
	before := r.params()
	for pass := range ir.WeightPass + 1 {
		for micro := range 2 {
			r.check(r.devs[0].Run(0, 0, pass, micro, micro+1))
		}
	}
	squares := make([]float64, len(r.plan.Stages[0].Params))
	r.check(r.devs[0].FoldGradients())
	r.check(r.devs[0].Squares(squares))
	r.check(r.devs[0].Update(0, nil, [][]float32{{1}}, true))
	after := r.params()
	for i, sp := range r.plan.Stages[0].Params {
		want := 0.0
		for e, v := range before[sp.Param.Name] {
			g := float64(v) - float64(after[sp.Param.Name][e])
			want += g * g
		}
		if math.Abs(squares[i]-want) > 1e-4*want || want == 0 {
			t.Errorf("%s: sum of squares %v, the step shows %v", sp.Param.Name, squares[i], want)
		}
	}
	if err := r.devs[0].Update(0, []device.Pending{{Chunk: 0, Lo: 0, Hi: 1}}, [][]float32{{1}}, true); err == nil {
		t.Error("a weight pass behind the fold is accepted")
	}
}

// TestDamagedPlans: places outside their area are errors.
func TestDamagedPlans(t *testing.T) {
	for name, damage := range map[string]func(p *plan.Plan, m *plan.StageMemory){
		"offset":     func(_ *plan.Plan, m *plan.StageMemory) { m.Offsets[0][0] = 1 << 30 },
		"negative":   func(_ *plan.Plan, m *plan.StageMemory) { m.Offsets[0][0] = -64 },
		"unaligned":  func(_ *plan.Plan, m *plan.StageMemory) { m.Offsets[0][0] += 4 },
		"no offsets": func(_ *plan.Plan, m *plan.StageMemory) { m.Offsets[0] = nil },
		"slot":       func(_ *plan.Plan, m *plan.StageMemory) { m.SlotBytes[0] = 64 },
		"huge":       func(_ *plan.Plan, m *plan.StageMemory) { m.SlotBytes[0] = 1 << 60 },
		"scratch":    func(_ *plan.Plan, m *plan.StageMemory) { m.Scratch = 64 },
		"private":    func(_ *plan.Plan, m *plan.StageMemory) { m.Private = 64 },
		"no private": func(_ *plan.Plan, m *plan.StageMemory) { m.Private = -1 },
		"frames":     func(_ *plan.Plan, m *plan.StageMemory) { m.Frames = nil },
		"frame":      func(_ *plan.Plan, m *plan.StageMemory) { m.Frames[0].Offsets = m.Frames[0].Offsets[:1] },
		"no slots":   func(p *plan.Plan, _ *plan.StageMemory) { p.Stages[0].Areas[0].Slots = 0 },
		"argument":   func(p *plan.Plan, _ *plan.StageMemory) { p.Programs[0].Chunks[0].Phases[0].Args[0].Area = 99 },
		"result":     func(p *plan.Plan, _ *plan.StageMemory) { p.Programs[0].Chunks[0].Phases[0].Results[0].Item = -1 },
		"wrong argument": func(p *plan.Plan, _ *plan.StageMemory) {
			ph := &p.Programs[0].Chunks[0].Phases[0]
			ph.Args[0] = ph.Args[1]
		},
		"parameter":    func(p *plan.Plan, _ *plan.StageMemory) { p.Stages[0].Params = p.Stages[0].Params[1:] },
		"accumulator":  func(p *plan.Plan, _ *plan.StageMemory) { p.Stages[0].Params[0].Accumulators[0].Item = 77 },
		"no arguments": func(p *plan.Plan, _ *plan.StageMemory) { p.Programs[0].Chunks[0].Phases[1].Args = nil },
	} {
		p := compile(t, mlp(2, 1, false, ""), 0)
		damage(p, &p.Memory[0].Stages[0])
		if d, err := cpu.Open(context.Background(), p, 0, device.Options{}); err == nil {
			t.Errorf("%s: accepted", name)
			d.Close()
		}
	}
	p := compile(t, mlp(2, 1, false, ""), 0)
	if _, err := cpu.Open(context.Background(), p, 1, device.Options{}); err == nil {
		t.Error("a stage that is not there is accepted")
	}
	if _, err := cpu.Open(context.Background(), p, 0, device.Options{Path: "mmx"}); err == nil {
		t.Error("an unknown path is accepted")
	}
}

// TestTypes: other element types are refused by name.
func TestTypes(t *testing.T) {
	b := newModel()
	x := b.entry.AddArg("x", f32(4))
	h := b.emit(ir.Cast, -1, []ir.ValueID{x}, ir.DTypeAttr("dtype", ir.F16))
	b.entry.Return(b.emit(ir.Cast, -1, []ir.ValueID{h}, ir.DTypeAttr("dtype", ir.F32)))
	p := compile(t, &plan.Spec{Name: "op", Kind: "infer", Module: b.m, Entry: b.entry, Results: []plan.Result{{Name: "y"}}, MicroBatches: 1, Inputs: wholeInputs(b.entry)}, 0)
	_, err := cpu.Open(context.Background(), p, 0, device.Options{})
	if err == nil || !strings.Contains(err.Error(), "`cast`") || !strings.Contains(err.Error(), "f16[4]") {
		t.Errorf("error %v", err)
	}
}

// TestShow: what print and its kin show, once per micro-batch; and the error of a bad label names operation and row.
func TestShow(t *testing.T) {
	b := newModel()
	x, label := b.inputs(2, 10)
	y := b.dense("out", -1, x, 10, false)
	for _, k := range []ir.Kind{ir.Print, ir.Summary, ir.TensorDump} {
		b.emit(k, -1, []ir.ValueID{y}, ir.StringAttr("label", "y is"))
	}
	b.loss(y, label, -1)
	var got []string
	r := open(t, compile(t, b.spec(2, 1, sgd(), ""), 0), device.Options{Print: func(k ir.Kind, label string, typ ir.Type, data []byte) {
		got = append(got, fmt.Sprint(k, " ", label, " ", typ, " ", floats(data)[0] != 0))
	}})
	r.initial()
	r.load(0)
	r.step(0, false)
	want := []string{"print y is f32[2,10] true", "summary y is f32[2,10] true", "tensor_dump y is f32[2,10] true"}
	if !slices.Equal(got, append(slices.Clone(want), want...)) {
		t.Errorf("shown: %q", got)
	}
	ref := r.plan.Stages[0].Inputs[0][1]
	ints(r.devs[0].Buffer(ref, 1))[1] = 10
	if err := r.devs[0].Run(0, 0, ir.ForwardPass, 1, 2); err == nil || !strings.Contains(err.Error(), "`cross_entropy` of micro-batch 1: label 10 in row 1") {
		t.Errorf("error of a bad label: %v", err)
	}
}

// TestPoison: with a slot too few the run is seen to be wrong.
func TestPoison(t *testing.T) {
	p := compile(t, mlp(4, 1, false, "gpipe"), 0)
	for i := range p.Stages[0].Areas {
		if a := &p.Stages[0].Areas[i]; a.Lifetime == plan.SavedForW || a.Lifetime == plan.SavedForI {
			a.Slots = 1
		}
	}
	r := open(t, p, device.Options{Poison: true})
	r.initial()
	r.load(0)
	r.step(0, false)
	for _, v := range r.params() {
		if slices.ContainsFunc(v, func(x float32) bool { return x != x }) {
			return
		}
	}
	t.Error("no parameter became NaN")
}

// TestOptimizers compares update functions with the interpreter, on parameters of every form and size of block.
func TestOptimizers(t *testing.T) {
	scalar := f32()
	for title, o := range map[string]*plan.Optimizer{
		"sgd": sgd(),
		"momentum": optimizer(1, func(f *ir.Func, v []ir.ValueID, emit emitter) []ir.ValueID {
			m := emit(ir.Add, []ir.ValueID{emit(ir.Scale, v[2:3], ir.FloatAttr("factor", 0.9)), v[1]})
			return []ir.ValueID{emit(ir.Sub, []ir.ValueID{v[0], emit(ir.Mul, []ir.ValueID{m, v[3]})}), m}
		}),
		"adam": optimizer(2, func(f *ir.Func, v []ir.ValueID, emit emitter) []ir.ValueID {
			m := emit(ir.Add, []ir.ValueID{emit(ir.Scale, v[2:3], ir.FloatAttr("factor", 0.9)), emit(ir.Scale, v[1:2], ir.FloatAttr("factor", 0.1))})
			g2 := emit(ir.Mul, []ir.ValueID{v[1], v[1]})
			s := emit(ir.Add, []ir.ValueID{emit(ir.Scale, v[3:4], ir.FloatAttr("factor", 0.99)), emit(ir.Scale, []ir.ValueID{g2}, ir.FloatAttr("factor", 0.01))})
			small := emit(ir.Constant, nil, ir.DTypeAttr("dtype", ir.F32), ir.IntsAttr("shape", []int{}), ir.FloatAttr("value", 1e-3))
			d := emit(ir.Div, []ir.ValueID{m, emit(ir.Add, []ir.ValueID{emit(ir.Sqrt, []ir.ValueID{s}), small})})
			return []ir.ValueID{emit(ir.Sub, []ir.ValueID{v[0], emit(ir.Mul, []ir.ValueID{v[4], d})}), m, s}
		}),
		// States that keep the last gradient and the one before, and a parameter that is read after its new value is known.
		"shift": optimizer(2, func(f *ir.Func, v []ir.ValueID, emit emitter) []ir.ValueID {
			p := emit(ir.Sub, []ir.ValueID{v[0], emit(ir.Mul, []ir.ValueID{v[4], emit(ir.Add, []ir.ValueID{v[1], v[3]})})})
			return []ir.ValueID{p, v[1], emit(ir.Where, []ir.ValueID{emit(ir.Less, []ir.ValueID{v[0], p}), v[2], v[1]})}
		}),
		"states swapped": optimizer(2, func(f *ir.Func, v []ir.ValueID, emit emitter) []ir.ValueID {
			return []ir.ValueID{emit(ir.Sub, []ir.ValueID{v[0], emit(ir.Add, []ir.ValueID{v[2], emit(ir.Mul, []ir.ValueID{v[1], v[4]})})}), v[3], v[2]}
		}),
		"scalar": optimizer(0, func(f *ir.Func, v []ir.ValueID, emit emitter) []ir.ValueID {
			return []ir.ValueID{v[2]}
		}),
	} {
		b := newModel()
		x, label := b.inputs(5, 70)
		h := b.dense("in", -1, x, 45, false)
		h = b.emit(ir.Mul, -1, []ir.ValueID{h, b.param("gain", 45)})
		b.loss(b.dense("out", -1, h, 10, true), label, -1)
		big := b.emit(ir.Sum, -1, []ir.ValueID{b.param("big", 4100)})
		b.entry.Return(b.emit(ir.Add, -1, []ir.ValueID{b.entry.Results[0], big}))
		p := compile(t, b.spec(2, 1, o, ""), 2)
		for _, lag := range []int{0, 2} {
			r := open(t, p, device.Options{})
			r.initial()
			want := map[string][][]float64{}
			for step := range 3 {
				r.load(step)
				before := r.params()
				grads := gradients(r, o, lag)
				after := r.params()
				for name, g := range grads {
					if want[name] == nil {
						for range o.States {
							s := make([]float64, len(g))
							for e := range s {
								s[e] = 0.25
							}
							want[name] = append(want[name], s)
						}
					}
					for e := range g {
						args := []interp.Tensor{{Type: scalar, Data: []float64{float64(before[name][e])}}, {Type: scalar, Data: []float64{float64(g[e])}}}
						for _, s := range want[name] {
							args = append(args, interp.Tensor{Type: scalar, Data: []float64{s[e]}})
						}
						args = append(args, interp.Tensor{Type: scalar, Data: []float64{float64(float32(0.1))}})
						out, err := (&interp.Interp{}).Run(o.Func, args, nil)
						r.check(err)
						if got := float64(after[name][e]); got != out[0].Data[0] {
							t.Fatalf("%s, lag %d, step %d: %s[%d] is %v, want %v", title, lag, step, name, e, got, out[0].Data[0])
						}
						for k := range want[name] {
							want[name][k][e] = out[1+k].Data[0]
						}
					}
				}
			}
		}
	}
}

type emitter func(k ir.Kind, args []ir.ValueID, attrs ...ir.Attr) ir.ValueID

// optimizer makes one with states that begin at 0.25 and the scalar lr.
func optimizer(states int, body func(f *ir.Func, v []ir.ValueID, emit emitter) []ir.ValueID) *plan.Optimizer {
	f := ir.NewModule("optimizer").NewFunc("Optimizer")
	o := &plan.Optimizer{Name: "Optimizer", Func: f, Scalars: []plan.Scalar{{Name: "lr", Value: 0.1}}}
	for i := range 3 + states {
		f.AddArg(fmt.Sprint("v", i), f32())
	}
	for range states {
		o.States = append(o.States, plan.State{Name: "s", Init: 0.25})
	}
	f.Return(body(f, f.Args, func(k ir.Kind, args []ir.ValueID, attrs ...ir.Attr) ir.ValueID {
		return f.MustEmit(k, args, attrs, at(-1))
	})...)
	return o
}

// gradients runs a step and returns the gradients it used, found with a twin that updates by gradients alone.
func gradients(r *run, o *plan.Optimizer, lag int) map[string][]float32 {
	twin := *r.plan
	twin.Optimizer = optimizer(len(o.States), func(f *ir.Func, v []ir.ValueID, emit emitter) []ir.ValueID {
		return append([]ir.ValueID{emit(ir.Neg, v[1:2])}, v[2:2+len(o.States)]...)
	})
	g := open(r.t, &twin, device.Options{})
	for i := range r.plan.Stages[0].Params {
		v := make([]float32, r.plan.Stages[0].Params[i].Param.Type.Elems())
		r.check(r.devs[0].Param(i, v))
		r.check(g.devs[0].SetParam(i, v))
	}
	for _, ref := range r.plan.Stages[0].Inputs[0] {
		for m := range r.plan.Programs[0].MicroBatches {
			copy(g.devs[0].Buffer(ref, m), r.devs[0].Buffer(ref, m))
		}
	}
	g.step(0, true)
	r.step(lag, false)
	out := g.params()
	for _, v := range out {
		for e := range v {
			v[e] = -v[e]
		}
	}
	return out
}
