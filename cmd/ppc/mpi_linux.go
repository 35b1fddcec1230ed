package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
	"github.com/ppc-lang/ppc/runtime/transport"
	"github.com/ppc-lang/ppc/runtime/transport/mpi"
)

// workUnderMPI is one rank that mpirun has started. The first one speaks for all where they would say the same.
func (a *app) workUnderMPI(ctx context.Context, c *cli.Command) error {
	deadline := c.Duration("deadline")
	if deadline <= 0 {
		return usagef("-deadline is %s; it must be longer than nothing", deadline)
	}
	late := a.giveUp(max(deadline, longestStart), "MPI has not joined this rank with the others")
	world, rank, ranks, err := mpi.Start()
	late.Stop()
	switch {
	case errors.Is(err, mpi.ErrMissing):
		return &failure{code: 3, err: diag.List{diag.Errorf(diag.MissingTool, diag.Range{}, "%v", err).
			WithRepair("install Open MPI where the workers run (Debian: openmpi-bin), or use ppc launch on one machine")}}
	case err != nil:
		return failed(err)
	}
	go endWithParent()
	tells, err := a.rankUnderMPI(ctx, c, world, rank, ranks)
	var f *failure
	var saved *runtime.Preempted
	if err == nil || errors.As(err, &f) && errors.As(f.reason, &saved) { // on all ranks
		if err != nil && rank == 0 {
			a.show(ppc.Diagnostics(f), false) // mpirun shows nothing more when the first one has ended
		}
		if !tells {
			deadline *= storing
		}
		defer a.giveUp(deadline, "others do not come to the end of the run").Stop()
		if err := world.Finish(); err != nil {
			return failed(err)
		}
		if err != nil {
			return &failure{code: f.code, err: diag.List{}}
		}
		return nil
	}
	// The others wait for this rank: MPI ends them. What is wrong is printed before that; what all find wrong, by the first, whom
	// the others give the time to have them ended.
	if !errors.As(err, &f) {
		f = &failure{code: 2, err: err}
	}
	var waited *nothingCame
	if errors.As(f.reason, &waited) { // each rank knows whom it waits for; only all together show who keeps them
		a.show(ppc.Diagnostics(f), false)
		time.Sleep(c.Duration("deadline") / 4)
		world.Abort(f.code)
		return err
	}
	if rank > 0 {
		ended := ctx.Done()
		if errors.Is(f.reason, context.Canceled) {
			ended = nil // the signal may have come to this rank only
		}
		select {
		case <-ended:
			os.Exit(f.code)
		case <-time.After(time.Second):
			fmt.Fprintf(a.err, "rank %d:\n", rank)
		}
	}
	a.show(ppc.Diagnostics(f), f.code == 2)
	time.Sleep(time.Second / 10) // mpirun may forget what it has not shown yet
	world.Abort(f.code)
	return err
}

// storing is how many deadlines others wait for the rank that tells of the run, and stores what there is.
const storing = 10

// longestStart is what ranks get at least to find each other: MPI takes its time for that, on a busy machine or many.
const longestStart = 10 * time.Second

// giveUp ends the process if a call of MPI, which waits for all ranks and which nothing else ends, takes longer than that.
func (a *app) giveUp(deadline time.Duration, what string) *time.Timer {
	return time.AfterFunc(deadline, func() {
		rank := os.Getenv("OMPI_COMM_WORLD_RANK")
		a.show(diag.List{diag.Errorf(diag.RunFailed, diag.Range{}, "rank %s: %s for %s", rank, what, deadline)}, false)
		time.Sleep(time.Second / 2) // for the others to say so too: who does not is the one
		os.Exit(3)
	})
}

// endWithParent ends this process when the one that started it, mpirun or its helper on this host, has ended without ending it.
func endWithParent() {
	for parent := os.Getppid(); os.Getppid() == parent; {
		time.Sleep(100 * time.Millisecond)
	}
	os.Exit(3)
}

// rankUnderMPI runs a rank and says whether it tells of the run.
func (a *app) rankUnderMPI(ctx context.Context, c *cli.Command, world *mpi.Ranks, rank, ranks int) (tells bool, err error) {
	name, err := file(c)
	if err != nil {
		return false, err
	}
	if err := apart(c, name); err != nil {
		return false, err
	}
	if st, err := os.Stat(name); err == nil && !st.IsDir() && !c.IsSet("devices") {
		if err := c.Set("devices", fmt.Sprint(ranks)); err != nil {
			return false, err
		}
	}
	p, err := a.plan(ctx, c, name)
	if err != nil {
		return false, err
	}
	if n := p.NumStages * p.Degree; n != ranks {
		return false, usagef("the program has %d ranks, and mpirun has started %d", n, ranks)
	}
	hash, err := programHash(p)
	if err != nil {
		return false, failed(err)
	}
	if err := agree(world, rank, ranks, append(hash[:], settings(c)...), max(c.Duration("deadline"), longestStart)); err != nil {
		return false, err
	}
	dir := c.String("log-dir")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return false, cannotWrite(dir, err)
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("worker_%d.log", rank)))
	if err != nil {
		return false, cannotWrite(dir, err)
	}
	defer f.Close()
	log := bufio.NewWriterSize(f, 1<<16)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	one := &member{transport: world, tells: rank == runtime.LossRank(p), log: log, helps: rank > 0, hosts: true}
	one.watch = func(look func() []runtime.Status) { go watchAlone(ctx, look, c.Duration("deadline"), stop) }
	if a.out.w = log; one.tells {
		a.out.w = &told{log: log, show: os.Stdout}
	}
	err = a.train(ctx, c, p, one)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = failed(cause)
	}
	if err != nil {
		fmt.Fprintln(log, err) // mpirun shows nothing any more when it has been told to end
	}
	if e := log.Flush(); err == nil && e != nil {
		err = cannotWrite(dir, e)
	}
	return one.tells, err
}

