package frontend

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/threefry"
)

// frame is a construct under elaboration: the function that it becomes and the
// values of its names.
type frame struct {
	fn     *ir.Func
	inst   *instance // nil in the entry, which reads parameters instead of taking them
	params map[*storage]ir.ValueID
	passed []*storage // parameters that the function takes, in declaration order at the end
	locals map[string]value
	sites  []string       // random ops inside, by path: the function takes a key for each, behind its parameters
	keys   []ir.ValueID   // of the sites
	calls  map[string]int // entry: calls of each random op so far

	current map[*storage]ir.ValueID // buffers: the value that a reader gets now
	copies  map[*storage]ir.ValueID // buffers, in training: see env.buffer
	written []*storage              // buffers that were assigned, here or in a call

	element  bool // an optimizer's: its buffers are locals
	returned bool
	result   value
	names    []string // of the returned values, "" where the expression is not a name
}

// compiled is a construct elaborated for one list of arguments.
type compiled struct {
	fn     *ir.Func
	passed []*storage
	sites  []string
	result value // its tensors stand for the function's results, in order
	// Buffers that the construct assigns: their new values are further results.
	written []*storage
	names   []string
}

// param gives the frame's value of a parameter, or that of a buffer before the construct.
func (f *frame) param(p *storage) ir.ValueID {
	if id, ok := f.params[p]; ok {
		return id
	}
	p.read = true
	var id ir.ValueID
	switch {
	case f.inst == nil && !p.buffer:
		id = f.fn.ReadParam(p.param)
	case f.inst == nil:
		id = f.fn.AddArg(p.param.Name, p.param.Type)
		f.passed = append(f.passed, p)
	default:
		id = f.fn.AddArg(strings.TrimPrefix(p.param.Name, f.inst.path()+"."), p.param.Type)
		f.passed = append(f.passed, p)
	}
	f.params[p] = id
	return id
}

// key gives the random op at a path the number that its random numbers depend on: the hash of its canonical name, which
// is the path with the index of the call. Only the entry knows that index; cells take keys as arguments, so that equal
// cells stay equal.
func (f *frame) key(path string) value {
	scalar := ir.Tensor(ir.I32)
	if f.inst != nil {
		id := f.fn.AddArg("instance", scalar)
		f.sites, f.keys = append(f.sites, path), append(f.keys, id)
		return tensor{id, scalar}
	}
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	hash := threefry.Hash(fmt.Sprintf("%s#%d", path, f.calls[path]))
	f.calls[path]++
	attrs := ir.Attrs{ir.DTypeAttr("dtype", ir.I32), ir.IntsAttr("shape", []int{}), ir.FloatAttr("value", float64(int32(hash)))}
	return tensor{f.fn.MustEmit(ir.Constant, nil, attrs, ir.Unmarked(ir.Pos{})), scalar}
}

// opPath is the path of an op in the cell under elaboration.
func (v *env) opPath(op string) string {
	if v.inst == nil || v.inst.path() == "" {
		return op
	}
	return v.inst.path() + "." + op
}

// call evaluates a call of a cell type, a cell or a function.
func (v *env) call(x *syntax.Call) value {
	fn := v.eval(x.Fn)
	if isPoison(fn) {
		v.arguments(x.Args) // for their own faults
		return fn
	}
	if f, ok := fn.(function); ok && f.raw != nil {
		return f.raw(v, x)
	}
	args, ok := v.arguments(x.Args)
	if !ok {
		return poison{}
	}
	switch fn := fn.(type) {
	case *class:
		if v.frame != nil {
			return v.fail(diag.Errorf(diag.NotCallable, x.At, "a cell is made in the member list, not inside a construct").
				WithRepair("name = %s(...) above the construct, then name(x)", fn.decl.Name.Text))
		}
		return v.instantiate(fn, args, x.At)
	case *instance:
		if v.frame == nil {
			return v.errorf(diag.NotCallable, x.At, "a cell is applied inside a construct only")
		}
		return v.apply(fn, args, x.At)
	case function:
		bound, ok := v.bindNames("function "+fn.name, fn.params, fn.needed(), args, x.At)
		if !ok {
			return poison{}
		}
		return fn.run(v, bound, x.At)
	}
	return v.errorf(diag.NotCallable, x.Fn.Range(), "%s cannot be called", fn.kind())
}

