package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ppc-lang/ppc"
)

// launched is a launch that a test does something to.
type launched struct {
	t      *testing.T
	cmd    *exec.Cmd
	dir    string
	temp   string
	stdout string
	stderr bytes.Buffer
	pids   []int
	ended  chan error
}

// launchSmall starts a run that would last for hours and waits until the scheduler's log has a line and, unless it has not
// begun, steps are made.
func launchSmall(t *testing.T, line string, args ...string) *launched {
	t.Helper()
	l := &launched{t: t, dir: t.TempDir(), temp: t.TempDir(), ended: make(chan error, 1)}
	text, err := os.ReadFile("testdata/models/small.pp")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.dir, "small.pp"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeRows(filepath.Join(l.dir, "data.npz"), 20); err != nil {
		t.Fatal(err)
	}
	l.stdout = filepath.Join(l.dir, "stdout")
	out, err := os.Create(l.stdout)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	l.cmd = exec.Command(os.Args[0], append([]string{"launch", "small.pp", "-epochs", "1000000000", "-save", "w.npz", "-log-dir", "log"}, args...)...)
	l.cmd.Env = append(os.Environ(), "PPC_LAUNCHED=1", "TMPDIR="+l.temp)
	l.cmd.Dir, l.cmd.Stdout, l.cmd.Stderr = l.dir, out, &l.stderr
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.cmd.Process.Kill() })
	go func() { l.ended <- l.cmd.Wait() }()
	l.await("the line "+line, func() bool {
		text, _ := os.ReadFile(filepath.Join(l.dir, "log", "scheduler.log"))
		if !regexp.MustCompile(line).Match(text) {
			return false
		}
		l.pids = nil
		for _, m := range regexp.MustCompile(`rank \d+ is process (\d+)`).FindAllSubmatch(text, -1) {
			pid, _ := strconv.Atoi(string(m[1]))
			l.pids = append(l.pids, pid)
		}
		return true
	})
	if strings.Contains(line, "joined") {
		l.await("steps", func() bool {
			text, _ := os.ReadFile(l.stdout)
			return bytes.Count(text, []byte("loss is")) > 3
		})
	}
	return l
}

func (l *launched) await(what string, done func() bool) {
	l.t.Helper()
	for range 3000 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.t.Fatalf("waited in vain for %s; stderr: %s", what, l.stderr.String())
}

// running tells whether a process exists and has not ended.
func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := string(text[bytes.LastIndexByte(text, ')')+1:])
	return !strings.HasPrefix(rest, " Z") && !strings.HasPrefix(rest, " X")
}

// ends waits for the end of launch and holds its exit code, what it says, and that nothing is left.
func (l *launched) ends(code int, says ...string) {
	l.t.Helper()
	var err error
	select {
	case err = <-l.ended:
	case <-time.After(time.Minute):
		l.t.Fatal("launch does not end")
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != code {
		l.t.Errorf("launch ends with %v, not with the code %d", err, code)
	}
	for _, s := range says {
		if !regexp.MustCompile(s).Match(l.stderr.Bytes()) {
			l.t.Errorf("stderr has not %q: %s", s, l.stderr.String())
		}
	}
	l.nothingLeft()
}

func (l *launched) nothingLeft() {
	l.t.Helper()
	for rank, pid := range l.pids {
		l.await(fmt.Sprintf("the end of rank %d", rank), func() bool { return !running(pid) })
	}
	l.await("an empty temporary folder", func() bool {
		left, err := os.ReadDir(l.temp)
		return err == nil && len(left) == 0
	})
	if _, err := os.Stat(filepath.Join(l.dir, "w.npz")); !errors.Is(err, os.ErrNotExist) {
		l.t.Error("there is a file of parameters")
	}
}

func transports(t *testing.T, f func(t *testing.T, transport string)) {
	for _, name := range []string{"shared", "socket"} {
		t.Run(name, func(t *testing.T) { f(t, name) })
	}
}

const joined = "all ranks are joined"

// A killed worker ends the run; the message names it, and who waited for it in which action.
func TestKilledWorker(t *testing.T) {
	transports(t, func(t *testing.T, transport string) {
		for rank := range 2 {
			l := launchSmall(t, joined, "-transport", transport, "-deadline", "60s")
			syscall.Kill(l.pids[rank], syscall.SIGKILL)
			l.ends(3, fmt.Sprintf("rank %d has been ended by the signal `killed`; rank %d", rank, 1-rank), fmt.Sprintf("for rank %d|rank %d has ended", rank, rank))
		}
	})
}

// One of four ranks is killed: those that do not talk to it end too.
func TestKilledWorkerOfFour(t *testing.T) {
	l := launchSmall(t, joined, "-n", "4", "-deadline", "60s")
	syscall.Kill(l.pids[2], syscall.SIGKILL)
	l.ends(3, "rank 2 has been ended by the signal `killed`")
}

// A worker that is stopped gives no sign of life: that ends the run after the deadline.
func TestStoppedWorker(t *testing.T) {
	transports(t, func(t *testing.T, transport string) {
		l := launchSmall(t, joined, "-transport", transport, "-deadline", "2s")
		syscall.Kill(l.pids[1], syscall.SIGSTOP)
		l.ends(3, "rank 1 has given no sign of life for 2s: when last heard, rank 1 ", "rank 0 waits in .* for rank 1")
	})
	l := launchSmall(t, "rank 1 is process", "-deadline", "2s")
	syscall.Kill(l.pids[1], syscall.SIGSTOP)
	l.ends(3, "rank 1 has given no sign of life for 2s")
}

// An interrupt ends all, cleanly.
func TestInterruptedLaunch(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		l := launchSmall(t, joined)
		l.cmd.Process.Signal(s)
		l.ends(3, "interrupted")
	}
}

