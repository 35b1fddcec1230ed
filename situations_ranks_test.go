package ppc

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
)

// ranksSource is a training of a model of situations on rows of eight numbers, so that weights can be shared out to two and to
// four ranks.
func ranksSource(cells, network, entries string, batch int) []byte {
	cells = strings.NewReplacer("4, 4", "8, 8", "f32[4]", "f32[8]").Replace(cells)
	return fmt.Appendf(nil, `%s
train t {
    network = %s
    loss = MSELoss()
    optimizer = AdamW(lr = 0.01)
    micro_batch_num = 4
    input x: f32[%[4]d, 8]
    input y: f32[%[4]d, 8]
%[3]s    dataset = npz("data.npz") | batch(%[4]d)
}
`, cells, network, entries, batch)
}

// onOneStage takes the places of its cells out of a model.
func onOneStage(cells string) string {
	return regexp.MustCompile(` @(stage|segment)\([^)]*\)`).ReplaceAllString(cells, "")
}

// ranksData is a file of n rows for ranksSource.
func ranksData(t *testing.T, n int) string {
	t.Helper()
	x, y := make([]float32, n*8), make([]float32, n*8)
	for i := range x {
		x[i], y[i] = float32(math.Sin(float64(i))), float32(math.Cos(float64(3*i)))
	}
	file := t.TempDir() + "/data.npz"
	if err := data.WriteNPZ(file, []data.Array{data.NewFloat32("x", []int{n, 8}, x), data.NewFloat32("y", []int{n, 8}, y)}); err != nil {
		t.Fatal(err)
	}
	return file
}

// The situations of several ranks per stage on the models of all others: whether and in which groups the ranks share out what
// belongs to a parameter, all have the bits of one stage of as many ranks, near those of the unsplit program.
func TestSituationsOnRanks(t *testing.T) {
	file := ranksData(t, 64)
	frozen := situations[0]
	frozen.of, frozen.entries = "a frozen weight", "    frozen = [cell1.a]\n"
	for _, s := range append(slices.Clone(situations), frozen) {
		t.Run(s.of, func(t *testing.T) {
			stages, trains := strings.Count(s.sends, ",")+1, ""
			if s.of == frozen.of {
				trains = s.entries
			}
			run := func(entries string, o Options) outcome {
				t.Helper()
				if o.File, o.Verify = "t.pp", true; o.Stages == 1 {
					o.Source = ranksSource(onOneStage(s.cells), s.network, trains+entries, 32)
				} else {
					o.Source = ranksSource(s.cells, s.network, s.entries+entries, 32)
				}
				r, err := Compile(context.Background(), o)
				if err != nil {
					t.Fatal(Diagnostics(err))
				}
				return train(t, r.Plan, runtime.Options{DataPath: file, Device: device.Options{Poison: true}})
			}
			want := run("", Options{Unsplit: true})
			for _, degree := range []int{2, 4} {
				for _, shard := range shards(degree) {
					one := run(shard, Options{Stages: 1, Devices: degree})
					if err := want.near(one, 1e-5); err != nil {
						t.Errorf("%d ranks, %s: %v", degree, shard, err)
					}
					for _, schedule := range []string{"gpipe", "1f1b"} {
						if got := run(shard, Options{Devices: stages * degree, Schedule: schedule}); !one.equal(got) {
							t.Errorf("%s, %d stages x %d ranks, %s: other bits than one stage", schedule, stages, degree, shard)
						}
					}
				}
			}
		})
	}
}

// shards are entries that share out in all ways: every level, and every size of groups.
func shards(degree int) []string {
	list := []string{""}
	for _, x := range [][2]int{{1, 2}, {1, degree}, {2, degree}, {3, 2}} {
		list = append(list, fmt.Sprintf("    optimizer_shard = { level: %d, threshold: 0, size: %d }\n", x[0], x[1]))
	}
	return slices.Compact(list)
}

