//go:build linux

package launch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/runtime"
)

// Options of a supervisor.
type Options struct {
	Ranks int
	// Command makes the command of a worker. Its environment and further files are set here.
	Command func(rank int) *exec.Cmd
	// Dir is a name that no folder has, of the form .../ppc-*. Fill makes the folder, which only this user may enter, when workers run
	// that remove it if this process is killed. It is removed once the workers are joined.
	Dir      string
	Fill     func() error
	Shared   bool          // messages go through shared memory, not through sockets
	Deadline time.Duration // see runtime.Options
	Output   func(text string)
	Event    func(text string) // for a log of what happens to the workers
	Notice   func(text string)
	Report   <-chan os.Signal // asks for what the ranks do, as a Notice
	Save     <-chan struct{}  // closed: the ranks are to save and end
}

// runFailed is the exit code of a worker that has been ended.
const runFailed = 3

// grace is how long workers that have been told to stop may take.
const grace = 2 * time.Second

// answer is how long workers have to tell what they do when somebody asks.
const answer = 100 * time.Millisecond

// worker is a process as the supervisor sees it.
type worker struct {
	rank    int
	cmd     *exec.Cmd
	channel *channel
	step    kind // how far it has come: the last of listening, ready, done
	seen    time.Time
	status  *runtime.Status
	failure *Failure
	exited  bool
	state   string // how it exited
}

// event is something that a worker has said or done.
type event struct {
	worker *worker
	message
	exited bool
	state  string
}

// supervisor is a run.
type supervisor struct {
	opt     Options
	workers []*worker
	events  chan event
	pending *Failure         // of a rank that lost another one, whose end may explain more
	decide  <-chan time.Time // when to look no further for the first reason
	died    *worker          // ended without a word
	told    bool             // that a rank is slow
	actions uint64           // of all ranks, when they last changed
	since   time.Time
}

// Run starts the workers and returns when all have ended: nil when each was done, *Failure for the first that failed, ctx's
// error when that ended the run. No process is left then, and no folder.
func Run(ctx context.Context, o Options) error {
	s := &supervisor{opt: o, events: make(chan event, 64), since: time.Now()}
	finished := make(chan struct{})
	defer close(finished)
	defer os.RemoveAll(o.Dir)
	err := s.startAll(finished)
	if err == nil {
		err = s.giveJobs()
	}
	if err == nil {
		err = s.watch(ctx)
	}
	s.end()
	return err
}

// giveJobs makes the folder and tells the workers, which wait for that, what they are.
func (s *supervisor) giveJobs() error {
	if err := s.opt.Fill(); err != nil {
		return err
	}
	token := make([]byte, 32)
	rand.Read(token)
	for _, w := range s.workers {
		w.seen = time.Now()
		w.channel.send(message{Kind: job, Job: &Job{Rank: w.rank, Ranks: s.opt.Ranks, Dir: s.opt.Dir, Token: token, Shared: s.opt.Shared, Deadline: s.opt.Deadline}})
	}
	return nil
}

// startAll starts every worker from one thread, which lives as long as the run: a worker ends with the thread that started it.
func (s *supervisor) startAll(finished <-chan struct{}) error {
	result := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		for rank := range s.opt.Ranks {
			if err := s.start(rank); err != nil {
				result <- fmt.Errorf("rank %d cannot be started: %w", rank, err)
				break
			}
		}
		close(result)
		<-finished
	}()
	return <-result
}

