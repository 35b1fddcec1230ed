// Package schedule orders the actions of every rank and places its sends and receives.
//
// F, I and W of a chunk run in ascending micro-batch order under every schedule, so that sums over micro-batches do.
// A receive stands right before the first action that needs it, a send right behind the action that makes it, W behind
// the send of its I.
package schedule

import (
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/plan"
)

// Names of the schedules.
var Names = []string{"gpipe", "1f1b"}

// Known reports whether there is a schedule of that name; the diagnostic suggests one.
func Known(name string, at diag.Pos) diag.List {
	for _, n := range Names {
		if n == name {
			return nil
		}
	}
	d := diag.Errorf(diag.BadSchedule, diag.At(at), "unknown schedule `%s`", name)
	if s := diag.Suggest(name, Names); s != "" {
		d = d.WithRepair("did you mean `%s`? The schedules are gpipe and 1f1b", s)
	} else {
		d = d.WithRepair("the schedules are gpipe and 1f1b")
	}
	return diag.List{d}
}

// step is a compute action before communication is placed.
type step struct {
	kind  plan.ActionKind
	chunk int
	micro int
}

// orders lists the forward and the backward steps of the chunks of a stage: micro-batches in groups; within a group chunk by
// chunk, upwards forward and downwards backward. One group gives the order of gpipe.
func orders(groups []int, chunks []int) (forward, backward []step) {
	start := 0
	for _, n := range groups {
		for v := range chunks {
			for i := range n {
				forward = append(forward, step{plan.Forward, chunks[v], start + i})
				backward = append(backward, step{plan.InputGrad, chunks[len(chunks)-1-v], start + i})
			}
		}
		start += n
	}
	return forward, backward
}

// gpipe runs all forwards of a batch, then all its backwards, and then the next batch: what the backwards need is kept of one
// batch at a time.
func gpipe(chunks []int, micros, batches int) []step {
	var out []step
	round := micros / batches
	for first := 0; first < micros; first += round {
		forward, backward := orders([]int{round}, chunks)
		for _, x := range append(forward, backward...) {
			x.micro += first
			out = append(out, x)
		}
	}
	return out
}

// oneForwardOneBackward warms up, then alternates, on the stage at a position in the row of stages that the data pass. With
// one chunk it keeps at most stages-position micro-batches in flight (PipeDream-Flush). With several (interleaved, after
// Megatron-LM and MindSpore) the micro-batches go in groups of as many as there are stages, the first with what is left
// over, and the warm-up is the first group on all chunks but the last, and two steps for every stage behind. Fewer
// micro-batches than stages are one group, which cannot alternate: all forwards come first.
func oneForwardOneBackward(position, stages int, chunks []int, micros int) []step {
	groups, warm := []int{micros}, micros*len(chunks)
	switch {
	case len(chunks) == 1:
		warm = stages - position - 1
	case micros >= stages:
		groups = []int{stages + micros%stages}
		for n := groups[0]; n < micros; n += stages {
			groups = append(groups, stages)
		}
		warm = groups[0]*(len(chunks)-1) + 2*(stages-1-position)
	}
	forward, backward := orders(groups, chunks)
	warm = min(warm, len(forward))
	out := append([]step{}, forward[:warm]...)
	for i := range backward {
		if warm+i < len(forward) {
			out = append(out, forward[warm+i])
		}
		out = append(out, backward[i])
	}
	return out
}

// Run fills p.Actions. Chunks are numbered along the data. The micro-batches of a step are those of as many batches.
func Run(p *plan.Program, name string, stages, batches int) {
	own := make([][]int, stages) // chunks of each stage
	for _, c := range p.Chunks {
		own[c.Stage] = append(own[c.Stage], c.ID)
	}
	steps := make([][]step, stages)
	switch {
	case !p.Train:
		for s := range steps {
			steps[s], _ = orders([]int{p.MicroBatches}, own[s])
		}
	case name == "gpipe":
		for s := range steps {
			steps[s] = gpipe(own[s], p.MicroBatches, batches)
		}
	case repeats(p.Chunks, stages):
		for position, c := range p.Chunks[:stages] {
			steps[c.Stage] = oneForwardOneBackward(position, stages, own[c.Stage], p.MicroBatches)
		}
	default:
		steps = backwardFirst(p.Chunks, stages, p.MicroBatches)
	}
	p.Actions = make([][]plan.Action, stages)
	for s := range steps {
		for _, x := range steps[s] {
			if c := p.Chunks[x.chunk]; !c.Empty() {
				p.Actions[s] = append(p.Actions[s], place(p, c, x)...)
			}
		}
	}
}

// repeats reports whether the data pass the stages in the same order again and again.
func repeats(chunks []*plan.Chunk, stages int) bool {
	for k, c := range chunks {
		if c.Stage != chunks[k%stages].Stage {
			return false
		}
	}
	return true
}

// place adds the messages of a chunk to a compute action.
func place(p *plan.Program, c *plan.Chunk, s step) []plan.Action {
	var out []plan.Action
	transfers := func(micro int, backward, send bool) {
		for _, m := range p.Messages {
			mine, other := m.To, m.From
			kind := plan.RecvForward
			if send {
				mine, other, kind = m.From, m.To, plan.SendForward
			}
			if m.Backward {
				kind += plan.SendBackward - plan.SendForward
			}
			if m.Backward == backward && mine == c.ID {
				out = append(out, plan.Action{Kind: kind, Chunk: c.ID, Micro: micro, Message: m.ID, Peer: p.Chunks[other].Stage})
			}
		}
	}
	back := s.kind == plan.InputGrad
	transfers(s.micro, back, false)
	// I stands for the arrival of gradients too, where a chunk has nothing to compute in it.
	if s.kind == plan.Forward || c.Phases[1].Func != nil || c.Phases[2].Func != nil {
		out = append(out, plan.Action{Kind: s.kind, Chunk: c.ID, Micro: s.micro, Message: -1, Peer: -1})
	}
	transfers(s.micro, back, true)
	if back && c.Phases[2].Func != nil {
		out = append(out, plan.Action{Kind: plan.WeightGrad, Chunk: c.ID, Micro: s.micro, Message: -1, Peer: -1})
	}
	return out
}
