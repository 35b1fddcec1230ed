package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/interp"
	"github.com/ppc-lang/ppc/passes/autodiff"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// models are small nets that need every form of product, accumulator and parameter. Each has 3 micro-batches.
var models = []struct {
	name  string
	build func(b *model)
}{
	{"layers", func(b *model) { mlpLayers(b, 0, false) }},
	{"layers of transposed weights", func(b *model) { mlpLayers(b, 0, true) }},
	{"a weight in both orientations", func(b *model) {
		x, label := b.inputs(6, 20)
		w := b.param("w", 20, 33)
		h := b.emit(ir.Tanh, -1, []ir.ValueID{b.emit(ir.MatMul, -1, []ir.ValueID{x, w})})
		h = b.emit(ir.Sigmoid, -1, []ir.ValueID{b.emit(ir.MatMul, -1, []ir.ValueID{h, w}, ir.BoolAttr("transpose_b", true))})
		b.loss(b.dense("out", -1, h, 10, false), label, -1)
	}},
	{"a weight read twice in one orientation", func(b *model) {
		x, label := b.inputs(6, 34)
		w := b.param("w", 34, 34)
		h := b.emit(ir.Tanh, -1, []ir.ValueID{b.emit(ir.MatMul, -1, []ir.ValueID{x, w})})
		h = b.emit(ir.Relu, -1, []ir.ValueID{b.emit(ir.MatMul, -1, []ir.ValueID{h, w})})
		b.loss(b.dense("out", -1, h, 10, false), label, -1)
	}},
	{"a transposed left side", func(b *model) {
		x, label := b.inputs(70, 6)
		y := b.emit(ir.MatMul, -1, []ir.ValueID{x, b.param("w", 70, 10)}, ir.BoolAttr("transpose_a", true))
		c := b.emit(ir.Slice, -1, []ir.ValueID{label}, ir.IntAttr("axis", 0), ir.IntAttr("start", 3), ir.IntAttr("stop", 9))
		b.loss(y, c, -1)
	}},
	{"a weight with a transposed left side that is learnt", func(b *model) {
		x, label := b.inputs(7, 6)
		a := b.param("a", 70, 6)
		h := b.emit(ir.MatMul, -1, []ir.ValueID{a, b.param("w", 70, 40)}, ir.BoolAttr("transpose_a", true))
		b.loss(b.dense("out", -1, b.emit(ir.MatMul, -1, []ir.ValueID{x, h}), 10, false), label, -1)
	}},
	{"sequences", func(b *model) {
		x, label := b.inputs(3, 5, 16)
		q, k := b.dense("q", -1, x, 24, false), b.dense("k", -1, x, 24, true)
		s := b.emit(ir.Scale, -1, []ir.ValueID{b.emit(ir.MatMul, -1, []ir.ValueID{q, k}, ir.BoolAttr("transpose_b", true))}, ir.FloatAttr("factor", 0.2))
		e := b.emit(ir.Exp, -1, []ir.ValueID{s})
		p := b.emit(ir.Div, -1, []ir.ValueID{e, b.emit(ir.Sum, -1, []ir.ValueID{e}, ir.IntsAttr("axes", []int{2}), ir.BoolAttr("keepdims", true))})
		h := b.emit(ir.MatMul, -1, []ir.ValueID{p, b.dense("v", -1, x, 40, false)})
		m := b.emit(ir.Mean, -1, []ir.ValueID{h}, ir.IntsAttr("axes", []int{2}), ir.BoolAttr("keepdims", true))
		c := b.emit(ir.Sub, -1, []ir.ValueID{h, m})
		v := b.emit(ir.Mean, -1, []ir.ValueID{b.emit(ir.Mul, -1, []ir.ValueID{c, c})}, ir.IntsAttr("axes", []int{2}), ir.BoolAttr("keepdims", true))
		n := b.emit(ir.Div, -1, []ir.ValueID{c, b.emit(ir.Sqrt, -1, []ir.ValueID{b.emit(ir.Add, -1, []ir.ValueID{v, b.constant(1e-5)})})})
		g := b.emit(ir.Add, -1, []ir.ValueID{b.emit(ir.Mul, -1, []ir.ValueID{n, b.param("gain", 40)}), b.param("shift", 40)})
		t := b.emit(ir.Transpose, -1, []ir.ValueID{g}, ir.IntsAttr("perm", []int{0, 2, 1}))
		o := b.emit(ir.Reshape, -1, []ir.ValueID{t}, ir.IntsAttr("shape", []int{3, 200}))
		b.loss(b.dense("out", -1, b.emit(ir.Gelu, -1, []ir.ValueID{o}), 10, false), label, -1)
	}},
	{"tokens with a tied head", func(b *model) {
		ids, label := b.entry.AddArg("ids", i32(3, 5)), b.entry.AddArg("label", i32(3))
		table := b.param("table", 10, 16)
		x := b.emit(ir.Gather, -1, []ir.ValueID{table, ids})
		s := b.emit(ir.MatMul, -1, []ir.ValueID{x, x}, ir.BoolAttr("transpose_b", true))
		ones := b.emit(ir.Constant, -1, nil, ir.DTypeAttr("dtype", ir.Bool), ir.IntsAttr("shape", []int{5, 5}), ir.FloatAttr("value", 1))
		s = b.emit(ir.Where, -1, []ir.ValueID{b.emit(ir.Tril, -1, []ir.ValueID{ones}), s, b.constant(math.Inf(-1))})
		h := b.emit(ir.MatMul, -1, []ir.ValueID{b.emit(ir.Softmax, -1, []ir.ValueID{s}), x})
		key := b.emit(ir.Constant, -1, nil, ir.DTypeAttr("dtype", ir.I32), ir.IntsAttr("shape", []int{}), ir.FloatAttr("value", -77))
		h = b.emit(ir.Dropout, -1, []ir.ValueID{h, key}, ir.FloatAttr("p", 0.25))
		// A table that is no parameter by itself.
		h = b.emit(ir.Add, -1, []ir.ValueID{h, b.emit(ir.Gather, -1, []ir.ValueID{b.emit(ir.Tanh, -1, []ir.ValueID{b.param("positions", 10, 16)}), ids})})
		h = b.emit(ir.Mul, -1, []ir.ValueID{h, b.emit(ir.Rsqrt, -1, []ir.ValueID{b.emit(ir.Add, -1, []ir.ValueID{b.emit(ir.Mul, -1, []ir.ValueID{h, h}), b.constant(0.5)})})})
		h = b.emit(ir.Mean, -1, []ir.ValueID{h}, ir.IntsAttr("axes", []int{1}))
		b.loss(b.emit(ir.MatMul, -1, []ir.ValueID{h, table}, ir.BoolAttr("transpose_b", true)), label, -1)
	}},
	{"pieces", func(b *model) {
		x, label := b.inputs(5, 12)
		h := b.dense("in", -1, x, 12, false)
		l := b.emit(ir.Slice, -1, []ir.ValueID{h}, ir.IntAttr("axis", 1), ir.IntAttr("start", 0), ir.IntAttr("stop", 5))
		r := b.emit(ir.Slice, -1, []ir.ValueID{h}, ir.IntAttr("axis", 1), ir.IntAttr("start", 5), ir.IntAttr("stop", 12))
		l = b.emit(ir.Abs, -1, []ir.ValueID{b.emit(ir.Pad, -1, []ir.ValueID{l}, ir.IntAttr("axis", 1), ir.IntAttr("start", 1), ir.IntAttr("size", 7))})
		j := b.emit(ir.Concat, -1, []ir.ValueID{l, b.emit(ir.Maximum, -1, []ir.ValueID{r, b.param("floor", 7)}), b.emit(ir.Minimum, -1, []ir.ValueID{l, r})}, ir.IntAttr("axis", 1))
		w := b.emit(ir.Where, -1, []ir.ValueID{b.emit(ir.Less, -1, []ir.ValueID{j, b.constant(0.1)}), b.emit(ir.Neg, -1, []ir.ValueID{j}), b.param("other", 1, 21)})
		b.loss(b.dense("out", -1, w, 10, true), label, -1)
	}},
}

