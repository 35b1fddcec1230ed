package ppc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
)

// equalLayers is a chain of equal layers; entries are added to the block.
func equalLayers(n int, entries string) string {
	return fmt.Sprintf("cell Net {\n    for i in 0..%d {\n        block[i] = Dense(8, 8, bias = false)\n    }\n"+
		"    construct(x) {\n        for b in block {\n            x = b(x)\n        }\n        return x\n    }\n}\n"+
		"infer t {\n    network = Net()\n    input x: f32[8, 8]\n    micro_batch_num = 4\n%s}\n", n, entries)
}

// layersPerStage compiles and counts the layers of every stage; each layer must be on exactly one.
func layersPerStage(t *testing.T, n int, src string, o Options) []int {
	t.Helper()
	o.File, o.Source = "t.pp", []byte(src)
	r, err := Compile(context.Background(), o)
	if err != nil {
		t.Fatalf("%d layers, %d stages: %v", n, o.Stages, Diagnostics(err))
	}
	counts, seen := make([]int, r.Plan.NumStages), map[string]bool{}
	for _, c := range r.Plan.Programs[0].Chunks {
		for _, name := range c.Cells {
			if !strings.HasPrefix(name, "block.") {
				continue
			}
			if seen[name] {
				t.Errorf("%d layers, %d stages: %s is in two chunks", n, o.Stages, name)
			}
			seen[name] = true
			counts[c.Stage]++
		}
	}
	if len(seen) != n && r.Plan.NumStages > 1 {
		t.Errorf("%d layers, %d stages: %d layers are placed", n, o.Stages, len(seen))
	}
	return counts
}

// Without marks equal layers are shared out evenly: no remainder is lost or heaped up, no stage is empty.
func TestEvenSplits(t *testing.T) {
	check := func(n, stages int) {
		counts := layersPerStage(t, n, equalLayers(n, ""), Options{Stages: stages})
		if least, most := slices.Min(counts), slices.Max(counts); least < 1 || most-least > 1 {
			t.Errorf("%d layers on %d stages: %v", n, stages, counts)
		}
	}
	for n := 2; n <= 40; n++ {
		for stages := 2; stages <= min(n, 8); stages++ {
			check(n, stages)
		}
	}
	check(58, 16)
}

// Layouts of other systems give the stages the layers that they give there.
func TestLayoutsOfNetworks(t *testing.T) {
	for _, c := range []struct {
		layout string
		n      int
		stages int
		want   string
	}{
		{"offset:-1,0,2,-1", 40, 0, "[9 10 12 9]"},
		{"16,15,15,15", 61, 0, "[16 15 15 15]"},
		{"noop:47,62,63", 61, 4, "[16 16 15 14]"},
		{"Et*2|(tt|)*5t|tL", 14, 4, "[4 4 3 3]"},
		{"Et|(tt|)*6L", 13, 2, "[7 6]"},
		{"1,31,31,1", 64, 0, "[1 31 31 1]"},
		{"offset:-1,-1,0,0,0,0,0,0;-1,0,0,0,0,0,0,0;0,0,0,1,1,1,1,-1", 96, 0, "[10 11 12 13 13 13 13 11]"},
	} {
		counts := layersPerStage(t, c.n, equalLayers(c.n, fmt.Sprintf("    layout = %q\n", c.layout)), Options{Stages: c.stages})
		if got := fmt.Sprint(counts); got != c.want {
			t.Errorf("%s: %s, want %s", c.layout, got, c.want)
		}
		counts = layersPerStage(t, c.n, equalLayers(c.n, ""), Options{Stages: c.stages, Layout: c.layout})
		if got := fmt.Sprint(counts); got != c.want {
			t.Errorf("-layout %s: %s, want %s", c.layout, got, c.want)
		}
	}
}

// A layout whose chunks are on the same stages as marks gives the same plan.
func TestLayoutEqualsMarks(t *testing.T) {
	build := func(entries string) *plan.Plan {
		r, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(equalLayers(6, entries))})
		if err != nil {
			t.Fatal(Diagnostics(err))
		}
		return r.Plan
	}
	a := build("    interleave = true\n    stage_config = { block[0..2]: 0, block.2: 1, block.3: 0, block[4..6]: 1 }\n")
	b := build("    stages = 2\n    layout = \"Ett|t|t|ttL\"\n")
	if len(a.Programs[0].Chunks) != 4 || fmt.Sprint(a.Programs[0].Actions) != fmt.Sprint(b.Programs[0].Actions) {
		t.Errorf("%d chunks, %d with a layout", len(a.Programs[0].Chunks), len(b.Programs[0].Chunks))
	}
	for i, c := range a.Programs[0].Chunks {
		if d := b.Programs[0].Chunks[i]; c.Stage != d.Stage || !slices.Equal(c.Cells, d.Cells) {
			t.Errorf("chunk %d: %v on stage %d, %v on stage %d with a layout", i, c.Cells, c.Stage, d.Cells, d.Stage)
		}
	}
}

