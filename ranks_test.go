package ppc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/transport"
)

// near reports the first loss or parameter that is further than a relative distance from another outcome.
func (o outcome) near(p outcome, within float64) error {
	for i := range o.Losses {
		a, b := math.Float64frombits(o.Losses[i]), math.Float64frombits(p.Losses[i])
		if !(math.Abs(a-b) <= within*math.Abs(a)) {
			return fmt.Errorf("loss of step %d is %v, not %v", i, b, a)
		}
	}
	for name, v := range o.Params {
		largest, distance := 0.0, 0.0
		for i := range v {
			a, b := float64(math.Float32frombits(v[i])), float64(math.Float32frombits(p.Params[name][i]))
			largest, distance = max(largest, math.Abs(a)), max(distance, math.Abs(a-b))
		}
		if !(distance <= within*largest) {
			return fmt.Errorf("%s is off by %v of %v", name, distance, largest)
		}
	}
	return nil
}

// The tutorial on several ranks per stage: within 1e-6 of the unsplit program at the same batch, and bit-equal among all cuts
// and schedules of one degree; so also with gradients, or values too, in parts.
func TestDegreesOfTutorial(t *testing.T) {
	read := func(file string, batch int) []byte {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(src), "f32[32,", fmt.Sprintf("f32[%d,", batch))
		text = strings.ReplaceAll(text, "i32[32]", fmt.Sprintf("i32[%d]", batch))
		return []byte(strings.ReplaceAll(text, "batch(32)", fmt.Sprintf("batch(%d)", batch)))
	}
	var weights map[string][]float32
	run := func(o Options, batch, level int) outcome {
		t.Helper()
		o.Source = bytes.Replace(read(o.File, batch), []byte("    micro_batch_num"), fmt.Appendf(nil, "    optimizer_shard = { level: %d, threshold: 0 }\n    micro_batch_num", level), 1)
		c, err := Compile(context.Background(), o)
		if err != nil {
			t.Fatal(Diagnostics(err))
		}
		if weights == nil {
			weights = referenceWeights(c.Plan, 1/math.Sqrt(512)) // the same for all: drawing them takes longer than a run
		}
		return train(t, c.Plan, runtime.Options{DataPath: mnistData, Steps: 3, SkipEval: true, Initial: from(weights), Norms: o.Schedule == "gpipe", Device: device.Options{Poison: true}})
	}
	for _, c := range []struct{ degree, batch int }{{2, 32}, {4, 32}, {3, 48}} {
		want := run(Options{File: "examples/mnist/mnist.pp", Unsplit: true, Devices: 99}, c.batch, 0)
		first := map[bool]outcome{} // by whether gradients are in parts
		for level := range 4 {
			for _, file := range []string{"mnist.pp", "mnist_interleaved.pp", "mnist_auto.pp"} {
				for _, name := range schedule.Names {
					other := file == "mnist_interleaved.pp" && name == "1f1b" || file == "mnist_auto.pp" && name == "gpipe"
					if level == plan.ShardStates || level > plan.ShardStates && !other {
						continue // two of each: TestShardLevels has more
					}
					stages := 2
					if file == "mnist_auto.pp" {
						stages = 1
					}
					o := Options{File: "examples/mnist/" + file, Devices: stages * c.degree, Schedule: name}
					if stages == 1 {
						o.Stages = 1
					}
					got := run(o, c.batch, level)
					if err := want.near(got, 1e-6); err != nil {
						t.Errorf("%s, %s, %d ranks per stage, level %d: %v", file, name, c.degree, level, err)
					}
					parts := level >= plan.ShardGradients
					if other, ok := first[parts]; !ok {
						first[parts] = got
					} else if !other.equal(got) {
						t.Errorf("%s, %s, %d ranks per stage, level %d: other bits than another cut", file, name, c.degree, level)
					}
				}
			}
		}
	}
}

