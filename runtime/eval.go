package runtime

import "context"

// tally adds up one result value over micro-batches and batches.
type tally struct {
	sum   float64
	count int
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
		values := make([]tally, len(q.Outputs)) // each entry is written by the rank that computes it
		err := r.all(ctx, func(k *rank) error {
			for row := 0; row < whole; row += q.Batch {
				if err := r.evaluateBatch(k, i, row, values, q.Batch); err != nil {
					return err
				}
			}
			for row := whole; row < d.Rows() && q.Rest >= 0; row++ {
				if err := r.evaluateBatch(k, q.Rest, row, values, 1); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
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
				m.Value = values[at].sum / float64(values[at].count)
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

// evaluateBatch runs one batch and adds its results, weighted by rows where they are means over them.
func (r *runner) evaluateBatch(k *rank, program, row int, values []tally, rows int) error {
	p := k.programs[program]
	if err := p.load(r.datasets[program], row); err != nil {
		return err
	}
	if err := k.run(program, nil); err != nil {
		return err
	}
	ratio := ratioValues(p)
	for _, o := range p.outputs {
		weight := rows / p.MicroBatches
		if ratio[o.value] {
			weight = 1
		}
		for m := range o.micros {
			values[o.value].sum += o.at(m) * float64(weight)
			values[o.value].count += weight
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