func (s *supervisor) start(rank int) error {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	own, theirs := os.NewFile(uintptr(fds[0]), "worker"), os.NewFile(uintptr(fds[1]), "supervisor")
	defer theirs.Close()
	w := &worker{rank: rank, cmd: s.opt.Command(rank), channel: &channel{file: own}, seen: time.Now()}
	w.cmd.ExtraFiles = []*os.File{theirs}
	w.cmd.Env = append(os.Environ(), variable+"="+s.opt.Dir)
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the terminal goes to the supervisor alone
	if err := w.cmd.Start(); err != nil {
		own.Close()
		return fmt.Errorf("%s: %w", w.cmd.Path, err)
	}
	s.workers = append(s.workers, w)
	s.opt.Event(fmt.Sprintf("rank %d is process %d", rank, w.cmd.Process.Pid))
	go func() {
		for {
			m, err := w.channel.receive()
			if err != nil {
				break
			}
			s.events <- event{worker: w, message: m}
		}
		w.cmd.Wait() // the state says all
		s.events <- event{worker: w, exited: true, state: ending(w.cmd.ProcessState)}
	}()
	return nil
}

// ending says how a process ended.
func ending(p *os.ProcessState) string {
	if st, ok := p.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return fmt.Sprintf("has been ended by the signal `%s`", st.Signal())
	}
	return fmt.Sprintf("has ended with the code %d", p.ExitCode())
}

// watch follows the workers until all are done or one has failed.
func (s *supervisor) watch(ctx context.Context) error {
	every := beatEvery(s.opt.Deadline)
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := time.Now()
	var answered <-chan time.Time
	wish := s.opt.Save
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wish:
			wish = nil
			s.opt.Event("the ranks are to save and end")
			s.tell(save)
		case <-s.opt.Report:
			s.tell(ask)
			answered = time.After(answer)
		case <-answered:
			s.opt.Notice(s.report())
		case <-s.decide:
			return s.reason()
		case e := <-s.events:
			if finished, err := s.handle(e); finished || err != nil {
				return err
			}
		case now := <-tick.C:
			if gap := now.Sub(last) - 2*every; gap > 0 { // the supervisor itself has been stopped: nobody else was silent
				for _, w := range s.workers {
					w.seen = w.seen.Add(gap)
				}
				s.since = s.since.Add(gap)
			}
			last = now
			if err := s.judge(now); err != nil {
				return err
			}
		}
	}
}

// handle takes what a worker has said or done.
func (s *supervisor) handle(e event) (finished bool, err error) {
	w := e.worker
	w.seen = time.Now()
	switch {
	case e.exited:
		w.exited, w.state = true, e.state
		s.opt.Event(fmt.Sprintf("rank %d %s", w.rank, e.state))
		if w.failure == nil && w.step != leave {
			if s.died == nil {
				s.died = w
			}
			s.wait()
		}
		return s.all(leave) && s.gone(), nil
	case e.Kind == alive:
		if e.Status != nil {
			w.status = e.Status
		}
	case e.Kind == output:
		s.opt.Output(e.Text)
	case e.Kind == failed && e.Failure != nil:
		w.failure = e.Failure
		s.opt.Event(fmt.Sprintf("rank %d has failed: %s", w.rank, e.Failure))
		if e.Failure.Gone == 0 {
			return false, e.Failure
		}
		if s.pending == nil {
			s.pending = e.Failure
		}
		s.wait()
	case e.Kind == listening && s.reach(w, "", listening):
		s.tell(connect)
	case e.Kind == ready && s.reach(w, listening, ready):
		s.opt.Event("all ranks are joined")
		os.RemoveAll(s.opt.Dir)
		s.tell(start)
	case e.Kind == done && s.reach(w, ready, done):
		for _, w := range s.workers {
			w.step = leave
		}
		s.tell(leave)
	}
	return false, nil
}

// wait gives other workers some time to tell more about a failure.
func (s *supervisor) wait() {
	if s.died != nil && s.pending != nil {
		s.decide = time.After(0) // there is nothing more to learn
	} else if s.decide == nil {
		s.decide = time.After(min(time.Second/2, s.opt.Deadline/2))
	}
}

// reason makes an error of a rank that ended without a word, of one that noticed it, or of both.
func (s *supervisor) reason() error {
	switch {
	case s.died == nil:
		return s.pending
	case s.pending != nil:
		return s.failure("rank %d %s; %s", s.died.rank, s.died.state, s.pending.Faults[0].Message)
	}
	text := s.report()
	if text != "" {
		text = "; " + text
	}
	return s.failure("rank %d %s%s", s.died.rank, s.died.state, text)
}

