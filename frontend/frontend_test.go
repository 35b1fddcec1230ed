package frontend_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

var update = flag.Bool("update", false, "rewrite the golden sections")

// options reads "stages=2 micro=4 set:n=3 block=b unsplit".
func options(t *testing.T, text string) frontend.Options {
	t.Helper()
	var o frontend.Options
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(value)
		switch {
		case key == "stages" && err == nil:
			o.Stages = n
		case key == "micro" && err == nil:
			o.Micro = n
		case key == "block":
			o.Block = value
		case key == "unsplit":
			o.Unsplit = true
		case strings.HasPrefix(key, "set:"):
			if o.Set == nil {
				o.Set = map[string]string{}
			}
			o.Set[strings.TrimPrefix(key, "set:")] = value
		default:
			t.Fatalf("unknown option %q", word)
		}
	}
	return o
}

// scalarTexts prints scalars with their schedules.
func scalarTexts(list []plan.Scalar) (out []string) {
	for _, s := range list {
		text := fmt.Sprintf("{%s %v}", s.Name, s.Value)
		if s.Schedule != nil {
			var b strings.Builder
			s.Schedule.Describe(&b)
			text = fmt.Sprintf("{%s %s}", s.Name, b.String())
		}
		out = append(out, text)
	}
	return out
}

var (
	wantComment = regexp.MustCompile(`// want (.*)$`)
	wantPattern = regexp.MustCompile("`([^`]*)`")
)

// TestErrors runs the chunks of testdata/errors/*.pp, which are separated by
// lines of dashes. Each diagnostic must match a pattern in the "// want"
// comment of its line, as "code: message; repair", and each pattern must be
// met. A chunk may start with "// options: ...".
func TestErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.pp")
	if err != nil || len(files) == 0 {
		t.Fatal("no error files", err)
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		line := 0
		for i, chunk := range strings.Split(string(src), "-----\n") {
			padded := strings.Repeat("\n", line) + chunk
			line += strings.Count(chunk, "\n") + 1
			t.Run(fmt.Sprintf("%s/%d", strings.TrimSuffix(filepath.Base(name), ".pp"), i), func(t *testing.T) {
				checkChunk(t, filepath.Base(name), padded)
			})
		}
	}
}

func checkChunk(t *testing.T, name, src string) {
	var opts frontend.Options
	first, _, _ := strings.Cut(strings.TrimLeft(src, "\n"), "\n")
	if text, ok := strings.CutPrefix(first, "// options: "); ok {
		text, _, _ = strings.Cut(text, "//")
		opts = options(t, text)
	}
	start := 1 + len(src) - len(strings.TrimLeft(src, "\n")) // a diagnostic without a line belongs there
	want := map[int][]*regexp.Regexp{}
	for i, text := range strings.Split(src, "\n") {
		if m := wantComment.FindStringSubmatch(text); m != nil {
			for _, p := range wantPattern.FindAllStringSubmatch(m[1], -1) {
				want[i+1] = append(want[i+1], regexp.MustCompile(p[1]))
			}
		}
	}
	if len(want) == 0 {
		t.Error("the chunk wants no error")
	}
	spec, list := frontend.Load(name, []byte(src), opts)
	if spec != nil {
		t.Error("a spec was returned together with errors")
	}
	for _, d := range list.Sorted() {
		text := fmt.Sprintf("%s: %s; %s", d.Code, d.Message, d.Repair)
		at := d.Range.Line
		if at == 0 {
			at = start
		}
		met := false
		for i, p := range want[at] {
			if p.MatchString(text) {
				want[at] = append(want[at][:i:i], want[at][i+1:]...)
				met = true
				break
			}
		}
		if !met {
			t.Errorf("unexpected: %s:%d:%d: %s", name, d.Range.Line, d.Range.Col, text)
		}
		if strings.Contains(text, "frontend.") || strings.Contains(text, "%!") {
			t.Errorf("the text shows its origin: %s", text)
		}
	}
	for n, patterns := range want {
		for _, p := range patterns {
			t.Errorf("%s:%d: no diagnostic matches %q", name, n, p)
		}
	}
}

