package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ppc-lang/ppc/internal/faults"
)

// Ranks under mpirun that have different versions of ppc end with a message that says who has which.
func TestOtherVersion(t *testing.T) {
	other := filepath.Join(t.TempDir(), "ppc")
	if out, err := exec.Command("go", "build", "-ldflags", "-X github.com/ppc-lang/ppc.Version=99.1", "-o", other, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eachForm(t, faults.Forms[3:], func(t *testing.T, f faults.Form) {
		flags := []string{"-devices", "4", "-deadline", "5s", "-save", "end.npz", "endless.pp"}
		r, err := faults.Start(f, "ppc", ".", 2, slices.Concat(flags, []string{":", "-n", "2", other, "worker"}, flags)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		ends(t, r, 1, `error E0901: rank 2 has version 99\.1 of ppc, and rank 0 has version \d+\.\d+\.\d+\n  repair: install one version of ppc on all hosts`)
		holds(t, ".", `endless\.pp|data\.npz|log_output`)
	})
}

// Neither the program of launch nor the model or bundle matters once launch has read it: workers have what launch has.
func TestReplacedAtStart(t *testing.T) {
	folderWith(t, "model.pp", endless)
	if code, _, stderr := inProcess("compile", "model.pp", "-target", "none", "-o", "bundle"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := inProcess("run", "model.pp", "-steps", "3", "-save", "run.safetensors"); code != 0 {
		t.Fatal(stderr)
	}
	want, err := os.ReadFile("run.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	built, err := exec.LookPath("ppc")
	if err != nil {
		t.Fatal(err)
	}
	for name, last := range map[string]string{"model.pp": "model.pp", "bundle": "bundle/states.csv"} { // what launch reads last of it
		text, err := os.ReadFile(last)
		if err != nil {
			t.Fatal(err)
		}
		ppc := filepath.Join(t.TempDir(), "ppc")
		for _, err := range []error{os.Remove(last), syscall.Mkfifo(last, 0o600), os.Link(built, ppc), os.WriteFile(ppc+".new", nil, 0o600)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		r, err := faults.Start(faults.Shared, ppc, ".", 2, "-steps", "3", "-save", "launch.safetensors", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		pipe := opened(t, last)
		for _, err := range []error{os.Rename(ppc+".new", ppc), os.Rename(name, name+".old"), second(pipe.Write(text)), pipe.Close()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if ends(t, r, 0); r.Code != 0 {
			t.Fatalf("exit code %d: %s", r.Code, r.Stderr())
		}
		got, err := os.ReadFile("launch.safetensors")
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: other parameters than those of a run: %v", name, err)
		}
	}
}

func second(_ int, err error) error { return err }

// opened waits until somebody reads a pipe, and gives its other end.
func opened(t *testing.T, name string) *os.File {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		fd, err := syscall.Open(name, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), name)
		}
		if !errors.Is(err, syscall.ENXIO) || time.Now().After(until) {
			t.Fatal(err)
		}
	}
}

// Something else is where a rank wants to have its socket: the run ends and says which rank, and leaves nothing.
func TestTakenSocket(t *testing.T) {
	file := func(path string) error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
		return errors.Join(err, f.Close())
	}
	socket := func(path string) error {
		l, err := net.Listen("unix", path)
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}
	eachForm(t, faults.Forms[1:3], func(t *testing.T, f faults.Form) {
		for rank, take := range []func(string) error{file, socket} {
			temp, err := os.MkdirTemp("", "taken") // a short name
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(temp) })
			for {
				r, err := faults.Setup{Env: []string{"TMPDIR=" + temp}}.Start(f, "ppc", ".", 2, "-deadline", "5s", "endless.pp")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(r.Close)
				var dirs []string
				for until := time.Now().Add(time.Minute); len(dirs) == 0; time.Sleep(50 * time.Microsecond) {
					if dirs, _ = filepath.Glob(filepath.Join(temp, "ppc-*")); time.Now().After(until) {
						t.Fatal(r.Stderr())
					}
				}
				if take(filepath.Join(dirs[0], fmt.Sprint(rank))) == nil {
					ends(t, r, 3, fmt.Sprintf(`^error E1003: rank %d cannot open its socket %s/%d: address already in use`, rank, dirs[0], rank))
					break
				}
				r.Kill() // the rank has come first
				os.RemoveAll(dirs[0])
			}
			holds(t, temp, "nothing")
			holds(t, ".", `endless\.pp|data\.npz|log_output`)
		}
	})
}

