package ppc

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/passes/check"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

var (
	sizesOfABatch = regexp.MustCompile(`(input \w+ *: \w+\[|\| batch\(|micro_batch_num *= )(\d+)`)
	accumulated   = regexp.MustCompile(` *accumulate *= \d+\n`)
)

// joined is a model that accumulates over that many batches in its other form: one batch with all the rows.
func joined(src string, batches int) string {
	src = accumulated.ReplaceAllString(src, "")
	return sizesOfABatch.ReplaceAllStringFunc(src, func(s string) string {
		m := sizesOfABatch.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2])
		return m[1] + strconv.Itoa(n*batches)
	})
}

// The law: batches of n rows and M micro-batches that are accumulated K at a time give the losses and weights of batches of K x n
// rows and K x M micro-batches, to the bit, on every cut, schedule, lag and number of ranks, with buffers poisoned at the end of
// their planned life. Rows that fill no step are left out by both.
func TestRandomModelsAccumulate(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := modelgen.DrawDecoder(drawn{r})
		batches := rapid.IntRange(2, 5).Draw(r, "batches")
		file := writeData(t, &m, (2*batches+1)*m.Batch)
		micro := 1 << rapid.IntRange(0, 3).Draw(r, "micro")
		degree := 1 << rapid.IntRange(0, 3-bits(micro)).Draw(r, "degree")
		reduction := rapid.SampledFrom([]string{"sum", "mean"}).Draw(r, "reduction")
		level := rapid.IntRange(0, 3).Draw(r, "level")
		strategy := rapid.SampledFrom([]string{"data_parallel", "full_batch"}).Draw(r, "strategy")
		mean := rapid.Bool().Draw(r, "mean")
		run := func(src string, o Options) (outcome, bool) {
			o.File, o.Verify = "random.pp", true
			o.Source = []byte(strings.Replace(src, "    micro_batch_num", fmt.Sprintf("    optimizer_shard = { level: %d, threshold: 0 }\n    gradients_mean = %t\n    dataset_strategy = %s\n    micro_batch_num", level, mean, strategy), 1))
			c, err := Compile(context.Background(), o)
			if err != nil && Diagnostics(err)[0].Code == diag.MixesRows {
				return outcome{}, false
			}
			if err != nil {
				r.Fatalf("%v\n%s", Diagnostics(err), o.Source)
			}
			return train(t, c.Plan, runtime.Options{DataPath: file, Epochs: 2, Reduction: reduction, Device: device.Options{Poison: true}}), true
		}
		want, ok := run(joined(m.Unmarked(), batches), Options{Stages: 1, Devices: degree, Micro: batches * micro})
		if !ok {
			r.Skip()
		}
		cut := rapid.SampledFrom(m.Cuts).Draw(r, "cut")
		lag := rapid.IntRange(0, 5).Draw(r, "lag")
		o := Options{
			Micro: micro, Accumulate: batches, WLag: &lag, Devices: cut.Stages * degree, Schedule: rapid.SampledFrom(schedule.Names).Draw(r, "schedule"),
			LazyInline: rapid.SampledFrom([]string{"auto", "marked", "off"}).Draw(r, "lazyinline"),
		}
		if got, _ := run(m.With(cut), o); len(want.Losses) != 4 || !want.equal(got) {
			r.Fatalf("%d batches of %d micro-batches, %d stages x %d ranks, %s: other bits than one batch\n%s", batches, micro, cut.Stages, degree, o.Schedule, m.With(cut))
		}
	})
}

// accumulating is kept in its two forms, with further entries: several batches of 8 rows, and one batch of as many.
func accumulating(t *testing.T, l layout, batches int, entries string) (several, one *plan.Plan) {
	t.Helper()
	const micro = "micro_batch_num = 2"
	several = l.compile(t, micro, fmt.Sprintf("%s\n    accumulate = %d\n    %s", micro, batches, entries))
	one = l.compile(t, micro, fmt.Sprintf("micro_batch_num = %d\n    %s", 2*batches, entries),
		"batch(8)", fmt.Sprintf("batch(%d)", 8*batches), "i32[8]", fmt.Sprintf("i32[%d]", 8*batches))
	return several, one
}

