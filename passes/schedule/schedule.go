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
	micro int
}

// gpipe runs all forwards, then all backwards.
func gpipe(micros int) []step {
	var out []step
	for i := range micros {
		out = append(out, step{plan.Forward, i})
	}
	for i := range micros {
		out = append(out, step{plan.InputGrad, i})
	}
	return out
}

// oneForwardOneBackward keeps at most stages-stage micro-batches in flight (PipeDream-Flush).
func oneForwardOneBackward(stage, stages, micros int) []step {
	warm := min(stages-stage, micros)
	var out []step
	for i := range warm {
		out = append(out, step{plan.Forward, i})
	}
	for i := range micros {
		out = append(out, step{plan.InputGrad, i})
		if warm+i < micros {
			out = append(out, step{plan.Forward, warm + i})
		}
	}
	return out
}

// Run fills p.Actions. Every stage has one chunk.
func Run(p *plan.Program, name string, stages int) {
	p.Actions = make([][]plan.Action, stages)
	for _, c := range p.Chunks {
		var order []step
		switch {
		case !p.Train:
			order = gpipe(p.MicroBatches)[:p.MicroBatches]
		case name == "gpipe":
			order = gpipe(p.MicroBatches)
		default:
			order = oneForwardOneBackward(c.Stage, stages, p.MicroBatches)
		}
		p.Actions[c.Stage] = append(p.Actions[c.Stage], place(p, c, order)...)
	}
}

// place adds the messages of a chunk to its compute actions.
func place(p *plan.Program, c *plan.Chunk, order []step) []plan.Action {
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
	for _, s := range order {
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
	}
	return out
}
