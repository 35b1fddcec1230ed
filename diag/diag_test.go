package diag_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ppc-lang/ppc/diag"
)

func at(line, col, n int) diag.Range {
	return diag.Span(diag.Pos{File: "m.pp", Line: line, Col: col}, n)
}

func render(t *testing.T, list diag.List, text string) string {
	t.Helper()
	var out strings.Builder
	err := diag.Render(&out, list, func(file string) ([]byte, bool) { return []byte(text), file == "m.pp" })
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestRender(t *testing.T) {
	source := "first\n\tx = 日本 + y\nlast"
	list := diag.List{
		diag.Errorf(diag.UnknownName, at(2, 11, 1), "unknown name %q", "y").
			WithNote(at(1, 1, 5), "set here").WithRepair("did you mean %q?", "x"),
		diag.Errorf(diag.BadNumber, at(2, 6, 2), "not a number"),
		diag.Warningf(diag.NoEffect, diag.Range{}, "no place"),
		diag.Errorf(diag.CannotRead, diag.At(diag.Pos{File: "other", Line: 3, Col: 1}), "elsewhere"),
		diag.Errorf(diag.BadSyntax, diag.At(diag.Pos{File: "m.pp", Line: 3, Col: 5}), "at the end"),
	}
	want := `warning W0601: no place
m.pp:2:6: error E0305: not a number
    2 |     x = 日本 + y
      |         ^^^^
m.pp:2:11: error E0201: unknown name "y"
    2 |     x = 日本 + y
      |                ^
  note: m.pp:1:1: set here
    1 | first
      | ^^^^^
  repair: did you mean "x"?
m.pp:3:5: error E0102: at the end
    3 | last
      |     ^
other:3:1: error E1001: elsewhere
`
	if diff := cmp.Diff(want, render(t, list, source)); diff != "" {
		t.Error(diff)
	}
}

func TestRenderLongLine(t *testing.T) {
	line := strings.Repeat("a", 200) + "HERE" + strings.Repeat("b", 200)
	lines := strings.Split(render(t, diag.List{diag.Errorf(diag.BadToken, at(1, 201, 4), "long")}, line), "\n")
	from := strings.Index(lines[2], "^^^^")
	if len(lines[1]) > 150 || from < 0 || lines[1][from:from+4] != "HERE" {
		t.Errorf("caret not below HERE:\n%s", strings.Join(lines, "\n"))
	}
}

func TestSortedCapped(t *testing.T) {
	var list diag.List
	for i := 30; i > 0; i-- {
		list.Add(diag.Warningf(diag.NoEffect, at(i, 1, 1), "w"))
	}
	if list.HasErrors() || list.Err() != nil {
		t.Error("warnings alone are not an error")
	}
	for i := 25; i > 20; i-- {
		list.Add(diag.Errorf(diag.BadSyntax, at(i, 1, 1), "e"))
		list.Add(diag.Errorf(diag.BadSyntax, at(i, 1, 1), "e"))
	}
	shown, left := list.Capped()
	if len(shown) != diag.Limit || left != 15 {
		t.Fatalf("%d shown, %d left out; want 20 and 15", len(shown), left)
	}
	count := 0
	for i, d := range shown {
		if d.Severity == diag.Error {
			count++
		}
		if i > 0 && shown[i-1].Range.Line > d.Range.Line {
			t.Errorf("line %d after %d", d.Range.Line, shown[i-1].Range.Line)
		}
	}
	if count != 5 {
		t.Errorf("%d errors kept, want 5", count)
	}
	if got, want := list.Err().Error(), "m.pp:21:1: error E0102: e (and 4 more)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if text := render(t, list, ""); !strings.HasSuffix(text, "15 more not shown\n") {
		t.Errorf("end of text: %q", text)
	}
}

func TestJSON(t *testing.T) {
	d := diag.Errorf(diag.UnknownCell, at(2, 3, 4), "no cell").WithNote(diag.Range{}, "all: a, b").WithRepair("did you mean %q?", "a")
	got, err := json.Marshal(diag.List{d})
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"severity":"error","code":"E0502","file":"m.pp","line":2,"col":3,"end_line":2,"end_col":7,` +
		`"message":"no cell","notes":[{"message":"all: a, b"}],"repair":"did you mean \"a\"?"}]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestSuggest(t *testing.T) {
	names := []string{"layer1", "layer2", "relu1", "flatten", "x"}
	for _, c := range []struct{ name, want string }{
		{"flaten", "flatten"}, {"faltten", "flatten"}, {"layer3", "layer1"}, {"relu", "relu1"}, {"FLATTEN", "flatten"},
		{"y", "x"}, {"conv", ""}, {"", ""}, {strings.Repeat("x", 100), ""},
	} {
		if got := diag.Suggest(c.name, names); got != c.want {
			t.Errorf("Suggest(%q) = %q, want %q", c.name, got, c.want)
		}
	}
	if got := diag.DidYouMean("conv", names); got != "" {
		t.Errorf("DidYouMean gives %q", got)
	}
}

func TestCodesAreDistinct(t *testing.T) {
	form := regexp.MustCompile(`^[EW]\d{4}$`)
	codes := diag.Codes()
	for i, m := range codes {
		if !form.MatchString(string(m.Code)) || m.Text == "" {
			t.Errorf("bad row %q %q", m.Code, m.Text)
		}
		if i > 0 && codes[i-1].Code >= m.Code {
			t.Errorf("code %s is there twice", m.Code)
		}
	}
}

func FuzzRender(f *testing.F) {
	f.Add("a\tb\n日本", 2, 2, 2, 5)
	f.Fuzz(func(t *testing.T, text string, line, col, endLine, endCol int) {
		if line > 1000 || col > 1<<20 {
			return
		}
		r := diag.Range{Pos: diag.Pos{File: "m.pp", Line: line, Col: col}, EndLine: endLine, EndCol: endCol}
		if out := render(t, diag.List{diag.Errorf(diag.BadToken, r, "m")}, text); out == "" {
			t.Error("nothing rendered")
		}
	})
}

func ExampleRender() {
	source := map[string]string{"m.pp": "layer = Dens(3, 4)\n"}
	list := diag.List{diag.Errorf(diag.UnknownName, at(1, 9, 4), "unknown name %q", "Dens").
		WithRepair("%s", diag.DidYouMean("Dens", []string{"Dense", "ReLU"}))}
	var out strings.Builder
	if err := diag.Render(&out, list, func(file string) ([]byte, bool) {
		text, ok := source[file]
		return []byte(text), ok
	}); err != nil {
		fmt.Println(err)
	}
	fmt.Print(out.String())
	// Output:
	// m.pp:1:9: error E0201: unknown name "Dens"
	//     1 | layer = Dens(3, 4)
	//       |         ^^^^
	//   repair: did you mean "Dense"?
}
