package autodiff_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/interp"
	"github.com/ppc-lang/ppc/passes/autodiff"
)

// rule is a case of the test of gradient rules: an operation on operands of these types.
type rule struct {
	kind  ir.Kind
	attrs ir.Attrs
	in    []ir.Type
}

func f32(shape ...int) ir.Type { return ir.Tensor(ir.F32, shape...) }

func rules() []rule {
	var out []rule
	add := func(k ir.Kind, attrs ir.Attrs, in ...ir.Type) { out = append(out, rule{k, attrs, in}) }
	ints := func(name string, v ...int) ir.Attr { return ir.IntsAttr(name, v) }
	for _, k := range []ir.Kind{ir.Add, ir.Sub, ir.Mul, ir.Div, ir.Maximum, ir.Minimum} {
		for _, s := range [][2][]int{{{2, 3}, {2, 3}}, {{2, 3}, {3}}, {{3}, {2, 3}}, {{2, 1}, {3}}, {{}, {2, 3}}, {{2, 3, 2}, {3, 1}}} {
			add(k, nil, f32(s[0]...), f32(s[1]...))
		}
	}
	for _, k := range []ir.Kind{ir.Identity, ir.Neg, ir.Exp, ir.Log, ir.Sqrt, ir.Rsqrt, ir.Softmax, ir.Tril, ir.Abs, ir.Relu, ir.Sigmoid, ir.Tanh, ir.Gelu} {
		add(k, nil, f32(2, 5))
	}
	add(ir.Where, nil, ir.Tensor(ir.Bool, 2, 1), f32(3), f32(2, 3))
	add(ir.Where, nil, ir.Tensor(ir.Bool, 2, 3), f32(), f32(2, 1))
	add(ir.Scale, ir.Attrs{ir.FloatAttr("factor", -0.7)}, f32(4))
	add(ir.Reshape, ir.Attrs{ints("shape", 3, 2)}, f32(2, 3))
	add(ir.Flatten, ir.Attrs{ir.IntAttr("start", 1)}, f32(2, 3, 2))
	add(ir.Transpose, ir.Attrs{ints("perm", 2, 0, 1)}, f32(2, 3, 4))
	add(ir.BroadcastTo, ir.Attrs{ints("shape", 4, 2, 3)}, f32(2, 1))
	add(ir.SumTo, ir.Attrs{ints("shape", 3, 1)}, f32(2, 3, 4))
	add(ir.Concat, ir.Attrs{ir.IntAttr("axis", 1)}, f32(2, 1), f32(2, 3), f32(2, 2))
	add(ir.Slice, ir.Attrs{ir.IntAttr("axis", 1), ir.IntAttr("start", 1), ir.IntAttr("stop", 3)}, f32(2, 4))
	add(ir.Pad, ir.Attrs{ir.IntAttr("axis", 0), ir.IntAttr("start", 2), ir.IntAttr("size", 5)}, f32(2, 3))
	add(ir.Cast, ir.Attrs{ir.DTypeAttr("dtype", ir.F64)}, f32(2, 3))
	for _, k := range []ir.Kind{ir.Sum, ir.Mean} {
		add(k, nil, f32(2, 3))
		add(k, ir.Attrs{ints("axes", 1)}, f32(2, 3, 2))
		add(k, ir.Attrs{ints("axes", 0, 2), ir.BoolAttr("keepdims", true)}, f32(2, 3, 2))
	}
	for _, swapA := range []bool{false, true} {
		for _, swapB := range []bool{false, true} {
			attrs := ir.Attrs{ir.BoolAttr("transpose_a", swapA), ir.BoolAttr("transpose_b", swapB)}
			a, b := []int{2, 3}, []int{3, 4}
			if swapA {
				a = []int{3, 2}
			}
			if swapB {
				b = []int{4, 3}
			}
			add(ir.MatMul, attrs, f32(a...), f32(b...))
			add(ir.MatMul, attrs, f32(append([]int{2}, a...)...), f32(append([]int{2}, b...)...))
			if !swapA {
				add(ir.MatMul, attrs, f32(append([]int{2, 2}, a...)...), f32(b...))
			}
		}
	}
	add(ir.CrossEntropy, nil, f32(3, 4), ir.Tensor(ir.I32, 3))
	add(ir.Gather, nil, f32(3, 2, 4), ir.Tensor(ir.I32, 2, 3))
	add(ir.Gather, nil, f32(3), ir.Tensor(ir.I32))
	add(ir.Tril, nil, f32(2, 4, 3))
	add(ir.Dropout, ir.Attrs{ir.FloatAttr("p", 0.4)}, f32(3, 7), ir.Tensor(ir.I32))
	return out
}

// block is a function whose first result is a scalar made of one operation, with the values of its arguments and
// parameters.
type block struct {
	f      *ir.Func
	args   []interp.Tensor
	params map[*ir.Param]interp.Tensor
	order  []*ir.Param
}