// What may go wrong with a sum over several batches: both forms train with the same bits in every loss and weight, the same scale
// of the loss, and the same states of the optimizer and buffers, with random numbers and a rate that follows the updates.
func TestAccumulateEqualsJoined(t *testing.T) {
	file := keptData(t)
	cases := []struct {
		layout  layout
		batches int
	}{{layout{1, 1, 1, 0}, 3}, {layout{2, 2, 1, 0}, 2}, {layout{3, 1, 2, 1}, 3}, {layout{2, 1, 2, 2}, 3}, {layout{2, 2, 2, 3}, 2}}
	for i, entry := range []string{"", "micro_reduction = mean", "clip_norm = 0.05", "clip_value = 0.001", "gradients_mean = false", "dataset_strategy = full_batch"} {
		for k, c := range cases {
			name := schedule.Names[(i+k)%len(schedule.Names)]
			several, one := accumulating(t, c.layout, c.batches, entry+"\n    schedule = \""+name+"\"")
			run := func(p *plan.Plan) (trace, map[string][]byte) {
				dir := t.TempDir()
				got := keptRun(t, p, runtime.Options{DataPath: file, Steps: 3, Checkpoint: runtime.Checkpoint{Dir: dir}})
				return got, tensors(t, filepath.Join(dir, "step-3"))
			}
			want, kept := run(one)
			got, saved := run(several)
			if !slices.Equal(want.steps, got.steps) || !maps.EqualFunc(want.params, got.params, slices.Equal[[]uint32]) {
				t.Errorf("%s, %d batches, %s, %s: other bits than one batch", c.layout, c.batches, name, entry)
			}
			if err := equalTensors(kept, saved); err != nil {
				t.Errorf("%s, %d batches, %s, %s: %v", c.layout, c.batches, name, entry, err)
			}
		}
	}
}

// A checkpoint of one form is gone on with in the other. A step of another number of rows would go on with other rows.
func TestCheckpointsOfBothForms(t *testing.T) {
	file := keptData(t)
	several, one := accumulating(t, layout{2, 1, 1, 0}, 3, "schedule = gpipe")
	whole := keptRun(t, one, runtime.Options{DataPath: file, Steps: 9})
	for _, forms := range [][2]*plan.Plan{{several, one}, {one, several}} {
		dir := t.TempDir()
		keptRun(t, forms[0], runtime.Options{DataPath: file, Steps: 5, Checkpoint: runtime.Checkpoint{Dir: dir}})
		rest := keptRun(t, forms[1], runtime.Options{DataPath: file, Steps: 9, Checkpoint: runtime.Checkpoint{Resume: dir}})
		if !slices.Equal(rest.steps, whole.steps[5:]) || !maps.EqualFunc(rest.params, whole.params, slices.Equal[[]uint32]) {
			t.Error("the run that went on has other bits")
		}
		other, _ := accumulating(t, layout{1, 1, 1, 0}, 2, "")
		_, err := runtime.Run(context.Background(), other, runtime.Options{Open: cpu.Open, Seed: 3, DataPath: file, Log: discard, Checkpoint: runtime.Checkpoint{Resume: dir}})
		if text := Diagnostics(err)[0].Error(); !strings.Contains(text, "a step of the checkpoint takes 24 rows, one of this run 16") {
			t.Error(text)
		}
	}
}

