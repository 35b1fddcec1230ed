package ppc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/verify"
)

// chunked is a chain of stages x chunks cells with a skip over each, cell i on stage i mod stages.
func chunked(stages, chunks, micros int) Options {
	var b strings.Builder
	fmt.Fprintf(&b, "cell Net {\n    for i in 0..%d { fc[i] = Dense(4, 4) @stage(i %% %d) }\n    construct(x) {\n        for f in fc { x = tanh(f(x)) + x * 0.5 }\n        return x\n    }\n}\n", stages*chunks, stages)
	fmt.Fprintf(&b, "train t {\n    network = Net()\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n    input x: f32[%d, 4]\n    input y: f32[%d, 4]\n    micro_batch_num = %d\n    interleave = true\n    epochs = 2\n    dataset = npz(\"data.npz\") | batch(%d)\n}\n", 2*micros, 2*micros, micros, 2*micros)
	return Options{File: "t.pp", Source: []byte(b.String())}
}

// late is a device whose passes take some time more.
type late struct {
	device.Device
	random *rand.Rand
}

func (d *late) Run(program, chunk int, pass ir.Pass, lo, hi int) error {
	time.Sleep(time.Duration(d.random.IntN(200)) * time.Microsecond)
	return d.Device.Run(program, chunk, pass, lo, hi)
}

func openLate(ctx context.Context, p *plan.Plan, stage int, o device.Options) (device.Device, error) {
	d, err := cpu.Open(ctx, p, stage, o)
	return &late{d, rand.New(rand.NewPCG(uint64(stage), 1))}, err
}

// compareSizes trains under every schedule like the unsplit program, and once more with ranks that come late.
func compareSizes(t *testing.T, stages, chunks, micros int) *plan.Plan {
	t.Helper()
	o := chunked(stages, chunks, micros)
	unsplit := o
	unsplit.Unsplit = true
	whole := compileFile(t, unsplit).Plan
	file := rowsFor(t, whole)
	r, err := verify.NewReference(context.Background(), whole, runtime.Options{Seed: 1, DataPath: file})
	if err != nil {
		t.Fatal(err)
	}
	var p *plan.Plan
	for _, o.Schedule = range schedule.Names {
		p = compileFile(t, o).Plan
		if d, err := r.Compare(context.Background(), p); d != nil || err != nil {
			t.Errorf("%d stages, %d chunks, %d micro-batches, %s: %+v, %v", stages, chunks, micros, o.Schedule, d, err)
		}
		res, err := runtime.Run(context.Background(), p, runtime.Options{Open: openLate, Seed: 1, DataPath: file})
		if err != nil {
			t.Fatalf("%d stages, %d chunks, %d micro-batches, %s, late: %v", stages, chunks, micros, o.Schedule, err)
		}
		if want := train(t, whole, runtime.Options{DataPath: file}); !(outcome{want.Losses, outcomeOf(res).Params}).equal(want) {
			t.Errorf("%d stages, %d chunks, %d micro-batches, %s, late: other weights", stages, chunks, micros, o.Schedule)
		}
	}
	return p
}

// As many micro-batches as stages, from one on.
func TestAsManyMicroBatchesAsStages(t *testing.T) {
	for n := 1; n <= 8; n++ {
		compareSizes(t, n, 1, n)
	}
}

// Two ranks are each other's next and previous neighbour when each has several chunks: a message is known by its chunks,
// direction and micro-batch, and no two agree in them.
func TestTwoStagesWithSeveralChunks(t *testing.T) {
	for _, chunks := range []int{2, 3, 4} {
		for _, micros := range []int{1, 2, 5} {
			p := compareSizes(t, 2, chunks, micros)
			seen := map[string]bool{}
			for s, list := range p.Programs[0].Actions {
				for _, a := range list {
					if a.Message < 0 || a.Kind.IsShared() {
						continue
					}
					m := p.Programs[0].Messages[a.Message]
					id := fmt.Sprint(s, a.Kind, m.From, m.To, m.Backward, a.Micro)
					if seen[id] || a.Peer != 1-s {
						t.Errorf("%d chunks: the action %s stands twice, or with the wrong peer", chunks, id)
					}
					seen[id] = true
				}
			}
			if want := 2 * 2 * (2*chunks - 1) * micros; len(seen) != want {
				t.Errorf("%d chunks, %d micro-batches: %d transfers at both ends, want %d", chunks, micros, len(seen), want)
			}
		}
	}
}

// Fewer micro-batches than stages, with several chunks on each: it works, whatever the remainder.
func TestFewMicroBatchesForManyChunks(t *testing.T) {
	for _, c := range [][3]int{{6, 2, 3}, {4, 2, 1}, {4, 3, 6}, {3, 2, 4}} {
		compareSizes(t, c[0], c[1], c[2])
	}
}

// What the backward pass needs is kept from the forward pass to its last use and no longer: with 1f1b stage s of S holds that of
// S - s micro-batches at most, with gpipe that of all, with one more for every weight pass that may wait.
func TestActivationsInFlight(t *testing.T) {
	for stages := 1; stages <= 6; stages++ {
		for _, micros := range []int{1, 2, stages, 2*stages + 1} {
			for _, lag := range []int{0, 2} {
				for _, name := range schedule.Names {
					o := chunked(stages, 1, micros)
					o.Schedule, o.WLag = name, &lag
					p := compileFile(t, o).Plan
					for s, st := range p.Stages {
						most := map[plan.Lifetime]int{}
						for _, a := range st.Areas {
							if a.Program == 0 {
								most[a.Lifetime] = max(most[a.Lifetime], a.Slots)
							}
						}
						input, weight := min(micros, stages-s), min(micros, stages-s+lag)
						if name == "gpipe" {
							input, weight = micros, micros
						}
						if most[plan.SavedForI] != input || most[plan.SavedForW] > weight {
							t.Errorf("%s, %d stages, %d micro-batches, lag %d: stage %d keeps %v, want %d and at most %d", name, stages, micros, lag, s, most, input, weight)
						}
					}
				}
			}
		}
	}
}

// A list that no turn of its loop has filled is empty, and a network of nothing is what goes through it.
func TestEmptyListsOfCells(t *testing.T) {
	const src = `
cell Net(n: int) {
    for i in 0..n {
        for j in 0..2 { blocks[2 * i + j] = Dense(4, 4) }
    }
    rest = Sequential([])
    head = Dense(4, 4)
    construct(x) {
        for b in blocks { x = b(x) }
        return head(rest(x))
    }
}
train t {
    network = Net(COUNT)
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]
    input y: f32[8, 4]
}
`
	for n, want := range []int{2, 6} {
		p := compileFile(t, Options{File: "t.pp", Source: []byte(strings.Replace(src, "COUNT", fmt.Sprint(n), 1))}).Plan
		if got := len(p.Module.Params); got != want {
			t.Errorf("%d turns: %d parameters, want %d", n, got, want)
		}
	}
}
