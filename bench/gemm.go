package main

import (
	"fmt"

	"gonum.org/v1/gonum/blas"
	gonum "gonum.org/v1/gonum/blas/gonum"

	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// gemm compares the products of a training step with gonum's, per path; weights are packed once, as on the device.
func gemm(runs int) error {
	fmt.Printf("%-16s %-8s %22s %10s %10s %10s\n", "m x k x n", "path", "product", "GFLOP/s", "gonum", "ratio")
	for _, s := range []struct{ m, k, n int }{{8, 784, 512}, {8, 512, 512}, {32, 784, 512}, {512, 512, 512}} {
		x, w, y := make([]float32, s.m*s.k), make([]float32, s.k*s.n), make([]float32, s.m*s.n)
		for i := range x {
			x[i] = float32(i%13) - 6
		}
		for i := range w {
			w[i] = float32(i%7) - 3
		}
		for i := range y {
			y[i] = float32(i%5) - 2
		}
		packed := make([]float32, kernel.PackedLen(s.k, s.n))
		kernel.Pack(packed, w, s.k, s.n)
		acc := make([]float32, len(packed))
		dx := make([]float32, len(x))
		out := make([]float32, len(y))
		segments := []kernel.Segment{{X: x, DY: y, Rows: s.m}}
		flop := 2 * float64(s.m) * float64(s.k) * float64(s.n)
		times := max(1, int(2e8/flop))
		rate := func(f func()) float64 {
			var v []float64
			for range runs {
				v = append(v, flop*float64(times)/1e9/seconds(func() {
					for range times {
						f()
					}
				}))
			}
			m, _, _ := spread(v)
			return m
		}
		var impl gonum.Implementation
		base := map[string]float64{
			"x w":    rate(func() { impl.Sgemm(blas.NoTrans, blas.NoTrans, s.m, s.n, s.k, 1, x, s.k, w, s.n, 0, out, s.n) }),
			"dy w^T": rate(func() { impl.Sgemm(blas.NoTrans, blas.Trans, s.m, s.k, s.n, 1, y, s.n, w, s.n, 0, dx, s.k) }),
			"x^T dy": rate(func() { impl.Sgemm(blas.Trans, blas.NoTrans, s.k, s.n, s.m, 1, x, s.k, y, s.n, 0, w, s.n) }),
		}
		for _, name := range kernel.Available() {
			p, err := kernel.Select(name)
			if err != nil {
				return err
			}
			for _, c := range []struct {
				name string
				f    func()
			}{
				{"x w", func() { p.MatMul(out, x, packed, s.m, s.k, s.n, kernel.Epilogue{}) }},
				{"dy w^T", func() { p.MatMulInputGrad(dx, y, packed, nil, s.m, s.k, s.n) }},
				{"x^T dy", func() { p.MatMulWeightGrad(acc, segments, s.k, s.n, true) }},
			} {
				r := rate(c.f)
				fmt.Printf("%-16s %-8s %22s %10.1f %10.1f %10.1f\n", fmt.Sprintf("%d x %d x %d", s.m, s.k, s.n), name, c.name, r, base[c.name], r/base[c.name])
			}
		}
	}
	return nil
}
