package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/verify"
)

// random takes the choices of a model from a seeded generator.
type random struct{ *rand.Rand }

func (r random) Int(_ string, lo, hi int) int { return lo + r.IntN(hi-lo+1) }

// models draws n models, each as a train and as an infer block, and compares every cut with the unsplit program, to the bit:
// losses, gradient norms and weights of every step, or the results of all rows.
func models(n int) error {
	ctx := context.Background()
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
		build := func(o ppc.Options) (*plan.Plan, error) {
			o.File, o.Micro = "random.pp", micro
			r, err := ppc.Compile(ctx, o)
			if err != nil {
				return nil, fmt.Errorf("model %d: %v\n%s", k, err, o.Source)
			}
			return r.Plan, nil
		}
		for _, block := range []struct {
			unmarked string
			with     func(modelgen.Cut) string
		}{{m.Unmarked(), m.With}, {m.InferUnmarked(), m.InferWith}} {
			whole, err := build(ppc.Options{Source: []byte(block.unmarked), Unsplit: true})
			if err != nil {
				return err
			}
			r, err := verify.NewReference(ctx, whole, runtime.Options{Seed: 1, DataPath: file, Epochs: 2, Device: device.Options{Poison: true}})
			if err != nil {
				return fmt.Errorf("model %d: %w\n%s", k, err, block.unmarked)
			}
			for _, cut := range m.Cuts {
				lag := src.IntN(6)
				o := ppc.Options{Source: []byte(block.with(cut)), WLag: &lag, Schedule: schedule.Names[src.IntN(len(schedule.Names))], LazyInline: []string{"auto", "marked", "off"}[src.IntN(3)]}
				p, err := build(o)
				if err != nil {
					return err
				}
				d, err := r.Compare(ctx, p)
				if d != nil {
					err = d.Diagnostic()
				}
				if err != nil {
					return fmt.Errorf("model %d on %d stages (%s, lag %d, %d micro-batches, lazy-inline %s): %w\n%s", k, cut.Stages, o.Schedule, lag, micro, o.LazyInline, err, o.Source)
				}
				compared++
			}
		}
	}
	fmt.Printf("%d models, each to train and to infer, %d cut programs: all equal to the unsplit program to the bit\n", n, compared)
	return nil
}
