// Package broadcast gives every stage the results of an inference program. A stage that computes results sends those of a
// micro-batch to each other stage right behind its pass; receives stand behind all passes of a stage, where nothing waits
// for them but the end of the program. Both sides have a slot per micro-batch, so no pass ever waits for such a send.
package broadcast

import (
	"github.com/ppc-lang/ppc/plan"
)

// Run adds the buffers, messages and actions to program number index of the plan, whose actions are complete otherwise.
func Run(p *plan.Plan, index int) {
	q := p.Programs[index]
	chunkOn := make([]int, p.NumStages) // any chunk of the stage: it names the stage in messages
	for c := len(q.Chunks) - 1; c >= 0; c-- {
		chunkOn[q.Chunks[c].Stage] = c
	}
	for from := range p.NumStages {
		outputs := distinct(q, from)
		if len(outputs) == 0 {
			continue
		}
		for to := range p.NumStages {
			if to == from {
				continue
			}
			m := &plan.Message{ID: len(q.Messages), From: chunkOn[from], To: chunkOn[to], Result: true}
			for _, k := range outputs {
				o := &q.Outputs[k]
				it := p.Stages[from].Areas[o.Ref.Area].Items[o.Ref.Item]
				m.Tensors = append(m.Tensors, plan.Tensor{Name: q.Results[k].Name, Type: o.Type, From: o.Ref, To: keep(p.Stages[to], index, it)})
			}
			q.Messages = append(q.Messages, m)
		}
	}
	for s, list := range q.Actions {
		last := -1 // the last forward pass of a micro-batch may be that of any chunk: a result is complete behind all of them
		for _, a := range list {
			if a.Kind == plan.Forward {
				last = max(last, a.Chunk)
			}
		}
		var out, behind []plan.Action
		for _, a := range list {
			out = append(out, a)
			if a.Kind == plan.Forward && a.Chunk == last {
				out = append(out, transfers(q, s, a.Micro, true)...)
			}
		}
		for micro := range q.MicroBatches {
			if last < 0 { // a stage without passes may still have a result: an input handed through
				behind = append(behind, transfers(q, s, micro, true)...)
			}
		}
		for micro := range q.MicroBatches {
			behind = append(behind, transfers(q, s, micro, false)...)
		}
		q.Actions[s] = append(out, behind...)
	}
}

// distinct lists the outputs of a stage, one of those that share a buffer.
func distinct(q *plan.Program, stage int) (list []int) {
	seen := map[plan.Ref]bool{}
	for k, o := range q.Outputs {
		if o.Stage == stage && !seen[o.Ref] {
			seen[o.Ref] = true
			list = append(list, k)
		}
	}
	return list
}

// transfers lists the sends or receives of a stage for the results of a micro-batch.
func transfers(q *plan.Program, stage, micro int, send bool) (list []plan.Action) {
	for _, m := range q.Messages {
		mine, other, kind := m.To, m.From, plan.RecvResult
		if send {
			mine, other, kind = m.From, m.To, plan.SendResult
		}
		if m.Result && q.Chunks[mine].Stage == stage {
			list = append(list, plan.Action{Kind: kind, Chunk: mine, Micro: micro, Message: m.ID, Peer: q.Chunks[other].Stage})
		}
	}
	return list
}

// keep adds a buffer for a result to the stage's outputs of a program.
func keep(st *plan.Stage, program int, it plan.Item) plan.Ref {
	for i := range st.Areas {
		a := &st.Areas[i]
		if a.Class == plan.Outputs && a.Lifetime == plan.PerMicro && a.Program == program && a.Chunk < 0 {
			a.Items = append(a.Items, it)
			return plan.Ref{Area: i, Item: len(a.Items) - 1}
		}
	}
	st.Areas = append(st.Areas, plan.Area{Class: plan.Outputs, Lifetime: plan.PerMicro, Program: program, Chunk: -1, Slots: 1, Items: []plan.Item{it}})
	return plan.Ref{Area: len(st.Areas) - 1, Item: 0}
}