// apply calls the construct of a cell: it is elaborated once per different
// list of arguments, and called with its tensors, then its parameters.
func (v *env) apply(inst *instance, args []argument, at diag.Range) value {
	name := inst.class.decl.Name.Text
	if inst.busy {
		return v.errorf(diag.CellRecursion, at, "the construct of %s calls itself", name)
	}
	inst.applied = true
	inside := &env{elaborator: v.elaborator, file: inst.class.file, inst: inst, from: v.origin(at)}
	params := inst.construct.Params
	bound, ok := v.bind("construct of "+name, params, args, at)
	if !ok {
		return poison{}
	}
	var signature strings.Builder
	fmt.Fprintf(&signature, "%t", v.training)
	values := make([]value, len(params))
	for i, p := range params {
		x, where := bound[i].value, bound[i].at
		if x == nil {
			x, where = inside.eval(p.Default), p.Default.Range()
		}
		if p.Type != nil {
			x = inside.coerce(x, p.Type, where, fmt.Sprintf("the argument `%s` of %s", p.Name.Text, name))
		}
		if isPoison(x) {
			return x
		}
		values[i] = x
		key(&signature, x)
	}
	c, way := inst.compiled[signature.String()], siteOf(inst, signature.String(), inside.from)
	if c == nil {
		c = v.twin(inst, way)
	}
	if c == nil {
		inst.busy = true
		c = inside.compile(inst, values, at)
		inst.busy = false
		if c == nil {
			return poison{}
		}
		v.twins[way] = append(v.twins[way], elaborated{c, inst})
	}
	if inst.compiled[signature.String()] == nil {
		inst.compiled[signature.String()] = c
		v.noteKey(inst, c.fn, signature.String())
	}
	var operands []ir.ValueID
	for _, x := range values {
		for _, t := range tensors(nil, x) {
			operands = append(operands, t.id)
		}
	}
	for _, p := range c.passed {
		if p.buffer {
			operands = append(operands, v.frame.value(p))
		} else {
			operands = append(operands, v.frame.param(p))
		}
	}
	for _, path := range c.sites {
		operands = append(operands, v.frame.key(path).(tensor).id)
	}
	where := ir.Unmarked(v.origin(at).Pos)
	if where.Instance = inst.name; inst.name == "" {
		where.Instance = "network" // the one cell without a name: paths start below it
	}
	if !v.unsplit {
		where.Stage, where.Segment = inst.stage, inst.segment
	}
	results := v.frame.fn.Call(c.fn, operands, where)
	for i, p := range c.written {
		v.frame.set(p, results[len(results)-len(c.written)+i])
	}
	i := 0
	return replace(c.result, func() tensor {
		i++
		return tensor{results[i-1], v.frame.fn.TypeOf(results[i-1])}
	})
}

// newFunc adds a function. Names are numbered here, so that finding a free one
// takes the same time for each.
func (e *elaborator) newFunc(name string) *ir.Func {
	n := e.funcs[name]
	e.funcs[name]++
	if n > 0 {
		name = fmt.Sprintf("%s.%d", name, n)
	}
	return e.module.NewFunc(name)
}

// compile elaborates the construct of a cell for these arguments.
func (v *env) compile(inst *instance, values []value, at diag.Range) *compiled {
	f := &frame{fn: v.newFunc(inst.class.decl.Name.Text), inst: inst, params: map[*storage]ir.ValueID{}, locals: map[string]value{}}
	f.fn.LazyInline, f.fn.Front = inst.class.lazy.on && !inst.class.lazy.front, inst.class.lazy.front
	v.frame = f
	for i, p := range inst.construct.Params {
		if b, ok := inst.buffer(p.Name.Text); ok {
			v.fail(diag.Errorf(diag.DuplicateName, p.Name.At, "the argument %q of the construct hides the buffer of that name", p.Name.Text).
				WithNote(b.at, "the buffer").WithRepair("give one of them another name"))
			return nil
		}
		f.locals[p.Name.Text] = replace(values[i], nextArg(f.fn, p.Name.Text, values[i]))
	}
	arguments := slices.Clone(f.fn.Args)
	before := len(v.list)
	v.body(inst.construct.Body)
	if v.list[before:].HasErrors() || v.halted {
		return nil
	}
	if !f.returned {
		f.result = none{}
	}
	where := v.origin(at).Pos
	f.finish(append(tensors(nil, f.result), f.newValues(where)...), where)
	// Parameters follow the tensors in declaration order, whatever the order
	// of their first use.
	slices.SortStableFunc(f.passed, func(a, b *storage) int { return a.index - b.index })
	for _, p := range f.passed {
		arguments = append(arguments, f.params[p])
	}
	f.arrange(append(arguments, f.keys...))
	return &compiled{f.fn, f.passed, f.sites, f.result, f.written, f.names}
}

// arrange puts the arguments of the function in order.
func (f *frame) arrange(arguments []ir.ValueID) {
	f.fn.Args = arguments
	for i, a := range arguments {
		f.fn.Value(a).Index = i
	}
}

