package ppc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/passes/check"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// fourStages multiplies by weights of ones; the first one is used again at the end. For rows of ones its results are 8^5
// and 2 x 8^4.
const fourStages = `
cell Layer {
    param weight: f32[8, 8] = ones()
    construct(x) {
        return matmul(x, weight), weight
    }
}

cell Head {
    layer = Layer()
    construct(x, w) {
        y, own = layer(x)
        return matmul(y, w), y + y
    }
}

@lazy_inline
cell Net {
    embedding = Layer() @stage(0)
    layer1    = Layer() @stage(1)
    layer2    = Layer() @stage(2)
    head      = Head() @stage(3)
    construct(x) {
        x, w = embedding(x)
        x, w1 = layer1(x)
        x, w2 = layer2(x)
        first, second = head(x, w)
        return first, second
    }
}

infer four {
    network          = Net()
    input x          : f32[8, 8]
    SETTINGS
}
`

func inferenceOf(t *testing.T, settings string, o Options) *plan.Plan {
	t.Helper()
	o.File, o.Source = "four.pp", []byte(strings.Replace(fourStages, "SETTINGS", settings, 1))
	return compileFile(t, o).Plan
}

func constant(n int, v float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func onesArray(rows int) data.Array { return data.NewFloat32("x", []int{rows, 8}, constant(8*rows, 1)) }

// all reports whether an array holds one value only.
func all(a *data.Array, want float32) bool {
	return slices.Equal(values(a), constant(a.Elems(), want))
}

func values(a *data.Array) []float32 {
	v := make([]float32, a.Elems())
	a.Float32(v)
	return v
}

// MindSpore's cases basic, broadcast, single_micro_batch, without_wrapper and single_output of pipelined inference, on
// three batches.
func TestInferenceFourStages(t *testing.T) {
	one := "\n    construct(x) {\n        first, second = network(x)\n        return first\n    }"
	for _, c := range []struct {
		name, settings string
		results        int
		everywhere     bool
	}{
		{"two micro-batches", "micro_batch_num = 2", 2, false},
		{"broadcast", "micro_batch_num = 4\n    output_broadcast = true", 2, true},
		{"one micro-batch", "micro_batch_num = 1", 2, false},
		{"no setting", "", 2, false},
		{"broadcast, no setting", "output_broadcast = true", 2, true},
		{"first result only", "micro_batch_num = 2" + one, 1, false},
	} {
		p := inferenceOf(t, c.settings, Options{})
		r := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{onesArray(24)}, Device: device.Options{Poison: true}})
		if len(r.Outputs) != 4 || r.Rows != 24 {
			t.Fatalf("%s: %d ranks, %d rows", c.name, len(r.Outputs), r.Rows)
		}
		for rank, outputs := range r.Outputs {
			if len(outputs) != c.results {
				t.Fatalf("%s: rank %d has %d results", c.name, rank, len(outputs))
			}
			for k, o := range outputs {
				want := []float32{8 * 8 * 8 * 8 * 8, 2 * 8 * 8 * 8 * 8}[k]
				switch {
				case rank < 3 && !c.everywhere:
					if o.Array != nil || !strings.Contains(o.Missing, "stage 3 computes it") {
						t.Errorf("%s: rank %d has result %d: %+v", c.name, rank, k, o)
					}
				case o.Array == nil || o.Missing != "" || o.Name != []string{"first", "second"}[k]:
					t.Errorf("%s: rank %d lacks result %d: %+v", c.name, rank, k, o)
				case !slices.Equal(o.Array.Shape, []int{24, 8}) || !all(o.Array, want):
					t.Errorf("%s: rank %d: result %d is not %v everywhere", c.name, rank, k, want)
				}
			}
		}
		for _, k := range r.Ranks {
			for i, b := range k.Bytes {
				if want := p.Memory[0].Stages[k.Stage].ByClass[i]; b != want {
					t.Errorf("%s: rank %d allocated %d bytes of %s, the plan says %d", c.name, k.Rank, b, plan.Classes[i], want)
				}
			}
		}
	}
}

