package ppc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// block8 is a train block on rows of four numbers, with the entries given.
func block8(cells, entries string) []byte {
	return fmt.Appendf(nil, "%s\ntrain t {\n    network = Net()\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n    input x: f32[8, 4]\n"+
		"    input y: f32[8, 4]\n    micro_batch_num = 4\n%s    dataset = npz(\"data.npz\") | batch(8)\n}\n", cells, entries)
}

// everySchedule trains a model under every schedule and compares each with the unsplit program.
func everySchedule(t *testing.T, o Options) *plan.Plan {
	t.Helper()
	var p *plan.Plan
	o.File = "t.pp"
	for _, o.Schedule = range schedule.Names {
		p = compileFile(t, o).Plan
		equalsUnsplit(t, o, p)
	}
	return p
}

// message finds the only message between two chunks in a direction.
func message(t *testing.T, p *plan.Plan, from, to int) *plan.Message {
	t.Helper()
	var found *plan.Message
	for _, m := range p.Programs[0].Messages {
		if m.From == from && m.To == to {
			if found != nil {
				t.Fatalf("two messages from chunk %d to chunk %d", from, to)
			}
			found = m
		}
	}
	if found == nil {
		t.Fatalf("no message from chunk %d to chunk %d", from, to)
	}
	return found
}

// What a stage makes may be used by any later stage, not only by the next: it goes there straight. Training counts the bytes of every stage.
func TestSkipOverStages(t *testing.T) {
	down := join + `cell Net {
    a = Dense(4, 4) @stage(0)
    b = Dense(4, 4) @stage(1)
    c = Dense(4, 4) @stage(2)
    d = Join() @stage(3)
    construct(x) {
        p = a(x)
        q = b(relu(p))
        return d(c(q), q, p)
    }
}`
	p := everySchedule(t, Options{Source: block8(down, "")})
	// The gradient of q from stage 3 is added to that from stage 2 there, on its way back.
	for _, c := range [][2]int{{0, 3}, {3, 0}, {1, 3}, {3, 2}, {2, 1}} {
		message(t, p, c[0], c[1])
	}
	shape := join + `cell Net {
    for i in 0..4 { down[i] = Dense(4, 4) @stage(i) }
    for i in 0..4 { up[i] = Join() @stage(i) }
    construct(x) {
        saved = []
        for d in down {
            x = relu(d(x))
            saved = saved + [x]
        }
        for i in 0..4 { x = up[i](x, saved[3 - i], saved[0]) }
        return x
    }
}`
	p = everySchedule(t, Options{Source: block8(shape, "    interleave = true\n")})
	if len(p.Programs[0].Chunks) != 8 {
		t.Errorf("%d chunks", len(p.Programs[0].Chunks))
	}
	message(t, p, 0, 7)
	long := join + `cell Net {
    first = Dense(4, 4) @stage(0)
    for i in 0..4 { fc[i] = Dense(4, 4) @stage(i + 1) }
    last  = Join() @stage(5)
    construct(x) {
        y = first(x)
        for f in fc { x = relu(f(x)) }
        return last(x, y, y)
    }
}`
	p = everySchedule(t, Options{Source: bytes.ReplaceAll(bytes.ReplaceAll(block8(long, ""), []byte("micro_batch_num = 4"), []byte("micro_batch_num = 12")), []byte("8"), []byte("24"))})
	message(t, p, 0, 5)
	message(t, p, 5, 0)
}

const join = `cell Join {
    fc = Dense(4, 4)
    construct(x, y, z) { return fc(x) + y * 0.5 + tanh(z) }
}
`

// A boundary has as many tensors as the program needs, in one message.
func TestTensorsOfABoundary(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		src := fmt.Sprintf(`cell Make {
    for i in 0..%[1]d { fc[i] = Dense(4, 4) }
    construct(x) {
        out = []
        for f in fc { out = out + [f(x)] }
        return out, x * 0.5
    }
}
cell Use {
    for i in 0..%[1]d { fc[i] = Dense(4, 4) }
    construct(nested) {
        parts, x = nested
        for i in 0..%[1]d { x = x * 0.5 + tanh(fc[i](parts[i])) }
        return x
    }
}
cell Net {
    make = Make() @stage(0)
    use  = Use() @stage(1)
    construct(x) {
        parts, rest = make(x)
        return use([parts, parts[0]])
    }
}`, n)
		p := everySchedule(t, Options{Source: block8(strings.ReplaceAll(src, "return out, x * 0.5", "return out, out[0]"), "")})
		forward, backward := message(t, p, 0, 1), message(t, p, 1, 0)
		if len(forward.Tensors) != n || len(backward.Tensors) != n {
			t.Errorf("%d tensors: %d are sent, %d gradients", n, len(forward.Tensors), len(backward.Tensors))
		}
	}
}

