// Package shardout settles what each rank of a stage has a part of only: states of the optimizer, gradients, values of parameters.
//
// Groups of Plan.ShardSize consecutive ranks share parameters out, all stages that read one alike, so that what stages send each
// other of it is a part too, from a rank to the one with the same part. Parts are cut from the form of the device, not from rows.
package shardout

import (
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Run shares out what a level asks for of all parameters with at least threshold bytes. States and gradients are those of trained
// parameters. What is too small to be cut stays whole.
func Run(p *plan.Plan, level, threshold int) {
	for _, st := range p.Stages {
		for i := range st.Params {
			sp := &st.Params[i]
			trained := len(sp.Accumulators) > 0 && p.Optimizer != nil
			if p.CanCut(sp) && sp.Param.Type.Bytes() >= threshold && (trained || level == plan.ShardValue) {
				sp.Shard = level
			}
		}
	}
	inWeightPasses(p)
	for s, st := range p.Stages {
		place := func(sp *plan.StageParam, level int, refs ...plan.Ref) {
			for _, r := range refs {
				st.Areas[r.Area].Items[r.Item] = p.Kept(sp, level)
			}
		}
		for i := range st.Params {
			sp := &st.Params[i]
			place(sp, plan.ShardValue, sp.Value)
			place(sp, plan.ShardGradients, sp.Accumulators...)
			place(sp, plan.ShardStates, sp.States...)
		}
		if n := p.WorkspaceElems(s); n > 0 {
			st.Workspace = plan.Ref{Area: len(st.Areas), Item: 0}
			st.Areas = append(st.Areas, plan.Area{
				Class: plan.Scratch, Lifetime: plan.Static, Program: -1, Chunk: -1, Slots: 1,
				Items: []plan.Item{{Name: "workspace", Type: ir.Tensor(ir.F32, n)}},
			})
		}
	}
	for _, m := range p.Programs[0].Shared {
		for i := range m.Tensors {
			t := &m.Tensors[i]
			t.Type = p.Stages[m.From].Areas[t.From.Area].Items[t.From.Item].Type
		}
	}
	if p.Shares(plan.ShardGradients) {
		p.WLag = 0
	}
}

// inWeightPasses keeps the values of parameters whole that a weight pass reads: it runs one accumulation after the other through
// the workspace.
func inWeightPasses(p *plan.Plan) {
	read := map[*ir.Param]bool{}
	for _, q := range p.Programs {
		for _, c := range q.Chunks {
			if f := c.Phases[ir.WeightPass].Func; f != nil {
				for _, v := range f.ParamReads() {
					read[f.Value(v).Param] = true
				}
			}
		}
	}
	for _, st := range p.Stages {
		for i := range st.Params {
			sp := &st.Params[i]
			switch {
			case !read[sp.Param]:
			case len(sp.Accumulators) > 0:
				sp.Shard = min(sp.Shard, plan.ShardGradients)
			default:
				sp.Shard = plan.ShardNone
			}
		}
	}
}
