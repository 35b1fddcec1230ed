package cpu

import "github.com/ppc-lang/ppc/ir"

// Operations that move elements; they work on elements of one or four bytes.

func buildTranspose(_ *machine, n *node) (step, error) {
	perm := n.op.Attrs.Ints("perm")
	from := dense(n.in[0].typ.Shape)
	steps := make([]int, len(perm))
	for i, p := range perm {
		steps[i] = from[p]
	}
	return gather(n, steps), nil
}

func buildBroadcastTo(_ *machine, n *node) (step, error) {
	return gather(n, spread(n.in[0].typ.Shape, n.out.typ.Shape)), nil
}

// gather fills the result with elements of operand 0, whose steps along the axes of the result are given.
func gather(n *node, steps []int) step {
	if n.out.typ.DType == ir.Bool {
		return gatherOf[uint8](n, steps)
	}
	return gatherOf[uint32](n, steps)
}

func gatherOf[T uint32 | uint8](n *node, steps []int) step {
	a, out := n.in[0].place, n.out.place
	w := newWalk(n.out.typ.Shape, dense(n.out.typ.Shape), steps)
	return func(m *memory) error {
		x, dst := view[T](m, a), view[T](m, out)
		for w.start(); w.more; w.next() {
			to, from := dst[w.at[0]:w.at[0]+w.n], x[w.at[1]:]
			if w.step[1] == 1 {
				copy(to, from)
				continue
			}
			for i := range to {
				to[i] = from[i*w.step[1]]
			}
		}
		return nil
	}
}

// lengths of an axis with everything below it, in bytes, and the product of the axes above.
func around(o operand, axis int) (outer, row int) {
	return product(o.typ.Shape[:axis]), product(o.typ.Shape[axis:]) * o.typ.DType.Size()
}

func buildConcat(_ *machine, n *node) (step, error) {
	axis := n.op.Attrs.Int("axis")
	out := n.out.place
	outer, whole := around(n.out, axis)
	parts := make([]place, len(n.in))
	rows := make([]int, len(n.in))
	for i, o := range n.in {
		parts[i] = o.place
		_, rows[i] = around(o, axis)
	}
	return func(m *memory) error {
		dst := m.bytes(out)
		start := 0
		for i, p := range parts {
			part, row := m.bytes(p), rows[i]
			for r := range outer {
				copy(dst[r*whole+start:][:row], part[r*row:])
			}
			start += row
		}
		return nil
	}, nil
}

func buildSlice(_ *machine, n *node) (step, error) {
	axis := n.op.Attrs.Int("axis")
	a, out := n.in[0].place, n.out.place
	outer, row := around(n.out, axis)
	_, whole := around(n.in[0], axis)
	start := whole / max(n.in[0].typ.Shape[axis], 1) * n.op.Attrs.Int("start")
	return func(m *memory) error {
		dst, x := m.bytes(out), m.bytes(a)
		for r := range outer {
			copy(dst[r*row:][:row], x[r*whole+start:])
		}
		return nil
	}, nil
}

func buildPad(_ *machine, n *node) (step, error) {
	axis := n.op.Attrs.Int("axis")
	a, out := n.in[0].place, n.out.place
	outer, row := around(n.in[0], axis)
	_, whole := around(n.out, axis)
	start := whole / max(n.out.typ.Shape[axis], 1) * n.op.Attrs.Int("start")
	return func(m *memory) error {
		dst, x := m.bytes(out), m.bytes(a)
		clear(dst)
		for r := range outer {
			copy(dst[r*whole+start:][:row], x[r*row:])
		}
		return nil
	}, nil
}
