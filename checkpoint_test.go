package ppc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// kept has all that a checkpoint has to keep: an optimizer whose states do not begin at zero and whose rate follows the number
// of updates, a loss scale that changes, random numbers, buffers of each type, and a table that two stages read.
const kept = `
cell Grad(lr: schedule) {
    buffer sum: f32[] = constant(0.25)
    buffer mean: f32[] = zeros()
    construct(weight, gradient, lr) {
        sum = sum + gradient * gradient
        mean = 0.9 * mean + gradient
        return weight - lr * mean / sqrt(sum)
    }
}
cell Counter {
    buffer seen: i32[1] = zeros()
    buffer odd: bool[1] = zeros()
    buffer part: f32[2, 1] = constant(0.5)
    construct(x) {
        y = x + 0.001 * cast(seen, f32) + 0.02 * cast(odd, f32)
        seen, odd, part = [seen + 1, less(cast(seen, f32), 16), 0.5 * part + 1]
        return y * (1 + 0.01 * sum(part))
    }
}
cell Block(in: int, out: int) {
    fc = Dense(in, out)
    drop = Dropout(0.2)
    construct(x) { return drop(tanh(fc(x))) }
}
cell Head(w: param) {
    construct(x) { return matmul(x, w, transpose_b = true) }
}
cell Net {
    table = Embedding(11, 20) @stage(0)
    count = Counter() @stage(0)
    for i in 0..7 { mid[i] = Block(20, 20) MARK }
    head = Head(table.weight) @stage(stages - 1)
    construct(ids) {
        x = count(table(ids))
        for m in mid { x = m(x) + x }
        return head(x)
    }
}
train kept {
    network = Net()
    loss = CrossEntropyLoss()
    optimizer = Grad(lr = warmup(5, cosine(0.02, 0.001, 20)))
    input ids: i32[8]
    input label: i32[8]
    micro_batch_num = 2
    loss_scale = { initial: 1024, window: 3 }
    epochs = 10
    ENTRIES
    dataset = npz("data.npz", columns = ["ids", "label"]) | batch(8)
}
`

// keptData has three batches and a rest.
func keptData(t *testing.T) string {
	t.Helper()
	column := func(name string, factor int) data.Array {
		a := data.Array{Name: name, DType: data.U8, Shape: []int{26}}
		for i := range 26 {
			a.Data = append(a.Data, byte(i*factor%11))
		}
		return a
	}
	file := filepath.Join(t.TempDir(), "data.npz")
	if err := data.WriteNPZ(file, []data.Array{column("ids", 5), column("label", 3)}); err != nil {
		t.Fatal(err)
	}
	return file
}

// layout is a way to run kept.
type layout struct{ stages, chunks, degree, shard int }

func (l layout) String() string {
	return fmt.Sprintf("%d stages, %d chunks, degree %d, shard level %d", l.stages, l.chunks, l.degree, l.shard)
}

func (l layout) compile(t *testing.T, replace ...string) *plan.Plan {
	t.Helper()
	mark := fmt.Sprintf("@stage(floor(i * %d / 7) %% stages)", l.stages*l.chunks)
	entries := ""
	if l.chunks > 1 {
		entries = "interleave = true\n"
	}
	if l.shard > 0 {
		entries += fmt.Sprintf("optimizer_shard = { level: %d, threshold: 0 }\n", l.shard)
	}
	src := strings.NewReplacer("MARK", mark, "ENTRIES", entries).Replace(kept)
	src = strings.NewReplacer(replace...).Replace(src)
	c, err := Compile(context.Background(), Options{File: "kept.pp", Source: []byte(src), Stages: l.stages, Devices: l.stages * l.degree})
	if err != nil {
		t.Fatal(l, Diagnostics(err))
	}
	return c.Plan
}

// sums tells layouts apart that round the sums of gradients differently.
func (l layout) sums() [2]int { return [2]int{l.degree, l.shard / plan.ShardGradients} }

// layouts are all that there are without parts of gradients: one stage has no chunks, one rank shares nothing.
func layouts() (list []layout) {
	for stages := 1; stages <= 4; stages++ {
		for chunks := 1; chunks <= min(stages, 2); chunks++ {
			for degree := 1; degree <= 2; degree++ {
				for shard := range degree {
					list = append(list, layout{stages, chunks, degree, shard})
				}
			}
		}
	}
	return list
}

// trace is what a run showed: loss and loss scale of every step, and the values at the end.
type trace struct {
	steps  [][2]uint64
	params map[string][]uint32
}

