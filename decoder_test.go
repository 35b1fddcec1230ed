package ppc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// A decoder with dropout and a head of its own gives the same bits on 1, 2 and 4 stages, marked and planned, in every
// form of its functions.
func TestDecoderEqual(t *testing.T) {
	text, err := os.ReadFile(gptFile)
	if err != nil {
		t.Fatal(err)
	}
	source := string(text)
	for _, change := range [][2]string{
		{"matmul(lnf(x), wte, transpose_b = true)", "head(lnf(x))"},
		{"    lnf = LayerNorm(dim)\n", "    lnf = LayerNorm(dim)\n    head = Dense(dim, vocab, bias = false)\n    drop = Dropout(0.1)\n"},
		{"gather(wte, ids) + wpe[0..ids.shape[1]]", "drop(gather(wte, ids) + wpe[0..ids.shape[1]])"},
		{"CausalAttention(heads)", "CausalAttention(heads, p = 0.1)"},
		{"lr = 1e-3", "lr = warmup(2, cosine(1e-3, 1e-4, steps = 10)), groups = { \"*.bias\": { weight_decay: 0 }, wpe: { weight_decay: 0 } }"},
	} {
		if !strings.Contains(source, change[0]) {
			t.Fatalf("%s has no %q", gptFile, change[0])
		}
		source = strings.ReplaceAll(source, change[0], change[1])
	}
	unmarked := strings.ReplaceAll(source, " @stage(i * stages / layers)", "")
	run := func(o Options) outcome {
		o.File = gptFile
		return train(t, compileFile(t, o).Plan, runtime.Options{DataPath: gptData, Steps: 3, Device: device.Options{Poison: true}})
	}
	want := run(Options{Source: []byte(source), Unsplit: true})
	for _, stages := range []int{1, 2, 4} {
		for i, mode := range []string{"auto", "marked", "off"} {
			o := Options{Source: []byte(source), Stages: stages, LazyInline: mode, Schedule: []string{"1f1b", "gpipe"}[i%2]}
			if got := run(o); !want.equal(got) {
				t.Errorf("%d stages, lazy_inline %s: differs from the unsplit program", stages, mode)
			}
			o.Source = []byte(unmarked)
			if got := run(o); !want.equal(got) {
				t.Errorf("%d planned stages, lazy_inline %s: differs from the unsplit program", stages, mode)
			}
		}
	}
}

// What depends on constants only is computed where it is used, also where a marked cell makes it.
func TestConstantsAreNotSent(t *testing.T) {
	const source = `
cell Second { construct(x, mask, n) { return softmax(where(mask, x, -inf)) * n } }
cell Net {
    a = Dense(6, 6) @stage(0)
    outer = Outer() @stage(0)
    construct(x) { return outer(a(x)) }
}
cell Outer {
    b = Second() @stage(1)
    w = Dense(6, 6)
    construct(x) {
        mask = tril(ones([6, 6], bool))
        x = where(mask, w(x), 0.5)
        return b(x, mask, ones([6]) + 1)
    }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = SGD(lr = 0.1)
    input x: f32[12, 6]; input label: f32[12, 6]; micro_batch_num = 2
}
`
	for _, unmarked := range []bool{false, true} {
		o := Options{File: "t.pp", Source: []byte(source)}
		if unmarked {
			text := strings.NewReplacer(" @stage(0)", "", " @stage(1)", "").Replace(source)
			o.Source, o.Stages = []byte(text), 3
		}
		for _, m := range compileFile(t, o).Plan.Programs[0].Messages {
			for _, x := range m.Tensors {
				if x.Type.DType != ir.F32 || !slices.Equal(x.Type.Shape, []int{6, 6}) {
					t.Errorf("unmarked %v: chunk %d sends %s, %s, to chunk %d", unmarked, m.From, x.Name, x.Type, m.To)
				}
			}
		}
	}
}

