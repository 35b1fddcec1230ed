package ppc

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

const mnistData = "examples/mnist/data"

// referenceWeights are the first values of the reference runs within a bound: for parameter number p of the network and
// element i, z = splitmix64(1000003 + p + (i+1) 0x9E3779B97F4A7C15), u = (z >> 40) / 2^24, value = (2u - 1) bound in
// float32.
func referenceWeights(p *plan.Plan, bound float64) map[string][]float32 {
	out := map[string][]float32{}
	for k, q := range p.Module.Params {
		v := make([]float32, q.Type.Elems())
		for i := range v {
			z := uint64(1000003+k) + uint64(i+1)*0x9E3779B97F4A7C15
			z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
			z = (z ^ z>>27) * 0x94D049BB133111EB
			z ^= z >> 31
			u := float32(z>>40) / (1 << 24)
			v[i] = (2*u - 1) * float32(bound)
		}
		out[q.Name] = v
	}
	return out
}

// The tutorial's network follows the float64 run of PyTorch: 50 losses within 2e-6, norms within 1e-5.
func TestReferenceMLP(t *testing.T) {
	want := readReference(t, "mlp")
	for _, path := range kernel.Available() {
		p := compileFile(t, Options{File: "examples/mnist/mnist.pp"}).Plan
		want.compare(t, p, mnistData, path, referenceWeights(p, 1/math.Sqrt(512)))
	}
}

// The decoder with a tied head follows the float64 run of PyTorch: 20 losses within 2e-6, norms within 1e-5.
func TestReferenceGPT(t *testing.T) {
	want := readReference(t, "gpt_tiny")
	for _, path := range kernel.Available() {
		for _, stages := range []int{1, 4} {
			p := compileFile(t, Options{File: gptFile, Stages: stages}).Plan
			want.compare(t, p, gptData, path, gptWeights(p))
		}
	}
}

// gptWeights are the first values of the reference decoder: biases 0, weights of layer norms 1.
func gptWeights(p *plan.Plan) map[string][]float32 {
	out := referenceWeights(p, float64(float32(math.Sqrt(3)*0.02)))
	for name, v := range out {
		bias, norm := strings.HasSuffix(name, ".bias"), strings.Contains(name, "ln")
		for i := range v {
			switch {
			case bias:
				v[i] = 0
			case norm:
				v[i] = 1
			}
		}
	}
	return out
}

const (
	gptFile = "examples/gpt/tiny.pp"
	gptData = "examples/gpt/data/tokens.npz"
)

// reference is what a float64 run gave.
type reference struct {
	Loss      []float64          `json:"loss"`
	GradNorm  map[string]float64 `json:"grad_norm_step0"`
	ParamNorm map[string]float64 `json:"param_norm_after"`
}

func readReference(t *testing.T, name string) *reference {
	t.Helper()
	text, err := os.ReadFile("testdata/reference/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	r := &reference{}
	if err := json.Unmarshal(text, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// compare runs as many steps as the reference has losses.
func (want *reference) compare(t *testing.T, p *plan.Plan, data, path string, first map[string][]float32) {
	t.Helper()
	var steps []runtime.Step
	r := runPlan(t, p, data, runtime.Options{
		Steps: len(want.Loss), Reduction: "mean", Initial: from(first), Norms: true, Device: device.Options{Path: path}, SkipEval: true,
		OnStep: func(s runtime.Step) { steps = append(steps, s) },
	})
	for i, s := range steps {
		if d := math.Abs(s.Loss - want.Loss[i]); !(d <= 2e-6) {
			t.Errorf("%s: loss of step %d is %v, want %v", path, i, s.Loss, want.Loss[i])
		}
	}
	if len(steps) != len(want.Loss) || len(want.GradNorm) != len(r.Params) || len(want.ParamNorm) != len(r.Params) {
		t.Fatalf("%s: %d steps and %d parameters do not fit the reference", path, len(steps), len(r.Params))
	}
	for i, x := range r.Params {
		if got, w := steps[0].Norms[i], want.GradNorm[x.Name]; !(math.Abs(got-w) <= 1e-5*w) {
			t.Errorf("%s: gradient of %s has norm %v, want %v", path, x.Name, got, w)
		}
		sum := 0.0
		for _, v := range x.Values {
			sum += float64(v) * float64(v)
		}
		if w := want.ParamNorm[x.Name]; !(math.Abs(math.Sqrt(sum)-w) <= 1e-5*w) {
			t.Errorf("%s: %s has norm %v after %d steps, want %v", path, x.Name, math.Sqrt(sum), len(steps), w)
		}
	}
}

// With the default reduction the logged loss is the sum over micro-batches.
func TestLossIsSumOverMicroBatches(t *testing.T) {
	p := compileFile(t, Options{File: "examples/mnist/mnist.pp"}).Plan
	loss := func(reduction string) (first float64) {
		runMNIST(t, p, runtime.Options{Steps: 1, Reduction: reduction, OnStep: func(s runtime.Step) { first = s.Loss }})
		return
	}
	if sum, mean := loss("sum"), loss("mean"); sum != 4*mean {
		t.Errorf("sum %v, mean %v", sum, mean)
	}
}

// The tutorial gives the same bits on 1 to 4 stages, marked and planned, under both schedules, for the same number of
// micro-batches, fewer than stages included.
func TestTutorialEqual(t *testing.T) {
	var weights map[string][]float32
	for _, micro := range []int{1, 2, 4, 8} {
		run := func(o Options) outcome {
			o.Micro = micro
			p := compileFile(t, o).Plan
			if weights == nil {
				weights = referenceWeights(p, 1/math.Sqrt(512)) // the same for all: drawing them takes longer than a run
			}
			return train(t, p, runtime.Options{DataPath: mnistData, Steps: 6, SkipEval: true, Initial: from(weights), Device: device.Options{Poison: true}})
		}
		want := run(Options{File: "examples/mnist/mnist.pp", Unsplit: true})
		for _, schedule := range []string{"gpipe", "1f1b"} {
			lags := []int{DefaultWLag}
			if schedule == "1f1b" {
				lags = append(lags, 0)
			}
			for _, lag := range lags {
				cases := []Options{{File: "examples/mnist/mnist.pp"}, {File: "examples/mnist/mnist_interleaved.pp"}}
				for stages := 1; stages <= 4; stages++ {
					cases = append(cases, Options{File: "examples/mnist/mnist_auto.pp", Stages: stages})
				}
				for _, o := range cases {
					o.Schedule, o.WLag = schedule, &lag
					if got := run(o); !want.equal(got) {
						t.Errorf("%s on %d stages, %s, lag %d, %d micro-batches differs from the unsplit program", o.File, o.Stages, schedule, lag, micro)
					}
				}
			}
		}
	}
}

func runMNIST(t testing.TB, p *plan.Plan, o runtime.Options) *runtime.Result {
	t.Helper()
	return runPlan(t, p, mnistData, o)
}
