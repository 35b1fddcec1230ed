package runtime

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// defaultDeadline is how long ranks may make no progress.
const defaultDeadline = 30 * time.Second

// watch looks after the ranks until finished is closed. If none begins an action for the length of the deadline while all
// that are not done wait for messages, nothing can ever go on: that ends the run. If one computes, it is only slow: that is
// told, once per silence. With ranks in other processes only who knows of all of them can tell.
func (r *runner) watch(finished <-chan struct{}, fail func(error)) {
	if r.opt.Transport != nil {
		return
	}
	deadline := r.opt.Deadline
	if deadline <= 0 {
		deadline = defaultDeadline
	}
	tick := time.NewTicker(max(deadline/4, time.Millisecond))
	defer tick.Stop()
	last, since, told := uint64(0), time.Now(), false
	for {
		select {
		case <-finished:
			return
		case <-r.stop:
			return
		case now := <-tick.C:
			if sum := r.progressed(); sum != last {
				last, since, told = sum, now, false
				continue
			}
			if now.Sub(since) < deadline {
				continue
			}
			stuck, report := r.report()
			if r.progressed() != last {
				continue // it went on while the report was made
			}
			if stuck {
				fail(fmt.Errorf("no rank has made progress for %s: %s", deadline, report))
				return
			}
			if !told && r.opt.Notice != nil {
				r.opt.Notice(fmt.Sprintf("no rank has finished an action for %s: %s", deadline, report))
				told = true
			}
		}
	}
}

// progressed counts the actions that all ranks have begun.
func (r *runner) progressed() uint64 {
	sum := uint64(0)
	for _, k := range r.ranks {
		sum += k.progress.Load()
	}
	return sum
}

// report says what every rank is doing, and whether all that are not done wait.
func (r *runner) report() (stuck bool, text string) { return Stuck(r.look()) }

// Status is what a rank is doing.
type Status struct {
	Rank    int
	Actions uint64 // begun so far
	Doing   string // the one under way
	For     int    // the rank that it waits for, -1 if it computes
	Ends    bool   // it does no more than give what there is to who stores it
	Done    bool   // it has nothing to do
}

func (s Status) String() string {
	if s.For >= 0 {
		return fmt.Sprintf("rank %d waits in %s for rank %d", s.Rank, s.Doing, s.For)
	}
	return fmt.Sprintf("rank %d computes in %s", s.Rank, s.Doing)
}

// Stuck says what the ranks are doing, and whether all that are not done wait.
func Stuck(ranks []Status) (stuck bool, text string) {
	var parts []string
	stuck = true
	for _, s := range ranks {
		if !s.Done {
			stuck = stuck && s.For >= 0
			parts = append(parts, s.String())
		}
	}
	return stuck && len(parts) > 0, strings.Join(parts, "; ")
}

// ending is in the place of an action when there are no more.
const ending = math.MaxUint64

// look asks the ranks of this process.
func (r *runner) look() (all []Status) {
	for _, k := range r.ranks {
		s := Status{Rank: k.number, Actions: k.progress.Load(), For: int(k.waitsFor.Load()) - 1, Done: k.finished.Load() || len(k.programs) == 0}
		if !s.Done {
			if at := k.current.Load(); at == ending {
				s.Doing, s.Ends = "the end of the run", true
			} else {
				s.Doing = k.programs[at>>32].actions[at&(1<<32-1)].describe()
			}
		}
		all = append(all, s)
	}
	return all
}
