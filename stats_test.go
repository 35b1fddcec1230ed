package ppc

import (
	"bytes"
	"context"
	"os"
	"testing"

	"github.com/ppc-lang/ppc/plan"
)

// Code that is shared is compiled once, whatever the number of layers and micro-batches, and what runs does not depend on
// how it is shared.
func TestStats(t *testing.T) {
	src, err := os.ReadFile("examples/gpt/tiny.pp")
	if err != nil {
		t.Fatal(err)
	}
	stats := func(layers, lazyInline string, micro int) plan.Stats {
		r, err := Compile(context.Background(), Options{File: "tiny.pp", Source: src, Stages: 2, Micro: micro, LazyInline: lazyInline, Set: map[string]string{"layers": layers}})
		if err != nil {
			t.Fatal(Diagnostics(err))
		}
		return r.Plan.Stats()
	}
	small, large := stats("8", "auto", 4), stats("16", "auto", 8)
	if small.Ops != large.Ops || small.Functions != large.Functions || small.Calls >= large.Calls {
		t.Errorf("8 layers %+v, 16 layers %+v", small, large)
	}
	mark := []byte("@lazy_inline\ncell Block")
	if !bytes.Contains(src, mark) {
		t.Fatalf("tiny.pp has no %q", mark)
	}
	src = bytes.Replace(src, mark, []byte("@lazy_inline(policy = \"front\")\ncell Block"), 1)
	if front := stats("8", "auto", 4); front.Executed != small.Executed || front.Functions >= small.Functions || front.Ops <= small.Ops || front.Calls == 0 {
		t.Errorf("with blocks inlined at once %+v, as functions %+v", front, small)
	}
	src = bytes.Replace(src, []byte("(policy = \"front\")"), nil, 1)
	off, marked := stats("8", "off", 4), stats("8", "marked", 4)
	if off.Executed != small.Executed || marked.Executed != small.Executed {
		t.Errorf("executed: auto %d, marked %d, off %d", small.Executed, marked.Executed, off.Executed)
	}
	if off.Calls != 0 || off.Ops <= marked.Ops || marked.Ops < small.Ops {
		t.Errorf("auto %+v, marked %+v, off %+v", small, marked, off)
	}
}

// A plan of one matrix product, counted by hand.
func TestStatsByHand(t *testing.T) {
	const src = "cell Net {\n    param w: f32[4, 4] = ones()\n    construct(x) {\n        return matmul(x, w)\n    }\n}\n" +
		"infer t {\n    network = Net()\n    input x: f32[8, 4]\n    micro_batch_num = 4\n}\n"
	r, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(src)})
	if err != nil {
		t.Fatal(Diagnostics(err))
	}
	want := plan.Stats{Functions: 2, Calls: 1, Ops: 1, Executed: 4}
	if got := r.Plan.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
