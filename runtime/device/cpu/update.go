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
	elems        int  // of the whole
	lo, hi       int  // elements that this rank updates; states are those of lo..hi-1
	gradients    int  // the element at which accumulators begin: lo if they hold parts
	values       int  // the element at which value begins
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
		whole := sp.Whole()
		p := parameter{name: sp.Param.Name, typ: whole.Type, form: whole.Form, owned: sp.Owner == m.index, elems: sp.Elems()}
		if o := m.plan.Optimizer; o != nil {
			p.group = o.GroupOf(p.name)
		}
		if p.hi = p.elems; sp.Shard > plan.ShardNone {
			p.lo, p.hi = m.plan.Part(p.elems, m.replica)
		}
		if sp.Shard >= plan.ShardGradients {
			p.gradients = p.lo
		}
		if p.form != plan.Rows {
			p.k, p.n = p.typ.Shape[0], p.typ.Shape[1]
			if p.form == plan.NK {
				p.k, p.n = p.n, p.k
			}
		}
		buffers := func(refs []plan.Ref, level int) (out [][]float32, operands []operand, err error) {
			want := m.plan.Kept(&sp, level)
			for _, r := range refs {
				o, err := f.ref(r)
				if err != nil {
					return nil, nil, err
				}
				if o.form != want.Form || !o.typ.Equal(want.Type) || o.typ.DType != ir.F32 {
					return nil, nil, fmt.Errorf("cpu device: a buffer of %s is %s and not of its form", sp.Param.Name, o.typ)
				}
				out, operands = append(out, m.at(o.place, 0)), append(operands, o)
			}
			return out, operands, nil
		}
		values, operands, err := buffers([]plan.Ref{sp.Value}, plan.ShardValue)
		if err != nil {
			return nil, err
		}
		p.value, f.params[sp.Param] = values[0], operands[0]
		if sp.Shard >= plan.ShardValue {
			p.values = p.lo
			f.nextID++
			f.params[sp.Param] = operand{gatheredPlace(i, plan.CPU.ItemBytes(whole)), f.nextID, whole.Type, whole.Form}
		}
		if p.accumulators, operands, err = buffers(sp.Accumulators, plan.ShardGradients); err != nil {
			return nil, err
		}
		for k, o := range operands {
			accumulators[o.place] = slot{i, k}
		}
		if p.states, _, err = buffers(sp.States, plan.ShardStates); err != nil {
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

// Value implements device.Device.
func (m *machine) Value(i int) []float32 { return m.params[i].value }

// SetParam implements device.Device.
func (m *machine) SetParam(i int, v []float32) error {
	p, err := m.param(i, v)
	if err != nil {
		return err
	}
	whole := p.value
	if len(whole) < p.elems {
		whole = m.whole[:p.elems]
	}
	if p.form == plan.Rows {
		copy(whole, v)
	} else {
		pack(whole, v, p.form, p.k, p.n)
	}
	if len(p.value) < p.elems {
		copy(p.value, whole[p.lo:p.hi])
	}
	return nil
}

// Param implements device.Device.
func (m *machine) Param(i int, v []float32) error {
	p, err := m.param(i, v)
	if err != nil {
		return err
	}
	whole := p.value
	if len(whole) < p.elems {
		if whole, err = m.gathered(p, p.value, 0); err != nil {
			return err
		}
	}
	p.unpack(v, whole)
	return nil
}

// Pack implements device.Device.
func (m *machine) Pack(i int, packed, dense []float32) error {
	p, err := m.param(i, dense)
	if err != nil {
		return err
	}
	if len(packed) != p.elems {
		return fmt.Errorf("cpu device: %d elements in the form of %s, which has %d", len(packed), p.name, p.elems)
	}
	if p.form == plan.Rows {
		copy(packed, dense)
		return nil
	}
	rows, columns := p.n, 1 // how far apart the neighbours of an element are
	if p.form == plan.NK {
		rows, columns = 1, p.k
	}
	for r := range p.k {
		for c := range p.n {
			packed[(c/kernel.PanelColumns*p.k+r)*kernel.PanelColumns+c%kernel.PanelColumns] = dense[r*rows+c*columns]
		}
	}
	return nil
}

// Unpack implements device.Device.
func (m *machine) Unpack(i int, dense, packed []float32) error {
	p, err := m.param(i, dense)
	if err != nil {
		return err
	}
	if len(packed) != p.elems {
		return fmt.Errorf("cpu device: %d elements in the form of %s, which has %d", len(packed), p.name, p.elems)
	}
	p.unpack(dense, packed)
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
func (m *machine) FoldGradients() error {
	for i := range m.params {
		m.fold(&m.params[i])
	}
	return nil
}

// Squares implements device.Device.
func (m *machine) Squares(squares []float64) error {
	for i := range squares {
		squares[i] = 0
		if p := &m.params[i]; p.owned && len(p.accumulators) > 0 {
			squares[i] = sumSquares(p.gradient())
		}
	}
	return nil
}

// BoundGradients implements device.Device.
func (m *machine) BoundGradients(factor, limit float32) error {
	for i := range m.params {
		p := &m.params[i]
		if !p.owned || len(p.accumulators) == 0 {
			continue
		}
		g := p.accumulators[0]
		for e, v := range g {
			v *= factor
			if limit > 0 {
				v = max(min(v, limit), -limit)
			}
			g[e] = v
		}
		if m.trace != nil && p.owned && len(p.accumulators) > 0 {
			if err := m.traceParam(i, p.accumulators[0], false); err != nil {
				return err
			}
		}
	}
	return nil
}

// gradient is what this rank has of the folded gradient.
func (p *parameter) gradient() []float32 {
	if g := p.accumulators[0]; len(g) == p.elems {
		return g
	}
	return p.accumulators[0][:p.hi-p.lo]
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
		if err := m.FoldGradients(); err != nil {
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
			if err := m.traceParam(i, p.value, true); err != nil {
				return err
			}
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
	if a := sums[0]; a != nil && len(sums) == 1 && p.owned && p.hi-p.lo == p.elems && a.matMul && p.form != plan.Rows {
		if lo, hi := span(pending, a.chunk); lo < hi {
			return m.updateBehind(p, a, lo, hi)
		}
	}
	if !folded {
		for _, a := range sums {
			for _, q := range pending {
				if a != nil && q.Chunk == a.chunk {
					if err := m.sum(a, q.Lo, q.Hi); err != nil {
						return err
					}
				}
			}
		}
		m.fold(p)
	}
	for at := p.lo; p.owned && at < p.hi; at += plan.BlockElements {
		if err := m.update.block(m, p, at, min(at+plan.BlockElements, p.hi)); err != nil {
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
