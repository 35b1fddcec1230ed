package runtime

import (
	"context"
	"fmt"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/plan"
)

// collect takes what the devices counted and the parameters, to the rank that has the loss.
func (r *runner) collect(ctx context.Context) error {
	loss := LossRank(r.plan)
	return r.all(ctx, func(k *rank) error {
		k.current.Store(ending)
		var bytes []float64
		for _, n := range k.dev.Bytes() {
			bytes = append(bytes, float64(n))
		}
		all, err := k.world.Gather(bytes)
		if err != nil {
			return k.during("the end of the run", err)
		}
		if k.number == loss {
			r.count(all)
		}
		switch {
		case r.opt.SkipParams:
			return nil
		case k.number == loss:
			return r.take(ctx, k)
		}
		return r.give(k)
	})
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

// holder is where a parameter is taken from: the first rank of the stage that owns it, with what that gathers from others.
type holder struct {
	*plan.StageParam
	stage, index int // index into Stage.Params
}

// holders are those of all parameters, by Module.Params; without StageParam for one that no stage reads.
func (r *runner) holders() []holder {
	list := make([]holder, len(r.plan.Module.Params))
	for s, st := range r.plan.Stages {
		for i := range st.Params {
			if sp := &st.Params[i]; sp.Owner == s {
				list[sp.Param.Index()] = holder{sp, s, i}
			}
		}
	}
	return list
}

// give hands over what this rank has of the parameters, one after another. All ranks meet behind each: so no rank waits for longer
// than it takes to do something with one, and all learn that the last one is done.
func (r *runner) give(k *rank) error {
	for n, h := range r.holders() {
		if h.StageParam != nil && h.stage == k.stage {
			shares := h.Shard >= plan.ShardValue && k.replica < r.plan.ShardSize
			if k.replica == 0 || shares {
				v := k.dense(h.Param.Type.Elems())
				if err := k.value(h.index, v); err != nil {
					return err
				}
				if k.replica == 0 {
					k.results[n].Post([][]byte{raw(v)})
					if err := k.results[n].Wait(0); err != nil {
						return k.during("handing over parameter "+h.Param.Name, err)
					}
				}
			}
		}
		if err := k.passed(); err != nil {
			return err
		}
	}
	return nil
}

// take gets the parameters, one after another, for Options.Collect, and else for the result.
func (r *runner) take(ctx context.Context, k *rank) error {
	params, holders := r.plan.Module.Params, r.holders()
	if r.opt.Collect == nil {
		for n, p := range params {
			v := make([]float32, p.Type.Elems())
			if err := r.parameter(ctx, k, n, holders[n], v); err != nil {
				return err
			}
			r.result.Params = append(r.result.Params, Param{p.Name, p.Type.Shape, v})
			if err := k.passed(); err != nil {
				return err
			}
		}
		return nil
	}
	most := 0
	for _, p := range params {
		most = max(most, p.Type.Elems())
	}
	memory := make([]float32, most)
	n := 0
	var failed error
	next := func() (data.Array, error) {
		if n == len(params) {
			return data.Array{}, fmt.Errorf("there are no more than %d parameters", n)
		}
		if n > 0 && failed == nil {
			failed = k.passed()
		}
		p := params[n]
		v := memory[:p.Type.Elems()]
		if failed == nil {
			failed = r.parameter(ctx, k, n, holders[n], v)
		}
		n++
		return data.Array{Name: p.Name, DType: data.F32, Shape: p.Type.Shape, Data: raw(v)}, failed
	}
	err := r.opt.Collect(ctx, next)
	switch {
	case failed != nil:
		return failed // which says more than what has become of it
	case err != nil:
		return err
	case n < len(params):
		return fmt.Errorf("only %d of the %d parameters have been taken", n, len(params))
	case n == 0:
		return nil
	}
	return k.passed()
}

// passed meets all ranks behind a parameter.
func (k *rank) passed() error {
	k.progress.Add(1)
	_, err := k.world.Gather(nil)
	return k.during("collecting parameters", err)
}

// parameter puts parameter n, row-major, into v, on the rank that has the loss.
func (r *runner) parameter(ctx context.Context, k *rank, n int, h holder, v []float32) error {
	switch {
	case h.StageParam == nil:
		return r.firstValue(ctx, r.plan.Module.Params[n], v)
	case h.stage == k.stage && k.replica == 0:
		return k.value(h.index, v)
	}
	k.results[n].Post([][]byte{raw(v)})
	return k.during("collecting parameter "+h.Param.Name, k.results[n].Wait(0))
}
