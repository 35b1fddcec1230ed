package cpu_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/interp"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// operation is a case of the test of all operations.
type operation struct {
	kind  ir.Kind
	attrs ir.Attrs
	in    []ir.Type
	// close allows a relative error: operations whose order of summation differs from the interpreter's.
	close bool
}

func f32(shape ...int) ir.Type     { return ir.Tensor(ir.F32, shape...) }
func i32(shape ...int) ir.Type     { return ir.Tensor(ir.I32, shape...) }
func boolean(shape ...int) ir.Type { return ir.Tensor(ir.Bool, shape...) }

func operations() []operation {
	var out []operation
	add := func(k ir.Kind, attrs ir.Attrs, in ...ir.Type) { out = append(out, operation{k, attrs, in, false}) }
	near := func(k ir.Kind, attrs ir.Attrs, in ...ir.Type) { out = append(out, operation{k, attrs, in, true}) }
	for _, k := range []ir.Kind{ir.Add, ir.Sub, ir.Mul, ir.Div, ir.Maximum, ir.Minimum, ir.Equal, ir.Less, ir.LessEqual} {
		for _, t := range [][2][]int{{{4, 37}, {4, 37}}, {{4, 37}, {37}}, {{37}, {4, 37}}, {{4, 37}, {4, 1}}, {{4, 37}, {}}, {{}, {4, 37}}, {{}, {}}, {{2, 1, 5}, {3, 1}}, {{2, 3, 4, 1, 5}, {3, 1, 6, 1}}} {
			add(k, nil, f32(t[0]...), f32(t[1]...))
			add(k, nil, i32(t[0]...), i32(t[1]...))
			if !strings.Contains("add sub mul div maximum minimum", k.String()) {
				add(k, nil, boolean(t[0]...), boolean(t[1]...))
			}
		}
	}
	for _, t := range []func(...int) ir.Type{f32, i32, boolean} {
		add(ir.Where, nil, boolean(3, 1), t(3, 5), t())
		add(ir.Where, nil, boolean(3, 5), t(5), t(2, 3, 5))
		add(ir.Transpose, ir.Attrs{ir.IntsAttr("perm", []int{1, 0})}, t(5, 7))
		add(ir.Transpose, ir.Attrs{ir.IntsAttr("perm", []int{2, 0, 3, 1})}, t(2, 3, 4, 5))
		add(ir.Transpose, ir.Attrs{ir.IntsAttr("perm", []int{1, 0, 2})}, t(2, 3, 4))
		add(ir.BroadcastTo, ir.Attrs{ir.IntsAttr("shape", []int{4, 3, 5})}, t(3, 1))
		add(ir.BroadcastTo, ir.Attrs{ir.IntsAttr("shape", []int{4, 3})}, t())
		add(ir.Concat, ir.Attrs{ir.IntAttr("axis", 1)}, t(2, 3, 2), t(2, 1, 2), t(2, 4, 2))
		add(ir.Concat, ir.Attrs{ir.IntAttr("axis", 0)}, t(2), t(3))
		add(ir.Slice, ir.Attrs{ir.IntAttr("axis", 1), ir.IntAttr("start", 1), ir.IntAttr("stop", 4)}, t(3, 5, 2))
		add(ir.Pad, ir.Attrs{ir.IntAttr("axis", 1), ir.IntAttr("start", 2), ir.IntAttr("size", 9)}, t(3, 5, 2))
		for _, d := range []ir.DType{ir.F32, ir.I32, ir.Bool} {
			add(ir.Cast, ir.Attrs{ir.DTypeAttr("dtype", d)}, t(3, 5))
			add(ir.Constant, ir.Attrs{ir.DTypeAttr("dtype", d), ir.IntsAttr("shape", []int{2, 3}), ir.FloatAttr("value", 3)})
		}
		add(ir.ArgMax, nil, t(4, 9))
		add(ir.Tril, nil, t(2, 5, 7))
		add(ir.Tril, nil, t(6, 3))
		add(ir.Gather, nil, t(10, 3, 2), i32(4, 5))
		add(ir.Gather, nil, t(10), i32())
	}
	for _, k := range []ir.Kind{ir.Neg, ir.Exp, ir.Log, ir.Sqrt, ir.Rsqrt, ir.Softmax, ir.Abs, ir.Relu, ir.Sigmoid, ir.Tanh, ir.Gelu} {
		add(k, nil, f32(3, 41))
	}
	add(ir.Scale, ir.Attrs{ir.FloatAttr("factor", 0.3)}, f32(3, 41))
	for _, k := range []ir.Kind{ir.ReluGrad, ir.SigmoidGrad, ir.TanhGrad, ir.GeluGrad, ir.SoftmaxGrad} {
		add(k, nil, f32(3, 41), f32(3, 41))
	}
	for _, k := range []ir.Kind{ir.Sum, ir.Mean} {
		for _, axes := range [][]int{nil, {0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}} {
			near(k, ir.Attrs{ir.IntsAttr("axes", axes), ir.BoolAttr("keepdims", len(axes) == 2)}, f32(3, 4, 5))
		}
		near(k, nil, f32(3, 4))
		near(k, ir.Attrs{ir.IntsAttr("axes", []int{1, 3})}, f32(2, 3, 4, 5))
	}
	for _, shape := range [][]int{{}, {5}, {1, 5}, {4, 1}, {3, 1, 5}, {3, 4, 5}, {1, 4, 1}} {
		near(ir.SumTo, ir.Attrs{ir.IntsAttr("shape", shape)}, f32(3, 4, 5))
	}
	for _, ta := range []bool{false, true} {
		for _, tb := range []bool{false, true} {
			for _, lead := range [][]int{nil, {3}, {2, 3}} {
				a, b := append(append([]int{}, lead...), 5, 38), append(append([]int{}, lead...), 38, 70)
				if ta {
					a[len(a)-1], a[len(a)-2] = a[len(a)-2], a[len(a)-1]
				}
				if tb {
					b[len(b)-1], b[len(b)-2] = b[len(b)-2], b[len(b)-1]
				}
				attrs := ir.Attrs{ir.BoolAttr("transpose_a", ta), ir.BoolAttr("transpose_b", tb)}
				near(ir.MatMul, attrs, f32(a...), f32(b...))
				if !ta && lead != nil {
					near(ir.MatMul, attrs, f32(a...), f32(b[len(b)-2:]...))
				}
			}
		}
	}
	add(ir.GatherGrad, ir.Attrs{ir.IntAttr("rows", 10)}, f32(4, 5, 3), i32(4, 5))
	add(ir.Dropout, ir.Attrs{ir.FloatAttr("p", 0.3)}, f32(4, 55), i32())
	add(ir.CrossEntropy, nil, f32(4, 10), i32(4))
	add(ir.CrossEntropyGrad, nil, f32(4, 10), i32(4), f32(4))
	add(ir.Identity, nil, f32(4, 10))
	add(ir.Reshape, ir.Attrs{ir.IntsAttr("shape", []int{8, -1})}, f32(4, 10))
	add(ir.Flatten, nil, f32(4, 5, 2))
	return out
}