// Drawn models: near the unsplit program on any degree, and the same bits on any cut of a degree. A model that mixes rows is
// refused.
func TestRandomModelsOnDegrees(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := modelgen.DrawDecoder(drawn{r})
		file := writeData(t, &m, 2*m.Batch)
		cut := rapid.SampledFrom(m.Cuts).Draw(r, "cut")
		micro := 1 << rapid.IntRange(0, 2).Draw(r, "micro")
		degree := 1 << rapid.IntRange(1, 3-bits(micro)).Draw(r, "degree")
		run := func(o Options) (outcome, bool) {
			o.File, o.Micro, o.Verify = "random.pp", micro, true
			c, err := Compile(context.Background(), o)
			if err != nil && Diagnostics(err)[0].Code == diag.MixesRows {
				return outcome{}, false
			}
			if err != nil {
				r.Fatalf("%v\n%s", Diagnostics(err), o.Source)
			}
			return train(t, c.Plan, runtime.Options{DataPath: file, Epochs: 1, Device: device.Options{Poison: true}}), true
		}
		want, _ := run(Options{Source: []byte(m.Unmarked()), Unsplit: true})
		level, size := rapid.IntRange(0, 3).Draw(r, "level"), 1<<rapid.IntRange(0, bits(degree)).Draw(r, "size")
		shared := func(src string) []byte {
			return []byte(strings.Replace(src, "    micro_batch_num", fmt.Sprintf("    optimizer_shard = { level: %d, threshold: 0, size: %d }\n    micro_batch_num", level, size), 1))
		}
		one, ok1 := run(Options{Source: shared(m.Unmarked()), Stages: 1, Devices: degree})
		got, ok2 := run(Options{
			Source: shared(m.With(cut)), Devices: cut.Stages * degree, Schedule: rapid.SampledFrom(schedule.Names).Draw(r, "schedule"),
			LazyInline: rapid.SampledFrom([]string{"auto", "marked", "off"}).Draw(r, "lazyinline"),
		})
		if ok1 != ok2 {
			r.Fatalf("one cut mixes rows, another does not\n%s", m.With(cut))
		}
		if !ok1 {
			r.Skip()
		}
		if !one.equal(got) {
			r.Fatalf("%d stages x %d ranks: other bits than 1 x %d\n%s", cut.Stages, degree, degree, m.With(cut))
		}
		if err := want.near(got, 1e-4); err != nil {
			r.Fatalf("%d ranks per stage: %v\n%s", degree, err, m.With(cut))
		}
	})
}

// bits is the exponent of a power of two.
func bits(n int) int { return int(math.Log2(float64(n))) }

// Stages with an unusual set of parameters, an embedding alone and a norm alone, and one without any: states are shared out on
// each of them, or there are none.
func TestUnusualStagesOnRanks(t *testing.T) {
	const src = `
cell Net {
    wte  = Embedding(32, 8) @stage(0)
    norm = LayerNorm(8) @stage(1)
    act  = GELU() @stage(2)
    head = Dense(8, 32) @stage(3)
    construct(ids) { return head(act(norm(wte(ids)))) }
}
train unusual {
    network = Net()
    loss = CrossEntropyLoss()
    optimizer = AdamW(lr = 0.01)
    micro_batch_num = 2
    clip_norm = 0.05
    input ids: i32[16]
    input label: i32[16]
    dataset = npz("data.npz", columns = ["ids", "label"]) | batch(16)
    ENTRY
}
`
	file := rowsFor(t, compileFile(t, Options{File: "unusual.pp", Source: []byte(strings.Replace(src, "ENTRY", "", 1))}).Plan)
	run := func(text string, o Options) outcome {
		o.File, o.Source = "unusual.pp", []byte(text)
		return train(t, compileFile(t, o).Plan, runtime.Options{DataPath: file, Epochs: 3, Device: device.Options{Poison: true}})
	}
	for _, degree := range []int{2, 4} {
		for _, shard := range shards(degree) {
			text := strings.Replace(src, "ENTRY", shard, 1)
			want, one := run(text, Options{Unsplit: true}), run(onOneStage(text), Options{Stages: 1, Devices: degree})
			if err := want.near(one, 1e-5); err != nil {
				t.Errorf("%d ranks, %s: %v", degree, shard, err)
			}
			for _, name := range schedule.Names {
				if got := run(text, Options{Devices: 4 * degree, Schedule: name}); !one.equal(got) {
					t.Errorf("%s, %d ranks, %s: other bits than one stage", name, degree, shard)
				}
			}
		}
	}
}

