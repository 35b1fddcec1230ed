package ascend

import "slices"

// A space is the iteration space of a kernel: axes of the result, adjacent ones
// merged where every operand walks over them alike. strides has, per operand,
// the step in elements along each axis, 0 where the operand is broadcast.
type space struct {
	lengths []int
	strides [][]int
}

// newSpace aligns operands of these shapes with shape by NumPy's rule.
func newSpace(shape []int, operands [][]int) space {
	strides := make([][]int, len(operands))
	for i, operand := range operands {
		strides[i] = make([]int, len(shape))
		step := 1
		for axis := len(operand) - 1; axis >= 0; axis-- {
			if operand[axis] != 1 {
				strides[i][len(shape)-len(operand)+axis] = step
			}
			step *= operand[axis]
		}
	}
	return mergeAxes(shape, strides)
}

// mergeAxes drops axes of length 1 and joins an axis with the one after it
// where, for every operand, one step of it is a walk over the whole other one.
func mergeAxes(lengths []int, strides [][]int) space {
	s := space{strides: make([][]int, len(strides))}
	for axis, n := range lengths {
		if n == 1 {
			continue
		}
		joins := len(s.lengths) > 0
		for i := range strides {
			joins = joins && s.strides[i][len(s.lengths)-1] == strides[i][axis]*n
		}
		if joins {
			last := len(s.lengths) - 1
			s.lengths[last] *= n
			for i := range strides {
				s.strides[i][last] = strides[i][axis]
			}
			continue
		}
		s.lengths = append(s.lengths, n)
		for i := range strides {
			s.strides[i] = append(s.strides[i], strides[i][axis])
		}
	}
	return s
}

// padded returns the space with at least n axes, the new ones first and of length 1.
func (s space) padded(n int) space {
	for len(s.lengths) < n {
		s.lengths = slices.Insert(slices.Clone(s.lengths), 0, 1)
		for i := range s.strides {
			s.strides[i] = slices.Insert(slices.Clone(s.strides[i]), 0, 0)
		}
	}
	return s
}

func product(ns []int) int {
	p := 1
	for _, n := range ns {
		p *= n
	}
	return p
}