// The first stage hands its weight to the second. MindSpore's cases first_stage and last_stage with and without
// lazy_inline: two micro-batches are two sends of activations and two receives, the weight is never sent, and the last
// stage has its own copy.
func TestInferenceSendsActivationsOnly(t *testing.T) {
	source := `
cell Layer {
    param weight: f32[8, 8] = ones()
    construct(x) {
        return matmul(x, weight), weight
    }
}

cell Last {
    layer = Layer()
    construct(x, w) {
        y, own = layer(x)
        return matmul(y, w)
    }
}

@lazy_inline
cell Net {
    fc0 = Layer() @stage(0)
    fc1 = Last() @stage(1)
    construct(x) {
        x, w = fc0(x)
        y = fc1(x, w)
        return y
    }
}

infer two {
    network         = Net()
    input x         : f32[8, 8]
    micro_batch_num = 2
    BROADCAST
}
`
	count := func(p *plan.Plan, stage int) map[plan.ActionKind]int {
		n := map[plan.ActionKind]int{}
		for _, a := range p.Programs[0].Actions[stage] {
			n[a.Kind]++
		}
		return n
	}
	for _, inline := range []string{"auto", "marked", "off"} {
		p := compileFile(t, Options{File: "two.pp", Source: []byte(strings.Replace(source, "BROADCAST", "", 1)), LazyInline: inline}).Plan
		q := p.Programs[0]
		if n := count(p, 0); n[plan.SendForward] != 2 || n[plan.Forward] != 2 || len(n) != 2 {
			t.Errorf("%s: the first stage does %v", inline, n)
		}
		if n := count(p, 1); n[plan.RecvForward] != 2 || n[plan.Forward] != 2 || len(n) != 2 {
			t.Errorf("%s: the last stage does %v", inline, n)
		}
		if len(q.Messages) != 1 || len(q.Messages[0].Tensors) != 1 || len(q.Shared) != 0 {
			t.Errorf("%s: more than one activation is sent", inline)
		}
		var kept []string
		for _, sp := range p.Stages[1].Params {
			kept = append(kept, fmt.Sprintf("%s of stage %d", sp.Param.Name, sp.Owner))
		}
		if want := []string{"fc0.weight of stage 0", "fc1.layer.weight of stage 1"}; !slices.Equal(kept, want) {
			t.Errorf("%s: the last stage keeps %v", inline, kept)
		}
		if f := q.Chunks[1].Phases[0].Func; len(f.Args) != 1 || len(f.ParamReads()) != 2 {
			t.Errorf("%s: the last stage takes %d values and %d parameters", inline, len(f.Args), len(f.ParamReads()))
		}
	}
	// result_broadcast: what MindSpore does with a reduction over zeros is one message a micro-batch here.
	p := compileFile(t, Options{File: "two.pp", Source: []byte(strings.Replace(source, "BROADCAST", "output_broadcast = true", 1))}).Plan
	if a, b := count(p, 0), count(p, 1); a[plan.RecvResult] != 2 || b[plan.SendResult] != 2 {
		t.Errorf("the stages do %v and %v", a, b)
	}
}

const vocabFile = "examples/inference/vocab.pp"

func tokens(rows int) data.Array {
	a := data.Array{Name: "x", DType: data.I32, Shape: []int{rows, 1}}
	for i := range rows {
		a.Data = binary.LittleEndian.AppendUint32(a.Data, uint32(i*7%32))
	}
	return a
}

// The tutorial's inference: with a table of ones all logits of a row are equal; with any table every rank has the bits of
// the unsplit program, on every kernel path and in every form of the functions.
func TestVocabulary(t *testing.T) {
	x := tokens(32)
	wide := data.Array{Name: "x", DType: data.I64, Shape: x.Shape} // as NumPy makes them
	for i := range 32 {
		wide.Data = binary.LittleEndian.AppendUint64(wide.Data, uint64(binary.LittleEndian.Uint32(x.Data[4*i:])))
	}
	run := func(o Options, in data.Array, path string, first map[string][]float32) *runtime.Result {
		o.File = vocabFile
		return runPlan(t, compileFile(t, o).Plan, "", runtime.Options{Inputs: []data.Array{in}, Initial: from(first), Device: device.Options{Path: path, Poison: true}})
	}
	logits := run(Options{}, x, "", nil).Outputs[0][0].Array
	v := make([]float32, logits.Elems())
	logits.Float32(v)
	for r := range 32 {
		if row := v[r*32 : r*32+32]; row[0] == 0 || !slices.Equal(row, constant(32, row[0])) {
			t.Errorf("row %d: the logits differ: %v", r, row)
		}
	}
	drawn := referenceWeights(compileFile(t, Options{File: vocabFile}).Plan, 0.5)
	for _, first := range []map[string][]float32{nil, drawn} {
		for _, path := range kernel.Available() {
			want := run(Options{Unsplit: true}, x, path, first).Outputs[0][0].Array
			for _, inline := range []string{"auto", "marked", "off"} {
				r := run(Options{LazyInline: inline}, wide, path, first)
				if len(r.Outputs) != 4 {
					t.Fatalf("%d ranks", len(r.Outputs))
				}
				for rank, o := range r.Outputs {
					if o[0].Array == nil || !slices.Equal(o[0].Array.Shape, []int{32, 32}) || !bytes.Equal(o[0].Array.Data, want.Data) {
						t.Errorf("%s, %s: rank %d differs from the unsplit program", path, inline, rank)
					}
				}
			}
		}
	}
}