// describe writes what is to be compared of a spec.
func describe(s *plan.Spec) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: entry %s, %d micro-batches, %d stages, marked %t, interleave %t, schedule %q, reduction %s, lazy_inline %q, epochs %d, seed %d\n",
		s.Kind, s.Name, s.Entry.Name, s.MicroBatches, s.Stages, s.Marked, s.Interleave, s.Schedule, s.Reduction, s.LazyInline, s.Epochs, s.Seed)
	for _, in := range s.Inputs {
		fmt.Fprintf(&b, "input %s %s whole %t\n", in.Name, in.Type, in.Whole)
	}
	for _, r := range s.Results {
		fmt.Fprintf(&b, "result %s ratio %t\n", r.Name, r.Ratio)
	}
	if o := s.Optimizer; o != nil {
		fmt.Fprintf(&b, "optimizer %s by %s, states %v, scalars %v\n", o.Name, o.Func.Name, o.States, scalarTexts(o.Scalars))
		for _, g := range o.Groups {
			fmt.Fprintf(&b, "  group %v: %v\n", g.Params, scalarTexts(g.Scalars))
		}
	}
	if d := s.Dataset; d != nil {
		fmt.Fprintf(&b, "dataset %s %q env %q split %q columns %v\n", d.Source, d.Path, d.Env, d.Split, d.Columns)
		for _, step := range d.Steps {
			fmt.Fprintf(&b, "  %s %v %q on %q\n", step.Name, step.Args, step.Text, step.On)
		}
	}
	for _, e := range s.Evals {
		b.WriteString(describe(e))
		if e.Rest != nil {
			b.WriteString("rest: " + describe(e.Rest))
		}
	}
	return b.String()
}

// TestElaborate compares the spec and the IR of testdata/golden/*.txtar: the
// comment may hold "options: ...", the first file is the source, further .pp
// files can be imported.
func TestElaborate(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no goldens", err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var opts frontend.Options
			if _, text, ok := strings.Cut(string(archive.Comment), "options: "); ok {
				opts = options(t, text)
			}
			sources := map[string][]byte{}
			var sections []txtar.File
			for _, f := range archive.Files {
				if strings.HasSuffix(f.Name, ".pp") {
					sources[f.Name] = f.Data
					sections = append(sections, f)
				}
			}
			main := archive.Files[0]
			if link, ok := strings.CutPrefix(strings.TrimSpace(string(main.Data)), "file "); ok {
				if main.Data, err = os.ReadFile(link); err != nil {
					t.Fatal(err)
				}
			}
			opts.Read = func(name string) ([]byte, error) {
				if src, ok := sources[name]; ok {
					return src, nil
				}
				return nil, os.ErrNotExist
			}
			spec, list := frontend.Load(main.Name, main.Data, opts)
			if len(list) > 0 {
				t.Fatal(list)
			}
			if err := spec.Module.Verify(ir.Elaborated); err != nil {
				t.Error(err)
			}
			got := []txtar.File{{Name: "spec", Data: []byte(describe(spec))}, {Name: "ir", Data: []byte(spec.Module.String())}}
			if *update {
				archive.Files = append(sections, got...)
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(archive.Files) != len(sections)+len(got) {
				t.Fatal("the golden has other sections; run with -update")
			}
			for i, section := range archive.Files[len(sections):] {
				if diff := cmp.Diff(string(section.Data), string(got[i].Data)); diff != "" {
					t.Errorf("%s: %s", section.Name, diff)
				}
			}
			again, err := ir.Parse(spec.Module.String())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(spec.Module.String(), again.String()); diff != "" {
				t.Errorf("the text does not read back: %s", diff)
			}
		})
	}
}

