package transport

import (
	"sync"
	"sync/atomic"
)

// queue is a queue inside one process. Both sides post buffers; a transfer happens when both heads have met, and is a copy
// by whoever came second.
type queue struct {
	mu     sync.Mutex
	posted [2]ring // by side: 0 sends, 1 receives
	// done counts completed transfers; it only grows.
	done atomic.Uint64
	wake [2]parking // by side
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

func newQueue(outstanding int) *queue {
	l := &queue{}
	for side := range l.posted {
		l.posted[side].buffers = make([][][]byte, outstanding)
		l.wake[side].signal = make(chan struct{}, 1)
	}
	return l
}

func (r *ring) put(b [][]byte) {
	*r.at(r.posted) = b
	r.posted++
}

func (r *ring) at(n uint64) *[][]byte { return &r.buffers[n%uint64(len(r.buffers))] }

// post gives the buffers of the next send or receive of a side and completes what can be.
func (l *queue) post(side int, buffers [][]byte) {
	l.mu.Lock()
	l.posted[side].put(buffers)
	done := l.done.Load()
	met := min(l.posted[0].posted, l.posted[1].posted)
	for ; done < met; done++ {
		from, to := *l.posted[0].at(done), *l.posted[1].at(done)
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
