package ppc

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
)

// steep is a chain of two stages whose gradients differ by orders of magnitude. trap is a parameter of the second stage whose
// gradient is not finite once it is large, though the loss stays finite.
const steep = `
cell First {
    fc = Dense(4, 4)
    construct(x) { return 0.03 * fc(x) }
}
cell Second {
    fc = Dense(4, 4)
    param trap: f32[4] = zeros()
    construct(x) {
        y = 3.0 * fc(x)
        return where(less_equal(y * 0.0, 1.0), y, exp(trap))
    }
}
cell Net {
    a = First() @stage(0)
    b = Second() @stage(1)
    construct(x) { return b(a(x)) }
}
train steep {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 0.01, momentum = 0.9)
    input x: f32[8, 4]
    input label: f32[8, 4]
    micro_batch_num = 2
    dataset = npz("data.npz", columns = ["x", "label"]) | batch(8)
    %s
}
`

// steepRun gives the steps of a run of steep and its outcome. trap is the first value of the trap.
func steepRun(t *testing.T, entries string, o Options, trap float32) ([]runtime.Step, outcome) {
	t.Helper()
	text := strings.Replace(steep, "%s", entries, 1)
	o.File, o.Source, o.Verify = "steep.pp", []byte(text), true
	c, err := Compile(context.Background(), o)
	if err != nil {
		t.Fatal(Diagnostics(err))
	}
	x, label := make([]float32, 6*8*4), make([]float32, 6*8*4)
	for i := range x {
		x[i], label[i] = float32(math.Sin(float64(i))), float32(math.Cos(float64(3*i)))
	}
	file := t.TempDir() + "/data.npz"
	if err := data.WriteNPZ(file, []data.Array{data.NewFloat32("x", []int{48, 4}, x), data.NewFloat32("label", []int{48, 4}, label)}); err != nil {
		t.Fatal(err)
	}
	initial := map[string][]float32{"b.trap": slices.Repeat([]float32{trap}, 4)}
	var steps []runtime.Step
	var losses []uint64
	r := runPlan(t, c.Plan, file, runtime.Options{Initial: from(initial), Norms: true, OnStep: func(s runtime.Step) {
		steps = append(steps, s)
		losses = append(losses, math.Float64bits(s.Loss))
	}})
	out := outcomeOf(r)
	out.Losses = losses
	return steps, out
}

// everyCut calls f with options for one stage, two stages, and ranks of both, for every schedule.
func everyCut(f func(o Options)) {
	for _, name := range schedule.Names {
		for _, degree := range []int{1, 2, 4} {
			f(Options{Schedule: name, Devices: 2 * degree})
			f(Options{Schedule: name, Unsplit: true})
		}
	}
}

// Gradients are clipped by the norm over all stages and ranks, which is the norm of the unsplit program, and by value.
func TestClippedGradients(t *testing.T) {
	for _, entry := range []string{"clip_norm = 0.1", "clip_value = 0.01", "clip_norm = 1e6"} {
		steps, want := steepRun(t, entry, Options{Unsplit: true}, 0)
		if _, free := steepRun(t, "", Options{Unsplit: true}, 0); free.equal(want) != strings.Contains(entry, "1e6") {
			t.Errorf("%s: the clip is without effect: %t", entry, free.equal(want))
		}
		first, second := 0.0, 0.0
		for i, n := range steps[0].Norms {
			if i < 2 {
				first = max(first, n)
			} else {
				second = max(second, n)
			}
		}
		if !(second > 10*first || first > 10*second) {
			t.Errorf("the norms of the stages, %v and %v, are too near each other to show anything", first, second)
		}
		everyCut(func(o Options) {
			got, out := steepRun(t, entry, o, 0)
			if o.Devices <= 2 && !want.equal(out) {
				t.Errorf("%s, %s: other bits than the unsplit program", entry, o.Schedule)
			}
			if err := want.near(out, 2e-6); err != nil {
				t.Errorf("%s, %s, %d devices: %v", entry, o.Schedule, o.Devices, err)
			}
			for i := range got {
				if a, b := steps[i].Norm, got[i].Norm; math.Abs(a-b) > 1e-5*a {
					t.Errorf("%s, %s, %d devices: the norm of step %d is %v, not %v", entry, o.Schedule, o.Devices, i, b, a)
				}
			}
		})
	}
}

