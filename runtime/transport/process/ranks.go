//go:build linux

package process

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ppc-lang/ppc/runtime/transport"
)

// Ranks is the transport of a process that holds one rank. Listen and Connect make it.
type Ranks struct {
	rank    int
	peers   []*peer // by rank; nil for the own one
	others  []*peer
	fds     []unix.PollFd // by others
	stop    <-chan struct{}
	waiting func(rank int)
	spin    time.Duration // for how long to poll before sleeping
	err     error         // ends every wait
}

const (
	longestSpin  = 200 * time.Microsecond
	shortestSpin = 5 * time.Microsecond
	worthPolling = 5 * longestSpin // waits up to here include the time to wake up
	// sleepAtMost is how long a sleeping rank does not see that the run has been stopped.
	sleepAtMost = 50 * time.Millisecond
)

// newRanks makes a transport without connections. Only with a processor for every rank is it worth while to poll; of a socket too,
// though each look is a system call: to be woken costs more.
func newRanks(rank, ranks int) *Ranks {
	r := &Ranks{rank: rank, peers: make([]*peer, ranks)}
	if ranks <= runtime.NumCPU() {
		r.spin = longestSpin
	}
	return r
}

func (r *Ranks) add(rank int, s stream) {
	p := &peer{ranks: r, rank: rank, stream: s, senders: map[uint64]*sender{}, receivers: map[uint64]*receiver{}}
	r.peers[rank] = p
	r.others = append(r.others, p)
	r.fds = append(r.fds, unix.PollFd{})
}

// Holds tells that one rank lives here.
func (r *Ranks) Holds(rank int) bool { return rank == r.rank }

// Endpoint is that of the one rank.
func (r *Ranks) Endpoint(_ int, stop <-chan struct{}, waiting func(rank int)) transport.Endpoint {
	r.stop, r.waiting = stop, waiting
	return r
}

// End is this rank's side of a queue.
func (r *Ranks) End(q transport.Queue) transport.End {
	if q.From == r.rank {
		return newSender(r, r.peers[q.To], queueTag(q.ID), q)
	}
	return newReceiver(r, r.peers[q.From], queueTag(q.ID), q)
}

// Close ends the connections. Peers that still wait for this rank learn that it is gone.
func (r *Ranks) Close() {
	for _, p := range r.others {
		p.stream.close()
	}
}

// progress moves what can be moved, from and to all peers.
func (r *Ranks) progress() {
	for _, p := range r.others {
		p.move()
	}
}

func (p *peer) move() {
	if p.err == nil {
		p.receive()
		p.flush()
	}
}

// wait returns when a counter of an end at that peer is above n. It polls for a bounded time, which adapts as that of
// goroutines does, before it sleeps until a peer wakes it.
func (r *Ranks) wait(p *peer, counter *uint64, n uint64) error {
	r.progress()
	if *counter > n {
		return nil
	}
	r.waiting(p.rank)
	defer r.waiting(-1)
	start := time.Now()
	slept := false
	for {
		switch {
		case r.err != nil:
			return r.err
		case p.err != nil:
			return p.err
		}
		select {
		case <-r.stop:
			return transport.ErrStopped
		default:
		}
		if !slept && time.Since(start) < r.spin {
			r.progress()
		} else {
			slept = true
			r.sleep()
		}
		if *counter > n {
			r.adapt(time.Since(start), slept)
			return nil
		}
	}
}

// adapt changes the time to poll after a wait: see the waits of goroutines in package transport.
func (r *Ranks) adapt(waited time.Duration, slept bool) {
	switch {
	case r.spin == 0:
	case !slept:
		r.spin = min(longestSpin, max(r.spin, 2*waited+shortestSpin))
	case waited < worthPolling:
		r.spin = min(longestSpin, 2*r.spin)
	default:
		r.spin = max(shortestSpin, r.spin/2)
	}
}

// sleep waits until something can be moved, and moves it.
func (r *Ranks) sleep() {
	quiet := true
	for i, p := range r.others {
		r.fds[i] = unix.PollFd{Fd: -1}
		if p.err == nil {
			quiet = p.stream.sleep(p.writing()) && quiet
			r.fds[i] = p.stream.wants(p.writing())
		}
	}
	timeout := sleepAtMost
	if !quiet {
		timeout = 0
	}
	unix.Poll(r.fds, int(timeout/time.Millisecond)) // an interrupted wait is a short one
	for i, p := range r.others {
		if p.err == nil {
			woken := r.fds[i].Revents != 0
			p.stream.awake(woken)
			if woken || !quiet {
				p.move()
			}
		}
	}
}

// Join makes the collectives of a group of messages between its members.
func (r *Ranks) Join(m transport.Members) transport.Group {
	return transport.NewPairs(m, r.rank, func(phase, rank, out, in int) *transport.Pair {
		tag, p := groupTag(m.ID, uint(phase)+1), r.peers[rank]
		return transport.NewPair(
			newSender(r, p, tag, transport.Queue{Outstanding: 1, Bytes: out}),
			newReceiver(r, p, tag, transport.Queue{Outstanding: 1, Bytes: in}),
		)
	})
}
