package mpi

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"time"
	"unsafe"

	"github.com/ppc-lang/ppc/runtime/transport"
)

// end is one side of a queue. Transfers of a tag between two ranks arrive in the order in which they are posted: MPI
// promises that.
type end struct {
	*Ranks
	peer     int
	tag      int32
	receives bool
	posted   uint64
	done     uint64
	slots    []slot
	status   status
	err      error
}

func (r *Ranks) end(peer, tag int, receives bool, q transport.Queue) *end {
	e := &end{Ranks: r, peer: peer, tag: int32(tag), receives: receives, slots: make([]slot, q.Outstanding)}
	if q.Bytes > math.MaxInt32 {
		e.err = fmt.Errorf("a message of %d bytes is too large for MPI", q.Bytes)
	}
	return e
}

func (e *end) slot(n uint64) *slot { return &e.slots[n%uint64(len(e.slots))] }

// Post starts the next transfer.
func (e *end) Post(buffers [][]byte) {
	n := e.posted
	s := e.slot(n)
	e.posted++
	s.arrived, s.buffers = 0, buffers
	s.parts = [2][]byte{s.pack(!e.receives), s.trailer[:]}
	call, what := e.lib.irecv, "MPI cannot receive"
	if !e.receives {
		call, what = e.lib.isend, "MPI cannot send"
		binary.LittleEndian.PutUint64(s.trailer[:], n)
		binary.LittleEndian.PutUint32(s.trailer[8:], s.checksum(e.tag))
	}
	for i, b := range s.parts {
		if e.err == nil {
			e.err = e.lib.failed(what, call(unsafe.Pointer(unsafe.SliceData(b)), int32(len(b)), e.lib.bytes, int32(e.peer), e.tag, e.lib.world, &s.requests[i]))
		}
	}
}

// progress completes the oldest transfers that have arrived or left.
func (e *end) progress() {
	for e.done < e.posted && e.err == nil {
		s := e.slot(e.done)
		for s.arrived < len(s.parts) {
			done := int32(0)
			if e.err = e.lib.failed("MPI cannot transfer a message", e.lib.test(&s.requests[s.arrived], &done, unsafe.Pointer(&e.status))); e.err != nil || done == 0 {
				return
			}
			if n := len(s.parts[s.arrived]); e.receives && e.status.bytes != uint64(n) {
				e.err = fmt.Errorf("a message has %d bytes, not %d", e.status.bytes, n)
				return
			}
			s.arrived++
		}
		if e.receives {
			if e.err = e.check(s); e.err != nil {
				return
			}
			s.unpack()
		}
		e.done++
	}
}

// check looks at the message that has arrived in a slot.
func (e *end) check(s *slot) error {
	switch number := binary.LittleEndian.Uint64(s.trailer[:]); {
	case binary.LittleEndian.Uint32(s.trailer[8:]) != s.checksum(e.tag):
		return fmt.Errorf("a message is damaged: its checksum differs")
	case number != e.done:
		return fmt.Errorf("message %d comes instead of %d", number, e.done)
	}
	return nil
}

// Done tells whether transfer n is complete.
func (e *end) Done(n uint64) bool {
	if e.done <= n {
		e.progress()
	}
	return e.done > n
}

// Wait polls, since MPI moves data in calls only: without a pause for a bounded time, then with pauses.
func (e *end) Wait(n uint64) error {
	if e.Done(n) {
		return nil
	}
	e.waiting(e.peer)
	defer e.waiting(-1)
	start := time.Now()
	pause := time.Duration(0)
	for !e.Done(n) {
		if e.err != nil {
			way := "to"
			if e.receives {
				way = "from"
			}
			return fmt.Errorf("%s rank %d: %w", way, e.peer, e.err)
		}
		select {
		case <-e.stop:
			return transport.ErrStopped
		default:
		}
		if time.Since(start) > e.spin {
			pause = min(pause+time.Microsecond, 100*time.Microsecond)
			time.Sleep(pause)
		}
	}
	return nil
}

// slot is a transfer under way. To MPI it is two messages, the bytes and a trailer: nothing is copied to put the trailer behind the
// bytes, and from memory in several pieces MPI would move a large message in small ones. The library keeps addresses of this memory: Go
// does not move what is on the heap, and the slot keeps it from being freed.
type slot struct {
	buffers  [][]byte
	packed   []byte // where several buffers are one message
	trailer  [trailerSize]byte
	parts    [2][]byte // the bytes and the trailer
	requests [2]handle // of parts
	arrived  int       // of parts: those that have arrived or left
}

// pack gives the memory of the bytes: the one buffer, or a copy of all.
func (s *slot) pack(fill bool) []byte {
	if len(s.buffers) == 1 {
		return s.buffers[0]
	}
	size := 0
	for _, b := range s.buffers {
		size += len(b)
	}
	if len(s.packed) != size {
		s.packed = make([]byte, size)
	}
	if fill {
		at := s.packed
		for _, b := range s.buffers {
			at = at[copy(at, b):]
		}
	}
	return s.packed
}

// unpack copies what has arrived to the buffers, where there are several.
func (s *slot) unpack() {
	if len(s.buffers) == 1 {
		return
	}
	from := s.packed
	for _, b := range s.buffers {
		from = from[copy(b, from):]
	}
}

// The trailer of a transfer is its number in the queue, which counts from 0, and a checksum. Both are little endian.
//
//	0  number
//	8  checksum  of the tag of the queue, the number and the bytes
const trailerSize = 12

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is that of the tag and of all in front of it.
func (s *slot) checksum(tag int32) uint32 {
	return crc32.Update(crc32.Update(uint32(tag), castagnoli, s.trailer[:8]), castagnoli, s.parts[0])
}
