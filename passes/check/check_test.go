package check

import (
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/plan"
)

// program is two stages with one chunk each; rank 0 sends two messages to rank 1 and gets one back.
func program(rank0, rank1 []plan.Action) *plan.Program {
	return &plan.Program{
		Name: "hand", MicroBatches: 1,
		Chunks:   []*plan.Chunk{{ID: 0, Stage: 0}, {ID: 1, Stage: 1}},
		Messages: []*plan.Message{{ID: 0, From: 0, To: 1, Window: 1}, {ID: 1, From: 1, To: 0, Window: 1}},
		Actions:  [][]plan.Action{rank0, rank1},
	}
}

func do(kind plan.ActionKind, chunk, message int) plan.Action {
	return plan.Action{Kind: kind, Chunk: chunk, Message: message}
}

// Each rank computes what needs the other's message before it sends its own.
func TestDeadlockShowsTheCycle(t *testing.T) {
	q := program(
		[]plan.Action{do(plan.RecvForward, 0, 1), do(plan.Forward, 0, -1), do(plan.SendForward, 0, 0)},
		[]plan.Action{do(plan.RecvForward, 1, 0), do(plan.Forward, 1, -1), do(plan.SendForward, 1, 1)},
	)
	err := deadlock(nil, q)
	if err == nil {
		t.Fatal("the cycle is not seen")
	}
	if n := strings.Count(err.Error(), "waits for"); n != 4 || !strings.Contains(err.Error(), "F of micro-batch 0 on stage 1") {
		t.Errorf("want a cycle of four actions, got %v", err)
	}
}

func TestNoDeadlock(t *testing.T) {
	q := program(
		[]plan.Action{do(plan.Forward, 0, -1), do(plan.SendForward, 0, 0), do(plan.RecvForward, 0, 1), do(plan.InputGrad, 0, -1)},
		[]plan.Action{do(plan.RecvForward, 1, 0), do(plan.Forward, 1, -1), do(plan.SendForward, 1, 1)},
	)
	if err := deadlock(nil, q); err != nil {
		t.Error(err)
	}
}

// Two chunks of one stage, the second reads what the first makes; no message orders them.
func TestReaderBeforeWriter(t *testing.T) {
	ref := plan.Ref{Area: 0, Item: 0}
	p := &plan.Plan{Stages: []*plan.Stage{{Areas: []plan.Area{{Class: plan.Saved, Lifetime: plan.PerMicro, Items: []plan.Item{{Name: "v"}}}}}}}
	q := &plan.Program{MicroBatches: 1, Chunks: []*plan.Chunk{{ID: 0}, {ID: 1}}}
	q.Chunks[0].Phases[0].Results = []plan.Ref{ref}
	q.Chunks[1].Phases[0].Args = []plan.Ref{ref}
	q.Actions = [][]plan.Action{{do(plan.Forward, 0, -1), do(plan.Forward, 1, -1)}}
	if err := arguments(p, q); err != nil {
		t.Error(err)
	}
	q.Actions = [][]plan.Action{{do(plan.Forward, 1, -1), do(plan.Forward, 0, -1)}}
	if err := arguments(p, q); err == nil || !strings.Contains(err.Error(), "F of micro-batch 0 of chunk 1") {
		t.Errorf("the reader comes first: %v", err)
	}
	q.Chunks[0].Phases[0].Results = nil
	if err := arguments(p, q); err == nil || !strings.Contains(err.Error(), "nothing makes v") {
		t.Errorf("nobody writes: %v", err)
	}
}

// Two ranks with two chunks each, written by hand: rank 0 has chunks 0 and 2, rank 1 has 1 and 3. If rank 0 asks for what
// chunk 2 needs before it computes chunk 0, and rank 1 for the next activation before it makes that, both wait for ever.
// With every receive behind the compute that does not need it, the same transfers are fine.
func TestReceiveAheadOfReadyWork(t *testing.T) {
	step := func(kind plan.ActionKind, chunk, message, micro int) plan.Action {
		return plan.Action{Kind: kind, Chunk: chunk, Message: message, Micro: micro}
	}
	ranks := func(ahead bool) *plan.Program {
		q := &plan.Program{
			Name: "hand", MicroBatches: 2,
			Chunks:   []*plan.Chunk{{ID: 0, Stage: 0}, {ID: 1, Stage: 1}, {ID: 2, Stage: 0}, {ID: 3, Stage: 1}},
			Messages: []*plan.Message{{ID: 0, From: 0, To: 1, Window: 2}, {ID: 1, From: 1, To: 2, Window: 2}},
		}
		first, second := step(plan.RecvForward, 2, 1, 0), step(plan.Forward, 0, -1, 1)
		third, fourth := step(plan.RecvForward, 1, 0, 1), step(plan.Forward, 1, -1, 0)
		if !ahead {
			first, second, third, fourth = second, first, fourth, third
		}
		q.Actions = [][]plan.Action{
			{step(plan.Forward, 0, -1, 0), step(plan.SendForward, 0, 0, 0), first, second, step(plan.SendForward, 0, 0, 1), step(plan.Forward, 2, -1, 0)},
			{step(plan.RecvForward, 1, 0, 0), third, fourth, step(plan.SendForward, 1, 1, 0), step(plan.Forward, 1, -1, 1)},
		}
		return q
	}
	err := deadlock(nil, ranks(true))
	if err == nil {
		t.Fatal("the cycle is not seen")
	}
	for _, part := range []string{"F of micro-batch 1 on stage 0", "message 1 of micro-batch 0 from stage 1 to stage 0", "F of micro-batch 0 on stage 1", "message 0 of micro-batch 1 from stage 0 to stage 1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the cycle lacks %q: %v", part, err)
		}
	}
	if n := strings.Count(err.Error(), "waits for"); n != 4 {
		t.Errorf("the cycle has %d actions: %v", n, err)
	}
	if err := deadlock(nil, ranks(false)); err != nil {
		t.Error(err)
	}
}

// A gradient back and an activation forth between two stages never block each other, in whatever order either side posts
// them: each message has a queue of its own.
func TestBackAndForth(t *testing.T) {
	q := program(nil, nil)
	q.Messages[1].Backward = true
	a, b := do(plan.SendForward, 0, 0), do(plan.RecvBackward, 0, 1)
	c, d := do(plan.RecvForward, 1, 0), do(plan.SendBackward, 1, 1)
	for _, rank0 := range [][]plan.Action{{a, b}, {b, a}} {
		for _, rank1 := range [][]plan.Action{{c, d}, {d, c}} {
			q.Actions = [][]plan.Action{append(rank0, do(plan.InputGrad, 0, -1)), append(rank1, do(plan.Forward, 1, -1))}
			if err := deadlock(nil, q); err != nil {
				t.Error(err)
			}
		}
	}
}
