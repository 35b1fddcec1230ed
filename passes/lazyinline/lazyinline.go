// Package lazyinline decides which cells stay functions.
//
// The frontend makes a function for every instance of a cell. Here equal ones become one: the key is the cell and the
// whole structure of the function (operations, attributes, types, marks, callees), so that a wrong key cannot merge
// different code. The modes are "auto" (every cell stays a function), "marked" (only cells that carry @lazy_inline do)
// and "off" (none does). All three give the same bits.
package lazyinline

import (
	"strings"

	"github.com/ppc-lang/ppc/ir"
)

// Run merges equal functions and inlines according to mode. It returns the new form of every entry function.
func Run(m *ir.Module, entries []*ir.Func, mode string) []*ir.Func {
	merge(m)
	out := make([]*ir.Func, len(entries))
	if mode == "" || mode == "auto" {
		copy(out, entries)
		return out
	}
	in := &inliner{keep: mode == "marked", done: map[*ir.Func]*ir.Func{}}
	for i, f := range entries {
		out[i] = in.flatten(f)
	}
	return out
}

// merge lets every call go to the first of equal functions.
func merge(m *ir.Module) {
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
}

type inliner struct {
	keep bool // marked functions stay
	done map[*ir.Func]*ir.Func
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
		if op.Callee != nil && !(in.keep && op.Callee.LazyInline) {
			copy.Bind(op, g.Inline(&c, args, true).Results)
		} else {
			copy.Bind(op, g.CopyOp(&c, args, op.At).Results)
		}
	}
	return copy.Finish()
}
