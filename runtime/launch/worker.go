//go:build linux

package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/transport/process"
)

// A worker finds its end of the channel in file 3, and the supervisor's folder in this variable.
const (
	channelFile = 3
	variable    = "PPC_LAUNCHED"
)

// ErrAlone is what Join gives in a process that no supervisor has started.
var ErrAlone = errors.New("a worker is started by `ppc launch`, or by mpirun")

// Launched reports whether a supervisor has started this process.
func Launched() bool { return os.Getenv(variable) != "" }

// Worker is the process of one rank, as it sees its supervisor.
type Worker struct {
	Job
	channel channel
	orders  chan kind
	ctx     context.Context
	lost    chan struct{}
	save    chan struct{}
	look    atomic.Pointer[func() []runtime.Status]
}

// Join takes up the job that the supervisor gives. The context it returns ends when the supervisor says so, or is gone.
func Join(ctx context.Context) (*Worker, context.Context, error) {
	if os.Getenv(variable) == "" {
		return nil, ctx, ErrAlone
	}
	dir := os.Getenv(variable)
	os.Unsetenv(variable)
	w := &Worker{channel: channel{file: os.NewFile(channelFile, "supervisor")}, orders: make(chan kind, 4), lost: make(chan struct{}), save: make(chan struct{})}
	m, err := w.channel.receive()
	if err != nil || m.Kind != job || m.Job == nil || len(m.Job.Token) != 32 {
		// A supervisor that is killed now leaves its folder to the workers that it has started.
		if filepath.IsAbs(dir) && strings.HasPrefix(filepath.Base(dir), "ppc-") {
			os.RemoveAll(dir)
		}
		return nil, ctx, ErrAlone
	}
	w.Job = *m.Job
	ctx, cancel := context.WithCancel(ctx)
	w.ctx = ctx
	go func() {
		defer cancel()
		for {
			m, err := w.channel.receive()
			switch {
			case err != nil:
				close(w.lost)
				return
			case m.Kind == stop:
				cancel()
			case m.Kind == ask:
				w.sign()
			case m.Kind == save:
				close(w.save) // it is said once
			default:
				select {
				case w.orders <- m.Kind:
				case <-ctx.Done():
				}
			}
		}
	}()
	go w.beat()
	return w, ctx, nil
}

// beatEvery is the time between two signs of life.
func beatEvery(deadline time.Duration) time.Duration {
	return min(max(deadline/8, 5*time.Millisecond), time.Second)
}

func (w *Worker) beat() {
	tick := time.NewTicker(beatEvery(w.Deadline))
	defer tick.Stop()
	for w.sign() == nil {
		<-tick.C
	}
}

// sign gives a sign of life.
func (w *Worker) sign() error {
	m := message{Kind: alive}
	if look := w.look.Load(); look != nil {
		if all := (*look)(); len(all) > 0 {
			m.Status = &all[0]
		}
	}
	return w.channel.send(m)
}

// Watch has the signs of life say what the rank is doing.
func (w *Worker) Watch(look func() []runtime.Status) {
	w.look.Store(&look)
	w.sign() // a supervisor that is gone is noticed elsewhere
}

// Lost is closed when the supervisor is gone. What it would have removed is then up to the workers.
func (w *Worker) Lost() <-chan struct{} { return w.lost }

// Save is closed when the supervisor wants the run to save and end.
func (w *Worker) Save() <-chan struct{} { return w.save }

// order waits for the supervisor.
func (w *Worker) order(want kind) error {
	select {
	case k := <-w.orders:
		if k != want {
			return errors.New("the supervisor does not keep to the order of messages")
		}
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// Connect joins the other ranks. plan is the hash of the program, version that of the command: all must have the same. largest
// is the size of the largest message.
func (w *Worker) Connect(plan [32]byte, version string, largest int) (*process.Ranks, error) {
	c := process.Config{Rank: w.Rank, Ranks: w.Ranks, Dir: w.Dir, Plan: plan, Version: version, Shared: w.Shared, Largest: largest, Deadline: w.Deadline}
	copy(c.Token[:], w.Token)
	l, err := process.Listen(c)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := w.channel.send(message{Kind: listening}); err != nil {
		return nil, err
	}
	if err := w.order(connect); err != nil {
		return nil, err
	}
	r, err := l.Connect(w.ctx)
	if err != nil {
		return nil, err
	}
	if err = w.channel.send(message{Kind: ready}); err == nil {
		err = w.order(start)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	process.EndWithParent()
	return r, nil
}

// Write has the supervisor show a text.
func (w *Worker) Write(b []byte) (int, error) {
	for at := 0; at < len(b); at += mostMessage / 8 {
		if err := w.channel.send(message{Kind: output, Text: string(b[at:min(len(b), at+mostMessage/8)])}); err != nil {
			return at, err
		}
	}
	return len(b), nil
}

// Fail tells why the worker ends. An error says that the supervisor is gone.
func (w *Worker) Fail(code int, list diag.List, reason error) error {
	f := NewFailure(code, list)
	var gone *process.Gone
	if errors.As(reason, &gone) {
		f.Gone = gone.Rank + 1
	}
	return w.channel.send(message{Kind: failed, Failure: f})
}

// Done tells that the worker has done its part, and waits until all have.
func (w *Worker) Done() error {
	if err := w.channel.send(message{Kind: done}); err != nil {
		return err
	}
	return w.order(leave)
}
