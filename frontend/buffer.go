package frontend

import (
	"slices"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Buffers are values, not places: a function of a cell takes those that it reads as arguments and returns those that it
// assigns as results. Only the block's own function stands for loading and storing. So nothing behind the frontend meets
// a hidden effect.

// firstValues is the repair for a buffer without a first value.
const firstValues = "a buffer starts with zeros(), ones() or constant(c)"

// firstOf checks the type and the first value of a buffer. Those of an optimizer have rules of their own.
func (v *env) firstOf(p *storage, s *syntax.Storage, at diag.Range) {
	if v.buffers {
		return
	}
	typ := p.param.Type
	first, constant := firstValue(p.param.Init)
	switch {
	case !constant:
		v.fail(diag.Errorf(diag.WrongType, at, "%s gives every element a value of its own; a buffer starts with one", p.param.Init.Kind).WithRepair(firstValues))
		return
	case typ.DType != ir.F32 && typ.DType != ir.I32 && typ.DType != ir.Bool:
		v.errorf(diag.WrongType, s.Type.At, "a buffer is of type f32, i32 or bool, not %s", typ.DType)
		return
	case !plan.FirstFits(typ.DType, first):
		v.errorf(diag.BadNumber, at, "%v is no value of type %s", first, typ.DType)
		return
	}
	p.state = &plan.Buffer{Type: typ, First: first, Pos: p.param.Pos}
}

// value gives a buffer as a call takes it: the argument of the function until it is assigned.
func (f *frame) value(p *storage) ir.ValueID {
	id, ok := f.current[p]
	if !ok {
		id = f.param(p)
		f.put(p, id)
	}
	return id
}

func (f *frame) put(p *storage, id ir.ValueID) {
	if f.current == nil {
		f.current = map[*storage]ir.ValueID{}
	}
	f.current[p] = id
}

// set gives a buffer its new value.
func (f *frame) set(p *storage, id ir.ValueID) {
	f.put(p, id)
	if !slices.Contains(f.written, p) {
		f.written = append(f.written, p)
	}
}

// buffer reads a buffer. In training the value from before the micro-batch is copied when it is first read: the buffer
// has its next value when the gradient of this micro-batch is computed.
func (v *env) buffer(p *storage, at diag.Range) value {
	f := v.frame
	if f == nil {
		return v.fail(diag.Errorf(diag.WrongType, at, "a buffer belongs to the cell that declares it and has a value inside a construct only").
			WithRepair("read it in the construct and pass the tensor on"))
	}
	id := f.value(p)
	if v.training && f.fn.Value(id).Op == nil {
		held, ok := f.copies[p]
		if !ok {
			held = f.copy(id, v.origin(at).Pos)
			if f.copies == nil {
				f.copies = map[*storage]ir.ValueID{}
			}
			f.copies[p] = held
		}
		id = held
	}
	return tensor{id, p.param.Type}
}

// copy makes another tensor with the same elements; an identity would be the same one.
func (f *frame) copy(id ir.ValueID, at ir.Pos) ir.ValueID {
	return f.fn.MustEmit(ir.BroadcastTo, []ir.ValueID{id}, ir.Attrs{ir.IntsAttr("shape", f.fn.TypeOf(id).Shape)}, ir.Unmarked(at))
}

// update assigns a buffer.
func (v *env) update(p *storage, t *syntax.Name, x value) {
	if isPoison(x) {
		return
	}
	typ, ok := typeOf(x)
	if !ok || !typ.Equal(p.param.Type) {
		d := diag.Errorf(diag.WrongType, t.At, "the buffer `%s` is a tensor %s, not %s", t.Text, p.param.Type, x.kind()).WithNote(p.at, "declared here")
		switch n, isNumber := x.(number); {
		case isNumber:
			d = d.WithRepair("%s + zeros(%s, %s)", n, ir.ShapeString(p.param.Type.Shape), p.param.Type.DType)
		case ok && typ.DType != p.param.Type.DType:
			d = d.WithRepair("cast(..., %s)", p.param.Type.DType)
		case ok:
			d = d.WithRepair("declare it as %s, or compute a value of its shape", typ)
		}
		v.fail(d)
		return
	}
	if v.frame.element {
		v.frame.locals[t.Text] = x
		return
	}
	if w, ok := x.(*storage); ok {
		x = tensor{v.frame.param(w), typ}
	}
	v.frame.set(p, x.(tensor).id)
}

// kept tells which values lie where a buffer does: what it was before the construct, and views of that. nil means none.
func (f *frame) kept() []bool {
	var out []bool
	for p, id := range f.params {
		if !p.buffer {
			continue
		}
		if out == nil {
			out = make([]bool, f.fn.NumValues())
		}
		out[id] = true
	}
	if out != nil {
		for v, r := range f.fn.Roots() {
			out[v] = out[r]
		}
	}
	return out
}

// newValues gives the new values of the buffers that were assigned, in order of declaration. Each is the result of an
// operation that depends on more than constants: it has memory of its own, apart from every buffer, and one place.
func (f *frame) newValues(at ir.Pos) []tensor {
	if len(f.written) == 0 {
		return nil
	}
	slices.SortFunc(f.written, func(a, b *storage) int { return a.index - b.index })
	root, constant := f.fn.Roots(), f.fn.Constants()
	var out []tensor
	for _, p := range f.written {
		id := f.current[p]
		if f.fn.Value(root[id]).Op == nil || constant[id] {
			id = f.copy(id, at)
		}
		out = append(out, tensor{id, p.param.Type})
	}
	return out
}

// arrangeBuffers puts the buffers of the entry function in order: those that are written, then those that are only read,
// each in order of declaration.
func (b *block) arrangeBuffers(f *frame) {
	read := slices.DeleteFunc(slices.Clone(f.passed), func(p *storage) bool { return slices.Contains(f.written, p) })
	slices.SortFunc(read, func(a, b *storage) int { return a.index - b.index })
	arguments := slices.Clone(f.fn.Args[:len(b.inputs)])
	for _, p := range append(slices.Clone(f.written), read...) {
		read := p.read
		arguments = append(arguments, f.param(p))
		p.read = read // being kept is not being read
		b.spec.Buffers = append(b.spec.Buffers, p.state)
	}
	b.spec.Written = len(f.written)
	f.arrange(arguments)
}
