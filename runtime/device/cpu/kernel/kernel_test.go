package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func available(t testing.TB) []*Path {
	t.Helper()
	var list []*Path
	for _, name := range Available() {
		p, err := Select(name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// guarded returns a slice of random numbers that ends at its capacity and is
// followed by NaN in memory, so that a read past the end shows in a result.
func guarded(random *rand.Rand, n int) []float32 {
	const guard = 64
	s := make([]float32, n+guard)
	for i := range s {
		s[i] = float32(math.NaN())
		if i < n {
			s[i] = float32(random.NormFloat64())
		}
	}
	return s[:n:n]
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// closeTo compares with a float64 reference whose terms sum to scale in
// absolute value.
func closeTo(got float32, want, scale float64) bool {
	return math.Abs(float64(got)-want) <= 1e-5*(scale+1)
}

func TestProductsAgainstReference(t *testing.T) {
	sizes := []int{1, 2, 3, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 40, 65}
	for _, p := range available(t) {
		t.Run(p.Name(), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			for _, m := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17} {
				for _, k := range sizes {
					for _, n := range sizes {
						checkProducts(t, p, random, m, k, n)
					}
				}
			}
		})
	}
}

func checkProducts(t *testing.T, p *Path, random *rand.Rand, m, k, n int) {
	t.Helper()
	x, w, dy, bias := guarded(random, m*k), guarded(random, k*n), guarded(random, m*n), guarded(random, n)
	packed := guarded(random, PackedLen(k, n))
	Pack(packed, w, k, n)
	back := make([]float32, k*n)
	Unpack(back, packed, k, n)
	if !sameBits(back, w) {
		t.Fatalf("[%d,%d]: unpack of pack differs", k, n)
	}
	transposed := make([]float32, n*k)
	UnpackTransposed(transposed, packed, k, n)
	again := guarded(random, PackedLen(k, n))
	PackTransposed(again, transposed, k, n)
	if !sameBits(again, packed) {
		t.Fatalf("[%d,%d]: transposed pack differs", k, n)
	}

	y := guarded(random, m*n)
	p.MatMul(y, x, packed, m, k, n, Epilogue{Bias: bias, ReLU: true})
	for i := range m {
		for j := range n {
			sum, scale := float64(bias[j]), math.Abs(float64(bias[j]))
			for l := range k {
				term := float64(x[i*k+l]) * float64(w[l*n+j])
				sum, scale = sum+term, scale+math.Abs(term)
			}
			if !closeTo(y[i*n+j], max(0, sum), scale) {
				t.Fatalf("%dx%dx%d: y[%d,%d] = %g, want %g", m, k, n, i, j, y[i*n+j], max(0, sum))
			}
		}
	}

	dx := guarded(random, m*k)
	p.MatMulInputGrad(dx, dy, packed, nil, m, k, n)
	for i := range m {
		for l := range k {
			var sum, scale float64
			for j := range n {
				term := float64(dy[i*n+j]) * float64(w[l*n+j])
				sum, scale = sum+term, scale+math.Abs(term)
			}
			if !closeTo(dx[i*k+l], sum, scale) {
				t.Fatalf("%dx%dx%d: dx[%d,%d] = %g, want %g", m, k, n, i, l, dx[i*k+l], sum)
			}
		}
	}

	acc := guarded(random, PackedLen(k, n))
	p.MatMulWeightGrad(acc, []Segment{{X: x, DY: dy, Rows: m}}, k, n, false)
	Unpack(back, acc, k, n)
	for l := range k {
		for j := range n {
			var sum, scale float64
			for i := range m {
				term := float64(x[i*k+l]) * float64(dy[i*n+j])
				sum, scale = sum+term, scale+math.Abs(term)
			}
			if !closeTo(back[l*n+j], sum, scale) {
				t.Fatalf("%dx%dx%d: dw[%d,%d] = %g, want %g", m, k, n, l, j, back[l*n+j], sum)
			}
		}
	}
	Pack(again, back, k, n)
	if !sameBits(again, acc) {
		t.Fatalf("%dx%dx%d: the padding of a weight gradient is not zero", m, k, n)
	}
}

// TestWritesStayInside puts every output between sentinels.
func TestWritesStayInside(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, p := range available(t) {
		for m := 1; m <= 17; m += 2 {
			for _, n := range []int{1, 9, 16, 23, 32, 41} {
				k := n + 2
				const guard = 40
				inside := func(name string, length int, write func(out []float32)) {
					t.Helper()
					s := make([]float32, length+2*guard)
					for i := range s {
						s[i] = 7
					}
					write(s[guard:][:length])
					for i, v := range s {
						if v != 7 && (i < guard || i >= guard+length) {
							t.Fatalf("%s: %s of %dx%dx%d writes at %d of %d", p.Name(), name, m, k, n, i-guard, length)
						}
					}
				}
				x, dy, packed, bias := guarded(random, m*k), guarded(random, m*n), make([]float32, PackedLen(k, n)), guarded(random, n)
				Pack(packed, guarded(random, k*n), k, n)
				inside("MatMul", m*n, func(y []float32) { p.MatMul(y, x, packed, m, k, n, Epilogue{Bias: bias}) })
				inside("MatMulInputGrad", m*k, func(dx []float32) { p.MatMulInputGrad(dx, dy, packed, nil, m, k, n) })
				inside("MatMulWeightGrad", len(packed), func(acc []float32) {
					p.MatMulWeightGrad(acc, []Segment{{X: x, DY: dy, Rows: m}}, k, n, false)
				})
				inside("Add", m*n, func(d []float32) { p.Add(d, dy, dy) })
				inside("ReLUGrad", m*n, func(d []float32) { p.ReLUGrad(d, dy, dy) })
				inside("ColumnSums", n, func(d []float32) { p.ColumnSums(d, dy, m, n, true) })
			}
		}
	}
}

// TestBitStability states that blocking, the rows of a call and fusion do not
// change a bit.
func TestBitStability(t *testing.T) {
	for _, p := range available(t) {
		t.Run(p.Name(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkBitStability(t, p) })
		})
	}
}

