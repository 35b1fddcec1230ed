//go:build linux

// Package faults runs the command as users do, does to it what goes wrong on machines, and finds what is left of it. Tests and
// the benchmark have it in common.
package faults

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Form is a way to run the ranks of a program.
type Form int

const (
	InProcess Form = iota // goroutines
	Shared                // processes that launch joins by shared memory
	Socket                // and by sockets
	MPI                   // processes under mpirun
)

// Forms are all of them.
var Forms = []Form{InProcess, Shared, Socket, MPI}

func (f Form) String() string {
	return [...]string{"run", "launch, shared memory", "launch, sockets", "mpirun"}[f]
}

// Processes tells whether every rank is one.
func (f Form) Processes() bool { return f != InProcess }

// args is the command line for that many ranks. mpirun has flags of its own.
func (f Form) args(ppc string, ranks int, args, mpirun []string) []string {
	n, devices := strconv.Itoa(ranks), fmt.Sprintf("-devices=%d", ranks)
	switch f {
	case Shared:
		return append([]string{ppc, "launch", "-n", n}, args...)
	case Socket:
		return append([]string{ppc, "launch", "-n", n, "-transport", "socket"}, args...)
	case MPI:
		return slices.Concat([]string{"mpirun", "-n", n}, mpirun, []string{ppc, "worker", devices}, args)
	}
	return append([]string{ppc, "run", devices}, args...)
}

// Run is a command under way, or its end.
type Run struct {
	Form  Form
	Ranks int
	// Of the end: exit code, -1 for that of a signal, and how long the command took.
	Code int
	Took time.Duration

	cmd   *exec.Cmd
	mark  string // in the environment of all its processes
	own   string // folder of what the command and its processes leave: temporary files, and what they say
	began time.Time
	ended chan error
}

// Setup is what a command has beside its arguments.
type Setup struct {
	Limits string // of a shell: `ulimit ...`
	// Messages has MPI in a form in which messages can be damaged, too.
	Messages bool
	// Hosts is bench/hosts.sh, which has mpirun between two hosts: the ranks of the second half are on the second one.
	Hosts string
	Env   []string
}

// Start runs ppc with these arguments in a folder.
func Start(f Form, ppc, dir string, ranks int, args ...string) (*Run, error) {
	return Setup{}.Start(f, ppc, dir, ranks, args...)
}

