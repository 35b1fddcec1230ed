package ascend

import (
	"fmt"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

// A matrixProduct is C[m,n] = A[m,k] B[k,n], once per batch. The transposed
// operand is stored [k,m] or [n,k].
type matrixProduct struct {
	dtype                  ir.DType
	batches, m, k, n       int
	transposeA, transposeB bool
	// accumulate: the kernel takes `assign` and adds to C when it is 0.
	accumulate bool
}

// matMulOf describes a matmul op. Leading axes of A go into its rows where B is
// one matrix.
func matMulOf(in []ir.Type, attrs ir.Attrs) matrixProduct {
	a, b := in[0], in[1]
	p := matrixProduct{dtype: a.DType, batches: 1, transposeA: attrs.Bool("transpose_a"), transposeB: attrs.Bool("transpose_b")}
	p.m, p.k = a.Shape[a.Rank()-2], a.Shape[a.Rank()-1]
	if p.transposeA {
		p.m, p.k = p.k, p.m
	}
	p.n = b.Shape[b.Rank()-1]
	if p.transposeB {
		p.n = b.Shape[b.Rank()-2]
	}
	leading := product(a.Shape[:a.Rank()-2])
	if b.Rank() == 2 {
		p.m *= leading
	} else {
		p.batches = leading
	}
	return p
}

// matMulAccumulateOf describes acc += x^T dy, or acc += dy^T x with transpose_b:
// all leading axes of x and dy are summed over.
func matMulAccumulateOf(in []ir.Type, attrs ir.Attrs) matrixProduct {
	x, dy := in[1], in[2]
	p := matrixProduct{dtype: x.DType, batches: 1, transposeA: true, accumulate: true}
	p.m, p.n = x.Shape[x.Rank()-1], dy.Shape[dy.Rank()-1]
	p.k = x.Elems() / p.m
	if attrs.Bool("transpose_b") {
		p.m, p.n = p.n, p.m // the caller swaps x and dy
	}
	return p
}

// cubeTiling is the part of TCubeTiling that is computed.
type cubeTiling struct {
	mParts, nParts      int // how the result is cut over cores
	singleM, singleN    int
	baseM, baseN, baseK int
	stepKa, stepKb      int
	depthA1, depthB1    int
	bufferL0C           int
}

// fractal is the edge of the square that all cube tiles are multiples of.
const fractal = 16

// tileProduct computes the tiling. The result is cut so that the largest share
// of a core, in time of arithmetic and of loading A and B, is least; then into
// the largest base tile that L0 holds twice, and as many steps of k as L1 holds
// twice, four at most.
func tileProduct(c chip.Chip, p matrixProduct) cubeTiling {
	size := p.dtype.Size()
	var t cubeTiling
	best := 0.0
	for mParts := 1; mParts <= min(c.CubeCores, ceilDiv(p.m, fractal)); mParts++ {
		singleM := min(p.m, roundUp(ceilDiv(p.m, mParts), fractal))
		parts := ceilDiv(p.m, singleM)
		for nParts := 1; parts*nParts <= c.CubeCores && nParts <= ceilDiv(p.n, fractal); nParts++ {
			singleN := min(p.n, roundUp(ceilDiv(p.n, nParts), fractal))
			columns := ceilDiv(p.n, singleN)
			rounds := float64(ceilDiv(p.batches*parts*columns, c.CubeCores))
			m, n := float64(roundUp(singleM, fractal)), float64(roundUp(singleN, fractal))
			arithmetic := m * n / (c.CubeFlops32 / float64(c.CubeCores) / 2)
			loading := (m + n) * float64(size) / (c.MemoryBandwidth / float64(c.CubeCores))
			cost := rounds * max(arithmetic, loading)
			if t.singleM == 0 || cost < best*0.999 {
				best = cost
				t.singleM, t.singleN, t.mParts, t.nParts = singleM, singleN, parts, columns
			}
		}
	}
	t.baseM = min(128, roundUp(t.singleM, fractal))
	t.baseN = min(128*4/size, roundUp(t.singleN, fractal))
	limitK := min(c.L0ABytes/(2*size*t.baseM), c.L0BBytes/(2*size*t.baseN))
	t.baseK = max(fractal, min(limitK/fractal*fractal, 256, roundUp(p.k, fractal)))
	t.bufferL0C = 1
	if 2*4*t.baseM*t.baseN <= c.L0CBytes {
		t.bufferL0C = 2
	}
	steps := min(4, ceilDiv(p.k, t.baseK))
	for steps > 1 && 2*steps*t.baseK*(t.baseM+t.baseN)*size > c.L1Bytes {
		steps--
	}
	t.stepKa, t.stepKb = steps, steps
	t.depthA1, t.depthB1 = 2*steps, 2*steps
	return t
}

// emitProduct emits the kernel of a product: parameters A, B, C, and `assign` if it accumulates.
func emitProduct(c chip.Chip, p matrixProduct) (*Kernel, error) {
	element, err := elementType(p.dtype)
	if err != nil || !p.dtype.IsFloat() {
		return nil, fmt.Errorf("the chip's cube cores have no product of %s; use f32, f16 or bf16", p.dtype)
	}
	t := tileProduct(c, p)
	items := p.batches * t.mParts * t.nParts
	blocks := min(items, c.CubeCores)
	w := newCode()
	w.global("a", element, "aAddress", p.batches*p.m*p.k)
	w.global("b", element, "bAddress", p.batches*p.k*p.n)
	w.global("c", element, "cAddress", p.batches*p.m*p.n)
	w.line("TCubeTiling tiling = {};")
	for _, field := range []struct {
		name  string
		value int
	}{
		{"usedCoreNum", blocks}, {"M", p.m}, {"N", p.n}, {"Ka", p.k}, {"Kb", p.k},
		{"singleCoreM", t.singleM}, {"singleCoreN", t.singleN}, {"singleCoreK", p.k},
		{"baseM", t.baseM}, {"baseN", t.baseN}, {"baseK", t.baseK},
		{"depthA1", t.depthA1}, {"depthB1", t.depthB1}, {"stepM", 1}, {"stepN", 1}, {"stepKa", t.stepKa}, {"stepKb", t.stepKb},
		{"transLength", 0}, {"iterateOrder", 0}, {"shareL1Size", 2 * t.stepKa * t.baseK * (t.baseM + t.baseN) * p.dtype.Size()},
		{"shareL0CSize", 4 * t.baseM * t.baseN * t.bufferL0C},
		{"dbL0A", 2}, {"dbL0B", 2}, {"dbL0C", t.bufferL0C},
	} {
		w.line("tiling.%s = %d;", field.name, field.value)
	}
	w.line("using A = MatmulType<TPosition::GM, CubeFormat::ND, %s, %t>;", element, p.transposeA)
	w.line("using B = MatmulType<TPosition::GM, CubeFormat::ND, %s, %t>;", element, p.transposeB)
	w.line("using C = MatmulType<TPosition::GM, CubeFormat::ND, %s>;", element)
	w.line("TPipe pipe;")
	w.line("Matmul<A, B, C> product;")
	w.line("REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);")
	writeShare(w, items)
	w.open("for (uint32_t item = first; item < last; item++)")
	w.line("const uint32_t column = item %% %d * %d;", t.nParts, t.singleN)
	w.line("const uint32_t row = item / %d %% %d * %d;", t.nParts, t.mParts, t.singleM)
	w.line("const uint64_t batch = item / %d;", t.nParts*t.mParts)
	w.line("const int rows = row + %d > %d ? %d - row : %d;", t.singleM, p.m, p.m, t.singleM)
	w.line("const int columns = column + %d > %d ? %d - column : %d;", t.singleN, p.n, p.n, t.singleN)
	rowStep, columnStep := p.k, 1
	if p.transposeA {
		rowStep = 1
	}
	if p.transposeB {
		columnStep = p.k
	}
	w.line("product.SetTensorA(a[batch * %d + static_cast<uint64_t>(row) * %d], %t);", p.m*p.k, rowStep, p.transposeA)
	w.line("product.SetTensorB(b[batch * %d + static_cast<uint64_t>(column) * %d], %t);", p.k*p.n, columnStep, p.transposeB)
	w.line("product.SetTail(rows, columns, %d);", p.k)
	target := fmt.Sprintf("c[batch * %d + static_cast<uint64_t>(row) * %d + column]", p.m*p.n, p.n)
	if p.accumulate {
		w.line("product.IterateAll(%s, assign ? 0 : 1);", target)
	} else {
		w.line("product.IterateAll(%s);", target)
	}
	w.close()
	w.line("product.End();")
	text := kernelText{
		stem:       fmt.Sprintf("%s_%dx%dx%d", productName(p), p.m, p.k, p.n),
		title:      fmt.Sprintf("%s: %d x [%d,%d] x [%d,%d] %s", productName(p), p.batches, p.m, p.k, p.k, p.n, p.dtype),
		includes:   "#define ASCENDC_CUBE_ONLY\n#include \"kernel_operator.h\"\n#include \"lib/matmul_intf.h\"\n",
		parameters: []parameter{{emulator.Buffer, "aAddress"}, {emulator.Buffer, "bAddress"}, {emulator.Buffer, "cAddress"}},
		body:       w.text.String(), blocks: blocks, cube: true,
	}
	if p.accumulate {
		text.parameters = append(text.parameters, parameter{emulator.Int32, "assign"})
	}
	return text.finish(), nil
}

func productName(p matrixProduct) string {
	if p.accumulate {
		return "matmul_accumulate"
	}
	return "matmul"
}