func (b *model) inputs(shape ...int) (x, label ir.ValueID) {
	x = b.entry.AddArg("x", f32(shape...))
	return x, b.entry.AddArg("label", i32(shape[0]))
}

func (b *model) constant(v float64) ir.ValueID {
	return b.emit(ir.Constant, -1, nil, ir.DTypeAttr("dtype", ir.F32), ir.IntsAttr("shape", []int{}), ir.FloatAttr("value", v))
}

func mlpLayers(b *model, last int, transposed bool) {
	x, label := b.inputs(5, 70)
	y := b.emit(ir.Relu, 0, []ir.ValueID{b.dense("layer1", 0, x, 40, transposed)})
	y = b.emit(ir.Relu, last, []ir.ValueID{b.dense("layer2", last, y, 40, transposed)})
	b.loss(b.dense("layer3", last, y, 10, transposed), label, last)
}

// expected is one training step in the interpreter: the losses and the parameters after it.
func expected(t *testing.T, spec *plan.Spec) ([]float64, map[string][]float64) {
	t.Helper()
	step, err := autodiff.Run(spec.Entry)
	if err != nil {
		t.Fatal(err)
	}
	in := &interp.Interp{Exact: true}
	params := map[*ir.Param]interp.Tensor{}
	for _, p := range spec.Module.Params {
		v := interp.Tensor{Type: p.Type}
		for _, x := range valuesOf(p) {
			v.Data = append(v.Data, float64(x))
		}
		params[p] = v
	}
	n := len(spec.Inputs)
	accs := make([]interp.Tensor, len(step.Reads))
	for i, p := range step.Reads {
		accs[i] = interp.Tensor{Type: p.Type, Data: make([]float64, p.Type.Elems())}
	}
	var losses []float64
	for in.Micro = range spec.MicroBatches {
		var args []interp.Tensor
		for k, a := range step.Func.Args[:n] {
			args = append(args, interp.Tensor{Type: step.Func.TypeOf(a), Data: inputsOf(step.Func.TypeOf(a), k, in.Micro, 0)})
		}
		args = append(append(args, interp.Tensor{Type: f32(), Data: []float64{1}}), accs...)
		out, err := in.Run(step.Func, args, params)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, out[0].Data[0])
		accs = out[1:]
	}
	after := map[string][]float64{}
	for i, p := range step.Reads {
		if after[p.Name] == nil {
			after[p.Name] = slices.Clone(params[p].Data)
		}
		for e, g := range accs[i].Data {
			after[p.Name][e] -= 0.1 * g
		}
	}
	return losses, after
}

