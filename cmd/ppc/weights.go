package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
)

// checkpoints translates the flags of checkpoints.
func checkpoints(c *cli.Command) (runtime.Checkpoint, error) {
	o := runtime.Checkpoint{Dir: c.String("checkpoint"), Every: c.Int("save-every"), Keep: c.Int("keep"), Resume: c.String("resume")}
	for _, n := range []string{"save-every", "keep"} {
		switch {
		case c.IsSet(n) && c.Int(n) < 1:
			return o, usagef("-%s is %d; it must be at least 1", n, c.Int(n))
		case c.IsSet(n) && o.Dir == "":
			return o, usagef("-%s is about checkpoints, and -checkpoint gives no folder for them", n)
		}
	}
	if o.Resume != "" && c.IsSet("init") {
		return o, usagef("-resume takes all values from a checkpoint; -init gives others")
	}
	return o, nil
}

func isSafetensors(name string) bool { return strings.HasSuffix(name, ".safetensors") }

// weights reads what -init names: an npz file, a safetensors file, or the parameters and buffers of a checkpoint, whose other
// state is left where it is.
func weights(name string, notice func(string)) (params, buffers []data.Array, err error) {
	if st, err := os.Stat(name); err != nil || !st.IsDir() {
		read := func() ([]data.Array, error) { return data.ReadNPZ(name) }
		if isSafetensors(name) {
			read = func() ([]data.Array, error) { return data.ReadSafetensors(name) }
		}
		params, err = read()
		return params, nil, err
	}
	c, err := checkpoint.Find(name, notice)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	for _, e := range c.Parameters {
		x, err := c.Read(e.Name)
		if err != nil {
			return nil, nil, err
		}
		params = append(params, x)
	}
	for _, e := range c.Buffers {
		x, err := c.Read(checkpoint.BufferName(e.Name))
		if err != nil {
			return nil, nil, err
		}
		x.Name = e.Name
		buffers = append(buffers, x)
	}
	return params, buffers, nil
}

// initial takes the first values of all parameters from the arrays of a file. Their names must be those of the model.
func initial(p *plan.Plan, name string, arrays []data.Array) (map[string][]float32, error) {
	var errs diag.List
	out := map[string][]float32{}
	at := diag.At(diag.Pos{File: name})
	var names []string
	for _, q := range p.Module.Params {
		names = append(names, q.Name)
	}
	for i := range arrays {
		x := &arrays[i]
		q := p.Module.Param(x.Name)
		switch {
		case q == nil:
			d := diag.Errorf(diag.BadDataFile, at, "array `%s` is no parameter of the model", x.Name)
			if s := diag.DidYouMean(x.Name, names); s != "" {
				d = d.WithRepair("%s", s)
			}
			errs.Add(d)
		case !slices.Equal(x.Shape, q.Type.Shape) || !x.DType.IsFloat():
			errs.Add(diag.Errorf(diag.BadDataFile, at, "array `%s` is %s%s, the parameter is %s", x.Name, x.DType, ir.ShapeString(x.Shape), q.Type))
		default:
			v := make([]float32, x.Elems())
			if err := x.Float32(v); err != nil {
				errs.Add(diag.Errorf(diag.BadValueRange, at, "array `%s`: %v", x.Name, err))
			}
			out[x.Name] = v
		}
	}
	var missing []string
	for _, n := range names {
		if _, ok := out[n]; !ok && !errs.HasErrors() {
			missing = append(missing, "`"+n+"`")
		}
	}
	if len(missing) > 0 {
		what := "file"
		if st, err := os.Stat(name); err == nil && st.IsDir() {
			what = "checkpoint"
		}
		errs.Add(diag.Errorf(diag.BadDataFile, at, "the %s lacks the parameters %s", what, strings.Join(missing, ", ")))
	}
	return out, errs.Err()
}

// firstBuffers gives buffers the values that a checkpoint has for them, and tells which it has not used.
func firstBuffers(p *plan.Plan, name string, arrays []data.Array, notice func(string)) map[string]data.Array {
	out := map[string]data.Array{}
	if p.Programs[0].Feedback != nil {
		return out // each request begins with the first values of the file
	}
	known := buffers(p)
	var unused []string
	for _, x := range arrays {
		if n := "`" + x.Name + "`"; slices.Contains(known, n) {
			out[x.Name] = x
		} else {
			unused = append(unused, n)
		}
	}
	if len(unused) > 0 {
		notice(fmt.Sprintf("%s has buffers that the program has not: %s", name, strings.Join(unused, ", ")))
	}
	return out
}

// save stores the parameters of a result: safetensors if the name says so, else npz.
func save(name string, params []runtime.Param) error {
	arrays := make([]data.Array, len(params))
	for i, x := range params {
		arrays[i] = data.NewFloat32(x.Name, x.Shape, x.Values)
	}
	if isSafetensors(name) {
		return data.WriteSafetensors(name, arrays)
	}
	return data.WriteNPZ(name, arrays)
}