// oneRank is a transport of which this process has one rank.
type oneRank struct {
	transport.Transport
	rank int
}

func (p oneRank) Holds(rank int) bool { return rank == p.rank }

// Who has one rank asks for the first values of that rank's parameters, once each and for nothing else, and keeps no others at the
// end; together they give what one process gives.
func TestRanksHaveTheirOwnParameters(t *testing.T) {
	src := strings.NewReplacer("OPTIMIZER", "SGD(lr = 0.1)", "ENTRIES", "").Replace(tower)
	p := compileFile(t, Options{File: "tower.pp", Source: []byte(src), Devices: 8}).Plan
	file := ranksData(t, 64)
	want := train(t, p, runtime.Options{DataPath: file})
	n := p.NumStages * p.Degree
	all := transport.NewInProcess(n)
	asked, results, errs := make([][]string, n), make([]*runtime.Result, n), make([]error, n)
	losses := make([][]uint64, n)
	var ranks sync.WaitGroup
	for i := range n {
		ranks.Go(func() {
			results[i], errs[i] = runtime.Run(context.Background(), p, runtime.Options{
				Open: cpu.Open, Seed: 1, DataPath: file, Transport: oneRank{all, i},
				OnStep: func(s runtime.Step) { losses[i] = append(losses[i], math.Float64bits(s.Loss)) },
				Initial: func(name string, values []float32) (bool, error) {
					asked[i] = append(asked[i], name)
					return false, nil
				},
			})
		})
	}
	ranks.Wait()
	for i := range n {
		if errs[i] != nil {
			t.Fatalf("rank %d: %v", i, errs[i])
		}
		var own []string
		for _, sp := range p.Stages[i/p.Degree].Params {
			own = append(own, sp.Param.Name)
		}
		if !slices.Equal(asked[i], own) {
			t.Errorf("rank %d asks for %v, it has %v", i, asked[i], own)
		}
		if told := i == runtime.LossRank(p); told != (losses[i] != nil) || told && !slices.Equal(losses[i], want.Losses) {
			t.Errorf("rank %d tells of the losses %v", i, losses[i])
		}
		for _, x := range results[i].Params {
			if x.Values != nil && i != runtime.LossRank(p) {
				t.Errorf("rank %d has %s", i, x.Name)
			}
		}
	}
}

