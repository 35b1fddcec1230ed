package check

import (
	"fmt"
	"slices"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// states: a buffer of a cell is read and set by the forward pass of one chunk only, which sets it with a copy behind the
// pass, so that the order of the forward passes is that of its values. In a program that generates every micro-batch has a
// buffer of its own, else there is one.
func states(p *plan.Plan, q *plan.Program) error {
	for s, st := range p.Stages {
		for _, b := range st.Buffers {
			slots := 1
			if q.Feedback != nil {
				slots = q.MicroBatches
			}
			if a := st.Areas[b.Ref.Area]; a.Slots != slots {
				return fmt.Errorf("stage %d: buffer %s has %d slots, wants %d", s, b.Name, a.Slots, slots)
			}
			user := -1
			for _, c := range q.Chunks {
				if c.Stage != s {
					continue
				}
				uses := false
				for k, ph := range c.Phases {
					if slices.Contains(ph.Results, b.Ref) {
						return fmt.Errorf("stage %d: a pass of chunk %d writes over the buffer %s", s, c.ID, b.Name)
					}
					if slices.Contains(ph.Args, b.Ref) {
						if k != int(ir.ForwardPass) {
							return fmt.Errorf("stage %d: a gradient pass of chunk %d reads the buffer %s, which has its next value then", s, c.ID, b.Name)
						}
						uses = true
					}
				}
				for _, x := range c.Stores {
					if x.From == b.Ref {
						return fmt.Errorf("stage %d: the buffer %s is the new value of another", s, b.Name)
					}
					uses = uses || x.To == b.Ref
				}
				if uses && user >= 0 {
					return fmt.Errorf("stage %d: the buffer %s is used by the chunks %d and %d", s, b.Name, user, c.ID)
				}
				if uses {
					user = c.ID
				}
			}
			for _, m := range q.Messages {
				for _, t := range m.Tensors {
					if q.Chunks[m.From].Stage == s && t.From == b.Ref || q.Chunks[m.To].Stage == s && t.To == b.Ref {
						return fmt.Errorf("stage %d: the buffer %s is part of message %d", s, b.Name, m.ID)
					}
				}
			}
		}
	}
	return nil
}

// tokens: in a program that generates, each stage that reads the input gets it from the stage that computes it, or computes it
// itself; it is received before the first pass that reads it and sent behind the pass that makes it.
func tokens(p *plan.Plan, q *plan.Program) error {
	fb := q.Feedback
	if fb == nil {
		return nil // no message says Token then: see messages
	}
	out := q.Outputs[fb.Output]
	brings := make([]*plan.Message, len(p.Stages))
	for _, m := range q.Messages {
		if !m.Token {
			continue
		}
		from, to := q.Chunks[m.From], q.Chunks[m.To].Stage
		in := p.Stages[to].Inputs[0][fb.Input]
		if brings[to] != nil || from.Stage != out.Stage || len(m.Tensors) != 1 || m.Tensors[0].From != out.Ref || m.Tensors[0].To != in || m.To != q.Reader(to, in) {
			return fmt.Errorf("message %d does not bring the result to an input of stage %d", m.ID, to)
		}
		if !slices.Contains(from.Phases[ir.ForwardPass].Results, out.Ref) {
			return fmt.Errorf("message %d leaves chunk %d, which does not compute the result", m.ID, m.From)
		}
		brings[to] = m
	}
	for s, st := range p.Stages {
		if in := st.Inputs[0][fb.Input]; in.Item >= 0 && s != out.Stage && brings[s] == nil {
			return fmt.Errorf("nothing brings the result to the input of stage %d", s)
		}
		done := make([][2]int, len(q.Chunks)) // micro-batches: forward passes, and receives of a token
		for _, a := range q.Actions[s] {
			switch a.Kind {
			case plan.Forward:
				if m := brings[s]; m != nil && m.To == a.Chunk && done[a.Chunk][1] <= a.Micro {
					return fmt.Errorf("stage %d: %s of micro-batch %d before its token is received", s, a.Kind, a.Micro)
				}
				done[a.Chunk][0]++
			case plan.RecvToken:
				if done[q.Messages[a.Message].To][0] > a.Micro {
					return fmt.Errorf("stage %d: %s of micro-batch %d behind the pass that reads it", s, a.Kind, a.Micro)
				}
				done[q.Messages[a.Message].To][1]++
			case plan.SendToken:
				if done[q.Messages[a.Message].From][0] <= a.Micro {
					return fmt.Errorf("stage %d: %s of micro-batch %d before the pass that makes it", s, a.Kind, a.Micro)
				}
			}
		}
	}
	return nil
}
