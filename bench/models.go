package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// random takes the choices of a model from a seeded generator.
type random struct{ *rand.Rand }

func (r random) Int(_ string, lo, hi int) int { return lo + r.IntN(hi-lo+1) }

// models draws n models and compares every cut with the unsplit program, to the bit.
func models(n int) error {
	dir, err := os.MkdirTemp("", "ppc-bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	compared := 0
	for k := range n {
		src := random{rand.New(rand.NewPCG(uint64(k), 1))}
		m := modelgen.DrawDecoder(src)
		file, err := m.WriteData(dir, 2*m.Batch)
		if err != nil {
			return err
		}
		micro := 1 << src.IntN(4)
		train := func(o ppc.Options) ([]uint64, error) {
			o.File, o.Micro = "random.pp", micro
			r, err := ppc.Compile(context.Background(), o)
			if err != nil {
				return nil, fmt.Errorf("model %d: %v\n%s", k, err, o.Source)
			}
			var bits []uint64
			res, err := runtime.Run(context.Background(), r.Plan, runtime.Options{
				Open: cpu.Open, Seed: 1, DataPath: file, Epochs: 2, Device: device.Options{Poison: true},
				OnStep: func(s runtime.Step) { bits = append(bits, math.Float64bits(s.Loss)) },
			})
			if err != nil {
				return nil, fmt.Errorf("model %d: %w\n%s", k, err, o.Source)
			}
			for _, p := range res.Params {
				for _, v := range p.Values {
					bits = append(bits, uint64(math.Float32bits(v)))
				}
			}
			return bits, nil
		}
		want, err := train(ppc.Options{Source: []byte(m.Unmarked()), Unsplit: true})
		if err != nil {
			return err
		}
		for _, cut := range m.Cuts {
			lag := src.IntN(6)
			o := ppc.Options{Source: []byte(m.With(cut)), WLag: &lag, Schedule: schedule.Names[src.IntN(len(schedule.Names))], LazyInline: []string{"auto", "marked", "off"}[src.IntN(3)]}
			got, err := train(o)
			if err != nil {
				return err
			}
			for i := range want {
				if i >= len(got) || got[i] != want[i] {
					return fmt.Errorf("model %d on %d stages (%s, lag %d, %d micro-batches, lazy-inline %s) differs from the unsplit program\n%s", k, cut.Stages, o.Schedule, lag, micro, o.LazyInline, o.Source)
				}
			}
			compared++
		}
	}
	fmt.Printf("%d models, %d cut programs: all equal to the unsplit program to the bit\n", n, compared)
	return nil
}
