package frontend

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// instance is a cell made from a class: its members, and one IR function per
// different way of calling it.
type instance struct {
	class     *class
	at        diag.Range // the call that made it
	from      diag.Range // env.from inside the cell
	args      map[string]value
	members   map[string]value
	order     []string // members as declared
	memberAt  map[string]diag.Range
	self      *cellList // what self[i] = ... fills
	construct *syntax.Construct

	// Set when the cell gets its place in the tree.
	placed bool
	parent *instance
	name   string // below the parent: layer1, block.3

	placing
	applied  bool
	compiled map[string]*compiled
	likeness *likeness // see twin.go
	busy     bool      // its construct is under way
}

// storage is a parameter of a cell.
type storage struct {
	param *ir.Param // named and added to the module when the tree is complete
	owner *instance
	name  string // below the owner
	placing
	read bool

	index  int          // place among the parameters and buffers of the block
	buffer bool         // declared with `buffer`: written by the construct, not trained
	state  *plan.Buffer // of a buffer outside of the optimizer
	at     diag.Range
}

// path is the name of the cell below the network.
func (i *instance) path() string {
	if i.parent == nil {
		return i.name
	}
	if p := i.parent.path(); p != "" && i.name != "" {
		return p + "." + i.name
	} else if p != "" {
		return p
	}
	return i.name
}

// instantiate makes a cell: arguments are bound and the member list runs.
func (v *env) instantiate(c *class, args []argument, at diag.Range) value {
	name := c.decl.Name.Text
	if slices.Contains(v.active, c.decl) {
		return v.fail(diag.Errorf(diag.CellRecursion, at, "the cell %s contains itself", name).
			WithNote(c.decl.Name.At, "declared here").WithRepair("repeat cells with a loop: for i in 0..n { block[i] = ... }"))
	}
	if v.instances++; v.instances > maxInstances {
		if !v.halted {
			v.halted = true
			v.errorf(diag.TooManyCells, at, "the program makes more than %d cells", maxInstances)
		}
		return poison{}
	}
	inst := &instance{class: c, at: at, from: v.origin(at), placing: nowhere, members: map[string]value{},
		memberAt: map[string]diag.Range{}, compiled: map[string]*compiled{}}
	inside := &env{elaborator: v.elaborator, file: c.file, inst: inst, from: v.origin(at)}
	inst.args = map[string]value{}
	bound, ok := v.bind("cell "+name, c.decl.Params, args, at)
	if !ok {
		return poison{}
	}
	for i, p := range c.decl.Params {
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
		inst.args[p.Name.Text] = x
	}
	before := len(v.list)
	v.active = append(v.active, c.decl)
	inside.members(c.decl.Members)
	v.active = v.active[:len(v.active)-1]
	if inst.construct == nil && !v.halted && !v.list[before:].HasErrors() {
		inside.errorf(diag.BadReturn, c.decl.Name.At, "the cell %s has no construct", name)
	}
	for _, m := range inst.order {
		if l, ok := inst.members[m].(*cellList); ok {
			inside.checkList(m, l)
		}
	}
	if inst.self != nil {
		inside.checkList("self", inst.self)
	}
	for _, p := range c.decl.Params { // new cells given as arguments become members
		if x := inst.args[p.Name.Text]; inside.place(x, p.Name.Text) {
			inside.define(p.Name, x)
		}
	}
	if v.list[before:].HasErrors() {
		return poison{}
	}
	return inst
}

// checkList reports gaps in the indices of a list of cells.
func (v *env) checkList(name string, l *cellList) {
	if i := slices.Index(l.items, nil); i >= 0 {
		v.errorf(diag.BadIndex, l.at, "the list `%s` goes up to index %d but has no cell at index %d", name, len(l.items)-1, i)
	}
}

