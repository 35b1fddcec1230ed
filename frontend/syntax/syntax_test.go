package syntax

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/ppc-lang/ppc/diag"
)

var update = flag.Bool("update", false, "rewrite the golden sections")

// show writes a tree as text: a node is its kind with its parts.
func show(v any) string {
	var b strings.Builder
	var walk func(x reflect.Value)
	walk = func(x reflect.Value) {
		switch y := x.Interface().(type) {
		case *Number:
			b.WriteString(y.Value.RatString())
			return
		case *Name:
			b.WriteString(y.Text)
			return
		case *String:
			fmt.Fprintf(&b, "%q", y.Value)
			return
		case Ident:
			b.WriteString(y.Text)
			return
		}
		switch x.Kind() {
		case reflect.Interface, reflect.Pointer:
			if x.IsNil() {
				b.WriteString("-")
				return
			}
			walk(x.Elem())
		case reflect.Slice:
			b.WriteByte('[')
			for i := range x.Len() {
				if i > 0 {
					b.WriteByte(' ')
				}
				walk(x.Index(i))
			}
			b.WriteByte(']')
		case reflect.Struct:
			b.WriteString("(" + x.Type().Name())
			for i := range x.NumField() {
				f := x.Type().Field(i)
				if f.Type == reflect.TypeFor[diag.Range]() || f.Name == "place" {
					continue
				}
				b.WriteByte(' ')
				walk(x.Field(i))
			}
			b.WriteByte(')')
		default:
			fmt.Fprint(&b, x.Interface())
		}
	}
	walk(reflect.ValueOf(v))
	return b.String()
}

// TestGolden checks every testdata/*.txtar: the section "in.pp" against the
// tree, the canonical layout and the diagnostics in the other sections.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no goldens", err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			src := archive.Files[0].Data
			f, list := Parse("in.pp", src)
			got := map[string]string{}
			if list.HasErrors() {
				var text strings.Builder
				if err := diag.Render(&text, list, func(string) ([]byte, bool) { return src, true }); err != nil {
					t.Fatal(err)
				}
				got["errors"] = text.String()
			} else {
				var tree strings.Builder
				for _, d := range []any{f.Imports, f.Consts, f.Cells, f.Blocks} {
					x := reflect.ValueOf(d)
					for i := range x.Len() {
						tree.WriteString(show(x.Index(i).Interface()) + "\n")
					}
				}
				got["tree"] = tree.String()
				layout, _ := Format("in.pp", src)
				got["format"] = string(layout)
			}
			if *update {
				archive.Files = archive.Files[:1]
				for _, section := range []string{"errors", "tree", "format"} {
					if got[section] != "" {
						archive.Files = append(archive.Files, txtar.File{Name: section, Data: []byte(got[section])})
					}
				}
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want := map[string]string{}
			for _, s := range archive.Files[1:] {
				want[s.Name] = string(s.Data)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func seeds(f *testing.F) {
	for _, pattern := range []string{"../std/*.pp", "../../examples/*/*.pp"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range files {
			src, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(src))
		}
	}
	f.Add("cell A { construct(x) { return x[:, 0] } }\nconst a = \"\\q\" \ncell B")
	f.Add("@a\n@b(1)\ncell A(n: int[] = [1,\n2,]) { if n { } else if x { a = {b: 1\n} } }; const x = not -1 if 2 else ..")
}

// FuzzParse looks for panics, and holds that an error is always reported when
// a declaration is missing from the tree, inside of the text.
func FuzzParse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, src string) {
		tree, list := Parse("f.pp", []byte(src))
		if !list.HasErrors() && len(separate(scan("f.pp", src, new(diag.List)))) > 0 &&
			len(tree.Imports)+len(tree.Consts)+len(tree.Cells)+len(tree.Blocks) == 0 {
			t.Error("text without declarations or errors")
		}
		lines := strings.Count(src, "\n") + 1
		for _, d := range list {
			if d.Range.Line < 1 || d.Range.Line > lines || d.Range.Col < 1 {
				t.Errorf("%v is outside of a text of %d lines", d, lines)
			}
		}
	})
}

// FuzzFormat holds that formatting keeps the tokens and comments, and that
// formatting twice is formatting once.
func FuzzFormat(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, src string) {
		once, list := Format("f.pp", []byte(src))
		if list.HasErrors() {
			return
		}
		texts := func(s string) (out []string) {
			tokens := scan("f.pp", s, new(diag.List))
			for _, x := range separate(tokens) {
				out = append(out, x.text)
			}
			for _, x := range tokens {
				if x.kind == comment {
					out = append(out, x.text)
				}
			}
			return out
		}
		if diff := cmp.Diff(texts(src), texts(string(once))); diff != "" {
			t.Errorf("the tokens differ: %s\n%s", diff, once)
		}
		twice, list := Format("f.pp", once)
		if list.HasErrors() {
			t.Fatalf("%v in\n%s", list, once)
		}
		if diff := cmp.Diff(string(once), string(twice)); diff != "" {
			t.Errorf("formatting twice differs: %s", diff)
		}
	})
}

// TestCanonical holds that the library and the examples are in the canonical
// layout.
func TestCanonical(t *testing.T) {
	for _, pattern := range []string{"../std/*.pp", "../../examples/*/*.pp"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal("no files for", pattern, err)
		}
		for _, name := range files {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got, list := Format(name, src)
			if diff := cmp.Diff(string(src), string(got)); diff != "" || list.HasErrors() {
				t.Errorf("%s: %v %s", name, list, diff)
			}
		}
	}
}

// TestGrammarPage holds that docs/grammar.ebnf is what the parser says.
func TestGrammarPage(t *testing.T) {
	const page = "../../docs/grammar.ebnf"
	if *update {
		if err := os.WriteFile(page, []byte(Grammar()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Grammar(), string(got)); diff != "" {
		t.Errorf("run go test ./frontend/syntax -update: %s", diff)
	}
}

// TestDepth holds that deep nesting is refused instead of exhausting the
// stack.
func TestDepth(t *testing.T) {
	for name, src := range map[string]string{
		"brackets": "const x = " + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000),
		"choices":  "const x = " + strings.Repeat("1 if a else ", 100_000) + "1",
		"blocks":   "cell A { construct(x) {" + strings.Repeat("if a {", 100_000) + "}",
		"else":     "cell A { construct(x) { if a {}" + strings.Repeat(" else if a {}", 100_000) + " } }",
		"open":     strings.Repeat("[{(", 100_000),
	} {
		_, list := Parse("deep.pp", []byte(src))
		if !list.HasErrors() || name != "open" && list[0].Code != diag.TooDeep {
			t.Errorf("%s: %v", name, list)
		}
	}
	if _, list := Parse("ok.pp", []byte("const x = "+strings.Repeat("(", MaxDepth-10)+"1"+strings.Repeat(")", MaxDepth-10))); list.HasErrors() {
		t.Error(list)
	}
	if _, list := Parse("big.pp", make([]byte, MaxFile+1)); len(list) != 1 || list[0].Code != diag.FileTooLarge {
		t.Error(list)
	}
}