// TestSecondNames holds that a second name in the same cell shares a parameter, a buffer's cell, a cell or a list of cells:
// each is declared once, under its first name.
func TestSecondNames(t *testing.T) {
	const source = `cell Scale {
    param w: f32[4] = ones()
    buffer n: i32[1] = zeros()
    also = w
    construct(x) {
        n = n + 1
        return x * w + also
    }
}
cell Net {
    for i in 0..2 { fc[i] = Dense(4, 4) }
    scale = Scale()
    same  = fc
    one   = fc[0]
    pair  = [fc[1], one]
    twin  = scale
    tail  = Sequential([one, twin])
    construct(x) {
        for f in fc + same + pair { x = f(x) }
        return tail(twin(scale(one(x))))
    }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]; input y: f32[8, 4]; stage_config = { fc[0]: 0, scale: 0 }
}`
	spec, list := frontend.Load("t.pp", []byte(source), frontend.Options{})
	if len(list) > 0 {
		t.Fatal(list)
	}
	var names []string
	for _, p := range spec.Module.Params {
		names = append(names, p.Name)
	}
	want := []string{"fc.0.weight", "fc.0.bias", "fc.1.weight", "fc.1.bias", "scale.w"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if len(spec.Buffers) != 1 || spec.Buffers[0].Name != "scale.n" {
		t.Errorf("the buffers are %v", spec.Buffers)
	}
}

// TestSameTwice holds that elaboration is deterministic.
func TestSameTwice(t *testing.T) {
	src, err := os.ReadFile("../examples/mnist/mnist.pp")
	if err != nil {
		t.Fatal(err)
	}
	first := ""
	for range 5 {
		spec, list := frontend.Load("mnist.pp", src, frontend.Options{})
		if list.HasErrors() {
			t.Fatal(list)
		}
		text := describe(spec) + spec.Module.String()
		if first == "" {
			first = text
		} else if diff := cmp.Diff(first, text); diff != "" {
			t.Fatal(diff)
		}
	}
}

// TestExamples holds that the examples check without a word.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../examples/*/*.pp")
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if list := frontend.Check(name, src, frontend.Options{}); len(list) > 0 {
			t.Errorf("%s: %v", name, list)
		}
	}
}

// TestCheckAll holds that Check looks at every block and reports each fault
// once.
func TestCheckAll(t *testing.T) {
	src := "cell N { construct(x) { return relu(y) } }\n" +
		"infer a { network = N(); input x: f32[2, 2] }\ninfer b { network = N(); input x: f32[2, 2]; seed = 1/2 }\n"
	list := frontend.Check("m.pp", []byte(src), frontend.Options{})
	var codes []diag.Code
	for _, d := range list {
		codes = append(codes, d.Code)
	}
	if diff := cmp.Diff([]diag.Code{diag.UnknownName, diag.NotWhole}, codes); diff != "" {
		t.Error(diff, list)
	}
}

// TestSeed holds what the options override.
func TestSeed(t *testing.T) {
	src := "cell N { construct(x) { return relu(x) } }\ninfer a { network = N(); input x: f32[4, 2]; seed = 7; micro_batch_num = 2 }\n"
	seed := uint32(9)
	spec, list := frontend.Load("m.pp", []byte(src), frontend.Options{Seed: &seed, Micro: 4})
	if list.HasErrors() {
		t.Fatal(list)
	}
	if spec.Seed != 9 || spec.MicroBatches != 4 || !spec.Entry.TypeOf(spec.Entry.Args[0]).Equal(ir.Tensor(ir.F32, 1, 2)) {
		t.Errorf("seed %d, %d micro-batches, %s", spec.Seed, spec.MicroBatches, spec.Entry)
	}
	if text, ok := frontend.Source("std/layers.pp"); !ok || len(text) == 0 {
		t.Error("the library has no source")
	}
}

