package ppc

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// generator compiles examples/gpt/generate.pp.
func generator(t testing.TB, o Options) *plan.Plan {
	t.Helper()
	src, err := os.ReadFile("examples/gpt/generate.pp")
	if err != nil {
		t.Fatal(err)
	}
	o.File, o.Source, o.Verify = "generate.pp", src, true
	r, err := Compile(context.Background(), o)
	if err != nil {
		t.Fatal(Diagnostics(err))
	}
	return r.Plan
}

// lively are first values with which tokens differ from place to place.
func lively(p *plan.Plan) map[string][]float32 {
	out := map[string][]float32{}
	for i, q := range p.Module.Params {
		if q.Type.Rank() < 2 {
			continue
		}
		v := numbers(q.Name, uint64(i), q.Type.Elems())
		out[q.Name] = make([]float32, q.Type.Elems())
		v.Float32(out[q.Name])
		for k := range out[q.Name] {
			out[q.Name][k] *= 0.7
		}
	}
	return out
}

// prompts makes an array of prompts, shorter ones filled up.
func prompts(list ...[]int32) data.Array {
	length := 0
	for _, p := range list {
		length = max(length, len(p))
	}
	a := data.Array{Name: "prompts.npy", DType: data.I32, Shape: []int{len(list), length}}
	for _, p := range list {
		for k := range length {
			v := int32(-1)
			if k < len(p) {
				v = p[k]
			}
			a.Data = binary.LittleEndian.AppendUint32(a.Data, uint32(v))
		}
	}
	return a
}

// drawPrompts makes prompts of 1 to 6 tokens and how many new ones each is to get.
func drawPrompts(seed uint64, n int) (list [][]int32, tokens []int) {
	r := rand.New(rand.NewPCG(seed, 1))
	for range n {
		p := make([]int32, 1+r.IntN(6))
		for k := range p {
			p[k] = int32(r.IntN(64))
		}
		list, tokens = append(list, p), append(tokens, 1+r.IntN(10))
	}
	return list, tokens
}

// values32 are the elements of an i32 or f32 array as bits.
func values32(a *data.Array) []uint32 {
	out := make([]uint32, len(a.Data)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(a.Data[4*i:])
	}
	return out
}

// checkBytes holds that every device counted what the plan says.
func checkBytes(t testing.TB, p *plan.Plan, r *runtime.Result) {
	t.Helper()
	for _, k := range r.Ranks {
		if want := p.Memory[0].Stages[k.Stage].ByClass; !slices.Equal(k.Bytes, want) {
			t.Errorf("rank %d allocated %v bytes, the plan says %v", k.Rank, k.Bytes, want)
		}
	}
}

// Generation with cached keys and values gives what the training network gives for the whole prefix: the same tokens, and
// logits within 1e-5. Prompts and numbers of new tokens differ; there are more requests than places.
func TestGenerationEqualsRecomputing(t *testing.T) {
	src, err := os.ReadFile("examples/gpt/tiny.pp")
	if err != nil {
		t.Fatal(err)
	}
	cells, _, ok := strings.Cut(string(src), "train tiny {")
	if !ok {
		t.Fatal("tiny.pp has no train block")
	}
	whole := compileFile(t, Options{File: "whole.pp", Source: []byte(cells + "infer whole { network = GPT(); input ids: i32[1, context]; stages = 1 }")}).Plan
	p := generator(t, Options{Stages: 2})
	first := lively(p)
	list, tokens := drawPrompts(1, 11)
	r := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{prompts(list...)}, Tokens: tokens, Initial: first, Device: device.Options{Poison: true}})
	checkBytes(t, p, r)
	out, logits := values32(r.Outputs[1][0].Array), r.Outputs[1][1].Array
	most := slices.Max(tokens)
	if !slices.Equal(r.Outputs[1][0].Array.Shape, []int{11, most}) || !slices.Equal(logits.Shape, []int{11, most, 64}) || r.Rows != 11 {
		t.Fatalf("shapes %v and %v", r.Outputs[1][0].Array.Shape, logits.Shape)
	}
	if r.Outputs[0][0].Array != nil || !strings.Contains(r.Outputs[0][0].Missing, "stage 1 computes it") {
		t.Errorf("rank 0 has %+v", r.Outputs[0][0])
	}
	got := make([]float32, logits.Elems())
	logits.Float32(got)
	different := map[int32]bool{}
	for i, prefix := range list {
		for k := range most {
			here := got[(i*most+k)*64:][:64]
			if k >= tokens[i] {
				if int32(out[i*most+k]) != -1 || !math.IsNaN(float64(here[0])) {
					t.Errorf("request %d: the unused place %d holds %d and %v", i, k, int32(out[i*most+k]), here[0])
				}
				continue
			}
			ids := data.Array{Name: "ids", DType: data.I32, Shape: []int{1, 16}, Data: make([]byte, 64)}
			for j, x := range prefix {
				binary.LittleEndian.PutUint32(ids.Data[4*j:], uint32(x))
			}
			all := make([]float32, 16*64)
			runPlan(t, whole, "", runtime.Options{Inputs: []data.Array{ids}, Initial: first}).Outputs[0][0].Array.Float32(all)
			want := all[(len(prefix)-1)*64:][:64]
			best := 0
			for j := range want {
				if math.Abs(float64(want[j]-here[j])) > 1e-5 {
					t.Fatalf("request %d, token %d: logit %d is %v, want %v", i, k, j, here[j], want[j])
				}
				if want[j] > want[best] {
					best = j
				}
			}
			if int32(out[i*most+k]) != int32(best) {
				t.Fatalf("request %d, token %d is %d, want %d", i, k, int32(out[i*most+k]), best)
			}
			prefix = append(prefix, int32(best))
			different[int32(best)] = true
		}
	}
	if len(different) < 10 {
		t.Errorf("only %d different tokens: the test says little", len(different))
	}
}