// A loss scale that is a power of two changes no bit. A gradient that is not finite on one stage only makes all stages and ranks
// skip the step, and the scale follows.
func TestLossScale(t *testing.T) {
	_, free := steepRun(t, "", Options{Unsplit: true}, 0)
	if _, scaled := steepRun(t, "loss_scale = 1024", Options{Unsplit: true}, 0); !free.equal(scaled) {
		t.Error("a power of two changes the result")
	}
	_, never := steepRun(t, "loss_scale = 16", Options{Unsplit: true}, 100)
	untouched := never.Params
	everyCut(func(o Options) {
		where := fmt.Sprintf("%s, %d devices", o.Schedule, o.Devices)
		steps, out := steepRun(t, "loss_scale = { initial: 16, window: 2 }", o, 100)
		for i, s := range steps {
			if want := max(16/math.Pow(2, float64(i)), 1); !s.Skipped || s.LossScale != want {
				t.Errorf("%s: step %d is skipped: %t; its scale is %v, want %v", where, i, s.Skipped, s.LossScale, want)
			}
			if math.IsNaN(s.Loss) || math.IsInf(s.Loss, 0) {
				t.Errorf("%s: the loss is %v", where, s.Loss)
			}
		}
		if !maps.EqualFunc(out.Params, untouched, slices.Equal[[]uint32]) {
			t.Errorf("%s: skipped steps change parameters", where)
		}
		steps, out = steepRun(t, "loss_scale = { initial: 16, window: 2 }", o, 0)
		for i, s := range steps {
			if want := 16 * math.Pow(2, float64(i/2)); s.Skipped || s.LossScale != want {
				t.Errorf("%s: step %d is skipped: %t; its scale is %v, want %v", where, i, s.Skipped, s.LossScale, want)
			}
		}
		if o.Devices <= 2 && !free.equal(out) {
			t.Errorf("%s: a scale that grows changes the result", where)
		}
	})
}