// runText trains a model on the arrays and returns what it printed on every rank.
func runText(t *testing.T, source string, steps int, arrays ...data.Array) (*runtime.Result, []float64, string) {
	t.Helper()
	file := t.TempDir() + "/data.npz"
	if err := data.WriteNPZ(file, arrays); err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	var losses []float64
	p := compileFile(t, Options{File: "t.pp", Source: []byte(source)}).Plan
	r, err := runtime.Run(context.Background(), p, runtime.Options{
		Open: cpu.Open, Seed: 1, DataPath: file, Steps: steps, Log: func(int) io.Writer { return &printed },
		OnStep: func(s runtime.Step) { losses = append(losses, s.Loss) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, losses, printed.String()
}

// Dropout: each call, micro-batch and step has a mask of its own; evaluation has none.
func TestDropoutMasks(t *testing.T) {
	const source = `
cell Net {
    drop = Dropout(0.5)
    other = Dropout(0.5)
    param w: f32[] = ones()
    construct(x) {
        print("first", drop(x))
        print("second", drop(x))
        print("third", other(x))
        return x * w
    }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = SGD(lr = 0.0)
    input x: f32[2, 40]; input label: f32[2, 40]; micro_batch_num = 2
    dataset = npz("data.npz", columns = ["x", "label"]) | batch(2)
    eval check { dataset = npz("data.npz", columns = ["x", "label"]) | batch(2); micro_batch_num = 1 }
}
`
	ones := slices.Repeat([]float32{1}, 4*40)
	_, _, printed := runText(t, source, 2, data.NewFloat32("x", []int{4, 40}, ones), data.NewFloat32("label", []int{4, 40}, ones))
	seen := map[string]int{}
	shown := strings.Split(printed, "Tensor(")
	for _, s := range shown[1:] {
		_, s, _ = strings.Cut(s, "value=\n")
		s, _, _ = strings.Cut(s, ")")
		seen[s]++
	}
	// 3 dropouts in 2 micro-batches of 2 steps have 12 masks; the evaluation shows 3 whole tensors for each of 2 batches.
	whole := 0
	for s, n := range seen {
		if !strings.Contains(s, "0.0") && !strings.Contains(s, "2.0") {
			whole += n
		} else if n > 1 {
			t.Errorf("a mask is there %d times", n)
		}
	}
	if len(shown)-1 != 12+whole || whole != 6 || len(seen) != 13 {
		t.Errorf("%d tensors, %d of them whole, %d different", len(shown)-1, whole, len(seen))
	}
}

// Every optimizer follows its formula, computed here in float64, with schedules and groups.
func TestOptimizers(t *testing.T) {
	const steps = 12
	type state struct{ w, m, v float64 }
	warm := func(n int) float64 { return min(float64(n+1)/4, 1) }
	cosine := func(n int) float64 {
		return 0.01 + (0.1-0.01)/2*(1+math.Cos(math.Pi*math.Min(float64(n), 8)/8))
	}
	adam := func(s *state, g, lr float64, n int) {
		s.m = 0.9*s.m + 0.1*g
		s.v = 0.999*s.v + 0.001*g*g
		c1, c2 := 1-math.Pow(0.9, float64(n+1)), 1-math.Pow(0.999, float64(n+1))
		s.w -= lr * (s.m / c1) / (math.Sqrt(s.v/c2) + 1e-8)
	}
	for _, c := range []struct {
		text   string
		update func(s *state, g float64, n int, group bool)
	}{
		{"SGD(lr = 0.1)", func(s *state, g float64, n int, _ bool) { s.w -= 0.1 * g }},
		{"SGD(lr = warmup(4, 0.1), momentum = 0.9)", func(s *state, g float64, n int, _ bool) {
			s.m = 0.9*s.m + g
			s.w -= 0.1 * warm(n) * s.m
		}},
		{"SGD(lr = 0.1, weight_decay = 0.2, groups = { \"b*\": { weight_decay: 0, lr: 0.05 } })", func(s *state, g float64, n int, group bool) {
			if group {
				s.w -= 0.05 * g
			} else {
				s.w -= 0.1 * (g + 0.2*s.w)
			}
		}},
		{"Adam(lr = cosine(0.1, 0.01, 8), weight_decay = 0.3)", func(s *state, g float64, n int, _ bool) { adam(s, g+0.3*s.w, cosine(n), n) }},
		{"AdamW(lr = warmup(4, 0.1), weight_decay = 0.2, groups = { b: { lr: warmup(2, cosine(0.1, 0.01, 8)) } })", func(s *state, g float64, n int, group bool) {
			lr := 0.1 * warm(n)
			if group {
				if lr = 0.1 * float64(n+1) / 2; n >= 2 {
					lr = cosine(n - 2)
				}
			}
			s.w *= 1 - lr*0.2
			adam(s, g, lr, n)
		}},
	} {
		source := fmt.Sprintf(`
cell Net {
    param a: f32[2] = constant(0.5)
    param b: f32[2] = constant(-0.25)
    construct(x) { return x * a + b }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = %s
    input x: f32[2, 2]; input label: f32[2, 2]; micro_batch_num = 1
    dataset = npz("data.npz", columns = ["x", "label"]) | batch(2); epochs = %d
}
`, c.text, steps)
		x, y := []float32{1, -2, 0.5, 3}, []float32{2, 1, -1, 0.25}
		r, _, _ := runText(t, source, steps, data.NewFloat32("x", []int{2, 2}, x), data.NewFloat32("label", []int{2, 2}, y))
		for column := range 2 {
			a, b := &state{w: 0.5}, &state{w: -0.25}
			for n := range steps {
				ga, gb := 0.0, 0.0
				for row := range 2 {
					i := 2*row + column
					d := float64(x[i])*a.w + b.w - float64(y[i])
					ga += d * float64(x[i]) / 2
					gb += d / 2
				}
				c.update(a, ga, n, false)
				c.update(b, gb, n, true)
			}
			for i, want := range []float64{a.w, b.w} {
				if got := float64(r.Params[i].Values[column]); !(math.Abs(got-want) <= 2e-6*(1+math.Abs(want))) {
					t.Errorf("%s: %s[%d] is %v, want %v", c.text, r.Params[i].Name, column, got, want)
				}
			}
		}
	}
}
