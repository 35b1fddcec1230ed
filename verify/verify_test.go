package verify

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
)

type seeded struct{ *rand.Rand }

func (s seeded) Int(_ string, lo, hi int) int { return lo + s.IntN(hi-lo+1) }

func compile(t *testing.T, o ppc.Options) *plan.Plan {
	t.Helper()
	r, err := ppc.Compile(context.Background(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, o.Source)
	}
	return r.Plan
}

// matched traces a step of a program and of the unsplit one, which are equal: no operation may be taken for a difference. It
// returns how many records of the unsplit program there are, and how many of them have others to be compared with.
func matched(t *testing.T, whole, split *plan.Plan, o runtime.Options) (all, found int) {
	t.Helper()
	ctx := context.Background()
	r, err := NewReference(ctx, whole, o)
	if err != nil {
		t.Fatal(err)
	}
	seed := maphash.MakeSeed()
	a, err := r.trace(ctx, whole, 1, seed, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.trace(ctx, split, 1, seed, nil)
	if err != nil {
		t.Fatal(err)
	}
	if at, i, _ := compare(a, b); i >= 0 {
		t.Errorf("%+v is taken for a difference", at)
	}
	for _, p := range a.order {
		all++
		if b.by[p.key] != nil {
			found++
		}
	}
	return all, found
}

// Whatever the cut, the schedule and the form of the functions, all operations of the unsplit program are found again, and
// what they gave is the same.
func TestTracesOfEqualPrograms(t *testing.T) {
	all, found := 0, 0
	for k := range 150 {
		src := seeded{rand.New(rand.NewPCG(uint64(k), 7))}
		m := modelgen.DrawDecoder(src)
		file, err := m.WriteData(t.TempDir(), 2*m.Batch)
		if err != nil {
			t.Fatal(err)
		}
		cut := m.Cuts[src.IntN(len(m.Cuts))]
		forms := []string{"auto", "marked", "off"}
		whole, split := m.Unmarked(), m.With(cut)
		if k%3 == 0 {
			whole, split = m.InferUnmarked(), m.InferWith(cut)
		}
		o := ppc.Options{File: "t.pp", Source: []byte(whole), Unsplit: true, LazyInline: forms[src.IntN(3)]}
		p := compile(t, o)
		o.Source, o.Unsplit, o.LazyInline = []byte(split), false, forms[src.IntN(3)]
		n, f := matched(t, p, compile(t, o), runtime.Options{Seed: 1, DataPath: file})
		if n != f {
			t.Logf("model %d: %d of %d", k, f, n)
		}
		all, found = all+n, found+f
	}
	const gpt = "../examples/gpt/tiny.pp"
	text, err := os.ReadFile(gpt)
	if err != nil {
		t.Fatal(err)
	}
	o := ppc.Options{File: gpt, Source: text, Stages: 4}
	split := compile(t, o)
	o.Unsplit, o.Stages = true, 0
	n, f := matched(t, compile(t, o), split, runtime.Options{Seed: 1, DataPath: "../examples/gpt/data/tokens.npz", Steps: 2})
	if n < 1000 || f != n {
		t.Errorf("%d of %d operations of the decoder are found again", f, n)
	}
	if all < 10_000 || found*100 < all*98 {
		t.Errorf("%d of %d operations are found again", found, all)
	}
}