// elsewhere: operations with effects, and accumulations, which only stand in weight passes.
var elsewhere = map[ir.Kind]string{
	ir.Print: "TestShow", ir.Summary: "TestShow", ir.TensorDump: "TestShow",
	ir.Accumulate: "TestGradients", ir.MatMulAccumulate: "TestGradients", ir.GatherAccumulate: "TestGradients",
}

// TestOperations compares every operation with the interpreter on every kernel path.
func TestOperations(t *testing.T) {
	covered := map[ir.Kind]bool{}
	for _, c := range operations() {
		covered[c.kind] = true
		b := newModel()
		var args []ir.ValueID
		var values []interp.Tensor
		random := rand.New(rand.NewPCG(1, 2))
		for i, typ := range c.in {
			x := b.entry.AddArg("x", typ)
			args = append(args, x)
			values = append(values, operandOf(c.kind, i, typ, random))
		}
		if len(args) == 0 {
			b.entry.AddArg("unused", f32(1))
			values = append(values, interp.Tensor{Type: f32(1), Data: []float64{0}})
		}
		y := b.entry.MustEmit(c.kind, args, c.attrs, at(-1))
		if c.kind.Info().View { // a result needs an operation of its own
			y = b.emit(ir.Transpose, -1, []ir.ValueID{y}, ir.IntsAttr("perm", []int{1, 0}))
		}
		b.entry.Return(y)
		want, err := (&interp.Interp{}).Run(b.entry, values, nil)
		if err != nil {
			t.Fatal(c.kind, err)
		}
		p := compile(t, &plan.Spec{Name: "op", Kind: "infer", Module: b.m, Entry: b.entry, Results: []plan.Result{{Name: "y"}}, MicroBatches: 1, Inputs: wholeInputs(b.entry)}, 0)
		for _, path := range kernel.Available() {
			r := open(t, p, device.Options{Path: path, Poison: true})
			for k, ref := range p.Stages[0].Inputs[0] {
				if ref.Item >= 0 {
					put(r.devs[0].Buffer(ref, 0), values[k])
				}
			}
			r.check(r.devs[0].Run(0, 0, ir.ForwardPass, 0, 1))
			o := p.Programs[0].Outputs[0]
			got := get(r.devs[0].Buffer(o.Ref, 0), o.Type)
			for e, v := range want[0].Data {
				scale := 0.0
				if c.close {
					scale = 1e-5 * (1 + math.Abs(v))
				}
				if !(math.Abs(got[e]-v) <= scale || math.IsNaN(v) && math.IsNaN(got[e])) && v != got[e] {
					t.Errorf("%s: %s%s of %v: element %d is %v, want %v", path, c.kind, c.attrs, c.in, e, got[e], v)
					break
				}
			}
		}
	}
	for _, k := range ir.Kinds() {
		if !covered[k] && elsewhere[k] == "" {
			t.Errorf("operation %s has no case", k)
		}
	}
}

