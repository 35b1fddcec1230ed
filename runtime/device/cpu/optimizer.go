package cpu

import (
	"fmt"
	"slices"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// optimizer runs the plan's update function on blocks of the parameters: the function of one element, with the shapes
// of a block in place of the scalars that differ by element.
//
// Its areas stand behind the stage's: parameter, gradient, states, then the scalars. Values between live in the
// workspace.
type optimizer struct {
	first    int // area of the parameter
	states   int
	constant []float32 // the scalar arguments
	sizes    []blockCode
}

// blockCode is the update of a block of one size.
type blockCode struct {
	elements int
	code     []instruction
}

// loadOptimizer prepares the update for every size of block that the parameters have.
func (m *machine) loadOptimizer(fusing bool) error {
	o := m.plan.Optimizer
	if o == nil {
		return nil
	}
	u := &m.update
	u.first, u.states, u.constant = len(m.base), len(o.States), make([]float32, len(o.Scalars))
	if want := 2 + len(o.States) + len(o.Scalars); len(o.Func.Args) != want || len(o.Func.Results) != 1+len(o.States) {
		return fmt.Errorf("cpu device: the optimizer takes %d arguments, wants %d", len(o.Func.Args), want)
	}
	m.base = append(m.base, make([][]byte, len(o.Func.Args))...)
	for i := range u.constant {
		m.base[u.first+2+u.states+i] = bytesOf(u.constant[i:][:1])
	}
	for i := range m.params {
		p := &m.params[i]
		if len(p.accumulators) == 0 || !p.owned {
			continue
		}
		if len(p.states) != u.states {
			return fmt.Errorf("cpu device: %s has %d optimizer states, wants %d", p.name, len(p.states), u.states)
		}
		for k, s := range p.states {
			for e := range s {
				s[e] = float32(o.States[k].Init)
			}
		}
		for _, n := range p.blockSizes() {
			if err := m.loadBlock(n, fusing); err != nil {
				return err
			}
		}
	}
	return nil
}

// blockSizes lists the sizes of the blocks that a parameter is updated in.
func (p *parameter) blockSizes() []int {
	n := p.hi - p.lo
	sizes := []int{min(n, plan.BlockElements), n % plan.BlockElements}
	if p.form != plan.Rows {
		panel := p.k * (plan.BlockElements / blockRows)
		sizes = append(sizes, min(panel, plan.BlockElements), panel%plan.BlockElements)
	}
	return sizes
}

// loadBlock prepares the update of a block of n elements, once.
func (m *machine) loadBlock(n int, fusing bool) error {
	u := &m.update
	if n == 0 || u.code(n) != nil {
		return nil
	}
	f, err := widen(m.plan.Optimizer.Func, 2+u.states, n)
	if err != nil {
		return err
	}
	nodes, err := m.updateNodes(f, n)
	if err != nil {
		return err
	}
	if fusing {
		nodes = sgd(nodes)
	}
	code, err := m.instructions(nodes, false)
	if err != nil {
		return err
	}
	u.sizes = append(u.sizes, blockCode{n, code})
	return nil
}

// widen copies an element-wise function with its first arguments n elements long.
func widen(f *ir.Func, wide, n int) (*ir.Func, error) {
	g := ir.NewModule(f.Name).NewFunc(f.Name)
	values := make([]ir.ValueID, f.NumValues())
	for i, a := range f.Args {
		t := f.TypeOf(a)
		if t.Rank() != 0 {
			return nil, fmt.Errorf("cpu device: an argument of the optimizer is %s, wants a scalar", t)
		}
		if i < wide {
			t = ir.Tensor(t.DType, n)
		}
		values[a] = g.AddArg(f.Value(a).Name, t)
	}
	for _, op := range f.Ops {
		info := op.Kind.Info()
		if !info.Elementwise && op.Kind != ir.Constant && op.Kind != ir.Identity {
			return nil, fmt.Errorf("cpu device: `%s` in an optimizer", op.Kind)
		}
		args := make([]ir.ValueID, len(op.Args))
		for i, a := range op.Args {
			args[i] = values[a]
		}
		r, err := g.Emit(op.Kind, args, op.Attrs, op.At)
		if err != nil {
			return nil, fmt.Errorf("cpu device: `%s` in an optimizer: %w", op.Kind, err)
		}
		values[op.Results[0]] = r[0]
	}
	for _, r := range f.Results {
		g.Results = append(g.Results, values[r])
	}
	return g, nil
}

// updateNodes lays out an update of n elements: values between in the workspace, results where they belong.
func (m *machine) updateNodes(f *ir.Func, n int) ([]node, error) {
	u := &m.update
	root := f.Roots()
	values := make([]operand, f.NumValues()) // by root
	ids, used := 0, 0
	put := func(p place, t ir.Type) operand {
		ids++
		return operand{place: p, id: ids, typ: t}
	}
	take := func(t ir.Type) (operand, error) {
		p, err := m.work(used, t.Bytes(), ir.Identity)
		used += plan.CPU.Aligned(p.bytes)
		return put(p, t), err
	}
	of := func(v ir.ValueID) operand {
		o := values[root[v]]
		o.typ = f.TypeOf(v)
		return o
	}
	for i, a := range f.Args {
		values[a] = put(place{u.first + i, 0, f.TypeOf(a).Bytes()}, f.TypeOf(a))
	}
	var nodes []node
	for _, op := range f.Ops {
		if op.Kind.Info().View {
			continue
		}
		x := node{op: op}
		for _, a := range op.Args {
			x.in = append(x.in, of(a))
		}
		if err := checkNode(op, x.in); err != nil {
			return nil, err
		}
		var err error
		if x.out, err = take(f.TypeOf(op.Results[0])); err != nil {
			return nil, err
		}
		values[op.Results[0]] = x.out
		nodes = append(nodes, x)
	}
	results := make([]operand, len(f.Results))
	times := map[int]int{}
	for i, r := range f.Results {
		results[i] = of(r)
		times[results[i].id]++
	}
	var before, after []node
	for i, from := range results {
		area := u.first
		if i > 0 {
			area = u.first + 1 + i // behind the gradient
		}
		to := put(place{area, 0, 4 * n}, ir.Tensor(ir.F32, n))
		switch {
		case from.typ.DType != ir.F32:
			return nil, fmt.Errorf("cpu device: result %d of the optimizer is %s", i, from.typ)
		case from.place == to.place:
		case from.area != m.workspace(): // an old value, which may be overwritten before it is stored
			saved, err := take(from.typ)
			if err != nil {
				return nil, err
			}
			before, after = append(before, copyNode(from, saved)), append(after, copyNode(saved, to))
		case times[from.id] > 1 || from.typ.Elems() != n || !writeInPlace(nodes, from, to):
			after = append(after, copyNode(from, to))
		}
	}
	return slices.Concat(before, nodes, after), nil
}

// copyNode copies a value, or spreads a scalar.
func copyNode(from, to operand) node {
	return node{op: &ir.Op{Kind: ir.BroadcastTo}, in: []operand{from}, out: to}
}

// writeInPlace lets the operation that computes a result write it where it belongs, unless a later one reads the old value.
func writeInPlace(nodes []node, from, to operand) bool {
	at := slices.IndexFunc(nodes, func(n node) bool { return n.out.id == from.id })
	for _, n := range nodes[at+1:] {
		if slices.ContainsFunc(n.in, func(o operand) bool { return o.place == to.place }) {
			return false
		}
	}
	nodes[at].out = to
	for _, n := range nodes[at+1:] {
		for i := range n.in {
			if n.in[i].id == from.id {
				n.in[i] = to
			}
		}
	}
	return true
}

// sgd joins a scaled gradient with its subtraction from the parameter in place.
func sgd(nodes []node) []node {
	if len(nodes) != 2 {
		return nodes
	}
	scaled, result := nodes[0], nodes[1]
	if scaled.op.Kind != ir.Mul || result.op.Kind != ir.Sub || result.in[1].id != scaled.out.id || result.in[0].place != result.out.place {
		return nodes
	}
	rate, g := scaled.in[0], scaled.in[1]
	if rate.typ.Rank() > 0 {
		rate, g = g, rate
	}
	if rate.typ.Rank() > 0 || g.typ.Elems() != result.out.typ.Elems() {
		return nodes
	}
	result.in = []operand{result.in[0], g}
	result.rate = &rate
	return []node{result}
}

// scalars sets the scalar arguments to those of a group.
func (u *optimizer) scalars(groups [][]float32, group int) error {
	if u.sizes == nil {
		return nil
	}
	if group >= len(groups) || len(groups[group]) != len(u.constant) {
		return fmt.Errorf("cpu device: the scalars of the optimizer do not fit")
	}
	copy(u.constant, groups[group])
	return nil
}

func (u *optimizer) code(elements int) []instruction {
	for i := range u.sizes {
		if u.sizes[i].elements == elements {
			return u.sizes[i].code
		}
	}
	return nil
}

// block updates elements lo..hi-1 of a parameter.
func (u *optimizer) block(m *machine, p *parameter, lo, hi int) error {
	if u.sizes == nil {
		return nil
	}
	m.base[u.first] = bytesOf(p.value[lo-p.values : hi-p.values])
	m.base[u.first+1] = bytesOf(p.accumulators[0][lo-p.gradients : hi-p.gradients])
	for k, s := range p.states {
		m.base[u.first+2+k] = bytesOf(s[lo-p.lo : hi-p.lo])
	}
	code := u.code(hi - lo)
	for i := range code {
		if err := code[i].run(&m.memory); err != nil {
			return err
		}
	}
	return nil
}
