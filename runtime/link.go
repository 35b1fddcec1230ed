package runtime

import (
	"sync"
	"sync/atomic"
	"time"
)

// link carries one message of a program from one rank to another, once per micro-batch and in their order, inside one
// process. Both sides post buffers; a transfer
// happens when both heads have met, and is a copy by whoever came second.
type link struct {
	mu    sync.Mutex
	sends ring
	recvs ring
	// done counts completed transfers; it only grows.
	done atomic.Uint64
	// wake[0] parks the sender, wake[1] the receiver.
	wake [2]parking
}

type parking struct {
	parked atomic.Bool
	signal chan struct{}
}

// ring holds posted buffers by sequence number.
type ring struct {
	posted  uint64
	buffers [][][]byte
}

func newLink(outstanding int) *link {
	l := &link{}
	l.sends.buffers, l.recvs.buffers = make([][][]byte, outstanding), make([][][]byte, outstanding)
	for i := range l.wake {
		l.wake[i].signal = make(chan struct{}, 1)
	}
	return l
}

func (r *ring) put(b [][]byte) {
	r.buffers[r.posted%uint64(len(r.buffers))] = b
	r.posted++
}

// post gives the buffers of the next send or receive of this side and completes what can be.
func (l *link) post(recv bool, buffers [][]byte) {
	l.mu.Lock()
	if recv {
		l.recvs.put(buffers)
	} else {
		l.sends.put(buffers)
	}
	done := l.done.Load()
	met := min(l.sends.posted, l.recvs.posted)
	for ; done < met; done++ {
		i := done % uint64(len(l.sends.buffers))
		from, to := l.sends.buffers[i], l.recvs.buffers[i]
		for t := range from {
			copy(to[t], from[t])
		}
		l.done.Store(done + 1)
	}
	l.mu.Unlock()
	for i := range l.wake {
		if w := &l.wake[i]; w.parked.Load() && w.parked.Swap(false) {
			select {
			case w.signal <- struct{}{}:
			default:
			}
		}
	}
}

// spinner waits for a link: it polls for a bounded time before it parks. The bound adapts: a wait that ended while
// polling keeps or raises it, a long one that had to park lowers it, so that on a busy machine waiting costs little.
type spinner struct {
	bound time.Duration
	stop  <-chan struct{}
	dead  *atomic.Bool
}

const (
	longestSpin  = 200 * time.Microsecond
	shortestSpin = 2 * time.Microsecond
	worthPolling = 5 * longestSpin // waits up to here include the time to wake up
)

// wait returns when transfer number seq of the link is complete, or false when the run is stopped.
func (s *spinner) wait(l *link, seq uint64, side int) bool {
	if l.done.Load() > seq {
		return true
	}
	start := time.Now()
	if s.bound > 0 {
		for {
			for range 64 {
				if l.done.Load() > seq {
					s.bound = min(longestSpin, max(s.bound, 2*time.Since(start)+shortestSpin))
					return true
				}
			}
			if s.dead.Load() {
				return false
			}
			if time.Since(start) > s.bound {
				break
			}
		}
	}
	w := &l.wake[side]
	for {
		w.parked.Store(true)
		if l.done.Load() > seq {
			w.parked.Store(false)
			return true
		}
		select {
		case <-w.signal:
		case <-s.stop:
			return false
		}
		if l.done.Load() > seq {
			s.adapt(time.Since(start))
			return true
		}
	}
}

// adapt sets the bound after a wait that had to park. One that was short all the same would have been shorter still without
// parking: the next ones may poll for longer. One that was long shows that the peer does not have a processor.
func (s *spinner) adapt(waited time.Duration) {
	switch {
	case s.bound == 0:
	case waited < worthPolling:
		s.bound = min(longestSpin, 2*s.bound)
	default:
		s.bound = max(shortestSpin, s.bound/2)
	}
}