const mixedBoundary = `cell First {
    table = Embedding(4, 4)
    fc = Dense(4, 4)
    construct(x, ids) {
        h = fc(x) + table(ids)
        return h, h < 0.1, ids + 1
    }
}
cell Second {
    fc = Dense(4, 4)
    position = Embedding(5, 4)
    construct(h, mask, ids) {
        return where(mask, fc(h), h * 0.5) + position(ids)
    }
}
cell Net {
    first  = First() @stage(0)
    second = Second() @stage(1)
    construct(x, ids) {
        h, mask, next = first(x, ids)
        return second(h, mask, next)
    }
}
train t {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]
    input ids: i32[8]
    input y: f32[8, 4]
    micro_batch_num = 4
    dataset = npz("data.npz") | batch(8)
}
`

// Conditions and whole numbers cross a boundary beside numbers; only the numbers get a gradient. Names mean nothing: with all
// of them changed the plan is the same.
func TestMixedBoundary(t *testing.T) {
	p := everySchedule(t, Options{Source: []byte(mixedBoundary)})
	types := func(m *plan.Message) (out []string) {
		for _, x := range m.Tensors {
			out = append(out, x.Type.String())
		}
		slices.Sort(out)
		return out
	}
	if got := types(message(t, p, 0, 1)); !slices.Equal(got, []string{"bool[2,4]", "f32[2,4]", "i32[2]"}) {
		t.Errorf("stage 0 sends %v", got)
	}
	if got := types(message(t, p, 1, 0)); !slices.Equal(got, []string{"f32[2,4]"}) {
		t.Errorf("stage 1 sends back %v", got)
	}
	renamed := strings.NewReplacer("First", "Alpha", "Second", "Omega", "first", "north", "second", "south", "table", "chair", "position", "location", "fc", "gc", "mask", "cover").Replace(mixedBoundary)
	q := compileFile(t, Options{File: "t.pp", Source: []byte(renamed), Schedule: schedule.Names[len(schedule.Names)-1]}).Plan
	if fmt.Sprint(p.Programs[0].Actions, p.Memory[0].Stages[0].ByClass, p.Memory[0].Stages[1].ByClass) != fmt.Sprint(q.Programs[0].Actions, q.Memory[0].Stages[0].ByClass, q.Memory[0].Stages[1].ByClass) {
		t.Error("names change the plan")
	}
	for i, m := range p.Programs[0].Messages {
		if n := q.Programs[0].Messages[i]; !slices.Equal(types(m), types(n)) || m.Window != n.Window {
			t.Errorf("names change message %d", i)
		}
	}
}

