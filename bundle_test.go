package ppc

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ppc-lang/ppc/plan"
)

func compileFile(t *testing.T, o Options) *Result {
	t.Helper()
	if o.Source == nil {
		src, err := os.ReadFile(o.File)
		if err != nil {
			t.Fatal(err)
		}
		o.Source = src
	}
	o.Verify = true
	r, err := Compile(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const folded = `
train t {
    network = Sequential([
        Dense(4, 4) @stage(0) @segment(0), Dense(4, 4) @stage(1) @segment(0),
        Dense(4, 4) @stage(1) @segment(1), Dense(4, 4) @stage(0) @segment(1),
    ])
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]
    input y: f32[8, 4]
    micro_batch_num = 4
}
`

// A bundle that is read back gives the same bundle.
func TestBundleRoundTrip(t *testing.T) {
	for _, o := range []Options{
		{File: "examples/mnist/mnist.pp"},
		{File: "examples/mnist/mnist_auto.pp", Stages: 3, Schedule: "gpipe"},
		{File: "examples/mnist/mnist_auto.pp", Stages: 1, LazyInline: "off"},
		{File: gptFile, Stages: 2},
		{File: "examples/gpt/generate.pp", Stages: 4},
		{File: "average.pp", Source: []byte(smallAverage)},
		{File: "folded.pp", Source: []byte(folded)},
	} {
		p := compileFile(t, o).Plan
		dir := filepath.Join(t.TempDir(), "out")
		if err := plan.Write(dir, p, nil); err != nil {
			t.Fatal(err)
		}
		q, err := plan.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := plan.Files(p, nil)
		got, _ := plan.Files(q, nil)
		if d := cmp.Diff(asText(want), asText(got)); d != "" {
			t.Errorf("%s: %s", o.File, d)
		}
	}
}

func asText(files []plan.File) map[string]string {
	m := map[string]string{}
	for _, f := range files {
		m[f.Path] = string(f.Content)
	}
	return m
}
