package ppc

import (
	"fmt"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// warnings says what is legal in a compiled program and yet hardly meant, or asked for
// with an option that has no effect.
func warnings(spec *plan.Spec, p *plan.Plan, o *Options) diag.List {
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
		together, repair := p.MicroBatches, "give `micro_batch_num`, or -micro"
		if p.Rounds() {
			together, repair = p.MicroBatches/p.Accumulate, repair+"; with 1f1b batches follow each other without a gap"
		}
		if p.NumStages > 1 && together == 1 {
			list.Add(diag.Warningf(diag.OneMicroBatch, diag.At(spec.MicroPos), "with one micro-batch the %d stages work one after the other: the predicted bubble is %.0f %%", p.NumStages, 100*p.Predicted.Bubble).
				WithRepair("%s", repair))
		}
	}
	whole := uncut(spec, p)
	if len(whole) > 0 {
		list.Add(diag.Warningf(diag.UncutParameters, diag.At(spec.ShardPos), "what is too small to be cut for %d ranks stays whole on each: %s", p.ShardSize, abridged(whole)).
			WithRepair("a `threshold` of 1 leaves out parameters below 1 KB"))
	}
	if spec.Shard.Level > 0 && p.ShardSize > 1 && len(whole) == 0 && !p.Shares(plan.ShardStates) {
		list.Add(diag.Warningf(diag.NoEffect, diag.At(spec.ShardPos), "`optimizer_shard` has no effect: no parameter has the %d KB that its `threshold` asks for", spec.Shard.Threshold>>10).
			WithRepair("optimizer_shard = { level: %d, threshold: 0 }", spec.Shard.Level))
	}
	if names := readInWeightPasses(spec, p); len(names) > 0 {
		list.Add(diag.Warningf(diag.UncutParameters, diag.At(spec.ShardPos), "values that weight passes read stay whole on each rank: %s", abridged(names)).
			WithRepair("in a product, a parameter as the right side is not read there"))
	}
	switch lag := o.WLag; {
	case lag == nil || *lag == p.WLag:
	case p.Shares(plan.ShardGradients):
		list.Add(diag.Warningf(diag.NoEffect, diag.At(spec.ShardPos), "ranks that share gradients out meet in weight passes, so none of these waits: the lag of %d has no effect", *lag).
			WithRepair("-w-lag 0, or level 1"))
	case p.Rounds():
		list.Add(diag.Warningf(diag.NoEffect, diag.At(spec.Pos), "with gpipe no weight pass of a batch waits into the round of the next one: the lag of %d has no effect", *lag).
			WithRepair("-w-lag 0, or -schedule 1f1b"))
	}
	if o.Accumulate > 1 && spec.Kind != "train" {
		list.Add(diag.Warningf(diag.NoEffect, diag.At(spec.Pos), "an %s block has no optimizer: accumulating %d batches has no effect", spec.Kind, o.Accumulate).
			WithRepair("leave -accumulate out"))
	}
	for _, e := range spec.Evals {
		for _, q := range p.Programs[1:] {
			if q.Name == e.Name && q.Batch > 1 && q.Degree < p.Degree {
				list.Add(diag.Warningf(diag.IdleRanks, diag.At(e.Pos), "the %d rows of a micro-batch of block %s cannot be shared out to the %d ranks of a stage: the first one takes them all", q.Batch/q.MicroBatches, q.Name, p.Degree).
					WithRepair("use a batch that is a multiple of %d", q.MicroBatches*p.Degree))
			}
		}
	}
	switch {
	case !spec.InterleavePos.IsValid() || !spec.Interleave || p.NumStages == 1:
	case len(p.Programs[0].Chunks) <= p.NumStages:
		list.Add(diag.Warningf(diag.NoEffect, diag.At(spec.InterleavePos), "`interleave` has no effect: every stage has one chunk").
			WithRepair("stages that go down along the data start further chunks"))
	case !counted(spec.Entry, map[*ir.Func]bool{}):
		list.Add(diag.Warningf(diag.NoEffect, diag.At(spec.InterleavePos), "`interleave` has no effect: whatever has a stage has a segment, and nothing is left to count").
			WithRepair("leave `interleave` out"))
	}
	return list
}

// counted reports whether something in a function has a stage, and its segment is not stated.
func counted(f *ir.Func, seen map[*ir.Func]bool) bool {
	seen[f] = true
	for _, op := range f.Ops {
		if op.Stage >= 0 && op.Segment < 0 || op.Callee != nil && !seen[op.Callee] && counted(op.Callee, seen) {
			return true
		}
	}
	return false
}

// uncut lists the parameters that should be shared out by their size and cannot be cut.
func uncut(spec *plan.Spec, p *plan.Plan) (names []string) {
	if p.ShardSize == 1 {
		return nil
	}
	for s, st := range p.Stages {
		for i := range st.Params {
			if sp := &st.Params[i]; sp.Updated(s) && sp.Param.Type.Bytes() >= spec.Shard.Threshold && !p.CanCut(sp) {
				names = append(names, "`"+sp.Param.Name+"`")
			}
		}
	}
	return names
}

// readInWeightPasses lists the parameters that level 3 would share out further if no weight pass read them.
func readInWeightPasses(spec *plan.Spec, p *plan.Plan) (names []string) {
	for s, st := range p.Stages {
		for i := range st.Params {
			if sp := &st.Params[i]; spec.Shard.Level == plan.ShardValue && sp.Updated(s) && sp.Shard == plan.ShardGradients {
				names = append(names, "`"+sp.Param.Name+"`")
			}
		}
	}
	return names
}

// abridged names some of many.
func abridged(names []string) string {
	if len(names) > 4 {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}