// A mask may come from the data and be used on a later stage.
func TestMaskFromData(t *testing.T) {
	src := `cell Masked {
    fc = Dense(4, 4)
    construct(x, mask) { return where(mask, fc(x), x * 0.5) }
}
cell Net {
    first  = Dense(4, 4) @stage(0)
    second = Masked() @stage(1)
    construct(x, mask) { return second(first(x), mask) }
}
train t {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]
    input mask: bool[8, 4]
    input y: f32[8, 4]
    micro_batch_num = 4
    dataset = npz("data.npz") | batch(8)
}
`
	p := everySchedule(t, Options{Source: []byte(src)})
	// Ranks that read all rows keep theirs.
	var outcomes []outcome
	for _, strategy := range []string{"data_parallel", "full_batch"} {
		o := Options{File: "t.pp", Devices: 4, Source: []byte(strings.Replace(src, "    micro_batch_num", "    dataset_strategy = "+strategy+"\n    micro_batch_num", 1))}
		q := compileFile(t, o).Plan
		outcomes = append(outcomes, train(t, q, runtime.Options{DataPath: rowsFor(t, q)}))
	}
	if !outcomes[0].equal(outcomes[1]) {
		t.Error("with all rows read the outcome is another one")
	}
	for _, c := range []struct {
		column data.Array
		want   string
	}{
		{data.Array{Name: "mask", DType: data.U8, Shape: []int{8, 4}, Data: append(make([]byte, 31), 2)}, "column \"mask\" holds 2 in row 7, which is no bool"},
		{data.NewFloat32("mask", []int{8, 4}, make([]float32, 32)), "column `mask` of the data has rows of f32"},
	} {
		numbers := data.NewFloat32("x", []int{8, 4}, make([]float32, 32))
		labels := numbers
		labels.Name = "y"
		file := t.TempDir() + "/data.npz"
		if err := data.WriteNPZ(file, []data.Array{numbers, c.column, labels}); err != nil {
			t.Fatal(err)
		}
		if _, err := runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1, DataPath: file}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
	infer := src[:strings.Index(src, "train t")] + "infer t {\n    network = Net()\n    input x: f32[8, 4]\n    input mask: bool[8, 4]\n}\n"
	in := []data.Array{data.NewFloat32("x", []int{8, 4}, constant(32, 1)), {Name: "mask", DType: data.U8, Shape: []int{8, 4}, Data: make([]byte, 32)}}
	for i := range in[1].Data {
		in[1].Data[i] = byte(i % 2)
	}
	o := Options{File: "t.pp", Source: []byte(infer)}
	two := compileFile(t, o).Plan
	o.Unsplit = true
	one := compileFile(t, o).Plan
	a, b := runPlan(t, two, "", runtime.Options{Inputs: in}).Outputs[1][0].Array, runPlan(t, one, "", runtime.Options{Inputs: in}).Outputs[0][0].Array
	if !bytes.Equal(a.Data, b.Data) {
		t.Error("the results differ")
	}
	in[1].Data[5] = 7
	if _, err := runtime.Run(context.Background(), two, runtime.Options{Open: cpu.Open, Seed: 1, Inputs: in}); err == nil || !strings.Contains(err.Error(), "element 5 is 7") {
		t.Errorf("got %v", err)
	}
}

// Inputs enter on the stages that use them, results leave where they are made, and come in the order of the source.
func TestInputsAndResultsOfSeveralStages(t *testing.T) {
	const cells = `cell Two {
    fc = Dense(4, 4)
    construct(x, y) { return fc(x) + y }
}
cell Net {
    first  = Dense(4, 4) @stage(0)
    second = Two() @stage(1)
    third  = Two() @stage(2)
    last   = Dense(4, 4) @stage(3)
    construct(a, b, c) {
        y = second(first(a), b)
        return last(third(y, c)), y * 2
    }
}
`
	inputs := "    network = Net()\n    input a: f32[8, 4]\n    input b: f32[8, 4]\n    input c: f32[8, 4]\n    micro_batch_num = 4\n"
	infer := Options{File: "t.pp", Source: []byte(cells + "infer t {\n" + inputs + "}\n")}
	p := compileFile(t, infer).Plan
	for k, stage := range []int{0, 1, 2} {
		for s := range 4 {
			if has := p.Stages[s].Inputs[0][k].Item >= 0; has != (s == stage) {
				t.Errorf("input %d on stage %d: %v", k, s, has)
			}
		}
	}
	var in []data.Array
	for k := range 3 {
		v := make([]float32, 32)
		for i := range v {
			v[i] = float32((i*5+k)%7) - 3
		}
		in = append(in, data.NewFloat32("x", []int{8, 4}, v))
	}
	run := func(p *plan.Plan) [][]runtime.Output {
		return runPlan(t, p, "", runtime.Options{Inputs: in, Device: device.Options{Poison: true}}).Outputs
	}
	infer.Unsplit = true
	got, want := run(p), run(compileFile(t, infer).Plan)
	for k, stage := range []int{3, 1} {
		if a := got[stage][k].Array; a == nil || !bytes.Equal(a.Data, want[0][k].Array.Data) {
			t.Errorf("result %d is not that of the unsplit program", k)
		}
	}
	train := cells + "train t {\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n" + inputs + "    input label: f32[8, 4]\n" +
		"    construct(a, b, c, label) {\n        last, early = network(a, b, c)\n        return loss(last, label) + mean(early * early)\n    }\n" +
		"    dataset = npz(\"data.npz\") | batch(8)\n}\n"
	everySchedule(t, Options{Source: []byte(train)})
}

