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
	"github.com/ppc-lang/ppc/passes/check"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
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
	r := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{prompts(list...)}, Tokens: tokens, Initial: from(first), Device: device.Options{Poison: true}})
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
			runPlan(t, whole, "", runtime.Options{Inputs: []data.Array{ids}, Initial: from(first)}).Outputs[0][0].Array.Float32(all)
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

// The law for generation: tokens and logits are the same to the bit for every number of stages, micro-batches and ranks that
// share their requests, with and without marks, interleaved, for all functions inlined, with buffers poisoned at the end of their life.
func TestGenerationCuts(t *testing.T) {
	list, tokens := drawPrompts(2, 21)
	a := prompts(list...)
	paths := kernel.Available()
	for _, path := range []string{paths[0], paths[len(paths)-1]} {
		var want *runtime.Result
		for _, stages := range []int{1, 2, 4} {
			for _, c := range []struct {
				micro, degree int
				inline        string
			}{
				{1, 1, "auto"}, {2, 1, "auto"}, {4, 1, "auto"}, {8, 1, "auto"}, {1, 1, "off"}, {2, 1, "off"}, {4, 1, "off"}, {8, 1, "off"},
				{1, 4, "auto"}, {2, 2, "off"}, {4, 2, "auto"},
			} {
				p := generator(t, Options{Stages: stages, Devices: stages * c.degree, Micro: c.micro, LazyInline: c.inline})
				r := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{a}, Tokens: tokens, Initial: from(lively(p)), Device: device.Options{Poison: true, Path: path}})
				checkBytes(t, p, r)
				if want == nil {
					want = r
				}
				for k := range want.Outputs[0] {
					if !bytes.Equal(want.Outputs[0][k].Array.Data, r.Outputs[stages-1][k].Array.Data) {
						t.Errorf("%d stages of %d ranks, %d micro-batches, inline %s, path %s: result %d differs", stages, c.degree, c.micro, c.inline, path, k)
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

// smallGenerator has three stages, of which the first two read the token. ENTRIES stands for more entries, MARK for marks.
const smallGenerator = `
cell First {
    param table: f32[8, 4] = normal(1)
    buffer n: i32[1] = zeros()
    construct(token) {
        n = n + 1
        return gather(table, token) + cast(n, f32)
    }
}
cell Second {
    param table: f32[8, 4] = normal(1)
    buffer total: f32[4 / micro_batch_num, 4] = constant(0.25)
    construct(x, token) {
        total = total * 0.5 + x
        return total - gather(table, token)
    }
}
cell Net {
    first  = First() MARK0
    second = Second() MARK1
    head   = Dense(4, 8) MARK2
    construct(token) {
        scores = head(second(first(token), token))
        next = argmax(scores)
        return scores, token, next
    }
}
infer small {
    network         = Net()
    input token     : i32[4]
    feedback        = { token: next, passes: 9 }
    micro_batch_num = 2
    ENTRIES
}
`

func smallGeneratorOf(t testing.TB, entries string, o Options, stages ...int) *plan.Plan {
	t.Helper()
	o.File, o.Source, o.Verify = "small.pp", marked(smallGenerator, entries, stages...), true
	r, err := Compile(context.Background(), o)
	if err != nil {
		t.Fatal(Diagnostics(err))
	}
	return r.Plan
}

func generatorBundle(t testing.TB) []plan.File {
	files, err := plan.Files(smallGeneratorOf(t, "", Options{Devices: 6}, 0, 1, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Stages that read the token without computing it, several chunks on a stage, the planner, and a result that is the token
// itself: all give what one stage gives.
func TestSmallGeneratorCuts(t *testing.T) {
	list, tokens := drawPrompts(5, 13)
	for i, p := range list {
		for k := range p {
			p[k] %= 8
		}
		tokens[i] = min(tokens[i], 10-len(p))
	}
	in := runtime.Options{Inputs: []data.Array{prompts(list...)}, Tokens: tokens, Device: device.Options{Poison: true}}
	for _, micro := range []int{1, 2, 4} {
		whole := runPlan(t, smallGeneratorOf(t, "", Options{Unsplit: true, Micro: micro}), "", in)
		for _, c := range []struct {
			entries string
			stages  []int
		}{
			{"", []int{0, 1, 2}}, {"", []int{0, 0, 1}}, {"", []int{0, 1, 1}}, {"interleave = true", []int{0, 1, 0}}, {"interleave = true", []int{1, 0, 1}},
			{"interleave = true", []int{2, 1, 0}}, {"interleave = true", []int{1, 0, 2}}, {"stages = 3", nil}, {"stages = 2", nil},
		} {
			p := smallGeneratorOf(t, c.entries, Options{Micro: micro}, c.stages...)
			for degree := 1; degree <= min(2, 4/micro); degree++ {
				if degree > 1 {
					p = smallGeneratorOf(t, c.entries, Options{Micro: micro, Devices: degree * p.NumStages}, c.stages...)
				}
				r := runPlan(t, p, "", in)
				checkBytes(t, p, r)
				for k, o := range p.Programs[0].Outputs {
					if !bytes.Equal(whole.Outputs[0][k].Array.Data, r.Outputs[o.Stage][k].Array.Data) {
						t.Errorf("%d micro-batches, %s %v, %d ranks per stage: result %d differs", micro, c.entries, c.stages, degree, k)
					}
				}
				if r.Rounds != whole.Rounds {
					t.Errorf("%d micro-batches, %s %v, %d ranks per stage: %d rounds, one stage %d", micro, c.entries, c.stages, degree, r.Rounds, whole.Rounds)
				}
			}
		}
		// The token that is returned is the one that went in: that of the prompt's end, then those that were made.
		made, took := values32(whole.Outputs[0][2].Array), values32(whole.Outputs[0][1].Array)
		most := slices.Max(tokens)
		for i, p := range list {
			want := append([]uint32{uint32(p[len(p)-1])}, made[i*most:][:tokens[i]-1]...)
			if got := took[i*most:][:tokens[i]]; !slices.Equal(got, want) {
				t.Errorf("request %d took %v, want %v", i, got, want)
			}
		}
	}
}

// The proof refuses tokens that take another way, come at the wrong time or not at all, and buffers that a pass could find in
// another state than the micro-batch before left them in.
func TestTokenFaults(t *testing.T) {
	without := func(list *[]plan.Action, kind plan.ActionKind) plan.Action {
		i := slices.IndexFunc(*list, func(a plan.Action) bool { return a.Kind == kind })
		a := (*list)[i]
		*list = slices.Delete(slices.Clone(*list), i, i+1)
		return a
	}
	token := func(q *plan.Program, n int) *plan.Message {
		for _, m := range q.Messages {
			if m.Token {
				if n--; n < 0 {
					return m
				}
			}
		}
		panic("no such message")
	}
	for name, plant := range map[string]func(p *plan.Plan, q *plan.Program){
		"a dropped receive": func(_ *plan.Plan, q *plan.Program) { without(&q.Actions[1], plan.RecvToken) },
		"a dropped send":    func(_ *plan.Plan, q *plan.Program) { without(&q.Actions[2], plan.SendToken) },
		"a late receive": func(_ *plan.Plan, q *plan.Program) {
			q.Actions[0] = append(q.Actions[0], without(&q.Actions[0], plan.RecvToken))
		},
		"an early send": func(_ *plan.Plan, q *plan.Program) {
			q.Actions[2] = slices.Insert(q.Actions[2], 0, without(&q.Actions[2], plan.SendToken))
		},
		"another kind":     func(_ *plan.Plan, q *plan.Program) { token(q, 0).Token = false },
		"another result":   func(_ *plan.Plan, q *plan.Program) { token(q, 0).Tensors[0].From = q.Outputs[0].Ref },
		"two for a stage":  func(_ *plan.Plan, q *plan.Program) { token(q, 1).To = token(q, 0).To },
		"no result at all": func(_ *plan.Plan, q *plan.Program) { token(q, 0).Tensors = nil },
		"no feedback":      func(_ *plan.Plan, q *plan.Program) { q.Feedback = nil },
		"one slot":         func(p *plan.Plan, _ *plan.Program) { p.Stages[1].Areas[p.Stages[1].Buffers[0].Ref.Area].Slots = 1 },
		"a pass that writes the buffer": func(p *plan.Plan, q *plan.Program) {
			q.Chunks[1].Phases[0].Results[0] = p.Stages[1].Buffers[0].Ref
		},
		"a buffer that is sent": func(p *plan.Plan, q *plan.Program) {
			for _, m := range q.Messages {
				if m.From == 1 {
					m.Tensors[0].From = p.Stages[1].Buffers[0].Ref
				}
			}
		},
		"a buffer that another one is copied from": func(p *plan.Plan, q *plan.Program) {
			q.Chunks[1].Stores[0].From = p.Stages[1].Buffers[0].Ref
		},
		// A wait over rounds: stage 1 has the token of a micro-batch only behind its pass, which stage 0 needs first.
		"a cycle": func(_ *plan.Plan, q *plan.Program) {
			list := slices.Clone(q.Actions[1])
			i := slices.IndexFunc(list, func(a plan.Action) bool { return a.Kind == plan.SendForward })
			j := slices.IndexFunc(list, func(a plan.Action) bool { return a.Kind == plan.RecvForward && a.Micro == 1 })
			a := list[j]
			list = slices.Insert(slices.Delete(list, j, j+1), 0, a)
			q.Actions[1] = append(slices.Delete(slices.Clone(list), i+1, i+2), list[i+1])
		},
	} {
		p := smallGeneratorOf(t, "", Options{}, 0, 1, 2)
		if err := check.Run(p); err != nil {
			t.Fatal(err)
		}
		plant(p, p.Programs[0])
		if err := check.Run(p); err == nil {
			t.Errorf("%s: the proof finds nothing", name)
		}
	}
}

// Wrong prompts and numbers of tokens.
func TestWrongPrompts(t *testing.T) {
	p := smallGeneratorOf(t, "", Options{}, 0, 1, 2)
	float := data.NewFloat32("prompts.npy", []int{1, 1}, []float32{1})
	flat := prompts([]int32{1, 2})
	flat.Shape = []int{2}
	none := prompts()
	none.Shape = []int{0, 4}
	wide := data.Array{Name: "prompts.npy", DType: data.I64, Shape: []int{1, 1}, Data: []byte{0, 0, 0, 0, 1, 0, 0, 0}}
	ok := prompts([]int32{1, 2}, []int32{3})
	for _, c := range []struct {
		in     []data.Array
		tokens []int
		want   string
	}{
		{[]data.Array{float}, []int{1}, "input `token` is i32, the array is f32"},
		{[]data.Array{flat}, []int{1}, "the prompts are i32[requests, length], the array has the shape [2]"},
		{[]data.Array{none}, []int{1}, "there are no prompts: the array has the shape [0, 4]"},
		{[]data.Array{wide}, []int{1}, "element 0 is 4294967296"},
		{[]data.Array{ok, ok}, []int{1}, "has one input, `token`; 2 arrays are given"},
		{nil, []int{1}, "no inputs are given"},
		{[]data.Array{ok}, nil, "there are 2 prompts, and 0 numbers of new tokens"},
		{[]data.Array{ok}, []int{1, 1, 1}, "there are 2 prompts, and 3 numbers of new tokens"},
		{[]data.Array{ok}, []int{1, 0}, "prompt 1 is to get 0 new tokens"},
		{[]data.Array{ok}, []int{9}, "prompt 0 has 2 tokens and is to get 9 new ones: that takes 10 passes, and the block makes at most 9"},
		{[]data.Array{prompts([]int32{1}, []int32{-1, 2})}, []int{1}, "prompt 1 is empty"},
		{[]data.Array{prompts([]int32{1, -1, 2})}, []int{1}, "prompt 0 has the token 2 at position 2, behind its end at 1"},
		{[]data.Array{prompts([]int32{1, -2})}, []int{1}, "prompt 0: -2 at position 1 is no token"},
		{[]data.Array{prompts([]int32{1, 8})}, []int{1}, "prompt 0: the token 8 at position 1 is outside of the model's table of 8 rows"},
	} {
		_, err := runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1, Inputs: c.in, Tokens: c.tokens})
		if list := Diagnostics(err); len(list) != 1 || !strings.Contains(list[0].Message, c.want) || !strings.HasPrefix(string(list[0].Code), "E0") {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
	if _, err := runtime.Run(context.Background(), inferenceOf(t, "", Options{}), runtime.Options{Open: cpu.Open, Seed: 1, Inputs: []data.Array{onesArray(8)}, Tokens: []int{1}}); err == nil || !strings.Contains(err.Error(), "has no `feedback`") {
		t.Errorf("tokens of a block without feedback: %v", err)
	}
	if _, err := runtime.Serve(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1}, 0); err == nil || !strings.Contains(err.Error(), "use Run") {
		t.Errorf("a session: %v", err)
	}
}

// A table that the prompts do not tell of ends the run with the place of the op.
func TestGenerationBeyondTheTable(t *testing.T) {
	text := strings.Replace(string(marked(smallGenerator, "", 0, 1, 2)), "gather(table, token) + cast(n, f32)", "gather(table, token) + gather(table, n)", 1)
	p := compileFile(t, Options{File: "small.pp", Source: []byte(text)}).Plan
	_, err := runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1, Inputs: []data.Array{prompts([]int32{1})}, Tokens: []int{8}})
	if err == nil || !strings.Contains(err.Error(), "rank 0: F of micro-batch 0 of round 7") || !strings.Contains(err.Error(), "small.pp:7:") {
		t.Errorf("%v", err)
	}
}

// With at least as many micro-batches as stages no stage ever waits but for the first token to arrive: rounds of passes that
// take one unit of time each, with messages that take none, end after rounds x micro-batches + stages - 1 units. With fewer
// micro-batches a round takes as long as a token is on its way around.
func TestRoundsKeepStagesBusy(t *testing.T) {
	const rounds = 5
	for _, stages := range []int{1, 2, 4} {
		for _, micro := range []int{1, 2, 4, 8} {
			p := generator(t, Options{Stages: stages, Micro: micro})
			q := p.Programs[0]
			// The prediction is that of such a round: with one micro-batch one stage works at a time.
			if b := p.Predicted.Bubble; micro == 1 && b < 1-1/float64(stages) || micro >= stages && stages > 1 && b > 1-1/float64(stages) {
				t.Errorf("%d stages, %d micro-batches: a predicted bubble of %v", stages, micro, b)
			}
			type event struct{ message, micro, round int }
			sent, now, next := map[event]int{}, make([]int, stages), make([]int, stages)
			for moved := true; moved; {
				moved = false
				for s, list := range q.Actions {
					for ready := now[s]; next[s] < rounds*len(list); next[s]++ {
						a, round := list[next[s]%len(list)], next[s]/len(list)
						if a.Kind == plan.RecvToken {
							round--
						}
						e := event{a.Message, a.Micro, round}
						if a.Kind.IsSend() {
							sent[e] = now[s]
						} else if a.Kind.IsRecv() && round >= 0 {
							at, ok := sent[e]
							if !ok {
								break
							}
							ready = max(ready, at)
						} else if a.Kind == plan.Forward {
							now[s] = max(now[s], ready) + 1
							ready = now[s]
						}
						moved = true
					}
				}
			}
			want := rounds*max(micro, stages) + min(micro, stages) - 1
			if got := slices.Max(now); got != want {
				t.Errorf("%d stages, %d micro-batches: %d rounds take %d units, want %d", stages, micro, rounds, got, want)
			}
		}
	}
}
