package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/plan"
)

func (a *app) compileCommand() *cli.Command {
	return &cli.Command{
		Name: "compile", Usage: "compile a model to a bundle", ArgsUsage: "FILE",
		Flags: append(compileFlags(), &cli.StringFlag{Name: "o", Usage: "folder of the bundle (default FILE without .pp, with .bundle)"},
			&cli.BoolFlag{Name: "stats", Usage: "count functions, calls and operations"}),
		Action: func(ctx context.Context, c *cli.Command) error {
			name, err := file(c)
			if err != nil {
				return err
			}
			o, err := a.options(c, name, "910b3")
			if err != nil {
				return err
			}
			r, err := ppc.Compile(ctx, o)
			if err != nil {
				return refused(err)
			}
			a.show(r.Warnings, false)
			dir := c.String("o")
			if dir == "" {
				dir = strings.TrimSuffix(filepath.Base(name), ".pp") + ".bundle"
			}
			if err := ppc.WriteBundle(dir, r); err != nil {
				return cannotWrite(dir, err)
			}
			if a.json {
				sum := summary(r)
				if c.Bool("stats") {
					s := r.Plan.Stats()
					sum.Stats = &s
				}
				return a.printJSON(sum)
			}
			a.table(r)
			if c.Bool("stats") {
				s := r.Plan.Stats()
				step := "a step"
				if n := r.Plan.Accumulate; n > 1 {
					step = fmt.Sprintf("a step of %d batches", n)
				}
				fmt.Fprintf(a.out, "%d functions with %d calls and %d operations; %d operations run in %s\n", s.Functions, s.Calls, s.Ops, s.Executed, step)
			}
			fmt.Fprintf(a.out, "bundle: %s\n", dir)
			return nil
		},
	}
}

// stageJSON is a stage in the JSON of compile.
type stageJSON struct {
	Stage           int        `json:"stage"`
	Cells           []string   `json:"cells"`
	Params          int        `json:"params"`
	Flops           float64    `json:"flops"`
	Sends           []sendJSON `json:"sends"`
	Recvs           []sendJSON `json:"recvs"`
	PeakBytes       int        `json:"peak_bytes"`
	TargetPeakBytes int        `json:"target_peak_bytes,omitempty"`
}

type sendJSON struct {
	Name  string `json:"name"`
	Peer  int    `json:"peer"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Bytes int    `json:"bytes"`
}

type summaryJSON struct {
	Stages       []stageJSON `json:"stages"`
	Schedule     string      `json:"schedule"`
	Accumulate   int         `json:"accumulate"`
	MicroBatches int         `json:"micro_batches"` // of a step
	Axes         []plan.Axis `json:"axes"`
	Target       string      `json:"target"`
	Makespan     number      `json:"makespan"`
	Bubble       number      `json:"bubble"`
	CompileS     float64     `json:"compile_s"`
	Stats        *plan.Stats `json:"stats,omitempty"`
}

func summary(r *ppc.Result) summaryJSON {
	p := r.Plan
	out := summaryJSON{
		Schedule: p.Schedule, Accumulate: p.Accumulate, MicroBatches: p.MicroBatches, Axes: p.Axes(), Target: p.Target,
		Makespan: number(p.Predicted.Makespan), Bubble: number(p.Predicted.Bubble), CompileS: r.Seconds,
	}
	q := p.Programs[0]
	for s, st := range p.Stages {
		j := stageJSON{Stage: s, Cells: []string{}, Sends: []sendJSON{}, Recvs: []sendJSON{}, PeakBytes: p.Memory[0].Stages[s].Peak}
		if len(p.Memory) > 1 {
			j.TargetPeakBytes = p.Memory[1].Stages[s].Peak
		}
		for _, sp := range st.Params {
			j.Params += sp.Param.Type.Elems()
		}
		for _, ch := range q.Chunks {
			if ch.Stage == s {
				j.Cells = append(j.Cells, ch.Cells...)
				j.Flops += ch.Flops
			}
		}
		for _, m := range q.Messages {
			from, to := q.Chunks[m.From].Stage, q.Chunks[m.To].Stage
			for _, t := range m.Tensors {
				x := sendJSON{Name: t.Name, DType: t.Type.DType.String(), Shape: t.Type.Shape, Bytes: t.Type.Bytes()}
				if from == s {
					x.Peer = to
					j.Sends = append(j.Sends, x)
				}
				if to == s {
					x.Peer = from
					j.Recvs = append(j.Recvs, x)
				}
			}
		}
		out.Stages = append(out.Stages, j)
	}
	return out
}

// table prints what each stage has to do.
func (a *app) table(r *ppc.Result) {
	p, sum := r.Plan, summary(r)
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	head := "stage\tcells\tparameters\tMFLOP/step\tin/step\tout/step\tpeak (cpu)"
	if len(p.Memory) > 1 {
		head += "\tpeak (" + p.Target + ")"
	}
	fmt.Fprintln(w, head)
	for s, j := range sum.Stages {
		in, out := 0, 0
		for _, x := range j.Recvs {
			in += x.Bytes * p.MicroBatches
		}
		for _, x := range j.Sends {
			out += x.Bytes * p.MicroBatches
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%.1f\t%s\t%s\t%s", s, cells(j.Cells), j.Params, j.Flops/1e6, size(in), size(out), size(j.PeakBytes))
		if len(p.Memory) > 1 {
			fmt.Fprintf(w, "\t%s", size(j.TargetPeakBytes))
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	if p.Degree > 1 {
		var sizes, number []string
		for _, x := range p.Axes() {
			sizes = append(sizes, fmt.Sprintf("%s %d", x.Name, x.Size))
			number = append(number, fmt.Sprintf("%d %s", x.Stride, x.Name))
		}
		fmt.Fprintf(a.out, "%d devices: %s; rank = %s\n", p.NumStages*p.Degree, strings.Join(sizes, " x "), strings.Join(number, " + "))
	}
	device := p.Target
	if device == "none" {
		device = plan.CPU.Device
	}
	step := fmt.Sprintf("%d micro-batches", p.MicroBatches)
	if p.Accumulate > 1 {
		step = fmt.Sprintf("%d batches of %d micro-batches", p.Accumulate, p.MicroBatches/p.Accumulate)
	}
	fmt.Fprintf(a.out, "schedule %s, %s; predicted on %s: step %.3f ms, bubble %.1f %%\n",
		p.Schedule, step, device, p.Predicted.Makespan*1e3, p.Predicted.Bubble*100)
}

// cells shortens a long list.
func cells(names []string) string {
	if len(names) > 6 {
		return fmt.Sprintf("%s .. %s (%d)", strings.Join(names[:2], " "), names[len(names)-1], len(names))
	}
	return strings.Join(names, " ")
}
