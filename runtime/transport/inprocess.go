package transport

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// InProcess joins ranks that are goroutines of this process.
type InProcess struct {
	spin   time.Duration
	mu     sync.Mutex // ranks may ask for queues and groups at the same time
	queues map[int]*queue
	groups map[int]*group
}

// NewInProcess joins that many ranks.
func NewInProcess(ranks int) *InProcess {
	t := &InProcess{spin: longestSpin, queues: map[int]*queue{}, groups: map[int]*group{}}
	if ranks > runtime.GOMAXPROCS(0) {
		t.spin = 0
	}
	return t
}

// Holds tells that every rank lives here.
func (t *InProcess) Holds(int) bool { return true }

// Endpoint is what a rank has of the transport.
func (t *InProcess) Endpoint(rank int, stop <-chan struct{}, waiting func(rank int)) Endpoint {
	return &local{transport: t, rank: rank, stop: stop, waiting: waiting, spin: t.spin}
}

// local is the endpoint of a goroutine.
type local struct {
	transport *InProcess
	rank      int
	stop      <-chan struct{}
	waiting   func(rank int)
	spin      time.Duration // for how long to poll before parking
}

func (e *local) End(q Queue) End {
	e.transport.mu.Lock()
	defer e.transport.mu.Unlock()
	l := e.transport.queues[q.ID]
	if l == nil {
		l = newQueue(q.Outstanding)
		e.transport.queues[q.ID] = l
	}
	if q.From == e.rank {
		return &end{local: e, queue: l, side: 0, peer: q.To}
	}
	return &end{local: e, queue: l, side: 1, peer: q.From}
}

func (e *local) Join(m Members) Group {
	e.transport.mu.Lock()
	defer e.transport.mu.Unlock()
	g := e.transport.groups[m.ID]
	if g == nil {
		g = newGroup(m)
		e.transport.groups[m.ID] = g
	}
	return &member{local: e, group: g, index: slices.Index(m.Ranks, e.rank)}
}

// end is one side of a queue: 0 sends, 1 receives.
type end struct {
	*local
	queue *queue
	side  int
	peer  int
}

func (e *end) Post(buffers [][]byte) { e.queue.post(e.side, buffers) }

func (e *end) Done(n uint64) bool { return e.queue.done.Load() > n }

const (
	longestSpin  = 200 * time.Microsecond
	shortestSpin = 2 * time.Microsecond
	worthPolling = 5 * longestSpin // waits up to here include the time to wake up
)

// Wait polls for a bounded time before it parks. The bound adapts: a wait that ended while polling keeps or raises it, a long
// one that had to park lowers it, so that on a busy machine waiting costs little.
func (e *end) Wait(n uint64) error {
	l := e.queue
	if l.done.Load() > n {
		return nil
	}
	e.waiting(e.peer)
	defer e.waiting(-1)
	start := time.Now()
	if e.spin > 0 {
		for {
			for range 64 {
				if l.done.Load() > n {
					e.spin = min(longestSpin, max(e.spin, 2*time.Since(start)+shortestSpin))
					return nil
				}
			}
			if time.Since(start) > e.spin {
				break
			}
			select {
			case <-e.stop:
				return ErrStopped
			default:
			}
		}
	}
	w := &l.wake[e.side]
	for {
		w.parked.Store(true)
		if l.done.Load() > n {
			w.parked.Store(false)
			return nil
		}
		select {
		case <-w.signal:
		case <-e.stop:
			return ErrStopped
		}
		if l.done.Load() > n {
			e.spin = adapt(e.spin, time.Since(start))
			return nil
		}
	}
}

// adapt is the bound after a wait that had to park. One that was short all the same would have been shorter still without
// parking: the next ones may poll for longer. One that was long shows that the peer does not have a processor.
func adapt(spin, waited time.Duration) time.Duration {
	switch {
	case spin == 0:
		return 0
	case waited < worthPolling:
		return min(longestSpin, 2*spin)
	}
	return max(shortestSpin, spin/2)
}
