package ppc

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/ppc-lang/ppc/diag"
)

// TestWrongInput holds what a user sees for each kind of wrong model: testdata/wrong/CASE.txtar has the model and the
// rendered diagnostics. Wrong files and command lines are in cmd/ppc/testdata/script.
func TestWrongInput(t *testing.T) {
	names, err := filepath.Glob("testdata/wrong/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatal("no cases", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			o := goldenOptions(t, string(archive.Comment))
			o.File, o.Source = archive.Files[0].Name, archive.Files[0].Data
			_, err = Compile(context.Background(), o)
			if err == nil {
				t.Fatal("the model compiles")
			}
			list := Diagnostics(err)
			var b strings.Builder
			diag.Render(&b, list, func(file string) ([]byte, bool) { return o.Source, file == o.File })
			for _, d := range list {
				if d.Code == diag.CompilerFault {
					t.Errorf("a fault, not a diagnostic: %s", d.Message)
				}
			}
			compareSection(t, name, archive, "diagnostics", b.String())
		})
	}
}
