package cpu

import (
	"errors"
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// builder makes the step of a node of one kind.
type builder func(m *machine, n *node) (step, error)

// builders has the kernel of every operation that is neither a view nor an accumulation.
var builders = map[ir.Kind]builder{
	ir.Transpose: buildTranspose, ir.BroadcastTo: buildBroadcastTo, ir.Concat: buildConcat, ir.Slice: buildSlice, ir.Pad: buildPad,
	ir.Cast: buildCast, ir.Constant: buildConstant,

	ir.Add:     arithmetic(add[float32], add[int32], (*kernel.Path).Add),
	ir.Sub:     buildSub,
	ir.Mul:     buildMul,
	ir.Div:     buildDiv,
	ir.Maximum: arithmetic(maximum[float32], maximum[int32], nil),
	ir.Minimum: arithmetic(minimum[float32], minimum[int32], nil),

	ir.Equal:     comparison(equal[float32], equal[int32], equal[uint8]),
	ir.Less:      comparison(less[float32], less[int32], less[uint8]),
	ir.LessEqual: comparison(lessEqual[float32], lessEqual[int32], lessEqual[uint8]),
	ir.Where:     buildWhere,

	ir.Neg:     unary(func(_ *kernel.Path, dst, a []float32) { neg(dst, a) }),
	ir.Scale:   buildScale,
	ir.Exp:     unary(func(_ *kernel.Path, dst, a []float32) { kernel.Exp(dst, a) }),
	ir.Log:     unary(func(_ *kernel.Path, dst, a []float32) { kernel.Log(dst, a) }),
	ir.Sqrt:    unary(func(_ *kernel.Path, dst, a []float32) { kernel.Sqrt(dst, a) }),
	ir.Rsqrt:   unary(func(_ *kernel.Path, dst, a []float32) { kernel.Rsqrt(dst, a) }),
	ir.Abs:     unary(func(_ *kernel.Path, dst, a []float32) { abs(dst, a) }),
	ir.Relu:    unary((*kernel.Path).ReLU),
	ir.Sigmoid: unary(func(_ *kernel.Path, dst, a []float32) { kernel.Sigmoid(dst, a) }),
	ir.Tanh:    unary(func(_ *kernel.Path, dst, a []float32) { kernel.Tanh(dst, a) }),
	ir.Gelu:    unary(func(_ *kernel.Path, dst, a []float32) { kernel.GELU(dst, a) }),

	ir.ReluGrad:    gradient((*kernel.Path).ReLUGrad),
	ir.SigmoidGrad: gradient(func(_ *kernel.Path, dst, dy, y []float32) { kernel.SigmoidGrad(dst, dy, y) }),
	ir.TanhGrad:    gradient(func(_ *kernel.Path, dst, dy, y []float32) { kernel.TanhGrad(dst, dy, y) }),
	ir.GeluGrad:    gradient(func(_ *kernel.Path, dst, dy, a []float32) { kernel.GELUGrad(dst, dy, a) }),

	ir.Softmax: buildSoftmax, ir.SoftmaxGrad: buildSoftmaxGrad, ir.Tril: buildTril, ir.Dropout: buildDropout,
	ir.Gather: buildGather, ir.GatherGrad: buildGatherGrad,

	ir.MatMul: buildMatMul,
	ir.Sum:    buildReduce, ir.Mean: buildReduce, ir.SumTo: buildReduce,
	ir.ArgMax: buildArgMax, ir.CrossEntropy: buildCrossEntropy, ir.CrossEntropyGrad: buildCrossEntropyGrad,

	ir.Print: buildPrint, ir.Summary: buildPrint, ir.TensorDump: buildPrint,
}

type number interface{ float32 | int32 }

// loop computes a run: element i of an operand lies i steps from its first one, where a step is 0 or 1.
type loop[T, R any] func(dst []R, a, b []T, stepA, stepB int)

func add[T number](dst, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = a[i*sa] + b[i*sb]
	}
}

func sub[T number](dst, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = a[i*sa] - b[i*sb]
	}
}

func mul[T number](dst, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = a[i*sa] * b[i*sb]
	}
}

func div[T number](dst, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = a[i*sa] / b[i*sb]
	}
}

func maximum[T number](dst, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = max(a[i*sa], b[i*sb])
	}
}

func minimum[T number](dst, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = min(a[i*sa], b[i*sb])
	}
}

