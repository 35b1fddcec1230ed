package runtime

import (
	"math"

	"github.com/ppc-lang/ppc/plan"
)

// end is what a rank knows of the end of a training step: gradients are complete, are summed over the ranks of the stage, looked at
// together with those of all stages, and used or not.
type end struct {
	gradients [][]float32 // of the parameters that the stage owns, folded: what Reduce sums over the ranks of the stage
	parts     [][]float32 // of those whose gradients are shared out: what Reduce sums over the ranks with the same part
	values    [][]float32 // of the parameters whose update is shared out, and that are whole on every rank
	sums      []float32   // what Scatter works in: two of the largest parts
	folded    bool        // in this step
	squares   []float64   // sums of squares of the gradients of this step, by Stage.Params; nil if nobody asks
	scalars   [][]float32 // of this step: see plan.Optimizer.At

	applied  int     // updates so far
	overflow bool    // a gradient of this step is not finite, on some rank: all skip the update
	scale    float64 // of the loss
	good     int     // steps without overflow since the scale changed
	factor   float64 // what the gradients of this step are multiplied by
	seed     float32 // gradient of the loss without scale
	alone    [1][]float64
	one      [1][]float32
}

func (r *rank) prepareEnd() {
	for i, sp := range r.plan.Stages[r.stage].Params {
		if !sp.Updated(r.stage) {
			continue
		}
		if g := floats(r.dev.Buffer(sp.Accumulators[0], 0)); sp.Shard >= plan.ShardGradients {
			r.parts = append(r.parts, g)
		} else {
			r.gradients = append(r.gradients, g)
		}
		if sp.Shard == plan.ShardStates || sp.Shard == plan.ShardGradients {
			r.values = append(r.values, r.dev.Value(i))
		}
	}
	r.scale = 1
	if l := r.plan.LossScale; l != nil {
		r.scale = l.Initial
	}
	if r.plan.NeedsNorm() {
		r.wantSquares()
	}
}

// wantSquares asks for the sums of squares of gradients.
func (r *rank) wantSquares() {
	r.squares = make([]float64, len(r.plan.Stages[r.stage].Params))
}

// begin prepares a training step, counted from 0. The scalars of the optimizer follow the number of updates, which skipped
// steps do not count in.
func (r *rank) begin(step int) {
	r.dev.Step(uint32(step))
	if o := r.plan.Optimizer; o != nil {
		r.scalars = o.At(r.applied, r.scalars)
	}
	if ref := r.plan.Stages[r.stage].Seed; ref.Item >= 0 {
		floats(r.dev.Buffer(ref, 0))[0] = r.seed * float32(r.scale)
	}
	r.folded, r.overflow, r.factor = false, false, 1/r.scale
}

// fold completes the gradients of the step on this rank, once.
func (r *rank) fold(p *rankProgram, a *rankAction) error {
	for i := range a.wants {
		if err := r.wait(p, &a.wants[i]); err != nil {
			return err
		}
	}
	if r.folded {
		return nil
	}
	r.folded = true
	if err := r.flush(p); err != nil {
		return err
	}
	return r.dev.FoldGradients()
}

// reduce sums the gradients over the ranks of the stage.
func (r *rank) reduce(p *rankProgram, a *rankAction) error {
	if err := r.fold(p, a); err != nil {
		return err
	}
	if err := r.group.Reduce(r.gradients); err != nil || r.plan.ShardSize == r.plan.Degree {
		return err
	}
	return r.same.Reduce(r.parts)
}

// sumSquares makes the sums of squares of the folded gradients. What ranks share out is added up over the parts, in their order, so
// that all have the same numbers.
func (r *rank) sumSquares() error {
	if err := r.dev.Squares(r.squares); err != nil || !r.plan.Shares(plan.ShardGradients) {
		return err
	}
	all, err := r.shard.Gather(r.squares)
	if err != nil {
		return err
	}
	for i, sp := range r.plan.Stages[r.stage].Params {
		if sp.Shard < plan.ShardGradients {
			continue
		}
		r.squares[i] = 0
		for _, of := range all {
			r.squares[i] += of[i]
		}
	}
	return nil
}

// scatterPart and gatherParts are what the device calls within passes: see device.Options.
func (r *rank) scatterPart(whole []float32) error {
	return r.shards[len(whole)].Scatter(whole, r.sums)
}

func (r *rank) gatherParts(whole []float32) error {
	r.one[0] = whole
	return r.shards[len(whole)].Collect(r.one[:])
}

// norm learns the squares of all stages: whether the step is skipped, and how much gradients are clipped. All ranks come to
// the same result, since they fold the same numbers in the same order.
func (r *rank) norm(p *rankProgram, a *rankAction) error {
	if err := r.fold(p, a); err != nil {
		return err
	}
	if err := r.sumSquares(); err != nil {
		return err
	}
	parts, err := r.column.Gather(r.squares)
	if err != nil {
		return err
	}
	_, total := squaresOf(r.plan, parts)
	norm := math.Sqrt(total) / r.scale
	r.overflow = r.plan.LossScale != nil && (math.IsInf(norm, 0) || math.IsNaN(norm))
	if limit := r.plan.Clip.Norm; limit > 0 && norm > limit {
		r.factor *= limit / norm
	}
	return nil
}

// gather takes the parts of parameters that other ranks have updated.
func (r *rank) gather() error {
	if r.overflow {
		return nil // on all ranks
	}
	return r.shard.Collect(r.values)
}

// update runs the optimizer, unless the step is skipped. Without anything that looks at gradients the device may update each
// parameter right behind its last weight pass.
func (r *rank) update(p *rankProgram, a *rankAction) error {
	defer func() {
		if l := r.plan.LossScale; l != nil {
			r.scale, r.good = l.Next(r.scale, r.good, r.overflow)
		}
	}()
	if r.overflow {
		return nil
	}
	r.applied++
	limit := r.plan.Clip.Value
	if p.Degree == 1 && r.squares == nil && r.factor == 1 && limit == 0 {
		for i := range a.wants {
			if err := r.wait(p, &a.wants[i]); err != nil {
				return err
			}
		}
		err := r.dev.Update(p.index, r.pending, r.scalars, false)
		r.pending = r.pending[:0]
		return err
	}
	if err := r.fold(p, a); err != nil {
		return err
	}
	if r.squares != nil && !r.plan.NeedsNorm() {
		if err := r.sumSquares(); err != nil {
			return err
		}
	}
	if r.factor != 1 || limit > 0 {
		if err := r.dev.BoundGradients(float32(r.factor), float32(limit)); err != nil {
			return err
		}
	}
	return r.dev.Update(p.index, nil, r.scalars, true)
}

// gatherOnStage gives the values of all ranks of the stage.
func (r *rank) gatherOnStage(own []float64) ([][]float64, error) {
	if r.plan.Degree == 1 {
		r.alone[0] = own
		return r.alone[:], nil
	}
	return r.group.Gather(own)
}

// squaresOf puts the sums of squares of all stages in the order of Module.Params, and adds them up in that order.
func squaresOf(p *plan.Plan, parts [][]float64) (each []float64, total float64) {
	each = make([]float64, len(p.Module.Params))
	for s, st := range p.Stages {
		for i, sp := range st.Params {
			if len(sp.Accumulators) > 0 && sp.Owner == s {
				each[sp.Param.Index()] = parts[s][i]
			}
		}
	}
	for _, x := range each {
		total += x
	}
	return each, total
}
