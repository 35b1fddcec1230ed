package schedule

import (
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Measure sums the cost table over the passes of every chunk, and fills the flops of a step in.
func Measure(p *plan.Plan, q *plan.Program, costs *plan.Costs) *Times {
	m := &meter{costs: costs, done: map[*ir.Func]amount{}}
	t := &Times{Update: make([]float64, p.NumStages), Reduce: make([]float64, p.NumStages), Gather: make([]float64, p.NumStages)}
	// A reduce-scatter and an all-gather move (n-1)/n of the bytes each.
	moved := func(bytes, n int) float64 { return float64(n-1)/float64(n)*float64(bytes)/costs.Link + costs.Latency }
	for _, c := range q.Chunks {
		var pass [3]float64
		st := p.Stages[c.Stage]
		c.Flops = 0
		for i, ph := range c.Phases {
			if ph.Func != nil {
				a := m.function(ph.Func)
				pass[i] = a.seconds + met(st, &ph, func(sp *plan.StageParam) float64 { return moved(sp.Param.Type.Bytes(), p.ShardSize) })
				c.Flops += a.flops * float64(q.MicroBatches)
			}
		}
		t.Pass = append(t.Pass, pass)
	}
	for s, st := range p.Stages {
		for _, sp := range st.Params {
			if len(sp.Accumulators) > 0 {
				bytes := sp.Param.Type.Bytes() * (2 + len(sp.Accumulators) + 2*len(sp.States))
				t.Update[s] += float64(bytes)/costs.Bandwidth + costs.Launch
			}
			bytes, d := sp.Param.Type.Bytes(), q.Degree
			if !sp.Updated(s) {
				continue
			}
			if sp.Shard > plan.ShardNone && sp.Shard < plan.ShardValue {
				t.Gather[s] += moved(bytes, p.ShardSize)
			}
			if sp.Shard >= plan.ShardGradients { // summed within the group
				bytes, d = bytes/p.ShardSize, d/p.ShardSize
			}
			if d > 1 {
				t.Reduce[s] += 2 * moved(bytes, d)
			}
		}
	}
	return t
}

// met adds up what the ranks of a stage take to meet within a pass: before every operation that reads parts of values, and behind
// every accumulation of a gradient that is shared out.
func met(st *plan.Stage, ph *plan.Phase, seconds func(*plan.StageParam) float64) (sum float64) {
	st.Reads(ph.Func, func(_ *ir.Op, params []int) {
		for _, i := range params {
			sum += seconds(&st.Params[i])
		}
	})
	parted := st.PartedGradients()
	for _, r := range ph.Results {
		if sp := parted[r]; sp != nil {
			sum += seconds(sp)
		}
	}
	return sum
}

type amount struct{ seconds, flops float64 }

type meter struct {
	costs *plan.Costs
	done  map[*ir.Func]amount
}

func (m *meter) function(f *ir.Func) amount {
	if a, ok := m.done[f]; ok {
		return a
	}
	var sum amount
	for _, op := range f.Ops {
		if op.Callee != nil {
			a := m.function(op.Callee)
			sum.seconds += a.seconds
			sum.flops += a.flops
			continue
		}
		in, out := make([]ir.Type, len(op.Args)), make([]ir.Type, len(op.Results))
		for i, a := range op.Args {
			in[i] = f.TypeOf(a)
		}
		for i, r := range op.Results {
			out[i] = f.TypeOf(r)
		}
		sum.seconds += m.costs.Op(op.Kind, in, out, op.Attrs)
		sum.flops += op.Kind.Flops(in, out, op.Attrs)
	}
	m.done[f] = sum
	return sum
}