func wholeInputs(f *ir.Func) (out []plan.Input) {
	for _, a := range f.Args {
		out = append(out, plan.Input{Name: f.Value(a).Name, Type: f.TypeOf(a), Whole: true})
	}
	return out
}

// operandOf gives random values in the domain of an operation, with some that are equal.
func operandOf(k ir.Kind, i int, t ir.Type, random *rand.Rand) interp.Tensor {
	v := make([]float64, t.Elems())
	for e := range v {
		switch {
		case t.DType == ir.Bool:
			v[e] = float64(random.IntN(2))
		case t.DType == ir.I32 && k == ir.Div && i == 1:
			v[e] = float64(1 + random.IntN(4))
		case t.DType == ir.I32 && (k == ir.CrossEntropy || k == ir.CrossEntropyGrad || k == ir.Gather || k == ir.GatherGrad):
			v[e] = float64(random.IntN(10))
		case t.DType == ir.I32:
			v[e] = float64(random.IntN(7) - 3)
		case random.IntN(4) == 0:
			v[e] = float64(random.IntN(5) - 2)
		default:
			v[e] = float64(float32(random.NormFloat64() * 2))
		}
	}
	return interp.Tensor{Type: t, Data: v}
}

func put(b []byte, v interp.Tensor) {
	for e, x := range v.Data {
		switch v.Type.DType {
		case ir.F32:
			floats(b)[e] = float32(x)
		case ir.I32:
			ints(b)[e] = int32(x)
		default:
			b[e] = byte(x)
		}
	}
}

func get(b []byte, t ir.Type) []float64 {
	out := make([]float64, t.Elems())
	for e := range out {
		switch t.DType {
		case ir.F32:
			out[e] = float64(floats(b)[e])
		case ir.I32:
			out[e] = float64(ints(b)[e])
		default:
			out[e] = float64(b[e])
		}
	}
	return out
}