// More stages than pieces are refused with the number that is possible, and a mark that goes down with both places:
// one diagnostic for each edge.
func TestStagesThatCannotBe(t *testing.T) {
	_, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(equalLayers(3, "")), Stages: 4})
	list := Diagnostics(err)
	if len(list) != 1 || list[0].Code != diag.TooManyStages || !strings.Contains(list[0].Repair, "at most 3 stages") {
		t.Errorf("%v", list)
	}
	// So are layers that marks keep together.
	_, err = Compile(context.Background(), Options{File: "t.pp", Source: []byte(equalLayers(4, "    stage_config = { block[0..4]: 0 }\n")), Stages: 4})
	if list := Diagnostics(err); len(list) != 1 || list[0].Code != diag.StagesDiffer || !list[0].Range.IsValid() || list[0].Repair == "" {
		t.Errorf("%v", list)
	}
	_, err = Compile(context.Background(), Options{File: "t.pp", Source: []byte(equalLayers(6, "    stage_config = { block[0..2]: 2, block.2: 1, block.3: 3, block.4: 0, block.5: 3 }\n"))})
	list = Diagnostics(err)
	if len(list) != 2 {
		t.Fatalf("%d diagnostics: %v", len(list), list)
	}
	for _, d := range list {
		if d.Code != diag.StageGoesDown || !d.Range.IsValid() || len(d.Notes) == 0 || !d.Notes[0].Range.IsValid() || d.Repair == "" {
			t.Errorf("%v", d)
		}
	}
}

// Marks that repeat a stage make no further part.
func TestRepeatedMarks(t *testing.T) {
	counts := layersPerStage(t, 4, equalLayers(4, "    stage_config = { block.0: 0, block.1: 0, block.2: 1, block[2..4]: 1 }\n"), Options{})
	if fmt.Sprint(counts) != "[2 2]" {
		t.Errorf("%v", counts)
	}
}

// Marks that leave a stage without a cell, at the start, at the end or between, are refused at the mark.
func TestStagesWithoutCells(t *testing.T) {
	for _, c := range []struct{ entry, want string }{
		{"block[0..4]: 1", "stage 0 has nothing to do"},
		{"block[0..2]: 0, block[2..4]: 2", "stage 1 has nothing to do"},
	} {
		_, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(equalLayers(4, "    stage_config = { "+c.entry+" }\n"))})
		list := Diagnostics(err)
		if len(list) != 1 || list[0].Code != diag.EmptyStage || !strings.Contains(list[0].Message, c.want) || !list[0].Range.IsValid() || list[0].Repair == "" {
			t.Errorf("%s: %v", c.entry, list)
		}
	}
	_, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(equalLayers(4, "    stages = 3\n    stage_config = { block[0..2]: 0, block[2..4]: 1 }\n"))})
	if list := Diagnostics(err); len(list) != 1 || list[0].Code != diag.StagesDiffer {
		t.Errorf("%v", list)
	}
}

// A layout given by hand must place every layer, and say what it places if it does not.
func TestLayoutsThatDoNotSumUp(t *testing.T) {
	for _, text := range []string{"9,10,12,8", "9,10,12,10", "Et*9|t*10|t*12|t*8L", "offset:-1,0,2,0"} {
		_, err := Compile(context.Background(), Options{File: "t.pp", Source: []byte(equalLayers(40, "")), Layout: text})
		list := Diagnostics(err)
		if len(list) != 1 || list[0].Code != diag.BadLayout {
			t.Errorf("%s: %v", text, list)
		}
	}
}

// Without marks the cut follows the cost of what there is, not the number of cells: beside a large head the last stage has
// fewer of the layers.
func TestSplitFollowsCost(t *testing.T) {
	src := func(head int) []byte {
		return fmt.Appendf(nil, "cell Net {\n    for i in 0..8 { block[i] = Dense(64, 64) }\n    head = Dense(64, %d)\n    construct(x) {\n        for b in block { x = b(x) }\n        return head(x)\n    }\n}\n"+
			"infer t {\n    network = Net()\n    input x: f32[64, 64]\n    micro_batch_num = 4\n}\n", head)
	}
	layers := func(head int) (last int) {
		p := compileFile(t, Options{File: "t.pp", Source: src(head), Stages: 3}).Plan
		for _, name := range p.Programs[0].Chunks[2].Cells {
			if strings.HasPrefix(name, "block.") {
				last++
			}
		}
		return last
	}
	if small, large := layers(8), layers(64*8); small < 2 || large != 0 {
		t.Errorf("the last stage has %d layers beside a small head, %d beside a large one", small, large)
	}
}

// Stages without micro-batches to fill them are legal, and told of with the share of time that they idle.
func TestOneMicroBatchIsTold(t *testing.T) {
	o := chunked(3, 1, 1)
	r := compileFile(t, o)
	i := slices.IndexFunc(r.Warnings, func(d diag.Diagnostic) bool { return d.Code == diag.OneMicroBatch })
	if i < 0 || !r.Warnings[i].Range.IsValid() || !strings.Contains(r.Warnings[i].Message, "%") || r.Warnings[i].Repair == "" {
		t.Errorf("%v", r.Warnings)
	}
	// Rounds of one micro-batch are no better; a stream of batches is.
	for _, o.Schedule = range schedule.Names {
		o.Accumulate = 4
		list := compileFile(t, o).Warnings
		if told := slices.ContainsFunc(list, func(d diag.Diagnostic) bool { return d.Code == diag.OneMicroBatch }); told != (o.Schedule == "gpipe") {
			t.Errorf("%s: %v", o.Schedule, list)
		}
	}
}
