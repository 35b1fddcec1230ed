package check

import (
	"fmt"
	"slices"

	"github.com/ppc-lang/ppc/plan"
)

// arguments: what a pass reads has been made or received for its micro-batch before, also where another chunk of the stage
// makes it and no message orders the two. Inputs and what outlives the step are there from the start.
func arguments(p *plan.Plan, q *plan.Program) error {
	for s, st := range p.Stages {
		// Whoever writes an item: passes count from 0, three for each chunk, and messages behind them.
		writers := map[plan.Ref][]int{}
		first := 3 * len(q.Chunks)
		for _, c := range q.Chunks {
			if c.Stage != s {
				continue
			}
			for pass, ph := range c.Phases {
				for _, r := range ph.Results {
					writers[r] = append(writers[r], 3*c.ID+pass)
				}
			}
		}
		for _, m := range q.Messages {
			for _, t := range m.Tensors {
				if q.Chunks[m.To].Stage == s {
					writers[t.To] = append(writers[t.To], first+m.ID)
				}
			}
		}
		needs := map[int][][]int{} // by pass: one of each list must have run
		for _, c := range q.Chunks {
			if c.Stage != s {
				continue
			}
			for pass, ph := range c.Phases {
				for _, r := range ph.Args {
					a := &st.Areas[r.Area]
					if a.Lifetime == plan.Static || a.Class == plan.InputsOf || a.Class == plan.States && a.Lifetime == plan.PerMicro {
						continue
					}
					id := 3*c.ID + pass
					others := slices.DeleteFunc(slices.Clone(writers[r]), func(w int) bool { return w == id })
					if len(others) == 0 {
						return fmt.Errorf("stage %d: nothing makes %s, which %s of chunk %d reads", s, a.Items[r.Item].Name, plan.ActionKind(pass), c.ID)
					}
					if !slices.ContainsFunc(needs[id], func(n []int) bool { return slices.Equal(n, others) }) {
						needs[id] = append(needs[id], others)
					}
				}
			}
		}
		done := make([]int, first+len(q.Messages)) // micro-batches
		for _, a := range q.Actions[s] {
			switch {
			case a.Kind.IsRecv() && !a.Kind.IsShared():
				done[first+a.Message] = a.Micro + 1
			case a.Kind <= plan.WeightGrad:
				id := 3*a.Chunk + int(a.Kind)
				for _, n := range needs[id] {
					if !slices.ContainsFunc(n, func(w int) bool { return done[w] > a.Micro }) {
						return fmt.Errorf("stage %d: %s of micro-batch %d of chunk %d reads what is not made yet", s, a.Kind, a.Micro, a.Chunk)
					}
				}
				done[id] = a.Micro + 1
			}
		}
	}
	return nil
}
