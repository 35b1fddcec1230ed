package data

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// While a file is written nothing of it is in the folder that a killed process could leave there, and nothing stays if it fails.
func TestUnnamed(t *testing.T) {
	dir := t.TempDir()
	full := errors.New("no room")
	for _, fails := range []error{nil, full, nil} {
		var seen []os.DirEntry
		err := ReplaceFile(t.Context(), filepath.Join(dir, "file"), func(w io.Writer) error {
			_, err := w.Write(make([]byte, 1<<20))
			if err == nil {
				seen, err = os.ReadDir(dir)
			}
			return errors.Join(err, fails)
		})
		if (err == nil) != (fails == nil) {
			t.Fatal(err)
		}
		left, _ := os.ReadDir(dir)
		for _, e := range append(seen, left...) {
			if e.Name() != "file" {
				t.Errorf("there is %s", e.Name())
			}
		}
		if len(left) != 1 {
			t.Errorf("%d files are left", len(left))
		}
	}
}