func FuzzLoad(f *testing.F) {
	for _, pattern := range []string{"../examples/*/*.pp", "testdata/errors/*.pp"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range files {
			src, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			for _, chunk := range strings.Split(string(src), "-----\n") {
				f.Add(chunk)
			}
		}
	}
	f.Fuzz(func(t *testing.T, src string) {
		spec, list := frontend.Load("f.pp", []byte(src), frontend.Options{})
		if (spec == nil) != list.HasErrors() {
			t.Errorf("spec %v with %v", spec, list)
		}
		if spec != nil {
			if err := spec.Module.Verify(ir.Elaborated); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestUnused holds the warnings on what nothing uses; the spec is built all
// the same.
func TestUnused(t *testing.T) {
	src := `cell Net {
    used = Dense(2, 2)
    extra = Sequential([Dense(2, 2)])
    param w: f32[2] = zeros()
    construct(x) { return used(x) }
}
infer a { network = Net(); input x: f32[4, 2]; stage_config = { network: 0, "used*": 0 } }
`
	spec, list := frontend.Load("m.pp", []byte(src), frontend.Options{})
	if spec == nil || !spec.Marked {
		t.Fatal("no spec", list)
	}
	var got []string
	for _, d := range list.Sorted() {
		got = append(got, d.Error())
	}
	want := []string{
		"m.pp:3:13: warning W0201: the cell `extra` is never applied",
		"m.pp:4:11: warning W0201: the parameter `w` is never read",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestImports holds how imports are found and what is wrong with them.
func TestImports(t *testing.T) {
	files := map[string]string{
		"models/parts/a.pp": "import \"../b.pp\"\ncell A { b = B(); construct(x) { return b(x) } }\n",
		"models/b.pp":       "import \"main.pp\"\ncell B { construct(x) { return scale(x) } }\n",
		"models/bad.pp":     "cell C {\n",
		"models/again.pp":   "cell A { construct(x) { return x } }\n",
	}
	files["models/b.pp"] = strings.Replace(files["models/b.pp"], "scale(x)", "x * factor", 1)
	block := "const factor = 2\ninfer i { network = A(); input x: f32[2, 2] }\n"
	for _, c := range []struct{ imports, want string }{
		{`import "parts/a.pp"`, ""},
		{`import "parts/c.pp"`, `models/main.pp:1:8: error E0206: cannot read models/parts/c.pp: file does not exist`},
		{`import "main.pp"`, `models/main.pp:1:8: error E0206: models/main.pp imports itself`},
		{`import "bad.pp"`, `models/bad.pp:1:9: error E0102: "{" is not closed`},
		{"import \"parts/a.pp\"; import \"again.pp\"", `models/main.pp:1:29: error E0202: the import defines "A", which is defined already`},
	} {
		src := c.imports + "\n" + block
		spec, list := frontend.Load("models/main.pp", []byte(src), frontend.Options{Read: func(name string) ([]byte, error) {
			if name == "models/main.pp" {
				return []byte(src), nil
			}
			if text, ok := files[name]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}})
		got := ""
		if list.HasErrors() {
			got = list.Sorted()[0].Error()
		}
		if got != c.want || (spec == nil) != (c.want != "") {
			t.Errorf("%s: got %q, want %q", c.imports, got, c.want)
		}
	}
}

// TestRendered holds how two diagnostics with notes look: a key that matches
// no cell lists those there are, and a fault inside the library is shown at
// the call that led there.
func TestRendered(t *testing.T) {
	src := `cell Net {
    flatten = Flatten()
    layer1 = Dense(6, 4)
    construct(x) { return layer1(flatten(x)) }
}
infer a { network = Net(); input x: f32[4, 2, 3]; stage_config = { flaten: 0 } }
infer b { network = Net(); input x: f32[4, 2, 2] }
`
	list := frontend.Check("m.pp", []byte(src), frontend.Options{})
	var out strings.Builder
	if err := diag.Render(&out, list, func(file string) ([]byte, bool) {
		if file == "m.pp" {
			return []byte(src), true
		}
		return frontend.Source(file)
	}); err != nil {
		t.Fatal(err)
	}
	want := `m.pp:4:27: error E0402: ` + "`matmul`" + `: inner dimensions 4 and 6 differ in the product of f32[4,4] and f32[4,6]
    4 |     construct(x) { return layer1(flatten(x)) }
      |                           ^^^^^^^^^^^^^^^^^^
  note: m.pp:3:14: in the cell layer1
    3 |     layer1 = Dense(6, 4)
      |              ^^^^^^^^^^^
  note: std/layers.pp:10:13: in the library
   10 |         y = matmul(x, weight, transpose_b = true)
      |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
m.pp:6:68: error E0502: no cell "flaten" in the network
    6 | infer a { network = Net(); input x: f32[4, 2, 3]; stage_config = { flaten: 0 } }
      |                                                                    ^^^^^^
  note: the cells are flatten, layer1, network
  repair: did you mean "flatten"?
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestLanguagePage holds that the program in docs/language.md is one.
func TestLanguagePage(t *testing.T) {
	page, err := os.ReadFile("../docs/language.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(string(page), "```\n", 3)
	if len(parts) != 3 {
		t.Fatal("the page has no program")
	}
	if list := frontend.Check("language.pp", []byte(parts[1]), frontend.Options{}); len(list) > 0 {
		t.Error(list)
	}
}

// TestStagesOne holds that -stages 1 runs any marked program as one stage.
func TestStagesOne(t *testing.T) {
	src, err := os.ReadFile("../examples/mnist/mnist.pp")
	if err != nil {
		t.Fatal(err)
	}
	spec, list := frontend.Load("mnist.pp", src, frontend.Options{Stages: 1})
	if list.HasErrors() {
		t.Fatal(list)
	}
	if spec.Stages != 1 || spec.Marked || strings.Contains(spec.Module.String(), "!stage") {
		t.Errorf("%d stages, marked %t", spec.Stages, spec.Marked)
	}
}

// TestDifferentCells holds that the number of functions follows the number of different cells, not of layers, and that
// a cell which is elaborated by its likeness to another counts as applied.
func TestDifferentCells(t *testing.T) {
	src, err := os.ReadFile("../examples/gpt/tiny.pp")
	if err != nil {
		t.Fatal(err)
	}
	functions := func(layers string) int {
		spec, list := frontend.Load("tiny.pp", src, frontend.Options{Set: map[string]string{"layers": layers}})
		if len(list) > 0 {
			t.Fatal(list)
		}
		return len(spec.Module.Funcs)
	}
	if few, many := functions("2"), functions("40"); few != many {
		t.Errorf("2 layers make %d functions, 40 make %d", few, many)
	}
}

// Whoever wanted the program may leave while it is read, or while it is unrolled.
func TestDone(t *testing.T) {
	const source = "import \"b.pp\"\nconst n = 4000\ncell Net {\n    construct(x) {\n        for i in 0..n {\n            x = x + 1.0\n        }\n        return x\n    }\n}\n" +
		"train t {\n    network = Net()\n    loss = MSELoss()\n    optimizer = SGD(lr = 0.1)\n    input x: f32[4, 2]\n    input label: f32[4, 2]\n}\n"
	for _, leaves := range []string{"never", "at once", "when all is read"} {
		done := make(chan struct{})
		if leaves == "at once" {
			close(done)
		}
		spec, list := frontend.Load("m.pp", []byte(source), frontend.Options{Done: done, Read: func(string) ([]byte, error) {
			if leaves == "when all is read" {
				close(done) // the file that imports is read, and there is nothing in this one
			}
			return nil, nil
		}})
		if want := leaves != "never"; list.HasErrors() != want || want && (spec != nil || !strings.Contains(list.Err().Error(), "interrupted")) {
			t.Errorf("%s: %v", leaves, list)
		}
	}
}
