// Package partition colours the joint graph with chunks and cuts it there.
//
// Chunks are numbered along the data. A forward operation has the chunk of its marks (colour.go), or the highest chunk of its
// producers; without any mark the planner (auto.go) cuts a stable topological order into stages. A gradient operation has the chunk of its forward operation; a
// fold of gradients runs on the lowest chunk of its operands, so partial sums travel back hop by hop. A call whose body
// carries more than one chunk is opened; others stay calls.
package partition

import (
	"fmt"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Marked colours f from its marks and returns the coloured form, where every operation has a chunk, with the stage of every
// chunk. pos is where the number of stages was set. Only the first program of a plan must use every stage: an evaluation
// may leave some idle.
func Marked(f *ir.Func, s *State, stages int, interleave, first bool, pos ir.Pos) (*ir.Func, []int, diag.List) {
	m := &marks{has: map[*ir.Func]bool{}}
	for {
		which := map[ir.OpID]bool{}
		for _, op := range f.Ops {
			if op.Pass == ir.ForwardPass && op.Callee != nil && m.in(op.Callee) {
				which[op.ID] = true
			}
		}
		if len(which) == 0 {
			break
		}
		f = open(f, which)
	}
	chunk, on, errs := colour(f, s, stages, interleave, first, pos)
	if errs.HasErrors() {
		return nil, nil, errs
	}
	return recolour(f, chunk), on, nil
}

// One puts everything on one chunk.
func One(f *ir.Func) *ir.Func {
	return recolour(f, make([]int, f.NumOps()))
}

// Straight is the stage of every chunk where chunk k is on stage k.
func Straight(stages int) []int {
	on := make([]int, stages)
	for s := range on {
		on[s] = s
	}
	return on
}

type marks struct{ has map[*ir.Func]bool }

// in reports whether a function carries marks, in its calls too.
func (m *marks) in(f *ir.Func) bool {
	if on, ok := m.has[f]; ok {
		return on
	}
	on := false
	for _, op := range f.Ops {
		on = on || op.Stage >= 0 || op.Segment >= 0 || op.Callee != nil && m.in(op.Callee)
	}
	m.has[f] = on
	return on
}

// open inlines the given forward calls and the gradient calls that belong to them.
func open(f *ir.Func, which map[ir.OpID]bool) *ir.Func {
	c := newCopy(f)
	opened := map[ir.OpID][]*ir.Op{} // forward call -> copies of the operations of its callee
	for _, op := range f.Ops {
		args := c.Mapped(op.Args)
		call := *op
		call.Scope = op.Scope
		switch {
		case op.Pass == ir.ForwardPass && which[op.ID]:
			in := c.To.Inline(&call, args, false)
			opened[op.ID] = in.Ops
			c.Bind(op, in.Results)
		case op.Pass != ir.ForwardPass && which[op.Forward]:
			if op.Callee == nil {
				panic("partition: a gradient operation of a call is no call")
			}
			in := c.To.Inline(&call, args, false)
			for _, n := range in.Ops {
				if n != nil && n.Forward != 0 {
					n.Forward = opened[op.Forward][n.Forward].ID
				}
			}
			c.Bind(op, in.Results)
		default:
			n := c.To.CopyOp(op, args, op.At)
			c.ids[op.ID] = n.ID
			if n.Forward != 0 {
				n.Forward = c.ids[n.Forward]
			}
			c.Bind(op, n.Results)
		}
	}
	return c.Finish()
}

// copier copies a function and keeps the links of gradient operations to their forward ones.
type copier struct {
	*ir.Copier
	ids []ir.OpID // of copied operations, by old id
}

func newCopy(f *ir.Func) *copier {
	return &copier{ir.NewCopier(f, f.Name), make([]ir.OpID, f.NumOps())}
}

// what names an operation for people: the path of a cell or the name of the operation.
func what(f *ir.Func, op *ir.Op) string {
	if p := f.Path(op); op.Callee != nil && p != "" {
		return "cell `" + p + "`"
	}
	if p := f.Path(op); p != "" {
		return fmt.Sprintf("`%s` of cell `%s`", op.Kind, p)
	}
	return "`" + op.Kind.String() + "`"
}

type effects struct{ has map[*ir.Func]bool }

func (e *effects) of(op *ir.Op) bool {
	if op.Callee == nil {
		return op.Kind.Info().Effect
	}
	on, ok := e.has[op.Callee]
	if !ok {
		for _, o := range op.Callee.Ops {
			on = on || e.of(o)
		}
		e.has[op.Callee] = on
	}
	return on
}

// recolour gives gradient operations their chunk and rebuilds f with every chunk set and cloned operations repeated.
func recolour(f *ir.Func, chunk []int) *ir.Func {
	for _, op := range f.Ops {
		if op.Pass == ir.ForwardPass {
			continue
		}
		if op.Forward != 0 {
			chunk[op.ID] = chunk[op.Forward]
			continue
		}
		low := -1
		for _, a := range op.Args {
			if d := f.Value(a).Op; d != nil && (low < 0 || chunk[d.ID] < low) {
				low = chunk[d.ID]
			}
		}
		chunk[op.ID] = max(low, 0)
	}
	// Which chunks repeat a cloned operation: those of its users, from the last user to the first.
	repeats := make([][]bool, f.NumOps())
	need := func(v ir.ValueID, c int) {
		if d := f.Value(v).Op; d != nil && chunk[d.ID] == cloned {
			for len(repeats[d.ID]) <= c {
				repeats[d.ID] = append(repeats[d.ID], false)
			}
			repeats[d.ID][c] = true
		}
	}
	for _, r := range f.Results {
		need(r, 0)
	}
	for i := len(f.Ops) - 1; i >= 0; i-- {
		op := f.Ops[i]
		for _, a := range op.Args {
			if chunk[op.ID] != cloned {
				need(a, chunk[op.ID])
				continue
			}
			for c, on := range repeats[op.ID] {
				if on {
					need(a, c)
				}
			}
		}
	}
	c := newCopy(f)
	copies := map[[2]int]ir.ValueID{} // (value, chunk) of cloned operations
	root := f.Roots()
	for _, op := range f.Ops {
		place := func(on int) *ir.Op {
			at := op.At
			at.Chunk = on
			args := make([]ir.ValueID, len(op.Args))
			for i, a := range op.Args {
				// A parameter that was handed over as a value is read where it is used, not sent.
				if d := f.Value(a).Op; d != nil && chunk[d.ID] != on && f.Value(root[a]).Param != nil {
					args[i] = c.Values[root[a]]
					if !f.TypeOf(a).Equal(f.TypeOf(root[a])) {
						view := ir.At{Pos: op.Pos, Stage: -1, Segment: -1, Scope: op.Scope, Chunk: on, Pass: op.Pass}
						args[i] = c.To.MustEmit(ir.Reshape, args[i:i+1], ir.Attrs{ir.IntsAttr("shape", f.TypeOf(a).Shape)}, view)
					}
					continue
				}
				if args[i] = c.Values[a]; args[i] == 0 {
					args[i] = copies[[2]int{int(a), on}]
				}
			}
			n := c.To.CopyOp(op, args, at)
			if n.Forward != 0 {
				n.Forward = c.ids[n.Forward]
			}
			c.ids[op.ID] = n.ID
			return n
		}
		if chunk[op.ID] != cloned {
			c.Bind(op, place(chunk[op.ID]).Results)
			continue
		}
		for on, yes := range repeats[op.ID] {
			if yes {
				for i, r := range place(on).Results {
					copies[[2]int{int(op.Results[i]), on}] = r
				}
			}
		}
	}
	for _, r := range f.Results {
		if c.Values[r] == 0 {
			c.Values[r] = copies[[2]int{int(r), 0}]
		}
	}
	return c.Finish()
}

// coster sums the cost of functions once.
type coster struct {
	costs *plan.Costs
	funcs map[*ir.Func]float64
}

func (c *coster) op(f *ir.Func, op *ir.Op) float64 {
	if op.Callee == nil {
		in, out := types(f, op)
		return c.costs.Op(op.Kind, in, out, op.Attrs)
	}
	t, ok := c.funcs[op.Callee]
	if !ok {
		for _, o := range op.Callee.Ops {
			t += c.op(op.Callee, o)
		}
		c.funcs[op.Callee] = t
	}
	return t
}

func types(f *ir.Func, op *ir.Op) (in, out []ir.Type) {
	for _, a := range op.Args {
		in = append(in, f.TypeOf(a))
	}
	for _, r := range op.Results {
		out = append(out, f.TypeOf(r))
	}
	return in, out
}
