package ppc

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
)

// tower is four stages; entries say which of their parameters are frozen.
const tower = `
cell Layer {
    fc   = Dense(8, 8)
    norm = LayerNorm(8)
    construct(x) { return x + gelu(norm(fc(x))) }
}
cell Net {
    for i in 0..4 { layers[i] = Layer() @stage(i) }
    construct(x) {
        for l in layers { x = l(x) }
        return x
    }
}
train tower {
    network = Net()
    loss = MSELoss()
    optimizer = OPTIMIZER
    micro_batch_num = 4
    input x: f32[32, 8]
    input y: f32[32, 8]
    dataset = npz("data.npz") | batch(32)
    ENTRIES
}
`

// Stages without anything to train: what is frozen keeps its first values and costs neither gradients nor states; gradients go no
// further down than something is trained; and what is trained has the bits that it has in the unsplit program, on every degree
// with states shared out and gradients clipped by a norm that only some stages add to.
func TestFrozenStages(t *testing.T) {
	file := ranksData(t, 64)
	for _, c := range []struct {
		frozen string
		sends  []int // gradients that each stage sends in a step
		trains []bool
	}{
		{"[layers[1], layers[2]]", []int{0, 4, 4, 4}, []bool{true, false, false, true}},
		{`["layers.[012].*"]`, []int{0, 0, 0, 0}, []bool{false, false, false, true}},
		{"layers[1..4]", []int{0, 4, 4, 4}, []bool{true, false, false, false}},
		{`[layers[0], "*.norm.*", layers[3].fc.weight]`, []int{0, 0, 4, 4}, []bool{false, true, true, true}},
	} {
		compile := func(o Options, entries string) *plan.Plan {
			t.Helper()
			src := strings.NewReplacer("OPTIMIZER", "AdamW(lr = 0.01)", "ENTRIES", "frozen = "+c.frozen+"\n"+entries).Replace(tower)
			if o.Unsplit {
				o.Devices = 0
			}
			if o.Stages == 1 {
				src = onOneStage(src)
			}
			o.File, o.Source, o.Verify = "tower.pp", []byte(src), true
			r, err := Compile(context.Background(), o)
			if err != nil {
				t.Fatal(Diagnostics(err))
			}
			if i := slices.IndexFunc(r.Warnings, func(d diag.Diagnostic) bool { return d.Code == diag.NoGradient }); i >= 0 {
				t.Errorf("%s: %v", c.frozen, r.Warnings[i])
			}
			return r.Plan
		}
		for _, entries := range []string{"", "clip_norm = 0.1\n optimizer_shard = { level: 1, threshold: 0 }"} {
			for _, name := range schedule.Names {
				p := compile(Options{Schedule: name}, entries)
				var sends []int
				for s, list := range p.Programs[0].Actions {
					n := 0
					for _, a := range list {
						if a.Kind == plan.SendBackward {
							n++
						}
					}
					sends = append(sends, n)
					for i, class := range plan.Classes {
						if b := p.Memory[0].Stages[s].ByClass[i]; (class == plan.Gradients || class == plan.OptState) && (b > 0) != c.trains[s] {
							t.Errorf("%s: stage %d has %d bytes of %s", c.frozen, s, b, class)
						}
					}
				}
				if !slices.Equal(sends, c.sends) {
					t.Errorf("%s, %s: gradients sent %v, want %v", c.frozen, name, sends, c.sends)
				}
				o := runtime.Options{DataPath: file, Epochs: 2}
				want := train(t, compile(Options{Unsplit: true}, entries), o)
				if got := train(t, p, o); !want.equal(got) {
					t.Errorf("%s, %s: other bits than the unsplit program", c.frozen, name)
				}
				one := train(t, compile(Options{Stages: 1, Devices: 2}, entries), o)
				if got := train(t, compile(Options{Devices: 8, Schedule: name}, entries), o); !one.equal(got) {
					t.Errorf("%s, %s: other bits than one stage of two ranks", c.frozen, name)
				}
				if err := want.near(one, 1e-5); err != nil {
					t.Errorf("%s: %v", c.frozen, err)
				}
			}
		}
	}
}

// Freezing changes nothing for what is left: the step of a trained parameter is that of a training of all.
func TestFrozenKeepsOtherSteps(t *testing.T) {
	file := ranksData(t, 32)
	first := map[string][]uint32{}
	run := func(entries string) outcome {
		src := strings.NewReplacer("OPTIMIZER", "SGD(lr = 0.1)", "ENTRIES", entries).Replace(tower)
		p := compileFile(t, Options{File: "tower.pp", Source: []byte(src)}).Plan
		for _, prm := range p.Module.Params {
			values := make([]float32, prm.Type.Elems())
			if err := runtime.Initial(t.Context(), prm, p.Seed, values); err != nil {
				t.Fatal(err)
			}
			first[prm.Name] = nil
			for _, v := range values {
				first[prm.Name] = append(first[prm.Name], math.Float32bits(v))
			}
		}
		return train(t, p, runtime.Options{DataPath: file, Steps: 1})
	}
	all := run("")
	names := slices.Sorted(maps.Keys(all.Params))
	for i := range 4 {
		cell := fmt.Sprintf("layers.%d.", i)
		part := run(fmt.Sprintf("frozen = layers[%d]", i))
		for _, name := range names {
			want := all.Params[name]
			if strings.HasPrefix(name, cell) {
				want = first[name]
			}
			if !slices.Equal(part.Params[name], want) {
				t.Errorf("%s frozen: %s is neither what it was nor what it would be", cell, name)
			}
		}
	}
}
