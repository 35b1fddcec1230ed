package ppc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// spread has what can be shared out in every way: matrices in both forms and rows of a table, a weight on two stages that is read
// three times, values read element by element and as views, a parameter without gradient, and some too small to be cut.
const spread = `
cell Block(in: int, out: int) {
    fc = Dense(in, out)
    norm = LayerNorm(out)
    param gate: f32[20, 40] = normal(0.1)
    construct(x) {
        y = norm(gelu(fc(x)))
        return tanh(y + sum(reshape(gate, [40, 20]) * 0.1, axes = [0]))
    }
}
cell Head(w: param) {
    param fixed: f32[40] = ones()
    param tail: f32[3] = zeros()
    param left: f32[3, 20] = normal(0.1)
    construct(x) {
        y = matmul(x, w, transpose_b = true) + mean(matmul(left, w, transpose_b = true))
        return concat([y + sum(cast(less(fixed, 0.5), f32)) * 0.01, matmul(tanh(x), w, transpose_b = true) + sum(tail)], axis = 1)
    }
}
cell Net {
    table = Embedding(23, 20) @stage(0)
    for i in 0..4 { mid[i] = Block(20, 20) MARK }
    head = Head(table.weight) @stage(stages - 1)
    construct(ids) {
        x = table(ids)
        for m in mid { x = m(x) + x }
        return head(x)
    }
}
train spread {
    network = Net()
    loss = CrossEntropyLoss()
    optimizer = SGD(lr = 0.05, momentum = 0.9, weight_decay = 0.01)
    input ids: i32[24]
    input label: i32[24]
    micro_batch_num = 2
    ENTRIES
    epochs = 3
    dataset = npz("data.npz", columns = ["ids", "label"]) | batch(24)
    eval test {
        dataset = npz("data.npz", columns = ["ids", "label"]) | batch(10)
        metrics = { accuracy: Accuracy(), loss: CrossEntropyLoss() }
    }
}
`

// spreadData has two batches for training, and for evaluation five and two rows left over, none of which three ranks can share.
func spreadData(t *testing.T) string {
	t.Helper()
	column := func(name string, factor int) data.Array {
		a := data.Array{Name: name, DType: data.U8, Shape: []int{52}}
		for i := range 52 {
			a.Data = append(a.Data, byte(i*factor%23))
		}
		return a
	}
	file := filepath.Join(t.TempDir(), "data.npz")
	if err := data.WriteNPZ(file, []data.Array{column("ids", 5), column("label", 3)}); err != nil {
		t.Fatal(err)
	}
	return file
}

// cut is a way to place spread.
type cut struct {
	stages, chunks, degree int
	schedule               string
}

func (c cut) compile(t *testing.T, entries string) *Result {
	t.Helper()
	mark := fmt.Sprintf("@stage(floor(i * %d / 4) %% stages)", c.stages*c.chunks)
	if c.chunks > 1 {
		entries += "\ninterleave = true"
	}
	src := strings.NewReplacer("MARK", mark, "ENTRIES", entries).Replace(spread)
	r, err := Compile(context.Background(), Options{File: "spread.pp", Source: []byte(src), Stages: c.stages, Devices: c.stages * c.degree, Schedule: c.schedule, Verify: true})
	if err != nil {
		t.Fatalf("%+v, %s: %v", c, entries, Diagnostics(err))
	}
	return r
}

