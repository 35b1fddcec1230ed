package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/internal/faults"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
)

// eachForm tries ways to run ranks.
func eachForm(t *testing.T, list []faults.Form, try func(t *testing.T, f faults.Form)) {
	t.Helper()
	for _, f := range list {
		t.Run(f.String(), func(t *testing.T) {
			if _, err := exec.LookPath("mpirun"); f == faults.MPI && err != nil && os.Getenv("CI") == "" {
				t.Skip("there is no mpirun")
			}
			folderWith(t, "endless.pp", endless)
			try(t, f)
		})
	}
}

// start runs the endless training and waits until it makes steps.
func start(t *testing.T, f faults.Form, ranks int, args ...string) *faults.Run {
	t.Helper()
	return startSetup(t, faults.Setup{}, f, ranks, args...)
}

// startSetup does so with more than arguments.
func startSetup(t *testing.T, s faults.Setup, f faults.Form, ranks int, args ...string) *faults.Run {
	t.Helper()
	r, err := s.Start(f, "ppc", ".", ranks, append(args, "endless.pp")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for until := time.Now().Add(time.Minute); strings.Count(r.Stdout(), "loss is") < 3; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("no steps in a minute: %s", r.Stderr())
		}
	}
	return r
}

// ends waits for the end of a run and holds its exit code, where 0 is for any other, that it says why, and that nothing is left of it.
func ends(t *testing.T, r *faults.Run, code int, says ...string) {
	t.Helper()
	if err := r.Wait(time.Minute); err != nil {
		t.Fatalf("%v: %s", err, r.Stderr())
	}
	if r.Code != code && (code != 0 || r.Code == 0) {
		t.Errorf("exit code %d, not %d: %s", r.Code, code, r.Stderr())
	}
	for _, s := range says {
		if !regexp.MustCompile(s).MatchString(r.Stderr()) {
			t.Errorf("stderr has not %q: %s", s, r.Stderr())
		}
	}
	for _, left := range r.Left() {
		t.Errorf("left over: %s", left)
	}
}

// goesOn holds that a run that goes on from the checkpoints of a folder has the parameters of one that was never disturbed, and that
// it leaves nothing but checkpoints there. It returns how many steps the last one had.
func goesOn(t *testing.T, dir string, ranks int, args ...string) int {
	t.Helper()
	steps, err := checkpoint.Steps(dir)
	if err != nil || len(steps) == 0 {
		t.Fatal(steps, err)
	}
	for file, more := range map[string][]string{"resumed.safetensors": {"-resume", dir, "-checkpoint", dir}, "whole.safetensors": nil} {
		line := slices.Concat([]string{"run", "-devices", strconv.Itoa(ranks), "-steps", strconv.Itoa(steps[0] + 3), "-save", file}, args, more, []string{"endless.pp"})
		if code, _, stderr := inProcess(line...); code != 0 || strings.Contains(stderr, "is skipped") {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
	}
	a, errA := os.ReadFile("resumed.safetensors")
	b, errB := os.ReadFile("whole.safetensors")
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("behind step %d the parameters are not those of a run that was not disturbed: %v %v", steps[0], errA, errB)
	}
	holds(t, dir, `step-\d+`)
	return steps[0]
}

// holds refuses a folder with other names than those.
func holds(t *testing.T, dir string, names string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if !regexp.MustCompile("^(" + names + ")$").MatchString(e.Name()) {
			t.Errorf("%s has %s", dir, e.Name())
		}
	}
}

// A signal lets a training with a folder for checkpoints finish a step, the same on all ranks, and save it.
func TestSignalSaves(t *testing.T) {
	eachForm(t, faults.Forms, func(t *testing.T, f faults.Form) {
		r := start(t, f, 4, "-checkpoint", "ck")
		s := syscall.SIGTERM
		if f == faults.MPI {
			s = syscall.SIGUSR1 // mpirun has it for its ranks, not for itself
		}
		r.Signal(s)
		ends(t, r, 3, `error E1003: interrupted: ck/step-\d+ has the state after \d+ steps\n  repair: -resume ck/step-\d+ goes on from it`)
		if step := goesOn(t, "ck", 4); !strings.Contains(r.Stderr(), fmt.Sprintf("ck/step-%d has the state after %d steps", step, step)) {
			t.Error(r.Stderr())
		}
	})
}

// A signal to one of the ranks, or to launch and all of them, as a cluster's manager may send it, is one for all.
func TestSignalToRanks(t *testing.T) {
	eachForm(t, faults.Forms[1:], func(t *testing.T, f faults.Form) {
		r := start(t, f, 2, "-checkpoint", "ck")
		pids := r.Pids()
		if f == faults.Shared {
			r.Signal(syscall.SIGTERM)
			syscall.Kill(pids[0], syscall.SIGTERM)
		}
		syscall.Kill(pids[1], syscall.SIGTERM)
		ends(t, r, 3, `interrupted: ck/step-\d+ has the state`)
		goesOn(t, "ck", 2)
	})
}

// Without a folder for checkpoints, or when a second one comes, a signal ends the run at once.
func TestSignalEnds(t *testing.T) {
	folderWith(t, "endless.pp", endless)
	for _, f := range faults.Forms[:2] {
		r := start(t, f, 2)
		r.Signal(syscall.SIGTERM)
		ends(t, r, 3, "error E1003: interrupted\n$")
	}
	r := start(t, faults.Shared, 2, "-checkpoint", "ck")
	syscall.Kill(r.Pids()[1], syscall.SIGSTOP) // it cannot end its step
	r.Signal(syscall.SIGTERM)
	for until := time.Now().Add(time.Minute); !strings.Contains(r.Stderr(), savesFirst) && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	r.Signal(syscall.SIGTERM)
	ends(t, r, 3, "error E1003: interrupted\n$")
}

// Two runs do not write to one folder: the second one ends before it has done anything. The lock of a run that was killed is none.
func TestTwoRunsOneFolder(t *testing.T) {
	eachForm(t, faults.Forms, func(t *testing.T, f faults.Form) {
		r := start(t, f, 2, "-checkpoint", "ck", "-save-every", "1", "-keep", "2")
		for _, more := range [][]string{nil, {"-resume", "ck"}} {
			second, err := faults.Start(f, "ppc", ".", 2, append(more, "-checkpoint", "ck", "-log-dir", "others", "endless.pp")...)
			if err != nil {
				t.Fatal(err)
			}
			ends(t, second, 1, `ck: error E0803: another run writes checkpoints to this folder, process \d+ on .*\n  repair: wait until it has ended`)
			if strings.Contains(second.Stdout(), "loss is") {
				t.Error(second.Stdout())
			}
			second.Close()
		}
		r.Kill()
		if err := r.Wait(time.Minute); err != nil {
			t.Fatal(err)
		}
		r, err := faults.Start(f, "ppc", ".", 2, "-checkpoint", "ck", "-resume", "ck", "-steps", "1", "endless.pp")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		if err := r.Wait(time.Minute); err != nil || r.Code != 0 {
			t.Errorf("%v, exit code %d: %s", err, r.Code, r.Stderr())
		}
		goesOn(t, "ck", 2)
	})
}
