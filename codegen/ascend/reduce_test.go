package ascend

import (
	"fmt"
	"math"
	"testing"

	"github.com/ppc-lang/ppc/ir"
)

func TestReductions(t *testing.T) {
	var cases []kernelCase
	for i, c := range []struct {
		shape []int
		over  []int
	}{
		{[]int{}, nil}, {[]int{8}, []int{0}}, {[]int{1, 7}, []int{0}}, {[]int{8, 512}, []int{0}}, {[]int{8, 10}, []int{0}}, {[]int{8, 10}, []int{1}},
		{[]int{8, 10}, []int{0, 1}}, {[]int{13, 20011}, []int{0}}, {[]int{3, 20011}, []int{1}}, {[]int{2500, 3}, []int{1}},
		{[]int{4, 5, 6, 7}, []int{0, 2}}, {[]int{4, 5, 6, 7}, []int{1, 3}}, {[]int{4, 5, 6, 7}, []int{0, 2, 3}}, {[]int{300, 3, 40}, []int{1}},
	} {
		for _, scale := range []float64{1, 0.25} {
			x := newTensor(ir.F32, c.shape...).random(uint64(i))
			r := reduction{shape: c.shape, reduced: make([]bool, len(c.shape)), scale: scale, name: "sum"}
			for _, axis := range c.over {
				r.reduced[axis] = true
			}
			var kept []int
			for axis, n := range c.shape {
				if !r.reduced[axis] {
					kept = append(kept, n)
				}
			}
			want := newTensor(ir.F32, kept...)
			for flat, v := range x.data {
				index, step, rest := 0, 1, flat
				for axis := len(c.shape) - 1; axis >= 0; axis-- {
					at := rest % c.shape[axis]
					rest /= c.shape[axis]
					if !r.reduced[axis] {
						index += at * step
						step *= c.shape[axis]
					}
				}
				want.data[index] += v * scale
			}
			kernel, err := emitReduction(testChip(t), r, ir.F32)
			if err != nil {
				t.Fatal(err)
			}
			cases = append(cases, kernelCase{name: fmt.Sprintf("%v over %v scale %v", c.shape, c.over, scale), kernel: kernel,
				args: []tensor{x, newTensor(ir.F32, kept...)}, want: map[int]tensor{1: want}, tolerance: 1e-4})
		}
	}
	runKernels(t, cases)
}

func TestRowKernels(t *testing.T) {
	var cases []kernelCase
	for i, shape := range [][]int{{1, 1}, {8, 10}, {3, 64}, {5, 20011}, {2100, 7}} {
		rows, columns := shape[0], shape[1]
		x, d := newTensor(ir.F32, shape...).random(uint64(i)), newTensor(ir.F32, rows).random(uint64(i+9))
		label := newTensor(ir.I32, rows)
		loss, dx, best := newTensor(ir.F32, rows), newTensor(ir.F32, shape...), newTensor(ir.I32, rows)
		for r := range rows {
			label.data[r] = float64((r*7919 + columns - 1) % columns)
			row := x.data[r*columns : (r+1)*columns]
			maximum := math.Inf(-1)
			for j, v := range row {
				if v > maximum {
					maximum, best.data[r] = v, float64(j)
				}
			}
			sum := 0.0
			for _, v := range row {
				sum += math.Exp(v - maximum)
			}
			loss.data[r] = math.Log(sum) + maximum - row[int(label.data[r])]
			for j, v := range row {
				dx.data[r*columns+j] = d.data[r] * (math.Exp(v-maximum)/sum - truth(j == int(label.data[r])))
			}
		}
		for _, k := range []struct {
			name string
			emit func() (*Kernel, error)
			args []tensor
			want tensor
		}{
			{"cross_entropy", func() (*Kernel, error) { return emitCrossEntropy(testChip(t), x.typ) }, []tensor{x, label}, loss},
			{"cross_entropy_grad", func() (*Kernel, error) { return emitCrossEntropyGrad(testChip(t), x.typ) }, []tensor{x, label, d}, dx},
			{"argmax", func() (*Kernel, error) { return emitArgMax(testChip(t), x.typ) }, []tensor{x}, best},
		} {
			kernel, err := k.emit()
			if err != nil {
				t.Fatal(err)
			}
			cases = append(cases, kernelCase{name: fmt.Sprintf("%s %v", k.name, shape), kernel: kernel,
				args: append(k.args, newTensor(k.want.typ.DType, k.want.typ.Shape...)), want: map[int]tensor{len(k.args): k.want}, tolerance: 1e-5})
		}
	}
	runKernels(t, cases)
}
