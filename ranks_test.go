package ppc

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
)

// near reports the first loss or parameter that is further than a relative distance from another outcome.
func (o outcome) near(p outcome, within float64) error {
	for i := range o.Losses {
		a, b := math.Float64frombits(o.Losses[i]), math.Float64frombits(p.Losses[i])
		if !(math.Abs(a-b) <= within*math.Abs(a)) {
			return fmt.Errorf("loss of step %d is %v, not %v", i, b, a)
		}
	}
	for name, v := range o.Params {
		largest, distance := 0.0, 0.0
		for i := range v {
			a, b := float64(math.Float32frombits(v[i])), float64(math.Float32frombits(p.Params[name][i]))
			largest, distance = max(largest, math.Abs(a)), max(distance, math.Abs(a-b))
		}
		if !(distance <= within*largest) {
			return fmt.Errorf("%s is off by %v of %v", name, distance, largest)
		}
	}
	return nil
}

// The tutorial on several ranks per stage: within 1e-6 of the unsplit program at the same batch, and bit-equal among all cuts
// and schedules of one degree; so also with gradients, or values too, in parts.
func TestDegreesOfTutorial(t *testing.T) {
	read := func(file string, batch int) []byte {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(src), "f32[32,", fmt.Sprintf("f32[%d,", batch))
		text = strings.ReplaceAll(text, "i32[32]", fmt.Sprintf("i32[%d]", batch))
		return []byte(strings.ReplaceAll(text, "batch(32)", fmt.Sprintf("batch(%d)", batch)))
	}
	var weights map[string][]float32
	run := func(o Options, batch, level int) outcome {
		t.Helper()
		o.Source = bytes.Replace(read(o.File, batch), []byte("    micro_batch_num"), fmt.Appendf(nil, "    optimizer_shard = { level: %d, threshold: 0 }\n    micro_batch_num", level), 1)
		c, err := Compile(context.Background(), o)
		if err != nil {
			t.Fatal(Diagnostics(err))
		}
		if weights == nil {
			weights = referenceWeights(c.Plan, 1/math.Sqrt(512)) // the same for all: drawing them takes longer than a run
		}
		return train(t, c.Plan, runtime.Options{DataPath: mnistData, Steps: 3, SkipEval: true, Initial: weights, Norms: o.Schedule == "gpipe", Device: device.Options{Poison: true}})
	}
	for _, c := range []struct{ degree, batch int }{{2, 32}, {4, 32}, {3, 48}} {
		want := run(Options{File: "examples/mnist/mnist.pp", Unsplit: true, Devices: 99}, c.batch, 0)
		first := map[bool]outcome{} // by whether gradients are in parts
		for level := range 4 {
			for _, file := range []string{"mnist.pp", "mnist_interleaved.pp", "mnist_auto.pp"} {
				for _, name := range schedule.Names {
					other := file == "mnist_interleaved.pp" && name == "1f1b" || file == "mnist_auto.pp" && name == "gpipe"
					if level == plan.ShardStates || level > plan.ShardStates && !other {
						continue // two of each: TestShardLevels has more
					}
					stages := 2
					if file == "mnist_auto.pp" {
						stages = 1
					}
					o := Options{File: "examples/mnist/" + file, Devices: stages * c.degree, Schedule: name}
					if stages == 1 {
						o.Stages = 1
					}
					got := run(o, c.batch, level)
					if err := want.near(got, 1e-6); err != nil {
						t.Errorf("%s, %s, %d ranks per stage, level %d: %v", file, name, c.degree, level, err)
					}
					parts := level >= plan.ShardGradients
					if other, ok := first[parts]; !ok {
						first[parts] = got
					} else if !other.equal(got) {
						t.Errorf("%s, %s, %d ranks per stage, level %d: other bits than another cut", file, name, c.degree, level)
					}
				}
			}
		}
	}
}

// Drawn models: near the unsplit program on any degree, and the same bits on any cut of a degree. A model that mixes rows is
// refused.
func TestRandomModelsOnDegrees(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := modelgen.DrawDecoder(drawn{r})
		file := writeData(t, &m, 2*m.Batch)
		cut := rapid.SampledFrom(m.Cuts).Draw(r, "cut")
		micro := 1 << rapid.IntRange(0, 2).Draw(r, "micro")
		degree := 1 << rapid.IntRange(1, 3-bits(micro)).Draw(r, "degree")
		run := func(o Options) (outcome, bool) {
			o.File, o.Micro, o.Verify = "random.pp", micro, true
			c, err := Compile(context.Background(), o)
			if err != nil && Diagnostics(err)[0].Code == diag.MixesRows {
				return outcome{}, false
			}
			if err != nil {
				r.Fatalf("%v\n%s", Diagnostics(err), o.Source)
			}
			return train(t, c.Plan, runtime.Options{DataPath: file, Epochs: 1, Device: device.Options{Poison: true}}), true
		}
		want, _ := run(Options{Source: []byte(m.Unmarked()), Unsplit: true})
		level, size := rapid.IntRange(0, 3).Draw(r, "level"), 1<<rapid.IntRange(0, bits(degree)).Draw(r, "size")
		shared := func(src string) []byte {
			return []byte(strings.Replace(src, "    micro_batch_num", fmt.Sprintf("    optimizer_shard = { level: %d, threshold: 0, size: %d }\n    micro_batch_num", level, size), 1))
		}
		one, ok1 := run(Options{Source: shared(m.Unmarked()), Stages: 1, Devices: degree})
		got, ok2 := run(Options{
			Source: shared(m.With(cut)), Devices: cut.Stages * degree, Schedule: rapid.SampledFrom(schedule.Names).Draw(r, "schedule"),
			LazyInline: rapid.SampledFrom([]string{"auto", "marked", "off"}).Draw(r, "lazyinline"),
		})
		if ok1 != ok2 {
			r.Fatalf("one cut mixes rows, another does not\n%s", m.With(cut))
		}
		if !ok1 {
			r.Skip()
		}
		if !one.equal(got) {
			r.Fatalf("%d stages x %d ranks: other bits than 1 x %d\n%s", cut.Stages, degree, degree, m.With(cut))
		}
		if err := want.near(got, 1e-4); err != nil {
			r.Fatalf("%d ranks per stage: %v\n%s", degree, err, m.With(cut))
		}
	})
}

// bits is the exponent of a power of two.
func bits(n int) int { return int(math.Log2(float64(n))) }
