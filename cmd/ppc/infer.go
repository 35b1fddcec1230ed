package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
)

func inferFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "input", Usage: "npy file, or name=file for one of several inputs, of an infer block"},
		&cli.StringSliceFlag{Name: "output", Usage: "npy file, or name=file for one of several results, of an infer block"},
		tokensFlag(),
	}
}

func tokensFlag() cli.Flag {
	return &cli.IntFlag{Name: "tokens", Usage: "new tokens for each prompt of an infer block with feedback", HideDefault: true}
}

// trainOnly are the flags of run that mean nothing to an infer block.
var trainOnly = []string{"steps", "epochs", "reduction", "save", "checkpoint", "save-every", "keep", "resume", "log", "log-norms", "check-copies"}

// inference holds what -input and -output say about a program.
type inference struct {
	inputs []data.Array
	tokens []int    // of a block with feedback
	files  []string // by result; "" where it is not stored
}

// inference reads the inputs and settles the files of the results, which this process stores or does not. It is nil if the
// program is no infer block.
func (a *app) inference(c *cli.Command, q *plan.Program, stores bool) (*inference, error) {
	if !q.Infer {
		for _, n := range []string{"input", "output", "tokens"} {
			if c.IsSet(n) {
				return nil, usagef("-%s belongs to an infer block; `%s` is none", n, q.Name)
			}
		}
		return nil, nil
	}
	for _, n := range trainOnly {
		if c.IsSet(n) {
			return nil, usagef("-%s belongs to training; `%s` is an infer block", n, q.Name)
		}
	}
	var inputs, results []string
	for _, in := range q.Inputs {
		inputs = append(inputs, in.Name)
	}
	for _, r := range q.Results {
		results = append(results, r.Name)
	}
	out := &inference{}
	values := c.StringSlice("output")
	switch n := c.Int("tokens"); {
	case q.Feedback == nil && c.IsSet("tokens"):
		return nil, usagef("-tokens belongs to an infer block with `feedback`; `%s` has none", q.Name)
	case q.Feedback == nil:
	case !c.IsSet("tokens"):
		return nil, usagef("-tokens is needed: the block `%s` makes new tokens for each prompt", q.Name)
	case n < 1:
		return nil, usagef("-tokens is %d; it must be at least 1", n)
	default:
		out.tokens = []int{n}
		for i, v := range values { // a file alone is for the new tokens
			if !nameOfFile.MatchString(v) {
				values[i] = q.Results[q.Feedback.Output].Name + "=" + v
			}
		}
	}
	files, err := named("input", inputs, c.StringSlice("input"))
	if err != nil {
		return nil, err
	}
	if out.files, err = named("output", results, values); err != nil {
		return nil, err
	}
	seen := map[string]string{}
	for i, f := range out.files {
		if f == "" {
			continue
		}
		if first, ok := seen[f]; ok {
			return nil, usagef("-output: `%s` and `%s` go to the same file %s", first, results[i], f)
		}
		seen[f] = results[i]
		if !stores {
			continue
		}
		if err := writable(f); err != nil {
			return nil, cannotWrite(f, err)
		}
	}
	if !c.IsSet("input") {
		return out, nil
	}
	for i, f := range files {
		if f == "" {
			return nil, usagef("-input: the block `%s` has an input `%s` too, which no file is given for", q.Name, inputs[i])
		}
		x, err := data.ReadNPY(f)
		if err != nil {
			return nil, wrong(err)
		}
		x.Name = f
		out.inputs = append(out.inputs, x)
	}
	return out, nil
}

var nameOfFile = regexp.MustCompile(`^([\pL_][\pL\pN_.]*)=(.+)$`)