// A folder for temporary files that does not serve, and a machine without /proc, from which launch starts its workers.
func TestNoPlaceToStart(t *testing.T) {
	eachForm(t, faults.Forms[1:3], func(t *testing.T, f faults.Form) {
		long := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
		if err := os.Mkdir(long, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			faults.Setup
			says string
		}{
			{faults.Setup{Env: []string{"TMPDIR=" + long}}, `error E1003: rank \d cannot open its socket: the name .* has more than 107 bytes; give TMPDIR a shorter one`},
			{faults.Setup{Env: []string{"TMPDIR=/proc/self"}}, `/proc/self/ppc-.*: error E1002: .*\n  repair: TMPDIR names a folder in which launch can make one`}, // nobody can, not even root
			{faults.Setup{Limits: `exec unshare -m sh -c 'umount -l /proc && exec "$@"' sh "$@"`}, `error E1003: rank 0 cannot be started: /proc/self/exe: no such file or directory`},
		} {
			if c.Limits != "" && os.Getuid() != 0 && os.Getenv("CI") == "" {
				continue // who may not mount
			}
			r, err := c.Start(f, "ppc", ".", 2, "-deadline", "5s", "endless.pp")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
			ends(t, r, 3, c.says)
			holds(t, ".", `endless\.pp|data\.npz|log_output`)
			holds(t, long, "nothing")
		}
	})
}

// Who asks by SIGQUIT what the ranks do, before there are any, ends nothing and gets an answer.
func TestAskedAtStart(t *testing.T) {
	eachForm(t, faults.Forms[:2], func(t *testing.T, f faults.Form) {
		if err := syscall.Mkfifo("model.pp", 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := faults.Start(f, "ppc", ".", 2, "model.pp")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		pipe := opened(t, "model.pp")
		r.Signal(syscall.SIGQUIT)
		for _, err := range []error{second(pipe.WriteString(endless)), pipe.Close()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for until := time.Now().Add(time.Minute); !strings.Contains(r.Stderr(), "note: rank") && r.Running() && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
		}
		r.Signal(syscall.SIGTERM)
		ends(t, r, 3, `note: rank(s that have not begun: | \d (waits|computes) in )`, "interrupted")
	})
	// A worker that waits for what launch has to say.
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	own, theirs := os.NewFile(uintptr(fds[0]), "worker"), os.NewFile(uintptr(fds[1]), "supervisor")
	var stderr bytes.Buffer
	worker := exec.Command("ppc", "worker", "model.pp")
	worker.Env = append(os.Environ(), "PPC_LAUNCHED=nothing")
	worker.ExtraFiles, worker.Stderr = []*os.File{theirs}, &stderr
	if err := errors.Join(worker.Start(), theirs.Close(), second(own.WriteString("half"))); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if unread, err := unix.IoctlGetInt(fds[0], unix.SIOCOUTQ); err != nil || time.Now().After(until) {
			t.Fatal(unread, err)
		} else if unread == 0 {
			break
		}
	}
	if err := errors.Join(worker.Process.Signal(syscall.SIGQUIT), own.Close()); err != nil {
		t.Fatal(err)
	}
	worker.Wait() // stderr says how
	if want := "ppc: a worker is started by `ppc launch`, or by mpirun\n"; !strings.HasPrefix(stderr.String(), want) {
		t.Error(stderr.String())
	}
}