// members runs a member list.
func (v *env) members(list []syntax.Stmt) {
	for _, s := range list {
		if v.halted {
			return
		}
		switch s := s.(type) {
		case *syntax.Storage:
			v.storage(s)
		case *syntax.Construct:
			if v.inst.construct != nil {
				v.fail(diag.Errorf(diag.DuplicateName, s.At, "a cell has one construct").WithNote(v.inst.construct.At, "the first is here"))
				continue
			}
			v.inst.construct = s
		case *syntax.For:
			v.loop(s, func(names map[string]value) {
				inner := *v
				inner.names = names
				inner.members(s.Body)
			})
			v.emptyLists(s.Body)
		case *syntax.If:
			if yes, ok := v.condition(s.Cond); ok && yes {
				v.members(s.Then)
			} else if ok {
				v.members(s.Else)
			}
		case *syntax.Assign:
			v.memberAssign(s)
		}
	}
}

// loop runs body once per item, with the loop variables added to the names.
func (v *env) loop(s *syntax.For, body func(names map[string]value)) {
	over := v.eval(s.In)
	if isPoison(over) {
		return
	}
	items, ok := sequence(over)
	if !ok {
		d := diag.Errorf(diag.WrongType, s.In.Range(), "a loop goes through a range or a sequence, not %s", over.kind())
		if n, isNumber := over.(number); isNumber {
			d = d.WithRepair("0..%s", n)
		}
		v.fail(d)
		return
	}
	for _, item := range items {
		if !v.step(s.At) {
			return
		}
		names := make(map[string]value, len(v.names)+len(s.Vars))
		for n, x := range v.names {
			names[n] = x
		}
		parts := []value{item}
		if len(s.Vars) > 1 {
			if parts, ok = sequence(item); !ok || len(parts) != len(s.Vars) {
				v.errorf(diag.WrongType, s.Vars[0].At, "%d loop variables for %s", len(s.Vars), item.kind())
				return
			}
		}
		for i, id := range s.Vars {
			names[id.Text] = parts[i]
		}
		before := len(v.list)
		body(names)
		if v.list[before:].HasErrors() {
			return // the next rounds would report the same
		}
	}
}

// condition evaluates a compile-time condition.
func (v *env) condition(x syntax.Expr) (yes, ok bool) {
	switch c := v.eval(x).(type) {
	case boolean:
		return bool(c), true
	case poison:
		return false, false
	case tensor, *storage:
		v.fail(diag.Errorf(diag.TensorCondition, x.Range(), "a condition cannot depend on tensor values").
			WithRepair("choose element by element with where(condition, a, b)"))
	default:
		v.errorf(diag.WrongType, x.Range(), "a condition is true or false, not %s", c.kind())
	}
	return false, false
}

// define adds a member.
func (v *env) define(id syntax.Ident, x value) {
	if v.names[id.Text] != nil {
		v.errorf(diag.ReadOnlyName, id.At, "%q is a loop variable and cannot be assigned", id.Text)
		return
	}
	if first, ok := v.inst.memberAt[id.Text]; ok {
		v.fail(diag.Errorf(diag.DuplicateName, id.At, "the member %q is defined twice", id.Text).WithNote(first, "first defined here"))
		return
	}
	v.inst.members[id.Text] = x
	v.inst.memberAt[id.Text] = id.At
	v.inst.order = append(v.inst.order, id.Text)
}

func (v *env) memberAssign(s *syntax.Assign) {
	if len(s.Targets) == 0 {
		v.errorf(diag.DroppedResult, s.At, "a member needs a name: name = value")
		return
	}
	if len(s.Targets) != 1 || len(s.Values) != 1 {
		v.errorf(diag.BadSyntax, s.At, "members are defined one at a time")
		return
	}
	x := v.eval(s.Values[0])
	if isPoison(x) {
		// Define the name all the same, so that its uses report nothing.
		if n, ok := s.Targets[0].(*syntax.Name); ok {
			v.define(syntax.Ident{At: n.At, Text: n.Text}, x)
		}
		return
	}
	switch t := s.Targets[0].(type) {
	case *syntax.Name:
		v.place(x, t.Text)
		v.define(syntax.Ident{At: t.At, Text: t.Text}, x)
	case *syntax.Index:
		v.listAssign(t, x, s.Values[0].Range())
	default:
		v.errorf(diag.ReadOnlyName, s.At, "a member is assigned as name = value or name[i] = value")
	}
}

