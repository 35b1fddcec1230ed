//go:build linux

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/runtime/transport"
)

// join connects ranks, each as if it were alone in a process.
func join(t *testing.T, n int, shared bool, change func(*Config)) ([]*Ranks, []error) {
	t.Helper()
	dir := t.TempDir()
	ranks, errs := make([]*Ranks, n), make([]error, n)
	var listeners []*Listener
	for i := range n {
		c := Config{Rank: i, Ranks: n, Dir: dir, Shared: shared, Version: "1", Deadline: 5 * time.Second}
		if change != nil {
			change(&c)
		}
		l, err := Listen(c)
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	var wg sync.WaitGroup
	for i, l := range listeners {
		wg.Go(func() { ranks[i], errs[i] = l.Connect(context.Background()) })
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, r := range ranks {
			if r != nil {
				r.Close()
			}
		}
	})
	return ranks, errs
}

func joined(t *testing.T, n int, shared bool) []*Ranks {
	t.Helper()
	ranks, errs := join(t, n, shared, nil)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ranks
}

// both runs a test over sockets and over shared memory.
func both(t *testing.T, f func(t *testing.T, shared bool)) {
	t.Run("socket", func(t *testing.T) { f(t, false) })
	t.Run("shared", func(t *testing.T) { f(t, true) })
}

