// Package sharedparam decides where a parameter lives that several chunks read.
//
// Reads on one stage share one buffer. A parameter read on several stages would need an owner, copies and messages.
package sharedparam

import (
	"fmt"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
)

// Run refuses coloured functions in which a parameter is read on more than one stage, or its value crosses one.
func Run(f *ir.Func) diag.List {
	var errs diag.List
	root := f.Roots()
	first := map[*ir.Param]*ir.Op{}
	told := map[*ir.Param]bool{}
	for _, op := range f.Ops {
		for _, a := range op.Args {
			p := f.Value(root[a]).Param
			if p == nil || told[p] {
				continue
			}
			switch by := first[p]; {
			case by == nil:
				first[p] = op
			case by.Chunk != op.Chunk:
				told[p] = true
				errs.Add(diag.Errorf(diag.BadStage, diag.At(p.Pos), "parameter `%s` is read on stages %d and %d", p.Name, by.Chunk, op.Chunk).
					WithNote(diag.At(by.Pos), "read here, on stage %d", by.Chunk).
					WithNote(diag.At(op.Pos), "and here, on stage %d", op.Chunk).
					WithRepair("put both readers on one stage (%s)", fmt.Sprintf("stage %d", by.Chunk)))
			}
		}
	}
	return errs
}
