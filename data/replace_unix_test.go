//go:build unix

package data

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestReplaceFile holds what writing leaves of the thing that had the name before.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := ReplaceFile(t.Context(), filepath.Join(dir, name), func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
			t.Fatal(err)
		}
	}
	kind := func(name string) os.FileMode {
		t.Helper()
		st, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode()
	}
	holds := func(name, text string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}

	write("file", "1")
	if err := os.Chmod(filepath.Join(dir, "file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "file", "chain": "link", "dangling": "nothing"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"link", "chain", "dangling"} {
		write(link, link)
		holds(link, link)
		if kind(link)&os.ModeSymlink == 0 {
			t.Errorf("the link %s became %v", link, kind(link))
		}
	}
	holds("file", "chain")
	holds("nothing", "dangling")
	if kind("file") != 0o600 {
		t.Errorf("the mode of a file became %v", kind("file"))
	}

	// A pipe stands for all devices: what reads from it gets the text, and it stays what it is.
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		b, _ := os.ReadFile(pipe)
		read <- string(b)
	}()
	write("pipe", "through")
	if got := <-read; got != "through" {
		t.Errorf("the reader of the pipe got %q", got)
	}
	if kind("pipe")&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe became %v", kind("pipe"))
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
