package ppc

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/passes/check"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
)

// A decoder that goes up and down the stages has both users of its tied weight on stage 0: one buffer, nothing sent for it.
func TestFoldedDecoder(t *testing.T) {
	text, err := os.ReadFile(gptFile)
	if err != nil {
		t.Fatal(err)
	}
	const mark = "@stage(i * stages / layers)"
	if !strings.Contains(string(text), mark) {
		t.Fatalf("%s has no %q", gptFile, mark)
	}
	folded := strings.ReplaceAll(string(text), mark, "@stage(i if i < stages else 2 * stages - 1 - i) @segment(i / stages)")
	for _, stages := range []int{2, 4} {
		run := func(o Options) outcome {
			o.File, o.Source, o.Set = gptFile, []byte(folded), map[string]string{"layers": fmt.Sprint(2 * stages)}
			p := compileFile(t, o).Plan
			if q := p.Programs[0]; !o.Unsplit {
				if len(q.Shared) > 0 {
					t.Errorf("%d stages: %d messages of shared parameters", stages, len(q.Shared))
				}
				copies := map[string]int{}
				for _, st := range p.Stages {
					for _, sp := range st.Params {
						copies[sp.Param.Name]++
					}
				}
				if copies["wte"] != 1 || p.Stages[0].Params[0].Param.Name != "wte" || len(p.Stages[0].Params[0].Accumulators) != 2 {
					t.Errorf("%d stages: %d copies of wte", stages, copies["wte"])
				}
			}
			return train(t, p, runtime.Options{DataPath: gptData, Steps: 3, Device: device.Options{Poison: true}})
		}
		for _, micro := range []int{1, 2, 4, 8} {
			want := run(Options{Unsplit: true, Stages: stages, Micro: micro})
			for _, schedule := range []string{"gpipe", "1f1b"} {
				if got := run(Options{Stages: stages, Schedule: schedule, Micro: micro}); !want.equal(got) {
					t.Errorf("%d stages, %s, %d micro-batches: differs from the unsplit program", stages, schedule, micro)
				}
			}
		}
	}
}

// What chunks of one stage share has as many slots as the order of the list needs: one less is refused by the proof.
func TestLentSlots(t *testing.T) {
	found := 0
	for _, schedule := range []string{"gpipe", "1f1b"} {
		for _, lag := range []int{0, 1, 4, 20} {
			for _, micro := range []int{2, 4, 8} {
				p := compileFile(t, Options{File: "folded.pp", Source: []byte(folded), Schedule: schedule, WLag: &lag, Micro: micro}).Plan
				for s, st := range p.Stages {
					for i := range st.Areas {
						a := &st.Areas[i]
						if a.Lifetime != plan.Lent || a.Slots == 1 {
							continue
						}
						found++
						if schedule == "1f1b" && micro == 8 && lag < 4 && a.Slots >= micro {
							t.Errorf("lag %d: %d slots on stage %d", lag, a.Slots, s)
						}
						a.Slots--
						if err := check.Run(p); err == nil || !strings.Contains(err.Error(), "(lent)") {
							t.Errorf("%s, lag %d, %d micro-batches: stage %d does with %d slots: %v", schedule, lag, micro, s, a.Slots, err)
						}
						a.Slots++
					}
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d areas", found)
	}
}

// Buffers of what leaves a stage do not grow with the number of micro-batches under 1f1b, interleaved or folded.
func TestWindows(t *testing.T) {
	for _, placement := range []string{
		"stage_config = { \"0\": 0, \"1\": 1, \"2\": 1, \"3\": 0 }\n    segment_config = { \"0\": 0, \"1\": 0, \"2\": 1, \"3\": 1 }",
		"stage_config = { \"0\": 0, \"1\": 1, \"2\": 0, \"3\": 1 }\n    interleave = true",
	} {
		most := func(micro int) int {
			src := fmt.Sprintf("train t {\n    network = Sequential([Dense(4, 4), Dense(4, 4), Dense(4, 4), Dense(4, 4)])\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n"+
				"    input x: f32[%d, 4]\n    input y: f32[%d, 4]\n    %s\n}\n", micro, micro, placement)
			n := 0
			for _, m := range compileFile(t, Options{File: "t.pp", Source: []byte(src), Micro: micro}).Plan.Programs[0].Messages {
				n = max(n, m.Window)
			}
			return n
		}
		if a, b := most(16), most(64); a != b || a > 8 {
			t.Errorf("%s: %d buffers for 16 micro-batches, %d for 64", placement, a, b)
		}
	}
}

// The schedule for people names chunks, of which a rank may have several.
func TestScheduleTable(t *testing.T) {
	files, err := plan.Files(compileFile(t, Options{File: "folded.pp", Source: []byte(folded), Schedule: "gpipe", Micro: 2}).Plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	const want = "0F0,0F1,3F0,3F1,3B0,3B1,0B0,0B1\n1F0,1F1,2F0,2F1,2B0,2B1,1B0,1B1\n"
	if got := asText(files)["schedule.csv"]; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// On every schedule the copies of the tied weight are bit-equal behind each of 20 steps, on stages that hold it at both ends.
func TestCopiesStayEqual(t *testing.T) {
	for _, schedule := range []string{"gpipe", "1f1b"} {
		p := compileFile(t, Options{File: gptFile, Stages: 4, Schedule: schedule}).Plan
		if len(p.Programs[0].Shared) != 2 {
			t.Fatalf("%d messages of shared parameters", len(p.Programs[0].Shared))
		}
		steps := 0
		runPlan(t, p, gptData, runtime.Options{Steps: 20, Epochs: 20, Digests: true, OnStep: func(s runtime.Step) {
			steps++
			if len(s.Digests) != len(p.Module.Params) {
				t.Errorf("step %d: %d digests", s.Total, len(s.Digests))
			}
		}})
		if steps != 20 {
			t.Errorf("%d steps", steps)
		}
	}
}

// Who counts chunks and states them too is told when there is nothing left to count.
func TestInterleaveBesideSegments(t *testing.T) {
	const stages = `stage_config = { "0": 0, "1": 1, "2": 0, "3": 1 }`
	for _, c := range []struct {
		entries string
		warned  bool
	}{
		{stages + "\n    segment_config = { \"0\": 0, \"1\": 0, \"2\": 1, \"3\": 1 }\n    interleave = true", true},
		{stages + "\n    segment_config = { \"0\": 0, \"1\": 0, \"2\": 1, \"3\": 1 }", false},
		{stages + "\n    segment_config = { \"0\": 0, \"1\": 0 }\n    interleave = true", false},
		{stages + "\n    interleave = true", false},
	} {
		src := "train t {\n    network = Sequential([Dense(4, 4), Dense(4, 4), Dense(4, 4), Dense(4, 4)])\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n" +
			"    input x: f32[4, 4]\n    input y: f32[4, 4]\n    micro_batch_num = 4\n    " + c.entries + "\n}\n"
		r := compileFile(t, Options{File: "t.pp", Source: []byte(src)})
		if n := len(r.Plan.Programs[0].Chunks); n != 4 {
			t.Errorf("%s: %d chunks", c.entries, n)
		}
		warned := slices.ContainsFunc(r.Warnings, func(d diag.Diagnostic) bool { return d.Code == diag.NoEffect && d.Range.Pos.IsValid() })
		if warned != c.warned {
			t.Errorf("%s: the warnings are %v", c.entries, r.Warnings)
		}
	}
}
