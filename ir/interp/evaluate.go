package interp

import (
	"errors"
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/threefry"
)

// evaluation is one operation with its operands and the result to fill.
type evaluation struct {
	*Interp
	op  *ir.Op
	in  []Tensor
	out Tensor
}

var errDivision = errors.New("division of an integer by zero")

// run fills the result.
func (e *evaluation) run() error {
	a := e.op.Attrs
	switch e.op.Kind {
	case ir.Identity, ir.Reshape, ir.Flatten:
		copy(e.out.Data, e.in[0].Data)
	case ir.Transpose:
		perm := a.Ints("perm")
		e.fill(func(at []int) float64 {
			from := make([]int, len(perm))
			for i, p := range perm {
				from[p] = at[i]
			}
			return e.in[0].at(from)
		})
	case ir.BroadcastTo:
		e.fill(func(at []int) float64 { return e.in[0].spread(at) })
	case ir.SumTo:
		e.reduce(func(at []int) []int { return clip(at, e.out.Type.Shape) })
	case ir.Sum, ir.Mean:
		return e.reduceAxes()
	case ir.Concat, ir.Slice, ir.Pad:
		e.join()
	case ir.Constant:
		e.fill(func([]int) float64 { return e.round(a.Float("value")) })
	case ir.Div:
		if !e.out.Type.DType.IsFloat() {
			for _, v := range e.in[1].Data {
				if v == 0 {
					return errDivision
				}
			}
		}
		e.elementwise()
	case ir.MatMul:
		e.matMul()
	case ir.MatMulAccumulate:
		e.matMulAccumulate()
	case ir.Accumulate:
		for i, g := range e.in[1].Data {
			if e.out.Data[i] = g; e.Micro > 0 {
				e.out.Data[i] = e.round(e.in[0].Data[i] + g)
			}
		}
	case ir.ArgMax:
		e.argMax()
	case ir.Softmax, ir.SoftmaxGrad:
		e.softmax()
	case ir.Tril:
		e.fill(func(at []int) float64 {
			if n := len(at); at[n-1] > at[n-2] {
				return 0
			}
			return e.in[0].at(at)
		})
	case ir.Dropout:
		e.dropout()
	case ir.Gather:
		return e.gather()
	case ir.GatherGrad:
		return e.addRows(e.in[0], e.in[1])
	case ir.GatherAccumulate:
		if e.Micro > 0 {
			copy(e.out.Data, e.in[0].Data)
		}
		return e.addRows(e.in[2], e.in[1])
	case ir.CrossEntropy, ir.CrossEntropyGrad:
		return e.crossEntropy()
	default:
		if !e.op.Kind.Info().Elementwise {
			return fmt.Errorf("the interpreter has no rule for it")
		}
		return e.elementwise()
	}
	return nil
}

// each calls f with every index of a shape, in row-major order. f must not keep the slice.
func each(shape []int, f func(at []int)) {
	at := make([]int, len(shape))
	for range ir.Tensor(ir.F64, shape...).Elems() {
		f(at)
		for i := len(at) - 1; i >= 0; i-- {
			if at[i]++; at[i] < shape[i] {
				break
			}
			at[i] = 0
		}
	}
}

// fill sets every element of the result.
func (e *evaluation) fill(f func(at []int) float64) {
	i := 0
	each(e.out.Type.Shape, func(at []int) {
		e.out.Data[i] = f(at)
		i++
	})
}

func (t *Tensor) index(at []int) int {
	i := 0
	for k, d := range t.Type.Shape {
		i = i*d + at[k]
	}
	return i
}

func (t *Tensor) at(at []int) float64 { return t.Data[t.index(at)] }

// spread is the element that stands at an index of a shape that t is broadcast to.
func (t *Tensor) spread(at []int) float64 { return t.at(clip(at, t.Type.Shape)) }

