package cpu

import (
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir/threefry"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// Operations on rows of a table, on the last axis, and those that draw random numbers.

// buildGather copies the rows of a table that the indices name.
func buildGather(_ *machine, n *node) (step, error) {
	table, ids, out := n.in[0], n.in[1].place, n.out.place
	rows := table.typ.Shape[0]
	size := table.typ.Bytes() / max(rows, 1)
	return func(m *memory) error {
		from, to := m.bytes(table.place), m.bytes(out)
		for r, id := range view[int32](m, ids) {
			if id < 0 || int(id) >= rows {
				return rowError(id, r, rows)
			}
			copy(to[r*size:][:size], from[int(id)*size:])
		}
		return nil
	}, nil
}

func rowError(id int32, place, rows int) error {
	return diag.Errorf(diag.BadValueRange, diag.Range{}, "index %d at place %d is outside of the rows 0 to %d", id, place, rows-1)
}

// buildGatherGrad adds the rows of dy to those of the table.
func buildGatherGrad(_ *machine, n *node) (step, error) {
	dy, ids, out := n.in[0].place, n.in[1].place, n.out.place
	rows := n.out.typ.Shape[0]
	return func(m *memory) error {
		dst := m.floats(out)
		clear(dst)
		return m.addRows(dst, m.floats(dy), view[int32](m, ids), rows)
	}, nil
}

// addRows adds row r of dy to row ids[r] of a table, r ascending: the sum of a row is one chain of additions.
func (m *memory) addRows(table, dy []float32, ids []int32, rows int) error {
	size := len(table) / max(rows, 1)
	for r, id := range ids {
		if id < 0 || int(id) >= rows {
			return rowError(id, r, rows)
		}
		to := table[int(id)*size:][:size]
		m.path.Add(to, to, dy[r*size:][:size])
	}
	return nil
}

func buildSoftmax(_ *machine, n *node) (step, error) {
	a, out := n.in[0], n.out.place
	columns := a.typ.Shape[a.typ.Rank()-1]
	return func(m *memory) error {
		kernel.Softmax(m.floats(out), m.floats(a.place), columns)
		return nil
	}, nil
}

func buildSoftmaxGrad(_ *machine, n *node) (step, error) {
	dy, y, out := n.in[0], n.in[1].place, n.out.place
	columns := dy.typ.Shape[dy.typ.Rank()-1]
	return func(m *memory) error {
		kernel.SoftmaxGrad(m.floats(out), m.floats(dy.place), m.floats(y), columns)
		return nil
	}, nil
}

// buildTril keeps the lower triangle of the last two axes, diagonal included.
func buildTril(_ *machine, n *node) (step, error) {
	a, out := n.in[0].place, n.out
	rank := out.typ.Rank()
	rows, columns, size := out.typ.Shape[rank-2], out.typ.Shape[rank-1], out.typ.DType.Size()
	return func(m *memory) error {
		x, dst := m.bytes(a), m.bytes(out.place)
		for r := 0; r*columns*size < len(dst); r++ {
			at := r * columns * size
			kept := min(r%rows+1, columns) * size
			copy(dst[at:][:kept], x[at:])
			clear(dst[at+kept : at+columns*size])
		}
		return nil
	}, nil
}

// buildDropout draws the mask from seed, key, step, micro-batch and element: the gradient operation draws the same one.
func buildDropout(m *machine, n *node) (step, error) {
	a, key, out := n.in[0].place, n.in[1].place, n.out.place
	p := n.op.Attrs.Float("p")
	scale := float32(1 / (1 - p))
	first := 0 // element of the micro-batch that the first one here is
	if n.op.Attrs.Bool("rows") {
		first = m.replica * n.out.typ.Elems()
	}
	return func(m *memory) error {
		stream := threefry.Hashed(m.seed, uint32(view[int32](m, key)[0]), m.stepNumber, m.micro)
		x, dst := m.floats(a), m.floats(out)
		for e := range dst {
			v := float32(0)
			if threefry.Keeps(stream, uint64(first+e), p) {
				v = x[e] * scale
			}
			dst[e] = v
		}
		return nil
	}, nil
}
