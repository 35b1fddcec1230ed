package schedule_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/frontend"
	"github.com/ppc-lang/ppc/passes"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
)

// chain is a network of stages x chunks cells, cell i on stage i mod stages, with a skip edge over each cell.
func chain(stages, chunks, micros int) string {
	var b strings.Builder
	n := stages * chunks
	fmt.Fprintf(&b, "cell Net {\n    for i in 0..%d { fc[i] = Dense(4, 4) }\n    construct(x) {\n        for f in fc { x = f(x) + x * 0.5 }\n        return x\n    }\n}\n", n)
	fmt.Fprintf(&b, "train t {\n    network = Net()\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n    input x: f32[%d, 4]\n    input y: f32[%d, 4]\n    micro_batch_num = %d\n    interleave = true\n    stage_config = { ", micros, micros, micros)
	for i := range n {
		fmt.Fprintf(&b, "fc[%d]: %d, ", i, i%stages)
	}
	b.WriteString("}\n}\n")
	return b.String()
}

// Every schedule of every size compiles, which proves it: no deadlock, order, pairing, buffers. Fewer micro-batches than
// stages are included.
func TestAllSizes(t *testing.T) {
	prove := func(stages, chunks, micros int, lags ...int) {
		for _, name := range schedule.Names {
			for _, lag := range lags {
				spec, list := frontend.Load("t.pp", []byte(chain(stages, chunks, micros)), frontend.Options{})
				if list.HasErrors() {
					t.Fatal(list)
				}
				_, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: stages, Schedule: name, WLag: lag})
				if err != nil {
					t.Fatalf("%d stages, %d chunks, %d micro-batches, %s, lag %d: %v", stages, chunks, micros, name, lag, err)
				}
			}
		}
	}
	for stages := 1; stages <= 5; stages++ {
		for chunks := 1; chunks <= 3; chunks++ {
			for micros := 1; micros <= 3*stages+1; micros++ {
				prove(stages, chunks, micros, 0, 2)
			}
		}
	}
	for stages := 6; stages <= 8; stages++ {
		for chunks := 1; chunks <= 4; chunks++ {
			for _, micros := range []int{1, stages - 1, stages, stages + 1, 4 * stages} {
				prove(stages, chunks, micros, 1)
			}
		}
	}
	prove(16, 1, 1, 4)
	prove(16, 2, 5, 4)
	prove(16, 1, 40, 4)
}

// The same for steps of several batches, of which gpipe makes rounds: no stage keeps more micro-batches than one batch has.
func TestSizesOfSeveralBatches(t *testing.T) {
	for stages := 1; stages <= 4; stages++ {
		for chunks := 1; chunks <= 3; chunks++ {
			for _, micros := range []int{1, 2, stages + 1} {
				for k, src := range []string{chain(stages, chunks, micros), folded(stages, chunks, micros, true)} {
					for _, name := range schedule.Names {
						spec, list := frontend.Load("t.pp", []byte(src), frontend.Options{Accumulate: 2 + micros%2})
						if list.HasErrors() {
							t.Fatal(list)
						}
						p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: stages, Schedule: name, WLag: 3})
						if err != nil {
							t.Fatalf("%d stages, %d chunks, %d micro-batches, %s, form %d: %v", stages, chunks, micros, name, k, err)
						}
						if most := inFlight(p.Programs[0]); name == "gpipe" && most != micros {
							t.Errorf("%d stages, %d chunks, %d micro-batches, form %d: a chunk keeps %d", stages, chunks, micros, k, most)
						}
					}
				}
			}
		}
	}
}

// A value may go straight from any stage to any later one, and its gradient straight back, also past stages that no gradient
// reaches: every pair of stages of every number.
func TestMessagesPastStages(t *testing.T) {
	for stages := 3; stages <= 8; stages++ {
		for from := range stages - 2 {
			for _, dead := range []bool{false, true} {
				middle := "x = cells[i](x)"
				if dead {
					middle = "y = cells[i](x)"
				}
				src := fmt.Sprintf(`cell Join {
    fc = Dense(4, 4)
    construct(x, far) { return fc(x) + far }
}
cell Net {
    for i in 0..%[1]d { cells[i] = Dense(4, 4) @stage(i) }
    far  = Dense(4, 4) @stage(%[2]d)
    last = Join() @stage(%[1]d)
    construct(x) {
        y = x
        early = far(x)
        for i in 0..%[1]d { %[3]s }
        return last(x, early)
    }
}
train t {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[48, 4]
    input y: f32[48, 4]
}
`, stages-1, from, middle)
				for _, micros := range []int{1, 2, 3, 4, 6, 8, 12, 16, 24} {
					for _, name := range schedule.Names {
						for _, lag := range []int{0, 3} {
							spec, list := frontend.Load("t.pp", []byte(src), frontend.Options{Micro: micros})
							if list.HasErrors() {
								t.Fatal(list)
							}
							if _, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: stages, Schedule: name, WLag: lag}); err != nil {
								t.Fatalf("%d stages, from stage %d, dead %t, %d micro-batches, %s, lag %d: %v", stages, from, dead, micros, name, lag, err)
							}
						}
					}
				}
			}
		}
	}
}

