package main

import (
	"context"
	"fmt"
	"io"
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

// weights is what -init names: an npz file, a safetensors file, or the parameters and buffers of a checkpoint, whose other state
// is left where it is. Parameters are read one by one, when a rank asks for its own.
type weights struct {
	path    string
	tensors []data.Tensor
	buffers []data.Array
	read    func(name string) (data.Array, error)
	digest  func() (uint32, error)
	close   func() error
}

func openWeights(path string, notice func(string)) (*weights, error) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return openCheckpoint(path, notice)
	}
	if isSafetensors(path) {
		s, err := data.OpenSafetensors(path)
		if err != nil {
			return nil, err
		}
		return &weights{path: path, tensors: s.Tensors, read: s.Read, digest: s.Digest, close: s.Close}, nil
	}
	z, err := data.OpenNPZ(path)
	if err != nil {
		return nil, err
	}
	return &weights{path: path, tensors: z.Tensors, read: z.Read, digest: z.Digest, close: z.Close}, nil
}

func openCheckpoint(path string, notice func(string)) (*weights, error) {
	c, err := checkpoint.Find(path, notice)
	if err != nil {
		return nil, err
	}
	w := &weights{path: path, read: c.Read, digest: c.Digest, close: c.Close}
	for _, e := range c.Parameters {
		w.tensors = append(w.tensors, data.Tensor{Name: e.Name, DType: data.F32, Shape: e.Shape})
	}
	for _, e := range c.Buffers {
		x, err := c.Read(checkpoint.BufferName(e.Name))
		if err != nil {
			c.Close()
			return nil, err
		}
		x.Name = e.Name
		w.buffers = append(w.buffers, x)
	}
	return w, nil
}

// fits tells whether there are the parameters of a plan, all that it reads and no others.
func (w *weights) fits(p *plan.Plan) error {
	var errs diag.List
	at := diag.At(diag.Pos{File: w.path})
	var names []string
	for _, q := range p.Module.Params {
		names = append(names, q.Name)
	}
	have, read := map[string]bool{}, map[string]bool{}
	for _, st := range p.Stages {
		for _, sp := range st.Params {
			read[sp.Param.Name] = true
		}
	}
	for _, x := range w.tensors {
		have[x.Name] = true
		switch q := p.Module.Param(x.Name); {
		case q == nil:
			d := diag.Errorf(diag.BadDataFile, at, "array `%s` is no parameter of the model", x.Name)
			if s := diag.DidYouMean(x.Name, names); s != "" {
				d = d.WithRepair("%s", s)
			}
			errs.Add(d)
		case !slices.Equal(x.Shape, q.Type.Shape) || !x.DType.IsFloat():
			errs.Add(diag.Errorf(diag.BadDataFile, at, "array `%s` is %s%s, the parameter is %s", x.Name, x.DType, ir.ShapeString(x.Shape), q.Type))
		}
	}
	var missing []string
	for _, n := range names {
		if read[n] && !have[n] && !errs.HasErrors() {
			missing = append(missing, "`"+n+"`")
		}
	}
	if len(missing) > 0 {
		what := "file"
		if st, err := os.Stat(w.path); err == nil && st.IsDir() {
			what = "checkpoint"
		}
		errs.Add(diag.Errorf(diag.BadDataFile, at, "the %s lacks the parameters %s", what, strings.Join(missing, ", ")))
	}
	return errs.Err()
}

// values puts a parameter into dst, row-major.
func (w *weights) values(name string, dst []float32) (bool, error) {
	if !slices.ContainsFunc(w.tensors, func(t data.Tensor) bool { return t.Name == name }) {
		return false, nil // nothing reads it: see fits
	}
	x, err := w.read(name)
	if err != nil {
		return false, err
	}
	if err := x.Float32(dst); err != nil {
		return false, diag.List{diag.Errorf(diag.BadValueRange, diag.At(diag.Pos{File: w.path}), "array `%s`: %v", name, err)}
	}
	return true, nil
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

// save stores parameters as they come: safetensors if the name says so, else npz.
func save(ctx context.Context, name string, params []*ir.Param, next func() (data.Array, error)) error {
	var tensors []data.Tensor
	for _, q := range params {
		tensors = append(tensors, data.Tensor{Name: q.Name, DType: data.F32, Shape: q.Type.Shape})
	}
	elements := func(int) ([]byte, error) {
		x, err := next()
		return x.Data, err
	}
	return data.ReplaceFile(ctx, name, func(w io.Writer) error {
		if isSafetensors(name) {
			return data.EncodeSafetensors(w, nil, tensors, elements)
		}
		return data.EncodeNPZ(w, tensors, elements)
	})
}
