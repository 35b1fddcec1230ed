package ir

import "fmt"

// The type rules. Their errors are read by users, so they speak of shapes and element types only.

func same(in []Type, _ Attrs) ([]Type, error) { return []Type{in[0]}, nil }

func nothing([]Type, Attrs) ([]Type, error) { return nil, nil }

func sameFloat(in []Type, _ Attrs) ([]Type, error) {
	if !in[0].DType.IsFloat() {
		return nil, fmt.Errorf("wants a floating-point tensor, got %s", in[0])
	}
	return []Type{in[0]}, nil
}

func inferSameTwo(in []Type, _ Attrs) ([]Type, error) {
	if !in[0].Equal(in[1]) {
		return nil, fmt.Errorf("operands must have one type, got %s and %s", in[0], in[1])
	}
	return []Type{in[0]}, nil
}

func inferArithmetic(in []Type, _ Attrs) ([]Type, error) {
	s, err := broadcastTypes(in[0], in[1])
	if err != nil {
		return nil, err
	}
	if in[0].DType == Bool {
		return nil, fmt.Errorf("arithmetic wants numbers, got %s", in[0])
	}
	return []Type{{in[0].DType, s}}, nil
}

func broadcastTypes(a, b Type) ([]int, error) {
	if a.DType != b.DType {
		return nil, fmt.Errorf("element types %s and %s differ; use `cast`", a.DType, b.DType)
	}
	return Broadcast(a.Shape, b.Shape)
}

func inferCompare(in []Type, _ Attrs) ([]Type, error) {
	s, err := broadcastTypes(in[0], in[1])
	if err != nil {
		return nil, err
	}
	return []Type{{Bool, s}}, nil
}

func inferWhere(in []Type, _ Attrs) ([]Type, error) {
	if in[0].DType != Bool {
		return nil, fmt.Errorf("the condition must be bool, got %s", in[0])
	}
	s, err := broadcastTypes(in[1], in[2])
	if err != nil {
		return nil, err
	}
	if s, err = Broadcast(in[0].Shape, s); err != nil {
		return nil, err
	}
	return []Type{{in[1].DType, s}}, nil
}

func inferReshape(in []Type, attrs Attrs) ([]Type, error) {
	shape := attrs.Ints("shape")
	out := append([]int(nil), shape...)
	free, n := -1, 1
	for i, d := range shape {
		switch {
		case d == -1 && free < 0:
			free = i
		case d < 0:
			return nil, fmt.Errorf("shape %s has a negative length", ShapeString(shape))
		default:
			n *= d
		}
	}
	if free >= 0 && n > 0 && in[0].Elems()%n == 0 {
		out[free] = in[0].Elems() / n
		n *= out[free]
	}
	if n != in[0].Elems() || free >= 0 && out[free] < 0 {
		return nil, fmt.Errorf("cannot reshape %s (%d elements) to %s", in[0], in[0].Elems(), ShapeString(shape))
	}
	return []Type{{in[0].DType, out}}, nil
}

func inferFlatten(in []Type, attrs Attrs) ([]Type, error) {
	start := 1
	if attrs.Has("start") {
		start = attrs.Int("start")
	}
	if start < 0 || start >= in[0].Rank() {
		return nil, fmt.Errorf("cannot flatten %s from axis %d", in[0], start)
	}
	n := 1
	for _, d := range in[0].Shape[start:] {
		n *= d
	}
	return []Type{{in[0].DType, append(append([]int(nil), in[0].Shape[:start]...), n)}}, nil
}

func inferTranspose(in []Type, attrs Attrs) ([]Type, error) {
	perm := attrs.Ints("perm")
	if len(perm) != in[0].Rank() {
		return nil, fmt.Errorf("permutation %s does not fit %s", ShapeString(perm), in[0])
	}
	seen := make([]bool, len(perm))
	out := make([]int, len(perm))
	for i, p := range perm {
		if p < 0 || p >= len(perm) || seen[p] {
			return nil, fmt.Errorf("%s is not a permutation", ShapeString(perm))
		}
		seen[p] = true
		out[i] = in[0].Shape[p]
	}
	return []Type{{in[0].DType, out}}, nil
}

func inferBroadcastTo(in []Type, attrs Attrs) ([]Type, error) {
	shape := attrs.Ints("shape")
	s, err := Broadcast(in[0].Shape, shape)
	if err != nil {
		return nil, err
	}
	if !equalInts(s, shape) {
		return nil, fmt.Errorf("%s does not broadcast to %s", in[0], ShapeString(shape))
	}
	return []Type{{in[0].DType, s}}, nil
}

func inferSumTo(in []Type, attrs Attrs) ([]Type, error) {
	shape := attrs.Ints("shape")
	s, err := Broadcast(in[0].Shape, shape)
	if err != nil {
		return nil, err
	}
	if !equalInts(s, in[0].Shape) {
		return nil, fmt.Errorf("%s cannot be summed to %s", in[0], ShapeString(shape))
	}
	return []Type{{in[0].DType, shape}}, nil
}

