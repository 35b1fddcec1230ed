package cpu

import (
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// buildReduce makes sum, mean and sum_to. The order of summation depends on the shapes alone:
//   - where the reduced axes stand together before kept ones, so that the operand is [outer, rows, columns] and the
//     result [outer, columns], each sum is a chain of float32 additions over the rows ascending;
//   - otherwise it is a chain of float64 additions over the reduced elements in row-major order, rounded once.
//
// A mean is the sum divided by the number of elements, before the rounding in the second form.
func buildReduce(_ *machine, n *node) (step, error) {
	in, out := n.in[0], n.out
	shape := in.typ.Shape
	reduced := reducedAxes(n)
	count := 1
	for i, on := range reduced {
		if on {
			count *= shape[i]
		}
	}
	mean := n.op.Kind == ir.Mean
	if outer, rows, columns, ok := columnForm(shape, reduced); ok {
		return func(m *memory) error {
			x, dst := m.floats(in.place), m.floats(out.place)
			for r := range outer {
				m.path.ColumnSums(dst[r*columns:][:columns], x[r*rows*columns:][:rows*columns], rows, columns, false)
			}
			if mean {
				for i := range dst {
					dst[i] /= float32(count)
				}
			}
			return nil
		}, nil
	}
	steps := dense(shape)
	var kept, keptSteps, inner, innerSteps []int
	for i, d := range shape {
		if reduced[i] {
			inner, innerSteps = append(inner, d), append(innerSteps, steps[i])
		} else {
			kept, keptSteps = append(kept, d), append(keptSteps, steps[i])
		}
	}
	over, within := newWalk(kept, dense(kept), keptSteps), newWalk(inner, innerSteps)
	divisor := 1.0
	if mean {
		divisor = float64(count)
	}
	return func(m *memory) error {
		x, dst := m.floats(in.place), m.floats(out.place)
		for over.start(); over.more; over.next() {
			for i := range over.n {
				start := over.at[1] + i*over.step[1]
				sum := 0.0
				for within.start(); within.more; within.next() {
					from, by := start+within.at[0], within.step[0]
					for j := range within.n {
						sum += float64(x[from+j*by])
					}
				}
				dst[over.at[0]+i] = float32(sum / divisor)
			}
		}
		return nil
	}, nil
}

// reducedAxes tells which axes of the operand a reduction removes or shortens to 1.
func reducedAxes(n *node) []bool {
	in := n.in[0].typ
	if n.op.Kind != ir.SumTo {
		on, err := ir.ReducedAxes(in, n.op.Attrs)
		if err != nil {
			panic("cpu: a reduction that was not checked: " + err.Error())
		}
		return on
	}
	on := make([]bool, in.Rank())
	out := n.out.typ.Shape
	for i := range on {
		k := i - (in.Rank() - len(out))
		on[i] = k < 0 || out[k] == 1 && in.Shape[i] != 1
	}
	return on
}

// columnForm reports whether an operand is [outer, rows, columns] with rows reduced; axes of 1 do not matter.
func columnForm(shape []int, reduced []bool) (outer, rows, columns int, ok bool) {
	outer, rows, columns = 1, 1, 1
	i := len(shape) - 1
	for ; i >= 0 && (!reduced[i] || shape[i] == 1); i-- {
		columns *= shape[i]
	}
	for ; i >= 0 && (reduced[i] || shape[i] == 1); i-- {
		rows *= shape[i]
	}
	for ; i >= 0; i-- {
		if reduced[i] && shape[i] != 1 {
			return 0, 0, 0, false
		}
		outer *= shape[i]
	}
	return outer, rows, columns, columns > 1
}

// buildArgMax gives the first of the largest elements of every row; NaN is larger than any number.
func buildArgMax(_ *machine, n *node) (step, error) {
	switch n.in[0].typ.DType {
	case ir.I32:
		return argMax[int32](n), nil
	case ir.Bool:
		return argMax[uint8](n), nil
	}
	return argMax[float32](n), nil
}

func argMax[T float32 | int32 | uint8](n *node) step {
	a, out := n.in[0], n.out
	columns := a.typ.Shape[a.typ.Rank()-1]
	return func(m *memory) error {
		x, dst := view[T](m, a.place), view[int32](m, out.place)
		for r := range dst {
			row, best := x[r*columns:][:columns], 0
			for j, v := range row {
				if row[best] == row[best] && (v > row[best] || v != v) {
					best = j
				}
			}
			dst[r] = int32(best)
		}
		return nil
	}
}

func buildCrossEntropy(_ *machine, n *node) (step, error) {
	logits, labels, out := n.in[0], n.in[1].place, n.out.place
	rows, classes := logits.typ.Shape[0], logits.typ.Shape[1]
	return func(m *memory) error {
		return kernel.CrossEntropy(m.floats(out), m.floats(logits.place), view[int32](m, labels), rows, classes)
	}, nil
}

func buildCrossEntropyGrad(_ *machine, n *node) (step, error) {
	logits, labels, d, out := n.in[0], n.in[1].place, n.in[2].place, n.out.place
	rows, classes := logits.typ.Shape[0], logits.typ.Shape[1]
	return func(m *memory) error {
		return kernel.CrossEntropyGrad(m.floats(out), m.floats(logits.place), view[int32](m, labels), m.floats(d), rows, classes)
	}, nil
}

// sumSquares is the sum of squares in float64: eight chains over the elements modulo 8, added in pairs.
func sumSquares(v []float32) float64 {
	var s [8]float64
	for len(v) >= len(s) {
		for l := range s {
			x := float64(v[l])
			s[l] += float64(x * x)
		}
		v = v[len(s):]
	}
	for l, w := range v {
		x := float64(w)
		s[l] += float64(x * x)
	}
	return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
}
