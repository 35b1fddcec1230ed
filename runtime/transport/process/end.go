//go:build linux

package process

import "github.com/ppc-lang/ppc/runtime/transport"

// end is what both ends of a queue have.
type end struct {
	ranks   *Ranks
	peer    *peer
	tag     uint64
	bytes   int
	buffers [][][]byte // posted, by number
	posted  uint64
	done    uint64
	credit  uint64 // how many transfers the sender may be ahead of what the receiver has taken
}

func newEnd(r *Ranks, at *peer, tag uint64, q transport.Queue) end {
	return end{ranks: r, peer: at, tag: tag, bytes: q.Bytes, buffers: make([][][]byte, q.Outstanding), credit: 2 * uint64(q.Outstanding)}
}

// posting notes the buffers of the next transfer and returns its number.
func (e *end) posting(buffers [][]byte) (n uint64) {
	n = e.posted
	e.buffers[n%uint64(len(e.buffers))] = buffers
	e.posted++
	return n
}

func (e *end) Done(n uint64) bool {
	if e.done <= n {
		e.ranks.progress()
	}
	return e.done > n
}

func (e *end) Wait(n uint64) error {
	if e.done > n {
		return nil
	}
	return e.ranks.wait(e.peer, &e.done, n)
}

// sender is the first end of a queue. A transfer is done once its bytes are handed over. The receiver may have two rounds of
// Outstanding transfers to take; more are held back here, so that what it keeps is bounded.
type sender struct {
	end
	started uint64 // given to the peer
	acked   uint64 // taken by the receiver, as far as it has said
}

func newSender(r *Ranks, to *peer, tag uint64, q transport.Queue) *sender {
	s := &sender{end: newEnd(r, to, tag, q)}
	to.senders[tag] = s
	return s
}

func (s *sender) Post(buffers [][]byte) {
	s.posting(buffers)
	s.start()
	s.peer.flush()
}

// start gives the peer what its credit allows.
func (s *sender) start() {
	for s.started < s.posted && s.started < s.acked+s.credit {
		s.peer.out = append(s.peer.out, outgoing{s.tag, s, s.started})
		s.started++
	}
}

// receiver is the other end. Transfers that come before they are posted are kept.
type receiver struct {
	end
	arrived uint64     // whole
	early   [][][]byte // kept, by number
	free    [][][]byte
	kept    [][]byte // where the transfer that is arriving goes, if it is to be kept
}

func newReceiver(r *Ranks, from *peer, tag uint64, q transport.Queue) *receiver {
	e := &receiver{end: newEnd(r, from, tag, q)}
	e.early = make([][][]byte, e.credit)
	from.receivers[tag] = e
	return e
}

// destination is where the next transfer goes.
func (r *receiver) destination() [][]byte {
	if r.kept = nil; r.arrived < r.posted {
		return r.buffers[r.arrived%uint64(len(r.buffers))]
	}
	if n := len(r.free); n > 0 {
		r.kept, r.free = r.free[n-1], r.free[:n-1]
	} else {
		r.kept = [][]byte{make([]byte, r.bytes)}
	}
	return r.kept
}

// complete counts a transfer that is there.
func (r *receiver) complete() {
	n := r.arrived
	r.arrived++
	if r.kept == nil {
		r.take()
		return
	}
	r.early[n%r.credit] = r.kept
	if n < r.posted {
		r.unpack(n)
	}
}

// unpack copies a kept transfer to the buffers that have been posted for it.
func (r *receiver) unpack(n uint64) {
	kept := r.early[n%r.credit]
	r.early[n%r.credit] = nil
	from := kept[0]
	for _, b := range r.buffers[n%uint64(len(r.buffers))] {
		from = from[copy(b, from):]
	}
	r.free = append(r.free, kept)
	r.take()
}

// take counts a transfer that is where it belongs, and tells the sender of every round of them.
func (r *receiver) take() {
	if r.done++; r.done%uint64(len(r.buffers)) == 0 {
		r.peer.out = append(r.peer.out, outgoing{tag: r.tag, number: r.done})
		r.peer.flush()
	}
}

func (r *receiver) Post(buffers [][]byte) {
	if n := r.posting(buffers); n < r.arrived {
		r.unpack(n)
	}
}
