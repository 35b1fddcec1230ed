package ppc

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// averages has cells with a running mean and a counter; one cell is used twice. MARK stands for marks.
const averages = `
cell Norm(dim: int) {
    buffer average: f32[dim] = ones()
    buffer seen: i32[1] = zeros()
    construct(x) {
        y = x * average + cast(seen, f32) * 0.01 // of the micro-batches before
        if training {
            average = 0.9 * average + 0.1 * mean(x, axes = [0])
            seen = seen + 1
        }
        return y - average * 0.5
    }
}
cell Net {
    a = Dense(8, 8) MARK0
    n1 = Norm(8)
    b = Dense(8, 8) MARK1
    n2 = Norm(8)
    c = Dense(8, 8) MARK2
    construct(x) {
        x = n1(relu(n1(a(x))))
        return c(relu(n2(b(x))))
    }
}
train model {
    network   = Net()
    loss      = MSELoss()
    optimizer = SGD(lr = 0.05)
    input x     : f32[32, 8]
    input label : f32[32, 8]
    micro_batch_num = 4
    ENTRIES
    dataset = npz("data.npz", columns = ["x", "label"]) | batch(32)
    eval test {
        dataset = npz("data.npz", columns = ["x", "label"]) | batch(16)
        micro_batch_num = 2
    }
}
`

// centred has buffers in the network itself and in a cell that is opened where the stages part.
const centred = `
cell Pair {
    a = Dense(8, 8) MARK0
    b = Dense(8, 8) MARK1
    buffer sum: f32[8] = zeros()
    construct(x) {
        y = b(relu(a(x)))
        before = sum * 0.5 + 0.25
        sum = before + 0.1 * mean(y, axes = [0])
        return y - before
    }
}
cell Net {
    buffer scale: f32[1] = constant(1.5)
    buffer last: f32[8, 8] = ones()
    pair = Pair()
    c = Dense(8, 8) MARK2
    construct(x) {
        y = c(pair(x) * scale)
        if training {
            scale = scale * 0.99 + 0.01
            last = x
        }
        return y + 0.1 * mean(last)
    }
}
`

// numbers is an array of numbers between -1 and 1.
func numbers(name string, seed uint64, shape ...int) data.Array {
	n := 1
	for _, d := range shape {
		n *= d
	}
	r := rand.New(rand.NewPCG(seed, 0))
	v := make([]float32, n)
	for i := range v {
		v[i] = 2*r.Float32() - 1
	}
	return data.NewFloat32(name, shape, v)
}

func marked(source string, entries string, stages ...int) []byte {
	for i, s := range stages {
		source = strings.Replace(source, fmt.Sprint("MARK", i), fmt.Sprintf("@stage(%d)", s), 1)
	}
	for i := range 9 {
		source = strings.Replace(source, fmt.Sprint("MARK", i), "", 1)
	}
	return []byte(strings.Replace(source, "ENTRIES", entries, 1))
}

// Buffers in training: losses, weights and evaluations are the same for every cut, schedule, lag and form of the functions,
// with buffers of the plan poisoned at the end of their life.
func TestBuffersEqual(t *testing.T) {
	file := t.TempDir() + "/data.npz"
	if err := data.WriteNPZ(file, []data.Array{numbers("x", 1, 104, 8), numbers("label", 2, 104, 8)}); err != nil {
		t.Fatal(err)
	}
	type all struct {
		Train outcome
		Evals []runtime.Eval
	}
	run := func(o Options, path string) all {
		t.Helper()
		o.File, o.Verify = "t.pp", true
		p := compileFile(t, o).Plan
		var losses []uint64
		r := runPlan(t, p, file, runtime.Options{Epochs: 2, Device: device.Options{Path: path, Poison: true}, OnStep: func(s runtime.Step) {
			losses = append(losses, math.Float64bits(s.Loss))
		}})
		for _, k := range r.Ranks {
			if want := p.Memory[0].Stages[k.Stage].ByClass; !slices.Equal(k.Bytes, want) {
				t.Fatalf("rank %d allocated %v bytes, the plan says %v", k.Rank, k.Bytes, want)
			}
		}
		out := all{outcomeOf(r), r.Evals}
		out.Train.Losses = losses
		return out
	}
	other := centred + averages[strings.Index(averages, "train model"):]
	paths := kernel.Available()
	for _, path := range paths[max(0, len(paths)-2):] {
		for _, source := range []string{averages, other} {
			want := run(Options{Source: marked(source, ""), Unsplit: true}, path)
			if len(want.Train.Losses) != 6 || len(want.Evals) != 1 || want.Train.Losses[0] == want.Train.Losses[3] {
				t.Fatalf("%d losses, %d evaluations", len(want.Train.Losses), len(want.Evals))
			}
			for _, c := range []struct {
				stages  []int
				entries string
			}{
				{nil, ""}, {[]int{0, 0, 1}, ""}, {[]int{0, 1, 1}, ""}, {[]int{0, 1, 2}, ""}, {[]int{0, 1, 0}, "interleave = true"}, {[]int{1, 0, 1}, "interleave = true"},
			} {
				for _, name := range schedule.Names {
					for _, inline := range []string{"auto", "off"} {
						for lag := 0; lag < 4; lag += 3 {
							o := Options{Source: marked(source, c.entries, c.stages...), Schedule: name, LazyInline: inline, WLag: &lag}
							if c.stages == nil {
								o.Stages = 2 + lag/3
							}
							if d := cmp.Diff(want, run(o, path)); d != "" {
								t.Fatalf("stages %v, %s, %s, lag %d, path %s: %s", c.stages, name, inline, lag, path, d)
							}
						}
					}
				}
			}
		}
	}
}