// TestGradients compares a step with the interpreter, and the ways of running it among each other.
func TestGradients(t *testing.T) {
	for _, c := range models {
		spec := func() *plan.Spec {
			b := newModel()
			c.build(b)
			return b.spec(3, 1, sgd(), "")
		}
		losses, params := expected(t, spec())
		for _, path := range kernel.Available() {
			t.Run(c.name+"/"+path, func(t *testing.T) {
				var first map[string][]float32
				for _, way := range []struct {
					lag   int
					norms bool
					plain bool
				}{{0, false, false}, {3, false, false}, {2, false, true}, {0, true, false}} {
					r := open(t, compile(t, spec(), 3), device.Options{Path: path, Poison: true})
					if way.plain {
						d, err := cpu.OpenPlain(r.plan, 0, device.Options{Path: path, Poison: true})
						r.check(err)
						floats(d.Buffer(r.plan.Stages[0].Seed, 0))[0] = 1
						r.devs[0] = d
					}
					r.initial()
					r.load(0)
					got := r.step(way.lag, way.norms)
					after := r.params()
					for m, v := range losses {
						if math.Abs(float64(got[m])-v) > 1e-5*(1+math.Abs(v)) {
							t.Errorf("%+v: loss of micro-batch %d is %v, want %v", way, m, got[m], v)
						}
					}
					for name, want := range params {
						for e, v := range want {
							if d := math.Abs(float64(after[name][e]) - v); !(d <= 2e-5*(1+math.Abs(v))) {
								t.Errorf("%+v: %s[%d] is %v, want %v", way, name, e, after[name][e], v)
								break
							}
						}
						if first != nil && !slices.Equal(first[name], after[name]) {
							t.Errorf("%+v: %s differs from the first way", way, name)
						}
					}
					if first == nil {
						first = after
					}
				}
			})
		}
	}
}

