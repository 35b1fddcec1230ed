package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/internal/faults"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
)

// endless is a training that does not end by itself.
const endless = `
train endless {
    network = Sequential([Dense(4, 24) @stage(0), ReLU() @stage(0), Dropout(0.1) @stage(1), Dense(24, 3) @stage(1)])
    loss = CrossEntropyLoss()
    optimizer = Adam(lr = 0.001)
    input x: f32[8, 4]
    input label: i32[8]
    micro_batch_num = 2
    optimizer_shard = { level: 1, threshold: 1 }
    epochs = 1000000000
    dataset = npz("data.npz") | batch(8)
}
`

// endlessFolder is a new one with the program and its data.
func endlessFolder(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("endless.pp", []byte(endless), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeRows("data.npz", 20); err != nil {
		t.Fatal(err)
	}
}

// forms tries the ways to run ranks.
func forms(t *testing.T, try func(t *testing.T, f faults.Form)) {
	for _, f := range faults.Forms {
		t.Run(f.String(), func(t *testing.T) {
			if _, err := exec.LookPath("mpirun"); f == faults.MPI && err != nil && os.Getenv("CI") == "" {
				t.Skip("there is no mpirun")
			}
			endlessFolder(t)
			try(t, f)
		})
	}
}

// start runs the endless training and waits until it makes steps.
func start(t *testing.T, f faults.Form, ranks int, args ...string) *faults.Run {
	t.Helper()
	r, err := faults.Start(f, "ppc", ".", ranks, append(args, "endless.pp")...)
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

// ends waits for the end of a run and holds its exit code, that it says why, and that nothing is left of it.
func ends(t *testing.T, r *faults.Run, code int, says ...string) {
	t.Helper()
	if err := r.Wait(time.Minute); err != nil {
		t.Fatalf("%v: %s", err, r.Stderr())
	}
	if r.Code != code {
		t.Errorf("exit code %d, not %d", r.Code, code)
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

// goesOn holds that a folder has nothing but checkpoints, and that a run that goes on from them for a few steps has the parameters
// of one that was never disturbed. It returns how many steps the last one has.
func goesOn(t *testing.T, dir string, ranks int) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), "step-") {
			t.Errorf("left over: %s", e.Name())
		}
	}
	steps, err := checkpoint.Steps(dir)
	if err != nil || len(steps) == 0 {
		t.Fatal(steps, err)
	}
	for file, more := range map[string][]string{"resumed.safetensors": {"-resume", dir}, "whole.safetensors": nil} {
		args := append([]string{"run", "-devices", strconv.Itoa(ranks), "-steps", strconv.Itoa(steps[0] + 3), "-save", file}, more...)
		if code, _, stderr := inProcess(append(args, "endless.pp")...); code != 0 || strings.Contains(stderr, "is skipped") {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
	}
	a, errA := os.ReadFile("resumed.safetensors")
	b, errB := os.ReadFile("whole.safetensors")
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("behind step %d the parameters are not those of a run that was not disturbed: %v %v", steps[0], errA, errB)
	}
	return steps[0]
}

// A signal lets a training with a folder for checkpoints finish a step, the same on all ranks, and save it.
func TestSignalSaves(t *testing.T) {
	forms(t, func(t *testing.T, f faults.Form) {
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
	for _, f := range faults.Forms[1:] {
		t.Run(f.String(), func(t *testing.T) {
			endlessFolder(t)
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
}

// Without a folder for checkpoints, or when a second one comes, a signal ends the run at once.
func TestSignalEnds(t *testing.T) {
	endlessFolder(t)
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
	forms(t, func(t *testing.T, f faults.Form) {
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
		ends(t, r, 0)
		goesOn(t, "ck", 2)
	})
}