// finish sets the results of the function. An argument as a result, or one
// value twice, would be two names for one buffer: those get an identity. A buffer of a cell, which does not keep its value,
// is copied.
func (f *frame) finish(results []tensor, at ir.Pos) {
	var out []ir.ValueID
	kept := f.kept()
	for _, t := range results {
		if kept != nil && kept[t.id] {
			t.id = f.copy(t.id, at)
		} else if f.fn.Value(t.id).Op == nil || slices.Contains(out, t.id) {
			t.id = f.fn.MustEmit(ir.Identity, []ir.ValueID{t.id}, nil, ir.Unmarked(at))
		}
		out = append(out, t.id)
	}
	f.fn.Return(out...)
}

// nextArg adds an argument to fn for each tensor of x in turn.
func nextArg(fn *ir.Func, name string, x value) func() tensor {
	each, i := tensors(nil, x), 0
	return func() tensor {
		t := each[i]
		i++
		return tensor{fn.AddArg(name, t.typ), t.typ}
	}
}

// body runs the statements of a construct.
func (v *env) body(statements []syntax.Stmt) {
	for _, s := range statements {
		if v.halted {
			return
		}
		if v.frame.returned {
			v.errorf(diag.BadReturn, statementRange(s), "nothing may follow a return")
			return
		}
		switch s := s.(type) {
		case *syntax.Return:
			v.frame.returned = true
			v.frame.names = make([]string, len(s.Values))
			for i, x := range s.Values {
				if n, ok := x.(*syntax.Name); ok {
					v.frame.names[i] = n.Text
				}
			}
			if len(s.Values) == 1 {
				v.frame.result = v.result(s.Values[0])
				continue
			}
			items := make([]value, len(s.Values))
			for i, x := range s.Values {
				items[i] = v.result(x)
			}
			v.frame.result = list{items}
		case *syntax.For:
			v.loop(s, func(names map[string]value) {
				inner := *v
				inner.names = names
				if inner.body(s.Body); v.frame.returned {
					v.errorf(diag.BadReturn, s.At, "a loop cannot return: the last statement of the construct does")
				}
			})
		case *syntax.If:
			if yes, ok := v.condition(s.Cond); ok && yes {
				v.body(s.Then)
			} else if ok {
				v.body(s.Else)
			}
		case *syntax.Assign:
			v.assign(s)
		}
	}
}

func statementRange(s syntax.Stmt) diag.Range {
	switch s := s.(type) {
	case *syntax.Assign:
		return s.At
	case *syntax.Return:
		return s.At
	case *syntax.For:
		return s.At
	case *syntax.If:
		return s.At
	}
	return diag.Range{}
}

// result evaluates a returned value. A parameter stays a parameter: its
// identity passes through.
func (v *env) result(x syntax.Expr) value {
	y := v.eval(x)
	if _, ok := y.(none); ok {
		return v.errorf(diag.BadReturn, x.Range(), "the returned expression has no value")
	}
	return y
}

// assign gives locals their values; without targets it keeps effects only.
func (v *env) assign(s *syntax.Assign) {
	if len(s.Targets) == 0 {
		for _, x := range s.Values {
			if y := v.eval(x); !isPoison(y) {
				if _, ok := y.(none); !ok {
					v.fail(diag.Errorf(diag.DroppedResult, x.Range(), "the result is dropped: %s", y.kind()).WithRepair("name = ..., or leave the line out"))
				}
			}
		}
		return
	}
	values := make([]value, len(s.Values))
	for i, x := range s.Values {
		values[i] = v.eval(x)
		if _, ok := values[i].(none); ok {
			if n, isName := x.(*syntax.Name); !isName || n.Text != "none" {
				values[i] = v.errorf(diag.DroppedResult, x.Range(), "the call has no result to assign")
			}
		}
	}
	if len(s.Targets) > 1 && len(values) == 1 && !isPoison(values[0]) {
		items, ok := sequence(values[0])
		if !ok {
			v.errorf(diag.WrongType, s.Values[0].Range(), "%d names for %s", len(s.Targets), values[0].kind())
			values = nil
		} else {
			values = items
		}
	}
	if len(values) != len(s.Targets) && len(values) > 0 && !isPoison(values[0]) {
		v.errorf(diag.WrongType, s.At, "%d names for %d values", len(s.Targets), len(values))
		values = nil
	}
	for i, t := range s.Targets {
		var x value = poison{}
		if i < len(values) {
			x = values[i]
		}
		v.assignTo(t, x)
	}
}

