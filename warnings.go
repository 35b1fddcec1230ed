package ppc

import (
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/plan"
)

// warnings says what is legal in a compiled program and yet hardly meant.
func warnings(spec *plan.Spec, p *plan.Plan) diag.List {
	var list diag.List
	if spec.Kind == "train" {
		for s, stage := range p.Stages {
			for _, sp := range stage.Params {
				if sp.Owner == s && len(sp.Accumulators) == 0 && !sp.Param.Frozen {
					list.Add(diag.Warningf(diag.NoGradient, diag.At(sp.Param.Pos), "no gradient reaches the parameter `%s`; it keeps its first value", sp.Param.Name).
						WithRepair("let the loss depend on it, make it a constant, or name it in `frozen`"))
				}
			}
		}
		if p.NumStages > 1 && p.MicroBatches == 1 {
			list.Add(diag.Warningf(diag.OneMicroBatch, diag.At(spec.MicroPos), "with one micro-batch the %d stages work one after the other: the predicted bubble is %.0f %%", p.NumStages, 100*p.Predicted.Bubble).
				WithRepair("give `micro_batch_num`, or -micro"))
		}
	}
	for _, e := range spec.Evals {
		for _, q := range p.Programs[1:] {
			if q.Name == e.Name && q.Batch > 1 && q.Degree < p.Degree {
				list.Add(diag.Warningf(diag.IdleRanks, diag.At(e.Pos), "the %d rows of a micro-batch of block %s cannot be shared out to the %d ranks of a stage: the first one takes them all", q.Batch/q.MicroBatches, q.Name, p.Degree).
					WithRepair("use a batch that is a multiple of %d", q.MicroBatches*p.Degree))
			}
		}
	}
	if spec.InterleavePos.IsValid() && spec.Interleave && p.NumStages > 1 && len(p.Programs[0].Chunks) <= p.NumStages {
		list.Add(diag.Warningf(diag.NoEffect, diag.At(spec.InterleavePos), "`interleave` has no effect: every stage has one chunk").
			WithRepair("stages that go down along the data start further chunks"))
	}
	return list
}
