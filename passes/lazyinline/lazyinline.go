// Package lazyinline decides which cells stay functions.
//
// The frontend makes a function for every instance of a cell. Here equal ones become one: the key is the cell and the
// whole structure of the function (operations, attributes, types, marks, callees), so that a wrong key cannot merge
// different code. The modes are "auto" (every cell stays a function), "marked" (only cells that carry @lazy_inline do)
// and "off" (none does); a cell with policy "front" never stays one. All give the same bits.
//
// Functions that stay are inlined late, by the device: see docs/ARCHITECTURE.md.
package lazyinline

import (
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Run merges equal functions and inlines according to mode. It returns the new form of every entry function. Cells
// that are different although their key says they are equal are errors.
func Run(m *ir.Module, entries []*ir.Func, mode string, keyed []plan.Keyed) ([]*ir.Func, diag.List) {
	same := merge(m)
	if errs := hidden(keyed, same); errs.HasErrors() {
		return nil, errs
	}
	in := &inliner{done: map[*ir.Func]*ir.Func{}}
	switch mode {
	case "marked":
		in.stays = func(f *ir.Func) bool { return f.LazyInline }
	case "off":
		in.stays = func(*ir.Func) bool { return false }
	default:
		if !slices.ContainsFunc(m.Funcs, func(f *ir.Func) bool { return f.Front }) {
			return slices.Clone(entries), nil
		}
		in.stays = func(f *ir.Func) bool { return !f.Front }
	}
	out := make([]*ir.Func, len(entries))
	for i, f := range entries {
		out[i] = in.flatten(f)
	}
	return out, nil
}

// merge lets every call go to the first of equal functions, and returns that one of every function.
func merge(m *ir.Module) map[*ir.Func]*ir.Func {
	first := map[string]*ir.Func{}
	same := map[*ir.Func]*ir.Func{}
	for _, f := range m.CalleesFirst() {
		for _, op := range f.Ops {
			if op.Callee != nil {
				op.Callee = same[op.Callee]
			}
		}
		cell, _, _ := strings.Cut(f.Name, ".")
		key := cell + "(" + f.Structure()
		if first[key] == nil {
			first[key] = f
		}
		same[f] = first[key]
	}
	return same
}

// hidden reports the first pair of different functions of each key.
func hidden(keyed []plan.Keyed, same map[*ir.Func]*ir.Func) diag.List {
	var errs diag.List
	first, told := map[string]plan.Keyed{}, map[string]bool{}
	for _, b := range keyed {
		a, seen := first[b.Key]
		if !seen {
			first[b.Key] = b
			continue
		}
		if same[a.Func] == same[b.Func] || told[b.Key] {
			continue
		}
		told[b.Key] = true
		d := diag.Errorf(diag.HiddenByKey, diag.At(b.Pos), "the key of @lazy_inline takes `%s` and `%s` for equal, but they are not: marks inside them differ", a.Path, b.Path).
			WithRepair("leave attrs out: equal cells are found by their structure")
		for i, x := range a.Rest {
			if y := b.Rest[i]; x.Value != y.Value {
				d = diag.Errorf(diag.HiddenByKey, diag.At(b.Pos), "the key of @lazy_inline takes `%s` and `%s` for equal, but they are not: the argument `%s` is %s there and %s here", a.Path, b.Path, x.Name, x.Value, y.Value).
					WithRepair("add %q to attrs, or leave attrs out: equal cells are found by their structure", x.Name)
				break
			}
		}
		errs.Add(d.WithNote(diag.At(a.Pos), "`%s` is made here", a.Path))
	}
	return errs
}

type inliner struct {
	stays func(*ir.Func) bool
	done  map[*ir.Func]*ir.Func
}

// flatten returns f with every call inlined that does not stay.
func (in *inliner) flatten(f *ir.Func) *ir.Func {
	if g := in.done[f]; g != nil {
		return g
	}
	copy := ir.NewCopier(f, f.Name+".flat")
	g := copy.To
	g.LazyInline = f.LazyInline
	in.done[f] = g
	for _, op := range f.Ops {
		args := copy.Mapped(op.Args)
		c := *op
		if op.Callee != nil {
			c.Callee = in.flatten(op.Callee)
		}
		if op.Callee != nil && !in.stays(op.Callee) {
			copy.Bind(op, g.Inline(&c, args, true).Results)
		} else {
			copy.Bind(op, g.CopyOp(&c, args, op.At).Results)
		}
	}
	return copy.Finish()
}