func checkBitStability(t *rapid.T, p *Path) {
	size := rapid.IntRange(1, 70)
	k, n := size.Draw(t, "k"), size.Draw(t, "n")
	rows := rapid.SliceOfN(rapid.IntRange(0, 11), 1, 5).Draw(t, "rows")
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	m := 0
	for _, r := range rows {
		m += r
	}
	x, dy, bias, mask := guarded(random, m*k), guarded(random, m*n), guarded(random, n), guarded(random, m*k)
	packed := make([]float32, PackedLen(k, n))
	Pack(packed, guarded(random, k*n), k, n)

	// All rows at once against parts of them, fused against separate.
	whole, part := guarded(random, m*n), guarded(random, m*n)
	p.MatMul(whole, x, packed, m, k, n, Epilogue{Bias: bias, ReLU: true})
	dx, dxPart := guarded(random, m*k), guarded(random, m*k)
	p.MatMulInputGrad(dx, dy, packed, mask, m, k, n)
	var segments []Segment
	first := 0
	accPart := make([]float32, len(packed))
	sumsPart := make([]float32, n)
	for i, r := range rows {
		s := Segment{X: x[first*k:][:r*k], DY: dy[first*n:][:r*n], Rows: r}
		segments = append(segments, s)
		p.MatMul(part[first*n:][:r*n], s.X, packed, r, k, n, Epilogue{})
		p.MatMulInputGrad(dxPart[first*k:][:r*k], s.DY, packed, nil, r, k, n)
		p.MatMulWeightGrad(accPart, segments[i:], k, n, i > 0)
		p.ColumnSums(sumsPart, s.DY, r, n, i > 0)
		first += r
	}
	p.AddBias(part, part, bias, m, n)
	p.ReLU(part, part)
	if !sameBits(whole, part) {
		t.Fatal("the result of MatMul depends on the rows of a call or on fusion")
	}
	p.ReLUGrad(dxPart, dxPart, mask)
	if !sameBits(dx, dxPart) {
		t.Fatal("the result of MatMulInputGrad depends on the rows of a call or on fusion")
	}
	sums := guarded(random, n)
	p.ColumnSums(sums, dy, m, n, false)
	if !sameBits(sums, sumsPart) {
		t.Fatal("the result of ColumnSums depends on the rows of a call")
	}

	// One pass over all segments, whole and in blocks.
	acc := guarded(random, len(packed))
	p.MatMulWeightGrad(acc, segments, k, n, false)
	if !sameBits(acc, accPart) {
		t.Fatal("one pass over all segments differs from passes that load")
	}
	step := rapid.IntRange(1, k).Draw(t, "step")
	for panel := range panels(n) {
		for k0 := 0; k0 < k; k0 += step {
			k1 := min(k, k0+step)
			block := accPart[panel*k*PanelColumns:][k0*PanelColumns : k1*PanelColumns]
			p.MatMulWeightGradBlock(block, segments, k, n, panel, k0, k1, false)
		}
	}
	if !sameBits(acc, accPart) {
		t.Fatal("the result of MatMulWeightGradBlock depends on the block")
	}
}