func equal[T number | uint8](dst []uint8, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = truth(a[i*sa] == b[i*sb])
	}
}

func less[T number | uint8](dst []uint8, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = truth(a[i*sa] < b[i*sb])
	}
}

func lessEqual[T number | uint8](dst []uint8, a, b []T, sa, sb int) {
	for i := range dst {
		dst[i] = truth(a[i*sa] <= b[i*sb])
	}
}

func truth(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func neg(dst, a []float32) {
	for i := range dst {
		dst[i] = -a[i]
	}
}

func abs(dst, a []float32) {
	for i := range dst {
		dst[i] = float32(math.Abs(float64(a[i])))
	}
}

// broadcast runs a loop over operands of any shapes that broadcast to the result.
func broadcast[T, R float32 | int32 | uint8](n *node, run loop[T, R]) step {
	a, b, out := n.in[0], n.in[1], n.out
	shape := out.typ.Shape
	w := newWalk(shape, dense(shape), spread(a.typ.Shape, shape), spread(b.typ.Shape, shape))
	return func(m *memory) error {
		x, y, dst := view[T](m, a.place), view[T](m, b.place), view[R](m, out.place)
		for w.start(); w.more; w.next() {
			run(dst[w.at[0]:w.at[0]+w.n], x[w.at[1]:], y[w.at[2]:], w.step[1], w.step[2])
		}
		return nil
	}
}

// arithmetic is a binary operation on numbers; whole runs of both operands go to the kernel where there is one.
func arithmetic(f loop[float32, float32], i loop[int32, int32], whole func(p *kernel.Path, dst, a, b []float32)) builder {
	return func(m *machine, n *node) (step, error) {
		switch {
		case n.out.typ.DType == ir.I32:
			return broadcast(n, i), nil
		case whole == nil:
			return broadcast(n, f), nil
		}
		path := m.path
		return broadcast(n, func(dst, a, b []float32, sa, sb int) {
			if sa == 1 && sb == 1 {
				whole(path, dst, a, b)
				return
			}
			f(dst, a, b, sa, sb)
		}), nil
	}
}

var plainSub = arithmetic(sub[float32], sub[int32], (*kernel.Path).Sub)

func buildSub(m *machine, n *node) (step, error) {
	if n.rate == nil {
		return plainSub(m, n)
	}
	p, g, rate := n.out.place, n.in[1].place, n.rate.place
	return func(m *memory) error {
		m.path.SGD(m.floats(p), m.floats(g), m.floats(rate)[0])
		return nil
	}, nil
}

func buildMul(m *machine, n *node) (step, error) {
	if n.out.typ.DType == ir.I32 {
		return broadcast(n, mul[int32]), nil
	}
	path := m.path
	return broadcast(n, func(dst, a, b []float32, sa, sb int) {
		switch {
		case sa == 1 && sb == 1:
			path.Mul(dst, a, b)
		case sa == 1:
			path.Scale(dst, a, b[0])
		case sb == 1:
			path.Scale(dst, b, a[0])
		default:
			mul(dst, a, b, sa, sb)
		}
	}), nil
}

var errDivision = errors.New("division of an integer by zero")

func buildDiv(m *machine, n *node) (step, error) {
	if n.out.typ.DType == ir.F32 {
		return broadcast(n, div[float32]), nil
	}
	divisor, run := n.in[1].place, broadcast(n, div[int32])
	return func(m *memory) error {
		for _, d := range view[int32](m, divisor) {
			if d == 0 {
				return errDivision
			}
		}
		return run(m)
	}, nil
}

// comparison gives bool. Bools compare as numbers 0 and 1.
func comparison(f loop[float32, uint8], i loop[int32, uint8], b loop[uint8, uint8]) builder {
	return func(_ *machine, n *node) (step, error) {
		switch n.in[0].typ.DType {
		case ir.I32:
			return broadcast(n, i), nil
		case ir.Bool:
			return broadcast(n, b), nil
		}
		return broadcast(n, f), nil
	}
}

func buildWhere(_ *machine, n *node) (step, error) {
	if n.out.typ.DType == ir.Bool {
		return where[uint8](n), nil
	}
	return where[uint32](n), nil
}

func where[T uint32 | uint8](n *node) step {
	c, a, b, out := n.in[0], n.in[1], n.in[2], n.out
	shape := out.typ.Shape
	w := newWalk(shape, dense(shape), spread(c.typ.Shape, shape), spread(a.typ.Shape, shape), spread(b.typ.Shape, shape))
	return func(m *memory) error {
		condition, x, y, dst := view[uint8](m, c.place), view[T](m, a.place), view[T](m, b.place), view[T](m, out.place)
		for w.start(); w.more; w.next() {
			at := w.at
			for i := range w.n {
				if condition[at[1]+i*w.step[1]] != 0 {
					dst[at[0]+i] = x[at[2]+i*w.step[2]]
				} else {
					dst[at[0]+i] = y[at[3]+i*w.step[3]]
				}
			}
		}
		return nil
	}
}

func unary(f func(p *kernel.Path, dst, a []float32)) builder {
	return func(_ *machine, n *node) (step, error) {
		a, out := n.in[0].place, n.out.place
		return func(m *memory) error {
			f(m.path, m.floats(out), m.floats(a))
			return nil
		}, nil
	}
}

func buildScale(_ *machine, n *node) (step, error) {
	a, out, factor := n.in[0].place, n.out.place, float32(n.op.Attrs.Float("factor"))
	return func(m *memory) error {
		m.path.Scale(m.floats(out), m.floats(a), factor)
		return nil
	}, nil
}

// gradient is a gradient of a function from dy and the function's operand or result.
func gradient(f func(p *kernel.Path, dst, dy, y []float32)) builder {
	return func(_ *machine, n *node) (step, error) {
		dy, y, out := n.in[0].place, n.in[1].place, n.out.place
		return func(m *memory) error {
			f(m.path, m.floats(out), m.floats(dy), m.floats(y))
			return nil
		}, nil
	}
}

// buildCast: floats become integers by truncation, held within int32, NaN becomes 0; bool is whether a number is not 0.
func buildCast(_ *machine, n *node) (step, error) {
	from, to := n.in[0].typ.DType, n.out.typ.DType
	a, out := n.in[0].place, n.out.place
	if from == to {
		return func(m *memory) error { copy(m.bytes(out), m.bytes(a)); return nil }, nil
	}
	switch [2]ir.DType{from, to} {
	case [2]ir.DType{ir.F32, ir.I32}:
		return castStep(a, out, truncate), nil
	case [2]ir.DType{ir.F32, ir.Bool}:
		return castStep(a, out, func(v float32) uint8 { return truth(v != 0) }), nil
	case [2]ir.DType{ir.I32, ir.F32}:
		return castStep(a, out, func(v int32) float32 { return float32(v) }), nil
	case [2]ir.DType{ir.I32, ir.Bool}:
		return castStep(a, out, func(v int32) uint8 { return truth(v != 0) }), nil
	case [2]ir.DType{ir.Bool, ir.F32}:
		return castStep(a, out, func(v uint8) float32 { return float32(v) }), nil
	case [2]ir.DType{ir.Bool, ir.I32}:
		return castStep(a, out, func(v uint8) int32 { return int32(v) }), nil
	}
	return nil, fmt.Errorf("cpu device: no cast of %s to %s", from, to)
}

func castStep[T, R float32 | int32 | uint8](a, out place, f func(T) R) step {
	return func(m *memory) error {
		x, dst := view[T](m, a), view[R](m, out)
		for i := range dst {
			dst[i] = f(x[i])
		}
		return nil
	}
}

func truncate(v float32) int32 {
	switch {
	case v != v:
		return 0
	case v >= math.MaxInt32:
		return math.MaxInt32
	case v <= math.MinInt32:
		return math.MinInt32
	}
	return int32(v)
}

func buildConstant(_ *machine, n *node) (step, error) {
	out, value := n.out.place, n.op.Attrs.Float("value")
	switch n.out.typ.DType {
	case ir.I32:
		return fillStep(out, int32(value)), nil
	case ir.Bool:
		return fillStep(out, truth(value != 0)), nil
	}
	return fillStep(out, float32(value)), nil
}

func fillStep[T float32 | int32 | uint8](out place, v T) step {
	return func(m *memory) error {
		dst := view[T](m, out)
		for i := range dst {
			dst[i] = v
		}
		return nil
	}
}

func buildPrint(_ *machine, n *node) (step, error) {
	kind, label, a := n.op.Kind, n.op.Attrs.Text("label"), n.in[0]
	return func(m *memory) error {
		if m.print != nil {
			m.print(kind, label, a.typ, m.bytes(a.place))
		}
		return nil
	}, nil
}