// nothingCame is the error of a rank that has waited for too long.
type nothingCame struct{ error }

// watchAlone ends the run if this rank waits for longer than the deadline in one action: of the others it knows nothing.
func watchAlone(ctx context.Context, look func() []runtime.Status, deadline time.Duration, stop context.CancelCauseFunc) {
	tick := time.NewTicker(max(deadline/8, time.Millisecond))
	defer tick.Stop()
	last, since := uint64(0), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			all := look()
			waits, text := runtime.Stuck(all)
			actions, limit := uint64(0), deadline
			for _, s := range all {
				actions += s.Actions
				if s.Ends {
					limit = storing * deadline
				}
			}
			if !waits || actions != last {
				last, since = actions, now
			} else if now.Sub(since) >= limit {
				stop(&nothingCame{fmt.Errorf("nothing has come for %s: %s", limit, text)})
				return
			}
		}
	}
}

// agreement is the group in which ranks compare their programs; no queue or group of a run has its number.
const agreement = 1 << 20

// longestVersion is how much ranks tell each other of their versions.
const longestVersion = 64

// agree makes sure that all ranks run one program with one version of ppc.
// hashes are those of its program and of its settings.
func agree(world *mpi.Ranks, rank, ranks int, hashes []byte, deadline time.Duration) error {
	if ranks == 1 {
		return nil
	}
	var values []float64
	for _, b := range append(hashes, ppc.Version[:min(len(ppc.Version), longestVersion)]...) {
		values = append(values, float64(b))
	}
	everyone := transport.Members{ID: agreement, Values: len(hashes) + longestVersion}
	for k := range ranks {
		everyone.Ranks = append(everyone.Ranks, k)
	}
	late, peer := make(chan struct{}), 0
	defer time.AfterFunc(deadline, func() { close(late) }).Stop()
	waiting := func(k int) {
		if k >= 0 {
			peer = k
		}
	}
	all, err := world.Endpoint(rank, late, waiting).Join(everyone).Gather(values)
	if err == transport.ErrStopped {
		return failed(fmt.Errorf("nothing has come for %s: rank %d waits for rank %d to say which program it has", deadline, rank, peer))
	}
	if err != nil {
		return failed(fmt.Errorf("rank %d: comparing programs: %w", rank, err))
	}
	return differs(all, rank)
}

// perHost are the flags in which the ranks of a run may differ.
var perHost = []string{"data", "log-dir", "deadline"}

// settings is the hash of the flags that all ranks of a run have in common, and of the kernels that they run.
func settings(c *cli.Command) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "seed=%s\n", c.String("seed"))
	for _, f := range append(runFlags(), inferFlags()...) {
		if n := f.Names()[0]; n == "cpu" && c.String(n) == "" {
			names := kernel.Available() // the last is the best
			fmt.Fprintf(h, "cpu=%s\n", names[len(names)-1])
		} else if !slices.Contains(perHost, n) {
			fmt.Fprintf(h, "%s=%v\n", n, c.Value(n))
		}
	}
	return h.Sum(nil)
}

// differs compares what the ranks say, two hashes and a version, with what this one says. Of another version the hashes mean nothing.
func differs(all [][]float64, rank int) error {
	version := func(k int) string {
		var b []byte
		for _, v := range all[k][min(2*sha256.Size, len(all[k])):] {
			b = append(b, byte(v))
		}
		return string(b)
	}
	for k, v := range all {
		var what, repair string
		switch {
		case version(k) != version(rank):
			what, repair = fmt.Sprintf("version %s of ppc, and rank %d has version %s", version(k), rank, version(rank)), "install one version of ppc on all hosts"
		case !slices.Equal(v[:sha256.Size], all[rank][:sha256.Size]):
			what, repair = fmt.Sprintf("another program than rank %d", rank), "give all hosts the same bundle"
		case !slices.Equal(v[sha256.Size:], all[rank][sha256.Size:]):
			what = fmt.Sprintf("other flags, or other kernels, than rank %d", rank)
			repair = "give all ranks the same flags, but for -" + strings.Join(perHost, ", -") + "; -cpu says which kernels run, also on hosts that differ"
		default:
			continue
		}
		return wrong(diag.List{diag.Errorf(diag.BadBundle, diag.Range{}, "rank %d has %s", k, what).WithRepair("%s", repair)})
	}
	return nil
}
