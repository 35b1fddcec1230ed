package kernel

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

func paths() []Path {
	return []Path{
		generic(),
		{
			name: "avx2", tileRows: 4,
			supported: func() bool { return cpu.X86.HasAVX2 && cpu.X86.HasFMA },
			matMul:    matmulAVX2,
			weightGrad: func(block []float32, segments []Segment, ldx, lddy, k0, count, column, columns int, load bool) {
				weightGradAVX2(block, segmentsAddress(segments), len(segments), ldx, lddy, k0, count, column, columns, load)
			},
			inputGrad: inputGradAVX2,
			add:       addAVX2, sub: subAVX2, mul: mulAVX2, reluGrad: reluGradAVX2,
			relu: reluAVX2, scale: scaleAVX2,
			multiplyAdd: multiplyAddAVX2, multiplySubtract: multiplySubtractAVX2,
			columnSums: columnSumsAVX2,
		},
		{
			name: "avx512", tileRows: 8,
			supported: func() bool { return cpu.X86.HasAVX512F && cpu.X86.HasBMI2 },
			matMul:    matmulAVX512,
			weightGrad: func(block []float32, segments []Segment, ldx, lddy, k0, count, column, columns int, load bool) {
				weightGradAVX512(block, segmentsAddress(segments), len(segments), ldx, lddy, k0, count, column, columns, load)
			},
			inputGrad: inputGradAVX512,
			add:       addAVX512, sub: subAVX512, mul: mulAVX512, reluGrad: reluGradAVX512,
			relu: reluAVX512, scale: scaleAVX512,
			multiplyAdd: multiplyAddAVX512, multiplySubtract: multiplySubtractAVX512,
			columnSums: columnSumsAVX512,
		},
	}
}

// segmentsAddress passes segments to assembly, whose declarations know only
// predeclared types.
func segmentsAddress(segments []Segment) *byte {
	return (*byte)(unsafe.Pointer(unsafe.SliceData(segments)))
}

// The assembly has this layout of a Segment; anything else does not compile.
var (
	_ [0]struct{}  = [unsafe.Offsetof(Segment{}.X)]struct{}{}
	_ [24]struct{} = [unsafe.Offsetof(Segment{}.DY)]struct{}{}
	_ [48]struct{} = [unsafe.Offsetof(Segment{}.Rows)]struct{}{}
	_ [56]struct{} = [unsafe.Sizeof(Segment{})]struct{}{}
)