// What a micro-batch reads is what the one before wrote, across steps, and evaluation goes on from training; the gradient
// is that of the value that the micro-batch read.
func TestBufferValues(t *testing.T) {
	const source = `
cell Net {
    param w: f32[1] = ones()
    buffer n: f32[1] = constant(2)
    buffer before: f32[1] = zeros()
    construct(x) {
        y = x * w * n
        n, before = [n + 1, n]
        return y + 0 * before
    }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = SGD(lr = 1 / 1024)
    input x: f32[2, 1]; input label: f32[2, 1]; micro_batch_num = 2; schedule = "SCHEDULE"
    dataset = npz("data.npz", columns = ["x", "label"]) | batch(2)
    eval check { dataset = npz("data.npz", columns = ["x", "label"]) | batch(1); micro_batch_num = 1 }
}
`
	ones, zeros := data.NewFloat32("x", []int{4, 1}, constant(4, 1)), data.NewFloat32("label", []int{4, 1}, constant(4, 0))
	for _, name := range schedule.Names {
		r, losses, _ := runText(t, strings.Replace(source, "SCHEDULE", name, 1), 2, ones, zeros)
		w, n := 1.0, 2.0
		var want []float64
		for range 2 {
			loss, gradient := 0.0, 0.0
			for range 2 {
				loss += w * n * w * n
				gradient += 2 * w * n * n
				n++
			}
			want = append(want, loss)
			w -= gradient / 1024
		}
		checked := 0.0
		for range 4 {
			checked += w * n * w * n / 4
			n++
		}
		for i := range want {
			if math.Abs(losses[i]-want[i]) > 1e-5*want[i] {
				t.Errorf("%s: step %d has the loss %v, want %v", name, i, losses[i], want[i])
			}
		}
		if got := r.Evals[0].Metrics[0].Value; math.Abs(got-checked) > 1e-5*checked {
			t.Errorf("%s: the evaluation gives %v, want %v", name, got, checked)
		}
	}
}

// What a micro-batch assigns to a buffer and then reads has its gradient; what it finds there has none.
func TestGradientOfBuffer(t *testing.T) {
	const source = `
cell Net {
    param w: f32[1] = ones()
    buffer n: f32[1, 1] = ones()
    construct(x) {
        found = n
        n = x * w
        return READ
    }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = SGD(lr = 1 / 4)
    input x: f32[1, 1]; input label: f32[1, 1]
    dataset = npz("data.npz", columns = ["x", "label"]) | batch(1)
}
`
	ones, zeros := data.NewFloat32("x", []int{2, 1}, constant(2, 1)), data.NewFloat32("label", []int{2, 1}, constant(2, 0))
	for read, want := range map[string][]float64{"n": {1, 0.25}, "found": {1, 1}} {
		if _, losses, _ := runText(t, strings.Replace(source, "READ", read, 1), 2, ones, zeros); !slices.Equal(losses, want) {
			t.Errorf("%s: the losses are %v, want %v", read, losses, want)
		}
	}
}

