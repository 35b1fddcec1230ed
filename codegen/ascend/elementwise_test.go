package ascend

import (
	"fmt"
	"math"
	"testing"

	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

// single is the case of one op alone.
func single(t *testing.T, name string, kind ir.Kind, attrs ir.Attrs, args ...tensor) kernelCase {
	t.Helper()
	shape := []int{}
	types := make([]ir.Type, len(args))
	for i, a := range args {
		types[i] = a.typ
		var err error
		if shape, err = ir.Broadcast(shape, a.typ.Shape); err != nil {
			t.Fatal(err)
		}
	}
	out, err := kind.Info().Infer(types, attrs)
	if err != nil {
		t.Fatal(err)
	}
	f := fusion{shape: out[0].Shape, outputs: []int{0}}
	node := fusionNode{kind: kind, attrs: attrs, out: out[0]}
	for i, a := range args {
		f.inputs = append(f.inputs, fusionInput{typ: a.typ})
		node.args = append(node.args, -1-i)
	}
	f.nodes = []fusionNode{node}
	kernel, err := emitFusion(testChip(t), f, kind.String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	want := newTensor(out[0].DType, out[0].Shape...)
	for i := range want.data {
		values := make([]float64, len(args))
		for j, a := range args {
			values[j] = a.at(i, out[0].Shape)
		}
		want.data[i] = reference(kind, attrs, values)
	}
	result := newTensor(out[0].DType, out[0].Shape...)
	return kernelCase{name: name, kernel: kernel, args: append(args, result), want: map[int]tensor{len(args): want}, tolerance: 2e-6}
}

func TestElementwiseOps(t *testing.T) {
	var cases []kernelCase
	shapes := [][]int{{}, {7}, {8, 512}, {3, 5, 13}}
	one := []ir.Kind{ir.Neg, ir.Exp, ir.Abs, ir.Relu, ir.Sigmoid, ir.Tanh, ir.Gelu}
	two := []ir.Kind{ir.Add, ir.Sub, ir.Mul, ir.Maximum, ir.Minimum, ir.ReluGrad, ir.SigmoidGrad, ir.TanhGrad, ir.GeluGrad, ir.Equal, ir.Less, ir.LessEqual}
	for i, shape := range shapes {
		seed := uint64(10 * i)
		x, y := newTensor(ir.F32, shape...).random(seed), newTensor(ir.F32, shape...).random(seed+1)
		coarse := func(v float64) float64 { return math.Round(v) } // makes equal elements likely
		for _, kind := range one {
			cases = append(cases, single(t, fmt.Sprintf("%s %v", kind, shape), kind, nil, x))
		}
		for _, kind := range two {
			a, b := x, y
			if kind.Info().Name == "equal" || kind.Info().Name == "less_equal" {
				a, b = newTensor(ir.F32, shape...).random(seed).each(coarse), newTensor(ir.F32, shape...).random(seed+1).each(coarse)
			}
			cases = append(cases, single(t, fmt.Sprintf("%s %v", kind, shape), kind, nil, a, b))
		}
		positive := newTensor(ir.F32, shape...).random(seed + 2).each(func(v float64) float64 { return math.Abs(v) + 0.25 })
		cases = append(cases,
			single(t, fmt.Sprintf("log %v", shape), ir.Log, nil, positive),
			single(t, fmt.Sprintf("sqrt %v", shape), ir.Sqrt, nil, positive),
			single(t, fmt.Sprintf("div %v", shape), ir.Div, nil, x, positive),
			single(t, fmt.Sprintf("scale %v", shape), ir.Scale, ir.Attrs{ir.FloatAttr("factor", -0.375)}, x),
			single(t, fmt.Sprintf("where %v", shape), ir.Where, nil, newTensor(ir.Bool, shape...).random(seed+3), x, y))
	}
	runKernels(t, cases)
}

func TestElementwiseBroadcast(t *testing.T) {
	var cases []kernelCase
	for i, c := range []struct{ a, b []int }{
		{[]int{8, 512}, []int{512}},
		{[]int{8, 10}, []int{10}},
		{[]int{8, 10}, []int{8, 1}},
		{[]int{300, 7}, []int{7}},
		{[]int{300, 7}, []int{300, 1}},
		{[]int{7}, []int{300, 1}},
		{[]int{8, 10}, []int{}},
		{[]int{1, 1}, []int{1}},
		{[]int{4, 3, 5, 6}, []int{3, 1, 6}},
		{[]int{4, 1, 5, 1}, []int{3, 1, 6}},
		{[]int{2, 70000}, []int{70000}},
		{[]int{2, 70000}, []int{2, 1}},
		{[]int{5000, 3}, []int{3}},
		{[]int{5, 1, 9}, []int{5, 4, 1}},
	} {
		a, b := newTensor(ir.F32, c.a...).random(uint64(i)), newTensor(ir.F32, c.b...).random(uint64(i+100))
		away := newTensor(ir.F32, c.b...).random(uint64(i + 200)).each(func(v float64) float64 { return math.Copysign(math.Abs(v)+0.5, v) })
		cases = append(cases,
			single(t, fmt.Sprintf("add %v %v", c.a, c.b), ir.Add, nil, a, b),
			single(t, fmt.Sprintf("sub %v %v", c.b, c.a), ir.Sub, nil, b, a),
			single(t, fmt.Sprintf("div %v %v", c.a, c.b), ir.Div, nil, a, away),
			single(t, fmt.Sprintf("less %v %v", c.a, c.b), ir.Less, nil, a, b))
		if i < 6 {
			cases = append(cases, single(t, fmt.Sprintf("where %v %v", c.a, c.b), ir.Where, nil, newTensor(ir.Bool, c.a...).random(3), b, a))
		}
	}
	to := func(shape ...int) ir.Attrs { return ir.Attrs{ir.IntsAttr("shape", shape)} }
	cases = append(cases,
		single(t, "broadcast row", ir.BroadcastTo, to(6, 9), newTensor(ir.F32, 9).random(1)),
		single(t, "broadcast column", ir.BroadcastTo, to(6, 9), newTensor(ir.F32, 6, 1).random(1)),
		single(t, "broadcast scalar", ir.BroadcastTo, to(6, 9), newTensor(ir.F32).random(1)),
		single(t, "broadcast integers", ir.BroadcastTo, to(6, 9), newTensor(ir.I32, 9).random(1)))
	runKernels(t, cases)
}

func TestElementwiseTypes(t *testing.T) {
	cast := func(d ir.DType) ir.Attrs { return ir.Attrs{ir.DTypeAttr("dtype", d)} }
	floor := func(k kernelCase, f func(v float64) float64) kernelCase {
		for _, w := range k.want {
			w.each(f)
		}
		return k
	}
	var cases []kernelCase
	for _, n := range []int{1, 45, 1000} {
		f, h, b := newTensor(ir.F32, n).random(1), newTensor(ir.F16, n).random(2), newTensor(ir.BF16, n).random(3)
		i, j, u := newTensor(ir.I32, n).random(4), newTensor(ir.I32, n).random(5), newTensor(ir.U8, n).random(6)
		name := func(s string) string { return fmt.Sprintf("%s %d", s, n) }
		cases = append(cases,
			floor(single(t, name("f32 to i32"), ir.Cast, cast(ir.I32), f), math.Trunc),
			floor(single(t, name("f32 to bool"), ir.Cast, cast(ir.Bool), f), func(v float64) float64 { return truth(v != 0) }),
			floor(single(t, name("i32 to bool"), ir.Cast, cast(ir.Bool), i), func(v float64) float64 { return truth(v != 0) }),
			single(t, name("i32 to f32"), ir.Cast, cast(ir.F32), i),
			single(t, name("f16 to f32"), ir.Cast, cast(ir.F32), h),
			single(t, name("bf16 to f32"), ir.Cast, cast(ir.F32), b),
			single(t, name("f16 to bf16"), ir.Cast, cast(ir.BF16), h),
			single(t, name("u8 to f32"), ir.Cast, cast(ir.F32), u),
			floor(single(t, name("f32 to u8"), ir.Cast, cast(ir.U8), newTensor(ir.F32, n).random(7).each(math.Abs)), math.Trunc),
			single(t, name("add f16"), ir.Add, nil, h, newTensor(ir.F16, n).random(8)),
			single(t, name("relu bf16"), ir.Relu, nil, b),
			single(t, name("add i32"), ir.Add, nil, i, j),
			single(t, name("sub i32"), ir.Sub, nil, i, j),
			single(t, name("mul i32"), ir.Mul, nil, i, j),
			single(t, name("maximum i32"), ir.Maximum, nil, i, j),
			single(t, name("equal i32"), ir.Equal, nil, i, j),
			single(t, name("less i32"), ir.Less, nil, i, j),
			single(t, name("less_equal i32"), ir.LessEqual, nil, i, j),
			single(t, name("where i32"), ir.Where, nil, newTensor(ir.Bool, n).random(9), i, j),
			single(t, name("where f16"), ir.Where, nil, newTensor(ir.Bool, n).random(9), h, newTensor(ir.F16, n).random(8)))
	}
	cases = append(cases, single(t, "add f16 row", ir.Add, nil, newTensor(ir.F16, 9, 21).random(1), newTensor(ir.F16, 21).random(2)))
	runKernels(t, cases)
}

// TestFusion runs chains of ops with several inputs and outputs, constants and scalars by value.
func TestFusion(t *testing.T) {
	var cases []kernelCase
	for _, shape := range [][]int{{1}, {8, 10}, {8, 512}, {129, 1000}, {3, 100001}} {
		x, bias := newTensor(ir.F32, shape...).random(1), newTensor(ir.F32, shape[len(shape)-1]).random(2)
		typ := x.typ
		// y = relu(x + bias); z = y * 0.5 - x; both leave.
		f := fusion{
			shape:  shape,
			inputs: []fusionInput{{typ: typ}, {typ: bias.typ}, {typ: ir.Tensor(ir.F32), immediate: true, value: 0.5}},
			nodes: []fusionNode{
				{kind: ir.Add, args: []int{-1, -2}, out: typ},
				{kind: ir.Relu, args: []int{0}, out: typ},
				{kind: ir.Mul, args: []int{1, -3}, out: typ},
				{kind: ir.Sub, args: []int{2, -1}, out: typ},
			},
			outputs: []int{1, 3},
		}
		kernel, err := emitFusion(testChip(t), f, "chain")
		if err != nil {
			t.Fatal(err)
		}
		y, z := newTensor(ir.F32, shape...), newTensor(ir.F32, shape...)
		for i := range y.data {
			y.data[i] = float64(max(float32(x.data[i])+float32(bias.at(i, shape)), 0))
			z.data[i] = float64(float32(y.data[i])*0.5 - float32(x.data[i]))
		}
		cases = append(cases, kernelCase{
			name: fmt.Sprint("chain ", shape), kernel: kernel, want: map[int]tensor{2: y, 3: z},
			args: []tensor{x, bias, newTensor(ir.F32, shape...), newTensor(ir.F32, shape...)},
		})

		// p - rate * g, with the rate by value.
		f = fusion{
			shape:  shape,
			inputs: []fusionInput{{typ: typ}, {typ: typ}, {typ: ir.Tensor(ir.F32), byValue: "rate"}},
			nodes: []fusionNode{
				{kind: ir.Mul, args: []int{-2, -3}, out: typ},
				{kind: ir.Sub, args: []int{-1, 0}, out: typ},
			},
			outputs: []int{1},
		}
		if kernel, err = emitFusion(testChip(t), f, "sgd"); err != nil {
			t.Fatal(err)
		}
		g, next := newTensor(ir.F32, shape...).random(3), newTensor(ir.F32, shape...)
		for i := range next.data {
			next.data[i] = float64(float32(x.data[i]) - float32(float32(0.01)*float32(g.data[i])))
		}
		cases = append(cases, kernelCase{
			name: fmt.Sprint("sgd ", shape), kernel: kernel, scalars: []emulator.Arg{emulator.Float32Arg(0.01)},
			args: []tensor{x, g, newTensor(ir.F32, shape...)}, want: map[int]tensor{2: next},
		})

		// acc += g, or acc = g for the first micro-batch.
		f = fusion{shape: shape, inputs: []fusionInput{{typ: typ}, {typ: typ}}, outputs: []int{0},
			nodes: []fusionNode{{kind: ir.Accumulate, args: []int{-1, -2}, out: typ}}}
		if kernel, err = emitFusion(testChip(t), f, "accumulate"); err != nil {
			t.Fatal(err)
		}
		for _, assign := range []int32{0, 1} {
			sum := newTensor(ir.F32, shape...)
			for i := range sum.data {
				sum.data[i] = g.data[i]
				if assign == 0 {
					sum.data[i] = float64(float32(x.data[i]) + float32(g.data[i]))
				}
			}
			cases = append(cases, kernelCase{
				name: fmt.Sprintf("accumulate %v assign %d", shape, assign), kernel: kernel,
				scalars: []emulator.Arg{emulator.Int32Arg(assign)},
				args:    []tensor{x, g, newTensor(ir.F32, shape...)}, want: map[int]tensor{2: sum},
			})
		}
	}
	runKernels(t, cases)
}

func TestElementwiseRefusals(t *testing.T) {
	for _, c := range []struct {
		kind ir.Kind
		typ  ir.Type
	}{
		{ir.Add, ir.Tensor(ir.F64, 4)},
		{ir.Add, ir.Tensor(ir.I64, 4)},
		{ir.Div, ir.Tensor(ir.I32, 4)},
		{ir.Add, ir.Tensor(ir.U8, 4)},
	} {
		f := fusion{shape: c.typ.Shape, inputs: []fusionInput{{typ: c.typ}, {typ: c.typ}}, outputs: []int{0},
			nodes: []fusionNode{{kind: c.kind, args: []int{-1, -2}, out: c.typ}}}
		if _, err := emitFusion(testChip(t), f, "refused"); err == nil {
			t.Errorf("%s on %s was accepted", c.kind, c.typ)
		}
	}
}
