package layout_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/layout"
)

// Layouts that are in use, with the layers they give every stage.
func TestNotations(t *testing.T) {
	eight := strings.TrimSuffix(strings.Repeat("0,", 8), ",")
	for _, c := range []struct {
		text   string
		model  layout.Model
		chunks int
		layers int
		want   string // per stage
	}{
		{"offset:-1,0,2,-1", layout.Model{Layers: 40}, 1, 40, "9,10,12,9"},
		{"offset:[-1, -1, 1, 1]", layout.Model{Layers: 64, Stages: 4}, 1, 64, "15,15,17,17"},
		{"offset:-1,1,1,-1", layout.Model{Layers: 48}, 1, 48, "11,13,13,11"},
		{"offset:-1,1", layout.Model{Layers: 64}, 1, 64, "31,33"},
		{"offset:" + eight, layout.Model{Layers: 80, Stages: 8}, 1, 80, "10,10,10,10,10,10,10,10"},
		{"offset:-1,1,1,-1", layout.Model{Layers: 64}, 1, 64, "15,17,17,15"},
		{"offset:[[-1,-1,0,0,0,0,0,0], [-1,0,0,0,0,0,0,0], [0,0,0,1,1,1,1,-1]]", layout.Model{Layers: 96, Stages: 8, Chunks: 3}, 3, 96, "10,11,12,13,13,13,13,11"},
		{"offset:0", layout.Model{Layers: 32, Stages: 2}, 1, 32, "16,16"},
		{"offset:0", layout.Model{Layers: 32, Stages: 2, Chunks: 4}, 4, 32, "16,16"},
		{"offset:0,1", layout.Model{Layers: 7}, 1, 7, "3,4"},

		{"Et*3|(tt|)*29,m|L", layout.Model{Stages: 16}, 2, 61, "5,4,4,4,4,4,4,4,4,4,4,4,4,4,2,2"},
		{"Et*2|(tt|)*5t|tmL", layout.Model{Stages: 4}, 2, 14, "4,4,3,3"},
		{"Et*3|(tt|)*6tmL", layout.Model{Stages: 2}, 4, 16, "9,7"},
		{"Et*3|(tt|)*6mL", layout.Model{Stages: 2}, 4, 15, "9,6"},
		{"Et|(tt|)*6mL", layout.Model{Stages: 2}, 4, 13, "7,6"},
		{"Et*7|t*7mL", layout.Model{}, 1, 14, "7,7"},
		{"Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", layout.Model{Stages: 8}, 5, 80, "10,10,10,11,10,10,10,9"},
		{"E|(t|)*10m|m|m|LL|LL", layout.Model{Stages: 8}, 2, 10, "1,2,2,1,1,1,1,1"},
		{"E||t|L", layout.Model{Stages: 4}, 1, 1, "0,0,1,0"},
		{"E((t|)*2t|)*2L", layout.Model{}, 1, 6, "1,1,1,1,1,1,0"},

		{"16,15,15,15", layout.Model{Layers: 61, Stages: 4}, 1, 61, "16,15,15,15"},
		{"1,31,31,1", layout.Model{}, 1, 64, "1,31,31,1"},
		{"noop:47,62,63", layout.Model{Layers: 61, Stages: 4}, 1, 61, "16,16,15,14"},
		{"noop:47,62,63", layout.Model{Layers: 61, Stages: 4, Chunks: 2}, 2, 61, "16,15,16,14"},
		{"noop:94,95", layout.Model{Layers: 94, Stages: 8}, 1, 94, "12,12,12,12,12,12,12,10"},
	} {
		l, err := layout.Parse(c.text, c.model)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := layout.Join(l.PerStage()); got != c.want || l.Layers() != c.layers || l.Chunks() != c.chunks {
			t.Errorf("%s: per stage %s, %d layers, %d chunks; want %s, %d, %d", c.text, got, l.Layers(), l.Chunks(), c.want, c.layers, c.chunks)
		}
	}
}

