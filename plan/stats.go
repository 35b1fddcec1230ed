package plan

import "github.com/ppc-lang/ppc/ir"

// Stats says how much was compiled and how much of it runs.
type Stats struct {
	// Functions are the different functions of all programs and stages, Calls the places where one calls another, Ops
	// their other operations. The optimizer is one of them.
	Functions int `json:"functions"`
	Calls     int `json:"calls"`
	Ops       int `json:"ops_compiled"`
	// Executed counts the operations that all stages run in one step of the first program: every pass for every
	// micro-batch, calls followed, and in training the optimizer for every parameter.
	Executed int `json:"ops_executed"`
}

// Stats counts the plan's functions and operations.
func (p *Plan) Stats() Stats {
	var s Stats
	inside := map[*ir.Func]int{} // operations that a call of the function runs
	var count func(f *ir.Func) int
	count = func(f *ir.Func) int {
		if n, ok := inside[f]; ok {
			return n
		}
		s.Functions++
		n := 0
		for _, op := range f.Ops {
			if op.Callee != nil {
				s.Calls++
				n += count(op.Callee)
			} else {
				s.Ops++
				n++
			}
		}
		inside[f] = n
		return n
	}
	for i, q := range p.Programs {
		for _, c := range q.Chunks {
			for _, phase := range c.Phases {
				if phase.Func == nil {
					continue
				}
				if n := count(phase.Func); i == 0 {
					s.Executed += n * q.MicroBatches
				}
			}
		}
	}
	if p.Optimizer != nil && p.Programs[0].Train {
		n := count(p.Optimizer.Func)
		for stage, st := range p.Stages {
			for _, sp := range st.Params {
				if sp.Owner == stage && len(sp.Accumulators) > 0 {
					s.Executed += n
				}
			}
		}
	}
	return s
}
