package ascend_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ppc-lang/ppc/codegen/ascend"
	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend"
	"github.com/ppc-lang/ppc/passes"
	"github.com/ppc-lang/ppc/plan"
)

// compile compiles a model for a chip.
func compile(t testing.TB, source string, stages int) *plan.Plan {
	t.Helper()
	spec, list := frontend.Load("model.pp", []byte(source), frontend.Options{Stages: stages})
	if list.HasErrors() {
		t.Fatal(list)
	}
	c, _ := chip.ByName("910b3")
	p, _, err := passes.Run(context.Background(), spec, passes.Options{Stages: max(spec.Stages, stages, 1), Schedule: "1f1b", WLag: 4, Target: ascend.Costs(c), Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func deep(layers int) string {
	return fmt.Sprintf(`cell Net(layers: int = %d) {
    for i in 0..layers {
        block[i] = Dense(64, 64)
        act[i] = ReLU()
    }
    construct(x) {
        for i in 0..layers {
            x = act[i](block[i](x))
        }
        return x
    }
}
train deep {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 1e-3)
    input x: f32[1024, 64]
    input label: f32[1024, 64]
    micro_batch_num = 4
}
`, layers)
}

// TestDeterminism: compiling again gives the same bytes.
func TestDeterminism(t *testing.T) {
	var files [2][]plan.File
	for i := range files {
		out, err := ascend.Generate(compile(t, deep(20), 3))
		if err != nil {
			t.Fatal(err)
		}
		files[i] = out.Files
	}
	if d := cmp.Diff(files[0], files[1]); d != "" {
		t.Error(d)
	}
	if !slices.IsSortedFunc(files[0], func(a, b plan.File) int { return strings.Compare(a.Path, b.Path) }) {
		t.Error("the files are not sorted")
	}
}

// TestSize: code grows with the different functions and the calls, never with micro-batches.
func TestSize(t *testing.T) {
	lines := func(micro, layers int) (kernels, host int) {
		source := strings.Replace(deep(layers), "micro_batch_num = 4", fmt.Sprintf("micro_batch_num = %d", micro), 1)
		source = strings.ReplaceAll(source, "[1024,", fmt.Sprintf("[%d,", 256*micro)) // a micro-batch stays the same
		out, err := ascend.Generate(compile(t, source, 2))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range out.Files {
			switch {
			case strings.Contains(f.Path, "/kernels/"):
				kernels++
			case strings.Contains(f.Path, "/host/"):
				host += strings.Count(string(f.Content), "\n")
			}
		}
		return kernels, host
	}
	kernels4, host4 := lines(4, 10)
	kernels512, host512 := lines(512, 10)
	if kernels4 != kernels512 || host4 != host512 {
		t.Errorf("4 micro-batches: %d kernels, %d lines; 512: %d and %d", kernels4, host4, kernels512, host512)
	}
	if kernels, _ := lines(4, 40); kernels != kernels4 {
		t.Errorf("10 layers have %d kernels, 40 have %d", kernels4, kernels)
	}
}

// Kernels of one name, in whichever stage, model or chip, are one text: a kernel server or a bundle that took one for another would
// compute something else.
func TestNamesOfKernels(t *testing.T) {
	texts := map[string]string{}
	shared, different := 0, map[string]bool{}
	for _, change := range [][2]string{
		{}, {"64", "96"}, {"ReLU", "GELU"}, {"[1024", "[2048"}, {"micro_batch_num = 4", "micro_batch_num = 8"},
		{"SGD(lr = 1e-3)", "SGD(lr = 1e-3, momentum = 0.9)"},
	} {
		source := deep(3)
		if change[0] != "" {
			source = strings.ReplaceAll(source, change[0], change[1])
		}
		out, err := ascend.Generate(compile(t, source, 2))
		if err != nil {
			t.Fatal(change, err)
		}
		for _, st := range out.Stages {
			for _, s := range st.Kernels.Sources {
				_, text, _ := strings.Cut(string(s.Text), "\n") // behind the title, which names the number of blocks
				if old, ok := texts[s.Name]; ok && old != text {
					t.Errorf("%s is two kernels:\n%s\n%s", s.Name, old, text)
				} else if ok {
					shared++
				}
				texts[s.Name] = text
				different[text] = true
			}
		}
	}
	if len(texts) != len(different) || shared == 0 || len(texts) < 20 {
		t.Errorf("%d names of %d kernels, %d times one again", len(texts), len(different), shared)
	}
}

func TestGenerateRefusals(t *testing.T) {
	p := compile(t, deep(2), 1)
	p.Target = "none"
	if _, err := ascend.Generate(p); err == nil || !strings.Contains(err.Error(), "no code generator for the target `none`") {
		t.Errorf("got %v", err)
	}
	p = compile(t, strings.Replace(deep(2), "return x\n", "return cast(cast(x, f64), f32)\n", 1), 1)
	_, err := ascend.Generate(p)
	var d diag.Diagnostic
	if !errors.As(err, &d) || d.Code != diag.NotSupported || d.Range.Line != 10 || !strings.Contains(d.Error(), "no arithmetic for f64") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkGenerate(b *testing.B) {
	p := compile(b, deep(1000), 8)
	for b.Loop() {
		if _, err := ascend.Generate(p); err != nil {
			b.Fatal(err)
		}
	}
}
