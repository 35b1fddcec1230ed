// Package gradreduce ends a training step: behind the last weight pass of a stage its gradients are complete. Those of
// parameters that another stage owns go there; the owner folds the reads of each parameter, sums the fold over the ranks of
// the stage and runs the optimizer, once per parameter and step; the new values of shared parameters come back.
package gradreduce

import "github.com/ppc-lang/ppc/plan"

// Run appends the end of the step to every stage of a training program. norm says that the update depends on all
// gradients, gather on which stages ranks tell each other what they have updated.
func Run(p *plan.Program, norm bool, gather func(stage int) bool) {
	if !p.Train {
		return
	}
	for s := range p.Actions {
		shared := func(send, value bool, kind plan.ActionKind) {
			for _, m := range p.Shared {
				mine, peer := m.To, m.From
				if send {
					mine, peer = m.From, m.To
				}
				if mine == s && m.Value == value {
					p.Actions[s] = append(p.Actions[s], plan.Action{Kind: kind, Chunk: -1, Message: m.ID, Peer: peer})
				}
			}
		}
		shared(true, false, plan.SendGrad)
		shared(false, false, plan.RecvGrad)
		if p.Degree > 1 {
			p.Actions[s] = append(p.Actions[s], plan.Action{Kind: plan.Reduce, Chunk: -1, Message: -1, Peer: -1})
		}
		if norm {
			p.Actions[s] = append(p.Actions[s], plan.Action{Kind: plan.Norm, Chunk: -1, Message: -1, Peer: -1})
		}
		p.Actions[s] = append(p.Actions[s], plan.Action{Kind: plan.Update, Chunk: -1, Message: -1, Peer: -1})
		if gather(s) {
			p.Actions[s] = append(p.Actions[s], plan.Action{Kind: plan.Gather, Chunk: -1, Message: -1, Peer: -1})
		}
		shared(true, true, plan.SendParam)
		shared(false, true, plan.RecvParam)
	}
}