// throughBundle writes a plan and reads it again.
func throughBundle(t *testing.T, p *plan.Plan) *plan.Plan {
	t.Helper()
	files, err := plan.Files(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadBundleFS(withFile(files, 0, files[0].Content), "bundle")
	if err != nil {
		t.Fatal(Diagnostics(err))
	}
	return again
}

// Whatever ranks share out, a step is that of the unsplit program but for the rounding of its sums: of each degree and size of
// groups the same bits for all cuts and schedules; of level 1 those of no sharing, of level 3 those of level 2. The devices count
// what the plan says (see train).
func TestShardLevels(t *testing.T) {
	file := spreadData(t)
	run := func(p *plan.Plan) (outcome, []runtime.Eval) {
		var evals []runtime.Eval
		out := train(t, throughBundle(t, p), runtime.Options{
			DataPath: file, Digests: true, Norms: true, Device: device.Options{Poison: true},
			OnEval: func(e runtime.Eval) { evals = append(evals, e) },
		})
		return out, evals
	}
	for _, clip := range []string{"", "clip_norm = 0.5\n"} {
		want, wantEvals := run(cut{1, 1, 1, ""}.compile(t, clip).Plan)
		for _, d := range []struct{ degree, size int }{{2, 2}, {3, 3}, {4, 4}, {4, 2}} {
			var byLevel [4]outcome
			for level := range byLevel {
				entry := fmt.Sprintf("%soptimizer_shard = { level: %d, threshold: 0, size: %d }", clip, level, d.size)
				for i, c := range []cut{{1, 1, d.degree, "1f1b"}, {2, 1, d.degree, "gpipe"}, {2, 2, d.degree, "1f1b"}, {4, 1, d.degree, "1f1b"}} {
					if d.degree == 4 && c.stages == 4 || clip != "" && i%2 == 1 {
						continue
					}
					where := fmt.Sprintf("%+v, groups of %d, level %d, %q", c, d.size, level, clip)
					got, evals := run(c.compile(t, entry).Plan)
					if i == 0 {
						byLevel[level] = got
					} else if !byLevel[level].equal(got) {
						t.Errorf("%s: other bits than one stage", where)
					}
					if err := want.near(got, 1e-6); err != nil {
						t.Errorf("%s: %v", where, err)
					}
					for k, m := range evals[0].Metrics {
						if a := wantEvals[0].Metrics[k].Value; evals[0].Rows != 52 || !(math.Abs(m.Value-a) <= 1e-6*a) {
							t.Errorf("%s: %s is %v on %d rows, not %v", where, m.Name, m.Value, evals[0].Rows, a)
						}
					}
				}
			}
			if !byLevel[1].equal(byLevel[0]) || !byLevel[3].equal(byLevel[2]) {
				t.Errorf("%+v: sharing states, or values, out changes bits", d)
			}
		}
	}
}

// bytesOf is what a plan says of a class on a stage.
func bytesOf(p *plan.Plan, stage int, c plan.Class) int {
	return p.Memory[0].Stages[stage].ByClass[slices.Index(plan.Classes, c)]
}

// Parts are as many times smaller as there are ranks in a group, and the workspace is as large as the largest of what it holds.
func TestShardMemory(t *testing.T) {
	const even = `
cell Net {
    param a: f32[64, 64] = normal(0.1) @stage(0)
    param b: f32[64, 128] = normal(0.1) @stage(0)
    param c: f32[128, 64] = normal(0.1) @stage(1)
    construct(x) { return matmul(relu(matmul(relu(matmul(x, a)), b)), c) }
}
train even {
    network = Net()
    loss = MSELoss()
    optimizer = Adam(lr = 0.01)
    input x: f32[16, 64]
    input label: f32[16, 64]
    micro_batch_num = 2
    optimizer_shard = { level: LEVEL, threshold: 0, size: SIZE }
}
`
	classes := []plan.Class{plan.OptState, plan.Gradients, plan.Parameters}
	for _, size := range []int{2, 4, 8} {
		var before *plan.Plan
		for level := range 4 {
			src := strings.NewReplacer("LEVEL", fmt.Sprint(level), "SIZE", fmt.Sprint(size)).Replace(even)
			c, err := Compile(context.Background(), Options{File: "even.pp", Source: []byte(src), Devices: 16})
			if err != nil {
				t.Fatal(Diagnostics(err))
			}
			p := c.Plan
			for s, whole := range []int{4 * (64*64 + 64*128), 4 * 128 * 64} {
				for k, class := range classes {
					want := whole
					if class == plan.OptState {
						want *= 2
					}
					if k < level {
						want /= size
					}
					if got := bytesOf(p, s, class); got != want {
						t.Errorf("level %d, groups of %d: stage %d has %d bytes of %s, want %d", level, size, s, got, class, want)
					}
				}
				if before != nil {
					more := bytesOf(p, s, plan.Scratch) - bytesOf(before, s, plan.Scratch)
					want := 0
					if level == plan.ShardGradients {
						want = 4 * 64 * 128 // the largest, once
					}
					if more != want {
						t.Errorf("level %d: the workspace of stage %d takes %d more bytes, want %d", level, s, more, want)
					}
				}
			}
			before = p
		}
	}
}

// Ranks meet once for each micro-batch and read of a parameter to sum gradients, and once for each read in a forward pass and in the
// pass of input gradients to gather values; level 1 gathers once in a step. The input has no gradient, so the first product reads its
// matrix once.
func TestShardMeetings(t *testing.T) {
	const two = `
cell Net {
    param a: f32[64, 64] = normal(0.1) @stage(0)
    param b: f32[64, 64] = normal(0.1) @stage(0)
    construct(x) { return matmul(relu(matmul(x, a)), b) }
}
train two {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 0.01)
    input x: f32[16, 64]
    input label: f32[16, 64]
    micro_batch_num = 4
    optimizer_shard = { level: LEVEL, threshold: 0 }
    dataset = npz("data.npz", columns = ["x", "x"]) | batch(16)
}
`
	x := make([]float32, 16*64)
	for i := range x {
		x[i] = float32(math.Cos(float64(i)))
	}
	file := filepath.Join(t.TempDir(), "data.npz")
	if err := data.WriteNPZ(file, []data.Array{data.NewFloat32("x", []int{16, 64}, x)}); err != nil {
		t.Fatal(err)
	}
	meeting := 0.5*64*64*4/plan.CPU.Link + plan.CPU.Latency // of two ranks, for a matrix
	before := 0.0                                           // seconds, of the level below
	for level, want := range [][2]int{{0, 0}, {0, 0}, {2 * 4, 0}, {2 * 4, 3 * 4}} {
		c, err := Compile(context.Background(), Options{File: "two.pp", Source: []byte(strings.Replace(two, "LEVEL", fmt.Sprint(level), 1)), Devices: 2})
		if err != nil {
			t.Fatal(Diagnostics(err))
		}
		// A sum over all that is split into its halves counts twice: two behind the passes up to level 1, eight within them then. Two
		// values are gathered behind the update in levels 1 and 2.
		more, seconds := []float64{0, 2, 8 - 4, 3*4 - 2}[level]*meeting, c.Plan.Predicted.Busy[0]
		if level > 0 && math.Abs(seconds-before-more) > 1e-12 {
			t.Errorf("level %d is predicted to take %v more seconds, want %v", level, seconds-before, more)
		}
		before = seconds
		var got [2][2]int // by rank
		count := func(ctx context.Context, p *plan.Plan, stage int, o device.Options) (device.Device, error) {
			n, scatter, gather := &got[o.Replica], o.Scatter, o.Gather
			o.Scatter = func(v []float32) error { n[0]++; return scatter(v) }
			o.Gather = func(v []float32) error { n[1]++; return gather(v) }
			return cpu.Open(ctx, p, stage, o)
		}
		if _, err := runtime.Run(context.Background(), c.Plan, runtime.Options{Open: count, DataPath: file, Steps: 1}); err != nil {
			t.Fatal(err)
		}
		if level == plan.ShardValue {
			want[1] += 2 // the result of the run
		}
		for r := range got {
			if got[r] != want {
				t.Errorf("level %d: rank %d met for %d sums and %d values, want %v", level, r, got[r][0], got[r][1], want)
			}
		}
		gathers := 0
		for _, a := range c.Plan.Programs[0].Actions[0] {
			if a.Kind == plan.Gather {
				gathers++
			}
		}
		if want := []int{0, 1, 1, 0}[level]; gathers != want {
			t.Errorf("level %d gathers %d times behind the update, want %d", level, gathers, want)
		}
	}
}

// A gradient that is not finite on one rank only makes all skip the step, whatever they share out.
func TestShardOverflow(t *testing.T) {
	x := make([]float32, 4*16*4)
	for i := range x {
		x[i] = float32(math.Sin(float64(i)))
	}
	x[16*4+5*4] = 1e30 // a row of the second step that the second of four ranks has
	file := filepath.Join(t.TempDir(), "data.npz")
	if err := data.WriteNPZ(file, []data.Array{data.NewFloat32("x", []int{64, 4}, x)}); err != nil {
		t.Fatal(err)
	}
	src := strings.NewReplacer("f32[8, 4]", "f32[16, 4]", "batch(8)", "batch(16)", `["x", "label"]`, `["x", "x"]`).Replace(steep)
	var want []runtime.Step
	for level := range 4 {
		entries := fmt.Sprintf("loss_scale = { initial: 16, window: 2 }\noptimizer_shard = { level: %d, threshold: 0 }", level)
		c, err := Compile(context.Background(), Options{File: "steep.pp", Source: []byte(strings.Replace(src, "%s", entries, 1)), Devices: 8, Verify: true})
		if err != nil {
			t.Fatal(Diagnostics(err))
		}
		var steps []runtime.Step
		runPlan(t, c.Plan, file, runtime.Options{OnStep: func(s runtime.Step) { steps = append(steps, s) }})
		if level == 0 {
			want = steps
		}
		for i, s := range steps {
			if s.Skipped != (i == 1) || s.LossScale != want[i].LossScale || i != 1 && !(math.Abs(s.Loss-want[i].Loss) <= 1e-6*math.Abs(s.Loss)) {
				t.Errorf("level %d: step %d is %+v, want %+v", level, i, s, want[i])
			}
		}
	}
}

// Which parameters are shared out, and how far: a weight pass runs with the values it reads whole, what is not trained has only a
// value, and some are too small.
func TestShardedParameters(t *testing.T) {
	for level := range 4 {
		p := cut{2, 1, 2, ""}.compile(t, fmt.Sprintf("optimizer_shard = { level: %d, threshold: 0 }", level)).Plan
		want := map[string]int{"head.left": min(level, plan.ShardGradients), "head.tail": 0, "head.fixed": level / plan.ShardValue * level}
		for s, st := range p.Stages {
			for i := range st.Params {
				sp := &st.Params[i]
				n, ok := want[sp.Param.Name]
				if !ok {
					n = level
				}
				if sp.Shard != n {
					t.Errorf("level %d: of %s stage %d shares out up to %d, want %d", level, sp.Param.Name, s, sp.Shard, n)
				}
			}
		}
	}
}

// What has no effect is said: parameters too small to be cut, and a lag of weight passes in which ranks meet.
func TestShardWarnings(t *testing.T) {
	has := func(list diag.List, code diag.Code, text string) bool {
		return slices.ContainsFunc(list, func(d diag.Diagnostic) bool { return d.Code == code && strings.Contains(d.Message, text) })
	}
	for level := 1; level < 4; level++ {
		r := cut{2, 1, 2, ""}.compile(t, fmt.Sprintf("optimizer_shard = { level: %d, threshold: 0 }", level))
		if !has(r.Warnings, diag.UncutParameters, "what is too small to be cut for 2 ranks stays whole on each: `head.tail`") {
			t.Errorf("level %d: nothing is said of head.tail: %v", level, r.Warnings)
		}
		if has(r.Warnings, diag.UncutParameters, "values that weight passes read stay whole on each rank: `head.left`") != (level == plan.ShardValue) {
			t.Errorf("level %d: what is said of head.left is %v", level, r.Warnings)
		}
		r = cut{2, 1, 2, ""}.compile(t, fmt.Sprintf("optimizer_shard = %d", level))
		if has(r.Warnings, diag.UncutParameters, "") || !has(r.Warnings, diag.NoEffect, "no parameter has the 64 KB") {
			t.Errorf("level %d: small parameters are not meant to be shared out, and then nothing is: %v", level, r.Warnings)
		}
		for _, c := range []struct {
			devices, size int
			fits          bool
		}{{8, 2, true}, {8, 4, true}, {8, 3, false}, {8, 5, false}, {8, 8, false}, {2, 5, true}} {
			src := strings.NewReplacer("MARK", "", "ENTRIES", fmt.Sprintf("optimizer_shard = { level: %d, threshold: 0, size: %d }", level, c.size)).Replace(spread)
			_, err := Compile(context.Background(), Options{File: "spread.pp", Source: []byte(src), Stages: 2, Devices: c.devices})
			if fits := err == nil; fits != c.fits || !fits && Diagnostics(err)[0].Code != diag.BadDevices {
				t.Errorf("groups of %d among %d devices in two stages: %v", c.size, c.devices, err)
			}
		}
		src := strings.NewReplacer("MARK", "", "ENTRIES", fmt.Sprintf("optimizer_shard = { level: %d, threshold: 0 }", level)).Replace(spread)
		for _, lag := range []int{0, 3} {
			r, err := Compile(context.Background(), Options{File: "spread.pp", Source: []byte(src), Stages: 2, Devices: 4, WLag: &lag})
			if err != nil {
				t.Fatal(Diagnostics(err))
			}
			waits := level < plan.ShardGradients && lag > 0
			if (r.Plan.WLag > 0) != waits || has(r.Warnings, diag.NoEffect, "weight passes") != (level >= plan.ShardGradients && lag > 0) {
				t.Errorf("level %d, lag %d: the plan has %d, and the warnings are %v", level, lag, r.Plan.WLag, r.Warnings)
			}
		}
	}
}

// What ranks print does not depend on what they share out: those that run an evaluation only since others need their parts of the
// values print nothing in it.
func TestSilentRanks(t *testing.T) {
	file := spreadData(t)
	prints := func(level int) (logs [6]bytes.Buffer) {
		src := strings.NewReplacer("MARK", "", "ENTRIES", fmt.Sprintf("optimizer_shard = { level: %d, threshold: 0 }", level), "        return concat", "        print(\"y is:\", y)\n        return concat").Replace(spread)
		p := compileFile(t, Options{File: "spread.pp", Source: []byte(src), Stages: 2, Devices: 6}).Plan
		_, err := runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, DataPath: file, Seed: 1, Log: func(rank int) io.Writer { return &logs[rank] }})
		if err != nil {
			t.Fatal(err)
		}
		return logs
	}
	want, got := prints(plan.ShardGradients), prints(plan.ShardValue)
	for r := range want {
		if want[r].String() != got[r].String() {
			t.Errorf("rank %d prints %d bytes with level 3 and %d with level 2", r, got[r].Len(), want[r].Len())
		}
	}
	if first, second := want[3].Len(), want[4].Len(); second == 0 || first <= second {
		t.Errorf("the first rank of the last stage prints %d bytes, the next one %d", first, second)
	}
}

