package ir_test

import (
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/ppc-lang/ppc/ir"
)

// roundTrip holds that parsing ends, that what parses prints as a text that parses to the same, and that the verifier
// takes anything that parses.
func roundTrip(t *testing.T, text string) (parsed bool) {
	t.Helper()
	m, err := ir.Parse(text)
	if err != nil {
		return false
	}
	for _, phase := range []ir.Phase{ir.Elaborated, ir.Joint, ir.Cut} {
		m.Verify(phase) // an error is fine, a panic is not
	}
	once := m.String()
	n, err := ir.Parse(once)
	if err != nil {
		t.Fatalf("the printed form does not parse: %v\n%s", err, once)
	}
	if twice := n.String(); twice != once {
		t.Fatalf("printed %q, then %q", once, twice)
	}
	return true
}

// seeds are the modules of the goldens.
func seeds(t testing.TB) (texts []string) {
	names, err := filepath.Glob("../testdata/golden/*/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatal("no seeds", err)
	}
	for _, name := range names {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range archive.Files {
			if file.Name == "ir" {
				texts = append(texts, string(file.Data))
			}
		}
	}
	return append(texts, "module m\nparam @w : f32[2,2] = uniform(0.5)\nfunc @f(%x: f32[1,2]) -> (f32[1,2]) {\n  %1 = matmul %x, @w : f32[1,2]\n  return %1\n}\n",
		"module m\nfunc @f() -> () {\n  return\n}\n")
}

func FuzzParse(f *testing.F) {
	for _, text := range seeds(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { roundTrip(t, text) })
}

// Every word of the seeds is replaced, one at a time, by values that do not belong there.
func TestParseDamaged(t *testing.T) {
	word := regexp.MustCompile(`[%@!]?-?[A-Za-z0-9_.#]+|[][(){}=,:]`)
	values := []string{"", "-1", "0", "99999999999999999999", "%1", "%2", "%x", "@w", "f32[]", "f32[4,4]", "i32[1099511627776,64]", "!W=1", "nan", "1e400", "\"", "\x00", "add", "call", "inf"}
	for _, text := range seeds(t) {
		if !roundTrip(t, text) {
			t.Fatalf("a seed does not parse:\n%s", text)
		}
		for k, at := range word.FindAllStringIndex(text, -1) {
			for i := range 4 {
				w := values[(4*k+i)%len(values)]
				roundTrip(t, text[:at[0]]+w+text[at[1]:])
			}
		}
	}
}
