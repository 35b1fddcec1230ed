// Package gradreduce ends a training step: behind the last weight pass of a stage its gradients are complete, the reads
// of each parameter are folded and the optimizer runs, once per parameter and step.
package gradreduce

import "github.com/ppc-lang/ppc/plan"

// Run appends the end of the step to every stage of a training program.
func Run(p *plan.Program) {
	if !p.Train {
		return
	}
	for s := range p.Actions {
		p.Actions[s] = append(p.Actions[s], plan.Action{Kind: plan.Update, Chunk: -1, Message: -1, Peer: -1})
	}
}