// The time line of that order, by hand: every pass takes a second, messages take none, weight passes follow their input
// gradients. Stage 1 idles one second before its first pass, no receive keeps it from ready work, and the last pass ends
// after 26 seconds, of which 24 are work.
func TestInterleavedTimeLine(t *testing.T) {
	spec, list := frontend.Load("t.pp", []byte(chain(2, 2, 4)), frontend.Options{})
	if list.HasErrors() {
		t.Fatal(list)
	}
	p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: 2, Schedule: "1f1b"})
	if err != nil {
		t.Fatal(err)
	}
	second := [3]float64{1, 1, 1}
	times := &schedule.Times{Pass: [][3]float64{second, second, second, second}, Update: []float64{0, 0}}
	got, err := schedule.Simulate(p.Programs[0], times, 0, &plan.Costs{Link: math.Inf(1)})
	if err != nil {
		t.Fatal(err)
	}
	if got.Makespan != 26 || got.Busy[0] != 24 || got.Busy[1] != 24 || math.Abs(got.Bubble-4.0/52) > 1e-12 {
		t.Errorf("%+v", got)
	}
	// Forwards only: stage 1 works from second 1 to 9 without a gap.
	for s, list := range p.Programs[0].Actions {
		p.Programs[0].Actions[s] = slices.DeleteFunc(slices.Clone(list), func(a plan.Action) bool {
			return a.Kind != plan.Forward && a.Kind != plan.SendForward && a.Kind != plan.RecvForward
		})
	}
	if got, err = schedule.Simulate(p.Programs[0], times, 0, &plan.Costs{Link: math.Inf(1)}); err != nil || got.Makespan != 9 || got.Busy[1] != 8 {
		t.Errorf("%+v, %v", got, err)
	}
}

// folded is a network of stages x chunks cells whose segments go up and down in turn, starting as first says.
func folded(stages, chunks, micros int, up bool) string {
	src := chain(stages, chunks, micros)
	at := strings.Index(src, "    interleave = true")
	var on, in strings.Builder
	for i := range stages * chunks {
		s := i % stages
		if up != (i/stages%2 == 0) {
			s = stages - 1 - s
		}
		fmt.Fprintf(&on, "fc[%d]: %d, ", i, s)
		fmt.Fprintf(&in, "fc[%d]: %d, ", i, i/stages)
	}
	return src[:at] + "    stage_config = { " + on.String() + "}\n    segment_config = { " + in.String() + "}\n}\n"
}

// The proof holds for every size of a placement that turns at its ends; no chunk keeps more micro-batches than there
// are stages, and what turns on a stage is no message.
func TestFoldedSizes(t *testing.T) {
	for stages := 1; stages <= 5; stages++ {
		for chunks := 1; chunks <= 3; chunks++ {
			for micros := 1; micros <= 9; micros++ {
				for k, name := range append(schedule.Names, schedule.Names...) {
					src := folded(stages, chunks, micros, k < 2)
					spec, list := frontend.Load("t.pp", []byte(src), frontend.Options{})
					if list.HasErrors() {
						t.Fatal(list)
					}
					p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: stages, Schedule: name, WLag: micros % 3})
					if err != nil {
						t.Fatalf("%d stages, %d chunks, %d micro-batches, %s: %v", stages, chunks, micros, name, err)
					}
					if stages == 1 {
						continue
					}
					q := p.Programs[0]
					for i, c := range q.Chunks {
						want := i % stages
						if (k < 2) != (i/stages%2 == 0) {
							want = stages - 1 - want
						}
						if c.Stage != want {
							t.Fatalf("chunk %d is on stage %d, want %d", i, c.Stage, want)
						}
					}
					for _, m := range q.Messages {
						if q.Chunks[m.From].Stage == q.Chunks[m.To].Stage {
							t.Errorf("message %d stays on stage %d", m.ID, q.Chunks[m.From].Stage)
						}
					}
					if most := inFlight(q); name == "1f1b" && most > stages {
						t.Errorf("%d stages, %d chunks, %d micro-batches: a chunk keeps %d", stages, chunks, micros, most)
					}
				}
			}
		}
	}
}