func TestRows(t *testing.T) {
	l, err := layout.Parse("offset:-1,-1,0,0,0,0,0,0;-1,0,0,0,0,0,0,0;0,0,0,1,1,1,1,-1", layout.Model{Layers: 96})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]int{{3, 3, 4, 4, 4, 4, 4, 4}, {3, 4, 4, 4, 4, 4, 4, 4}, {4, 4, 4, 5, 5, 5, 5, 3}}
	if d := cmp.Diff(want, l.Sizes()); d != "" {
		t.Error(d)
	}
}

func TestRejects(t *testing.T) {
	for _, c := range []struct {
		text  string
		model layout.Model
		want  string
	}{
		{"offset:0", layout.Model{Layers: 7, Stages: 2}, "the offsets sum up to 0, but 7 layers on 2 stages with 1 chunks leave 1 over"},
		{"offset:1,0,0", layout.Model{Layers: 13, Stages: 4}, "the layout has 3 stages, but 4 are asked for"},
		{"offset:0,0;0,0", layout.Model{Layers: 8, Chunks: 3}, "the layout has 2 chunks on each stage, but 3 are asked for"},
		{"offset:[[0,0],[0]]", layout.Model{Layers: 8}, "row 1 of the offset has 1 numbers for 2 stages"},
		{"offset:-3,3", layout.Model{Layers: 4}, "the offset -3 gives stage 0 of chunk 0 -1 layers"},
		{"offset:0,0", layout.Model{}, "an offset says nothing without the number of layers"},
		{"offset:0", layout.Model{Layers: 4}, "without the number of stages"},
		{"offset:[]", layout.Model{Layers: 4}, "0 stages are outside 1..4096"},
		{"offset:[1.5]", layout.Model{Layers: 4}, "is no list of whole numbers"},
		{"t*3|t*3L", layout.Model{}, "the layout has no embedding"},
		{"Et*3|t*3", layout.Model{}, "the layout has no loss"},
		{"Et*3|x*3L", layout.Model{}, "character 6 of the layout is 'x'"},
		{"Et|t|tL", layout.Model{Stages: 2}, "the layout has 3 chunks, which is no multiple of 2 stages"},
		{"Et|tL", layout.Model{Layers: 3}, "the layout places 2 layers, but there are 3"},
		{"EEt|tL", layout.Model{}, "2 embeddings"},
		{"|Et|L", layout.Model{}, "the layout has its embedding behind the first chunk"},
		{"Et|Lt", layout.Model{}, "`t` stands behind `L`"},
		{"tE|L", layout.Model{}, "`E` stands behind `t`"},
		{"E(t|", layout.Model{}, "the bracket at character 2 of the layout is not closed"},
		{"Et)|L", layout.Model{}, "the bracket at character 3 of the layout closes nothing"},
		{"Et*|L", layout.Model{}, "a number above 0 is missing"},
		{"Et*0|L", layout.Model{}, "a number above 0 is missing"},
		{"E((t*99999)*99999)L", layout.Model{}, "more than 100000 layers and chunks"},
		{"Et*99999999999999999999|L", layout.Model{}, "more than 100000 times"},
		{strings.Repeat("(", 200) + "E", layout.Model{}, "nested too deeply"},
		{"16,15,15", layout.Model{Layers: 61}, "the layout places 46 layers, but there are 61"},
		{"16,15,15,15", layout.Model{Layers: 61, Stages: 8}, "the layout has 4 stages, but 8 are asked for"},
		{"16,15,15,15", layout.Model{Layers: 61, Chunks: 2}, "the layout has 1 chunks on each stage, but 2 are asked for"},
		{"4,-1", layout.Model{}, "stage 1 cannot have -1 layers"},
		{"4,x", layout.Model{}, "character 1 of the layout is '4'"},
		{"4,,4", layout.Model{}, `"" is no whole number`},
		{"1,2;3,4", layout.Model{}, "a layer list has one row"},
		{"noop:47,62", layout.Model{Layers: 61, Stages: 4}, "63 layers, noop layers included, cannot be shared evenly among 4 stages with 1 chunks"},
		{"noop:47,62,64", layout.Model{Layers: 61, Stages: 4}, "the noop layer 64 is outside 0..63"},
		{"noop:47,62,62", layout.Model{Layers: 61, Stages: 4}, "the noop layer 62 is named twice"},
		{"noop:1", layout.Model{Layers: 3}, "noop layers say nothing"},
		{"nop:1", layout.Model{Layers: 3}, `"nop" is no kind of layout`},
		{"", layout.Model{}, `the layout is empty`},
	} {
		_, err := layout.Parse(c.text, c.model)
		var d diag.Diagnostic
		if !errors.As(err, &d) || d.Code != diag.BadLayout || !strings.Contains(d.Message, c.want) {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
}

// What a notation cannot say is refused, not dropped.
func TestConversionRefused(t *testing.T) {
	for text, want := range map[string]string{
		"Et|tmL":  "cannot say where the 1 layers `m` are",
		"Et|t|L|": "has the loss on the last stage",
		"Et|tLL":  "has the loss on the last stage",
	} {
		l, err := layout.Parse(text, layout.Model{})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"mindformers", "list"} {
			if _, err := l.Format(to); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s to %s: %v, want %s", text, to, err, want)
			}
		}
	}
	l, err := layout.Parse("Et|t|t|tL", layout.Model{Stages: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Format("list"); err == nil || !strings.Contains(err.Error(), "one chunk on each stage") {
		t.Error(err)
	}
	if _, err := l.Format("yaml"); err == nil || !strings.Contains(err.Error(), "unknown notation") {
		t.Error(err)
	}
}

// Whatever a layout is written as, it is read back as the same.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		stages, chunks := rapid.IntRange(1, 5).Draw(r, "stages"), rapid.IntRange(1, 3).Draw(r, "chunks")
		var text strings.Builder
		text.WriteString("E")
		for i := range stages * chunks {
			if i > 0 {
				text.WriteString("|")
			}
			fmt.Fprint(&text, strings.Repeat("t", rapid.IntRange(0, 4).Draw(r, "layers")))
		}
		text.WriteString("L")
		l, err := layout.Parse(text.String(), layout.Model{Stages: stages})
		if err != nil {
			r.Fatal(err)
		}
		for _, to := range layout.Notations() {
			out, err := l.Format(to)
			if err != nil {
				if to == "list" && chunks > 1 {
					continue
				}
				r.Fatal(err)
			}
			back, err := layout.Parse(out, layout.Model{Layers: l.Layers(), Stages: stages, Chunks: chunks})
			if err != nil {
				if l.Layers() == 0 && to == "mindformers" {
					continue // an offset needs a number of layers
				}
				r.Fatalf("%s as %s: %v", text.String(), out, err)
			}
			if d := cmp.Diff(l, back); d != "" {
				r.Fatalf("%s as %s: %s", text.String(), out, d)
			}
		}
	})
}

// Every layer is on a stage, and no notation makes the reader fail otherwise than with a diagnostic.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"Et*3|(tt|)*29,m|L", "offset:-1,0,2,-1", "16,15,15,15", "noop:47,62,63", "[[1,2],[3]]"} {
		f.Add(s, 61, 4, 0)
	}
	f.Fuzz(func(t *testing.T, text string, layers, stages, chunks int) {
		l, err := layout.Parse(text, layout.Model{Layers: layers, Stages: stages, Chunks: chunks})
		var d diag.Diagnostic
		if err != nil && !errors.As(err, &d) {
			t.Fatalf("%v is no diagnostic", err)
		}
		if err == nil && slices.ContainsFunc(l.PerStage(), func(n int) bool { return n < 0 }) {
			t.Fatalf("%s gives %v", text, l.PerStage())
		}
	})
}
