package runtime

import (
	"context"
	"fmt"
	"time"
)

// Preempted is how a run ends that Checkpoint.Preempt has ended.
type Preempted struct {
	Steps int    // of the training so far
	Path  string // of the checkpoint behind them
}

func (p *Preempted) Error() string {
	return fmt.Sprintf("interrupted: %s has the state after %d steps", p.Path, p.Steps)
}

// Ranks look together whether one of them is to leave, about as often as meetEvery, but behind so many steps at the latest.
const (
	meetEvery     = 250 * time.Millisecond
	mostUnwatched = 100
)

// watched is when the ranks have last met to see whether the run is to end early, and when they do so next. It is the same on all
// ranks but for the time.
type watched struct {
	since      time.Time
	last, next int // steps
}

// leaves tells whether the run is to end behind that many steps. A wish may have come to one rank only, and ranks may be a step
// apart: they decide together, and together when to meet again, by the time that the first one needs for a step.
func (r *runner) leaves(k *rank, w *watched, steps int) (leave bool, err error) {
	if r.opt.Checkpoint.Preempt == nil || steps < w.next {
		return false, nil
	}
	wish := 0.0
	select {
	case <-r.opt.Checkpoint.Preempt:
		wish = 1
	default:
	}
	all, err := k.world.Gather([]float64{wish, time.Since(w.since).Seconds() / float64(steps-w.last)})
	if err != nil {
		return false, k.during("asking whether the run is to go on", err)
	}
	for _, v := range all {
		leave = leave || v[0] != 0
	}
	w.since, w.last = time.Now(), steps
	w.next = steps + int(min(max(meetEvery.Seconds()/all[0][1], 1), mostUnwatched))
	return leave, nil
}

// leave ends the run behind that many steps, when their state is saved by all.
func (r *runner) leave(k *rank, steps int, saved bool) error {
	if !saved {
		if err := r.save(k, steps); err != nil {
			return err
		}
	}
	if _, err := k.world.Gather(nil); err != nil {
		return k.during("waiting for the others to save", err)
	}
	return &Preempted{Steps: steps, Path: r.opt.Checkpoint.store().Path(steps)}
}

// orPreempted is ctx, and ends also when the run is to: for what comes behind the training, whose end is saved.
func (r *runner) orPreempted(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if wish := r.opt.Checkpoint.Preempt; wish != nil {
		go func() {
			select {
			case <-wish:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}
