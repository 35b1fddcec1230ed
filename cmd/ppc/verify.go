package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
)

func (a *app) verifyCommand() *cli.Command {
	return &cli.Command{
		Name: "verify", Usage: "compare the split program with the unsplit one, step by step", ArgsUsage: "FILE",
		Flags: append(compileFlags(),
			&cli.StringFlag{Name: "data", Usage: "folder or file that replaces the path of every data source"},
			&cli.IntFlag{Name: "steps", Usage: "steps to compare", Value: 10},
			&cli.StringFlag{Name: "cpu", Usage: "kernels of the cpu device"},
			&cli.StringSliceFlag{Name: "input", Usage: "npy file, or name=file for one of several inputs, of an infer block"},
			tokensFlag(),
			&cli.BoolFlag{Name: "sweep", Usage: "compare over stages (without marks), schedules and micro-batches"},
		),
		Action: func(ctx context.Context, c *cli.Command) error {
			name, err := file(c)
			if err != nil {
				return err
			}
			if c.Int("steps") < 1 {
				return usagef("-steps is %d; it must be at least 1", c.Int("steps"))
			}
			o, err := a.options(c, name, "none")
			if err != nil {
				return err
			}
			if c.Bool("sweep") {
				for _, n := range []string{"stages", "micro", "schedule", "w-lag"} {
					if c.IsSet(n) {
						return usagef("-sweep goes over what -%s would fix", n)
					}
				}
				return a.sweep(ctx, c, o)
			}
			split, err := ppc.Compile(ctx, o)
			if err != nil {
				return refused(err)
			}
			o.Unsplit, o.Stages = true, 0
			whole, err := ppc.Compile(ctx, o)
			if err != nil {
				return refused(err)
			}
			first, err := a.trace(ctx, c, whole.Plan)
			if err != nil {
				return err
			}
			second, err := a.trace(ctx, c, split.Plan)
			if err != nil {
				return err
			}
			if diff := differ(whole.Plan, first, second); diff != "" {
				return failed(fmt.Errorf("%d stages differ from the unsplit program: %s", split.Plan.NumStages, diff))
			}
			if first.outputs != nil {
				if a.json {
					return a.printJSON(map[string]any{"equal": true, "stages": split.Plan.NumStages, "rows": first.rows})
				}
				fmt.Fprintf(a.out, "%d stages equal the unsplit program to the bit: %d rows, every result on every rank that has it\n",
					split.Plan.NumStages, first.rows)
				return nil
			}
			if a.json {
				return a.printJSON(map[string]any{"equal": true, "stages": split.Plan.NumStages, "steps": len(first.steps)})
			}
			fmt.Fprintf(a.out, "%d stages equal the unsplit program to the bit: %d steps, losses, gradient norms and %d parameters\n",
				split.Plan.NumStages, len(first.steps), len(first.params))
			return nil
		},
	}
}

// sweepStages and sweepMicro are the sizes of -sweep; what a model cannot have is left out and counted.
var (
	sweepStages = []int{1, 2, 3, 4, 5, 6, 7, 8}
	sweepMicro  = []int{1, 2, 3, 4, 8, 16}
	sweepLags   = []int{0, ppc.DefaultWLag}
)