// The law for generation: tokens and logits are the same to the bit for every number of stages and micro-batches, with and
// without marks, interleaved, for all functions inlined, with buffers poisoned at the end of their life.
func TestGenerationCuts(t *testing.T) {
	list, tokens := drawPrompts(2, 21)
	a := prompts(list...)
	paths := kernel.Available()
	for _, path := range []string{paths[0], paths[len(paths)-1]} {
		var want *runtime.Result
		for _, stages := range []int{1, 2, 4} {
			for _, micro := range []int{1, 2, 4, 8} {
				for _, inline := range []string{"auto", "off"} {
					p := generator(t, Options{Stages: stages, Micro: micro, LazyInline: inline})
					r := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{a}, Tokens: tokens, Initial: lively(p), Device: device.Options{Poison: true, Path: path}})
					checkBytes(t, p, r)
					if want == nil {
						want = r
					}
					for k := range want.Outputs[0] {
						if !bytes.Equal(want.Outputs[0][k].Array.Data, r.Outputs[stages-1][k].Array.Data) {
							t.Errorf("%d stages, %d micro-batches, inline %s, path %s: result %d differs", stages, micro, inline, path, k)
						}
					}
				}
			}
		}
	}
}

// The number of rounds is that of the lots, one behind the other in the micro-batch that is free first.
func TestGenerationRounds(t *testing.T) {
	one := []int32{1}
	for _, c := range []struct {
		micro, count int
		tokens       []int
		rounds       int
	}{
		{1, 1, []int{3}, 3}, {4, 8, []int{2}, 2}, {4, 9, []int{2}, 4}, {8, 3, []int{1, 4, 2}, 4},
		{8, 10, []int{9, 1, 9, 9, 9, 9, 9, 9, 5, 3}, 9}, // the last two follow each other behind the second
	} {
		p := generator(t, Options{Stages: 2, Micro: c.micro})
		list := slices.Repeat([][]int32{one}, c.count)
		r := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{prompts(list...)}, Tokens: c.tokens})
		if r.Rounds != c.rounds {
			t.Errorf("%d micro-batches, %d requests: %d rounds, want %d", c.micro, c.count, r.Rounds, c.rounds)
		}
	}
}

// One token message goes back, from the stage that computes it; a program on one stage has none.
func TestTokenMessages(t *testing.T) {
	for _, stages := range []int{1, 2, 4} {
		p := generator(t, Options{Stages: stages})
		q := p.Programs[0]
		var found []string
		for _, m := range q.Messages {
			if m.Token {
				found = append(found, fmt.Sprintf("%d to %d, %d bytes, window %d", q.Chunks[m.From].Stage, q.Chunks[m.To].Stage, m.Bytes(), m.Window))
			}
		}
		want := []string{fmt.Sprintf("%d to 0, 8 bytes, window 4", stages-1)}
		if stages == 1 {
			want = nil
		}
		if !slices.Equal(found, want) {
			t.Errorf("%d stages: %v, want %v", stages, found, want)
		}
		state := 0
		for _, s := range p.Memory[0].Stages {
			state += s.ByClass[slices.Index(plan.Classes, plan.States)]
		}
		// Keys and values of 4 layers, 8 requests, 16 places of 32 numbers; once more, for one micro-batch, what a pass sets
		// them to; a position per micro-batch. A buffer takes whole cache lines.
		if want := 4*2*(8+2)*16*32*4 + 4*64; state < want || state > want+64 {
			t.Errorf("%d stages: %d bytes of buffers, want about %d", stages, state, want)
		}
	}
}
