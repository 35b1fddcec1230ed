package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

const (
	vocab    = "examples/inference/vocab.pp"
	inFlight = 8
	requests = 20000 // of a run
)

// inference serves the tutorial's inference network: requests a second with eight under way, and the median latency of one
// at a time. Runs of the variants alternate.
func inference(runs int) error {
	type variant struct {
		name          string
		opt           ppc.Options
		session       *runtime.Session
		rate, latency []float64
	}
	variants := []*variant{
		{name: "one stage, 4 micro-batches", opt: ppc.Options{File: vocab, Unsplit: true}},
		{name: "one stage, 1 micro-batch", opt: ppc.Options{File: vocab, Unsplit: true, Micro: 1}},
		{name: "four stages, 4 micro-batches", opt: ppc.Options{File: vocab}},
		{name: "four stages, 1 micro-batch", opt: ppc.Options{File: vocab, Micro: 1}},
	}
	in := []data.Array{{Name: "x", DType: data.I32, Shape: []int{8, 1}}}
	for i := range 8 {
		in[0].Data = binary.LittleEndian.AppendUint32(in[0].Data, uint32(i))
	}
	ctx := context.Background()
	for _, v := range variants {
		p, err := compileModel(v.opt)
		if err != nil {
			return err
		}
		if v.session, err = runtime.Serve(ctx, p, runtime.Options{Open: cpu.Open, Seed: 1}, inFlight); err != nil {
			return err
		}
		defer v.session.Close()
	}
	for range runs {
		for _, v := range variants {
			var wg sync.WaitGroup
			failures := make([]error, inFlight)
			s := seconds(func() {
				for c := range inFlight {
					wg.Go(func() {
						for range requests / inFlight {
							if _, err := v.session.Submit(ctx, in); err != nil {
								failures[c] = err
								return
							}
						}
					})
				}
				wg.Wait()
			})
			for _, err := range failures {
				if err != nil {
					return err
				}
			}
			v.rate = append(v.rate, requests/s)
			times := make([]float64, requests/inFlight)
			for i := range times {
				start := time.Now()
				if _, err := v.session.Submit(ctx, in); err != nil {
					return err
				}
				times[i] = time.Since(start).Seconds() * 1e6
			}
			m, _, _ := spread(times)
			v.latency = append(v.latency, m)
		}
	}
	fmt.Printf("%-32s %12s %20s %18s\n", "vocab.pp, batches of 8 rows", "requests/s", "range", "median latency")
	for _, v := range variants {
		m, lo, hi := spread(v.rate)
		l, _, _ := spread(v.latency)
		fmt.Printf("%-32s %12.0f %9.0f to %7.0f %15.1f us\n", v.name, m, lo, hi, l)
	}
	return nil
}