// A25: the gradient of a step is the sum over all micro-batches of all its batches, or the mean; nothing is scaled once more for
// every batch. For w * x and the square of its distance from y it is known: four micro-batches of two rows, accumulated once, twice,
// five times.
func TestAccumulatedGradientByHand(t *testing.T) {
	const rate, micros, rows = 0.125, 4, 2
	x := func(i int) float64 { return float64(i%7-3) / 4 }
	y := func(i int) float64 { return float64(i%5-2) / 2 }
	for _, batches := range []int{1, 2, 5} {
		for _, reduction := range []string{"sum", "mean"} {
			src := fmt.Sprintf(`
cell Net {
    param w: f32[1, 1] = ones()
    construct(x) { return matmul(x, w) }
}
train t {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = %v)
    input x: f32[%[2]d, 1]
    input y: f32[%[2]d, 1]
    micro_batch_num = %[3]d
    micro_reduction = %[4]s
    accumulate = %[5]d
    dataset = npz("data.npz") | batch(%[2]d)
}
`, rate, micros*rows, micros, reduction, batches)
			n := batches * micros * rows
			xs, ys := make([]float32, 2*n), make([]float32, 2*n)
			for i := range xs {
				xs[i], ys[i] = float32(x(i)), float32(y(i))
			}
			file := filepath.Join(t.TempDir(), "data.npz")
			if err := data.WriteNPZ(file, []data.Array{data.NewFloat32("x", []int{2 * n, 1}, xs), data.NewFloat32("y", []int{2 * n, 1}, ys)}); err != nil {
				t.Fatal(err)
			}
			w, losses := 1.0, []float64{}
			for step := range 2 {
				loss, gradient := 0.0, 0.0
				for i := step * n; i < (step+1)*n; i++ { // each micro-batch has the mean over its rows
					d := w*x(i) - y(i)
					loss, gradient = loss+d*d/rows, gradient+2*d*x(i)/rows
				}
				if reduction == "mean" {
					loss, gradient = loss/float64(batches*micros), gradient/float64(batches*micros)
				}
				losses, w = append(losses, loss), w-rate*gradient
			}
			for _, text := range []string{src, joined(src, batches)} {
				got := train(t, compileFile(t, Options{File: "t.pp", Source: []byte(text)}).Plan, runtime.Options{DataPath: file})
				for i, want := range losses {
					if loss := math.Float64frombits(got.Losses[i]); len(got.Losses) != 2 || !(math.Abs(loss-want) <= 1e-5*want) {
						t.Errorf("%d batches, %s: the losses are %v, want %v", batches, reduction, loss, losses)
					}
				}
				if last := float64(math.Float32frombits(got.Params["w"][0])); !(math.Abs(last-w) <= 1e-5*math.Abs(w)) {
					t.Errorf("%d batches, %s: the weight is %v, want %v", batches, reduction, last, w)
				}
			}
		}
	}
}

