package ppc

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/ppc-lang/ppc"

// mayImport lists, for each part of the tree, which other parts it may import. A part is the longest prefix that has a
// row. The standard library and internal details of a part are free.
var mayImport = map[string][]string{
	"diag":                    {},
	"data":                    {"diag"},
	"ir":                      {"diag"},
	"ir/interp":               {"diag", "ir"},
	"plan":                    {"diag", "ir"},
	"frontend":                {"diag", "ir", "plan"},
	"passes":                  {"diag", "ir", "plan"},
	"codegen/ascend":          {"diag", "ir", "plan", "codegen/ascend/emulator"},
	"codegen/ascend/emulator": {}, // headers and what builds on them: a leaf
	"runtime":                 {"diag", "ir", "plan", "data", "runtime/device", "runtime/transport"},
	"runtime/transport":       {},
	"runtime/device":          {"diag", "ir", "plan", "codegen/ascend/emulator"},
	"verify":                  {"diag", "ir", "plan", "runtime", "runtime/device"},
	"":                        {"diag", "ir", "plan", "data", "frontend", "passes", "codegen/ascend", "codegen/ascend/emulator", "runtime", "runtime/device"},
	"cmd/ppc":                 {"", "diag", "ir", "plan", "data", "frontend", "passes", "runtime", "runtime/device", "runtime/transport", "verify"},
	"internal/modelgen":       {"data"},
	"internal/faults":         {},
}

// libraries lists who may import what from elsewhere.
var libraries = map[string][]string{
	"github.com/alecthomas/participle/v2": {"frontend"},
	"gopkg.in/yaml.v3":                    {"plan"},
	"gonum.org/v1/gonum":                  {"passes", "frontend", "bench"},
	"github.com/urfave/cli/v3":            {"cmd/ppc"},
	"golang.org/x/sys":                    {"data", "runtime/device", "runtime/transport", "codegen/ascend/emulator", "internal/faults"},
	"github.com/ebitengine/purego":        {"runtime/transport"},
}

// part is the row of mayImport a folder belongs to.
func part(dir string) (string, bool) {
	for {
		if _, ok := mayImport[dir]; ok {
			return dir, true
		}
		if !strings.Contains(dir, "/") {
			return "", false
		}
		dir = filepath.ToSlash(filepath.Dir(dir))
	}
}

// TestImports holds the direction of imports and where libraries are used.
func TestImports(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." {
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || name == "bench" {
				return filepath.SkipDir // nested modules, and bench, which may measure anything
			}
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		if dir == "." {
			dir = ""
		}
		from, ok := part(dir)
		if !ok {
			t.Errorf("%s: the folder has no row in mayImport", name)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		files++
		for _, spec := range f.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if rest, own := strings.CutPrefix(path, module); own {
				to, ok := part(strings.TrimPrefix(rest, "/"))
				if !ok || to != from && !slices.Contains(mayImport[from], to) {
					t.Errorf("%s imports %s, which it may not", name, path)
				}
				continue
			}
			first, _, _ := strings.Cut(path, "/")
			if !strings.Contains(first, ".") {
				continue
			}
			allowed := false
			for lib, parts := range libraries {
				if path == lib || strings.HasPrefix(path, lib+"/") {
					allowed = slices.Contains(parts, from)
				}
			}
			if !allowed {
				t.Errorf("%s imports %s, which is not for it", name, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Errorf("only %d files were looked at", files)
	}
}

// TestRequirements holds that a program that imports ppc takes over a short list of modules.
func TestRequirements(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{
		"github.com/alecthomas/participle/v2": true, "github.com/google/go-cmp": true, "github.com/rogpeppe/go-internal": true,
		"github.com/urfave/cli/v3": true, "github.com/ebitengine/purego": true, "golang.org/x/sys": true, "golang.org/x/tools": true, "gonum.org/v1/gonum": true,
		"gopkg.in/yaml.v3": true, "pgregory.net/rapid": true,
	}
	_, body, _ := strings.Cut(string(text), "require (")
	body, _, _ = strings.Cut(body, ")")
	n := 0
	for line := range strings.Lines(body) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		n++
		if !want[fields[0]] {
			t.Errorf("go.mod requires %s; the list is %v", fields[0], slices.Sorted(maps.Keys(want)))
		}
	}
	if n == 0 || strings.Contains(string(text), "\nreplace ") {
		t.Errorf("go.mod has %d requirements, or replaces one", n)
	}
}