func keptRun(t *testing.T, p *plan.Plan, o runtime.Options) trace {
	t.Helper()
	var out trace
	o.OnStep = func(s runtime.Step) {
		out.steps = append(out.steps, [2]uint64{math.Float64bits(s.Loss), math.Float64bits(s.LossScale)})
	}
	if o.Open == nil {
		o.Open = cpu.Open
	}
	o.Seed, o.SkipEval, o.Log = 3, true, func(int) io.Writer { return io.Discard }
	r, err := runtime.Run(context.Background(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	out.params = outcomeOf(r).Params
	return out
}

// tensors reads all that a checkpoint has.
func tensors(t *testing.T, path string) map[string][]byte {
	t.Helper()
	c, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out := map[string][]byte{}
	take := func(name string) {
		a, err := c.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = a.Data
	}
	for _, e := range c.Parameters {
		take(e.Name)
		for _, s := range c.Optimizer.States {
			take(checkpoint.StateName(s, e.Name))
		}
	}
	for _, e := range c.Buffers {
		take(checkpoint.BufferName(e.Name))
	}
	return out
}

func equalTensors(a, b map[string][]byte) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d tensors, not %d", len(b), len(a))
	}
	for name, v := range a {
		if !slices.Equal(v, b[name]) {
			return fmt.Errorf("%s has other bits", name)
		}
	}
	return nil
}

// opened keeps the devices of a run, to look at their memory behind it.
type opened struct {
	mu      sync.Mutex
	devices map[[2]int]device.Device // by stage and replica
}

func (o *opened) open(ctx context.Context, p *plan.Plan, stage int, opt device.Options) (device.Device, error) {
	d, err := cpu.Open(ctx, p, stage, opt)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.devices[[2]int{stage, opt.Replica}] = d
	return d, err
}

// memory reads parameters, states and buffers from the devices of every replica, as a checkpoint would name them.
func (o *opened) memory(t *testing.T, p *plan.Plan, replica int) map[string][]byte {
	t.Helper()
	floats := func(b []byte) []float32 {
		return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
	}
	out := map[string][]byte{}
	for s, st := range p.Stages {
		d := o.devices[[2]int{s, replica}]
		put := func(name string, i int, packed []float32) {
			v := make([]float32, st.Params[i].Param.Type.Elems())
			if err := d.Unpack(i, v, packed); err != nil {
				t.Fatal(err)
			}
			a := data.NewFloat32(name, nil, v)
			if before, ok := out[name]; ok && !slices.Equal(before, a.Data) {
				t.Errorf("copies of %s differ", name)
			}
			out[name] = a.Data
		}
		for i, sp := range st.Params {
			join := func(ref plan.Ref, level int) []float32 {
				if sp.Shard < level {
					return floats(d.Buffer(ref, 0))
				}
				whole := make([]float32, sp.Elems())
				for r := range p.ShardSize {
					lo, hi := p.Part(len(whole), r)
					copy(whole[lo:hi], floats(o.devices[[2]int{s, r}].Buffer(ref, 0)))
				}
				return whole
			}
			put(sp.Param.Name, i, join(sp.Value, plan.ShardValue))
			for k, ref := range sp.States {
				put(checkpoint.StateName(p.Optimizer.States[k].Name, sp.Param.Name), i, join(ref, plan.ShardStates))
			}
		}
		for _, b := range st.Buffers {
			out[checkpoint.BufferName(b.Name)] = d.Buffer(b.Ref, 0)[:b.Type.Bytes()]
		}
	}
	return out
}

// What is saved in one layout is loaded in any other: parameters, states and buffers to the bit, and the next ten steps are
// those of the undisturbed run.
func TestCheckpointsInEveryLayout(t *testing.T) { checkpointsIn(t, layouts()) }

// Also what ranks share out of gradients and values is in no checkpoint.
func TestCheckpointsOfEveryLevel(t *testing.T) {
	list := []layout{{1, 1, 1, 0}, {2, 1, 2, 1}}
	for level := plan.ShardGradients; level <= plan.ShardValue; level++ {
		list = append(list, layout{1, 1, 2, level}, layout{2, 2, 2, level}, layout{3, 1, 4, level})
	}
	checkpointsIn(t, list)
}