// Start runs it so.
func (s Setup) Start(f Form, ppc, dir string, ranks int, args ...string) (*Run, error) {
	own, err := os.MkdirTemp("", "faults-")
	if err != nil {
		return nil, err
	}
	r := &Run{Form: f, Ranks: ranks, mark: "PPC_FAULTS=" + rand.Text(), own: own, ended: make(chan error, 1)}
	if err := os.Mkdir(r.temp(), 0o700); err != nil {
		return nil, err
	}
	var mpirun []string
	if f == MPI && s.Messages {
		library, err := damaging(own)
		if err != nil {
			return nil, err
		}
		mpirun = []string{"-x", "LD_LIBRARY_PATH=" + library, "-x", orderVariable + "=" + r.order()}
	}
	words := f.args(ppc, ranks, args, mpirun)
	if f == MPI && s.Hosts != "" {
		words = append([]string{s.Hosts}, words[2:]...) // it gives mpirun its flags
	}
	if s.Limits != "" {
		words = append([]string{"sh", "-c", s.Limits + `; exec "$@"`, "sh"}, words...)
	}
	r.cmd = exec.Command(words[0], words[1:]...)
	r.cmd.Dir = dir
	r.cmd.Env = append(os.Environ(), r.mark, "TMPDIR="+r.temp(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
		"OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_btl_vader_backing_directory="+r.temp())
	r.cmd.Env = append(r.cmd.Env, s.Env...)
	out, err := os.Create(filepath.Join(own, "stdout"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	said, err := os.Create(filepath.Join(own, "stderr"))
	if err != nil {
		return nil, err
	}
	defer said.Close()
	r.cmd.Stdout, r.cmd.Stderr = out, said
	r.began = time.Now()
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { r.ended <- r.cmd.Wait() }()
	return r, nil
}

func (r *Run) temp() string { return filepath.Join(r.own, "tmp") }

// Stdout and Stderr are what the command has said so far.
func (r *Run) Stdout() string { return read(filepath.Join(r.own, "stdout")) }
func (r *Run) Stderr() string { return read(filepath.Join(r.own, "stderr")) }

func read(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}

// Signal sends one to the command.
func (r *Run) Signal(s syscall.Signal) { r.cmd.Process.Signal(s) }

// processes are those of the run that have not ended.
func (r *Run) processes() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		if env, err := os.ReadFile(p + "/environ"); err != nil || !bytes.Contains(env, []byte(r.mark)) {
			continue
		}
		stat := read(p + "/stat")
		if i := strings.LastIndexByte(stat, ')'); i < 0 || strings.HasPrefix(stat[i:], ") Z") || strings.HasPrefix(stat[i:], ") X") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(p))
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}

var rankVariable = regexp.MustCompile(`\x00OMPI_COMM_WORLD_RANK=(\d+)\x00`)

// Pids are the processes of the ranks, 0 for one that is not there: all the same one if they are goroutines.
func (r *Run) Pids() []int {
	pids := make([]int, r.Ranks)
	var workers []int
	for _, pid := range r.processes() {
		switch line := read(fmt.Sprintf("/proc/%d/cmdline", pid)); {
		case r.Form == InProcess && pid == r.cmd.Process.Pid:
			for i := range pids {
				pids[i] = pid
			}
		case r.Form == MPI:
			if m := rankVariable.FindStringSubmatch("\x00" + read(fmt.Sprintf("/proc/%d/environ", pid)) + "\x00"); m != nil {
				if k, _ := strconv.Atoi(m[1]); k < len(pids) {
					pids[k] = pid
				}
			}
		case strings.Contains(line, "\x00worker\x00"):
			workers = append(workers, pid) // launch starts them in order
		}
	}
	if r.Form == Shared || r.Form == Socket {
		if len(workers) < len(pids) {
			return pids
		}
		copy(pids, workers)
	}
	return pids
}

// ErrNoEnd is what Wait gives for a command that does not end.
var ErrNoEnd = errors.New("the command does not end")

// Wait waits for the end of the command, at most so long; then it ends all that is left by force.
func (r *Run) Wait(limit time.Duration) error {
	select {
	case <-r.ended:
		r.Took, r.Code = time.Since(r.began), r.cmd.ProcessState.ExitCode()
		return nil
	case <-time.After(limit):
		r.Kill()
		<-r.ended
		return ErrNoEnd
	}
}

// Kill ends all processes of the run.
func (r *Run) Kill() {
	for range 3 { // one may be starting others
		for _, pid := range r.processes() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Left lists what is left of a run whose command has ended: processes, which get a second to end, and temporary files.
func (r *Run) Left() (left []string) {
	var pids []int
	for until := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) {
		if pids = r.processes(); len(pids) == 0 || time.Now().After(until) {
			break
		}
	}
	for _, pid := range pids {
		left = append(left, fmt.Sprintf("process %d: %s", pid, strings.ReplaceAll(read(fmt.Sprintf("/proc/%d/cmdline", pid)), "\x00", " ")))
	}
	r.Kill()
	files, _ := os.ReadDir(r.temp())
	for _, f := range files {
		if r.Form != MPI || strings.HasPrefix(f.Name(), "ppc") { // what MPI leaves is its own
			left = append(left, "temporary file "+f.Name())
		}
	}
	return left
}

// Close removes what the run has left and said.
func (r *Run) Close() {
	r.Kill()
	os.RemoveAll(r.own)
}
