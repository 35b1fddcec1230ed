package mpi

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
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
	if q.Bytes > math.MaxInt32-trailerSize {
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
	s.buffers = buffers
	if e.err == nil {
		e.err = s.describe(e.lib)
	}
	if e.err != nil {
		return
	}
	call, what := e.lib.irecv, "MPI cannot receive"
	if !e.receives {
		call, what = e.lib.isend, "MPI cannot send"
		binary.LittleEndian.PutUint64(s.trailer[:], n)
		binary.LittleEndian.PutUint32(s.trailer[8:], s.checksum(e.tag))
	}
	e.err = e.lib.failed(what, call(bottom, 1, s.layout, int32(e.peer), e.tag, e.lib.world, &s.request))
}

// progress completes the oldest transfers that have arrived or left.
func (e *end) progress() {
	for e.done < e.posted && e.err == nil {
		s := e.slot(e.done)
		done := int32(0)
		if e.err = e.lib.failed("MPI cannot transfer a message", e.lib.test(&s.request, &done, unsafe.Pointer(&e.status))); e.err != nil || done == 0 {
			return
		}
		if e.receives {
			if e.err = e.check(s); e.err != nil {
				return
			}
		}
		s.buffers = nil
		e.done++
	}
}

// check looks at the message that has arrived in a slot.
func (e *end) check(s *slot) error {
	number := binary.LittleEndian.Uint64(s.trailer[:])
	switch size := s.size(); {
	case e.status.bytes != uint64(size+trailerSize):
		return fmt.Errorf("a message has %d bytes, not %d", max(int(e.status.bytes)-trailerSize, 0), size)
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

// slot is a transfer under way: the bytes of its buffers and, behind them in the message, a trailer. The library keeps addresses of
// this memory: Go does not move what is on the heap, and the slot keeps it from being freed.
type slot struct {
	request handle
	buffers [][]byte
	trailer [trailerSize]byte
	// What MPI calls a type: where the parts of a message lie, so that nothing is copied to make one of them. It is made anew when the
	// buffers are others than the last time.
	layout      handle
	laid, parts []part // what the layout is of, and what it has to be of
}

// part is a piece of memory.
type part struct {
	at    uintptr
	bytes int32
}

// The trailer of a message is its number in the queue, which counts from 0, and a checksum. Both are little endian.
//
//	0  number
//	8  checksum  of the tag of the queue, the number and the bytes
const trailerSize = 12

// bottom has a layout say where the memory is.
var bottom = unsafe.Pointer(nil)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *slot) size() (bytes int) {
	for _, b := range s.buffers {
		bytes += len(b)
	}
	return bytes
}

// checksum is that of the memory of the message.
func (s *slot) checksum(tag int32) uint32 {
	sum := crc32.Update(uint32(tag), castagnoli, s.trailer[:8])
	for _, b := range s.buffers {
		sum = crc32.Update(sum, castagnoli, b)
	}
	return sum
}

// describe makes the layout of the message, unless the one that is there fits.
func (s *slot) describe(lib *library) error {
	s.parts = s.parts[:0]
	for _, b := range s.buffers {
		if len(b) > 0 {
			s.parts = append(s.parts, partOf(b))
		}
	}
	s.parts = append(s.parts, partOf(s.trailer[:]))
	if slices.Equal(s.parts, s.laid) {
		return nil
	}
	s.parts, s.laid = s.laid, s.parts
	if s.layout != 0 {
		if err := lib.failed("MPI cannot forget a layout", lib.freeType(&s.layout)); err != nil {
			return err
		}
	}
	at, lengths := make([]uintptr, len(s.laid)), make([]int32, len(s.laid))
	for i, p := range s.laid {
		at[i], lengths[i] = p.at, p.bytes
	}
	if err := lib.failed("MPI cannot lay out a message", lib.createType(int32(len(at)), &lengths[0], &at[0], lib.bytes, &s.layout)); err != nil {
		return err
	}
	return lib.failed("MPI cannot lay out a message", lib.commitType(&s.layout))
}

func partOf(b []byte) part { return part{uintptr(unsafe.Pointer(unsafe.SliceData(b))), int32(len(b))} }
