package cpu_test

import (
	"testing"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// BenchmarkStep is a training step of 784-512-512-10 on 4 micro-batches of 8 rows: 102.7 MFLOP.
func BenchmarkStep(b *testing.B) {
	for _, path := range kernel.Available() {
		b.Run(path, func(b *testing.B) {
			m := newModel()
			x, label := m.inputs(8, 784)
			y := m.emit(ir.Relu, -1, []ir.ValueID{m.emit(ir.MatMul, -1, []ir.ValueID{x, m.param("w", 784, 512)})})
			y = m.emit(ir.Relu, -1, []ir.ValueID{m.dense("layer2", -1, y, 512, true)})
			m.loss(m.dense("layer3", -1, y, 10, true), label, -1)
			r := open(b, compile(b, m.spec(4, 1, sgd(), ""), 4), device.Options{Path: path})
			r.initial()
			r.load(0)
			d := r.devs[0]
			pending, scalars := []device.Pending{{Chunk: 0, Lo: 0, Hi: 4}}, [][]float32{{0.001}}
			for b.Loop() {
				for micro := range 4 {
					r.check(d.Run(0, 0, ir.ForwardPass, micro, micro+1))
					r.check(d.Run(0, 0, ir.InputPass, micro, micro+1))
				}
				r.check(d.Update(0, pending, scalars, false))
			}
			b.ReportMetric(102.7e6*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
