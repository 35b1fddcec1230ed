package emulator_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"testing"

	"github.com/ppc-lang/ppc/codegen/ascend"
	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/frontend"
	"github.com/ppc-lang/ppc/passes"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/device/emulator"
)

const examples = "../../../examples/mnist/"

// compile compiles a model for the chip.
func compile(t *testing.T, file string, stages int) *plan.Plan {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	spec, list := frontend.Load(file, source, frontend.Options{Stages: stages})
	if list.HasErrors() {
		t.Fatal(list)
	}
	c, _ := chip.ByName("910b3")
	p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: max(spec.Stages, stages, 1), Schedule: "1f1b", WLag: 4, Target: ascend.Costs(c), Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func train(t *testing.T, p *plan.Plan, open device.Open, opt device.Options, steps int) (losses []float64, result *runtime.Result) {
	t.Helper()
	result, err := runtime.Run(context.Background(), p, runtime.Options{
		Open: open, Device: opt, Steps: steps, Seed: p.Seed, DataPath: examples + "data", Getenv: func(string) string { return "" }, SkipEval: true,
		OnStep: func(s runtime.Step) { losses = append(losses, s.Loss) },
		Log:    func(int) io.Writer { return io.Discard },
	})
	if err != nil {
		t.Fatal(err)
	}
	return losses, result
}

// TestTutorial trains the tutorial's network on the emulator and on the cpu device.
func TestTutorial(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("g++ is missing")
		}
		t.Skip("g++ is missing")
	}
	cache := t.TempDir()
	for _, c := range []struct {
		file   string
		stages int
	}{{"mnist.pp", 0}, {"mnist_auto.pp", 3}, {"mnist_auto.pp", 1}} {
		t.Run(fmt.Sprint(c.file, c.stages), func(t *testing.T) {
			p := compile(t, examples+c.file, c.stages)
			out, err := ascend.Generate(p)
			if err != nil {
				t.Fatal(err)
			}
			want, reference := train(t, p, cpu.Open, device.Options{}, 20)
			got, result := train(t, p, emulator.Opener(out.Stages), device.Options{CacheDir: cache, Poison: true}, 20)
			if len(got) != 20 || len(want) != 20 {
				t.Fatalf("%d and %d steps", len(got), len(want))
			}
			for i := range want {
				if !(math.Abs(got[i]-want[i]) <= 1e-4*math.Abs(want[i])) {
					t.Errorf("step %d: the loss is %v, on the cpu %v", i, got[i], want[i])
				}
			}
			for i, param := range reference.Params {
				for k, w := range param.Values {
					if g := result.Params[i].Values[k]; !(math.Abs(float64(g-w)) <= 1e-4*max(1, math.Abs(float64(w)))) {
						t.Fatalf("%s, element %d: %v, on the cpu %v", param.Name, k, g, w)
					}
				}
			}
			for _, rank := range result.Ranks {
				if peak := p.Memory[1].Stages[rank.Stage].Peak; rank.PeakBytes != peak {
					t.Errorf("rank %d used %d bytes, the plan says %d", rank.Rank, rank.PeakBytes, peak)
				}
			}
		})
	}
}