// The order of 1f1b on two stages that the data pass up and down, written out by hand from its rule: in each round a
// stage takes a backward pass if one is ready, else a forward pass, the oldest micro-batch first, of one the later chunk.
func TestFoldedOrder(t *testing.T) {
	spec, list := frontend.Load("t.pp", []byte(folded(2, 2, 3, true)), frontend.Options{})
	if list.HasErrors() {
		t.Fatal(list)
	}
	p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: 2, Schedule: "1f1b"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"F0.0 F0.1 F3.0 I3.0 F3.1 I3.1 I0.0 F0.2 I0.1 F3.2 I3.2 I0.2",
		"F1.0 F2.0 F1.1 F2.1 I2.0 I1.0 I2.1 I1.1 F1.2 F2.2 I2.2 I1.2",
	}
	compare(t, p, want)
}

// inFlight is how many micro-batches a chunk has run forward and not yet backward, at most.
func inFlight(q *plan.Program) int {
	most := 0
	for _, list := range q.Actions {
		n := make([]int, len(q.Chunks))
		for _, a := range list {
			switch a.Kind {
			case plan.Forward:
				n[a.Chunk]++
				most = max(most, n[a.Chunk])
			case plan.InputGrad:
				n[a.Chunk]--
			}
		}
	}
	return most
}

// The interleaved order of 1f1b on two stages with two chunks, written out by hand from its rule: a warm-up of
// 2 (chunks-1) + 2 (stages-1-stage) forwards, then one forward and one backward.
func TestInterleavedOrder(t *testing.T) {
	spec, list := frontend.Load("t.pp", []byte(chain(2, 2, 4)), frontend.Options{})
	if list.HasErrors() {
		t.Fatal(list)
	}
	p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: 2, Schedule: "1f1b"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"F0.0 F0.1 F2.0 F2.1 F0.2 I2.0 F0.3 I2.1 F2.2 I0.0 F2.3 I0.1 I2.2 I2.3 I0.2 I0.3",
		"F1.0 F1.1 F3.0 I3.0 F3.1 I3.1 F1.2 I1.0 F1.3 I1.1 F3.2 I3.2 F3.3 I3.3 I1.2 I1.3",
	}
	compare(t, p, want)
}

// compare holds the forward and backward passes of each stage against their order.
func compare(t *testing.T, p *plan.Plan, want []string) {
	t.Helper()
	for s, list := range p.Programs[0].Actions {
		var got []string
		for _, a := range list {
			if a.Kind.String() == "F" || a.Kind.String() == "I" {
				got = append(got, fmt.Sprintf("%s%d.%d", a.Kind, a.Chunk, a.Micro))
			}
		}
		if g := strings.Join(got, " "); g != want[s] {
			t.Errorf("stage %d: %s, want %s", s, g, want[s])
		}
	}
}

// A value that goes from the first stage straight to the last one, which 1f1b keeps stages-1 micro-batches behind: its
// buffers are as many as that, and both ends never wait for each other.
func TestStraightToTheLastStage(t *testing.T) {
	for stages := 3; stages <= 8; stages++ {
		src := fmt.Sprintf("cell Add {\n    fc = Dense(4, 4)\n    construct(x, far) { return fc(x) + far }\n}\ncell Net {\n    for i in 0..%d { fc[i] = Dense(4, 4) @stage(i) }\n"+
			"    add = Add() @stage(%[1]d)\n    construct(x) {\n        for i in 0..%[1]d {\n            x = fc[i](x)\n            if i == 0 { far = x }\n        }\n        return add(x, far)\n    }\n}\n"+
			"train t {\n    network = Net()\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n    input x: f32[32, 4]\n    input y: f32[32, 4]\n    micro_batch_num = 16\n}\n", stages-1)
		spec, list := frontend.Load("t.pp", []byte(src), frontend.Options{})
		if list.HasErrors() {
			t.Fatal(list)
		}
		p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: stages, Schedule: "1f1b", WLag: 2})
		if err != nil {
			t.Fatalf("%d stages: %v", stages, err)
		}
		for _, m := range p.Programs[0].Messages {
			if m.From == 0 && m.To == stages-1 && !m.Backward && (m.Window < stages-1 || m.Window > stages+1) {
				t.Errorf("%d stages: %d buffers", stages, m.Window)
			}
		}
	}
}