func inferConcat(in []Type, attrs Attrs) ([]Type, error) {
	axis := attrs.Int("axis")
	if axis < 0 || axis >= in[0].Rank() {
		return nil, fmt.Errorf("axis %d is outside %s", axis, in[0])
	}
	out := append([]int(nil), in[0].Shape...)
	for _, t := range in[1:] {
		fits := t.DType == in[0].DType && t.Rank() == in[0].Rank()
		for i := range out {
			fits = fits && (i == axis || t.Shape[i] == out[i])
		}
		if !fits {
			return nil, fmt.Errorf("cannot join %s and %s on axis %d", in[0], t, axis)
		}
		out[axis] += t.Shape[axis]
	}
	return []Type{{in[0].DType, out}}, nil
}

func inferSlice(in []Type, attrs Attrs) ([]Type, error) {
	axis, start, stop := attrs.Int("axis"), attrs.Int("start"), attrs.Int("stop")
	if axis < 0 || axis >= in[0].Rank() {
		return nil, fmt.Errorf("axis %d is outside %s", axis, in[0])
	}
	if start < 0 || stop <= start || stop > in[0].Shape[axis] {
		return nil, fmt.Errorf("range %d..%d does not fit axis %d of %s", start, stop, axis, in[0])
	}
	out := append([]int(nil), in[0].Shape...)
	out[axis] = stop - start
	return []Type{{in[0].DType, out}}, nil
}

func inferPad(in []Type, attrs Attrs) ([]Type, error) {
	axis, start, size := attrs.Int("axis"), attrs.Int("start"), attrs.Int("size")
	if axis < 0 || axis >= in[0].Rank() || start < 0 || start+in[0].Shape[axis] > size {
		return nil, fmt.Errorf("cannot pad axis %d of %s to %d from %d", axis, in[0], size, start)
	}
	out := append([]int(nil), in[0].Shape...)
	out[axis] = size
	return []Type{{in[0].DType, out}}, nil
}

func inferCast(in []Type, attrs Attrs) ([]Type, error) {
	return []Type{{attrs.DType("dtype"), in[0].Shape}}, nil
}

func inferConstant(_ []Type, attrs Attrs) ([]Type, error) {
	return []Type{{attrs.DType("dtype"), attrs.Ints("shape")}}, nil
}

// matMulDims returns rows, inner and columns of the last two axes after the transpositions.
func matMulDims(a, b Type, attrs Attrs) (m, k, k2, n int) {
	m, k = a.Shape[a.Rank()-2], a.Shape[a.Rank()-1]
	if attrs.Bool("transpose_a") {
		m, k = k, m
	}
	k2, n = b.Shape[b.Rank()-2], b.Shape[b.Rank()-1]
	if attrs.Bool("transpose_b") {
		k2, n = n, k2
	}
	return
}

func inferMatMul(in []Type, attrs Attrs) ([]Type, error) {
	a, b := in[0], in[1]
	if a.Rank() < 2 || b.Rank() < 2 {
		return nil, fmt.Errorf("a matrix product wants at least two axes on both sides, got %s and %s", a, b)
	}
	if a.DType != b.DType || !a.DType.IsFloat() {
		return nil, fmt.Errorf("a matrix product wants one floating-point type, got %s and %s", a, b)
	}
	m, k, k2, n := matMulDims(a, b, attrs)
	if k != k2 {
		return nil, fmt.Errorf("inner dimensions %d and %d differ in the product of %s and %s", k, k2, a, b)
	}
	if b.Rank() > 2 && !equalInts(a.Shape[:a.Rank()-2], b.Shape[:b.Rank()-2]) {
		return nil, fmt.Errorf("leading axes of %s and %s differ", a, b)
	}
	if attrs.Bool("transpose_a") && a.Rank() > 2 && b.Rank() == 2 {
		return nil, fmt.Errorf("transpose_a wants as many axes on the right as in %s", a)
	}
	return []Type{{a.DType, append(append([]int(nil), a.Shape[:a.Rank()-2]...), m, n)}}, nil
}

func inferMatMulAccumulate(in []Type, attrs Attrs) ([]Type, error) {
	acc, x, dy := in[0], in[1], in[2]
	if acc.Rank() != 2 || x.Rank() < 2 || dy.Rank() < 2 {
		return nil, fmt.Errorf("matmul_accumulate wants matrices, got %s, %s, %s", acc, x, dy)
	}
	k, n := x.Shape[x.Rank()-1], dy.Shape[dy.Rank()-1]
	want := []int{k, n}
	if attrs.Bool("transpose_b") {
		want = []int{n, k}
	}
	if !equalInts(acc.Shape, want) || x.Elems()/k != dy.Elems()/n {
		return nil, fmt.Errorf("matmul_accumulate of %s and %s does not give %s", x, dy, acc)
	}
	return []Type{acc}, nil
}

