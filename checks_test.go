package ppc

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
)

const checksPage = "docs/checks.md"

// What docs/checks.md says of each check that is no error.
var (
	works         = []int{10, 13, 14, 21, 22, 23, 24, 27}
	notApplicable = []int{12, 26}
)

// TestChecksPage holds that docs/checks.md goes through all checks and that each of its examples does what it says: one
// with a code is refused with errors of this code, one without compiles and trains like the unsplit program.
func TestChecksPage(t *testing.T) {
	text, err := os.ReadFile(checksPage)
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile(`^## C([0-9]+): `)
	line, n := 0, 0
	for _, section := range strings.SplitAfter(string(text), "\n\n## ") {
		start := line
		line += strings.Count(section, "\n")
		m := heading.FindStringSubmatch("## " + section)
		if m == nil {
			continue
		}
		n++
		if m[1] != strconv.Itoa(n) {
			t.Fatalf("%s:%d: C%s where C%d belongs", checksPage, start, m[1], n)
		}
		status := "**Error.**"
		switch {
		case slices.Contains(works, n):
			status = "**Works.**"
		case slices.Contains(notApplicable, n):
			status = "**Not applicable.**"
		}
		good, bad := strings.Count(section, "\n```pp\n"), strings.Count(section, "\n```pp E")
		if !strings.Contains(section, status) || status == "**Error.**" && bad == 0 || status == "**Works.**" && good == 0 {
			t.Errorf("C%d: status %s, with %d examples that work and %d that do not", n, status, good, bad)
		}
	}
	if n != 32 {
		t.Errorf("%d checks", n)
	}
	for _, b := range blocks(t) {
		if b.page != checksPage {
			continue
		}
		t.Run(fmt.Sprintf("line %d", b.line), func(t *testing.T) {
			code, refused := strings.CutPrefix(b.kind, "pp ")
			o := exampleOptions(t, b)
			r, err := Compile(context.Background(), o)
			if !refused {
				if err != nil {
					t.Fatal(Diagnostics(err))
				}
				equalsUnsplit(t, o, r.Plan)
				return
			}
			if err == nil {
				t.Fatalf("it compiles; %s was promised", code)
			}
			for _, d := range Diagnostics(err) {
				if d.Severity == diag.Error && string(d.Code) != code {
					t.Errorf("%v; %s was promised", d, code)
				}
			}
		})
	}
}

// exampleOptions reads the flags in the first line of an example.
func exampleOptions(t *testing.T, b block) Options {
	t.Helper()
	o := Options{File: b.page, Source: []byte(strings.Join(b.lines, "\n") + "\n")}
	flags, ok := strings.CutPrefix(b.lines[0], "// -")
	if !ok {
		return o
	}
	name, value, _ := strings.Cut(flags, " ")
	n, err := strconv.Atoi(value)
	switch {
	case err != nil:
		t.Fatalf("flag -%s %s", name, value)
	case name == "stages":
		o.Stages = n
	case name == "micro":
		o.Micro = n
	default:
		t.Fatalf("flag -%s", name)
	}
	return o
}

// equalsUnsplit trains a compiled example, if it has data, and its unsplit form.
func equalsUnsplit(t *testing.T, o Options, p *plan.Plan) {
	t.Helper()
	if q := p.Programs[0]; !q.Train || q.Dataset == nil {
		return
	}
	if p.NumStages < 2 {
		t.Error("an example of one stage shows nothing")
	}
	file := rowsFor(t, p)
	o.Unsplit = true
	one, err := Compile(context.Background(), o)
	if err != nil {
		t.Fatal(Diagnostics(err))
	}
	run := runtime.Options{DataPath: file, Epochs: 3}
	if a, b := train(t, p, run), train(t, one.Plan, run); !a.equal(b) || len(a.Losses) != 3 {
		t.Errorf("losses %v, unsplit %v", a.Losses, b.Losses)
	}
}

// rowsFor stores a batch of rows for the inputs of a plan: numbers around 0, and whole numbers from 0 to 3.
func rowsFor(t *testing.T, p *plan.Plan) string {
	t.Helper()
	file := t.TempDir() + "/data.npz"
	var arrays []data.Array
	for _, in := range p.Programs[0].Inputs {
		n := in.Type.Elems()
		switch in.Type.DType {
		case ir.F32:
			x := make([]float32, n)
			for i := range x {
				x[i] = float32((i*7+len(arrays)*3)%11)/11 - 0.5
			}
			arrays = append(arrays, data.NewFloat32(in.Name, in.Type.Shape, x))
		case ir.I32:
			a := data.Array{Name: in.Name, DType: data.I32, Shape: in.Type.Shape}
			for i := range n {
				a.Data = binary.LittleEndian.AppendUint32(a.Data, uint32((i*5+len(arrays))%4))
			}
			arrays = append(arrays, a)
		case ir.Bool:
			a := data.Array{Name: in.Name, DType: data.U8, Shape: in.Type.Shape}
			for i := range n {
				a.Data = append(a.Data, byte(i*5/3%2))
			}
			arrays = append(arrays, a)
		default:
			t.Fatalf("no data for %s", in.Type)
		}
	}
	if err := data.WriteNPZ(file, arrays); err != nil {
		t.Fatal(err)
	}
	return file
}
