package runtime

import (
	"context"

	"github.com/ppc-lang/ppc/plan"
)

// tally adds up one result value over micro-batches and batches.
type tally struct {
	sum, count float64
}

// evaluate runs every evaluation of the plan over all rows of its data: whole batches, then the rows left over, one by
// one.
func (r *runner) evaluate(ctx context.Context) error {
	for i, q := range r.plan.Programs {
		if q.Train || i > 0 && r.plan.Programs[i-1].Rest == i {
			continue
		}
		d := r.datasets[i]
		whole := d.Rows() / q.Batch * q.Batch
		values := make([]tally, len(q.Outputs))
		err := r.all(ctx, func(k *rank) error {
			own := make([]tally, len(q.Outputs)) // this rank's
			for row := 0; row < whole && r.evaluates(k, q); row += q.Batch {
				if err := r.evaluateBatch(k, i, row, own, q.Batch); err != nil {
					return err
				}
			}
			for row := whole; row < d.Rows() && q.Rest >= 0 && r.evaluates(k, r.plan.Programs[q.Rest]); row++ {
				if err := r.evaluateBatch(k, q.Rest, row, own, 1); err != nil {
					return err
				}
			}
			var flat []float64
			for _, t := range own {
				flat = append(flat, t.sum, t.count)
			}
			all, err := k.world.Gather(flat)
			if err == nil && k.number == LossRank(r.plan) {
				r.add(values, all)
			}
			return k.during("the end of an evaluation", err)
		})
		if err != nil {
			return err
		}
		if !r.join.Holds(LossRank(r.plan)) {
			continue
		}
		e := Eval{Name: q.Name, Rows: d.Rows()}
		if q.Rest < 0 {
			e.Rows = whole
		}
		at := 0
		for _, res := range q.Results {
			m := Metric{Name: res.Name}
			if res.Ratio {
				m.Value = values[at].sum / values[at+1].sum
				at += 2
			} else {
				m.Value = values[at].sum / values[at].count
				at++
			}
			e.Metrics = append(e.Metrics, m)
		}
		r.result.Evals = append(r.result.Evals, e)
		if r.opt.OnEval != nil {
			r.opt.OnEval(e)
		}
	}
	return nil
}

// add sums up what all ranks have: over the ranks of a stage, in their order. Every result is that of one stage.
func (r *runner) add(total []tally, ranks [][]float64) {
	for v := range total {
		for replica := range r.plan.Degree {
			var part tally
			for n := replica; n < len(ranks); n += r.plan.Degree {
				part.sum += ranks[n][2*v]
				part.count += ranks[n][2*v+1]
			}
			total[v].sum += part.sum
			total[v].count += part.count
		}
	}
}

// evaluates reports whether a rank takes part in a program: it has rows, or the others need its parts of the parameters.
func (r *runner) evaluates(k *rank, q *plan.Program) bool {
	return k.replica < q.Degree || r.plan.Shares(plan.ShardValue)
}

// evaluateBatch runs one batch and adds what its results are on this rank, weighted by rows where they are means over them.
func (r *runner) evaluateBatch(k *rank, program, row int, values []tally, rows int) error {
	p := k.programs[program]
	// A rank without rows of its own does what one with rows does, and tells nobody.
	k.silent = k.replica >= p.Degree
	defer func() { k.silent = false }()
	if err := p.load(r.datasets[program], row, k.replica%p.Degree, r.plan.FullBatch); err != nil {
		return err
	}
	if err := k.run(program); err != nil || k.silent {
		return err
	}
	ratio := ratioValues(p)
	for _, o := range p.outputs {
		weight := float64(rows / p.MicroBatches)
		if ratio[o.value] {
			weight = 1
		}
		count := weight
		switch p.Outputs[o.value].Fold {
		case plan.Averaged:
			weight /= float64(p.Degree)
			count = weight
		case plan.Summed:
			if k.replica > 0 {
				count = 0
			}
		case plan.Whole:
			if k.replica > 0 {
				continue
			}
		}
		for m := range o.micros {
			values[o.value].sum += o.at(m) * weight
			values[o.value].count += count
		}
	}
	return nil
}

// ratioValues tells which output values belong to ratios.
func ratioValues(p *rankProgram) []bool {
	out := make([]bool, 0, len(p.Outputs))
	for _, res := range p.Results {
		out = append(out, res.Ratio)
		if res.Ratio {
			out = append(out, true)
		}
	}
	return out
}
