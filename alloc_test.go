package ppc

import (
	gort "runtime"
	"testing"

	"github.com/ppc-lang/ppc/runtime"
)

// A step allocates nothing once it has run a few times: data, messages, kernels, printing and the optimizer work in place.
func TestNoAllocationInSteadyState(t *testing.T) {
	for _, o := range []Options{
		{File: "examples/mnist/mnist.pp"},
		{File: "examples/mnist/mnist_interleaved.pp"},
		{File: "examples/mnist/mnist.pp", Accumulate: 2, Schedule: "gpipe"},
		{File: gptFile, Stages: 2},
	} {
		p := compileFile(t, o).Plan
		path, steps := mnistData, 60
		switch {
		case o.File == gptFile:
			path, steps = gptData, 20
		case o.Accumulate > 1:
			steps /= o.Accumulate
		}
		var before, after gort.MemStats
		runPlan(t, p, path, runtime.Options{
			Steps: steps, SkipEval: true,
			OnStep: func(s runtime.Step) {
				switch s.Total {
				case 5:
					gort.ReadMemStats(&before)
				case steps - 1:
					gort.ReadMemStats(&after)
				}
			},
		})
		if n, most := after.Mallocs-before.Mallocs, uint64(steps-6); n >= most {
			t.Errorf("%s: %d allocations in %d steps", o.File, n, most)
		}
	}
}
