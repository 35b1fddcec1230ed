package mpi

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/ppc-lang/ppc/runtime/transport"
)

// Ranks is the transport of a process that holds one rank of MPI's world.
type Ranks struct {
	lib        *library
	rank, size int
	stop       <-chan struct{}
	waiting    func(rank int)
	spin       time.Duration // for how long a wait polls before it lets others run
}

// Start initialises MPI. rank and size are those of the world. The error wraps ErrMissing if there is no library.
func Start() (r *Ranks, rank, size int, err error) {
	lib, err := load()
	if err != nil {
		return nil, 0, 0, err
	}
	provided := int32(0)
	if err := lib.failed("MPI cannot start", lib.initThread(nil, nil, threadSerialized, &provided)); err != nil {
		return nil, 0, 0, err
	}
	if provided < threadSerialized {
		return nil, 0, 0, fmt.Errorf("this MPI serves one thread only (level %d)", provided)
	}
	lib.setHandler(lib.world, lib.returning)
	var k, n int32
	if err := lib.failed("MPI", lib.commRank(lib.world, &k)); err != nil {
		return nil, 0, 0, err
	}
	if err := lib.failed("MPI", lib.commSize(lib.world, &n)); err != nil {
		return nil, 0, 0, err
	}
	r = &Ranks{lib: lib, rank: int(k), size: int(n)}
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if local, err2 := strconv.Atoi(os.Getenv("OMPI_COMM_WORLD_LOCAL_SIZE")); err == nil && err2 == nil && local <= processors(string(online)) {
		r.spin = 200 * time.Microsecond
	}
	return r, r.rank, r.size, nil
}

// processors counts those of a list like 0-3,6. How many this process may run on says less: mpirun binds a rank to one.
func processors(list string) (n int) {
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		lo, err1 := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || hi < lo {
			return 0
		}
		n += hi - lo + 1
	}
	return n
}

// Holds tells that one rank lives here.
func (r *Ranks) Holds(rank int) bool { return rank == r.rank }

// Endpoint is that of the one rank.
func (r *Ranks) Endpoint(_ int, stop <-chan struct{}, waiting func(rank int)) transport.Endpoint {
	r.stop, r.waiting = stop, waiting
	return r
}

// Finish ends MPI when all ranks have come to it.
func (r *Ranks) Finish() error { return r.lib.failed("MPI cannot end", r.lib.finalize()) }

// Abort ends the processes of all ranks with an exit code.
func (r *Ranks) Abort(code int) { r.lib.abort(r.lib.world, int32(code)) }

// tags: messages between two ranks are told apart by them.
const tagsPerID = transport.Phases + 1

// End is this rank's side of a queue.
func (r *Ranks) End(q transport.Queue) transport.End {
	if q.From == r.rank {
		return r.end(q.To, q.ID*tagsPerID, false, q)
	}
	return r.end(q.From, q.ID*tagsPerID, true, q)
}

// Join makes the collectives of a group of messages between its members.
func (r *Ranks) Join(m transport.Members) transport.Group {
	return transport.NewPairs(m, r.rank, func(phase, rank, out, in int) *transport.Pair {
		tag := m.ID*tagsPerID + 1 + phase
		return transport.NewPair(
			r.end(rank, tag, false, transport.Queue{Outstanding: 1, Bytes: out}),
			r.end(rank, tag, true, transport.Queue{Outstanding: 1, Bytes: in}),
		)
	})
}

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

// slot is a transfer under way. The library keeps the address of its memory: Go does not move what is on the heap, and the
// slot keeps it from being freed.
type slot struct {
	request handle
	buffers [][]byte
	packed  []byte // where several buffers are one message
}

func (r *Ranks) end(peer, tag int, receives bool, q transport.Queue) *end {
	e := &end{Ranks: r, peer: peer, tag: int32(tag), receives: receives, slots: make([]slot, q.Outstanding)}
	if q.Bytes > math.MaxInt32 {
		e.err = fmt.Errorf("a message of %d bytes is too large for MPI", q.Bytes)
	}
	return e
}

func (e *end) slot(n uint64) *slot { return &e.slots[n%uint64(len(e.slots))] }

// message is the memory of the message.
func (s *slot) message() []byte {
	if len(s.buffers) == 1 {
		return s.buffers[0]
	}
	return s.packed
}

// Post starts the next transfer.
func (e *end) Post(buffers [][]byte) {
	s := e.slot(e.posted)
	e.posted++
	s.buffers = buffers
	message := s.pack(!e.receives)
	if e.err != nil {
		return
	}
	call, what := e.lib.isend, "MPI cannot send"
	if e.receives {
		call, what = e.lib.irecv, "MPI cannot receive"
	}
	e.err = e.lib.failed(what, call(unsafe.Pointer(unsafe.SliceData(message)), int32(len(message)), e.lib.bytes, int32(e.peer), e.tag, e.lib.world, &s.request))
}

// pack gives the memory of the message: the one buffer, or a copy of all.
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

// progress completes the oldest transfers that have arrived or left.
func (e *end) progress() {
	for e.done < e.posted && e.err == nil {
		s := e.slot(e.done)
		done := int32(0)
		if e.err = e.lib.failed("MPI cannot transfer a message", e.lib.test(&s.request, &done, unsafe.Pointer(&e.status))); e.err != nil || done == 0 {
			return
		}
		if n := len(s.message()); e.receives && e.status.bytes != uint64(n) {
			e.err = fmt.Errorf("a message has %d bytes, not %d", e.status.bytes, n)
			return
		}
		if e.receives && len(s.buffers) != 1 {
			from := s.packed
			for _, b := range s.buffers {
				from = from[copy(b, from):]
			}
		}
		s.buffers = nil
		e.done++
	}
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
			return fmt.Errorf("rank %d: %w", e.peer, e.err)
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
