package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/launch"
	"github.com/ppc-lang/ppc/runtime/transport/mpi"
	"github.com/ppc-lang/ppc/runtime/transport/process"
)

// endSignals end the command. SIGUSR1 is what mpirun passes on to its ranks and Slurm is told to warn with.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1}

// launchCommands run every rank as a process.
func (a *app) launchCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "launch", Usage: "run with a process for every rank", ArgsUsage: "FILE|DIR",
			Flags: slices.Concat([]cli.Flag{
				&cli.IntFlag{Name: "n", Usage: "number of processes; for a FILE without -devices also that of devices", HideDefault: true},
				&cli.StringFlag{Name: "emit", Usage: "start nothing: print what starts the ranks of a bundle on several hosts, for slurm or mpijob (Kubernetes)"},
				&cli.StringFlag{Name: "transport", Usage: "shared (memory) or socket", Value: "shared"},
			}, compileFlags(), runFlags(), inferFlags()),
			Action: a.launch,
		},
		{
			Name: "worker", Usage: "one rank: started by ppc launch, or by mpirun", ArgsUsage: "DIR",
			Flags:  slices.Concat(compileFlags(), runFlags(), inferFlags()),
			Action: a.work,
		},
	}
}

// launch starts a worker for every rank of the plan and watches over them.
func (a *app) launch(ctx context.Context, c *cli.Command) error {
	defer a.questions()()
	name, err := file(c)
	if err != nil {
		return err
	}
	if err := apart(c, name); err != nil {
		return err
	}
	st, err := os.Stat(name)
	compiles := err != nil || !st.IsDir()
	n := c.Int("n")
	if c.IsSet("n") && n < 1 {
		return usagef("-n is %d; it must be at least 1", n)
	}
	if c.IsSet("n") && compiles && !c.IsSet("devices") {
		if err := c.Set("devices", fmt.Sprint(n)); err != nil {
			return err
		}
	}
	if t := c.String("transport"); t != "shared" && t != "socket" {
		return usagef("-transport is shared or socket, not `%s`", t)
	}
	p, err := a.plan(ctx, c, name)
	if err != nil {
		return err
	}
	ranks := p.NumStages * p.Degree
	if c.IsSet("n") && n != ranks {
		return usagef("-n is %d, and the program has %d ranks: %d stages of %d", n, ranks, p.NumStages, p.Degree)
	}
	o, err := runOptions(c, p)
	if err != nil {
		return err
	}
	if e := c.String("emit"); e != "" {
		emit := emitters[e]
		switch {
		case c.IsSet("transport"):
			return usagef("-transport is about processes of this machine; what -emit writes starts them by MPI")
		case emit == nil:
			return usagef("-emit is slurm or mpijob, not `%s`", e)
		case compiles:
			return usagef("-emit is about a bundle, which the hosts share: run `ppc compile` first")
		}
		text := emit(p.Name, ranks, append([]string{"ppc"}, workerArguments(c, name)...))
		if a.json {
			return a.printJSON(map[string]any{"text": text})
		}
		_, err := io.WriteString(a.out, text)
		return err
	}
	if c.String("device") == "cpu" {
		if err := cpu.Fits(p); err != nil {
			return wrong(err)
		}
	}
	if o.Checkpoint.Dir != "" {
		store := checkpoint.Store{Dir: o.Checkpoint.Dir}
		if err := store.Prepare(); err != nil {
			return failed(err)
		}
		lock, err := store.Lock(func(s string) { fmt.Fprintln(a.err, "note:", s) })
		if err != nil {
			return failed(err)
		}
		defer lock.Close()
		store.Clean()
		defer store.Clean() // when no worker is left
	}
	dir := filepath.Join(os.TempDir(), "ppc-"+rand.Text())
	bundle := filepath.Join(dir, "bundle")
	args := workerArguments(c, bundle)
	logs, err := openLogs(c.String("log-dir"), ranks)
	if err != nil {
		return cannotWrite(c.String("log-dir"), err)
	}
	defer logs.close()
	var save <-chan struct{}
	if o.Checkpoint.Dir != "" {
		var late func()
		save, _, late = a.wish(false, func() { fmt.Fprintln(a.err, "note:", savesFirst) })
		defer late()
	}
	logs.event("ppc %s: %d ranks of %s", ppc.Version, ranks, name)
	fill := func() error {
		if err := os.Mkdir(dir, 0o700); err != nil {
			d := diag.Errorf(diag.CannotWrite, diag.At(diag.Pos{File: dir}), "%s", plain(err))
			return d.WithRepair("TMPDIR names a folder in which launch can make one")
		}
		if err := plan.Write(bundle, p, nil); err != nil {
			return cannotWrite(bundle, err)
		}
		return nil
	}
	err = launch.Run(ctx, launch.Options{
		Ranks: ranks, Dir: dir, Fill: fill, Shared: c.String("transport") == "shared", Deadline: c.Duration("deadline"), Report: a.quit, Save: save,
		Command: func(rank int) *exec.Cmd {
			cmd := exec.Command(itself, args...)
			cmd.Args[0] = os.Args[0]
			cmd.Stdout, cmd.Stderr = logs.workers[rank], logs.workers[rank]
			return cmd
		},
		Output: func(s string) { io.WriteString(a.out, s) },
		Event:  func(s string) { logs.event("%s", s) },
		Notice: func(s string) {
			logs.event("%s", s)
			fmt.Fprintln(a.err, "note:", s)
		},
	})
	var f *launch.Failure
	switch {
	case err == nil:
		logs.event("all ranks are done")
	case errors.As(err, &f):
		err = &failure{code: f.Code, err: f.List()}
	default:
		err = failed(err)
	}
	if err != nil {
		logs.event("%v", err)
	}
	if e := logs.close(); err == nil && e != nil {
		return cannotWrite(c.String("log-dir"), e)
	}
	return err
}