// listAssign is name[i] = cell, or self[i] = cell.
func (v *env) listAssign(t *syntax.Index, x value, at diag.Range) {
	n, ok := t.X.(*syntax.Name)
	if !ok || len(t.Items) != 1 {
		v.errorf(diag.ReadOnlyName, t.At, "a list of cells is filled as name[i] = value")
		return
	}
	i, ok := v.whole(t.Items[0], "an index")
	if !ok {
		return
	}
	if _, ok := x.(*instance); !ok {
		v.errorf(diag.WrongType, at, "a list filled by index holds cells, not %s", x.kind())
		return
	}
	l := v.listOf(n, t.At)
	switch {
	case l == nil:
		v.errorf(diag.DuplicateName, n.At, "%q is not a list of cells", n.Text)
		return
	case n.Text == "self":
		v.place(x, strconv.Itoa(i))
	default:
		v.place(x, fmt.Sprintf("%s.%d", n.Text, i))
	}
	switch {
	case i < 0 || i >= maxInstances:
		v.errorf(diag.BadIndex, t.At, "index %d of `%s` is outside 0..%d", i, n.Text, maxInstances)
		return
	case i < len(l.items) && l.items[i] != nil:
		v.errorf(diag.BadIndex, t.At, "index %d of `%s` is taken", i, n.Text)
		return
	}
	for len(l.items) <= i {
		l.items = append(l.items, nil)
	}
	l.items[i] = x
}

// listOf is the list that name[i] = ... fills, which the first one makes; nil if the name is something else.
func (v *env) listOf(n *syntax.Name, at diag.Range) *cellList {
	if n.Text == "self" {
		if v.inst.self == nil {
			v.inst.self = &cellList{at: at}
		}
		return v.inst.self
	}
	if v.inst.members[n.Text] == nil {
		v.define(syntax.Ident{At: n.At, Text: n.Text}, &cellList{at: at})
	}
	l, _ := v.inst.members[n.Text].(*cellList)
	return l
}

// emptyLists makes the lists that the body of a loop fills, which may have run for no element at all.
func (v *env) emptyLists(body []syntax.Stmt) {
	for _, s := range body {
		switch s := s.(type) {
		case *syntax.For:
			v.emptyLists(s.Body)
		case *syntax.Assign:
			for _, t := range s.Targets {
				if x, ok := t.(*syntax.Index); ok {
					if n, ok := x.X.(*syntax.Name); ok {
						v.listOf(n, x.At)
					}
				}
			}
		}
	}
}

// place gives new cells inside x their path below the cell of v, and reports
// whether there was one.
func (v *env) place(x value, name string) bool {
	placed := false
	switch x := x.(type) {
	case *instance:
		if !x.placed {
			x.placed, x.parent, x.name = true, v.inst, name
			placed = true
		}
	case list:
		for i, item := range x.items {
			placed = v.place(item, fmt.Sprintf("%s.%d", name, i)) || placed
		}
	}
	return placed
}

// walk calls visit for the cell and every cell below it, and declare for every
// parameter, in the order of the member lists. What several members name comes
// once, with the first of them.
func (i *instance) walk(visit func(*instance), declare func(*storage)) {
	visit(i)
	seen := map[value]bool{}
	var below func(x value)
	below = func(x value) {
		switch x := x.(type) {
		case *storage:
			if x.owner == i && !seen[x] {
				seen[x] = true
				declare(x)
			}
		case *instance:
			if x.parent == i && !seen[x] {
				seen[x] = true
				x.walk(visit, declare)
			}
		case list:
			for _, item := range x.items {
				below(item)
			}
		case *cellList:
			for _, item := range x.sequence() {
				below(item)
			}
		}
	}
	for _, m := range i.order {
		below(i.members[m])
	}
	if i.self != nil {
		below(i.self)
	}
}