// Who collects parameters gets what a result would have, one after another in the memory of one, also from ranks that live apart and
// share values out. What it does with one goes before the next: no rank is ahead of it. If it gives up, or does not take all, the
// run ends with that.
func TestCollectOneByOne(t *testing.T) {
	for _, entries := range []string{"", "optimizer_shard = { level: 3, threshold: 1 }"} {
		src := strings.NewReplacer("OPTIMIZER", "SGD(lr = 0.1)", "ENTRIES", entries).Replace(tower)
		p := compileFile(t, Options{File: "tower.pp", Source: []byte(src), Devices: 8}).Plan
		file, n := ranksData(t, 64), p.NumStages*p.Degree
		want := runPlan(t, p, file, runtime.Options{Seed: 1, Steps: 2}).Params
		most := 0
		for _, x := range want {
			most = max(most, 4*len(x.Values))
		}
		collect := func(apart bool, take func(i int, x data.Array) error, all bool) []error {
			o := runtime.Options{Open: cpu.Open, Seed: 1, DataPath: file, Steps: 2}
			o.Collect = func(_ context.Context, next func() (data.Array, error)) error {
				for i := range want {
					x, err := next()
					if err != nil {
						return nil // the run knows
					}
					if err := take(i, x); err != nil {
						return err
					}
					if !all {
						return nil
					}
				}
				if _, err := next(); err == nil {
					t.Error("there are more parameters than the model has")
				}
				return nil
			}
			if !apart {
				r, err := runtime.Run(context.Background(), p, o)
				if err == nil && r.Params != nil {
					t.Error("the result has parameters too")
				}
				return []error{err}
			}
			transport, errs := transport.NewInProcess(n), make([]error, n)
			var ranks sync.WaitGroup
			for i := range n {
				ranks.Go(func() {
					o := o
					if o.Transport = (oneRank{transport, i}); i != runtime.LossRank(p) {
						o.Collect = nil
					}
					_, errs[i] = runtime.Run(context.Background(), p, o)
				})
			}
			ranks.Wait()
			return errs
		}
		for _, apart := range []bool{false, true} {
			memory := map[*byte]bool{}
			for rank, err := range collect(apart, func(i int, x data.Array) error {
				memory[&x.Data[:1][0]] = true
				if !slices.Equal(x.Shape, want[i].Shape) || x.Name != want[i].Name || !bytes.Equal(x.Data, data.NewFloat32("", nil, want[i].Values).Data) {
					t.Errorf("apart %v: parameter %d is another than `%s`", apart, i, want[i].Name)
				}
				if cap(x.Data) > most {
					t.Errorf("%d bytes are held, the largest parameter has %d", cap(x.Data), most)
				}
				return nil
			}, true) {
				if err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
			if len(memory) != 1 {
				t.Errorf("parameters come in %d pieces of memory", len(memory))
			}
		}
		full := errors.New("the disk is full")
		if err := collect(false, func(int, data.Array) error { return full }, true)[0]; err != full {
			t.Errorf("who collects fails: %v", err)
		}
		if err := collect(false, func(int, data.Array) error { return nil }, false)[0]; err == nil || !strings.Contains(err.Error(), "only 1 of the") {
			t.Errorf("who collects takes one parameter: %v", err)
		}
	}
}

// Buffers and results of an infer block on several ranks per stage: the bits of one rank, or a refusal with place and repair.
func TestInferenceOfRows(t *testing.T) {
	const source = `
cell Net {
    fc = Dense(4, 4)
    buffer kept: BUFFER = constant(0.5)
    construct(token) {
        wide = reshape(token, [4, 1])
        x = fc(cast(concat([wide, wide, wide, wide], axis = 1), f32))
        kept = VALUE
        next = argmax(x + sum(x, axes = [1], keepdims = true) + USE)
        return next, RESULT
    }
}
infer rows {
    network = Net()
    input token : i32[8]
    FEEDBACK
    micro_batch_num = 2
}`
	const perRow = "kept * 0.5 + sum(x, axes = [1], keepdims = true)"
	for _, c := range []struct {
		buffer, value, use, result string
		feedback                   bool
		devices                    int
		want                       diag.Code
	}{
		{"f32[1]", "kept + 1", "kept", "x", false, 2, ""},
		{"f32[1]", "kept + 1", "kept", "x", true, 4, ""},
		{"f32[4, 1]", perRow, "kept", "x", true, 4, ""}, // a rank keeps the entries of its rows
		{"f32[4, 1]", perRow, "kept", "kept", true, 2, ""},
		{"f32[4, 1]", perRow, "kept", "x", false, 4, diag.MixesRows}, // one for all micro-batches
		{"f32[4, 1]", perRow, "sum(kept)", "x", true, 4, diag.MixesRows},
		{"f32[4, 1]", "ones([4, 1])", "0.5", "x", true, 4, diag.MixesRows},
		{"f32[4]", "kept + sum(x, axes = [0])", "0.5", "x", true, 4, diag.MixesRows},
		{"f32[1]", "kept + 1", "kept", "matmul(x, x, transpose_a = true)", true, 2, diag.MixesRows},
		{"f32[1]", "kept + 1", "kept", "matmul(x, x)", false, 2, diag.MixesRows},
		{"f32[1]", "kept + 1", "kept", "x", false, 3, diag.BadDevices},
	} {
		entry := ""
		if c.feedback {
			entry = "feedback = { token: next }"
		}
		text := []byte(strings.NewReplacer("BUFFER", c.buffer, "VALUE", c.value, "USE", c.use, "RESULT", c.result, "FEEDBACK", entry).Replace(source))
		run := func(o Options) (*runtime.Result, diag.Code) {
			o.File, o.Source, o.Verify = "rows.pp", text, true
			r, err := Compile(context.Background(), o)
			if err != nil {
				list := Diagnostics(err)
				if list[0].Range.Pos.Line == 0 || list[0].Repair == "" {
					t.Errorf("%+v: no place, or no repair: %v", c, list)
				}
				return nil, list[0].Code
			}
			in := data.Array{Name: "token", DType: data.I32, Shape: []int{8}, Data: make([]byte, 32)}
			ro := runtime.Options{Inputs: []data.Array{in}, Device: device.Options{Poison: true}}
			for i := range 8 {
				in.Data[4*i] = byte(i % 4)
			}
			if c.feedback {
				ro.Inputs[0].Shape, ro.Tokens = []int{8, 1}, []int{3}
			}
			return runPlan(t, r.Plan, "", ro), ""
		}
		one, code := run(Options{Stages: 1})
		if code != "" {
			t.Fatalf("%+v on one rank: %s", c, code)
		}
		several, code := run(Options{Stages: 1, Devices: c.devices})
		if code != c.want {
			t.Errorf("%+v: got %q", c, code)
		}
		if code != "" || c.want != "" {
			continue
		}
		for k := range one.Outputs[0] {
			if !bytes.Equal(one.Outputs[0][k].Array.Data, several.Outputs[0][k].Array.Data) {
				t.Errorf("%+v: other bits of result %d", c, k)
			}
		}
	}
}

// Of ranks that live apart, the one that results go to sees all of those that are computed, whatever stage computes them; the others
// know what there is.
func TestResultsOfRanksApart(t *testing.T) {
	const source = `
cell Net {
    fc1 = Dense(8, 8) @stage(0)
    fc2 = Dense(8, 8) @stage(1)
    construct(x) {
        early = fc1(x)
        late = fc2(early)
        return ORDER
    }
}
infer apart {
    network         = Net()
    input x         : f32[8, 8]
    micro_batch_num = 2
    SETTINGS
}`
	in := data.NewFloat32("x", []int{24, 8}, make([]float32, 24*8))
	for i := range in.Data {
		if in.Data[i] = byte(i * 7); i%4 == 3 {
			in.Data[i] = 0x3f
		}
	}
	for _, order := range []string{"early, late", "late, early"} {
		for _, settings := range []string{"", "output_broadcast = true"} {
			text := []byte(strings.NewReplacer("ORDER", order, "SETTINGS", settings).Replace(source))
			p := compileFile(t, Options{File: "apart.pp", Source: text, Devices: 4}).Plan
			want := runPlan(t, p, "", runtime.Options{Inputs: []data.Array{in}})
			all := transport.NewInProcess(4)
			results, errs := make([]*runtime.Result, 4), make([]error, 4)
			var ranks sync.WaitGroup
			for i := range 4 {
				ranks.Go(func() {
					results[i], errs[i] = runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1, Inputs: []data.Array{in}, Transport: oneRank{all, i}})
				})
			}
			ranks.Wait()
			for i, r := range results {
				if errs[i] != nil {
					t.Fatalf("rank %d: %v", i, errs[i])
				}
				for s := range want.Outputs {
					for k, o := range want.Outputs[s] {
						got := r.Outputs[s][k]
						if got.Missing != o.Missing || (got.Array == nil) != (o.Array == nil) {
							t.Errorf("%s, %s: rank %d knows %+v of result %d on stage %d", order, settings, i, got, k, s)
							continue
						}
						if got.Array == nil {
							continue
						}
						computes := p.Programs[0].Outputs[k].Stage == s
						if sees := len(got.Array.Data) > 0; sees != (computes && i == runtime.LossRank(p)) || sees && !bytes.Equal(got.Array.Data, o.Array.Data) {
							t.Errorf("%s, %s: rank %d has another result %d of stage %d", order, settings, i, k, s)
						}
					}
				}
			}
		}
	}
	p := compileFile(t, Options{File: "apart.pp", Source: []byte(strings.NewReplacer("ORDER", "early, late", "SETTINGS", "").Replace(source)), Devices: 4}).Plan
	other := in
	other.Data = bytes.Clone(in.Data)
	other.Data[0] ^= 1
	all, errs := transport.NewInProcess(4), make([]error, 4)
	var ranks sync.WaitGroup
	for i := range 4 {
		ranks.Go(func() {
			_, errs[i] = runtime.Run(context.Background(), p, runtime.Options{Open: cpu.Open, Inputs: []data.Array{[]data.Array{in, in, in, other}[i]}, Transport: oneRank{all, i}})
		})
	}
	ranks.Wait()
	for i, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "files for the inputs") {
			t.Errorf("rank %d: %v", i, err)
		}
	}
	if _, err := runtime.Serve(context.Background(), compileFile(t, Options{File: vocabFile}).Plan, runtime.Options{Open: cpu.Open, Transport: oneRank{transport.NewInProcess(4), 0}}, 1); err == nil {
		t.Error("a session takes ranks that live apart")
	}
}

