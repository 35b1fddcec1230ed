// Package feedback brings the result that a generating program feeds back to the stages that read its input. The stage that
// computes it sends it right behind the pass; another stage receives it right before the first pass that reads it, in the
// next round. A stage that has both needs no message.
package feedback

import (
	"slices"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Run adds messages and actions to program number index of the plan, whose actions are complete otherwise.
func Run(p *plan.Plan, index int) {
	q := p.Programs[index]
	out := q.Outputs[q.Feedback.Output]
	from := -1
	for _, c := range q.Chunks {
		if c.Stage == out.Stage && slices.Contains(c.Phases[ir.ForwardPass].Results, out.Ref) {
			from = c.ID
		}
	}
	for s, st := range p.Stages {
		in := st.Inputs[index][q.Feedback.Input]
		if s == out.Stage || in.Item < 0 {
			continue
		}
		to := q.Reader(s, in)
		m := &plan.Message{ID: len(q.Messages), From: from, To: to, Token: true}
		m.Tensors = []plan.Tensor{{Name: q.Inputs[q.Feedback.Input].Name, Type: out.Type, From: out.Ref, To: in}}
		q.Messages = append(q.Messages, m)
		q.Actions[s] = around(q.Actions[s], to, true, plan.Action{Kind: plan.RecvToken, Chunk: to, Message: m.ID, Peer: out.Stage})
		q.Actions[out.Stage] = around(q.Actions[out.Stage], from, false, plan.Action{Kind: plan.SendToken, Chunk: from, Message: m.ID, Peer: s})
	}
}

// around puts an action before or behind every forward pass of a chunk.
func around(list []plan.Action, chunk int, before bool, x plan.Action) (out []plan.Action) {
	for _, a := range list {
		here := a.Kind == plan.Forward && a.Chunk == chunk
		x.Micro = a.Micro
		if here && before {
			out = append(out, x)
		}
		out = append(out, a)
		if here && !before {
			out = append(out, x)
		}
	}
	return out
}
