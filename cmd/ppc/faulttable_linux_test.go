package main

import (
	"bytes"
	"crypto/sha256"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/internal/faults"
)

// befalls is a fault that befalls rank 1 of two, or both, while they train and save.
type befalls struct {
	name  string
	forms []faults.Form
	plant func(r *faults.Run, pids []int) error
	code  int    // 0: any but 0
	says  string // on stderr
	mpi   string // what mpirun says instead
}

const (
	inAction   = `[A-Z_]+( of micro-batch \d)?`
	killed     = "rank 1 has been ended by the signal `killed`; rank 0(: .+: rank 1 has ended| (waits|computes) in " + inAction + `)`
	outOfOrder = `rank \d: .+: from rank \d: (message \d+ comes instead of \d+|a message has \d+ bytes, not \d+|MPI cannot transfer a message: MPI_ERR_TRUNCATE)`
	noRoom     = `ck(/\.step-\d+\.part.*)?: error E1002: cannot write the checkpoint: `
)

func signal1(s syscall.Signal) func(*faults.Run, []int) error {
	return func(_ *faults.Run, pids []int) error { return syscall.Kill(pids[1], s) }
}

func each(do func(pid int) error) func(*faults.Run, []int) error {
	return func(_ *faults.Run, pids []int) error {
		for _, pid := range pids {
			if err := do(pid); err != nil {
				return err
			}
		}
		return nil
	}
}

var whileRunning = []befalls{
	{"a process is killed", []faults.Form{faults.InProcess}, signal1(syscall.SIGKILL), -1, "", ""},
	{"a rank is killed", faults.Forms[1:], signal1(syscall.SIGKILL), 0, killed, `process rank 1 with PID .* exited on\s+signal 9`},
	{"a rank stands still", faults.Forms[1:], signal1(syscall.SIGSTOP), 3,
		`rank 1 has given no sign of life for 2s: when last heard, rank 1 (waits|computes) in ` + inAction + `.*; rank 0 waits in ` + inAction + ` for rank 1`,
		`nothing has come for 2s: rank 0 waits in ` + inAction + ` for rank 1`},
	{"messages are overwritten", faults.Forms[1:], func(r *faults.Run, pids []int) error { return r.Corrupt(pids[1]) }, 3,
		`rank \d: .+: from rank \d: (the header of a message|a message) is damaged`, ""},
	{"messages are cut off", faults.Forms[1:], func(r *faults.Run, pids []int) error { return r.CutOff(pids[1]) }, 3,
		`rank \d: .+: (rank \d has ended|from rank \d: a message is cut off)`, // both ends notice; one is the first
		`rank 0: .+: from rank 1: a message has \d+ bytes, not \d+`},
	{"a message is repeated", []faults.Form{faults.MPI}, func(r *faults.Run, pids []int) error { return r.Repeat(pids[1]) }, 3, outOfOrder, ""},
	// What comes behind it shows that it is lost; or all wait for it.
	{"a message is lost", []faults.Form{faults.Socket, faults.MPI}, func(r *faults.Run, pids []int) error { return r.Lose(pids[1]) }, 3,
		outOfOrder + `|(no rank has made progress|nothing has come) for 2s: .*rank \d waits in ` + inAction + ` for rank \d`, ""},
	{"the disk is full", faults.Forms, each(func(pid int) error { return faults.LimitFiles(pid, 300_000) }), 3, noRoom + "file too large", ""},
	{"no more files can be opened", faults.Forms, each(faults.LimitOpen), 3, noRoom + "too many open files", ""},
	{"the command is killed", faults.Forms[1:], func(r *faults.Run, _ []int) error { r.Signal(syscall.SIGKILL); return nil }, -1, "", ""},
}

// Whatever befalls a run, it ends, says what has happened to whom, and leaves no process and nothing half-written; and it can go on.
func TestFaultsWhileRunning(t *testing.T) {
	for _, b := range whileRunning {
		t.Run(b.name, func(t *testing.T) {
			eachForm(t, b.forms, func(t *testing.T, f faults.Form) {
				setup := faults.Setup{Messages: strings.Contains(b.name, "message")}
				if _, err := exec.LookPath("gcc"); setup.Messages && f == faults.MPI && err != nil && os.Getenv("CI") == "" {
					t.Skip("there is no gcc")
				}
				wide, deadline := []string{"-set", "width=200"}, "60s"
				if strings.Contains(b.says, "for 2s") {
					deadline = "2s"
				}
				r := startSetup(t, setup, f, 2, append(wide, "-checkpoint", "ck", "-save-every", "2", "-keep", "2", "-deadline", deadline, "-log", "steps.jsonl", "-save", "end.npz")...)
				if err := b.plant(r, r.Pids()); err != nil {
					t.Fatal(err)
				}
				says := []string{b.says}
				if f == faults.MPI && b.mpi != "" {
					says[0] = b.mpi
				}
				ends(t, r, b.code, says...)
				holds(t, ".", `endless\.pp|data\.npz|ck|steps\.jsonl|log_output`)
				// Who is killed, or cannot even open the folder, leaves what the next run removes.
				if b.code > 0 && f != faults.MPI && (f.Processes() || !strings.Contains(b.says, "open files")) {
					holds(t, "ck", `step-\d+`)
				}
				wholeLines(t, "steps.jsonl")
				goesOn(t, "ck", 2, wide...)
			})
		})
	}
}

// wholeLines holds that no line of a file is cut off.
func wholeLines(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil || len(text) > 0 && !strings.HasSuffix(string(text), "}\n") {
		t.Errorf("%s ends in %q: %v", name, text[max(0, len(text)-40):], err)
	}
}

