package cpu

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// operand is a value of the flattened pass: where it lies and what it is there. Views of a value share id and place.
type operand struct {
	place
	id   int
	typ  ir.Type
	form plan.Form
}

// node is an operation of the flattened pass. What follows in may have been fused into it.
type node struct {
	op   *ir.Op
	path string // for a trace
	in   []operand
	out  operand // of no bytes where the operation has no result

	bias *operand // a product adds this row to every row
	relu bool     // a product ends with relu
	mask *operand // a product is 0 where this is not above 0
	rate *operand // a difference takes operand 1 times this scalar, in place
}

// flattener turns the functions of a pass into nodes.
type flattener struct {
	m      *machine
	frames map[*ir.Func]*plan.Frame
	params map[*ir.Param]operand
	roots  map[*ir.Func][]ir.ValueID
	nodes  []node
	nextID int
}

func (m *machine) newFlattener() *flattener {
	f := &flattener{m: m, frames: map[*ir.Func]*plan.Frame{}, params: map[*ir.Param]operand{}, roots: map[*ir.Func][]ir.ValueID{}}
	for i := range m.layout.Frames {
		f.frames[m.layout.Frames[i].Func] = &m.layout.Frames[i]
	}
	return f
}

// ref makes the operand of an item.
func (f *flattener) ref(r plan.Ref) (operand, error) {
	m := f.m
	if r.Area < 0 || r.Area >= len(m.stage.Areas) || r.Item < 0 || r.Item >= len(m.stage.Areas[r.Area].Items) {
		return operand{}, fmt.Errorf("cpu device: the plan refers to item %d of area %d, which is not there", r.Item, r.Area)
	}
	it := m.stage.Areas[r.Area].Items[r.Item]
	f.nextID++
	return operand{place{r.Area, m.layout.Offsets[r.Area][r.Item], plan.CPU.ItemBytes(it)}, f.nextID, it.Type, it.Form}, nil
}

// phase flattens one pass of a chunk. A weight pass takes accumulators, of which a rank may have a part, for whole ones.
func (f *flattener) phase(ph *plan.Phase, pass ir.Pass) ([]node, error) {
	f.nodes = nil
	if len(ph.Args) != len(ph.Func.Args) || len(ph.Results) != len(ph.Func.Results) {
		return nil, fmt.Errorf("cpu device: %s has %d arguments and %d results, the plan places %d and %d", ph.Func.Name, len(ph.Func.Args), len(ph.Func.Results), len(ph.Args), len(ph.Results))
	}
	parted := f.m.stage.PartedGradients()
	refs := func(list []plan.Ref, values []ir.ValueID) ([]operand, error) {
		out := make([]operand, len(list))
		for i, r := range list {
			o, err := f.ref(r)
			if err != nil {
				return nil, err
			}
			if sp := parted[r]; sp != nil && pass == ir.WeightPass {
				o.typ, o.form = sp.Param.Type, sp.Form
			}
			if want := ph.Func.TypeOf(values[i]); o.typ.DType != want.DType || o.typ.Elems() != want.Elems() {
				return nil, fmt.Errorf("cpu device: %s has a value %s in a place for %s", ph.Func.Name, want, o.typ)
			}
			out[i] = o
		}
		return out, nil
	}
	args, err := refs(ph.Args, ph.Func.Args)
	if err != nil {
		return nil, err
	}
	results, err := refs(ph.Results, ph.Func.Results)
	if err != nil {
		return nil, err
	}
	if err := f.function(ph.Func, 0, "", args, results); err != nil {
		return nil, err
	}
	return f.nodes, nil
}

// function appends the operations of fn, whose frame starts at base; arguments and results lie where the caller says. path
// is that of the call.
func (f *flattener) function(fn *ir.Func, base int, path string, args, results []operand) error {
	frame := f.frames[fn]
	if frame == nil || len(frame.Offsets) != fn.NumValues() || len(frame.Calls) != fn.NumOps() {
		return fmt.Errorf("cpu device: the plan has no frame for %s", fn.Name)
	}
	root := f.roots[fn]
	if root == nil {
		root = fn.Roots()
		f.roots[fn] = root
	}
	values := make([]operand, fn.NumValues()) // by root
	for i, a := range fn.Args {
		values[a] = args[i]
	}
	for _, v := range fn.ParamReads() {
		o, ok := f.params[fn.Value(v).Param]
		if !ok {
			return fmt.Errorf("cpu device: %s reads %s, which the stage does not keep", fn.Name, fn.Value(v).Param.Name)
		}
		values[v] = o
	}
	for i, r := range fn.Results {
		if v := root[r]; values[v].id == 0 {
			values[v] = results[i]
		}
	}
	of := func(v ir.ValueID) operand {
		o := values[root[v]]
		o.typ = fn.TypeOf(v)
		return o
	}
	for _, op := range fn.Ops {
		for _, r := range op.Results {
			if root[r] != r || values[r].id != 0 {
				continue
			}
			f.nextID++
			p := place{f.m.scratch(), base + frame.Offsets[r], fn.TypeOf(r).Bytes()}
			if frame.Offsets[r] < 0 || p.offset%alignment != 0 {
				return fmt.Errorf("cpu device: a value of `%s` in %s has no place", op.Kind, fn.Name)
			}
			if err := within(p, f.m.layout.Scratch, "a value of "+fn.Name); err != nil {
				return err
			}
			values[r] = operand{p, f.nextID, fn.TypeOf(r), plan.Rows}
		}
		in := make([]operand, len(op.Args))
		for i, a := range op.Args {
			in[i] = of(a)
		}
		inner := ""
		if f.m.trace != nil {
			if inner = fn.Path(op); inner == "network" {
				inner = "" // the root of all paths
			}
			inner = ir.JoinPath(path, inner)
		}
		if op.Callee != nil {
			out := make([]operand, len(op.Results))
			for i, r := range op.Results {
				out[i] = of(r)
			}
			if err := f.function(op.Callee, base+frame.Calls[op.ID], inner, in, out); err != nil {
				return err
			}
			continue
		}
		if err := checkNode(op, in); err != nil {
			return err
		}
		if op.Kind.Info().View {
			continue
		}
		n := node{op: op, path: inner, in: in}
		if len(op.Results) > 0 {
			n.out = of(op.Results[0])
			if !supported(n.out.typ.DType) {
				return fmt.Errorf("cpu device: `%s` has the type %s; elements are f32, i32 or bool", op.Kind, n.out.typ)
			}
		}
		f.nodes = append(f.nodes, n)
	}
	return nil
}

// checkNode refuses operands that no kernel reads.
func checkNode(op *ir.Op, in []operand) error {
	for i, o := range in {
		if !supported(o.typ.DType) {
			return fmt.Errorf("cpu device: `%s` of type %s; elements are f32, i32 or bool", op.Kind, o.typ)
		}
		if o.form == plan.Rows || op.Kind == ir.MatMul && i == 1 || op.Kind.Info().InPlace && i == 0 {
			continue
		}
		return fmt.Errorf("cpu device: `%s` reads a matrix that the plan keeps packed", op.Kind)
	}
	return nil
}