// A gradient that is not finite in one micro-batch of one batch skips the step of all batches, once; a loss of sums and counts
// stays one, and a construct takes all inputs.
func TestOverflowInOneBatch(t *testing.T) {
	const src = `
train t {
    network = Sequential([Dense(4, 4) @stage(0), Dense(4, 4) @stage(1)])
    optimizer = SGD(lr = 0.01, momentum = 0.9)
    construct(x, y, weight) {
        d = network(x) - y
        return ratio(sum(d * d * weight), sum(weight)), mean(d)
    }
    input x: f32[4, 4]
    input y: f32[4, 4]
    input weight: f32[4, 1]
    micro_batch_num = 2
    accumulate = 3
    loss_scale = { initial: 64, window: 2 }
    dataset = npz("data.npz") | batch(4)
}
`
	const rows = 5 * 12
	arrays := []data.Array{}
	for k, width := range []int{4, 4, 1} {
		v := make([]float32, rows*width)
		for i := range v {
			v[i] = float32(math.Sin(float64(i*(k+1))) + 1)
		}
		if k == 0 {
			v[4*(2*12+6)] = 1e30 // in the second batch of the third step
		}
		arrays = append(arrays, data.NewFloat32([]string{"x", "y", "weight"}[k], []int{rows, width}, v))
	}
	file := filepath.Join(t.TempDir(), "data.npz")
	if err := data.WriteNPZ(file, arrays); err != nil {
		t.Fatal(err)
	}
	run := func(text string, o Options) ([]string, outcome) {
		var steps []string
		o.File, o.Source = "t.pp", []byte(text)
		r := runPlan(t, compileFile(t, o).Plan, file, runtime.Options{Norms: true, OnStep: func(s runtime.Step) {
			steps = append(steps, fmt.Sprintf("%x %x %v %v", s.Loss, s.Norms, s.Skipped, s.LossScale))
		}})
		return steps, outcomeOf(r)
	}
	want, params := run(joined(src, 3), Options{Unsplit: true})
	skipped := func(s string) bool { return strings.Contains(s, " true ") }
	if len(want) != 5 || !skipped(want[2]) || slices.ContainsFunc(slices.Delete(slices.Clone(want), 2, 3), skipped) {
		t.Fatalf("%q", want)
	}
	for _, name := range schedule.Names {
		for _, text := range []string{src, joined(src, 3)} {
			if got, out := run(text, Options{Schedule: name}); !slices.Equal(got, want) || !out.equal(params) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}

// What accumulating is for: the memory of a step does not grow with the number of its batches. Under gpipe what the backward
// passes need is that of one batch; under 1f1b that of as many micro-batches as there are stages and weight passes may wait. (With
// several chunks 1f1b also goes by how many micro-batches are left over by the stages: as many of five batches as of eight.)
// Only the results, a number for each micro-batch, are those of all.
func TestMemoryOfBatches(t *testing.T) {
	const micros = 4
	for stages := 1; stages <= 3; stages++ {
		for chunks := 1; chunks <= 2; chunks++ {
			o := chunked(stages, chunks, micros)
			file := ""
			bytes := func(batches int, join bool) (out [][]int) {
				q := o
				q.Accumulate = batches
				if join {
					q.Accumulate, q.Source = 1, []byte(joined(string(o.Source), batches))
				}
				p := compileFile(t, q).Plan
				if file == "" {
					long := o
					long.Accumulate = 8
					file = rowsFor(t, compileFile(t, long).Plan)
				}
				train(t, p, runtime.Options{DataPath: file, Steps: 1, Device: device.Options{Poison: true}}) // the device counts the same
				for _, s := range p.Memory[0].Stages {
					of := slices.Clone(s.ByClass)
					of[slices.Index(plan.Classes, plan.Outputs)] = 0
					out = append(out, of)
				}
				return out
			}
			none := 0
			for _, o.Schedule = range schedule.Names {
				for _, lag := range []*int{&none, nil} {
					o.WLag = lag
					five, eight := bytes(5, false), bytes(8, false)
					if !slices.EqualFunc(five, eight, slices.Equal[[]int]) {
						t.Errorf("%d stages, %d chunks, %s: five batches take %v, eight take %v", stages, chunks, o.Schedule, five, eight)
					}
					if o.Schedule != "gpipe" {
						continue
					}
					one, two, join := bytes(1, false), bytes(2, false), bytes(2, true)
					for s := range one {
						for k, class := range plan.Classes {
							if two[s][k] != eight[s][k] || two[s][k] > one[s][k] {
								t.Errorf("%d stages, %d chunks: stage %d takes %d bytes of %s with one batch, %d with two, %d with eight", stages, chunks, s, one[s][k], class, two[s][k], eight[s][k])
							}
							if class == plan.Saved && join[s][k] <= two[s][k] {
								t.Errorf("%d stages, %d chunks: stage %d takes %d bytes of %s with one batch of all rows, %d with two", stages, chunks, s, join[s][k], class, two[s][k])
							}
						}
					}
				}
			}
		}
	}
}

// Inputs that passes load have no slot too few: the proof refuses one less.
func TestLoadedSlots(t *testing.T) {
	for _, name := range schedule.Names {
		o := chunked(2, 2, 3)
		o.Schedule, o.Accumulate = name, 3
		p := compileFile(t, o).Plan
		found := 0
		for s, st := range p.Stages {
			for i := range st.Areas {
				if a := &st.Areas[i]; a.Lifetime == plan.Loaded && a.Slots > 1 {
					found++
					a.Slots--
					if err := check.Run(p); err == nil || !strings.Contains(err.Error(), "would overwrite buffers (loaded)") {
						t.Errorf("%s: stage %d with a slot less: %v", name, s, err)
					}
					a.Slots++
				}
			}
		}
		if err := check.Run(p); found == 0 || err != nil {
			t.Errorf("%s: %d areas are loaded; %v", name, found, err)
		}
	}
}

// The micro-batch number of a model is that of a batch, so what depends on it does not depend on how many batches a step has.
func TestMicroBatchesOfABatch(t *testing.T) {
	const src = `
cell Kept {
    buffer last: f32[8 / micro_batch_num, 4] = zeros()
    construct(x) {
        last = 0.5 * last + x
        return x + last
    }
}
train t {
    network = Sequential([Dense(4, 4), Kept()])
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]
    input y: f32[8, 4]
    micro_batch_num = 4
    accumulate = 3
    dataset = npz("data.npz") | batch(8)
    eval test {
        dataset = npz("data.npz") | batch(8)
        metrics = { loss: MSELoss() }
    }
}
`
	p := compileFile(t, Options{File: "t.pp", Source: []byte(src)}).Plan
	train, test := p.Programs[0], p.Programs[1]
	if train.Batch != 24 || train.MicroBatches != 12 || test.Batch != 8 || test.MicroBatches != 4 {
		t.Errorf("training has %d rows in %d micro-batches, the evaluation %d in %d", train.Batch, train.MicroBatches, test.Batch, test.MicroBatches)
	}
}
