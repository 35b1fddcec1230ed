package ppc

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/verify"
)

// situations are models of the kinds that MindSpore's own tests of pipelines compile. of says what is special, sends how
// many activations, gradients, gradients of shared parameters and values of these each stage sends in a step of four
// micro-batches.
var situations = []struct{ of, cells, network, entries, sends string }{
	{"two cells of two products", `
cell Pair {
    param a: f32[4, 4] = normal(0.5)
    param b: f32[4, 4] = normal(0.5)
    construct(x) { return matmul(matmul(x, a), b) }
}
cell Net {
    cell1 = Pair() @stage(0)
    cell2 = Pair() @stage(1)
    construct(x) { return cell2(cell1(x)) }
}`, "Net()", "", "4 0 0 0, 0 4 0 0"},
	{"one parameter in both cells", `
cell Pair(a: param) {
    param b: f32[4, 4] = normal(0.5)
    construct(x) { return matmul(matmul(x, a), b) }
}
cell Net {
    param shared: f32[4, 4] = normal(0.5)
    cell1 = Pair(shared) @stage(0)
    cell2 = Pair(shared) @stage(1)
    construct(x) { return cell2(cell1(x)) }
}`, "Net()", "", "4 0 0 1, 0 4 1 0"},
	{"a cell and parameters without a stage between marked ones", `
cell Net {
    param bias1: f32[4] = ones()
    param bias2: f32[4] = ones()
    cell1 = Dense(4, 4, bias = false) @stage(0)
    relu1 = ReLU()
    cell2 = Dense(4, 4, bias = false) @stage(1)
    construct(x) {
        x = relu1(cell1(x) + bias1)
        return cell2(x) + bias2
    }
}`, "Net()", "", "4 0 0 0, 0 4 0 0"},
	{"a parameter returned by one chunk and used by the next", `
cell Product {
    param weight: f32[4, 4] = normal(0.5)
    construct(x) { return matmul(x, weight), weight }
}
cell Use {
    construct(x, w) { return matmul(x, w) }
}
@lazy_inline
cell Net {
    cell1 = Product() @stage(0)
    cell2 = Dense(4, 4) @stage(1)
    cell3 = Product() @stage(0)
    cell4 = Use() @stage(1)
    construct(x) {
        x, w1 = cell1(x)
        x, w3 = cell3(cell2(x))
        return cell4(x, w3) + matmul(x, w1)
    }
}`, "Net()", "    interleave = true\n", "8 4 0 1, 4 8 1 0"},
	{"a parameter of the first chunk used in the last", `
cell Product(w: param) {
    construct(x) { return matmul(x, w) }
}
cell Net {
    cell1 = Dense(4, 4) @stage(0)
    cell2 = Dense(4, 4) @stage(1)
    cell3 = Dense(4, 4) @stage(0)
    cell4 = Product(cell1.weight) @stage(1)
    construct(x) { return cell4(cell3(cell2(cell1(x)))) }
}`, "Net()", "    interleave = true\n", "8 4 0 1, 4 8 1 0"},
	{"one parameter on both stages, one chunk, interleaving asked for", `
cell Product(w: param) {
    construct(x) { return relu(matmul(x, w)) }
}
cell Net {
    param w: f32[4, 4] = normal(0.5)
    for i in 0..4 { block[i] = Product(w) @stage(i / 2) }
    construct(x) {
        for b in block { x = b(x) }
        return x
    }
}`, "Net()", "    interleave = true\n", "4 0 0 1, 0 4 1 0"},
	{"cells with two inputs and two results", `
@lazy_inline
cell Two {
    param a: f32[4, 4] = normal(0.5)
    param b: f32[4, 4] = normal(0.5)
    construct(x, y) { return matmul(x, a) + y, matmul(y, b) * x }
}
cell Net {
    for i in 0..4 { cells[i] = Two() @stage(i % 2) }
    construct(x) {
        y = x * 0.5
        for c in cells { x, y = c(x, y) }
        return x + y
    }
}`, "Net()", "    interleave = true\n", "8 4 0 0, 4 8 0 0"},
	{"a cell used twice", `
cell Net {
    once = Dense(4, 4) @stage(0)
    twice = Dense(4, 4) @stage(1)
    construct(x) { return twice(relu(twice(once(x)))) }
}`, "Net()", "", "4 0 0 0, 0 4 0 0"},
	{"four cells folded onto two stages with a shared parameter", `
cell Product(w: param) {
    construct(x) { return matmul(x, w) }
}
cell Net {
    param w: f32[4, 4] = normal(0.5)
    cell1 = Product(w) @stage(0)
    cell2 = Dense(4, 4) @stage(1)
    cell3 = Dense(4, 4) @stage(0)
    cell4 = Product(w) @stage(1)
    construct(x) { return cell4(cell3(cell2(cell1(x)))) }
}`, "Net()", "    interleave = true\n", "8 4 0 1, 4 8 1 0"},
	{"eight cells up and down four stages", `
cell Net {
    for i in 0..8 { block[i] = Dense(4, 4) @stage(i if i < 4 else 7 - i) }
    construct(x) {
        for b in block { x = relu(b(x)) + x }
        return x
    }
}`, "Net()", "    interleave = true\n", "4 4 0 0, 8 8 0 0, 8 8 0 0, 4 4 0 0"},
	{"the same, folded by segments", `
cell Product(w: param) {
    construct(x) { return matmul(x, w) }
}
cell Net {
    param w: f32[4, 4] = normal(0.5)
    cell1 = Product(w) @stage(0) @segment(0)
    cell2 = Dense(4, 4) @stage(1) @segment(0)
    cell3 = Dense(4, 4) @stage(0) @segment(1)
    cell4 = Product(w) @stage(1) @segment(1)
    construct(x) { return cell4(cell3(cell2(cell1(x)))) }
}`, "Net()", "", "8 4 0 1, 4 8 1 0"},
	{"eight cells up and down four stages by segments", `
cell Net {
    for i in 0..8 { block[i] = Dense(4, 4) }
    construct(x) {
        for b in block { x = relu(b(x)) + x }
        return x
    }
}`, "Net()", `    stage_config = {
        block[0]: 0, block[1]: 1, block[2]: 2, block[3]: 3, block[4]: 3, block[5]: 2, block[6]: 1, block[7]: 0
    }
    segment_config = { block[0..4]: 0, block[4..8]: 1 }
`, "4 4 0 0, 8 8 0 0, 8 8 0 0, 4 4 0 0"},
	{"up and down two stages with a tied weight on the first", `
cell Tied(w: param) {
    construct(x) { return matmul(x, w, transpose_b = true) }
}
cell Net {
    first = Dense(4, 4) @stage(0) @segment(0)
    second = Dense(4, 4) @stage(1) @segment(0)
    third = Dense(4, 4) @stage(1) @segment(1)
    head = Tied(first.weight) @stage(0) @segment(1)
    construct(x) { return head(third(relu(second(first(x))))) }
}`, "Net()", "", "4 4 0 0, 4 4 0 0"},
	{"down the stages", `
cell Net {
    first = Dense(4, 4) @stage(2) @segment(0)
    second = Dense(4, 4) @stage(1) @segment(0)
    third = Dense(4, 4) @stage(0) @segment(0)
    construct(x) { return third(second(first(x))) + x }
}`, "Net()", "", "0 4 0 0, 4 4 0 0, 4 0 0 0"},
	{"a cell inlined at once, with cells that stay inside and outside of it", `
@lazy_inline(attrs = "twice")
cell Inner(twice: bool, scale) {
    fc = Dense(4, 4)
    construct(x) {
        x = fc(x)
        if twice { x = relu(x) + x }
        return x
    }
}
@lazy_inline(policy = "front")
cell Middle {
    a = Inner(true, 1)
    b = Inner(false, 2)
    construct(x) { return b(a(x)) + a(x) }
}
@lazy_inline(policy = none)
cell Outer {
    first = Middle() @stage(0)
    second = Middle() @stage(1)
    construct(x) { return second(first(x)) }
}`, "Outer()", "", "4 0 0 0, 0 4 0 0"},
	{"three levels of lazy_inline with conditions", `
@lazy_inline
cell Inner(twice: bool) {
    fc = Dense(4, 4)
    construct(x) {
        x = fc(x)
        if twice { x = relu(x) + x }
        return x
    }
}
@lazy_inline
cell Middle {
    a = Inner(true)
    b = Inner(false)
    construct(x) { return b(a(x)) }
}
@lazy_inline
cell Outer {
    first = Middle() @stage(0)
    second = Middle() @stage(1)
    construct(x) { return second(first(x)) }
}`, "Outer()", "", "4 0 0 0, 0 4 0 0"},
	{"a parameter returned by the first cell and used by the second", `
cell Product {
    param a: f32[4, 4] = normal(0.5)
    param b: f32[4, 4] = normal(0.5)
    construct(x) { return matmul(matmul(x, a), b), a }
}
cell Use {
    param b: f32[4, 4] = normal(0.5)
    construct(x, w) { return matmul(matmul(x, w), b) }
}
@lazy_inline
cell Net {
    cell1 = Product() @stage(0)
    cell2 = Use() @stage(1)
    construct(x) {
        x, w = cell1(x)
        return cell2(x, w)
    }
}`, "Net()", "", "4 0 0 1, 0 4 1 0"},
	{"three instances of one marked cell", `
@lazy_inline
cell Block {
    fc = Dense(4, 4)
    construct(x) { return relu(fc(x)) + x }
}
cell Net {
    block1 = Block() @stage(0)
    block2 = Block() @stage(1)
    block3 = Block() @stage(2)
    construct(x) { return block3(block2(block1(x))) }
}`, "Net()", "", "4 0 0 0, 4 4 0 0, 0 4 0 0"},
	{"a cell that takes a sequence of tensors", `
@lazy_inline
cell Sum {
    fc = Dense(4, 4)
    construct(x, others) {
        for y in others { x = x + fc(y) }
        return x
    }
}
cell Net {
    first = Dense(4, 4) @stage(0)
    second = Sum() @stage(1)
    construct(x) {
        y = first(x)
        return second(y, [relu(y), tanh(y), y * y])
    }
}`, "Net()", "", "4 0 0 0, 0 4 0 0"},
	{"five layers on the stages 0 1 0 1 1", `
cell Net {
    layer1 = Dense(4, 4) @stage(0)
    layer2 = Dense(4, 4) @stage(1)
    layer3 = Dense(4, 4) @stage(0)
    layer4 = Dense(4, 4) @stage(1)
    layer5 = Dense(4, 4) @stage(1)
    construct(x) {
        x = relu(layer2(relu(layer1(x))))
        return layer5(relu(layer4(relu(layer3(x)))))
    }
}`, "Net()", "    interleave = true\n", "8 4 0 0, 4 8 0 0"},
}