// Optimizer states that ranks share out give the same bits as states that every rank has, in a part of the memory.
func TestSharedOutStates(t *testing.T) {
	const wide = `
cell Net {
    a = Dense(16, 48) @stage(0)
    b = Dense(48, 40) @stage(1)
    param w: f32[40, 16] = normal(0.1) @stage(1)
    construct(x) { return matmul(gelu(b(relu(a(x)))), w) }
}
train wide {
    network = Net()
    loss = MSELoss()
    optimizer = AdamW(lr = 0.01, groups = { "*.bias": { weight_decay: 0 } })
    input x: f32[16, 16]
    input label: f32[16, 16]
    micro_batch_num = 2
    clip_norm = 0.5
    dataset = npz("data.npz", columns = ["x", "label"]) | batch(16)
    ENTRY
}
`
	x := make([]float32, 4*16*16)
	for i := range x {
		x[i] = float32(math.Sin(float64(i * i)))
	}
	file := t.TempDir() + "/data.npz"
	if err := data.WriteNPZ(file, []data.Array{data.NewFloat32("x", []int{64, 16}, x), data.NewFloat32("label", []int{64, 16}, x)}); err != nil {
		t.Fatal(err)
	}
	run := func(entry string, degree int) (outcome, []int) {
		c, err := Compile(context.Background(), Options{File: "wide.pp", Source: []byte(strings.Replace(wide, "ENTRY", entry, 1)), Devices: 2 * degree, Verify: true})
		if err != nil {
			t.Fatal(Diagnostics(err))
		}
		files, err := plan.Files(c.Plan, nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ReadBundleFS(withFile(files, 0, files[0].Content), "wide")
		if err != nil {
			t.Fatal(err)
		}
		var states []int
		for _, m := range again.Memory[0].Stages {
			states = append(states, m.ByClass[slices.Index(plan.Classes, plan.OptState)])
		}
		return train(t, again, runtime.Options{DataPath: file, Epochs: 2}), states
	}
	for _, degree := range []int{2, 4, 8} {
		want, whole := run("", degree)
		for _, size := range []int{1, 2, degree} {
			got, states := run(fmt.Sprintf("optimizer_shard = { level: 1, threshold: 1, size: %d }", size), degree)
			if !want.equal(got) {
				t.Errorf("%d ranks, groups of %d: other bits than with whole states", degree, size)
			}
			for s := range states {
				// Biases stay whole, and parts are rounded up.
				if states[s] > whole[s]/size+whole[s]/8 || size == 1 && states[s] != whole[s] {
					t.Errorf("%d ranks, groups of %d: stage %d has %d bytes of states, %d when they are whole", degree, size, s, states[s], whole[s])
				}
			}
		}
		if got, states := run("optimizer_shard = { level: 1, threshold: 1000 }", degree); !want.equal(got) || !slices.Equal(states, whole) {
			t.Errorf("%d ranks: small parameters are shared out", degree)
		}
		if got, _ := run("dataset_strategy = full_batch", degree); !want.equal(got) {
			t.Errorf("%d ranks: reading all rows changes the result", degree)
		}
	}
}

// Without the mean over ranks gradients are as many times larger as a stage has ranks.
func TestGradientsSum(t *testing.T) {
	for _, degree := range []int{1, 2, 4} {
		mean, _ := steepRun(t, "", Options{Devices: 2 * degree}, 0)
		sum, _ := steepRun(t, "gradients_mean = false", Options{Devices: 2 * degree}, 0)
		if got := sum[0].Norm / mean[0].Norm; got != float64(degree) {
			t.Errorf("%d ranks: the first gradient is %v times as large", degree, got)
		}
	}
}

// The norm of the gradients is that of the batch: with `mean` it does not depend on the number of micro-batches, with `sum` it is as
// many times larger, on one rank per stage and on several.
func TestNormsAndMicroBatches(t *testing.T) {
	norm := func(reduction string, micro, devices int) float64 {
		steps, _ := steepRun(t, "micro_reduction = "+reduction, Options{Micro: micro, Devices: devices}, 0)
		return steps[0].Norm
	}
	want := norm("mean", 1, 2)
	for _, micro := range []int{1, 2, 4, 8} {
		for devices := 2; devices*micro <= 16; devices *= 2 {
			if got := norm("mean", micro, devices); math.Abs(got-want) > 1e-6*want {
				t.Errorf("mean, %d micro-batches, %d devices: the norm is %v, not %v", micro, devices, got, want)
			}
			if got := norm("sum", micro, devices) / float64(micro); math.Abs(got-want) > 1e-6*want {
				t.Errorf("sum, %d micro-batches, %d devices: the norm is %v times %v", micro, devices, got, micro)
			}
		}
	}
}

// A scale that grows stays one that f32 can hold: no step is skipped for its sake.
func TestLossScaleGrowsNoFurther(t *testing.T) {
	steps, _ := steepRun(t, "loss_scale = { initial: 1e30, window: 1, factor: 1e6 }", Options{Devices: 2}, 0)
	for i, s := range steps {
		if want := []float64{1e30, 1e36}[min(i, 1)]; s.LossScale != want {
			t.Errorf("the scale of step %d is %v, want %v", i, s.LossScale, want)
		}
	}
	l := plan.LossScale{Initial: 1, Factor: 3, Window: 1}
	for scale, i := 1.0, 0; i < 200; i++ {
		if scale, _ = l.Next(scale, 0, false); math.IsInf(float64(float32(scale)), 0) {
			t.Fatalf("the scale is %v after %d steps", scale, i)
		}
	}
}