// Buffers of an infer block: values that change places keep apart, a constant or an input is stored, and every batch goes on
// from the one before.
func TestInferenceBuffers(t *testing.T) {
	const source = `
cell Net {
    buffer a: i32[2] = constant(1)
    buffer b: i32[2] = constant(2)
    buffer last: i32[2] = constant(-7)
    buffer first: bool[2] = ones()
    construct(x) {
        a, b = [b, a + x]
        before = last
        last = x
        old = first
        first = zeros([2], bool)
        return a, before, cast(old, i32)
    }
}
infer t { network = Net(); input x: i32[4]; micro_batch_num = 2 }
`
	p := compileFile(t, Options{File: "t.pp", Source: []byte(source), Verify: true}).Plan
	x := data.Array{Name: "x", DType: data.I32, Shape: []int{8}, Data: make([]byte, 32)}
	for i := range 8 {
		x.Data[4*i] = byte(i)
	}
	r := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{x}, Device: device.Options{Poison: true}})
	a, b, last, first := [2]int32{1, 1}, [2]int32{2, 2}, [2]int32{-7, -7}, int32(1)
	var want [3][]int32
	for m := range 4 {
		now := [2]int32{int32(2 * m), int32(2*m + 1)}
		a, b = b, [2]int32{a[0] + now[0], a[1] + now[1]}
		for i := range 2 {
			want[0], want[1], want[2] = append(want[0], a[i]), append(want[1], last[i]), append(want[2], first)
		}
		last, first = now, 0
	}
	read := func(a *data.Array) (out []int32) {
		for _, v := range values32(a) {
			out = append(out, int32(v))
		}
		return out
	}
	for k := range want {
		if d := cmp.Diff(want[k], read(r.Outputs[0][k].Array)); d != "" {
			t.Errorf("result %d: %s", k, d)
		}
	}
	// The requests of a session follow each other in the same way.
	s := serve(t, p, 2)
	defer s.Close()
	for batch := range 2 {
		out, err := s.Submit(context.Background(), []data.Array{{Name: "x", DType: data.I32, Shape: []int{4}, Data: x.Data[16*batch:][:16]}})
		if err != nil {
			t.Fatal(err)
		}
		for k := range want {
			if d := cmp.Diff(want[k][4*batch:][:4], read(&out[k])); d != "" {
				t.Errorf("request %d, result %d: %s", batch, k, d)
			}
		}
	}
}

// A buffer is in one place. The diagnostic names the buffer, both stages and both lines.
func TestBufferInTwoPlaces(t *testing.T) {
	const source = `
cell Total {
    buffer sum: f32[4] = zeros()
    construct(x) {
        sum = sum + x
        return sum
    }
}
cell Net {
    total = Total()
    first = Dense(4, 4) @stage(0)
    second = Dense(4, 4) @stage(1)
    construct(x) {
        x = total(mean(first(x), axes = [0])) + x
        return second(x) + total(mean(second(x), axes = [0]))
    }
}
infer t { network = Net(); input x: f32[4, 4] }
`
	_, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(source)})
	list := Diagnostics(err)
	if len(list) != 1 || list[0].Code != diag.BufferStages || len(list[0].Notes) != 2 {
		t.Fatalf("%v", err)
	}
	d := list[0]
	if got := d.Error(); !strings.Contains(got, "`total.sum`") || !strings.Contains(got, "stage 0") || !strings.Contains(got, "stage 1") || d.Range.Line != 15 || d.Notes[0].Range.Line != 14 || d.Repair == "" {
		t.Errorf("%s\n%+v", got, d)
	}
	if _, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(source), Unsplit: true}); err != nil {
		t.Errorf("on one stage: %v", err)
	}
	// The planner keeps the uses of a buffer together.
	auto := strings.NewReplacer(" @stage(0)", "", " @stage(1)", "").Replace(source)
	if _, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(auto), Stages: 2}); err != nil && Diagnostics(err)[0].Code != diag.TooManyStages {
		t.Errorf("without marks: %v", err)
	}
}

// smallAverage is a model of two stages with buffers, for the rows of rowsFile.
const smallAverage = `
cell Norm {
    buffer average: f32[4] = constant(0.5)
    buffer seen: bool[1] = zeros()
    construct(x) {
        y = x - average
        if training {
            average = 0.9 * average + 0.1 * mean(x, axes = [0])
            seen = ones([1], bool)
        }
        return y + cast(seen, f32)
    }
}
cell Net {
    norm  = Norm() @stage(0)
    dense = Dense(4, 3) @stage(1)
    construct(x) { return dense(norm(x)) }
}
train t {
    network = Net(); loss = CrossEntropyLoss(); optimizer = SGD(lr = 0.1)
    input x: f32[4, 4]; input label: i32[4]; micro_batch_num = 2
    dataset = npz("data.npz", columns = ["x", "label"]) | batch(4)
    eval check { dataset = npz("data.npz", columns = ["x", "label"]) | batch(4) }
}
`

// Training and evaluation may use a buffer at different places of the network, but not on different stages.
func TestBufferOfEvaluation(t *testing.T) {
	const source = `
cell Net {
    buffer k: f32[4] = ones()
    first = Dense(4, 4) @stage(0)
    second = Dense(4, 4) @stage(1)
    construct(x) {
        if training {
            return second(first(x) * k)
        } else {
            return second(first(x)) * k
        }
    }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = SGD(lr = 0.1)
    input x: f32[4, 4]; input label: f32[4, 4]
    dataset = npz("data.npz") | batch(4)
    eval check { dataset = npz("data.npz") | batch(4) }
}
`
	_, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(source)})
	if list := Diagnostics(err); len(list) != 1 || list[0].Code != diag.BufferStages || list[0].Range.Line != 10 || !strings.Contains(list[0].Message, "`k` is on stage 1 here, and on stage 0") {
		t.Errorf("%v", list)
	}
}