// together runs a function on every rank at the same time.
func together(t *testing.T, ranks []*Ranks, f func(e transport.Endpoint, rank int) error) {
	t.Helper()
	errs := make([]error, len(ranks))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var once sync.Once
	for i, r := range ranks {
		e := r.Endpoint(i, stop, func(int) {})
		wg.Go(func() {
			if errs[i] = f(e, i); errs[i] != nil {
				once.Do(func() { close(stop) })
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Queues in both directions, in any interleaving of small messages and ones that do not fit into a ring or a socket, deliver
// what was sent, in order, with bounded memory on the receiving side.
func TestQueues(t *testing.T) {
	both(t, func(t *testing.T, shared bool) {
		const rounds, outstanding = 40, 3
		sizes := []int{0, 1, 4097, smallestRing - 7, 3 * smallestRing, 16 << 10}
		fill := func(b []byte, id, n int) {
			x := uint32(id*1000 + n)
			for i := range b {
				x = x*1664525 + 1013904223
				b[i] = byte(x >> 24)
			}
		}
		together(t, joined(t, 2, shared), func(e transport.Endpoint, rank int) error {
			type lane struct {
				transport.End
				buffers [outstanding][][]byte
				sends   bool
			}
			var lanes []*lane
			for id, bytes := range sizes {
				l := &lane{End: e.End(transport.Queue{ID: id, From: id % 2, To: 1 - id%2, Outstanding: outstanding, Bytes: bytes}), sends: id%2 == rank}
				for i := range l.buffers {
					l.buffers[i] = [][]byte{make([]byte, bytes/3), nil, make([]byte, bytes-bytes/3)}
				}
				lanes = append(lanes, l)
			}
			want := make([]byte, 3*smallestRing)
			settle := func(id int, n int) error {
				l := lanes[id]
				if err := l.Wait(uint64(n)); err != nil || l.sends {
					return err
				}
				got := bytes.Join(l.buffers[n%outstanding], nil)
				fill(want[:len(got)], id, n)
				if !bytes.Equal(got, want[:len(got)]) {
					return fmt.Errorf("message %d of queue %d is not what was sent", n, id)
				}
				return nil
			}
			for n := range rounds {
				for id, l := range lanes {
					if n >= outstanding {
						if err := settle(id, n-outstanding); err != nil {
							return err
						}
					}
					b := l.buffers[n%outstanding]
					if l.sends {
						all := make([]byte, sizes[id])
						fill(all, id, n)
						copy(b[2], all[copy(b[0], all):])
					}
					l.Post(b)
				}
				if n%7 == rank {
					time.Sleep(time.Millisecond) // let the other run ahead, and sleep
				}
			}
			for n := rounds - outstanding; n < rounds; n++ {
				for id := range lanes {
					if err := settle(id, n); err != nil {
						return err
					}
				}
			}
			for _, l := range lanes {
				if r, ok := l.End.(*receiver); ok && len(r.free) > 2*outstanding {
					return fmt.Errorf("%d messages were kept, at most %d may be", len(r.free), 2*outstanding)
				}
			}
			return nil
		})
	})
}

// Messages allocate nothing once a few have passed.
func TestNoAllocation(t *testing.T) {
	both(t, func(t *testing.T, shared bool) {
		ranks := joined(t, 2, shared)
		stop := make(chan struct{})
		q := transport.Queue{From: 0, To: 1, Outstanding: 2, Bytes: 3000}
		send := ranks[0].Endpoint(0, stop, func(int) {}).End(q)
		recv := ranks[1].Endpoint(1, stop, func(int) {}).End(q)
		from, to := [][]byte{make([]byte, 1000), make([]byte, 2000)}, [][]byte{make([]byte, 3000)}
		n := uint64(0)
		pass := func() {
			ranks[0].progress() // takes acknowledgements
			send.Post(from)
			if n%2 == 0 {
				recv.Done(n) // comes before it is posted
			}
			recv.Post(to)
			if err := recv.Wait(n); err != nil {
				t.Fatal(err)
			}
			send.Done(n)
			n++
		}
		if a := testing.AllocsPerRun(100, pass); a > 0 {
			t.Errorf("%v allocations per message", a)
		}
	})
}

// A sender that only sends is held back: what the receiver does not take is not piled up there.
func TestCredit(t *testing.T) {
	both(t, func(t *testing.T, shared bool) {
		ranks := joined(t, 2, shared)
		stop := make(chan struct{})
		q := transport.Queue{From: 0, To: 1, Outstanding: 2, Bytes: 8}
		send := ranks[0].Endpoint(0, stop, func(int) {}).End(q)
		recv := ranks[1].Endpoint(1, stop, func(int) {}).End(q)
		for n := range uint64(4) {
			send.Post([][]byte{make([]byte, 8)})
			if !send.Done(n) {
				t.Fatalf("message %d does not leave", n)
			}
		}
		send.Post([][]byte{make([]byte, 8)})
		recv.Done(0)
		if send.Done(4) {
			t.Fatal("five messages left although none has been taken")
		}
		for n := range uint64(2) {
			recv.Post([][]byte{make([]byte, 8)})
			if !recv.Done(n) {
				t.Fatalf("message %d has not arrived", n)
			}
		}
		if !send.Done(4) {
			t.Fatal("the fifth message does not leave although two have been taken")
		}
	})
}

// Collectives give what those of goroutines give, bit for bit, again and again.
func TestCollectives(t *testing.T) {
	both(t, func(t *testing.T, shared bool) {
		const n = 3
		lengths, times := []int{1, 0, 1000, 70001}, 5
		if shared { // more than one round of a reduction takes
			lengths, times = []int{5, 1<<20 - 1, 1000, 0, 70001}, 1
		}
		part := func(e, member int) (int, int) { return transport.Share(e, member, n) }
		work := func(e transport.Endpoint, rank int) ([]float32, error) {
			g := e.Join(transport.Members{ID: 5, Ranks: []int{0, 1, 2}, Reduce: lengths, Collect: lengths, Scatter: 1000, Part: part, Values: 7})
			s := rand.New(rand.NewPCG(1, uint64(rank)))
			var all []float32
			for range times {
				var buffers [][]float32
				for _, l := range lengths {
					b := make([]float32, l)
					for i := range b {
						b[i] = s.Float32() - 0.5
					}
					buffers = append(buffers, b)
				}
				if err := g.Reduce(buffers); err != nil {
					return nil, err
				}
				for _, b := range buffers {
					lo, hi := part(len(b), rank)
					for i := lo; i < hi; i++ {
						b[i] += float32(rank)
					}
				}
				if err := g.Collect(buffers); err != nil {
					return nil, err
				}
				for _, b := range buffers {
					all = append(all, b...)
				}
				lo, hi := part(1000, rank)
				if err := g.Scatter(buffers[2], make([]float32, 2*334)); err != nil {
					return nil, err
				}
				all = append(all, buffers[2][lo:hi]...)
				lists, err := g.Gather([]float64{float64(rank), 0.5}[:1+rank%2])
				if err != nil {
					return nil, err
				}
				for _, l := range lists {
					for _, x := range append(l, float64(len(l))) {
						all = append(all, float32(x))
					}
				}
			}
			return all, nil
		}
		here := transport.NewInProcess(n)
		stop := make(chan struct{})
		want := make([][]float32, n)
		var wg sync.WaitGroup
		for i := range n {
			e := here.Endpoint(i, stop, func(int) {})
			g := e // made before any is used
			_ = g.Join(transport.Members{ID: 5, Ranks: []int{0, 1, 2}, Reduce: lengths, Collect: lengths, Scatter: 1000, Part: part, Values: 7})
			wg.Go(func() { want[i], _ = work(e, i) })
		}
		wg.Wait()
		together(t, joined(t, n, shared), func(e transport.Endpoint, rank int) error {
			got, err := work(e, rank)
			if err != nil {
				return err
			}
			if len(got) != len(want[rank]) {
				return fmt.Errorf("rank %d has %d numbers, not %d", rank, len(got), len(want[rank]))
			}
			for i, x := range got {
				if x != want[rank][i] {
					return fmt.Errorf("rank %d: number %d is %v, not %v", rank, i, x, want[rank][i])
				}
			}
			return nil
		})
	})
}

// Whatever a peer writes ends the wait with an error that names it, and nothing is taken for a message.
func TestDamagedMessages(t *testing.T) {
	frame := func(h header, body []byte) []byte {
		b := make([]byte, headerSize)
		h.encode(b)
		return append(b, body...)
	}
	good := make([]byte, 64)
	ok := header{kind: kindData, tag: queueTag(1), length: 64, checksum: checksum([][]byte{good})}
	with := func(f func(*header)) []byte {
		h := ok
		f(&h)
		return frame(h, good)
	}
	flipped := frame(ok, good)
	flipped[headerSize+5] ^= 1
	bent := frame(ok, good)
	bent[9] ^= 1
	cases := []struct {
		name, want string
		bytes      []byte
	}{
		{"noise", "header of a message is damaged", bytes.Repeat([]byte{0xaa}, 100)},
		{"bent header", "header of a message is damaged", bent},
		{"flipped bit", "checksum differs", flipped},
		{"another queue", "a message that the program does not have", with(func(h *header) { h.tag = queueTag(2) })},
		{"too long", "a message has 4294967295 bytes, not 64", with(func(h *header) { h.length = 1<<32 - 1 })},
		{"too short", "a message has 63 bytes, not 64", with(func(h *header) { h.length = 63 })},
		{"out of order", "message 1 comes instead of 0", with(func(h *header) { h.number = 1 })},
		{"another kind", "unknown kind", with(func(h *header) { h.kind = 9 })},
		{"acknowledgement of nothing", "an acknowledgement fits no message", with(func(h *header) { h.kind = kindAck })},
		{"cut off", "a message is cut off", frame(ok, good[:10])},
		{"nothing", "rank 0 has ended", nil},
	}
	both(t, func(t *testing.T, shared bool) {
		for _, c := range cases {
			ranks := joined(t, 2, shared)
			recv := ranks[1].Endpoint(1, make(chan struct{}), func(int) {}).End(transport.Queue{ID: 1, From: 0, To: 1, Outstanding: 1, Bytes: 64})
			recv.Post([][]byte{make([]byte, 64)})
			if len(c.bytes) > 0 {
				if n, err := ranks[0].others[0].stream.write([][]byte{c.bytes}); n != len(c.bytes) || err != nil {
					t.Fatal(n, err)
				}
			}
			ranks[0].Close()
			ranks[0] = nil
			err := recv.Wait(0)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "rank 0") {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	})
}

// Counters in shared memory that cannot be are noticed.
func TestDamagedRing(t *testing.T) {
	ranks := joined(t, 2, true)
	recv := ranks[1].Endpoint(1, make(chan struct{}), func(int) {}).End(transport.Queue{ID: 1, From: 0, To: 1, Outstanding: 1, Bytes: 64})
	ranks[0].others[0].stream.(*shared).out.written.Store(1 << 40)
	if err := recv.Wait(0); err == nil || !strings.Contains(err.Error(), "shared memory is damaged") {
		t.Error(err)
	}
}

// Who does not belong to the run does not get in.
func TestJoining(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Config)
		want   [2]string // of rank 0 and rank 1
	}{
		{"version", func(c *Config) { c.Version = fmt.Sprint(c.Rank) }, [2]string{"rank 1 has version 1 of the command, and rank 0 has version 0", "rank 0 has version 0 of the command, and rank 1 has version 1"}},
		{"plan", func(c *Config) { c.Plan[0] = byte(c.Rank) }, [2]string{"rank 1 runs another program", "rank 0 runs another program"}},
		{"token", func(c *Config) { c.Token[0], c.Deadline = byte(c.Rank), time.Second/2 }, [2]string{"waiting for rank 1 to join", "it has refused this rank"}},
		{"transport", func(c *Config) { c.Shared = c.Rank == 0 }, [2]string{"another transport", "another transport"}},
	}
	for _, c := range cases {
		_, errs := join(t, 2, false, c.change)
		for i, err := range errs {
			if err == nil || !strings.Contains(err.Error(), c.want[i]) {
				t.Errorf("%s: rank %d: %v", c.name, i, err)
			}
		}
	}
	dir := t.TempDir()
	for i := range 2 {
		_, err := Listen(Config{Rank: 0, Ranks: 2, Dir: dir})
		if i == 1 && (err == nil || !strings.Contains(err.Error(), "0: address already in use")) {
			t.Errorf("taken path: %v", err)
		}
	}
}

// A run that is stopped ends waits, also of a rank that sleeps.
func TestStop(t *testing.T) {
	both(t, func(t *testing.T, shared bool) {
		ranks := joined(t, 2, shared)
		stop := make(chan struct{})
		recv := ranks[1].Endpoint(1, stop, func(int) {}).End(transport.Queue{ID: 1, From: 0, To: 1, Outstanding: 1, Bytes: 64})
		time.AfterFunc(20*time.Millisecond, func() { close(stop) })
		if err := recv.Wait(0); err != transport.ErrStopped {
			t.Error(err)
		}
	})
}