// A rank that is slow, but not for as long as the deadline, changes nothing.
func TestSlowRank(t *testing.T) {
	eachForm(t, faults.Forms[1:], func(t *testing.T, f faults.Form) {
		r := start(t, f, 2, "-checkpoint", "ck", "-deadline", "20s")
		pid := r.Pids()[1]
		syscall.Kill(pid, syscall.SIGSTOP)
		time.Sleep(300 * time.Millisecond)
		syscall.Kill(pid, syscall.SIGCONT)
		syscall.Kill(pid, syscall.SIGTERM)
		ends(t, r, 3, `interrupted: ck/step-\d+ has the state after \d+ steps`)
		goesOn(t, "ck", 2)
	})
}

// prevents is what keeps a run from starting, or from ending well.
var prevents = []struct {
	name   string
	forms  []faults.Form
	limits string
	args   []string
	code   int // 0: any but 0
	says   string
}{
	{"no data", faults.Forms, "", []string{"-data", "nowhere.npz"}, 1, `nowhere\.npz: error E1001: cannot read: no such file`},
	{"data that ends early", faults.Forms, "", []string{"-data", "short.npz"}, 1, `short\.npz.*: error E0\d+: `},
	{"a file in the place of the folder", faults.Forms, "", []string{"-checkpoint", "data.npz/ck"}, 3, `data\.npz/ck: error E1002: cannot write the checkpoint: not a directory`},
	{"a full disk for the log", faults.Forms, "", []string{"-log", "/dev/full"}, 3, `/dev/full: error E1002: no space left on device`},
	{"a full disk for the parameters", faults.Forms, "", []string{"-save", "/dev/full"}, 3, `/dev/full: error E1002: .*no space left on device`},
	{"a full disk for what is shown", faults.Forms[:3], "exec >/dev/full", nil, 3, `standard output: error E1002: no space left on device`},
	{"few files", faults.Forms[:1], "ulimit -n 8", []string{"-checkpoint", "ck"}, 0, "too many open files"},
	{"few files", faults.Forms[1:3], "ulimit -n 16", nil, 3, "too many open files"},
}

// A run that cannot start, or cannot store what it gives, says why and leaves nothing.
func TestFaultsAtStart(t *testing.T) {
	for _, p := range prevents {
		t.Run(p.name, func(t *testing.T) {
			eachForm(t, p.forms, func(t *testing.T, f faults.Form) {
				text, err := os.ReadFile("data.npz")
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile("short.npz", text[:len(text)/2], 0o644); err != nil {
					t.Fatal(err)
				}
				r, err := faults.Setup{Limits: p.limits}.Start(f, "ppc", ".", 2, append(p.args, "-steps", "4", "-deadline", "5s", "endless.pp")...)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(r.Close)
				ends(t, r, p.code, p.says)
				holds(t, ".", `endless\.pp|data\.npz|short\.npz|log_output|ck`)
				if _, err := os.Stat("ck"); err == nil {
					holds(t, "ck", "nothing")
				}
			})
		})
	}
}

// Ranks under mpirun that do not have one program, one version and the same flags are told apart.
func TestDiffers(t *testing.T) {
	says := func(hash, flags byte, version string) (v []float64) {
		for _, b := range slices.Concat(bytes.Repeat([]byte{hash}, sha256.Size), bytes.Repeat([]byte{flags}, sha256.Size), []byte(version)) {
			v = append(v, float64(b))
		}
		return v
	}
	for _, c := range []struct {
		all  [][]float64
		want string
	}{
		{[][]float64{says(1, 5, "1.0"), says(1, 5, "1.0")}, ""},
		{[][]float64{says(1, 5, "1.0"), says(2, 5, "1.0")}, "rank 1 has another program than rank 0"},
		{[][]float64{says(1, 5, "1.0"), says(1, 6, "1.0")}, "rank 1 has other flags, or other kernels, than rank 0"},
		{[][]float64{says(1, 5, "1.0"), says(1, 5, "1.1")}, "rank 1 has version 1.1 of ppc, and rank 0 has version 1.0"},
		{[][]float64{says(1, 5, "1.0"), says(2, 6, "1.0.1")}, "rank 1 has version 1.0.1 of ppc, and rank 0 has version 1.0"},
		{[][]float64{says(1, 5, "1.0.1"), says(1, 5, "1.0")}, "rank 1 has version 1.0 of ppc, and rank 0 has version 1.0.1"},
	} {
		if err := differs(c.all, 0); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// A rank that stands still before the ranks are joined ends the run too.
func TestStandsStillAtStart(t *testing.T) {
	eachForm(t, faults.Forms[2:], func(t *testing.T, f faults.Form) {
		r, err := faults.Start(f, "ppc", ".", 2, "-deadline", "2s", "endless.pp")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		pids := r.Pids()
		for until := time.Now().Add(time.Minute); pids[1] == 0 && time.Now().Before(until); pids = r.Pids() {
			time.Sleep(time.Millisecond)
		}
		if err := syscall.Kill(pids[1], syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		ends(t, r, 3, `rank 1 has given no sign of life for 2s|rank 0: MPI has not joined this rank with the others for 10s|nothing has come for (2|10)s: rank 0 waits .* for rank 1`)
		holds(t, ".", `endless\.pp|data\.npz|log_output`)
	})
}

// Launch leaves nothing at whatever moment it is killed, from its first one on.
func TestLaunchKilledEarly(t *testing.T) {
	folderWith(t, "endless.pp", endless)
	for moment := time.Duration(0); moment < 120*time.Millisecond; moment += 6 * time.Millisecond {
		r, err := faults.Start(faults.Shared, "ppc", ".", 2, "-checkpoint", "ck", "endless.pp")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		time.Sleep(moment)
		r.Signal(syscall.SIGKILL)
		ends(t, r, -1)
	}
}
