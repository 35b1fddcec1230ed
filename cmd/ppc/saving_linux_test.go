package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/internal/faults"
	"github.com/ppc-lang/ppc/ir"
)

// A pipe that nobody reads, or no more, keeps no run from ending: an interrupt is enough, and so is the end of another rank, while
// one writes what is larger than a pipe.
func TestPipesThatNobodyReads(t *testing.T) {
	pipe := func(t *testing.T) {
		if err := syscall.Mkfifo("pipe", 0o600); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(t *testing.T, f faults.Form, args ...string) *faults.Run {
		r, err := faults.Start(f, "ppc", ".", 2, append(args, "-steps", "2", "-set", "width=200", "endless.pp")...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	eachForm(t, faults.Forms, func(t *testing.T, f faults.Form) {
		pipe(t)
		r := begin(t, f, "-save", "pipe")
		reader, err := os.Open("pipe") // waits until somebody writes
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if _, err := io.ReadFull(reader, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		switch f {
		case faults.InProcess:
			r.Signal(syscall.SIGINT)
			ends(t, r, 3, "error E1003: interrupted\n$")
		case faults.MPI:
			syscall.Kill(r.Pids()[0], syscall.SIGKILL)
			ends(t, r, 0, `process rank 0 with PID .* exited on\s+signal 9`)
		default:
			syscall.Kill(r.Pids()[0], syscall.SIGKILL)
			ends(t, r, 3, "rank 0 has been ended by the signal `killed`")
		}
		holds(t, ".", `endless\.pp|data\.npz|pipe|log_output`)
	})
	eachForm(t, faults.Forms[:2], func(t *testing.T, f faults.Form) {
		pipe(t)
		for _, c := range []struct{ flag, says string }{{"-log", `pipe: error E1002: nobody reads this pipe|error E1003: interrupted`}, {"-save", "error E1003: interrupted\n$"}} {
			r := begin(t, f, c.flag, "pipe")
			for until := time.Now().Add(time.Minute); c.flag == "-save" && !strings.Contains(r.Stdout(), "loss is") && time.Now().Before(until); {
				time.Sleep(2 * time.Millisecond)
			}
			time.Sleep(300 * time.Millisecond)
			r.Signal(syscall.SIGINT)
			if f != faults.InProcess {
				c.says = "error E1003: interrupted\n$" // by launch, which has the signal
			}
			ends(t, r, 3, c.says)
		}
	})
}

// What a shell has behind `>(...)` gets the bytes that a file would, in every form.
func TestSaveToPipe(t *testing.T) {
	for _, name := range []string{"npz", "safetensors"} {
		folderWith(t, "endless.pp", endless)
		if name == "safetensors" { // by the name of the link
			if err := os.Symlink("/dev/fd/3", "fd."+name); err != nil {
				t.Fatal(err)
			}
		}
		if code, _, stderr := inProcess("run", "-devices", "2", "-steps", "2", "-save", "file."+name, "endless.pp"); code != 0 {
			t.Fatal(stderr)
		}
		want, err := os.ReadFile("file." + name)
		if err != nil {
			t.Fatal(err)
		}
		to := map[string]string{"npz": "/dev/fd/3", "safetensors": "fd.safetensors"}[name]
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command("ppc", "run", "-devices", "2", "-steps", "2", "-save", to, "endless.pp")
		c.ExtraFiles = []*os.File{write}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		write.Close()
		if got, err := io.ReadAll(read); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes come through the pipe: %v", name, err)
		}
		read.Close()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// A file of parameters whose rest does not come is not there, and the one before is as it was.
func TestSaveOfHalf(t *testing.T) {
	t.Chdir(t.TempDir())
	params := []*ir.Param{{Name: "a", Type: ir.Type{Shape: []int{3}}}, {Name: "b", Type: ir.Type{Shape: []int{1}}}}
	gone := errors.New("rank 1 has ended")
	for _, name := range []string{"w.npz", "w.safetensors"} {
		next := func(end error) func() (data.Array, error) {
			n := 0
			return func() (data.Array, error) {
				x := data.NewFloat32(params[n].Name, params[n].Type.Shape, slices.Repeat([]float32{1}, params[n].Type.Elems()))
				if n++; n == 2 {
					return x, end
				}
				return x, nil
			}
		}
		for round, end := range []error{gone, nil, gone} {
			if err := save(t.Context(), name, params, next(end)); (err == nil) != (end == nil) {
				t.Errorf("%s: %v", name, err)
			}
			list, _ := filepath.Glob("*" + name + "*")
			hidden, _ := filepath.Glob(".w*")
			if len(list) != min(round, 1) || len(hidden) > 0 {
				t.Errorf("round %d: there are %v %v", round, list, hidden)
			}
		}
	}
}