// named gives the files that a flag names for a list of names; a file alone stands for the only one.
func named(flag string, names, values []string) ([]string, error) {
	files := make([]string, len(names))
	for _, v := range values {
		at, file := 0, v
		if m := nameOfFile.FindStringSubmatch(v); m != nil {
			for at < len(names) && names[at] != m[1] {
				at++
			}
			if at == len(names) {
				if s := diag.DidYouMean(m[1], names); s != "" {
					return nil, usagef("-%s: there is no `%s`; %s", flag, m[1], s)
				}
				return nil, usagef("-%s: there is no `%s`; the names are %s", flag, m[1], strings.Join(names, ", "))
			}
			file = m[2]
		} else if len(names) > 1 {
			return nil, usagef("-%s wants name=file here; the names are %s", flag, strings.Join(names, ", "))
		}
		if files[at] != "" {
			return nil, usagef("-%s: `%s` is given twice", flag, names[at])
		}
		files[at] = file
	}
	return files, nil
}

// outputJSON is a result on a rank: its shape and how many ranks share its rows, or why the rank does not have it.
type outputJSON struct {
	Name    string `json:"name"`
	DType   string `json:"dtype,omitempty"`
	Shape   []int  `json:"shape,omitempty"`
	Shared  int    `json:"shared_by,omitempty"` // if there are several
	Missing string `json:"missing,omitempty"`
}

// inferred stores the results of an infer block and says which rank has what.
func (a *app) inferred(ctx context.Context, p *plan.Plan, in *inference, r *runtime.Result) error {
	q := p.Programs[0]
	for k, f := range in.files {
		if f == "" {
			continue
		}
		if err := data.WriteNPY(ctx, f, *r.Outputs[q.Outputs[k].Stage][k].Array); err != nil {
			return cannotWrite(f, err)
		}
	}
	type rankJSON struct {
		Rank      int          `json:"rank"`
		Stage     int          `json:"stage"`
		PeakBytes int          `json:"peak_bytes"`
		Outputs   []outputJSON `json:"outputs"`
	}
	var ranks []rankJSON
	shared := 0
	if p.Degree > 1 {
		shared = p.Degree
	}
	for _, k := range r.Ranks {
		x := rankJSON{Rank: k.Rank, Stage: k.Stage, PeakBytes: k.PeakBytes}
		for _, o := range r.Outputs[k.Stage] {
			if o.Array == nil {
				x.Outputs = append(x.Outputs, outputJSON{Name: o.Name, Missing: o.Missing})
			} else {
				x.Outputs = append(x.Outputs, outputJSON{Name: o.Name, DType: o.Array.DType.String(), Shape: o.Array.Shape, Shared: shared})
			}
		}
		ranks = append(ranks, x)
	}
	count := fmt.Sprintf("%d rows in %d batches", r.Rows, r.Rows/q.Batch)
	if q.Feedback != nil {
		if a.json {
			return a.printJSON(map[string]any{"requests": r.Rows, "tokens": r.Rows * in.tokens[0], "rounds": r.Rounds, "seconds": number(r.Seconds), "ranks": ranks})
		}
		count = fmt.Sprintf("%d requests, %d new tokens in %d rounds", r.Rows, r.Rows*in.tokens[0], r.Rounds)
	}
	if a.json {
		return a.printJSON(map[string]any{"rows": r.Rows, "batches": r.Rows / q.Batch, "seconds": number(r.Seconds), "ranks": ranks})
	}
	fmt.Fprintln(a.out, count)
	for k := range q.Results {
		o := r.Outputs[q.Outputs[k].Stage][k]
		var have []string
		for _, x := range ranks {
			if x.Outputs[k].Missing == "" {
				have = append(have, fmt.Sprint(x.Rank))
			}
		}
		where := "rank"
		if len(have) > 1 {
			where = "ranks"
		}
		line := fmt.Sprintf("%s: %s%v on %s %s", o.Name, o.Array.DType, o.Array.Shape, where, strings.Join(have, ", "))
		if shared > 0 {
			line += fmt.Sprintf(" (the %d of a stage share its rows)", shared)
		}
		if in.files[k] != "" {
			line += ", stored in " + in.files[k]
		}
		fmt.Fprintln(a.out, line)
	}
	return nil
}
