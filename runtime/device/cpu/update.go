package cpu

import (
	"errors"
	"fmt"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// parameter is a parameter with its buffers, in the form the plan gives them.
type parameter struct {
	name         string
	typ          ir.Type
	form         plan.Form
	owned        bool // this stage folds the gradients and updates the parameter
	group        int  // of the optimizer's scalars
	k, n         int  // of the packed form
	value        []float32
	accumulators [][]float32
	states       [][]float32
}

// slot names an accumulator: parameter and read.
type slot struct{ param, read int }

// loadParams finds the buffers of all parameters and returns the accumulators by place.
func (m *machine) loadParams(f *flattener) (map[place]slot, error) {
	accumulators := map[place]slot{}
	for i, sp := range m.stage.Params {
		value, err := f.ref(sp.Value)
		if err != nil {
			return nil, err
		}
		f.params[sp.Param] = value
		p := parameter{name: sp.Param.Name, typ: sp.Param.Type, form: value.form, owned: sp.Owner == m.index, value: m.at(value.place, 0)}
		if o := m.plan.Optimizer; o != nil {
			p.group = o.GroupOf(p.name)
		}
		if p.form != plan.Rows {
			p.k, p.n = p.typ.Shape[0], p.typ.Shape[1]
			if p.form == plan.NK {
				p.k, p.n = p.n, p.k
			}
		}
		buffers := func(refs []plan.Ref) (out [][]float32, places []place, err error) {
			for _, r := range refs {
				o, err := f.ref(r)
				if err != nil {
					return nil, nil, err
				}
				if o.form != value.form || !o.typ.Equal(value.typ) || o.typ.DType != ir.F32 {
					return nil, nil, fmt.Errorf("cpu device: a buffer of %s is %s and not of its form", sp.Param.Name, o.typ)
				}
				out, places = append(out, m.at(o.place, 0)), append(places, o.place)
			}
			return out, places, nil
		}
		var places []place
		if p.accumulators, places, err = buffers(sp.Accumulators); err != nil {
			return nil, err
		}
		for k, at := range places {
			accumulators[at] = slot{i, k}
		}
		if p.states, _, err = buffers(sp.States); err != nil {
			return nil, err
		}
		m.params = append(m.params, p)
	}
	return accumulators, nil
}

// assign finds what writes each accumulator in a training program.
func (m *machine) assign(program int, pr *program, accumulators map[place]slot) error {
	pr.sums = make([][]*accumulation, len(m.params))
	for i := range m.params {
		pr.sums[i] = make([]*accumulation, len(m.params[i].accumulators))
	}
	for c, chunk := range pr.chunks {
		if chunk == nil {
			continue
		}
		for i := range chunk.sums {
			a := &chunk.sums[i]
			a.chunk = c
			s, ok := accumulators[a.acc.place]
			if !ok || pr.sums[s.param][s.read] != nil {
				return fmt.Errorf("cpu device: `%s` writes no accumulator of its own", a.op.Kind)
			}
			pr.sums[s.param][s.read] = a
		}
	}
	received := map[plan.Ref]bool{}
	for _, msg := range m.plan.Programs[program].Shared {
		for _, t := range msg.Tensors {
			if msg.To == m.index && !msg.Value {
				received[t.To] = true
			}
		}
	}
	for i := range m.params {
		for k, a := range pr.sums[i] {
			if a == nil && !received[m.stage.Params[i].Accumulators[k]] {
				return fmt.Errorf("cpu device: nothing writes a gradient of %s", m.params[i].name)
			}
		}
	}
	return nil
}

// SetParam implements device.Device.
func (m *machine) SetParam(i int, v []float32) error {
	p, err := m.param(i, v)
	if err != nil {
		return err
	}
	if p.form == plan.Rows {
		copy(p.value, v)
	} else {
		pack(p.value, v, p.form, p.k, p.n)
	}
	return nil
}

// Param implements device.Device.
func (m *machine) Param(i int, v []float32) error {
	p, err := m.param(i, v)
	if err != nil {
		return err
	}
	p.unpack(v, p.value)
	return nil
}

func (p *parameter) unpack(dst, v []float32) {
	switch p.form {
	case plan.KN:
		kernel.Unpack(dst, v, p.k, p.n)
	case plan.NK:
		kernel.UnpackTransposed(dst, v, p.k, p.n)
	default:
		copy(dst, v)
	}
}

func (m *machine) param(i int, v []float32) (*parameter, error) {
	if i < 0 || i >= len(m.params) {
		return nil, fmt.Errorf("cpu device: the stage has no parameter %d", i)
	}
	p := &m.params[i]
	if p.typ.DType != ir.F32 || len(v) != p.typ.Elems() {
		return nil, fmt.Errorf("cpu device: %s is %s, not f32[%d]", p.name, p.typ, len(v))
	}
	return p, nil
}

// FoldGradients implements device.Device.
func (m *machine) FoldGradients(squares []float64) error {
	for i := range m.params {
		p := &m.params[i]
		m.fold(p)
		if i < len(squares) {
			squares[i] = 0
			if p.owned && len(p.accumulators) > 0 {
				squares[i] = sumSquares(p.accumulators[0])
			}
		}
		if m.trace != nil && p.owned && len(p.accumulators) > 0 {
			m.traceParam(i, p.accumulators[0], false)
		}
	}
	return nil
}

// fold adds the accumulators of a parameter to the first, in program order. Those of a parameter of another stage are on
// their way there.
func (m *machine) fold(p *parameter) {
	if !p.owned {
		return
	}
	for _, a := range p.accumulators[min(1, len(p.accumulators)):] {
		m.path.Add(p.accumulators[0], p.accumulators[0], a)
	}
}

var errFolded = errors.New("cpu device: a weight pass is pending after the gradients were folded")

// Update implements device.Device.
func (m *machine) Update(program int, pending []device.Pending, scalars [][]float32, folded bool) error {
	if program < 0 || program >= len(m.programs) || m.programs[program].sums == nil {
		return fmt.Errorf("cpu device: program %d does not train", program)
	}
	if folded && len(pending) > 0 {
		return errFolded
	}
	for _, p := range pending {
		if _, err := m.code(program, p.Chunk, p.Lo, p.Hi); err != nil {
			return err
		}
	}
	if m.trace != nil && !folded {
		for _, p := range pending {
			if err := m.Run(program, p.Chunk, ir.WeightPass, p.Lo, p.Hi); err != nil {
				return err
			}
		}
		if err := m.FoldGradients(nil); err != nil {
			return err
		}
		pending, folded = nil, true
	}
	for i := range m.params {
		if err := m.update.scalars(scalars, m.params[i].group); err != nil {
			return err
		}
		if err := m.updateParam(&m.params[i], m.programs[program].sums[i], pending, folded); err != nil {
			return err
		}
		if p := &m.params[i]; m.trace != nil && p.owned && len(p.accumulators) > 0 {
			m.traceParam(i, p.value, true)
		}
	}
	for _, p := range pending {
		m.end(m.programs[program].chunks[p.Chunk], ir.WeightPass, p.Lo, p.Hi)
	}
	return nil
}

// updateParam finishes the gradient of a parameter and runs the optimizer on it. A packed parameter that is read once
// goes block by block, so that the optimizer finds the gradient in the nearest cache.
func (m *machine) updateParam(p *parameter, sums []*accumulation, pending []device.Pending, folded bool) error {
	if len(p.accumulators) == 0 {
		return nil
	}
	if a := sums[0]; a != nil && len(sums) == 1 && p.owned && a.matMul && p.form != plan.Rows {
		if lo, hi := span(pending, a.chunk); lo < hi {
			return m.updateBehind(p, a, lo, hi)
		}
	}
	if !folded {
		for _, a := range sums {
			for _, q := range pending {
				if a != nil && q.Chunk == a.chunk {
					if err := m.accumulate(a, q.Lo, q.Hi); err != nil {
						return err
					}
				}
			}
		}
		m.fold(p)
	}
	for at := 0; p.owned && at < len(p.value); at += plan.BlockElements {
		if err := m.update.block(m, p, at, min(at+plan.BlockElements, len(p.value))); err != nil {
			return err
		}
	}
	return nil
}

// span is the micro-batches that are pending for a chunk, if they follow each other.
func span(pending []device.Pending, chunk int) (lo, hi int) {
	for _, q := range pending {
		switch {
		case q.Chunk != chunk:
		case lo == hi:
			lo, hi = q.Lo, q.Hi
		case q.Lo == hi:
			hi = q.Hi
		default:
			return 0, 0
		}
	}
	return lo, hi
}

// updateBehind runs the optimizer on every block right after its last accumulation.
func (m *machine) updateBehind(p *parameter, a *accumulation, lo, hi int) error {
	segments := m.segmentsOf(a, lo, hi)
	for at := 0; at < len(p.value); {
		panel, k0 := at/(p.k*kernel.PanelColumns), at/kernel.PanelColumns%p.k
		k1 := min(k0+blockRows, p.k)
		end := at + (k1-k0)*kernel.PanelColumns
		m.path.MatMulWeightGradBlock(p.accumulators[0][at:end], segments, p.k, p.n, panel, k0, k1, lo > 0)
		if err := m.update.block(m, p, at, end); err != nil {
			return err
		}
		at = end
	}
	return nil
}