// Forty-eight devices, twenty-four on each of two stages: no power of two.
func TestFortyEightDevices(t *testing.T) {
	file := ranksData(t, 2*192)
	run := func(o Options) outcome {
		t.Helper()
		cells := situations[0].cells
		if o.Stages == 1 {
			cells = onOneStage(cells)
		}
		o.File, o.Source, o.Verify = "t.pp", ranksSource(cells, "Net()", "    optimizer_shard = { level: 1, threshold: 0, size: 3 }\n", 192), true
		r, err := Compile(context.Background(), o)
		if err != nil {
			t.Fatal(Diagnostics(err))
		}
		return train(t, r.Plan, runtime.Options{DataPath: file})
	}
	want, one := run(Options{Unsplit: true}), run(Options{Stages: 1, Devices: 24})
	if err := want.near(one, 1e-5); err != nil {
		t.Error(err)
	}
	if got := run(Options{Devices: 48}); !one.equal(got) {
		t.Error("other bits than one stage of 24 ranks")
	}
}

// A step sums the gradients of a stage once and gathers what was shared out once, however many parameters and micro-batches
// there are. What the threshold spares stays whole.
func TestMeetingsOfAStep(t *testing.T) {
	for _, c := range []struct {
		entries string
		gathers int
		shared  int // parameters of each stage
	}{
		{"", 0, 0},
		{"    optimizer_shard = { level: 1, threshold: 0 }\n", 1, 2},
		{"    optimizer_shard = { level: 1, threshold: 0, size: 2 }\n", 1, 2},
		{"    optimizer_shard = 1\n", 0, 0}, // below 64 KB
		{"    optimizer_shard = { level: 2, threshold: 0 }\n", 1, 2},
		{"    optimizer_shard = { level: 3, threshold: 0 }\n", 0, 2}, // within passes: see TestShardMeetings
	} {
		for _, micro := range []int{1, 4, 8} {
			p := compileFile(t, Options{
				File: "t.pp", Source: ranksSource(situations[0].cells, situations[0].network, c.entries, 32), Devices: 8, Micro: micro,
			}).Plan
			for s, st := range p.Stages {
				count := map[plan.ActionKind]int{}
				for _, a := range p.Programs[0].Actions[s] {
					count[a.Kind]++
				}
				if count[plan.Reduce] != 1 || count[plan.Gather] != c.gathers {
					t.Errorf("%q, %d micro-batches: stage %d reduces %d times and gathers %d times", c.entries, micro, s, count[plan.Reduce], count[plan.Gather])
				}
				n := 0
				for _, sp := range st.Params {
					if sp.Shard > plan.ShardNone {
						n++
					}
				}
				if n != c.shared {
					t.Errorf("%q: stage %d shares out %d parameters", c.entries, s, n)
				}
			}
		}
	}
}

// The axes of the ranks tell all their groups, and compiling for very many devices is compiling for a few.
func TestAxes(t *testing.T) {
	p := compileFile(t, Options{File: "t.pp", Source: ranksSource(situations[0].cells, situations[0].network, "    optimizer_shard = { level: 1, threshold: 0, size: 4 }\n", 1<<18), Devices: 1 << 16}).Plan
	want := []plan.Axis{{Name: "stage", Size: 2, Stride: 1 << 15}, {Name: "data", Size: 1 << 13, Stride: 4}, {Name: "shard", Size: 4, Stride: 1}}
	if got := p.Axes(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	n := 1
	for _, x := range p.Axes() {
		n *= x.Size
	}
	if n != 1<<16 {
		t.Errorf("the axes have %d ranks", n)
	}
	few := compileFile(t, Options{File: "t.pp", Source: ranksSource(situations[0].cells, situations[0].network, "", 32), Devices: 8}).Plan
	if len(few.Programs[0].Actions[0]) != len(p.Programs[0].Actions[0])-1 { // but for the gather
		t.Errorf("%d actions for many devices, %d for few", len(p.Programs[0].Actions[0]), len(few.Programs[0].Actions[0]))
	}
}