// TestSituations trains each model under every schedule and form of its functions, with as many micro-batches as stages,
// more and fewer, like its unsplit form.
func TestSituations(t *testing.T) {
	for _, s := range situations {
		t.Run(s.of, func(t *testing.T) {
			src := s.cells + "\ntrain t {\n    network = " + s.network + "\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n" +
				"    input x: f32[8, 4]\n    input y: f32[8, 4]\n" + s.entries + "    dataset = npz(\"data.npz\") | batch(8)\n}\n"
			for _, schedule := range []string{"gpipe", "1f1b"} {
				for _, form := range []string{"auto", "marked", "off"} {
					for _, micro := range []int{1, 2, 4, 8} {
						o := Options{File: "t.pp", Source: []byte(src), Schedule: schedule, LazyInline: form, Micro: micro}
						r, err := Compile(context.Background(), o)
						if err != nil {
							t.Fatal(Diagnostics(err))
						}
						equalsUnsplit(t, o, r.Plan)
						if got := sends(r.Plan); micro == 4 && got != s.sends {
							t.Errorf("%s, %s: sent %s, want %s", schedule, form, got, s.sends)
						}
					}
				}
			}
		})
	}
}

// The same models as infer blocks, with and without a broadcast: what every rank has equals the unsplit program, the stages
// send activations only, and a shared parameter is never sent.
func TestSituationsInferred(t *testing.T) {
	ctx := context.Background()
	for _, s := range situations {
		for _, broadcast := range []bool{false, true} {
			o := Options{File: "t.pp", Micro: 4, Source: fmt.Appendf(nil, "%s\ninfer t {\n    network = %s\n    input x: f32[8, 4]\n    output_broadcast = %t\n%s}\n",
				s.cells, s.network, broadcast, s.entries)}
			p := compileFile(t, o).Plan
			o.Unsplit = true
			in := data.NewFloat32("x", []int{8, 4}, make([]float32, 32))
			for i := range 32 {
				binary.LittleEndian.PutUint32(in.Data[4*i:], math.Float32bits(float32(i*7%11)/11-0.5))
			}
			r, err := verify.NewReference(ctx, compileFile(t, o).Plan, runtime.Options{Seed: 1, Inputs: []data.Array{in}, Device: device.Options{Poison: true}})
			if err != nil {
				t.Fatal(err)
			}
			if d, err := r.Compare(ctx, p); d != nil || err != nil {
				t.Errorf("%s: %+v, %v", s.of, d, err)
			}
			// Of the counts of training only the first of each stage is left.
			var want []string
			for _, n := range strings.Split(s.sends, ", ") {
				want = append(want, strings.Fields(n)[0]+" 0 0 0")
			}
			if got := sends(p); got != strings.Join(want, ", ") {
				t.Errorf("%s: sent %s, want %s", s.of, got, want)
			}
		}
	}
}