// Results of different stages, one used twice, chunks that interleave, cuts of the planner, and rows that several ranks share:
// as the unsplit program.
func TestInferenceCuts(t *testing.T) {
	source := `
cell Net {
    for i in 0..6 {
        fc[i] = Dense(8, 8)
    }
    construct(x) {
        for i in 0..6 {
            x = relu(fc[i](x))
            if i == 1 {
                early = x
            }
        }
        again = x
        sums = sum(x, axes = [1])
        return x, early, again, sums
    }
}

infer net {
    network         = Net()
    input x         : f32[12, 8]
    micro_batch_num = 3
    SETTINGS
}
`
	in := make([]float32, 24*8)
	for i := range in {
		in[i] = float32(i%13)/13 - 0.4
	}
	run := func(settings string, o Options) *runtime.Result {
		o.File, o.Source = "net.pp", []byte(strings.Replace(source, "SETTINGS", settings, 1))
		return runPlan(t, compileFile(t, o).Plan, "", runtime.Options{Inputs: []data.Array{data.NewFloat32("x", []int{24, 8}, in)}, Device: device.Options{Poison: true}})
	}
	want := run("", Options{Unsplit: true}).Outputs[0]
	marks := "stage_config = { fc[0]: 0, fc[1]: 1, fc[2]: 0, fc[3]: 1, fc[4]: 0, fc[5]: 1 }\n    interleave = true"
	for _, c := range []struct {
		settings        string
		stages, devices int
	}{
		{"", 2, 0}, {"", 3, 0}, {"", 6, 0}, {marks, 0, 0}, {"stage_config = { fc[0..3]: 0, fc[3..6]: 1 }", 0, 0},
		{"", 1, 4}, {"", 2, 4}, {"", 3, 12}, {marks, 0, 8},
	} {
		for _, broadcast := range []bool{false, true} {
			settings := c.settings
			if broadcast {
				settings += "\n    output_broadcast = true"
			}
			r := run(settings, Options{Stages: c.stages, Devices: c.devices})
			if n := max(c.devices, len(r.Outputs)); len(r.Ranks) != n {
				t.Errorf("%q: %d ranks, want %d", settings, len(r.Ranks), n)
			}
			for k := range want {
				have := 0
				for rank := range r.Outputs {
					if a := r.Outputs[rank][k].Array; a != nil {
						have++
						if !bytes.Equal(a.Data, want[k].Array.Data) || !slices.Equal(a.Shape, want[k].Array.Shape) {
							t.Errorf("%q on %d stages, %d devices: stage %d has another %s", settings, c.stages, c.devices, rank, want[k].Name)
						}
					}
				}
				if due := map[bool]int{false: 1, true: len(r.Outputs)}[broadcast]; have != due {
					t.Errorf("%q on %d stages, %d devices: %d stages have %s", settings, c.stages, c.devices, have, want[k].Name)
				}
			}
		}
	}
}

// A bundle of an infer block is read back as it was, and runs.
func TestInferenceBundle(t *testing.T) {
	dir := t.TempDir() + "/out"
	r := compileFile(t, Options{File: vocabFile})
	if err := WriteBundle(dir, r); err != nil {
		t.Fatal(err)
	}
	p, err := ReadBundle(dir)
	if err != nil {
		t.Fatal(err)
	}
	a := runPlan(t, r.Plan, "", runtime.Options{Inputs: []data.Array{tokens(16)}})
	b := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{tokens(16)}})
	for rank := range a.Outputs {
		if !bytes.Equal(a.Outputs[rank][0].Array.Data, b.Outputs[rank][0].Array.Data) {
			t.Errorf("rank %d differs", rank)
		}
	}
}

