package memplan

import (
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// operandForms finds the parameters that are only ever the right side of matrix products, in one orientation, so that a
// device may keep them packed. In a forward product matmul(x, w) uses [inner, columns] and matmul(x, w) with transpose_b
// its transpose; in a gradient product it is the other way round.
func operandForms(programs []*Program) map[*ir.Param]plan.Form {
	u := &usage{args: map[*ir.Func][]formUse{}}
	seen := map[*ir.Param]formUse{}
	for _, q := range programs {
		for _, part := range q.Parts {
			for pass, f := range part.Funcs {
				if f == nil || ir.Pass(pass) == ir.WeightPass {
					continue
				}
				uses := u.values(f)
				for _, v := range f.ParamReads() {
					p := f.Value(v).Param
					seen[p] = seen[p].join(uses[v])
				}
			}
		}
	}
	forms := map[*ir.Param]plan.Form{}
	for p, use := range seen {
		if p.Type.Rank() == 2 && p.Type.DType == ir.F32 {
			switch use {
			case asKN:
				forms[p] = plan.KN
			case asNK:
				forms[p] = plan.NK
			}
		}
	}
	return forms
}

// formUse is a lattice: unused, one orientation, anything.
type formUse uint8

const (
	unused formUse = iota
	asKN
	asNK
	asAny
)

func (a formUse) join(b formUse) formUse {
	switch {
	case a == unused || a == b:
		return b
	case b == unused:
		return a
	}
	return asAny
}

type usage struct{ args map[*ir.Func][]formUse }

// values tells how f uses each of its values.
func (u *usage) values(f *ir.Func) []formUse {
	uses := make([]formUse, f.NumValues())
	for _, r := range f.Results {
		uses[r] = asAny
	}
	for k := len(f.Ops) - 1; k >= 0; k-- {
		op := f.Ops[k]
		for i, a := range op.Args {
			use := asAny
			switch {
			case op.Kind == ir.Identity:
				use = uses[op.Results[0]]
			case op.Callee != nil:
				use = u.arguments(op.Callee)[i]
			case op.Kind == ir.MatMul && i == 1:
				use = asKN
				if op.Attrs.Bool("transpose_b") != (op.Pass != ir.ForwardPass) {
					use = asNK
				}
			}
			uses[a] = uses[a].join(use)
		}
	}
	return uses
}

func (u *usage) arguments(f *ir.Func) []formUse {
	out, ok := u.args[f]
	if !ok {
		uses := u.values(f)
		out = make([]formUse, len(f.Args))
		for i, a := range f.Args {
			out[i] = uses[a]
		}
		u.args[f] = out
	}
	return out
}
