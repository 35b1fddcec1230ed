package frontend

import (
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
)

// inferred checks the results of an infer block: one line of each belongs to one row of the inputs, so that micro-batches can
// be joined, and each has a name of its own.
func (b *block) inferred(f *frame, results []tensor) {
	at := b.entries["network"].Values[0].Range()
	if b.construct != nil {
		at = b.construct.At
	}
	rows := 0
	for _, in := range b.inputs {
		if !in.Whole {
			if rows > 0 && in.Type.Shape[0]/b.spec.MicroBatches != rows {
				b.errorf(diag.BadShape, in.decl.Name.At, "the inputs of an infer block have the same number of rows; `%s` has %d, another has %d",
					in.Name, in.Type.Shape[0], rows*b.spec.MicroBatches)
				return
			}
			rows = in.Type.Shape[0] / b.spec.MicroBatches
		}
	}
	switch {
	case rows == 0:
		b.fail(diag.Errorf(diag.BadShape, b.inputs[0].decl.Name.At, "an infer block needs an input with rows; all of them are @whole").
			WithRepair("leave @whole away where axis 0 is the batch"))
		return
	case len(results) == 0:
		b.errorf(diag.BadReturn, at, "an infer block gives at least one result")
		return
	}
	root := f.fn.Roots()
	names := map[string]bool{}
	value := 0
	for _, r := range b.spec.Results {
		if r.Ratio {
			b.errorf(diag.BadReturn, at, "the result `%s` of an infer block is a tensor, not a ratio", r.Name)
			return
		}
		if names[r.Name] {
			b.errorf(diag.DuplicateName, at, "two results of the infer block are called `%s`", r.Name)
			return
		}
		names[r.Name] = true
		t := results[value]
		value++
		switch {
		case t.typ.Rank() == 0 || t.typ.Shape[0] != rows:
			b.fail(diag.Errorf(diag.BadShape, at, "the result `%s` of an infer block is %s: its axis 0 must be the %d rows of a micro-batch", r.Name, t.typ, rows).
				WithRepair("return something with a line for every row, or use an eval block for figures"))
		case t.typ.DType != ir.F32 && t.typ.DType != ir.I32:
			b.fail(diag.Errorf(diag.BadShape, at, "the result `%s` of an infer block is %s; it must be f32 or i32", r.Name, t.typ).WithRepair("use cast(...)"))
		case f.fn.Value(root[t.id]).Param != nil:
			b.fail(diag.Errorf(diag.BadReturn, at, "the result `%s` of an infer block is a parameter, which no row belongs to", r.Name).
				WithRepair("leave it out; -save writes parameters"))
		}
	}
}
