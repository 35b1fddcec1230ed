package interp

import (
	"math"
	"slices"
	"testing"

	"github.com/ppc-lang/ppc/ir"
)

func tensor(shape []int, v ...float64) Tensor { return Tensor{ir.Tensor(ir.F32, shape...), v} }

func at() ir.At { return ir.Unmarked(ir.Pos{}) }

// evaluate runs one operation.
func evaluate(t *testing.T, in *Interp, k ir.Kind, attrs ir.Attrs, args ...Tensor) Tensor {
	t.Helper()
	f := ir.NewModule("test").NewFunc("f")
	ids := make([]ir.ValueID, len(args))
	for i, a := range args {
		ids[i] = f.AddArg("x", a.Type)
	}
	f.Return(f.MustEmit(k, ids, attrs, at()))
	out, err := in.Run(f, args, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

func TestOperations(t *testing.T) {
	x := tensor([]int{2, 3}, 1, 2, 3, 4, 5, 6)
	row := tensor([]int{3}, 10, 20, 30)
	w := tensor([]int{3, 2}, 1, 0, 0, 1, 1, 1)
	label := Tensor{ir.Tensor(ir.I32, 2), []float64{2, 0}}
	for _, c := range []struct {
		kind  ir.Kind
		attrs ir.Attrs
		args  []Tensor
		want  []float64
	}{
		{ir.Add, nil, []Tensor{x, row}, []float64{11, 22, 33, 14, 25, 36}},
		{ir.Transpose, ir.Attrs{ir.IntsAttr("perm", []int{1, 0})}, []Tensor{x}, []float64{1, 4, 2, 5, 3, 6}},
		{ir.BroadcastTo, ir.Attrs{ir.IntsAttr("shape", []int{2, 3})}, []Tensor{row}, []float64{10, 20, 30, 10, 20, 30}},
		{ir.SumTo, ir.Attrs{ir.IntsAttr("shape", []int{1, 3})}, []Tensor{x}, []float64{5, 7, 9}},
		{ir.Sum, ir.Attrs{ir.IntsAttr("axes", []int{1})}, []Tensor{x}, []float64{6, 15}},
		{ir.Mean, nil, []Tensor{x}, []float64{3.5}},
		{ir.Concat, ir.Attrs{ir.IntAttr("axis", 1)}, []Tensor{x, tensor([]int{2, 1}, 7, 8)}, []float64{1, 2, 3, 7, 4, 5, 6, 8}},
		{ir.Slice, ir.Attrs{ir.IntAttr("axis", 1), ir.IntAttr("start", 1), ir.IntAttr("stop", 3)}, []Tensor{x}, []float64{2, 3, 5, 6}},
		{ir.Pad, ir.Attrs{ir.IntAttr("axis", 1), ir.IntAttr("start", 1), ir.IntAttr("size", 4)}, []Tensor{x}, []float64{0, 1, 2, 3, 0, 4, 5, 6}},
		{ir.MatMul, nil, []Tensor{x, w}, []float64{4, 5, 10, 11}},
		{ir.MatMul, ir.Attrs{ir.BoolAttr("transpose_a", true), ir.BoolAttr("transpose_b", true)}, []Tensor{w, tensor([]int{1, 3}, 1, 2, 3)}, []float64{4, 5}},
		{ir.MatMulAccumulate, nil, []Tensor{tensor([]int{3, 1}, 9, 9, 9), x, tensor([]int{2, 1}, 1, 2)}, []float64{9, 12, 15}},
		{ir.ArgMax, nil, []Tensor{tensor([]int{2, 3}, 1, 3, 3, math.NaN(), 1, 9)}, []float64{1, 0}},
		{ir.Maximum, nil, []Tensor{x, tensor(nil, 3)}, []float64{3, 3, 3, 4, 5, 6}},
		{ir.Cast, ir.Attrs{ir.DTypeAttr("dtype", ir.I32)}, []Tensor{tensor([]int{4}, 1.9, -1.9, 1e20, math.NaN())}, []float64{1, -1, math.MaxInt32, 0}},
		{ir.CrossEntropy, nil, []Tensor{tensor([]int{2, 3}, 0, 0, 0, 1, 1, 1), label}, []float64{math.Log(3), math.Log(3)}},
	} {
		got := evaluate(t, &Interp{Exact: true}, c.kind, c.attrs, c.args...)
		if !slices.EqualFunc(got.Data, c.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }) {
			t.Errorf("%s %s = %v, want %v", c.kind, c.attrs, got.Data, c.want)
		}
	}
}

func TestRound(t *testing.T) {
	for _, c := range []struct {
		t       ir.DType
		v, want float64
	}{
		{ir.F32, 0.1, float64(float32(0.1))}, {ir.F16, 1 + 1.0/2048, 1}, {ir.F16, 1 + 3.0/2048, 1 + 2.0/1024}, {ir.F16, 65519, 65504},
		{ir.F16, 65520, math.Inf(1)}, {ir.F16, -1e-8, 0}, {ir.F16, 6e-8, math.Ldexp(1, -24)}, {ir.BF16, 1.00390625, 1}, {ir.BF16, -3.39e38, -math.Ldexp(255, 120)},
		{ir.I32, 1 << 31, -1 << 31}, {ir.U8, 257, 1}, {ir.Bool, -2, 1}, {ir.F64, 0.1, 0.1},
	} {
		if got := Round(c.t, c.v); got != c.want {
			t.Errorf("%v as %s is %v, want %v", c.v, c.t, got, c.want)
		}
	}
}

// TestRoundsEachOperation: the sum of 1 and 2^-24 stays 1 however often it is added.
func TestRoundsEachOperation(t *testing.T) {
	x := tensor([]int{3}, 1, math.Ldexp(1, -24), math.Ldexp(1, -24))
	if got := evaluate(t, &Interp{}, ir.Sum, nil, x).Data[0]; got != 1 {
		t.Errorf("rounded sum %v", got)
	}
	if got := evaluate(t, &Interp{Exact: true}, ir.Sum, nil, x).Data[0]; got == 1 {
		t.Errorf("exact sum %v", got)
	}
}

// TestRows: rows that are read twice get both gradients, and indices outside of the table are errors.
func TestRows(t *testing.T) {
	table := tensor([]int{3, 2}, 1, 2, 3, 4, 5, 6)
	ids := Tensor{ir.Tensor(ir.I32, 3), []float64{2, 0, 2}}
	if got := evaluate(t, &Interp{}, ir.Gather, nil, table, ids).Data; !slices.Equal(got, []float64{5, 6, 1, 2, 5, 6}) {
		t.Errorf("gather gives %v", got)
	}
	dy := tensor([]int{3, 2}, 1, 2, 3, 4, 10, 20)
	for micro, want := range [][]float64{{3, 4, 0, 0, 11, 22}, {4, 6, 3, 4, 16, 28}} {
		if got := evaluate(t, &Interp{Micro: micro}, ir.GatherAccumulate, nil, table, ids, dy).Data; !slices.Equal(got, want) {
			t.Errorf("micro-batch %d: %v, want %v", micro, got, want)
		}
	}
	f := ir.NewModule("test").NewFunc("f")
	f.Return(f.MustEmit(ir.Gather, []ir.ValueID{f.AddArg("table", table.Type), f.AddArg("ids", ids.Type)}, nil, at()))
	for _, bad := range []float64{-1, 3} {
		if _, err := (&Interp{}).Run(f, []Tensor{table, {ids.Type, []float64{0, bad, 0}}}, nil); err == nil {
			t.Errorf("index %v passes", bad)
		}
	}
}

// TestDropout: about a share p of the elements is 0 and the others are scaled; seed, key, step and micro-batch each
// change which ones.
func TestDropout(t *testing.T) {
	x := Tensor{Type: ir.Tensor(ir.F32, 1000), Data: slices.Repeat([]float64{3}, 1000)}
	run := func(in *Interp, key float64) []float64 {
		return evaluate(t, in, ir.Dropout, ir.Attrs{ir.FloatAttr("p", 0.25)}, x, Tensor{ir.Tensor(ir.I32), []float64{key}}).Data
	}
	first := run(&Interp{}, 5)
	zeros := 0
	for _, v := range first {
		if v == 0 {
			zeros++
		} else if v != 4 {
			t.Fatalf("an element is %v", v)
		}
	}
	if zeros < 200 || zeros > 300 {
		t.Errorf("%d of 1000 elements are dropped", zeros)
	}
	for _, other := range [][]float64{run(&Interp{Seed: 1}, 5), run(&Interp{Step: 1}, 5), run(&Interp{Micro: 1}, 5), run(&Interp{}, -5)} {
		if slices.Equal(first, other) {
			t.Error("two masks are equal")
		}
	}
	if !slices.Equal(first, run(&Interp{}, 5)) {
		t.Error("the mask is drawn anew")
	}
}

// TestAccumulate: micro-batch 0 assigns.
func TestAccumulate(t *testing.T) {
	a, g := tensor([]int{2}, 5, 6), tensor([]int{2}, 1, 2)
	for micro, want := range [][]float64{{1, 2}, {6, 8}} {
		if got := evaluate(t, &Interp{Micro: micro}, ir.Accumulate, nil, a, g).Data; !slices.Equal(got, want) {
			t.Errorf("micro-batch %d: %v, want %v", micro, got, want)
		}
	}
	if a.Data[0] != 5 {
		t.Error("the operand was changed")
	}
}

// TestComplete: every element-wise operation has a function. The others are compared with the cpu device by name there.
func TestComplete(t *testing.T) {
	for _, k := range ir.Kinds() {
		e := &evaluation{Interp: &Interp{}, op: &ir.Op{Kind: k}}
		if k.Info().Elementwise && e.function() == nil {
			t.Errorf("%s has no function", k)
		}
	}
}