// A marked cell stays a call: one in each of the passes of its stage, however many micro-batches and batches there are, and its code
// exists once although two stages run it. (The first one is another: nothing wants the gradient of its input.)
func TestCallsOfMarkedCells(t *testing.T) {
	src := `
@lazy_inline
cell Pair {
    param a: f32[4, 4] = normal(0.5)
    param b: f32[4, 4] = normal(0.5)
    construct(x) { return tanh(matmul(tanh(matmul(x, a)), b)) }
}
cell Net {
    cell1 = Pair() @stage(0)
    cell2 = Pair() @stage(1)
    cell3 = Pair() @stage(2)
    construct(x) { return cell3(cell2(cell1(x))) }
}
train t {
    network   = Net()
    loss      = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x   : f32[16, 4]
    input y   : f32[16, 4]
}
`
	for _, o := range []Options{{Micro: 1}, {Micro: 4}, {Micro: 16}, {Micro: 4, Accumulate: 2}, {Micro: 1, Accumulate: 5, Schedule: "gpipe"}} {
		o.File, o.Source, o.LazyInline = "t.pp", []byte(src), "marked"
		p := compileFile(t, o).Plan
		micro := p.MicroBatches
		var first []*ir.Func
		for stage, c := range p.Programs[0].Chunks {
			for pass, phase := range c.Phases {
				var called []*ir.Func
				for _, op := range phase.Func.Ops {
					if op.Callee != nil && strings.HasPrefix(op.Callee.Name, "Pair") {
						called = append(called, op.Callee)
					}
				}
				if len(called) != 1 {
					t.Fatalf("%d micro-batches: pass %s of stage %d calls the cell %d times", micro, ir.Pass(pass), stage, len(called))
				}
				if stage == 1 {
					first = append(first, called[0])
				} else if stage == 2 && called[0] != first[pass] {
					t.Errorf("%d micro-batches: stage %d has a function of its own for pass %s", micro, stage, ir.Pass(pass))
				}
			}
		}
	}
}

// sends counts what each stage sends in a step: activations, gradients, and for shared parameters gradients and values.
func sends(p *plan.Plan) string {
	var out []string
	for _, list := range p.Programs[0].Actions {
		n := map[plan.ActionKind]int{}
		for _, a := range list {
			n[a.Kind]++
		}
		out = append(out, fmt.Sprint(n[plan.SendForward], n[plan.SendBackward], n[plan.SendGrad], n[plan.SendParam]))
	}
	return strings.Join(out, ", ")
}
