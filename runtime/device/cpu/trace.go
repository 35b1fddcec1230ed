package cpu

import (
	"slices"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
)

// traceSteps makes each step tell what it gave. Nothing was fused: there is a step for each node.
func (m *machine) traceSteps(list []instruction, nodes []node) {
	for i := range list {
		n, run := &nodes[i], list[i].run
		if n.out.bytes == 0 {
			continue
		}
		list[i].run = func(mem *memory) error {
			if err := run(mem); err != nil {
				return err
			}
			m.trace(&device.Record{
				Stage: m.index, Step: int(m.stepNumber), Micro: int(m.micro), Op: n.op, Path: n.path,
				Type: n.out.typ, Data: m.bytes(n.out.place)[:n.out.typ.Bytes()],
			})
			return nil
		}
	}
}

// traceSums runs accumulations micro-batch by micro-batch, which gives the same bits, and tells each sum so far.
func (m *machine) traceSums(c *code, lo, hi int) error {
	for i := range c.sums {
		a := &c.sums[i]
		for micro := lo; micro < hi; micro++ {
			acc := m.at(a.acc.place, 0)
			if a.parted {
				whole, err := m.gradient(a, micro)
				if err != nil {
					return err
				}
				acc = slices.Clone(whole)
			}
			if err := m.sum(a, micro, micro+1); err != nil {
				return err
			}
			t := a.acc.typ
			m.trace(&device.Record{
				Stage: m.index, Step: int(m.stepNumber), Micro: micro, Op: a.op, Path: a.path,
				Type: t, Data: rowMajor(acc, t, a.acc.form),
			})
		}
	}
	return nil
}

// traceParam tells the gradient or the new value of a parameter. Where ranks have parts of it they meet.
func (m *machine) traceParam(i int, v []float32, updated bool) error {
	p := &m.params[i]
	if len(v) < p.elems {
		var err error
		if v, err = m.gathered(p, v, 0); err != nil {
			return err
		}
	}
	m.trace(&device.Record{
		Stage: m.index, Step: int(m.stepNumber), Micro: -1, Param: m.stage.Params[i].Param, Updated: updated,
		Type: p.typ, Data: rowMajor(v, p.typ, p.form),
	})
	return nil
}

// rowMajor copies a buffer out of the form that the plan keeps it in.
func rowMajor(v []float32, t ir.Type, form plan.Form) []byte {
	p := parameter{form: form}
	if form != plan.Rows {
		p.k, p.n = t.Shape[0], t.Shape[1]
		if form == plan.NK {
			p.k, p.n = p.n, p.k
		}
	}
	out := make([]float32, t.Elems())
	p.unpack(out, v)
	return bytesOf(out)
}
