package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/verify"
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
			&cli.BoolFlag{Name: "sweep", Usage: "compare over stages (without marks), chunks (of a list of cells), schedules, micro-batches and lags"},
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
				for _, n := range []string{"stages", "devices", "micro", "schedule", "w-lag", "layout"} {
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
			degree := split.Plan.Degree
			o.Unsplit, o.Stages, o.Devices = true, 0, 0
			r, err := a.reference(ctx, c, o)
			if err != nil {
				return err
			}
			if degree > 1 && !split.Plan.Programs[0].Infer { // rows of an infer block do not meet
				return a.verifyRanks(ctx, c, o, split.Plan, r)
			}
			if err := compare(ctx, r, split.Plan, ""); err != nil {
				return err
			}
			stages, params := split.Plan.NumStages, len(split.Plan.Module.Params)
			if split.Plan.Programs[0].Infer {
				if a.json {
					return a.printJSON(map[string]any{"equal": true, "stages": stages, "ranks": stages * degree, "rows": r.Rows()})
				}
				what := fmt.Sprintf("%d stages equal", stages)
				if degree > 1 {
					what = fmt.Sprintf("%d stages of %d ranks equal", stages, degree)
				}
				fmt.Fprintf(a.out, "%s the unsplit program to the bit: %d rows, every result on every rank that has it\n", what, r.Rows())
				return nil
			}
			if a.json {
				return a.printJSON(map[string]any{"equal": true, "stages": stages, "steps": r.Steps()})
			}
			fmt.Fprintf(a.out, "%d stages equal the unsplit program to the bit: %d steps, losses, gradient norms and %d parameters\n", stages, r.Steps(), params)
			return nil
		},
	}
}

// farthest is how far, relative to the largest value, several ranks per stage may be from the unsplit program: they add in
// another order. What is really different is much farther away.
const farthest = 1e-3

// verifyRanks compares a program of several ranks per stage, to the bit, with one stage of as many ranks, and that one with
// the unsplit program but for rounding.
func (a *app) verifyRanks(ctx context.Context, c *cli.Command, o ppc.Options, split *plan.Plan, unsplit *verify.Reference) error {
	o.Unsplit, o.Stages, o.Devices = false, 1, split.Degree
	one, err := a.reference(ctx, c, o)
	if err != nil {
		return err
	}
	if err := compare(ctx, one, split, fmt.Sprintf("compared with one stage of %d ranks", split.Degree)); err != nil {
		return err
	}
	distance, what := unsplit.Distance(one)
	if !(distance <= farthest) {
		return failed(diag.Errorf(diag.NotEqual, diag.Range{}, "%s is off by %.2g of its largest value from the unsplit program with %d ranks per stage", what, distance, split.Degree))
	}
	if a.json {
		return a.printJSON(map[string]any{"equal": true, "stages": split.NumStages, "ranks": split.NumStages * split.Degree, "steps": one.Steps(), "distance": number(distance)})
	}
	fmt.Fprintf(a.out, "%d stages of %d ranks equal one stage of %d ranks to the bit: %d steps; losses and parameters are within %.2g of the unsplit program\n",
		split.NumStages, split.Degree, split.Degree, one.Steps(), distance)
	return nil
}

// compare turns a difference into an error. what says which of several programs it is.
func compare(ctx context.Context, r *verify.Reference, p *plan.Plan, what string) error {
	if err := cpu.Fits(p); err != nil {
		return refused(err)
	}
	d, err := r.Compare(ctx, p)
	if err != nil {
		return failed(err)
	}
	if d == nil {
		return nil
	}
	x := d.Diagnostic()
	if what != "" {
		x = x.WithNote(diag.Range{}, "%s", what)
	}
	return failed(x)
}

// The sizes of -sweep; what a model cannot have is left out and counted.
var (
	sweepStages = []int{1, 2, 3, 4, 5, 6, 7, 8}
	sweepChunks = []int{2, 3}
	sweepMicro  = []int{1, 2, 3, 4, 8, 16}
	sweepLags   = []int{0, ppc.DefaultWLag}
)

// cut is a number of stages, and of chunks on each if there are several.
type cut struct{ stages, chunks int }

func cuts() (out []cut) {
	for _, s := range sweepStages {
		out = append(out, cut{s, 1})
		for _, v := range sweepChunks {
			if s > 1 {
				out = append(out, cut{s, v})
			}
		}
	}
	return out
}

// layout shares a list of cells evenly among all chunks.
func (c cut) layout() string {
	if c.chunks == 1 {
		return ""
	}
	row := strings.TrimSuffix(strings.Repeat("0,", c.stages), ",")
	return "offset:" + strings.TrimSuffix(strings.Repeat(row+";", c.chunks), ";")
}

// sweep compares every combination that the model allows.
func (a *app) sweep(ctx context.Context, c *cli.Command, o ppc.Options) error {
	equal, refusals := 0, 0
	for _, micro := range sweepMicro {
		o.Micro = micro
		unsplit := o
		unsplit.Unsplit = true
		if _, err := ppc.Compile(ctx, unsplit); err != nil {
			refusals++
			continue
		}
		r, err := a.reference(ctx, c, unsplit)
		if err != nil {
			return err
		}
		seen := map[cut]bool{} // marks fix the number of stages
		for _, k := range cuts() {
			for _, name := range schedule.Names {
				for _, lag := range sweepLags {
					split := o
					split.Stages, split.Layout, split.Schedule, split.WLag = k.stages, k.layout(), name, &lag
					p, err := ppc.Compile(ctx, split)
					if err != nil {
						refusals++
						continue
					}
					got := cut{p.Plan.NumStages, len(p.Plan.Programs[0].Chunks) / p.Plan.NumStages}
					seen[got] = true
					if err := compare(ctx, r, p.Plan, fmt.Sprintf("with %d stages, %d chunks on each, %s, %d micro-batches, lag %d", got.stages, got.chunks, name, micro, lag)); err != nil {
						return err
					}
					equal++
				}
			}
		}
		if !a.json {
			fmt.Fprintf(a.out, "%d micro-batches: %d numbers of stages and chunks equal the unsplit program\n", micro, len(seen))
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

// reference compiles and runs the unsplit program.
func (a *app) reference(ctx context.Context, c *cli.Command, o ppc.Options) (*verify.Reference, error) {
	r, err := ppc.Compile(ctx, o)
	if err != nil {
		return nil, refused(err)
	}
	if err := cpu.Fits(r.Plan); err != nil {
		return nil, refused(err)
	}
	in, err := a.inference(c, r.Plan.Programs[0], false)
	if err != nil {
		return nil, err
	}
	ro := runtime.Options{
		Steps: c.Int("steps"), Seed: r.Plan.Seed, DataPath: c.String("data"), Getenv: os.Getenv,
		Log: func(int) io.Writer { return io.Discard }, // numbers are compared, what is printed is not shown
	}
	if in != nil {
		ro.Inputs, ro.Tokens = in.inputs, in.tokens
	}
	if ro.Device.Path, err = cpuPath(c); err != nil {
		return nil, err
	}
	ref, err := verify.NewReference(ctx, r.Plan, ro)
	if err != nil {
		return nil, failed(err)
	}
	return ref, nil
}