// Ranks whose processes have been started apart, with other settings or other files, find that out before they train.
func TestRanksOfOtherRuns(t *testing.T) {
	src := strings.NewReplacer("OPTIMIZER", "SGD(lr = 0.1)", "ENTRIES", "").Replace(tower)
	p := compileFile(t, Options{File: "tower.pp", Source: []byte(src)}).Plan
	file, other := ranksData(t, 64), ranksData(t, 96)
	none := func(string, []float32) (bool, error) { return false, nil }
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	arrays, err := data.ReadNPZ(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "changed.npz") // in one bit, beside which the files are the same
	arrays[0].Data[6] ^= 0x40
	if err := data.WriteNPZ(changed, arrays); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copied.npz")
	if err := os.WriteFile(copied, content, 0o644); err != nil {
		t.Fatal(err)
	}
	states := []string{t.TempDir() + "/ck", t.TempDir() + "/ck"}
	for i, dir := range states {
		runPlan(t, p, []string{file, changed}[i], runtime.Options{Steps: 1, Checkpoint: runtime.Checkpoint{Dir: dir}})
	}
	for want, change := range map[string]func(o *runtime.Options){
		"the seed is ":                               func(o *runtime.Options) { o.Seed++ },
		"the last step is ":                          func(o *runtime.Options) { o.Steps = 1 },
		"the mean over micro-batches is ":            func(o *runtime.Options) { o.Reduction = "mean" },
		"first values from a file is ":               func(o *runtime.Options) { o.Initial = none },
		"norms of gradients in the log is ":          func(o *runtime.Options) { o.Norms = true },
		"the comparison of copies is ":               func(o *runtime.Options) { o.Digests = true },
		"leaving evaluations out is ":                func(o *runtime.Options) { o.SkipEval = true },
		"leaving the parameters out is ":             func(o *runtime.Options) { o.SkipParams = true },
		"a folder for checkpoints is ":               func(o *runtime.Options) { o.Checkpoint.Dir = t.TempDir() + "/ck" },
		"the number of rows of the data of block to": func(o *runtime.Options) { o.DataPath, o.Steps = other, 2 },
		"files for the data of block tower":          func(o *runtime.Options) { o.DataPath = changed },
		"files for the first values":                 func(o *runtime.Options) { o.InitialDigest = 1 },
		"files for the checkpoint that":              func(o *runtime.Options) { o.Checkpoint.Resume = states[1] },
		"":                                           func(o *runtime.Options) { o.DataPath = copied },
	} {
		all := transport.NewInProcess(p.NumStages)
		var errs [4]error
		var ranks sync.WaitGroup
		for i := range errs {
			ranks.Go(func() {
				o := runtime.Options{Open: cpu.Open, Seed: 1, DataPath: file, Steps: 2, Transport: oneRank{all, i}}
				if strings.Contains(want, "checkpoint that") {
					o.Checkpoint.Resume = states[0]
				}
				if i == 2 {
					change(&o)
				}
				_, errs[i] = runtime.Run(context.Background(), p, o)
			})
		}
		ranks.Wait()
		for i, err := range errs {
			if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rank 2")) {
				t.Errorf("%q: rank %d: %v", want, i, err)
			}
		}
	}
}