// buffer gives the member of that name if it is a buffer.
func (i *instance) buffer(name string) (*storage, bool) {
	if i == nil {
		return nil, false
	}
	p, ok := i.members[name].(*storage)
	return p, ok && p.buffer && p.owner == i
}

// storage declares a parameter; it gets its path when the tree is complete.
func (v *env) storage(s *syntax.Storage) {
	p := &storage{owner: v.inst, name: s.Name.Text, placing: nowhere, buffer: s.Buffer, at: s.At}
	init := s.Default
	if init == nil {
		d := diag.Errorf(diag.NeedInitializer, s.Name.At, "the parameter %q needs an initialiser", s.Name.Text).
			WithRepair("= zeros(), ones(), constant(c), normal(std), uniform(s), he_uniform(a = 0) or xavier_uniform()")
		if s.Buffer {
			d = diag.Errorf(diag.NeedInitializer, s.Name.At, "the buffer %q needs an initialiser", s.Name.Text).WithRepair(firstValues)
		}
		v.fail(d)
		return
	}
	if m, ok := init.(*syntax.Marked); ok {
		if s.Buffer {
			v.fail(diag.Errorf(diag.MisplacedMark, m.Marks[0].At, "a buffer is on the stage of its cell and takes no marks").WithRepair("mark the cell"))
			return
		}
		init = m.X
		v.once(m.Marks)
		for _, mark := range m.Marks {
			v.placeMark(mark, &p.placing)
		}
	}
	typ, ok := v.tensorType(s.Type, s.Name.At)
	if !ok {
		v.define(s.Name, poison{})
		return
	}
	x := v.eval(init)
	i, ok := x.(initializer)
	if !ok {
		if !isPoison(x) {
			what := "parameter"
			if s.Buffer {
				what = "buffer"
			}
			d := diag.Errorf(diag.WrongType, init.Range(), "a %s starts with an initialiser, not %s", what, x.kind())
			if n, isNumber := x.(number); isNumber {
				d = d.WithRepair("constant(%s)", n)
			}
			v.fail(d)
		}
		v.define(s.Name, poison{})
		return
	}
	if s.Buffer {
		p.param = &ir.Param{Type: typ, Init: i.Init, Pos: v.origin(s.Name.At).Pos}
		v.firstOf(p, s, init.Range())
		v.define(s.Name, p)
		return
	}
	if !typ.DType.IsFloat() {
		v.errorf(diag.WrongType, s.Type.At, "a parameter is of a floating-point type, not %s", typ.DType)
		typ.DType = ir.F32
	}
	if (i.Kind == "he_uniform" || i.Kind == "xavier_uniform") && typ.Rank() < 2 {
		v.errorf(diag.WrongType, init.Range(), "%s wants a parameter with at least two axes, not %s", i.Kind, typ)
	}
	p.param = &ir.Param{Type: typ, Init: i.Init, Pos: v.origin(s.Name.At).Pos}
	v.define(s.Name, p)
}

// tensorType evaluates a written tensor type.
func (v *env) tensorType(t *syntax.Type, at diag.Range) (ir.Type, bool) {
	if t == nil {
		v.fail(diag.Errorf(diag.WrongType, at, "the type is missing").WithRepair("name: f32[rows, columns]"))
		return ir.Type{}, false
	}
	d, ok := ir.ParseDType(t.Name)
	if !ok {
		v.fail(diag.Errorf(diag.UnknownName, t.At, "unknown element type %q", t.Name).
			WithRepair("one of f32, f64, f16, bf16, i32, i64, u8, bool"))
		return ir.Type{}, false
	}
	shape, elements := make([]int, len(t.Shape)), 1
	for i, x := range t.Shape {
		n, ok := v.whole(x, "a dimension")
		if !ok {
			return ir.Type{}, false
		}
		if n < 1 || elements > maxElements/n {
			v.errorf(diag.BadShape, x.Range(), "a dimension of %d is not possible here", n)
			return ir.Type{}, false
		}
		shape[i] = n
		elements *= n
	}
	return ir.Tensor(d, shape...), true
}