// TestForms: which parameters the models above keep packed, so that they go on to cover every form.
func TestForms(t *testing.T) {
	var got []string
	for _, c := range models {
		b := newModel()
		c.build(b)
		p := compile(t, b.spec(3, 1, sgd(), ""), 3)
		for _, sp := range p.Stages[0].Params {
			form := p.Stages[0].Areas[sp.Value.Area].Items[sp.Value.Item].Form
			got = append(got, fmt.Sprint(len(sp.Accumulators), [...]string{"rows", "kn", "nk"}[form], len(sp.Param.Type.Shape)))
		}
	}
	for _, want := range []string{"1kn2", "1nk2", "2rows2", "2kn2", "1rows2", "1rows1"} {
		if !slices.Contains(got, want) {
			t.Errorf("no parameter of form %s among %v", want, got)
		}
	}
}

// TestPackingKeepsBits: weights that have another use (they are printed) are kept row-major, and nothing else changes.
func TestPackingKeepsBits(t *testing.T) {
	for _, path := range kernel.Available() {
		for _, transposed := range []bool{false, true} {
			var want map[string][]float32
			for _, packed := range []bool{true, false} {
				b := newModel()
				mlpLayers(b, 0, transposed)
				if !packed {
					for _, w := range b.entry.ParamReads() {
						b.emit(ir.Print, -1, []ir.ValueID{w})
					}
				}
				r := open(t, compile(t, b.spec(3, 1, sgd(), ""), 3), device.Options{Path: path})
				for _, it := range r.plan.Stages[0].Areas[r.plan.Stages[0].Params[0].Value.Area].Items {
					if it.Type.Rank() == 2 && (it.Form != plan.Rows) != packed {
						t.Fatalf("%s has form %d", it.Name, it.Form)
					}
				}
				r.initial()
				for step := range 3 {
					r.load(step)
					r.step(3, false)
				}
				if want == nil {
					want = r.params()
				} else if !cmp.Equal(want, r.params()) {
					t.Errorf("%s, transposed %v: parameters differ", path, transposed)
				}
			}
		}
	}
}

// TestFusion: steps are fused, and without fusion the bits are the same (TestGradients).
func TestFusion(t *testing.T) {
	p := compile(t, mlp(2, 1, false, ""), 0)
	fused := open(t, p, device.Options{}).devs[0]
	plain, err := cpu.OpenPlain(p, 0, device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Three products lose their bias and two of them a relu; two input gradients lose their relu_grad.
	for pass, want := range map[ir.Pass]int{ir.ForwardPass: 5, ir.InputPass: 2} {
		if got := cpu.Steps(plain, 0, pass) - cpu.Steps(fused, 0, pass); got != want {
			t.Errorf("pass %s: %d steps fewer, want %d", pass, got, want)
		}
	}
	if n := cpu.UpdateSteps(fused); n != 1 {
		t.Errorf("SGD takes %d steps a block", n)
	}
}

// TestTable: every operation of the table has a kernel.
func TestTable(t *testing.T) {
	for _, k := range ir.Kinds() {
		if !cpu.Builds(k) {
			t.Errorf("the device has no kernel for %s", k)
		}
	}
}