// sweep compares every combination that the model allows.
func (a *app) sweep(ctx context.Context, c *cli.Command, o ppc.Options) error {
	equal, refusals := 0, 0
	for _, micro := range sweepMicro {
		o.Micro = micro
		unsplit := o
		unsplit.Unsplit = true
		whole, err := ppc.Compile(ctx, unsplit)
		if err != nil {
			refusals++
			continue
		}
		want, err := a.trace(ctx, c, whole.Plan)
		if err != nil {
			return err
		}
		seen := map[int]bool{} // marks fix the number of stages
		for _, stages := range sweepStages {
			for _, name := range schedule.Names {
				for _, lag := range sweepLags {
					split := o
					split.Stages, split.Schedule, split.WLag = stages, name, &lag
					r, err := ppc.Compile(ctx, split)
					if err != nil {
						refusals++
						continue
					}
					seen[r.Plan.NumStages] = true
					got, err := a.trace(ctx, c, r.Plan)
					if err != nil {
						return err
					}
					if diff := differ(whole.Plan, want, got); diff != "" {
						return failed(fmt.Errorf("%d stages, %s, %d micro-batches, lag %d differ from the unsplit program: %s", r.Plan.NumStages, name, micro, lag, diff))
					}
					equal++
				}
			}
		}
		if !a.json {
			fmt.Fprintf(a.out, "%d micro-batches: %d numbers of stages equal the unsplit program\n", micro, len(seen))
		}
	}
	if equal == 0 {
		_, err := ppc.Compile(ctx, o)
		return refused(err)
	}
	if a.json {
		return a.printJSON(map[string]any{"equal": true, "programs": equal, "refused": refusals})
	}
	fmt.Fprintf(a.out, "%d programs equal the unsplit one to the bit; %d combinations do not fit the model\n", equal, refusals)
	return nil
}

// trace is what a run is compared by.
type trace struct {
	steps  []runtime.Step
	params []runtime.Param
	// Of an infer block: its rows, and by rank and result what the rank has.
	rows    int
	outputs [][]runtime.Output
}

func (a *app) trace(ctx context.Context, c *cli.Command, p *plan.Plan) (*trace, error) {
	open, err := ppc.Device("cpu", p)
	if err != nil {
		return nil, err
	}
	in, err := a.inference(c, p.Programs[0])
	if err != nil {
		return nil, err
	}
	t := &trace{}
	o := runtime.Options{
		Open: open, Steps: c.Int("steps"), Seed: p.Seed, DataPath: c.String("data"), Getenv: os.Getenv, Norms: true, SkipEval: true,
		Log:    func(int) io.Writer { return io.Discard }, // numbers are compared, what is printed is not shown
		OnStep: func(s runtime.Step) { t.steps = append(t.steps, s) },
	}
	if in != nil {
		o.Inputs, o.Tokens = in.inputs, in.tokens
	}
	if o.Device.Path, err = cpuPath(c); err != nil {
		return nil, err
	}
	r, err := runtime.Run(ctx, p, o)
	if err != nil {
		return nil, failed(err)
	}
	t.params, t.rows, t.outputs = r.Params, r.Rows, r.Outputs
	return t, nil
}

// differ names the first thing that differs, "" for nothing.
func differ(p *plan.Plan, a, b *trace) string {
	for i, s := range a.steps {
		u := b.steps[i]
		if math.Float64bits(s.Loss) != math.Float64bits(u.Loss) {
			return fmt.Sprintf("the loss of step %d is %v, unsplit %v", i, u.Loss, s.Loss)
		}
		for k := range s.Norms {
			if math.Float64bits(s.Norms[k]) != math.Float64bits(u.Norms[k]) {
				q := p.Module.Params[k]
				return fmt.Sprintf("the gradient of `%s` (%s) in step %d has norm %v, unsplit %v", q.Name, q.Pos, i, u.Norms[k], s.Norms[k])
			}
		}
	}
	for rank, outputs := range b.outputs {
		for k, o := range outputs {
			if o.Array != nil && !bytes.Equal(o.Array.Data, a.outputs[0][k].Array.Data) {
				return fmt.Sprintf("the result `%s` on rank %d is another one", o.Name, rank)
			}
		}
	}
	for i, x := range a.params {
		for e, v := range x.Values {
			if w := b.params[i].Values[e]; math.Float32bits(v) != math.Float32bits(w) {
				return fmt.Sprintf("element %d of parameter `%s` is %v after %d steps, unsplit %v", e, x.Name, w, len(a.steps), v)
			}
		}
	}
	return ""
}
