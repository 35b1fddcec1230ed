package runtime

import (
	"fmt"
	"strings"
	"time"
)

// defaultDeadline is how long ranks may make no progress.
const defaultDeadline = 30 * time.Second

// watch looks after the ranks until finished is closed. If none begins an action for the length of the deadline while all
// that are not done wait for messages, nothing can ever go on: that ends the run. If one computes, it is only slow: that is
// told, once per silence.
func (r *runner) watch(finished <-chan struct{}, fail func(error)) {
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
func (r *runner) report() (stuck bool, text string) {
	var parts []string
	stuck = true
	for _, k := range r.ranks {
		if k.finished.Load() || len(k.programs) == 0 {
			continue
		}
		at := k.current.Load()
		p := k.programs[at>>32]
		a := &p.actions[at&(1<<32-1)]
		if peer := k.waitsFor.Load(); peer > 0 {
			parts = append(parts, fmt.Sprintf("rank %d waits in %s for rank %d", k.number, a.describe(), peer-1))
		} else {
			stuck = false
			parts = append(parts, fmt.Sprintf("rank %d computes in %s", k.number, a.describe()))
		}
	}
	return stuck && len(parts) > 0, strings.Join(parts, "; ")
}
