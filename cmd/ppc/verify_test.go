package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/verify"
)

// A difference is an error of the run that shows the line of the operation and what was seen first.
func TestVerifyShowsTheLine(t *testing.T) {
	ctx := context.Background()
	text, err := os.ReadFile("testdata/models/model.pp")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "data.npz")
	if err := writeRows(file, 20); err != nil {
		t.Fatal(err)
	}
	o := ppc.Options{File: "model.pp", Source: text, Stages: 2}
	split, err := ppc.Compile(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Unsplit, o.Stages = true, 0
	whole, err := ppc.Compile(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := verify.NewReference(ctx, whole.Plan, runtime.Options{Seed: 1, DataPath: file})
	if err != nil {
		t.Fatal(err)
	}
	if err := compare(ctx, r, split.Plan, ""); err != nil {
		t.Fatal(err)
	}
	for _, m := range split.Plan.Programs[0].Messages {
		if !m.Backward {
			m.Tensors = nil
		}
	}
	err = compare(ctx, r, split.Plan, "with a lost activation")
	var f *failure
	if !errors.As(err, &f) || f.code != 3 {
		t.Fatalf("got %v", err)
	}
	var out bytes.Buffer
	a := &app{err: &out, sources: map[string][]byte{"model.pp": text}}
	a.show(ppc.Diagnostics(f), false)
	for _, part := range []string{
		"model.pp:8:17: error E1102: `tanh` is the first that differs from the unsplit program: on stage 1 element 0 is 0, unsplit ",
		"(forward of micro-batch 0, step 0)", "8 |             x = tanh(layer(x))", "the loss of step 0 is ", "with a lost activation",
	} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the output lacks %q:\n%s", part, out.String())
		}
	}
}

// What differs in a cell of the library is shown where the model has it.
func TestVerifyShowsTheCall(t *testing.T) {
	ctx := context.Background()
	t.Chdir(t.TempDir())
	if err := writeRows("data.npz", 20); err != nil {
		t.Fatal(err)
	}
	o := ppc.Options{File: "m.pp", Source: []byte(`train m {
    network = Sequential([Dense(4, 8) @stage(0), Dense(8, 3) @stage(1)])
    loss = CrossEntropyLoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]
    input label: i32[8]
    dataset = npz("data.npz") | batch(8)
}
`)}
	split, err := ppc.Compile(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Unsplit = true
	whole, err := ppc.Compile(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := verify.NewReference(ctx, whole.Plan, runtime.Options{Seed: 1, DataPath: "data.npz", Steps: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range split.Plan.Programs[0].Messages {
		if !m.Backward {
			m.Tensors = nil
		}
	}
	d, err := r.Compare(ctx, split.Plan)
	if err != nil || d == nil || d.Op == nil {
		t.Fatal(d, err)
	}
	if x := d.Diagnostic().Error(); !strings.HasPrefix(x, "m.pp:2:15: error E1102: `matmul` of cell `1` is the first") {
		t.Error(x)
	}
}
