package checkpoint

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
)

// write stores a checkpoint with one parameter, its state and a buffer.
func write(t *testing.T, s *Store, step int) {
	t.Helper()
	f, err := s.Write(step, "stage-0.safetensors", sampleTensors, sampleElements(step))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(sampleIndex(step, f)); err != nil {
		t.Fatal(err)
	}
}

var sampleTensors = []data.Tensor{
	{Name: "w", DType: data.F32, Shape: []int{2, 3}}, {Name: "optimizer.m.w", DType: data.F32, Shape: []int{2, 3}}, {Name: "buffer.seen", DType: data.U8, Shape: []int{}},
}

func sampleElements(step int) func(int) ([]byte, error) {
	return func(i int) ([]byte, error) { return slices.Repeat([]byte{byte(step)}, []int{24, 24, 1}[i]), nil }
}

func sampleIndex(step int, f File) *Index {
	return &Index{
		Model: "net", Step: step, Updates: step, Optimizer: Optimizer{Name: "Momentum", States: []string{"m"}}, Files: []File{f},
		Parameters: []Entry{{Name: "w", DType: "f32", Shape: []int{2, 3}, File: f.Name, Trained: true}},
		Buffers:    []Entry{{Name: "seen", DType: "u8", Shape: []int{}, File: f.Name}},
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func TestStore(t *testing.T) {
	s := &Store{Dir: filepath.Join(t.TempDir(), "a", "b"), Keep: 2}
	if err := s.Prepare(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{9, 10, 100} {
		write(t, s, step)
	}
	if got := names(t, s.Dir); !slices.Equal(got, []string{"step-10", "step-100"}) {
		t.Errorf("the folder holds %v", got)
	}
	c, err := Find(s.Dir, nil)
	if err != nil || c.Step != 100 || c.Path != s.Path(100) {
		t.Fatal(c, err)
	}
	defer c.Close()
	a, err := c.Read("optimizer.m.w")
	if err != nil || len(a.Data) != 24 || a.Data[7] != 100 {
		t.Error(a, err)
	}
	if _, err := c.Read("x"); err == nil {
		t.Error("a tensor that is not there is read")
	}
	one, err := Find(s.Path(10), nil)
	if err != nil || one.Step != 10 {
		t.Error(one, err)
	}
	one.Close()

	// Leftovers of a run that was killed go; what belongs to nobody stays.
	for _, n := range []string{".step-7.part", ".step-8.old", ".step-x", "step-07", "notes"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, n, "x"), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Clean(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, s.Dir); !slices.Equal(got, []string{".step-x", "notes", "step-07", "step-10", "step-100"}) {
		t.Errorf("the folder holds %v", got)
	}
	if steps, err := Steps(s.Dir); !slices.Equal(steps, []int{100, 10}) {
		t.Error(steps, err)
	}
}

// A damaged checkpoint takes its name back when it is written again.
func TestReplaceDamaged(t *testing.T) {
	s := &Store{Dir: t.TempDir(), Keep: 1}
	write(t, s, 1)
	write(t, s, 2)
	if err := os.Remove(filepath.Join(s.Path(2), indexName)); err != nil {
		t.Fatal(err)
	}
	write(t, s, 2)
	c, err := Open(s.Path(2))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got := names(t, s.Dir); !slices.Equal(got, []string{"step-2"}) {
		t.Errorf("the folder holds %v", got)
	}
}

// change edits the index of a checkpoint.
func change(f func(map[string]any)) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(path, indexName))
		if err != nil {
			t.Fatal(err)
		}
		var x map[string]any
		if err := json.Unmarshal(text, &x); err != nil {
			t.Fatal(err)
		}
		f(x)
		if text, err = json.Marshal(x); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, indexName), text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func first(x map[string]any, list string) map[string]any {
	return x[list].([]any)[0].(map[string]any)
}

func edit(name string, f func([]byte) []byte) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(path, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, name), f(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever is wrong with a checkpoint, the one before is found and the notice says why; without one before, that is the error.
func TestDamaged(t *testing.T) {
	const file = "stage-0.safetensors"
	tests := []struct {
		name   string
		damage func(t *testing.T, path string)
		wrong  string
	}{
		{"no index", func(t *testing.T, path string) { os.Remove(filepath.Join(path, indexName)) }, "incomplete"},
		{"no file", func(t *testing.T, path string) { os.Remove(filepath.Join(path, file)) }, "missing"},
		{"empty", func(t *testing.T, path string) { os.RemoveAll(path); os.Mkdir(path, 0o777) }, "incomplete"},
		{"short", edit(file, func(b []byte) []byte { return b[:len(b)-1] }), "does not have the"},
		{"long", edit(file, func(b []byte) []byte { return append(b, 0) }), "does not have the"},
		{"flipped", edit(file, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), "hashes differ"},
		{"cut index", edit(indexName, func(b []byte) []byte { return b[:len(b)/2] }), "no index of a checkpoint"},
		{"other format", change(func(x map[string]any) { x["format"] = "other" }), "no index of a checkpoint"},
		{"other version", change(func(x map[string]any) { x["version"] = 2 }), "version 2 of the format"},
		{"counts", change(func(x map[string]any) { x["updates"] = 99 }), "99 updates in 2 steps"},
		{"outside", change(func(x map[string]any) { first(x, "files")["name"] = "../step-1/" + file }), "names the file"},
		{"parent", change(func(x map[string]any) { first(x, "files")["name"] = ".." }), "names the file"},
		{"twice", change(func(x map[string]any) { x["files"] = append(x["files"].([]any), first(x, "files")) }), "names the file"},
		{"lacks", change(func(x map[string]any) { first(x, "parameters")["name"] = "v" }), `no tensor "v"`},
		{"shape", change(func(x map[string]any) { first(x, "parameters")["shape"] = []int{3, 2} }), "its index says f32[3 2]"},
		{"type", change(func(x map[string]any) { first(x, "buffers")["dtype"] = "i32" }), "its index says i32[]"},
		{"unnamed", change(func(x map[string]any) { x["buffers"] = []any{} }), "1 tensors that its index does not name"},
		{"untrained", change(func(x map[string]any) { first(x, "parameters")["trained"] = false }), "1 tensors that its index does not name"},
		{"repeated", change(func(x map[string]any) {
			x["parameters"] = append(x["parameters"].([]any), first(x, "parameters"))
		}), `"w" twice`},
	}
	for _, c := range tests {
		s := &Store{Dir: t.TempDir()}
		write(t, s, 1)
		write(t, s, 2)
		c.damage(t, s.Path(2))
		var notices []string
		found, err := Find(s.Dir, func(n string) { notices = append(notices, n) })
		if err != nil || found.Step != 1 || len(notices) != 1 || !strings.Contains(notices[0], c.wrong) || !strings.Contains(notices[0], "step-2") {
			t.Errorf("%s: %v, %v, want %q", c.name, notices, err, c.wrong)
		}
		if found != nil {
			found.Close()
		}
		if err := os.RemoveAll(s.Path(1)); err != nil {
			t.Fatal(err)
		}
		_, err = Find(s.Dir, nil)
		var d diag.Diagnostic
		if !errors.As(err, &d) || d.Code != diag.BadCheckpoint || !strings.Contains(d.Message, c.wrong) {
			t.Errorf("%s: %v, want %q", c.name, err, c.wrong)
		}
	}
	// One that cannot be read may be whole: nothing is skipped.
	s := &Store{Dir: t.TempDir()}
	write(t, s, 1)
	write(t, s, 2)
	if err := errors.Join(os.Remove(filepath.Join(s.Path(2), indexName)), os.Mkdir(filepath.Join(s.Path(2), indexName), 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{s.Dir, t.TempDir(), "nowhere"} {
		var d diag.Diagnostic
		if _, err := Find(dir, nil); !errors.As(err, &d) || d.Code != diag.CannotRead {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// What a writer reports comes back as it is, and nothing has the name of a checkpoint.
func TestWriterFails(t *testing.T) {
	s := &Store{Dir: t.TempDir()}
	stop := errors.New("stop")
	if _, err := s.Write(1, "a", sampleTensors, func(int) ([]byte, error) { return nil, stop }); err != stop {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, ".step-2.part"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	var d diag.Diagnostic
	if _, err := s.Write(2, "a", sampleTensors, sampleElements(2)); !errors.As(err, &d) || d.Code != diag.CannotWrite {
		t.Error(err)
	}
	if steps, err := Steps(s.Dir); len(steps) != 0 || err != nil {
		t.Error(steps, err)
	}
	if err := s.Clean(); err != nil || len(names(t, s.Dir)) != 0 {
		t.Error(err, names(t, s.Dir))
	}
}

// No index makes Open fail in another way than by an error, and what it opens can be read.
func TestDamagedIndex(t *testing.T) {
	s := &Store{Dir: t.TempDir()}
	write(t, s, 1)
	name := filepath.Join(s.Path(1), indexName)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for at := range text {
		for _, b := range []byte(`0-"x`) {
			damaged := slices.Clone(text)
			damaged[at] = b
			if err := os.WriteFile(name, damaged, 0o666); err != nil {
				t.Fatal(err)
			}
			c, err := Open(s.Path(1))
			if err != nil {
				var d diag.Diagnostic
				if !errors.As(err, &d) {
					t.Fatalf("byte %d is %q: %v", at, b, err)
				}
				refused++
				continue
			}
			for _, e := range c.Parameters {
				if a, err := c.Read(e.Name); err != nil || !slices.Equal(a.Shape, e.Shape) {
					t.Fatalf("byte %d is %q: %v", at, b, err)
				}
			}
			c.Close()
		}
	}
	if refused < 2*len(text) {
		t.Errorf("only %d of %d are refused", refused, 4*len(text))
	}
}

// What has the name of a checkpoint and is no folder is none: it is neither found nor counted among those that stay, and a run does
// not begin that might have to put one in its place.
func TestFilesAreNoCheckpoints(t *testing.T) {
	s := &Store{Dir: t.TempDir(), Keep: 2}
	for step := 1; step <= 3; step++ {
		write(t, s, step)
		if step == 1 {
			if err := os.WriteFile(s.Path(8), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.Path(0), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := names(t, s.Dir); !slices.Equal(got, []string{"step-0", "step-2", "step-3", "step-8"}) {
		t.Errorf("there are %v", got)
	}
	c, err := Find(s.Dir, func(text string) { t.Error(text) })
	if err != nil {
		t.Fatal(err)
	}
	if c.Close(); c.Step != 3 {
		t.Errorf("step %d is found", c.Step)
	}
	if err := s.Prepare(); err == nil || !strings.Contains(err.Error(), "step-8: error E1002: cannot write the checkpoint: it is no folder") {
		t.Error(err)
	}
	if err := os.Symlink(s.Path(3), filepath.Join(s.Dir, "step-9")); err != nil {
		t.Fatal(err)
	}
	if steps, err := Steps(s.Dir); err != nil || !slices.Equal(steps, []int{9, 3, 2}) {
		t.Error(steps, err)
	}
}