// clip maps an index to a shape that is broadcast to the index's shape.
func clip(at, shape []int) []int {
	out := make([]int, len(shape))
	for i := range out {
		if shape[i] != 1 {
			out[i] = at[len(at)-len(shape)+i]
		}
	}
	return out
}

// reduce adds every element of operand 0 to the element of the result that to names.
func (e *evaluation) reduce(to func(at []int) []int) {
	i := 0
	each(e.in[0].Type.Shape, func(at []int) {
		k := e.out.index(to(at))
		e.out.Data[k] = e.round(e.out.Data[k] + e.in[0].Data[i])
		i++
	})
}

func (e *evaluation) reduceAxes() error {
	on, err := ir.ReducedAxes(e.in[0].Type, e.op.Attrs)
	if err != nil {
		return err
	}
	e.reduce(func(at []int) []int {
		var to []int
		for i, k := range at {
			switch {
			case !on[i]:
				to = append(to, k)
			case e.op.Attrs.Bool("keepdims"):
				to = append(to, 0)
			}
		}
		return to
	})
	if e.op.Kind == ir.Mean {
		n := float64(len(e.in[0].Data)) / float64(len(e.out.Data))
		for i, v := range e.out.Data {
			e.out.Data[i] = e.round(v / n)
		}
	}
	return nil
}

// join does concat, slice and pad: every element of the result lies in one operand at a shifted place, or nowhere.
func (e *evaluation) join() {
	axis := e.op.Attrs.Int("axis")
	e.fill(func(at []int) float64 {
		from := append([]int(nil), at...)
		switch e.op.Kind {
		case ir.Slice:
			from[axis] += e.op.Attrs.Int("start")
		case ir.Pad:
			from[axis] -= e.op.Attrs.Int("start")
		}
		for i := range e.in {
			n := e.in[i].Type.Shape[axis]
			if from[axis] >= 0 && from[axis] < n {
				return e.in[i].at(from)
			}
			if e.op.Kind == ir.Concat {
				from[axis] -= n
			}
		}
		return 0
	})
}

// matMul: batch index of the left side, shared by the right side if it has one.
func (e *evaluation) matMul() {
	ta, tb := e.op.Attrs.Bool("transpose_a"), e.op.Attrs.Bool("transpose_b")
	a, b := &e.in[0], &e.in[1]
	rank := a.Type.Rank()
	inner := a.Type.Shape[rank-1]
	if ta {
		inner = a.Type.Shape[rank-2]
	}
	entry := func(t *Tensor, at []int, row, column int, swap bool) float64 {
		if swap {
			row, column = column, row
		}
		return t.at(append(append([]int(nil), at[:t.Type.Rank()-2]...), row, column))
	}
	e.fill(func(at []int) float64 {
		sum := 0.0
		row, column := at[rank-2], at[rank-1]
		for k := range inner {
			sum = e.round(sum + e.round(entry(a, at, row, k, ta)*entry(b, at, k, column, tb)))
		}
		return sum
	})
}

// matMulAccumulate: acc += x^T @ dy over all rows, transposed if asked.
func (e *evaluation) matMulAccumulate() {
	acc, x, dy := e.in[0], e.in[1], e.in[2]
	k, n := x.Type.Shape[x.Type.Rank()-1], dy.Type.Shape[dy.Type.Rank()-1]
	e.fill(func(at []int) float64 {
		i, j := at[0], at[1]
		if e.op.Attrs.Bool("transpose_b") {
			i, j = j, i
		}
		sum := 0.0
		if e.Micro > 0 {
			sum = acc.at(at)
		}
		for r := range len(x.Data) / max(k, 1) {
			sum = e.round(sum + e.round(x.Data[r*k+i]*dy.Data[r*n+j]))
		}
		return sum
	})
}

