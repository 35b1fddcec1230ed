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
