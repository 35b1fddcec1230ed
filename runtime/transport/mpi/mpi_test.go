package mpi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ppc-lang/ppc/runtime/transport"
)

// inside says that a process of the test was started by mpirun.
const inside = "PPC_TEST_INSIDE_MPI"

func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(m.Run())
	}
	play := rank
	if os.Getenv(inside) == "wrong" {
		play = wrong
	}
	if err := play(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// under runs this test binary as ranks under mpirun, which play that part, and returns what they print.
func under(t *testing.T, ranks int, part string) string {
	t.Helper()
	if _, err := exec.LookPath("mpirun"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("there is no mpirun")
	}
	cmd := exec.Command("mpirun", "--oversubscribe", "-n", fmt.Sprint(ranks), os.Args[0])
	cmd.Env = append(os.Environ(), inside+"="+part, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// rank sends messages of one and of several buffers around the ring, in order, some posted before and some behind those of
// the peer, then adds up and collects with all.
func rank() error {
	r, k, n, err := Start()
	if err != nil {
		return err
	}
	e := r.Endpoint(k, make(chan struct{}), func(int) {})
	next, before := (k+1)%n, (k+n-1)%n
	var out, in []transport.End
	for _, q := range []transport.Queue{{ID: 0, Bytes: 4000, Outstanding: 3}, {ID: 1, Bytes: 7, Outstanding: 3}} {
		q.From, q.To = k, next
		out = append(out, e.End(q))
		q.From, q.To = before, k
		in = append(in, e.End(q))
	}
	group := e.Join(transport.Members{
		ID: 2, Ranks: ranks(n), Reduce: []int{5, 1}, Collect: []int{7}, Scatter: 7, Values: 3,
		Part: func(elements, member int) (int, int) { return transport.Share(elements, member, n) },
	})
	for round := range 20 {
		large := make([]byte, 4000)
		for i := range large {
			large[i] = byte(i + round + k)
		}
		small := [][]byte{{byte(round), byte(k)}, {}, {1, 2, 3, 4, 5}}
		gotLarge, gotSmall := [][]byte{make([]byte, 4000)}, [][]byte{make([]byte, 2), {}, make([]byte, 5)}
		if (round+k)%2 == 0 {
			in[1].Post(gotSmall)
			in[0].Post(gotLarge)
		}
		out[0].Post([][]byte{large})
		out[1].Post(small)
		if (round+k)%2 == 1 {
			in[0].Post(gotLarge)
			in[1].Post(gotSmall)
		}
		for _, end := range append(slices.Clone(in), out...) {
			if err := end.Wait(uint64(round)); err != nil {
				return err
			}
		}
		for i, b := range gotLarge[0] {
			if b != byte(i+round+before) {
				return fmt.Errorf("round %d: byte %d is %d", round, i, b)
			}
		}
		if gotSmall[0][0] != byte(round) || gotSmall[0][1] != byte(before) || gotSmall[2][4] != 5 {
			return fmt.Errorf("round %d: got %v", round, gotSmall)
		}
		a, b := []float32{1e8, -1, float32(k), 0.5, 3}, []float32{float32(k + 1)}
		want := float32(0)
		for m := range n {
			want += float32(m)
		}
		if err := group.Reduce([][]float32{a, b}); err != nil {
			return err
		}
		if a[2] != want || a[3] != 0.5*float32(n) || b[0] != want+float32(n) {
			return fmt.Errorf("sums are %v and %v", a, b)
		}
		parts := make([]float32, 7)
		lo, hi := transport.Share(7, k, n)
		for i := lo; i < hi; i++ {
			parts[i] = float32(10 * i)
		}
		if err := group.Collect([][]float32{parts}); err != nil {
			return err
		}
		for i, v := range parts {
			if v != float32(10*i) {
				return fmt.Errorf("part %d is %v", i, v)
			}
		}
		cut := []float32{1, 2, 3, 4, 5, 6, 7}
		cut[lo] += 1e8 // which takes up what is added to it, but not what has been added before it
		if err := group.Scatter(cut, make([]float32, 7+n)); err != nil {
			return err
		}
		for i := lo; i < hi; i++ {
			sum := float32(0)
			for m := range n {
				x := float32(i + 1)
				if m == k && i == lo {
					x += 1e8
				}
				sum += x
			}
			if cut[i] != sum {
				return fmt.Errorf("the sum of part %d is %v, not %v", i, cut[i], sum)
			}
		}
		all, err := group.Gather([]float64{float64(k), 7})
		if err != nil {
			return err
		}
		for m, v := range all {
			if !slices.Equal(v, []float64{float64(m), 7}) {
				return fmt.Errorf("member %d gives %v", m, v)
			}
		}
	}
	fmt.Printf("rank %d is right\n", k)
	return r.Finish()
}

func ranks(n int) (list []int) {
	for k := range n {
		list = append(list, k)
	}
	return list
}

func TestRanks(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		out := under(t, n, "right")
		if got := strings.Count(out, "is right"); got != n {
			t.Errorf("%d of %d ranks are right:\n%s", got, n, out)
		}
	}
}

// wrong sends messages that are not what the other rank waits for: shorter, longer, made of other parts, and twice.
func wrong() error {
	r, k, _, err := Start()
	if err != nil {
		return err
	}
	e := r.Endpoint(k, make(chan struct{}), func(int) {})
	for id, sizes := range [][2][]int{{{8}, {12}}, {{12}, {8}}, {{4, 4}, {4, 8}}, {{4, 8}, {4, 4}}} {
		var buffers [][]byte
		total := 0
		for _, n := range sizes[k] {
			buffers = append(buffers, make([]byte, n))
			total += n
		}
		end := e.End(transport.Queue{ID: id, From: 0, To: 1, Outstanding: 1, Bytes: total})
		end.Post(buffers)
		if err := end.Wait(0); k == 1 {
			fmt.Printf("message %d: %v\n", id, err)
		} else if err != nil {
			return err
		}
	}
	// Two ends of one queue count for themselves.
	again := transport.Queue{ID: 10, From: 0, To: 1, Outstanding: 2, Bytes: 1}
	end := e.End(again)
	for n := range 2 {
		if k == 0 {
			end = e.End(again)
		}
		end.Post([][]byte{make([]byte, 1)})
		if err := end.Wait(uint64(n) * uint64(k)); k == 1 {
			fmt.Printf("message %d again: %v\n", n, err)
		} else if err != nil {
			return err
		}
	}
	return r.Finish()
}

// A message of another length, or with another number, than the receiver waits for is an error that names the sender.
func TestWrongMessages(t *testing.T) {
	out := under(t, 2, "wrong")
	for _, want := range []string{
		"message 0: from rank 0: a message has 8 bytes, not 12", "message 1: from rank 0: MPI cannot transfer a message: MPI_ERR_TRUNCATE",
		"message 2: from rank 0: a message has 8 bytes, not 12", "message 3: from rank 0: MPI cannot transfer a message: MPI_ERR_TRUNCATE",
		"message 0 again: <nil>", "message 1 again: from rank 0: message 0 comes instead of 1",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
}

// Without the library, or with another MPI, there is an error that says so.
func TestMissingLibrary(t *testing.T) {
	had := libraries
	defer func() { libraries = had }()
	for _, names := range [][]string{{"libnothing.so.40"}, {"libm.so.6"}} {
		libraries = names
		if _, err := load(); !errors.Is(err, ErrMissing) {
			t.Errorf("%v: %v", names, err)
		}
	}
}

func TestProcessors(t *testing.T) {
	for list, want := range map[string]int{"0\n": 1, "0-1\n": 2, "0-3,6\n": 5, "0,2-2,8-9": 4, "": 0, "x": 0, "3-1": 0, "0-": 0} {
		if got := processors(list); got != want {
			t.Errorf("%q: %d processors, want %d", list, got, want)
		}
	}
}
