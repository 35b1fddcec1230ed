package emulator_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/ppc-lang/ppc/codegen/ascend"
	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/device/emulator"
)

// seeded makes the choices of a model from a number.
type seeded struct{ *rand.Rand }

func (s seeded) Int(_ string, lo, hi int) int { return lo + s.IntN(hi-lo+1) }

// TestRandomModels trains drawn models on the emulator and on the cpu device. EMULATOR_MODELS sets how many.
func TestRandomModels(t *testing.T) {
	needCompiler(t)
	models := 2
	if s := os.Getenv("EMULATOR_MODELS"); s != "" {
		models, _ = strconv.Atoi(s)
	}
	cache := t.TempDir()
	for seed := range models {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := modelgen.Draw(seeded{rand.New(rand.NewPCG(uint64(seed), 17))})
			source := m.With(m.Cuts[seed%len(m.Cuts)])
			file := filepath.Join(t.TempDir(), "random.pp")
			if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
				t.Fatal(err)
			}
			rows, err := m.WriteData(t.TempDir(), 4*m.Batch)
			if err != nil {
				t.Fatal(err)
			}
			p := compile(t, file, 0)
			out, err := ascend.Generate(p)
			if err != nil {
				t.Fatalf("%v\n%s", err, source)
			}
			run := func(open device.Open, opt device.Options) []float64 {
				var losses []float64
				_, err := runtime.Run(context.Background(), p, runtime.Options{
					Open: open, Device: opt, Steps: 4, Seed: p.Seed, DataPath: rows, Getenv: func(string) string { return "" }, SkipEval: true,
					OnStep: func(s runtime.Step) { losses = append(losses, s.Loss) },
					Log:    func(int) io.Writer { return io.Discard },
				})
				if err != nil {
					t.Fatalf("%v\n%s", err, source)
				}
				return losses
			}
			want := run(cpu.Open, device.Options{})
			got := run(emulator.Opener(out.Stages), device.Options{CacheDir: cache, Poison: true})
			for i, w := range want {
				if math.IsNaN(w) || math.IsInf(w, 0) {
					break // the model diverges
				}
				if !(math.Abs(got[i]-w) <= 1e-3*max(1, math.Abs(w))) {
					t.Fatalf("step %d: the loss is %v, on the cpu %v\n%s", i, got[i], w, source)
				}
			}
		})
	}
}
