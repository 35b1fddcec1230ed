package ppc

import (
	"context"
	"io"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
	"github.com/ppc-lang/ppc/verify"
)

// drawn takes choices from rapid.
type drawn struct{ t *rapid.T }

func (d drawn) Int(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(d.t, name) }

// Drawn models compile for every kind of cut and schedule, and the IR is sound after every pass.
func TestRandomModelsCompile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := modelgen.DrawDecoder(drawn{t})
		cut := rapid.SampledFrom(m.Cuts).Draw(t, "cut")
		name := rapid.SampledFrom(schedule.Names).Draw(t, "schedule")
		_, err := Compile(context.Background(), Options{File: "random.pp", Source: []byte(m.With(cut)), Schedule: name, Verify: true})
		if err != nil {
			t.Fatalf("%v\n%s", Diagnostics(err), m.With(cut))
		}
	})
}

// writeData stores rows for a drawn model.
func writeData(t testing.TB, m *modelgen.Model, rows int) string {
	name, err := m.WriteData(t.TempDir(), rows)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// outcome is what runs are compared by: loss bits of every step, bits of all parameters, bytes predicted and counted.
type outcome struct {
	Losses []uint64
	Params map[string][]uint32
}

func (o outcome) equal(p outcome) bool {
	return slices.Equal(o.Losses, p.Losses) && maps.EqualFunc(o.Params, p.Params, slices.Equal[[]uint32])
}

// outcomeOf takes the parameters of a result.
func outcomeOf(r *runtime.Result) outcome {
	out := outcome{Params: map[string][]uint32{}}
	for _, x := range r.Params {
		bits := make([]uint32, len(x.Values))
		for i, v := range x.Values {
			bits[i] = math.Float32bits(v)
		}
		out.Params[x.Name] = bits
	}
	return out
}

// from gives first values of parameters; those that are not there have their initialisers.
func from(first map[string][]float32) func(string, []float32) (bool, error) {
	return func(name string, dst []float32) (bool, error) {
		v, ok := first[name]
		copy(dst, v)
		return ok, nil
	}
}

// runPlan runs a plan on the cpu device.
func runPlan(t testing.TB, p *plan.Plan, path string, o runtime.Options) *runtime.Result {
	t.Helper()
	o.Open, o.DataPath = cpu.Open, path
	if o.Seed == 0 {
		o.Seed = 1
	}
	o.Log = func(int) io.Writer { return io.Discard }
	r, err := runtime.Run(context.Background(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// train runs a plan and checks that the device counted the bytes the plan predicted.
func train(t testing.TB, p *plan.Plan, o runtime.Options) outcome {
	t.Helper()
	var losses []uint64
	o.OnStep = func(s runtime.Step) { losses = append(losses, math.Float64bits(s.Loss)) }
	r := runPlan(t, p, o.DataPath, o)
	out := outcomeOf(r)
	out.Losses = losses
	for _, k := range r.Ranks {
		for c, b := range k.Bytes {
			if want := p.Memory[0].Stages[k.Stage].ByClass[c]; b != want {
				t.Fatalf("rank %d allocated %d bytes of %s, the plan says %d", k.Rank, b, plan.Classes[c], want)
			}
		}
	}
	return out
}

// The law: losses and weights are bit-equal for every cut, schedule, lag and form of the functions, with buffers poisoned
// at the end of their planned life.
func TestRandomModelsEqual(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := modelgen.DrawDecoder(drawn{r})
		file := writeData(t, &m, 2*m.Batch)
		path := rapid.SampledFrom(kernel.Available()).Draw(r, "path")
		reduction := rapid.SampledFrom([]string{"sum", "mean"}).Draw(r, "reduction")
		micro := 1 << rapid.IntRange(0, 3).Draw(r, "micro")
		run := func(o Options) outcome {
			o.File, o.Micro, o.Verify = "random.pp", micro, true
			c, err := Compile(context.Background(), o)
			if err != nil {
				r.Fatalf("%v\n%s", Diagnostics(err), o.Source)
			}
			return train(t, c.Plan, runtime.Options{DataPath: file, Epochs: 2, Reduction: reduction, Device: device.Options{Path: path, Poison: true}})
		}
		want := run(Options{Source: []byte(m.Unmarked()), Unsplit: true})
		// One cut of each model: more models say more than more cuts of one.
		cut := rapid.SampledFrom(m.Cuts).Draw(r, "cut")
		lag := rapid.IntRange(0, 5).Draw(r, "lag")
		o := Options{
			Source: []byte(m.With(cut)), WLag: &lag, Schedule: rapid.SampledFrom(schedule.Names).Draw(r, "schedule"),
			LazyInline: rapid.SampledFrom([]string{"auto", "marked", "off"}).Draw(r, "lazyinline"),
		}
		if got := run(o); !want.equal(got) {
			r.Fatalf("stages %d, %+v, micro %d, path %s: differs from the unsplit program\n%s\n%s", cut.Stages, o.Schedule, micro, path, cmp.Diff(want.Losses, got.Losses), m.With(cut))
		}
		// The planner may have fewer pieces than stages: then it must say so.
		o.Source, o.Stages = []byte(m.Unmarked()), cut.Stages
		o.File = "random.pp"
		if _, err := Compile(context.Background(), o); err != nil && Diagnostics(err)[0].Code == diag.TooManyStages {
			return
		}
		if got := run(o); !want.equal(got) {
			r.Fatalf("%d stages of the planner, micro %d, lag %d %s: differs from the unsplit program\n%s\n%s", cut.Stages, micro, lag, o.Schedule, cmp.Diff(want, got), m.Unmarked())
		}
	})
}

// The same for infer blocks: every rank that has a result has that of the unsplit program, and no forward pass of a stage
// reads what was not sent.
func TestRandomInferenceEqual(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := modelgen.DrawDecoder(drawn{r})
		micro := 1 << rapid.IntRange(0, 3).Draw(r, "micro")
		build := func(o Options) *plan.Plan {
			o.File, o.Micro, o.Verify = "random.pp", micro, true
			c, err := Compile(context.Background(), o)
			if err != nil {
				r.Fatalf("%v\n%s", Diagnostics(err), o.Source)
			}
			return c.Plan
		}
		ref, err := verify.NewReference(context.Background(), build(Options{Source: []byte(m.InferUnmarked()), Unsplit: true}), runtime.Options{
			Seed: 1, DataPath: writeData(t, &m, 3*m.Batch), Device: device.Options{Path: rapid.SampledFrom(kernel.Available()).Draw(r, "path"), Poison: true},
		})
		if err != nil {
			r.Fatal(err)
		}
		cut := rapid.SampledFrom(m.Cuts).Draw(r, "cut")
		o := Options{
			Source: []byte(m.InferWith(cut)), Schedule: rapid.SampledFrom(schedule.Names).Draw(r, "schedule"),
			LazyInline: rapid.SampledFrom([]string{"auto", "marked", "off"}).Draw(r, "lazyinline"),
		}
		if d, err := ref.Compare(context.Background(), build(o)); d != nil || err != nil {
			r.Fatalf("%d stages, %s, %d micro-batches: %+v, %v\n%s", cut.Stages, o.Schedule, micro, d, err, o.Source)
		}
		// Rows that several ranks share, unless the model mixes them.
		degree := 1 << rapid.IntRange(0, 3-bits(micro)).Draw(r, "degree")
		o.Devices, o.File, o.Micro = cut.Stages*degree, "random.pp", micro
		if _, err := Compile(context.Background(), o); err != nil && Diagnostics(err)[0].Code == diag.MixesRows {
			return
		}
		if d, err := ref.Compare(context.Background(), build(o)); d != nil || err != nil {
			r.Fatalf("%d stages of %d ranks, %d micro-batches: %+v, %v\n%s", cut.Stages, degree, micro, d, err, o.Source)
		}
	})
}