func TestPaddingStaysZeroWithInfinities(t *testing.T) {
	for _, p := range available(t) {
		x := []float32{float32(math.Inf(1)), 1}
		acc := make([]float32, PackedLen(2, 1))
		p.MatMulWeightGrad(acc, []Segment{{X: x, DY: []float32{1}, Rows: 1}}, 2, 1, false)
		for i, v := range acc {
			if i%PanelColumns > 0 && v != 0 {
				t.Fatalf("%s: padding element %d is %g", p.Name(), i, v)
			}
		}
	}
}

// TestElementwiseAgree compares every element-wise kernel with plain Go, bit
// for bit, on all lengths with all tails and on special values.
func TestElementwiseAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	special := []float32{0, float32(math.Copysign(0, -1)), 1, -1, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1e-45, -1e-45, 3e38}
	reference, err := Select("generic")
	if err != nil {
		t.Fatal(err)
	}
	kernels := []struct {
		name string
		run  func(p *Path, dst, a, b []float32)
	}{
		{"Add", func(p *Path, dst, a, b []float32) { p.Add(dst, a, b) }},
		{"Sub", func(p *Path, dst, a, b []float32) { p.Sub(dst, a, b) }},
		{"Mul", func(p *Path, dst, a, b []float32) { p.Mul(dst, a, b) }},
		{"Scale", func(p *Path, dst, a, b []float32) { p.Scale(dst, a, 0.3) }},
		{"ReLU", func(p *Path, dst, a, b []float32) { p.ReLU(dst, a) }},
		{"ReLUGrad", func(p *Path, dst, a, b []float32) { p.ReLUGrad(dst, a, b) }},
		{"MultiplyAdd", func(p *Path, dst, a, b []float32) { p.MultiplyAdd(dst, a, b, 0.3) }},
		{"SGD", func(p *Path, dst, a, b []float32) { copy(dst, a); p.SGD(dst, b, 0.3) }},
		{"ColumnSums", func(p *Path, dst, a, b []float32) {
			p.ColumnSums(dst, a, 1, len(a), false)
			p.ColumnSums(dst, b, 1, len(b), true)
		}},
	}
	for _, p := range available(t) {
		for _, kernel := range kernels {
			for n := range 150 {
				a, b := guarded(random, n), guarded(random, n)
				for i := range n {
					if i%3 == 0 {
						a[i] = special[random.IntN(len(special))]
					}
					if i%4 == 0 {
						b[i] = special[random.IntN(len(special))]
					}
				}
				got, want := make([]float32, n), make([]float32, n)
				kernel.run(p, got, a, b)
				kernel.run(reference, want, a, b)
				for i := range n {
					nan := got[i] != got[i] && want[i] != want[i]
					if !nan && math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("%s %s(%g, %g) = %g, want %g (element %d of %d)", p.Name(), kernel.name, a[i], b[i], got[i], want[i], i, n)
					}
				}
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	const m, k, n = 8, 40, 40
	x, y, packed, bias := make([]float32, m*k), make([]float32, m*n), make([]float32, PackedLen(k, n)), make([]float32, n)
	segments := []Segment{{X: x, DY: y, Rows: m}}
	for _, p := range available(t) {
		allocations := testing.AllocsPerRun(10, func() {
			p.MatMul(y, x, packed, m, k, n, Epilogue{Bias: bias, ReLU: true})
			p.MatMulInputGrad(x, y, packed, x, m, k, n)
			p.MatMulWeightGrad(packed, segments, k, n, true)
			p.SGD(packed, packed, 0.5)
			p.AddBias(y, y, bias, m, n)
			p.ColumnSums(bias, y, m, n, true)
		})
		if allocations != 0 {
			t.Errorf("%s: %g allocations", p.Name(), allocations)
		}
	}
}

func TestSelect(t *testing.T) {
	names := Available()
	if names[0] != "generic" {
		t.Fatalf("available paths %v do not begin with generic", names)
	}
	best, err := Select("")
	if err != nil || best.Name() != names[len(names)-1] {
		t.Fatalf("best path is %v (%v), want %s", best, err, names[len(names)-1])
	}
	if _, err := Select("sse"); err == nil {
		t.Fatal("no error for an unknown path")
	}
}

func BenchmarkMatMul(b *testing.B) {
	forEachShape(b, 8, func(p *Path, x, y, packed []float32, m, k, n int) {
		p.MatMul(y, x, packed, m, k, n, Epilogue{ReLU: true})
	})
}

func BenchmarkMatMulInputGrad(b *testing.B) {
	forEachShape(b, 8, func(p *Path, x, y, packed []float32, m, k, n int) {
		p.MatMulInputGrad(x, y, packed, nil, m, k, n)
	})
}

// BenchmarkWeightGradSGD is the weight gradient of four micro-batches of
// eight rows with SGD on each block while it is near.
func BenchmarkWeightGradSGD(b *testing.B) {
	block := make([]float32, 64*PanelColumns)
	segments := make([]Segment, 4)
	forEachShape(b, 32, func(p *Path, x, y, packed []float32, m, k, n int) {
		for i := range segments {
			segments[i] = Segment{X: x[i*8*k:][:8*k], DY: y[i*8*n:][:8*n], Rows: 8}
		}
		for panel := range panels(n) {
			for k0 := 0; k0 < k; k0 += 64 {
				k1 := min(k, k0+64)
				p.MatMulWeightGradBlock(block, segments, k, n, panel, k0, k1, false)
				p.SGD(packed[(panel*k+k0)*PanelColumns:(panel*k+k1)*PanelColumns], block, 1e-9)
			}
		}
	})
}

func forEachShape(b *testing.B, m int, run func(p *Path, x, y, packed []float32, m, k, n int)) {
	random := rand.New(rand.NewPCG(7, 8))
	for _, p := range available(b) {
		for _, shape := range [][2]int{{784, 512}, {512, 512}} {
			k, n := shape[0], shape[1]
			b.Run(fmt.Sprintf("%s/%dx%dx%d", p.Name(), m, k, n), func(b *testing.B) {
				x, y, packed := guarded(random, m*k), guarded(random, m*n), make([]float32, PackedLen(k, n))
				Pack(packed, guarded(random, k*n), k, n)
				for b.Loop() {
					run(p, x, y, packed, m, k, n)
				}
				flops := 2 * float64(m) * float64(k) * float64(n) * float64(b.N)
				b.ReportMetric(flops/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