// models are the sources of what stands below: every example and every model of this package's tables.
func models(t *testing.T) map[string]Options {
	t.Helper()
	out := map[string]Options{"mixed": {File: "t.pp", Source: []byte(mixedBoundary)}, "tied": {File: "t.pp", Source: []byte(tiedStages)}}
	for _, s := range situations {
		out[s.of] = Options{File: "t.pp", Source: block8(strings.ReplaceAll(s.cells, "cell Outer", "cell Net"), s.entries)}
	}
	for _, file := range []string{gptFile, vocabFile, "examples/mnist/mnist.pp", "examples/mnist/mnist_interleaved.pp"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out[file] = Options{File: file, Source: text, Read: func(name string) ([]byte, error) { return os.ReadFile(name) }}
	}
	return out
}

// Both sides of a boundary are one row: what the sender's pass gives at that place is what the receiver's pass takes there,
// with the type that the row says. No shape is found by running.
func TestBothSidesOfABoundary(t *testing.T) {
	for name, o := range models(t) {
		p := compileFile(t, o).Plan
		for _, q := range p.Programs {
			for _, m := range q.Messages {
				pass := 0
				if m.Backward {
					pass = 1
				}
				from := q.Chunks[m.From]
				for _, x := range m.Tensors {
					at := slices.Index(from.Phases[pass].Results, x.From)
					if at < 0 || !from.Phases[pass].Func.TypeOf(from.Phases[pass].Func.Results[at]).Equal(x.Type) {
						t.Errorf("%s: chunk %d does not make %s %s", name, m.From, x.Type, x.Name)
					}
					taken := 0
					for _, ph := range q.Chunks[m.To].Phases {
						for i, ref := range ph.Args {
							if ref == x.To {
								taken++
								if typ := ph.Func.TypeOf(ph.Func.Args[i]); !typ.Equal(x.Type) {
									t.Errorf("%s: chunk %d takes %s as %s", name, m.To, x.Type, typ)
								}
							}
						}
					}
					if taken == 0 && !m.Result {
						t.Errorf("%s: chunk %d never takes %s", name, m.To, x.Name)
					}
				}
			}
		}
	}
}

// The files of a bundle hold shape and place of both sides of every boundary in one row.
func TestBoundariesAreInTheBundle(t *testing.T) {
	p := compileFile(t, Options{File: "t.pp", Source: []byte(mixedBoundary)}).Plan
	files, err := plan.Files(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, f := range files {
		if f.Path == "boundaries.csv" {
			for _, typ := range []string{"bool[2,4]", "f32[2,4]", "i32[2]"} {
				if !strings.Contains(string(f.Content), typ) {
					t.Errorf("no row has %s:\n%s", typ, f.Content)
				}
			}
			rows = strings.Count(string(f.Content), "\n") - 1
		}
	}
	if rows != 4 { // three forward, one back
		t.Errorf("%d rows", rows)
	}
}

// A stage keeps the parameters that its passes read or accumulate, and no others.
func TestParametersOfAStage(t *testing.T) {
	for name, o := range models(t) {
		p := compileFile(t, o).Plan
		for s, st := range p.Stages {
			read := map[*ir.Param]bool{}
			for _, q := range p.Programs {
				for _, c := range q.Chunks {
					for _, ph := range c.Phases {
						if c.Stage != s || ph.Func == nil {
							continue
						}
						for _, v := range ph.Func.ParamReads() {
							read[ph.Func.Value(v).Param] = true
						}
					}
				}
			}
			for _, sp := range st.Params {
				if !read[sp.Param] {
					t.Errorf("%s: stage %d keeps %s, which nothing there reads", name, s, sp.Param.Name)
				}
				if p.Programs[0].Train && sp.Owner == s && len(sp.Accumulators) == 0 {
					t.Errorf("%s: %s has no gradient", name, sp.Param.Name)
				}
				delete(read, sp.Param)
			}
			for q := range read {
				t.Errorf("%s: stage %d reads %s and does not keep it", name, s, q.Name)
			}
		}
	}
}