// itself is the program of this process, also if there is another one at its path by now. Workers run it, and the bundle that launch
// has compiled or read: so none of them can have another version or another program.
const itself = "/proc/self/exe"

// workerArguments are the command line of a worker: what has been given for the run. What was given for the compiler is in the bundle.
func workerArguments(c *cli.Command, bundle string) []string {
	args := []string{"worker"}
	pass := slices.Concat(runFlags(), inferFlags(), []cli.Flag{&cli.StringFlag{Name: "seed"}})
	if !c.IsSet("emit") { // which -json is about then
		pass = append(pass, &cli.BoolFlag{Name: "json"})
	}
	for _, f := range pass {
		switch n := f.Names()[0]; v := c.Value(n).(type) {
		case []string:
			for _, x := range v {
				args = append(args, fmt.Sprintf("-%s=%s", n, x))
			}
		default:
			if c.IsSet(n) {
				args = append(args, fmt.Sprintf("-%s=%v", n, v))
			}
		}
	}
	return append(args, "--", bundle)
}

// launchLogs are scheduler.log, which has what happens to the workers, and worker_N.log with all that a worker writes.
type launchLogs struct {
	scheduler *os.File
	workers   []*os.File
	err       error
}

func openLogs(dir string, ranks int) (*launchLogs, error) {
	l := &launchLogs{}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	var err error
	if l.scheduler, err = os.Create(filepath.Join(dir, "scheduler.log")); err != nil {
		return nil, err
	}
	for rank := range ranks {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("worker_%d.log", rank)))
		if err != nil {
			l.close()
			return nil, err
		}
		l.workers = append(l.workers, f)
	}
	return l, nil
}

func (l *launchLogs) event(format string, args ...any) {
	text := strings.TrimSpace(fmt.Sprintf(format, args...))
	_, err := fmt.Fprintf(l.scheduler, "%s %s\n", time.Now().Format("2006-01-02 15:04:05.000"), text)
	if l.err == nil {
		l.err = err
	}
}

func (l *launchLogs) close() error {
	for _, f := range append(l.workers, l.scheduler) {
		if f != nil {
			if err := f.Close(); l.err == nil {
				l.err = err
			}
		}
	}
	err := l.err
	l.workers, l.scheduler, l.err = nil, nil, nil
	return err
}

// work is one rank.
func (a *app) work(ctx context.Context, c *cli.Command) error {
	defer a.questions()()
	if !launch.Launched() && mpi.Launched() {
		return a.workUnderMPI(ctx, c)
	}
	w, ctx, err := launch.Join(ctx)
	if err != nil {
		return usagef("%v", err)
	}
	removed := make(chan struct{})
	go func() {
		<-w.Lost()
		os.RemoveAll(w.Dir)
		close(removed)
		time.Sleep(time.Second)
		os.Exit(3) // a long computation notices nothing
	}()
	log := bufio.NewWriterSize(os.Stdout, 1<<16)
	var joined *process.Ranks // open until all are done
	defer func() {
		if joined != nil {
			joined.Close()
		}
	}()
	joined, err = a.rank(ctx, c, w, log)
	if e := log.Flush(); err == nil && e != nil {
		err = cannotWrite("the log of the worker", e)
	}
	if err == nil {
		if err = w.Done(); err != nil {
			err = failed(err)
		}
	}
	if err == nil {
		return nil
	}
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{code: 2, err: err}
	}
	if w.Fail(f.code, ppc.Diagnostics(f), f.reason) != nil {
		<-removed // what this rank may have added too
	}
	return err
}

// rank runs a rank and returns how it is joined to the others.
func (a *app) rank(ctx context.Context, c *cli.Command, w *launch.Worker, log *bufio.Writer) (*process.Ranks, error) {
	name, err := file(c)
	if err != nil {
		return nil, err
	}
	p, err := a.plan(ctx, c, name)
	if err != nil {
		return nil, err
	}
	if n := p.NumStages * p.Degree; n != w.Ranks {
		return nil, usagef("the program has %d ranks, and %d were started", n, w.Ranks)
	}
	hash, err := programHash(p)
	if err != nil {
		return nil, failed(err)
	}
	joined, err := w.Connect(hash, ppc.Version, runtime.LargestMessage(p))
	if err != nil {
		return nil, failed(err)
	}
	only := &member{transport: joined, tells: w.Rank == runtime.LossRank(p), log: log, watch: w.Watch, save: w.Save(), helps: true}
	if only.tells {
		a.out.w = &told{log: log, show: w}
	} else {
		a.out.w = log
	}
	return joined, a.train(ctx, c, p, only)
}

// programHash is the same for the same program.
func programHash(p *plan.Plan) (sum [32]byte, err error) {
	files, err := plan.Files(p, nil)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%s %d\n", f.Path, len(f.Content))
		h.Write(f.Content)
	}
	h.Sum(sum[:0])
	return sum, nil
}

// told is the output of the rank that tells of the run: it goes to its log and to launch.
type told struct {
	log  *bufio.Writer
	show io.Writer
}

func (t *told) Write(b []byte) (int, error) {
	t.log.Write(b) // its error comes back from Flush
	if err := t.log.Flush(); err != nil {
		return 0, err
	}
	return t.show.Write(b)
}
