package cpu

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// blockRows is how many rows of a panel are updated at a time: 8 KB of each operand stay in the nearest cache.
const blockRows = plan.BlockElements / kernel.PanelColumns

// accumulation adds what a micro-batch contributes to one accumulator: x^T @ dy, rows of dy at indices, or a gradient as
// it is.
type accumulation struct {
	op     *ir.Op
	path   string // for a trace
	acc    operand
	x, dy  place // of matmul_accumulate
	g      place // of accumulate; dy of gather_accumulate
	ids    place // of gather_accumulate
	gather bool
	chunk  int
	matMul bool
	rows   int // of x and dy
	k, n   int // the accumulator as [k, n]; where it is not packed and swap is set, its transpose lies in memory
	swap   bool
	block  place // workspace of an accumulator that is not packed
	parted bool  // acc holds a part: see sum
}

// accumulations turns the nodes of a weight pass, which has nothing else, into accumulations.
func (m *machine) accumulations(nodes []node) ([]accumulation, error) {
	out := make([]accumulation, len(nodes))
	for i, n := range nodes {
		a := accumulation{op: n.op, path: n.path, acc: n.in[0]}
		if a.acc.typ.DType != ir.F32 || n.out.place != a.acc.place {
			return nil, fmt.Errorf("cpu device: `%s` does not write over an accumulator of f32", n.op.Kind)
		}
		for _, o := range n.in[1:] {
			if o.area < 0 || o.bytes < o.typ.Bytes() {
				return nil, fmt.Errorf("cpu device: `%s` adds up what the rank has a part of", n.op.Kind)
			}
		}
		a.parted = a.acc.bytes < plan.CPU.ItemBytes(plan.Item{Type: a.acc.typ, Form: a.acc.form})
		switch n.op.Kind {
		case ir.MatMulAccumulate:
			a.matMul, a.x, a.dy = true, n.in[1].place, n.in[2].place
			a.k, a.n = n.in[1].typ.Shape[n.in[1].typ.Rank()-1], n.in[2].typ.Shape[n.in[2].typ.Rank()-1]
			a.rows = n.in[1].typ.Elems() / max(a.k, 1)
			a.swap = n.op.Attrs.Bool("transpose_b")
			if form := a.acc.form; form != plan.Rows {
				if (form == plan.NK) != a.swap {
					return nil, fmt.Errorf("cpu device: `%s` on an accumulator packed the other way", n.op.Kind)
				}
				break
			}
			var err error
			if a.block, err = m.work(0, 4*blockRows*kernel.PanelColumns, n.op.Kind); err != nil {
				return nil, err
			}
		case ir.GatherAccumulate:
			a.gather, a.ids, a.g = true, n.in[1].place, n.in[2].place
		case ir.Accumulate:
			a.g = n.in[1].place
		default:
			return nil, fmt.Errorf("cpu device: `%s` in a weight pass", n.op.Kind)
		}
		out[i] = a
	}
	return out, nil
}

// at is a place in the slot of a micro-batch.
func (m *machine) at(p place, micro int) []float32 {
	return elements[float32](m.arenas[p.area].slot(micro)[p.offset : p.offset+p.bytes])
}

// sum runs micro-batches lo..hi-1 of an accumulation. Of a gradient that is shared out each one is made whole in the workspace,
// summed over the ranks of the group, and its part added.
func (m *machine) sum(a *accumulation, lo, hi int) error {
	acc := m.at(a.acc.place, 0)
	if !a.parted {
		return m.accumulate(a, acc, lo, hi, lo > 0)
	}
	for micro := lo; micro < hi; micro++ {
		whole, err := m.gradient(a, micro)
		if err != nil {
			return err
		}
		if err := m.scatter(whole); err != nil {
			return err
		}
		first, last := m.plan.Part(len(whole), m.replica)
		if part := whole[first:last]; micro > 0 {
			m.path.Add(acc[:len(part)], acc[:len(part)], part)
		} else {
			copy(acc, part)
		}
	}
	return nil
}

