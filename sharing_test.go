package ppc

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/verify"
)

// tiedHead has its table at both ends of the chain, under one name.
const tiedHead = `cell Head(w: param) {
    construct(x) { return matmul(x, w, transpose_b = true) }
}
cell Net {
    table = Embedding(16, 4) @stage(0)
    for i in 0..4 { fc[i] = Dense(4, 4) @stage(i * stages / 4) }
    head  = Head(table.weight) @stage(stages - 1)
    construct(ids) {
        x = table(ids)
        for f in fc { x = tanh(f(x)) + x }
        return head(x)
    }
}
`

// A head tied to the table gives the same results on any number of stages, also from a file of values, which has the tensor
// once: nothing but the one name is asked for.
func TestTiedHeadInference(t *testing.T) {
	ids := data.Array{Name: "ids", DType: data.I32, Shape: []int{8}, Data: make([]byte, 32)}
	for i := range 8 {
		ids.Data[4*i] = byte(i * 3 % 16)
	}
	src := []byte(tiedHead + "infer t {\n    network = Net()\n    input ids: i32[8]\n    micro_batch_num = 4\n}\n")
	run := func(o Options, first map[string][]float32) []byte {
		o.File, o.Source = "t.pp", src
		p := compileFile(t, o).Plan
		out := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{ids}, Initial: from(first), Device: device.Options{Poison: true}}).Outputs
		return out[p.NumStages-1][0].Array.Data
	}
	unsplit := compileFile(t, Options{File: "t.pp", Source: src, Stages: 1}).Plan
	var names []string
	for _, q := range unsplit.Module.Params {
		names = append(names, q.Name)
	}
	if want := []string{"table.weight", "fc.0.weight", "fc.0.bias", "fc.1.weight", "fc.1.bias", "fc.2.weight", "fc.2.bias", "fc.3.weight", "fc.3.bias"}; !slices.Equal(names, want) {
		t.Errorf("the parameters are %v", names)
	}
	first := referenceWeights(unsplit, 0.5)
	for _, values := range []map[string][]float32{nil, first} {
		want := run(Options{Stages: 1}, values)
		for _, stages := range []int{2, 3, 4} {
			if !bytes.Equal(run(Options{Stages: stages}, values), want) {
				t.Errorf("%d stages: other results", stages)
			}
		}
	}
}

// A tie is a name: values that come after the program was built reach every user, and the copies stay equal to the last bit
// in every step.
func TestTiedHeadFromOtherValues(t *testing.T) {
	src := []byte(tiedHead + "train t {\n    network = Net()\n    loss = CrossEntropyLoss()\n    optimizer = Adam(lr = 0.01)\n    input ids: i32[8]\n    input label: i32[8]\n" +
		"    micro_batch_num = 4\n    epochs = 20\n    dataset = npz(\"data.npz\") | batch(8)\n}\n")
	for _, stages := range []int{2, 3, 4} {
		p := compileFile(t, Options{File: "t.pp", Source: src, Stages: stages}).Plan
		unsplit := compileFile(t, Options{File: "t.pp", Source: src, Stages: 1}).Plan
		r, err := verify.NewReference(context.Background(), unsplit, runtime.Options{
			Seed: 1, DataPath: rowsFor(t, p), Initial: from(referenceWeights(unsplit, 0.5)), Device: device.Options{Poison: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Steps() != 20 {
			t.Errorf("%d steps", r.Steps())
		}
		if d, err := r.Compare(context.Background(), p); d != nil || err != nil {
			t.Errorf("%d stages: %+v, %v", stages, d, err)
		}
	}
}

// A whole cell with its three parameters is used on three of four stages: every gradient has three parts, and the owner, the
// lowest of the three, sends each value to two others.
func TestOneCellOnThreeStages(t *testing.T) {
	src := `cell Block {
    fc = Dense(4, 4)
    norm = LayerNorm(4)
    construct(x) { return relu(norm(fc(x))) + x }
}
cell Use(block: cell) {
    inner = block
    construct(x) { return inner(x) }
}
cell Net {
    block = Block()
    a = Use(block) @stage(0)
    b = Dense(4, 4) @stage(1)
    c = Use(block) @stage(2)
    d = Use(block) @stage(3)
    construct(x) { return d(c(b(a(x)))) }
}`
	p := everySchedule(t, Options{Source: block8(src, "")})
	if got := sends(p); got != "4 0 0 2, 4 4 0 0, 4 4 1 0, 0 4 1 0" {
		t.Errorf("sent %s", got)
	}
	for _, m := range p.Programs[0].Shared {
		if len(m.Tensors) != 4 {
			t.Errorf("a message carries %d tensors, not weight and bias of both", len(m.Tensors))
		}
	}
	for i, sp := range p.Stages[0].Params {
		if len(sp.Accumulators) != 3 {
			t.Errorf("parameter %d has %d gradients", i, len(sp.Accumulators))
		}
	}
}

// Two users on one stage, in chunks far apart, share one buffer, and no message is about it.
func TestUsersOnOneStage(t *testing.T) {
	src := `cell Product(w: param) {
    construct(x) { return matmul(x, w) }
}
cell Net {
    param w: f32[4, 4] = normal(0.5)
    first  = Product(w) @stage(0)
    second = Dense(4, 4) @stage(1)
    last   = Product(w) @stage(0)
    construct(x) { return last(relu(second(first(x)))) }
}`
	p := everySchedule(t, Options{Source: block8(src, "    interleave = true\n")})
	if n := len(p.Programs[0].Shared); n != 0 {
		t.Errorf("%d messages", n)
	}
	keeps := 0
	for _, st := range p.Stages {
		for _, sp := range st.Params {
			if sp.Param.Name == "w" {
				keeps++
			}
		}
	}
	if keeps != 1 {
		t.Errorf("%d stages keep the parameter", keeps)
	}
}

// The check of copies sees one that missed an update, on any device that hands out its parameters.
func TestCopyThatMissedAnUpdate(t *testing.T) {
	p := compileFile(t, Options{File: "tied.pp", Source: []byte(tiedStages)}).Plan
	run := func(p *plan.Plan) error {
		_, err := runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1, DataPath: rowsFor(t, p), Digests: true})
		return err
	}
	if err := run(p); err != nil {
		t.Error(err)
	}
	for _, m := range p.Programs[0].Shared {
		if m.Value {
			m.Tensors = nil
		}
	}
	if err := run(p); err == nil || fmt.Sprint(err) != "after step 0 the copy of parameter `w` on stage 1 differs from that of its owner, stage 0" {
		t.Errorf("got %v", err)
	}
}