// newBlock: every floating-point operand is a parameter, read directly or, if through, behind an operation. The result
// is weighed and summed.
func newBlock(r rule, through bool) *block {
	m := ir.NewModule("test")
	b := &block{f: m.NewFunc("f"), params: map[*ir.Param]interp.Tensor{}}
	at := ir.Unmarked(ir.Pos{})
	random := rand.New(rand.NewPCG(3, 4))
	var args []ir.ValueID
	for i, t := range r.in {
		v := interp.Tensor{Type: t, Data: make([]float64, t.Elems())}
		for e := range v.Data {
			switch {
			case !t.DType.IsFloat():
				v.Data[e] = float64(random.IntN(2))
			case r.kind == ir.Log || r.kind == ir.Sqrt || r.kind == ir.Rsqrt || r.kind == ir.Div:
				v.Data[e] = 0.5 + random.Float64()
			default:
				v.Data[e] = random.NormFloat64()
			}
		}
		if !t.DType.IsFloat() {
			args = append(args, b.f.AddArg("x", t))
			b.args = append(b.args, v)
			continue
		}
		p := m.AddParam(&ir.Param{Name: fmt.Sprint("p", i), Type: t})
		b.order = append(b.order, p)
		b.params[p] = v
		x := b.f.ReadParam(p)
		if through {
			x = b.f.MustEmit(ir.Scale, []ir.ValueID{x}, ir.Attrs{ir.FloatAttr("factor", 1.25)}, at)
		}
		args = append(args, x)
	}
	y := b.f.MustEmit(r.kind, args, r.attrs, at)
	t := b.f.TypeOf(y)
	w := interp.Tensor{Type: t, Data: make([]float64, t.Elems())}
	for e := range w.Data {
		w.Data[e] = random.NormFloat64()
	}
	y = b.f.MustEmit(ir.Mul, []ir.ValueID{y, b.f.AddArg("w", t)}, nil, at)
	b.args = append(b.args, w)
	b.f.Return(b.f.MustEmit(ir.Sum, []ir.ValueID{y}, nil, at))
	return b
}

// gradients runs the joint graph, with that in every accumulator before, and adds up those of each parameter.
func (b *block) gradients(t *testing.T, in *interp.Interp, before float64) map[*ir.Param][]float64 {
	t.Helper()
	step, err := autodiff.Run(b.f)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.f.Module.Verify(ir.Joint); err != nil {
		t.Fatal(err)
	}
	args := append(append([]interp.Tensor{}, b.args...), interp.Tensor{Type: b.f.TypeOf(b.f.Results[0]), Data: []float64{1}})
	for _, p := range step.Reads {
		args = append(args, interp.Tensor{Type: p.Type, Data: slices.Repeat([]float64{before}, p.Type.Elems())})
	}
	out, err := in.Run(step.Func, args, b.params)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[*ir.Param][]float64{}
	for i, p := range step.Reads {
		if sums[p] == nil {
			sums[p] = make([]float64, p.Type.Elems())
		}
		for e, g := range out[len(b.f.Results)+i].Data {
			sums[p][e] += g
		}
	}
	return sums
}

func (b *block) loss(t *testing.T) float64 {
	t.Helper()
	out, err := (&interp.Interp{Exact: true}).Run(b.f, b.args, b.params)
	if err != nil {
		t.Fatal(err)
	}
	return out[0].Data[0]
}

// TestRules compares every gradient rule with central differences in float64.
func TestRules(t *testing.T) {
	covered := map[ir.Kind]bool{}
	for _, r := range rules() {
		covered[r.kind] = true
		for _, through := range []bool{false, true} {
			b := newBlock(r, through)
			got := b.gradients(t, &interp.Interp{Exact: true}, 0)
			for _, p := range b.order {
				const h = 1e-5
				v := b.params[p].Data
				if got[p] == nil {
					t.Errorf("%s%s of %v: operand %s has no gradient", r.kind, r.attrs, r.in, p.Name)
					continue
				}
				for e, old := range v {
					v[e] = old + h
					up := b.loss(t)
					v[e] = old - h
					down := b.loss(t)
					v[e] = old
					if want := (up - down) / (2 * h); !(math.Abs(got[p][e]-want) <= 1e-7*(1+math.Abs(want))) {
						t.Errorf("%s%s of %v, read behind an operation %v: gradient %d of %s is %v, want %v", r.kind, r.attrs, r.in, through, e, p.Name, got[p][e], want)
						break
					}
				}
			}
		}
	}
	for _, k := range ir.Kinds() {
		if k.Info().Gradient != nil && !covered[k] {
			t.Errorf("the gradient rule of %s has no case", k)
		}
	}
}

// TestExtremumTies: where both are equal, the first operand has the gradient.
func TestExtremumTies(t *testing.T) {
	for _, k := range []ir.Kind{ir.Maximum, ir.Minimum} {
		b := newBlock(rule{k, nil, []ir.Type{f32(2), f32(2)}}, false)
		copy(b.params[b.order[1]].Data, b.params[b.order[0]].Data)
		got := b.gradients(t, &interp.Interp{Exact: true}, 0)
		for e, w := range b.args[0].Data {
			if got[b.order[0]][e] != w || got[b.order[1]][e] != 0 {
				t.Errorf("%s: %v and %v", k, got[b.order[0]], got[b.order[1]])
			}
		}
	}
}

// TestMicroBatches: the first micro-batch assigns, later ones add.
func TestMicroBatches(t *testing.T) {
	b := newBlock(rule{ir.MatMul, nil, []ir.Type{f32(2, 3), f32(3, 4)}}, false)
	first := b.gradients(t, &interp.Interp{Exact: true}, 5)
	later := b.gradients(t, &interp.Interp{Exact: true, Micro: 1}, 5)
	for _, p := range b.order {
		for e := range first[p] {
			if math.Abs(first[p][e]+5-later[p][e]) > 1e-12 {
				t.Errorf("%s: %v and %v", p.Name, first[p], later[p])
			}
		}
	}
}