// gradient makes what a micro-batch on this rank adds to an accumulator that holds a part.
func (m *machine) gradient(a *accumulation, micro int) ([]float32, error) {
	whole := m.whole[:plan.CPU.ItemBytes(plan.Item{Type: a.acc.typ, Form: a.acc.form})/4]
	return whole, m.accumulate(a, whole, micro, micro+1, false)
}

// accumulate runs micro-batches lo..hi-1 into acc, which the first adds to or starts by assignment.
func (m *machine) accumulate(a *accumulation, acc []float32, lo, hi int, load bool) error {
	switch {
	case a.matMul && a.acc.form != plan.Rows:
		m.path.MatMulWeightGrad(acc, m.segmentsOf(a, lo, hi), a.k, a.n, load)
	case a.matMul:
		m.accumulateRows(a, acc, m.segmentsOf(a, lo, hi), load)
	case a.gather:
		if !load {
			clear(acc)
		}
		for micro := lo; micro < hi; micro++ {
			ids := elements[int32](bytesOf(m.at(a.ids, micro)))
			if err := m.addRows(acc, m.at(a.g, micro), ids, a.acc.typ.Shape[0]); err != nil {
				return stepError(a.op, micro, err)
			}
		}
	default:
		for micro := lo; micro < hi; micro++ {
			m.add(a, acc, m.at(a.g, micro), load || micro > lo)
		}
	}
	return nil
}

func (m *machine) segmentsOf(a *accumulation, lo, hi int) []kernel.Segment {
	s := m.segments[:hi-lo]
	for i := range s {
		s[i] = kernel.Segment{X: m.at(a.x, lo+i), DY: m.at(a.dy, lo+i), Rows: a.rows}
	}
	return s
}

// accumulateRows is MatMulWeightGrad for an accumulator in row-major form, block by block through the workspace.
func (m *machine) accumulateRows(a *accumulation, acc []float32, segments []kernel.Segment, load bool) {
	whole := m.at(a.block, 0)
	rowStep, columnStep := a.n, 1
	if a.swap {
		rowStep, columnStep = 1, a.k
	}
	for column := 0; column < a.n; column += kernel.PanelColumns {
		columns := min(kernel.PanelColumns, a.n-column)
		for k0 := 0; k0 < a.k; k0 += blockRows {
			k1 := min(k0+blockRows, a.k)
			block := whole[:(k1-k0)*kernel.PanelColumns]
			clear(block)
			for i := 0; load && i < k1-k0; i++ {
				for j := range columns {
					block[i*kernel.PanelColumns+j] = acc[(k0+i)*rowStep+(column+j)*columnStep]
				}
			}
			m.path.MatMulWeightGradBlock(block, segments, a.k, a.n, column/kernel.PanelColumns, k0, k1, load)
			for i := range k1 - k0 {
				for j := range columns {
					acc[(k0+i)*rowStep+(column+j)*columnStep] = block[i*kernel.PanelColumns+j]
				}
			}
		}
	}
}

// add adds a row-major gradient to an accumulator, or assigns it.
func (m *machine) add(a *accumulation, acc, g []float32, load bool) {
	k, n := 1, len(g)
	switch a.acc.form {
	case plan.Rows:
		if load {
			m.path.Add(acc, acc, g)
		} else {
			copy(acc, g)
		}
		return
	case plan.KN:
		k, n = a.acc.typ.Shape[0], a.acc.typ.Shape[1]
	case plan.NK:
		n, k = a.acc.typ.Shape[0], a.acc.typ.Shape[1]
	}
	if !load {
		pack(acc, g, a.acc.form, k, n)
		return
	}
	for column := range n {
		panel := acc[column/kernel.PanelColumns*k*kernel.PanelColumns:]
		for row := range k {
			from := row*n + column
			if a.acc.form == plan.NK {
				from = column*k + row
			}
			panel[row*kernel.PanelColumns+column%kernel.PanelColumns] += g[from]
		}
	}
}

// pack writes a row-major matrix in its packed form; the logical matrix is [k, n].
func pack(dst, v []float32, form plan.Form, k, n int) {
	if form == plan.NK {
		kernel.PackTransposed(dst, v, k, n)
	} else {
		kernel.Pack(dst, v, k, n)
	}
}
