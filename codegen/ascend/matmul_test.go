package ascend

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

// multiply is the plain product of p on its stored operands.
func multiply(p matrixProduct, a, b tensor) []float64 {
	c := make([]float64, p.batches*p.m*p.n)
	for batch := range p.batches {
		for i := range p.m {
			for j := range p.n {
				sum := 0.0
				for k := range p.k {
					left, right := i*p.k+k, k*p.n+j
					if p.transposeA {
						left = k*p.m + i
					}
					if p.transposeB {
						right = j*p.k + k
					}
					sum += a.data[batch*p.m*p.k+left] * b.data[batch*p.k*p.n+right]
				}
				c[(batch*p.m+i)*p.n+j] = sum
			}
		}
	}
	return c
}

func TestMatMul(t *testing.T) {
	var cases []kernelCase
	shape := func(batches, rows, columns int, transposed bool) []int {
		if transposed {
			rows, columns = columns, rows
		}
		if batches == 1 {
			return []int{rows, columns}
		}
		return []int{batches, rows, columns}
	}
	for i, s := range []struct{ batches, m, k, n int }{
		{1, 1, 1, 1}, {1, 8, 784, 512}, {1, 8, 512, 10}, {1, 17, 33, 45}, {1, 300, 70, 129}, {5, 7, 9, 11}, {50, 3, 4, 5},
	} {
		for _, turned := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
			a := newTensor(ir.F32, shape(s.batches, s.m, s.k, turned[0])...).random(uint64(i))
			b := newTensor(ir.F32, shape(s.batches, s.k, s.n, turned[1])...).random(uint64(i + 100))
			attrs := ir.Attrs{ir.BoolAttr("transpose_a", turned[0]), ir.BoolAttr("transpose_b", turned[1])}
			p := matMulOf([]ir.Type{a.typ, b.typ}, attrs)
			kernel, err := emitProduct(testChip(t), p)
			if err != nil {
				t.Fatal(err)
			}
			want := newTensor(ir.F32, shape(s.batches, s.m, s.n, false)...)
			copy(want.data, multiply(p, a, b))
			cases = append(cases, kernelCase{
				name: fmt.Sprintf("%v %v", s, turned), kernel: kernel, args: []tensor{a, b, newTensor(ir.F32, want.typ.Shape...)},
				want: map[int]tensor{2: want}, tolerance: 2e-6 * float64(s.k), // partial sums are larger than the result
			})
		}
	}
	half := func(shape ...int) tensor { return newTensor(ir.F16, shape...).random(5) }
	a, b := half(20, 40), half(40, 30)
	p := matMulOf([]ir.Type{a.typ, b.typ}, nil)
	kernel, err := emitProduct(testChip(t), p)
	if err != nil {
		t.Fatal(err)
	}
	want := newTensor(ir.F16, 20, 30)
	copy(want.data, multiply(p, a, b))
	cases = append(cases, kernelCase{name: "f16", kernel: kernel, args: []tensor{a, b, newTensor(ir.F16, 20, 30)}, want: map[int]tensor{2: want}, tolerance: 1e-3})
	runKernels(t, cases)
}

func TestMatMulAccumulate(t *testing.T) {
	var cases []kernelCase
	for i, s := range []struct{ rows, k, n int }{{1, 1, 1}, {8, 784, 512}, {8, 512, 10}, {13, 17, 19}} {
		for _, transposed := range []bool{false, true} {
			x, dy := newTensor(ir.F32, s.rows, s.k).random(uint64(i)), newTensor(ir.F32, s.rows, s.n).random(uint64(i+50))
			shape := []int{s.k, s.n}
			if transposed {
				shape = []int{s.n, s.k}
			}
			acc := newTensor(ir.F32, shape...).random(7)
			p := matMulAccumulateOf([]ir.Type{acc.typ, x.typ, dy.typ}, ir.Attrs{ir.BoolAttr("transpose_b", transposed)})
			kernel, err := emitProduct(testChip(t), p)
			if err != nil {
				t.Fatal(err)
			}
			left, right := x, dy
			if transposed {
				left, right = dy, x
			}
			for _, assign := range []int32{0, 1} {
				want := newTensor(ir.F32, shape...)
				for j, v := range multiply(p, left, right) {
					want.data[j] = v
					if assign == 0 {
						want.data[j] += acc.data[j]
					}
				}
				cases = append(cases, kernelCase{
					name: fmt.Sprintf("%v transposed %t assign %d", s, transposed, assign), kernel: kernel,
					args: []tensor{left, right, acc}, scalars: []emulator.Arg{emulator.Int32Arg(assign)},
					want: map[int]tensor{2: want}, tolerance: 2e-6 * float64(s.rows),
				})
			}
		}
	}
	runKernels(t, cases)
}

// TestTilings holds every tiling to the limits of the cube core.
func TestTilings(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, name := range chip.Names() {
		c, _ := chip.ByName(name)
		for range 2000 {
			p := matrixProduct{dtype: []ir.DType{ir.F32, ir.F16, ir.BF16}[r.IntN(3)], batches: 1 + r.IntN(4)*r.IntN(20),
				m: 1 + r.IntN(1<<r.IntN(13)), k: 1 + r.IntN(1<<r.IntN(14)), n: 1 + r.IntN(1<<r.IntN(13))}
			v := tileProduct(c, p)
			size := p.dtype.Size()
			for _, rule := range []struct {
				ok   bool
				what string
			}{
				{v.baseM%16 == 0 && v.baseN%16 == 0 && v.baseK%16 == 0 && v.baseM > 0 && v.baseN > 0 && v.baseK > 0, "base tiles are fractals"},
				{2*v.baseM*v.baseK*size <= c.L0ABytes, "A in L0A"},
				{2*v.baseK*v.baseN*size <= c.L0BBytes, "B in L0B"},
				{v.bufferL0C*v.baseM*v.baseN*4 <= c.L0CBytes, "C in L0C"},
				{(v.depthA1*v.baseM+v.depthB1*v.baseN)*v.baseK*size <= c.L1Bytes, "A and B in L1"},
				{v.mParts*v.nParts <= c.CubeCores, "no more parts than cores"},
				{v.mParts*v.singleM >= p.m && (v.mParts-1)*v.singleM < p.m, "rows covered once"},
				{v.nParts*v.singleN >= p.n && (v.nParts-1)*v.singleN < p.n, "columns covered once"},
			} {
				if !rule.ok {
					t.Fatalf("%s: %+v gives %+v, which breaks: %s", name, p, v, rule.what)
				}
			}
		}
	}
}
