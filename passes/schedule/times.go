package schedule

import (
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Measure sums the cost table over the passes of every chunk, and fills the flops of a step in.
func Measure(p *plan.Plan, q *plan.Program, costs *plan.Costs) *Times {
	m := &meter{costs: costs, done: map[*ir.Func]amount{}}
	t := &Times{Update: make([]float64, p.NumStages), Reduce: make([]float64, p.NumStages), Gather: make([]float64, p.NumStages)}
	for _, c := range q.Chunks {
		var pass [3]float64
		c.Flops = 0
		for i, ph := range c.Phases {
			if ph.Func != nil {
				a := m.function(ph.Func)
				pass[i] = a.seconds
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
			if n := float64(p.ShardSize); sp.Shared {
				t.Gather[s] += (n-1)/n*float64(sp.Param.Type.Bytes())/costs.Link + costs.Latency
			}
			// A reduce-scatter and an all-gather move (d-1)/d of the bytes each.
			if d := float64(q.Degree); d > 1 && len(sp.Accumulators) > 0 && sp.Owner == s {
				t.Reduce[s] += 2*(d-1)/d*float64(sp.Param.Type.Bytes())/costs.Link + 2*costs.Latency
			}
		}
	}
	return t
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