// SIGQUIT asks what the ranks do; the run goes on.
func TestReportOfLaunch(t *testing.T) {
	l := launchSmall(t, joined)
	log := filepath.Join(l.dir, "log", "scheduler.log")
	said := func() bool {
		text, _ := os.ReadFile(log)
		return regexp.MustCompile(`rank 0 (waits|computes) in .*; rank 1 (waits|computes) in `).Match(text)
	}
	l.cmd.Process.Signal(syscall.SIGQUIT)
	l.await("a report", said)
	l.cmd.Process.Signal(syscall.SIGTERM)
	l.ends(3, "note: rank 0 ", "interrupted")
}

// Workers do not outlive launch, whenever it is killed, also if one of them cannot notice.
func TestKilledLaunch(t *testing.T) {
	for _, line := range []string{"rank 1 is process", joined} {
		l := launchSmall(t, line)
		if line == joined {
			syscall.Kill(l.pids[1], syscall.SIGSTOP)
		}
		l.cmd.Process.Kill()
		<-l.ended
		l.nothingLeft()
	}
}

// What workers compare before they join is another one whenever the program is, whatever made it so.
func TestProgramHash(t *testing.T) {
	text, err := os.ReadFile("testdata/models/small.pp")
	if err != nil {
		t.Fatal(err)
	}
	lag := 0
	hashes := map[[32]byte]string{}
	for _, change := range []struct {
		name     string
		old, new string
		set      func(o *ppc.Options)
	}{
		{name: "nothing"},
		{name: "an operation", old: "ReLU()", new: "GELU()"},
		{name: "a shape", old: "width = 8", new: "width = 16"},
		{name: "the stages", set: func(o *ppc.Options) { o.Unsplit = true }},
		{name: "the devices", set: func(o *ppc.Options) { o.Devices = 4 }},
		{name: "the schedule", set: func(o *ppc.Options) { o.Schedule = "gpipe" }},
		{name: "the lag", set: func(o *ppc.Options) { o.WLag = &lag }},
		{name: "the seed", set: func(o *ppc.Options) { o.Seed = new(uint32) }},
		{name: "the micro-batches", set: func(o *ppc.Options) { o.Micro = 2 }},
		{name: "the optimizer", old: "lr = 0.1", new: "lr = 0.2"},
		{name: "the target", set: func(o *ppc.Options) { o.Target = "910b3" }},
		{name: "another target", set: func(o *ppc.Options) { o.Target = "910b4" }},
		{name: "the functions", set: func(o *ppc.Options) { o.LazyInline = "off" }},
	} {
		o := ppc.Options{File: "small.pp", Target: "none", Source: []byte(strings.ReplaceAll(string(text), change.old, change.new))}
		if change.old == "" {
			o.Source = text
		}
		if change.set != nil {
			change.set(&o)
		}
		for range 2 {
			res, err := ppc.Compile(context.Background(), o)
			if err != nil {
				t.Fatal(change.name, err)
			}
			hash, err := programHash(res.Plan)
			if old, ok := hashes[hash]; err != nil || ok && old != change.name {
				t.Errorf("a change of %s gives the program of a change of %s: %v", change.name, old, err)
			}
			hashes[hash] = change.name
		}
	}
}
