package ascend

import (
	"fmt"
	"testing"

	"github.com/ppc-lang/ppc/ir"
)

// walkBox calls f with the offsets of every element of a box in row-major order.
func walkBox(lengths []int, b block, f func(flat, offset int)) {
	for flat := range product(lengths) {
		rest, offset := flat, b.offset
		for axis := len(lengths) - 1; axis >= 0; axis-- {
			offset += rest % lengths[axis] * b.strides[axis]
			rest /= lengths[axis]
		}
		f(flat, offset)
	}
}

func TestCopies(t *testing.T) {
	var cases []kernelCase
	add := func(name string, d ir.DType, fromShape, toShape, lengths []int, from, to block) {
		x, y := newTensor(d, fromShape...).random(3), newTensor(d, toShape...).random(4)
		want := newTensor(d, toShape...)
		copy(want.data, y.data)
		values := make([]float64, product(lengths))
		walkBox(lengths, from, func(flat, offset int) { values[flat] = x.data[offset] })
		walkBox(lengths, to, func(flat, offset int) { want.data[offset] = values[flat] })
		cases = append(cases, kernelCase{name: name, kernel: emitCopy(testChip(t), "copy", d, lengths, from, to),
			args: []tensor{x, y}, want: map[int]tensor{1: want}})
	}
	for _, d := range []ir.DType{ir.F32, ir.F16, ir.Bool, ir.I32} {
		for _, p := range []struct{ shape, perm []int }{
			{[]int{3, 5}, []int{1, 0}}, {[]int{70, 300}, []int{1, 0}}, {[]int{2, 3, 4, 5}, []int{0, 2, 1, 3}}, {[]int{2, 3, 4, 5}, []int{3, 1, 0, 2}},
		} {
			from := transposed(p.shape, p.perm)
			to := make([]int, len(p.shape))
			for i, axis := range p.perm {
				to[i] = p.shape[axis]
			}
			add(fmt.Sprintf("transpose %s %v %v", d, p.shape, p.perm), d, p.shape, to, to, from, whole(to))
		}
		for axis, small := range [][]int{{2, 6, 7}, {4, 1, 7}, {4, 6, 1}} {
			big := []int{4, 6, 7}
			add(fmt.Sprintf("slice %s axis %d", d, axis), d, big, small, small, part(big, axis, 1), whole(small))
			add(fmt.Sprintf("insert %s axis %d", d, axis), d, small, big, small, whole(small), part(big, axis, 2))
		}
		add("one "+d.String(), d, []int{1}, []int{1}, []int{1}, whole([]int{1}), whole([]int{1}))
		add("scalar "+d.String(), d, []int{}, []int{}, []int{}, whole([]int{}), whole([]int{}))
		add("long "+d.String(), d, []int{100003}, []int{100003}, []int{100003}, whole([]int{100003}), whole([]int{100003}))
		add("rows "+d.String(), d, []int{9000, 3}, []int{9000, 2}, []int{9000, 2}, part([]int{9000, 3}, 1, 1), whole([]int{9000, 2}))
	}
	for _, d := range []ir.DType{ir.F32, ir.F16, ir.BF16, ir.Bool, ir.U8, ir.I32} {
		for _, shape := range [][]int{{}, {1}, {45}, {100003}, {6, 7}} {
			value := 1.0
			y, want := newTensor(d, shape...), newTensor(d, shape...)
			kernel, err := emitFill(testChip(t), d, shape, whole(shape), value)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want.data {
				want.data[i] = value
			}
			cases = append(cases, kernelCase{name: fmt.Sprintf("fill %s %v", d, shape), kernel: kernel, args: []tensor{y}, want: map[int]tensor{0: want}})
		}
		y := newTensor(d, 6, 7).random(1)
		want := newTensor(d, 6, 7)
		copy(want.data, y.data)
		box := part([]int{6, 7}, 1, 3)
		walkBox([]int{6, 2}, box, func(_, offset int) { want.data[offset] = 0 })
		kernel, err := emitFill(testChip(t), d, []int{6, 2}, box, 0)
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, kernelCase{name: "fill part " + d.String(), kernel: kernel, args: []tensor{y}, want: map[int]tensor{0: want}})
	}
	runKernels(t, cases)
}
