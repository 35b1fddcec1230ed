package mpi

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

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

// eager is the size up to which Open MPI on one host puts a message where the receiver finds it. A larger one moves only while both
// sides call MPI, and a rank that computes does not. What mpirun is told comes first: it is in the environment.
const eager, eagerBytes = "OMPI_MCA_btl_vader_eager_limit", 128 << 10

// Start initialises MPI. rank and size are those of the world. The error wraps ErrMissing if there is no library.
func Start() (r *Ranks, rank, size int, err error) {
	if _, told := os.LookupEnv(eager); !told {
		os.Setenv(eager, strconv.Itoa(eagerBytes))
	}
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