func (v *env) assignTo(t syntax.Expr, x value) {
	switch t := t.(type) {
	case *syntax.Name:
		if v.names[t.Text] != nil {
			v.errorf(diag.ReadOnlyName, t.At, "%q is a loop variable and cannot be assigned", t.Text)
			return
		}
		if p, ok := v.inst.buffer(t.Text); ok {
			v.update(p, t, x)
			return
		}
		if v.inst != nil && v.inst.members[t.Text] != nil {
			v.fail(diag.Errorf(diag.ReadOnlyName, t.At, "%q is a member and cannot be assigned in a construct", t.Text).
				WithNote(v.inst.memberAt[t.Text], "defined here"))
			return
		}
		v.frame.locals[t.Text] = x
	case *syntax.List:
		items, ok := sequence(x)
		if isPoison(x) || !ok || len(items) != len(t.Items) {
			if !isPoison(x) {
				v.errorf(diag.WrongType, t.At, "%d names for %s", len(t.Items), x.kind())
			}
			items = make([]value, len(t.Items))
			for i := range items {
				items[i] = poison{}
			}
		}
		for i, target := range t.Items {
			v.assignTo(target, items[i])
		}
	default:
		v.errorf(diag.ReadOnlyName, t.Range(), "a construct assigns names only")
	}
}

// emit appends an op on tensors and parameters and gives its result.
func (v *env) emit(kind ir.Kind, operands []value, attrs ir.Attrs, at diag.Range) value {
	if v.frame == nil {
		return v.errorf(diag.NotCallable, at, "`%s` works on tensors inside a construct", kind)
	}
	where := ir.Unmarked(v.origin(at).Pos)
	ids := make([]ir.ValueID, len(operands))
	for i, x := range operands {
		switch x := x.(type) {
		case tensor:
			ids[i] = x.id
		case *storage:
			ids[i] = v.frame.param(x)
			if !v.unsplit {
				where.Stage, where.Segment = max(where.Stage, x.stage), max(where.Segment, x.segment)
			}
		default:
			if isPoison(x) {
				return x
			}
			return v.errorf(diag.WrongType, at, "operand %d of `%s` is a tensor, not %s", i+1, kind, x.kind())
		}
	}
	results, err := v.frame.fn.Emit(kind, ids, attrs, where)
	if err != nil {
		d := diag.Errorf(diag.BadOperands, at, "`%s`: %v", kind, err)
		if v.inst != nil && v.inst.path() != "" {
			d = d.WithNote(v.inst.at, "in the cell %s", v.inst.path())
		}
		return v.fail(d)
	}
	if len(results) == 0 {
		return none{}
	}
	t := v.frame.fn.TypeOf(results[0])
	if t.Elems() > maxElements {
		return v.errorf(diag.BadShape, at, "a tensor %s is too large", t)
	}
	return tensor{results[0], t}
}

// constantOf makes a scalar of the element type d.
func (v *env) constantOf(n number, d ir.DType, at diag.Range) value {
	if !d.IsFloat() {
		if _, ok := n.int(); !ok {
			return v.errorf(diag.NotWhole, at, "%s cannot be of type %s", n, d)
		}
	}
	return v.emit(ir.Constant, nil, ir.Attrs{ir.DTypeAttr("dtype", d), ir.IntsAttr("shape", []int{}), ir.FloatAttr("value", n.float())}, at)
}

var binaryOps = map[string]ir.Kind{
	"+": ir.Add, "-": ir.Sub, "*": ir.Mul, "/": ir.Div,
	"==": ir.Equal, "<": ir.Less, "<=": ir.LessEqual, ">": ir.Less, ">=": ir.LessEqual,
}

// tensorBinary is an operator with a tensor on at least one side; a number on
// the other side takes its element type.
func (v *env) tensorBinary(op string, a, b value, at diag.Range) value {
	kind, ok := binaryOps[op]
	if !ok {
		return v.errorf(diag.NotSupported, at, "`%s` is not an op on tensors", op)
	}
	for i, side := range []*value{&a, &b} {
		n, isNumber := (*side).(number)
		if !isNumber {
			continue
		}
		other := b
		if i == 1 {
			other = a
		}
		t, _ := typeOf(other)
		if op == "*" && t.DType.IsFloat() {
			return v.emit(ir.Scale, []value{other}, ir.Attrs{ir.FloatAttr("factor", n.float())}, at)
		}
		if *side = v.constantOf(n, t.DType, at); isPoison(*side) {
			return poison{}
		}
	}
	if op == ">" || op == ">=" {
		a, b = b, a
	}
	for _, x := range []value{a, b} {
		if _, ok := typeOf(x); !ok {
			return v.errorf(diag.WrongType, at, "`%s` does not work on a tensor and %s", op, x.kind())
		}
	}
	return v.emit(kind, []value{a, b}, nil, at)
}