// ReducedAxes returns, per axis, whether a sum or mean with these attributes removes it.
func ReducedAxes(t Type, attrs Attrs) ([]bool, error) {
	on := make([]bool, t.Rank())
	if !attrs.Has("axes") {
		for i := range on {
			on[i] = true
		}
		return on, nil
	}
	for _, a := range attrs.Ints("axes") {
		if a < 0 || a >= t.Rank() || on[a] {
			return nil, fmt.Errorf("axes %s do not fit %s", ShapeString(attrs.Ints("axes")), t)
		}
		on[a] = true
	}
	return on, nil
}

func inferReduce(in []Type, attrs Attrs) ([]Type, error) {
	if !in[0].DType.IsFloat() {
		return nil, fmt.Errorf("wants a floating-point tensor, got %s; use `cast`", in[0])
	}
	on, err := ReducedAxes(in[0], attrs)
	if err != nil {
		return nil, err
	}
	out := []int{}
	for i, d := range in[0].Shape {
		if !on[i] {
			out = append(out, d)
		} else if attrs.Bool("keepdims") {
			out = append(out, 1)
		}
	}
	return []Type{{in[0].DType, out}}, nil
}

func inferArgMax(in []Type, attrs Attrs) ([]Type, error) {
	axis := attrs.Int("axis")
	if !attrs.Has("axis") {
		axis = in[0].Rank() - 1
	}
	if axis != in[0].Rank()-1 || axis < 0 {
		return nil, fmt.Errorf("argmax works on the last axis of a tensor, got %s and axis %d", in[0], axis)
	}
	return []Type{{I32, in[0].Shape[:axis]}}, nil
}

func inferCrossEntropy(in []Type, _ Attrs) ([]Type, error) {
	x, label := in[0], in[1]
	if x.Rank() != 2 || !x.DType.IsFloat() {
		return nil, fmt.Errorf("cross entropy wants logits [rows, classes], got %s", x)
	}
	if label.DType != I32 || label.Rank() != 1 || label.Shape[0] != x.Shape[0] {
		return nil, fmt.Errorf("cross entropy wants labels i32[%d], got %s", x.Shape[0], label)
	}
	return []Type{{x.DType, x.Shape[:1]}}, nil
}

func inferCrossEntropyGrad(in []Type, attrs Attrs) ([]Type, error) {
	rows, err := inferCrossEntropy(in[:2], attrs)
	if err != nil {
		return nil, err
	}
	if !in[2].Equal(rows[0]) {
		return nil, fmt.Errorf("the gradient of cross entropy is %s, wants %s", in[2], rows[0])
	}
	return []Type{in[0]}, nil
}

func inferSoftmax(in []Type, attrs Attrs) ([]Type, error) {
	if in[0].Rank() == 0 {
		return nil, fmt.Errorf("softmax works on the last axis of a tensor, got %s", in[0])
	}
	return sameFloat(in, attrs)
}

func inferTril(in []Type, _ Attrs) ([]Type, error) {
	if in[0].Rank() < 2 {
		return nil, fmt.Errorf("wants a tensor with at least two axes, got %s", in[0])
	}
	return []Type{in[0]}, nil
}

func inferDropout(in []Type, attrs Attrs) ([]Type, error) {
	if !in[1].Equal(Tensor(I32)) {
		return nil, fmt.Errorf("the key of a random operation is i32[], got %s", in[1])
	}
	if p := attrs.Float("p"); !(p >= 0 && p < 1) {
		return nil, fmt.Errorf("a probability of %g is not possible; it is at least 0 and below 1", p)
	}
	return sameFloat(in[:1], attrs)
}

func inferGather(in []Type, _ Attrs) ([]Type, error) {
	table, ids := in[0], in[1]
	if table.Rank() == 0 || ids.DType != I32 {
		return nil, fmt.Errorf("wants a table with at least one axis and indices i32, got %s and %s", table, ids)
	}
	return []Type{{table.DType, append(append([]int{}, ids.Shape...), table.Shape[1:]...)}}, nil
}

func inferGatherGrad(in []Type, attrs Attrs) ([]Type, error) {
	dy, ids := in[0], in[1]
	rows := attrs.Int("rows")
	if ids.DType != I32 || !dy.DType.IsFloat() || rows < 1 || dy.Rank() < ids.Rank() || !equalInts(dy.Shape[:ids.Rank()], ids.Shape) {
		return nil, fmt.Errorf("gather_grad of %s at %s does not fit a table of %d rows", dy, ids, rows)
	}
	return []Type{{dy.DType, append([]int{rows}, dy.Shape[ids.Rank():]...)}}, nil
}

func inferGatherAccumulate(in []Type, _ Attrs) ([]Type, error) {
	if in[0].Rank() == 0 {
		return nil, fmt.Errorf("gather_accumulate wants a table, got %s", in[0])
	}
	want, err := inferGather(in[:2], nil)
	if err != nil {
		return nil, err
	}
	if !want[0].Equal(in[2]) || !in[2].DType.IsFloat() {
		return nil, fmt.Errorf("gather_accumulate of %s at %s does not give %s", in[2], in[1], in[0])
	}
	return in[:1], nil
}
