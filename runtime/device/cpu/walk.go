package cpu

// walk visits the elements of a shape in row-major order, run by run, and gives where they lie in several operands whose
// axes have steps of their own: 0 where an operand is broadcast. Axes that all operands cross evenly are one.
type walk struct {
	n     int   // elements of a run
	step  []int // by operand: from one element of a run to the next
	at    []int // by operand: where the current run starts
	more  bool
	dims  []int   // outer axes, innermost first
	steps [][]int // by outer axis and operand
	index []int
	empty bool
}

// newWalk makes a walk over a shape; steps has, by operand, the step of every axis in elements.
func newWalk(shape []int, steps ...[]int) *walk {
	w := &walk{n: 1, step: make([]int, len(steps)), at: make([]int, len(steps))}
	var dims []int
	var by [][]int
	for axis := len(shape) - 1; axis >= 0; axis-- {
		if shape[axis] == 0 {
			w.empty = true
		}
		if shape[axis] == 1 {
			continue
		}
		s := make([]int, len(steps))
		for k := range steps {
			s[k] = steps[k][axis]
		}
		if last := len(dims) - 1; last >= 0 && continues(s, by[last], dims[last]) {
			dims[last] *= shape[axis]
			continue
		}
		dims, by = append(dims, shape[axis]), append(by, s)
	}
	if len(dims) > 0 {
		w.n, w.step = dims[0], by[0]
		w.dims, w.steps = dims[1:], by[1:]
	}
	w.index = make([]int, len(w.dims))
	return w
}

// continues reports whether an axis with these steps is the continuation of the inner one.
func continues(outer, inner []int, n int) bool {
	for k := range outer {
		if outer[k] != inner[k]*n {
			return false
		}
	}
	return true
}

// start goes to the first run.
func (w *walk) start() {
	clear(w.at)
	clear(w.index)
	w.more = !w.empty
}

// next goes to the following run.
func (w *walk) next() {
	for axis, n := range w.dims {
		s := w.steps[axis]
		w.index[axis]++
		if w.index[axis] < n {
			for k := range w.at {
				w.at[k] += s[k]
			}
			return
		}
		w.index[axis] = 0
		for k := range w.at {
			w.at[k] -= s[k] * (n - 1)
		}
	}
	w.more = false
}

// dense is the steps of a row-major tensor.
func dense(shape []int) []int {
	out := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		out[i] = n
		n *= shape[i]
	}
	return out
}

// spread is the steps of a row-major tensor that is broadcast to a shape.
func spread(from, to []int) []int {
	out := make([]int, len(to))
	steps := dense(from)
	for i := range from {
		if from[i] != 1 {
			out[len(to)-len(from)+i] = steps[i]
		}
	}
	return out
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
