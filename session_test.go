package ppc

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

func serve(t testing.TB, p *plan.Plan, queue int) *runtime.Session {
	t.Helper()
	s, err := runtime.Serve(context.Background(), p, runtime.Options{Open: cpu.Open, Seed: 1}, queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Shared parameters: each stage keeps its copy; a new value is that of the owner until the copies are brought in line.
// MindSpore's case shared_params: the last stage's copy is zero, the results are right again after a sync.
func TestSharedParametersOfASession(t *testing.T) {
	for _, devices := range []int{4, 8} {
		sharedParametersOfASession(t, serve(t, inferenceOf(t, "micro_batch_num = 2", Options{Devices: devices}), 0))
	}
}

func sharedParametersOfASession(t *testing.T, s *runtime.Session) {
	ctx := context.Background()
	see := func(when string, want float32) {
		t.Helper()
		out, err := s.Submit(ctx, []data.Array{onesArray(8)})
		if err != nil {
			t.Fatal(err)
		}
		if !all(&out[0], want) {
			t.Errorf("%s: the first result is not %v", when, want)
		}
	}
	set := func(v float32) {
		t.Helper()
		if err := s.SetParameter(ctx, "embedding.weight", constant(64, v)); err != nil {
			t.Fatal(err)
		}
	}
	sync := func() {
		t.Helper()
		if err := s.SyncSharedParameters(ctx); err != nil {
			t.Fatal(err)
		}
	}
	const right = 8 * 8 * 8 * 8 * 8
	see("at the start", right)
	set(0)
	sync()
	see("both copies zero", 0)
	set(1)
	see("the last stage's copy still zero", 0)
	sync()
	see("after the sync", right)
	set(2)
	see("the owner's copy doubled", 2*right)
	sync()
	see("both doubled", 4*right)
	if err := s.SetParameter(ctx, "embedding.wieght", constant(64, 1)); err == nil {
		t.Error("an unknown parameter is set")
	}
	if err := s.SetParameter(ctx, "embedding.weight", constant(63, 1)); err == nil {
		t.Error("a parameter of another size is set")
	}
}

// Many callers at once: each gets the result of its own request.
func TestSessionRequests(t *testing.T) {
	for _, c := range []struct{ queue, devices int }{{1, 0}, {8, 0}, {8, 8}} {
		s := serve(t, inferenceOf(t, "micro_batch_num = 4\n    output_broadcast = true", Options{Devices: c.devices}), c.queue)
		var wg sync.WaitGroup
		for caller := range 12 {
			wg.Go(func() {
				for i := range 40 {
					v := float32(1 + (caller*7+i)%5)
					x := constant(64, v)
					for row := range 8 {
						x[8*row] += float32(row) // rows differ
					}
					out, err := s.Submit(context.Background(), []data.Array{data.NewFloat32("x", []int{8, 8}, x)})
					if err != nil {
						t.Error(err)
						return
					}
					first, second := make([]float32, 0, 64), make([]float32, 0, 64)
					for row := range 8 {
						sum := 8*v + float32(row)
						first, second = append(first, constant(8, sum*8*8*8*8)...), append(second, constant(8, 2*sum*8*8*8)...)
					}
					if !slices.Equal(values(&out[0]), first) || !slices.Equal(values(&out[1]), second) || out[0].Name != "first" {
						t.Errorf("caller %d, request %d: the result of another request", caller, i)
					}
				}
			})
		}
		wg.Wait()
	}
}

// A session refuses what does not fit, gives up when its caller does, and ends with its context.
func TestSessionEnds(t *testing.T) {
	p := inferenceOf(t, "micro_batch_num = 4", Options{})
	s := serve(t, p, 2)
	if _, err := s.Submit(context.Background(), []data.Array{onesArray(4)}); err == nil {
		t.Error("half a batch is taken")
	}
	if _, err := s.Submit(context.Background(), nil); err == nil {
		t.Error("a request without inputs is taken")
	}
	// Callers that give up leave the queue usable, whenever they do.
	var wg sync.WaitGroup
	for i := range 200 {
		ctx, cancel := context.WithCancel(context.Background())
		wg.Go(func() {
			out, err := s.Submit(ctx, []data.Array{onesArray(8)})
			if err == nil && !all(&out[1], 2*8*8*8*8) || err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%v, %v", out, err)
			}
		})
		if i%2 == 0 {
			cancel()
		} else {
			defer cancel()
		}
	}
	wg.Wait()
	for range 5 {
		if out, err := s.Submit(context.Background(), []data.Array{onesArray(8)}); err != nil || !all(&out[0], 8*8*8*8*8) {
			t.Errorf("%v, %v", out, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Submit(context.Background(), []data.Array{onesArray(8)}); !errors.Is(err, runtime.ErrClosed) {
		t.Errorf("a closed session answers %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := runtime.Serve(ctx, p, runtime.Options{Open: cpu.Open, Seed: 1}, 2)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := s.Close(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := s.Submit(context.Background(), []data.Array{onesArray(8)}); err == nil {
		t.Error("a cancelled session answers")
	}
	if _, err := runtime.Serve(context.Background(), compileFile(t, Options{File: gptFile, Stages: 1}).Plan, runtime.Options{Open: cpu.Open}, 0); err == nil {
		t.Error("a train block is served")
	}
}

// A request allocates its result: the list, and shape and elements of each array.
func TestSessionAllocations(t *testing.T) {
	s := serve(t, compileFile(t, Options{File: vocabFile}).Plan, 0)
	in := []data.Array{tokens(8)}
	submit := func() {
		if _, err := s.Submit(context.Background(), in); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		submit()
	}
	if n := testing.AllocsPerRun(500, submit); n > 3 {
		t.Errorf("a request allocates %v times, its result takes 3", n)
	}
}

// The first values are those of the seed on every stage, also of a parameter that two of them read.
func TestSessionFirstValues(t *testing.T) {
	source := strings.Replace(strings.Replace(fourStages, "SETTINGS", "", 1), "= ones()", "= normal(0.5)", 1)
	submit := func(o Options) []data.Array {
		o.File, o.Source = "four.pp", []byte(source)
		out, err := serve(t, compileFile(t, o).Plan, 0).Submit(context.Background(), []data.Array{onesArray(8)})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	a, b := submit(Options{}), submit(Options{Unsplit: true})
	if !bytes.Equal(a[0].Data, b[0].Data) || !bytes.Equal(a[1].Data, b[1].Data) {
		t.Error("four stages and one differ")
	}
	v := make([]float32, 64)
	a[0].Float32(v)
	if math.Abs(float64(v[0])) == 0 || v[0] == v[1] {
		t.Error("the results do not depend on the weights")
	}
}