func (s *supervisor) failure(format string, args ...any) *Failure {
	return NewFailure(runFailed, diag.List{diag.Errorf(diag.RunFailed, diag.Range{}, format, args...)})
}

// reach notes how far a worker has come and tells whether all have come that far.
func (s *supervisor) reach(w *worker, from, to kind) bool {
	if w.step == from {
		w.step = to
	}
	return s.all(to)
}

func (s *supervisor) all(step kind) bool {
	return !slices.ContainsFunc(s.workers, func(w *worker) bool { return w.step != step })
}

func (s *supervisor) gone() bool {
	return !slices.ContainsFunc(s.workers, func(w *worker) bool { return !w.exited })
}

// tell sends an order to all workers. One that does not take it has ended, which is another event.
func (s *supervisor) tell(k kind) {
	for _, w := range s.workers {
		w.channel.send(message{Kind: k})
	}
}

// statuses are those of all ranks that have one.
func (s *supervisor) statuses() (all []runtime.Status) {
	for _, w := range s.workers {
		if w.status != nil && !w.exited && w.step != done {
			all = append(all, *w.status)
		}
	}
	return all
}

// report says what every rank does.
func (s *supervisor) report() string {
	_, text := runtime.Stuck(s.statuses())
	if text == "" && !s.all(leave) {
		var behind []string
		for _, w := range s.workers {
			if w.status == nil && !w.exited {
				behind = append(behind, fmt.Sprint(w.rank))
			}
		}
		if len(behind) > 0 {
			return "ranks that have not begun: " + strings.Join(behind, ", ")
		}
	}
	return text
}

// judge ends a run with a silent worker, or one in which no rank can ever go on. It tells of one that is slow.
func (s *supervisor) judge(now time.Time) error {
	deadline := s.opt.Deadline
	for _, w := range s.workers {
		if !w.exited && now.Sub(w.seen) > deadline {
			what := "it had not begun"
			if w.status != nil {
				what = "when last heard, " + w.status.String()
			}
			text := ""
			for _, x := range s.statuses() {
				if x.For == w.rank {
					text += "; " + x.String()
				}
			}
			return s.failure("rank %d has given no sign of life for %s: %s%s", w.rank, deadline, what, text)
		}
	}
	all := s.statuses()
	sum := uint64(0)
	for _, x := range all {
		sum += x.Actions
	}
	if sum != s.actions || len(all) < len(s.workers) {
		s.actions, s.since, s.told = sum, now, false
		return nil
	}
	if now.Sub(s.since) < deadline {
		return nil
	}
	stuck, text := runtime.Stuck(all)
	if stuck {
		return s.failure("no rank has made progress for %s: %s", deadline, text)
	}
	if !s.told && text != "" {
		s.told = true
		s.opt.Notice(fmt.Sprintf("no rank has finished an action for %s: %s", deadline, text))
	}
	return nil
}

// end stops what still runs: at first by word, which lets a worker close its files, then by force.
func (s *supervisor) end() {
	s.tell(stop)
	for _, w := range s.workers {
		if time.Since(w.seen) > s.opt.Deadline {
			w.cmd.Process.Kill()
		}
	}
	timeout := time.After(min(grace, s.opt.Deadline))
	for !s.gone() {
		select {
		case e := <-s.events:
			e.worker.exited = e.worker.exited || e.exited
		case <-timeout:
			for _, w := range s.workers {
				if !w.exited {
					if err := w.cmd.Process.Kill(); err == nil || !errors.Is(err, os.ErrProcessDone) {
						s.opt.Event(fmt.Sprintf("rank %d does not stop and is killed", w.rank))
					}
				}
			}
			timeout = nil
		}
	}
	for _, w := range s.workers {
		w.channel.file.Close()
	}
}