// The proof refuses a broadcast that leaves a stage out, comes too early or twice, or cannot end.
func TestBroadcastFaults(t *testing.T) {
	// without removes the first action of a kind and returns it.
	without := func(list *[]plan.Action, kind plan.ActionKind) plan.Action {
		i := slices.IndexFunc(*list, func(a plan.Action) bool { return a.Kind == kind })
		a := (*list)[i]
		*list = slices.Delete(slices.Clone(*list), i, i+1)
		return a
	}
	for name, plant := range map[string]func(q *plan.Program){
		"a dropped receive": func(q *plan.Program) { without(&q.Actions[0], plan.RecvResult) },
		"a dropped send":    func(q *plan.Program) { without(&q.Actions[3], plan.SendResult) },
		"an early send": func(q *plan.Program) {
			a := without(&q.Actions[3], plan.SendResult)
			q.Actions[3] = slices.Insert(q.Actions[3], 0, a)
		},
		"an early receive": func(q *plan.Program) {
			a := without(&q.Actions[1], plan.RecvResult)
			q.Actions[1] = slices.Insert(q.Actions[1], 0, a)
		},
		"a result less":        func(q *plan.Program) { m := q.Messages[len(q.Messages)-1]; m.Tensors = m.Tensors[1:] },
		"a result twice":       func(q *plan.Program) { m := q.Messages[len(q.Messages)-1]; m.Tensors = append(m.Tensors, m.Tensors[0]) },
		"another result":       func(q *plan.Program) { m := q.Messages[len(q.Messages)-1]; m.Tensors[0].From = m.Tensors[1].From },
		"one place for two":    func(q *plan.Program) { m := q.Messages[len(q.Messages)-1]; m.Tensors[0].To = m.Tensors[1].To },
		"an activation's kind": func(q *plan.Program) { q.Messages[len(q.Messages)-1].Result = false },
		"a window":             func(q *plan.Program) { q.Messages[len(q.Messages)-1].From = 0 },
	} {
		p := inferenceOf(t, "micro_batch_num = 4\n    output_broadcast = true", Options{})
		if err := check.Run(p); err != nil {
			t.Fatal(err)
		}
		plant(p.Programs[0])
		if err := check.Run(p); err == nil {
			t.Errorf("%s: the proof finds nothing", name)
		}
	}
}

// What an infer block refuses, with the place.
func TestInferenceDiagnostics(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"return first, second", "return first, sum(second)", "E0401"},
		{"return first, second", "return first, w", "E0312"},
		{"return first, second", "return first, first", "E0202"},
		{"return first, second", "return first, second < first", "E0401"},
		{"f32[8, 8]\n", "f32[8, 8] @whole\n", "E0401"},
		{"infer four", "eval four", "E0601"},
	} {
		text := strings.Replace(strings.Replace(fourStages, "SETTINGS", "output_broadcast = true", 1), c.old, c.new, 1)
		_, err := Compile(context.Background(), Options{File: "four.pp", Source: []byte(text)})
		list := Diagnostics(err)
		if len(list) == 0 || string(list[0].Code) != c.want || list[0].Range.Pos.Line == 0 {
			t.Errorf("%s: %v", c.new, list)
		}
	}
	p := inferenceOf(t, "micro_batch_num = 2", Options{})
	for _, c := range []struct {
		in   data.Array
		want string
	}{
		{onesArray(20), "batches of 8 rows; 20 rows leave 4 over"},
		{onesArray(0), "0 rows"},
		{data.NewFloat32("x", []int{8, 4}, constant(32, 1)), "the array has the shape [8, 4]"},
		{tokens(8), "the array has the shape [8, 1]"},
		{data.Array{Name: "x", DType: data.I32, Shape: []int{8, 8}, Data: make([]byte, 256)}, "input `x` is f32, the array is i32"},
	} {
		_, err := runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1, Inputs: []data.Array{c.in}})
		if list := Diagnostics(err); len(list) == 0 || !strings.Contains(list[0].Message, c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
}

// A dataset feeds an infer block as arrays do, and rows that it leaves over are reported, not dropped.
func TestInferenceDataset(t *testing.T) {
	p := inferenceOf(t, "dataset = npz(\"rows.npz\") | batch(8)", Options{})
	run := func(rows int) (*runtime.Result, error) {
		file := t.TempDir() + "/rows.npz"
		if err := data.WriteNPZ(file, []data.Array{onesArray(rows)}); err != nil {
			t.Fatal(err)
		}
		return runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1, DataPath: file})
	}
	r, err := run(16)
	if err != nil {
		t.Fatal(err)
	}
	if o := r.Outputs[3][0].Array; !slices.Equal(o.Shape, []int{16, 8}) || !all(o, 8*8*8*8*8) {
		t.Errorf("the first result is %v", o.Shape)
	}
	if _, err := run(12); err == nil || !strings.Contains(err.Error(), "12 rows leave 4 over") {
		t.Errorf("12 rows: %v", err)
	}
}
