package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

const mnist = "examples/mnist/mnist.pp"

func compileModel(o ppc.Options) (*plan.Plan, error) {
	if o.Source == nil {
		src, err := os.ReadFile(o.File)
		if err != nil {
			return nil, err
		}
		o.Source = src
	}
	r, err := ppc.Compile(context.Background(), o)
	if err != nil {
		return nil, err
	}
	return r.Plan, nil
}

func run(p *plan.Plan, o runtime.Options) (*runtime.Result, error) {
	o.Open, o.Seed = cpu.Open, 1
	if o.Log == nil {
		o.Log = func(int) io.Writer { return io.Discard }
	}
	return runtime.Run(context.Background(), p, o)
}

// tutorial alternates one and two ranks, so that both see the same machine.
func tutorial(data string, runs int) error {
	type variant struct {
		name string
		opt  ppc.Options
		rate []float64
		plan *plan.Plan
	}
	zero := 0
	variants := []*variant{
		{name: "one rank", opt: ppc.Options{File: mnist, Unsplit: true}},
		{name: "two ranks, 1f1b", opt: ppc.Options{File: mnist}},
		{name: "two ranks, 1f1b, -w-lag 0", opt: ppc.Options{File: mnist, WLag: &zero}},
		{name: "two ranks, gpipe", opt: ppc.Options{File: mnist, Schedule: "gpipe"}},
		{name: "two ranks of the planner", opt: ppc.Options{File: "examples/mnist/mnist_auto.pp", Stages: 2}},
	}
	for _, v := range variants {
		p, err := compileModel(v.opt)
		if err != nil {
			return err
		}
		v.plan = p
	}
	for range runs {
		for _, v := range variants {
			r, err := run(v.plan, runtime.Options{DataPath: data, SkipEval: true, Steps: 1875, Epochs: 30})
			if err != nil {
				return err
			}
			v.rate = append(v.rate, float64(r.Steps)/r.Seconds)
		}
	}
	base, _, _ := spread(variants[0].rate)
	fmt.Printf("%-28s %10s %22s %8s\n", "tutorial", "steps/s", "range", "ratio")
	for _, v := range variants {
		m, lo, hi := spread(v.rate)
		fmt.Printf("%-28s %10.0f %12.0f to %6.0f %8.2f\n", v.name, m, lo, hi, m/base)
	}
	return nil
}

// accuracy trains ten epochs in two stages, with both reductions.
func accuracy(data string) error {
	p, err := compileModel(ppc.Options{File: mnist})
	if err != nil {
		return err
	}
	for _, reduction := range []string{"mean", "sum"} {
		r, err := run(p, runtime.Options{DataPath: data, Epochs: 10, Reduction: reduction})
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d steps, loss of the last %.4f, accuracy %.4f on %d rows\n", reduction, r.Steps, r.LastLoss, r.Evals[0].Metrics[0].Value, r.Evals[0].Rows)
	}
	return nil
}