// argMax: the first of the largest; NaN counts as the largest.
func (e *evaluation) argMax() {
	n := e.in[0].Type.Shape[e.in[0].Type.Rank()-1]
	for r := range e.out.Data {
		row, best := e.in[0].Data[r*n:][:n], 0
		for j, v := range row {
			if !math.IsNaN(row[best]) && (v > row[best] || math.IsNaN(v)) {
				best = j
			}
		}
		e.out.Data[r] = float64(best)
	}
}

// crossEntropy is -log softmax at the label, and its gradient by the logits.
func (e *evaluation) crossEntropy() error {
	rows, classes := e.in[0].Type.Shape[0], e.in[0].Type.Shape[1]
	for r := range rows {
		label := int(e.in[1].Data[r])
		if label < 0 || label >= classes {
			return fmt.Errorf("label %d in row %d is outside of the classes 0 to %d", label, r, classes-1)
		}
		x := e.in[0].Data[r*classes:][:classes]
		largest, sum := math.Inf(-1), 0.0
		for _, v := range x {
			largest = max(largest, v)
		}
		for _, v := range x {
			sum += math.Exp(v - largest)
		}
		if e.op.Kind == ir.CrossEntropy {
			e.out.Data[r] = e.round(math.Log(sum) - (x[label] - largest))
			continue
		}
		for j, v := range x {
			p := math.Exp(v-largest) / sum
			e.out.Data[r*classes+j] = e.round((p - truth(j == label)) * e.in[2].Data[r])
		}
	}
	return nil
}

// softmax of every row, and its gradient y (dy - sum(dy y)).
func (e *evaluation) softmax() {
	n := e.out.Type.Shape[e.out.Type.Rank()-1]
	for r := 0; r < len(e.out.Data); r += n {
		x, out := e.in[0].Data[r:r+n], e.out.Data[r:r+n]
		if e.op.Kind == ir.SoftmaxGrad {
			y, sum := e.in[1].Data[r:r+n], 0.0
			for j := range y {
				sum += x[j] * y[j]
			}
			for j := range y {
				out[j] = e.round(y[j] * (x[j] - sum))
			}
			continue
		}
		largest, sum := math.Inf(-1), 0.0
		for _, v := range x {
			largest = max(largest, v)
		}
		for _, v := range x {
			sum += math.Exp(v - largest)
		}
		for j, v := range x {
			out[j] = e.round(math.Exp(v-largest) / sum)
		}
	}
}

// dropout keeps the elements whose random number is not below p, times 1/(1-p).
func (e *evaluation) dropout() {
	p := e.op.Attrs.Float("p")
	key := threefry.Hashed(e.Seed, uint32(int32(e.in[1].Data[0])), e.Step, uint32(e.Micro))
	for i, x := range e.in[0].Data {
		if threefry.Keeps(key, uint64(i), p) {
			e.out.Data[i] = e.round(x * e.round(1/(1-p)))
		}
	}
}

func (e *evaluation) row(ids Tensor, r, rows int) (int, error) {
	id := int(ids.Data[r])
	if id < 0 || id >= rows {
		return 0, fmt.Errorf("index %d at place %d is outside of the rows 0 to %d", id, r, rows-1)
	}
	return id, nil
}

func (e *evaluation) gather() error {
	rows := e.in[0].Type.Shape[0]
	n := len(e.in[0].Data) / max(rows, 1)
	for r := range e.in[1].Data {
		id, err := e.row(e.in[1], r, rows)
		if err != nil {
			return err
		}
		copy(e.out.Data[r*n:][:n], e.in[0].Data[id*n:])
	}
	return nil
}

// addRows adds row r of dy to row ids[r] of the result, r ascending.
func (e *evaluation) addRows(dy, ids Tensor) error {
	rows := e.out.Type.Shape[0]
	n := len(e.out.Data) / max(rows, 1)
	for r := range ids.Data {
		id, err := e.row(ids, r, rows)
		if err != nil {
			return err
		}
		for j := range n {
			e.out.Data[id*n+j] = e.round(e.out.Data[id*n+j] + dy.Data[r*n+j])
		}
	}
	return nil
}