// A program in which ranks would not meet in one order, or a workspace would not hold what is made in it, is refused.
func TestShardFaults(t *testing.T) {
	for _, f := range []struct {
		level int
		plant func(p *plan.Plan)
		want  string
	}{
		{2, func(p *plan.Plan) { p.WLag = 2 }, "ranks share out gradients, and a weight pass may wait for 2 others"},
		{2, func(p *plan.Plan) {
			list := &p.Programs[0].Actions[1]
			*list = slices.DeleteFunc(*list, func(a plan.Action) bool { return a.Kind == plan.Gather })
		}, "gathered right behind the update"},
		{3, func(p *plan.Plan) {
			p.Programs[0].Actions[0] = append(p.Programs[0].Actions[0], plan.Action{Kind: plan.Gather, Chunk: -1, Message: -1, Peer: -1})
		}, "gathered right behind the update"},
		{3, func(p *plan.Plan) {
			w := p.Stages[0].Workspace
			p.Stages[0].Areas[w.Area].Items[w.Item].Type.Shape[0]--
		}, "the workspace of stage 0 does not fit"},
		{2, func(p *plan.Plan) { p.Stages[1].Params[0].Shard = 3 }, "does not fit"},
		{1, func(p *plan.Plan) { p.Stages[0].Params[0].Shard = 4 }, "cannot be shared out"},
	} {
		p := cut{2, 1, 2, ""}.compile(t, fmt.Sprintf("optimizer_shard = { level: %d, threshold: 0 }", f.level)).Plan
		f.plant(p)
		files, err := plan.Files(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadBundleFS(withFile(files, 0, files[0].Content), "bundle"); err == nil || !strings.Contains(Diagnostics(err)[0].Message, f.want) {
			t.Errorf("level %d, %s: %v", f.level, f.want, err)
		}
	}
}

// Operation by operation a step has the same bits, and what is told of gradients and values in parts is whole and the same on all ranks.
func TestShardTrace(t *testing.T) {
	file := spreadData(t)
	var byLevel [4]map[string][]string
	for level := range byLevel {
		p := cut{2, 1, 2, ""}.compile(t, fmt.Sprintf("clip_norm = 0.5\noptimizer_shard = { level: %d, threshold: 0 }", level)).Plan
		want := train(t, p, runtime.Options{DataPath: file, SkipEval: true})
		var mu sync.Mutex
		ends, sums := map[string][]string{}, 0
		got := train(t, p, runtime.Options{DataPath: file, SkipEval: true, Device: device.Options{Trace: func(r *device.Record) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case r.Op == nil && (!r.Updated || level == 0 || level == plan.ShardValue && r.Param.Name != "head.left"): // others are gathered later
				key := fmt.Sprint(r.Step, r.Param.Name, r.Updated)
				ends[key] = append(ends[key], fmt.Sprint(r.Data))
			case r.Op != nil && r.Op.Pass == ir.WeightPass:
				sums++
			}
			if len(r.Data) != r.Type.Bytes() {
				t.Errorf("level %d: %d bytes of %s", level, len(r.Data), r.Type)
			}
		}}})
		if !want.equal(got) {
			t.Errorf("level %d: other bits than at once", level)
		}
		if len(ends) == 0 || sums == 0 {
			t.Errorf("level %d: nothing is told", level)
		}
		for key, all := range ends {
			if len(all) != 2 || all[0] != all[1] {
				t.Errorf("level %d: %s differs on %d ranks", level, key, len(all))
			}
		}
		byLevel[level] = ends
	}
	for key, v := range byLevel[plan.ShardGradients] {
		if !slices.Equal(v, byLevel[plan.ShardValue][key]) {
			t.Errorf("%s differs between levels 2 and 3", key)
		}
	}
}