func checkpointsIn(t *testing.T, list []layout) {
	const at, more = 7, 10
	file := keptData(t)
	plans := make([]*plan.Plan, len(list))
	whole := make([]trace, len(list)) // undisturbed
	dirs := make([]string, len(list))
	contents := make([]map[string][]byte, len(list))
	for i, l := range list {
		plans[i] = l.compile(t)
		for level := plan.ShardStates; level <= plan.ShardValue; level++ {
			if got := plans[i].Shares(level); got != (level <= l.shard) {
				t.Fatalf("%s: level %d is shared out: %t", l, level, got)
			}
		}
		dirs[i] = t.TempDir()
		whole[i] = keptRun(t, plans[i], runtime.Options{DataPath: file, Steps: at + more, Checkpoint: runtime.Checkpoint{Dir: dirs[i], Every: at, Keep: 9}})
		path := filepath.Join(dirs[i], fmt.Sprintf("step-%d", at))
		contents[i] = tensors(t, path)
		first := slices.IndexFunc(list, func(m layout) bool { return m.sums() == l.sums() })
		if err := equalTensors(contents[first], contents[i]); err != nil {
			t.Errorf("%s against %s: %v", l, list[first], err)
		}
		if got, want := fileNames(t, path), l.stages+1; len(got) != want {
			t.Errorf("%s: the checkpoint has the files %v", l, got)
		}
	}
	if want := len(plans[0].Module.Params)*3 + 3; len(contents[0]) != want {
		t.Errorf("a checkpoint has %d tensors, want %d", len(contents[0]), want)
	}
	for _, q := range plans[0].Module.Params {
		for _, name := range []string{q.Name, "optimizer.sum." + q.Name, "optimizer.mean." + q.Name} {
			if len(contents[0][name]) != q.Type.Bytes() {
				t.Errorf("%s has %d bytes", name, len(contents[0][name]))
			}
		}
	}
	for from, l := range list {
		path := filepath.Join(dirs[from], fmt.Sprintf("step-%d", at))
		for to, m := range list {
			devices := &opened{devices: map[[2]int]device.Device{}}
			keptRun(t, plans[to], runtime.Options{DataPath: file, Steps: at, Open: devices.open, Checkpoint: runtime.Checkpoint{Resume: path}})
			for r := range m.degree {
				if err := equalTensors(contents[from], devices.memory(t, plans[to], r)); err != nil {
					t.Errorf("%s to %s, replica %d: %v", l, m, r, err)
				}
			}
			got := keptRun(t, plans[to], runtime.Options{DataPath: file, Steps: at + more, Device: device.Options{Poison: true}, Checkpoint: runtime.Checkpoint{Resume: path}})
			if len(got.steps) != more {
				t.Fatalf("%s to %s: %d steps", l, m, len(got.steps))
			}
			if l.sums() == m.sums() {
				if !slices.Equal(got.steps, whole[to].steps[at:]) {
					t.Errorf("%s to %s: other losses than the undisturbed run", l, m)
				}
				if !(outcome{Params: whole[to].params}).equal(outcome{Params: got.params}) {
					t.Errorf("%s to %s: other parameters than the undisturbed run", l, m)
				}
				continue
			}
			for i, s := range got.steps {
				a, b := math.Float64frombits(s[0]), math.Float64frombits(whole[to].steps[at+i][0])
				if !(math.Abs(a-b) <= 1e-6*math.Abs(b)) || s[1] != whole[to].steps[at+i][1] {
					t.Errorf("%s to %s: the loss of step %d is %v, not %v", l, m, at+i, a, b)
				}
			}
		}
	}
}

func fileNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// A run that is resumed writes the checkpoints of one that never stopped, byte for byte, and keeps as many as it is told.
func TestResumedRunSavesTheSame(t *testing.T) {
	file, p := keptData(t), layout{3, 1, 2, 1}.compile(t)
	one, two := t.TempDir(), t.TempDir()
	keptRun(t, p, runtime.Options{DataPath: file, Steps: 11, Checkpoint: runtime.Checkpoint{Dir: one, Every: 2, Keep: 3}})
	keptRun(t, p, runtime.Options{DataPath: file, Steps: 5, Checkpoint: runtime.Checkpoint{Dir: two, Every: 2}})
	if got := fileNames(t, two); !slices.Equal(got, []string{"step-2", "step-4", "step-5"}) {
		t.Errorf("without a limit %v stay", got)
	}
	keptRun(t, p, runtime.Options{DataPath: file, Steps: 11, Checkpoint: runtime.Checkpoint{Dir: two, Every: 2, Keep: 3, Resume: two}})
	want := []string{"step-10", "step-11", "step-8"}
	if a, b := fileNames(t, one), fileNames(t, two); !slices.Equal(a, want) || !slices.Equal(b, want) {
		t.Fatalf("%v and %v, want %v", a, b, want)
	}
	for _, step := range want {
		for _, name := range fileNames(t, filepath.Join(one, step)) {
			a, errA := os.ReadFile(filepath.Join(one, step, name))
			b, errB := os.ReadFile(filepath.Join(two, step, name))
			if errA != nil || errB != nil || !slices.Equal(a, b) {
				t.Errorf("%s/%s differs: %v %v", step, name, errA, errB)
			}
		}
	}
}

