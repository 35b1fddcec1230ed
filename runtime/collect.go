package runtime

import (
	"context"

	"github.com/ppc-lang/ppc/plan"
)

// collect takes what the devices counted and the parameters, to the rank that has the loss.
func (r *runner) collect(ctx context.Context) error {
	if !r.opt.SkipParams {
		r.result.Params = make([]Param, len(r.plan.Module.Params))
	}
	err := r.all(ctx, func(k *rank) error {
		var bytes []float64
		for _, n := range k.dev.Bytes() {
			bytes = append(bytes, float64(n))
		}
		all, err := k.world.Gather(bytes)
		if err != nil {
			return k.during("the end of the run", err)
		}
		if k.number == LossRank(r.plan) {
			r.count(all)
		}
		if r.opt.SkipParams {
			return nil
		}
		return r.parameters(k)
	})
	if err != nil || r.opt.SkipParams || !r.join.Holds(LossRank(r.plan)) {
		return err
	}
	return r.unread()
}

// unread gives parameters that no stage reads their first values.
func (r *runner) unread() error {
	read := make([]bool, len(r.plan.Module.Params))
	for _, st := range r.plan.Stages {
		for _, sp := range st.Params {
			read[sp.Param.Index()] = true
		}
	}
	for n, p := range r.plan.Module.Params {
		if read[n] {
			continue
		}
		v := make([]float32, p.Type.Elems())
		if err := r.firstValue(p, v); err != nil {
			return err
		}
		r.result.Params[n] = Param{p.Name, p.Type.Shape, v}
	}
	return nil
}

// count notes the bytes of all ranks.
func (r *runner) count(bytes [][]float64) {
	for number, list := range bytes {
		rr := RankResult{Rank: number, Stage: number / r.plan.Degree}
		for _, b := range list {
			rr.Bytes = append(rr.Bytes, int(b))
			rr.PeakBytes += int(b)
		}
		r.result.Ranks = append(r.result.Ranks, rr)
	}
}

// parameters takes those of the first rank of each stage, which gathers what it has parts of: where that runs in the process of the
// rank with the loss, as they are, else as messages.
func (r *runner) parameters(k *rank) error {
	loss := LossRank(r.plan)
	for s, st := range r.plan.Stages {
		for i, sp := range st.Params {
			from, n := s*r.plan.Degree, sp.Param.Index()
			here := r.join.Holds(from) && r.join.Holds(loss)
			if sp.Owner != s || !here && r.plan.Programs[0].Infer {
				continue
			}
			if k.stage == s && k.replica > 0 && k.replica < r.plan.ShardSize && sp.Shard >= plan.ShardValue {
				if err := k.value(i, k.dense(sp.Param.Type.Elems())); err != nil {
					return err
				}
			}
			if k.number != from && (k.number != loss || here) {
				continue
			}
			v := make([]float32, sp.Param.Type.Elems())
			if k.number == from {
				if err := k.value(i, v); err != nil {
					return err
				}
			}
			if !here {
				k.results[n].Post([][]byte{raw(v)})
				if err := k.results[n].Wait(0); err != nil {
					return k.during("collecting parameter "+sp.Param.Name, err)
				}
			}
			if here || k.number == loss {
				r.result.Params[n] = Param{sp.Param.Name, sp.Param.Type.Shape, v}
			}
		}
	}
	return nil
}
