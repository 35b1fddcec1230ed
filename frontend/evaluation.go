package frontend

import (
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// evaluation elaborates an eval block inside this one, and once more for single
// rows, which serve the rows that do not fill a batch.
func (b *block) evaluation(decl *syntax.Block) *plan.Spec {
	outer := b.training
	b.training = false
	defer func() { b.training = outer }()
	spec := b.evaluate(decl, 0)
	if spec == nil {
		return nil
	}
	spec.Rest = b.evaluate(decl, 1)
	return spec
}

// evaluate elaborates an eval block that inherits the entries of this block
// and shares its cells and parameters. rows, when not 0, is the batch, as one
// micro-batch; otherwise the batch is that of its dataset.
func (b *block) evaluate(decl *syntax.Block, rows int) *plan.Spec {
	e := b.newBlock(decl)
	e.root, e.inst = b.root, b.root
	before := len(b.list)
	e.collect()
	for _, name := range sortedKeys(e.entries) {
		if name != "dataset" && name != "micro_batch_num" && name != "metrics" {
			e.errorf(diag.UnknownEntry, e.entries[name].At, "an eval block inside a train block gives dataset, micro_batch_num and metrics only")
		}
	}
	for _, in := range e.inputs {
		e.errorf(diag.UnknownEntry, in.decl.At, "an eval block inside a train block has the inputs of that block")
	}
	for name, s := range b.entries {
		if e.entries[name] == nil && name != "optimizer" {
			e.entries[name] = s
		}
	}
	e.construct = b.construct
	dataset := e.entries["dataset"]
	single := rows > 0
	if !single {
		e.microBatches(e.spec, e.entries["micro_batch_num"])
		if dataset != nil {
			rows = e.batchOf(dataset.Values[0])
		}
	}
	e.inputs = nil
	for _, in := range b.inputs {
		own := *in
		if rows > 0 && !in.Whole {
			own.Type = ir.Tensor(in.Type.DType, append([]int{rows}, in.Type.Shape[1:]...)...)
		}
		e.inputs = append(e.inputs, &own)
	}
	e.checkMicro(e.spec, e.inputs)
	if e.list[before:].HasErrors() {
		return nil
	}
	e.entry()
	e.spec.Stages, e.spec.StagesPos, e.spec.Marked = b.spec.Stages, b.spec.StagesPos, b.spec.Marked
	e.spec.Interleave, e.spec.Schedule, e.spec.SchedulePos = b.spec.Interleave, b.spec.Schedule, b.spec.SchedulePos
	e.spec.Reduction, e.spec.LazyInline, e.spec.Seed = b.spec.Reduction, b.spec.LazyInline, b.spec.Seed
	if dataset != nil && !single {
		e.spec.Dataset = e.dataset(dataset.Values[0], e.inputs)
	}
	return e.spec
}