// What does not fit is named, all of it.
func TestCheckpointsThatDoNotFit(t *testing.T) {
	file := keptData(t)
	dir := t.TempDir()
	keptRun(t, layout{2, 1, 1, 0}.compile(t), runtime.Options{DataPath: file, Steps: 2, Checkpoint: runtime.Checkpoint{Dir: dir}})
	short := filepath.Join(t.TempDir(), "short.npz")
	arrays, err := data.ReadNPZ(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range arrays {
		arrays[i].Shape, arrays[i].Data = []int{16}, arrays[i].Data[:16]
	}
	if err := data.WriteNPZ(short, arrays); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		replace []string
		data    string
		seed    uint32
		wants   []string
	}{
		{"other shape", []string{"Embedding(11, 20)", "Embedding(12, 20)"}, "", 0, []string{"the parameter `table.weight` is f32[11, 20] in the checkpoint and f32[12,20] in the program"}},
		{"fewer cells", []string{"0..7", "0..5"}, "", 0, []string{"the parameter `mid.5.fc.weight` of the checkpoint is none of the program", "`mid.6.fc.bias`"}},
		{"more cells", []string{"0..7", "0..8"}, "", 0, []string{"lacks the parameter `mid.7.fc.weight`"}},
		{"renamed", []string{"    fc = ", "    fd = ", "fc(x)", "fd(x)"}, "", 0, []string{"lacks the parameter `mid.0.fd.weight`", "`mid.0.fc.weight` of the checkpoint is none", `did you mean "mid.0.fd.weight"`}},
		{"other buffer", []string{"buffer seen: i32[1]", "buffer seen: i32[2]", "cast(seen, f32) + 0", "sum(cast(seen, f32)) + 0", "less(cast(seen, f32), 16)", "less(sum(cast(seen, f32)), 16)", "odd: bool[1]", "odd: bool[]"}, "", 0, []string{"the buffer `count.seen` is i32[1] in the checkpoint and i32[2] in the program"}},
		{"other optimizer", []string{"Grad(lr = warmup(5, cosine(0.02, 0.001, 20)))", "Adam(lr = 0.1)"}, "", 0, []string{"of the optimizer `Grad`, the program has `Adam`", "-init " + dir}},
		{"other states", []string{"    buffer mean: f32[] = zeros()\n", "", "mean = 0.9 * mean + gradient", "mean = gradient"}, "", 0, []string{"`Grad` of the checkpoint has the states [sum, mean], that of the program [sum]"}},
		{"no loss scale", []string{"loss_scale = { initial: 1024, window: 3 }", ""}, "", 0, []string{"loss scale in one of them only"}},
		{"other seed", nil, "", 4, []string{"of the seed 3, this run has 4", "-seed 3"}},
		{"other batch", []string{"i32[8]", "i32[4]", "batch(8)", "batch(4)"}, "", 0, []string{"a step of the checkpoint takes 8 rows, one of this run 4"}},
		{"other data", nil, short, 0, []string{"data with 26 rows, this run has 16"}},
	}
	for _, c := range tests {
		p := layout{1, 1, 1, 0}.compile(t, c.replace...)
		o := runtime.Options{Open: cpu.Open, DataPath: file, Seed: 3, Steps: 4, SkipEval: true, Checkpoint: runtime.Checkpoint{Resume: dir}}
		if c.data != "" {
			o.DataPath = c.data
		}
		if c.seed != 0 {
			o.Seed = c.seed
		}
		_, err := runtime.Run(context.Background(), p, o)
		var list diag.List
		if !errors.As(err, &list) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var text strings.Builder
		for _, d := range list {
			if d.Code != diag.BadCheckpoint {
				t.Errorf("%s: %v", c.name, d)
			}
			text.WriteString(d.Message + "\n" + d.Repair + "\n")
		}
		for _, w := range c.wants {
			if !strings.Contains(text.String(), w) {
				t.Errorf("%s: no %q in\n%s", c.name, w, text.String())
			}
		}
	}
}
