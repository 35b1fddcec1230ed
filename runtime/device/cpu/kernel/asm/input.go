package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// prefetchPanels is how many panels ahead of its use a row is fetched.
const prefetchPanels = 4

// inputGrad writes up to w.rows rows of `count` columns of dy @ b^T: two
// columns at a time, each a dot product along a row of all panels. Lane l of
// an accumulator holds the chain over the columns n = l modulo w.lanes; one
// fixed tree folds the lanes.
func inputGrad(w width) {
	TEXT("inputGrad"+w.suffix, NOSPLIT, "func(dx []float32, lddx int, dy []float32, lddy int, rows int, b []float32, panelStride int, n int, count int)")
	Doc(fmt.Sprintf("inputGrad%s writes up to %d rows and count columns of dy @ b^T, from the row of the panels at which b starts.", w.suffix, w.rows))
	Pragma("noescape")
	dx, lddx := RDI, R11
	dy := rowPointers{row0: RSI, row3: R9, row6: R10, stride: R8}
	b, bStart, panels, second, count, ahead := RBX, R12, RCX, R14, R13, RDX
	Load(Param("dx").Base(), dx)
	Load(Param("lddx"), lddx)
	SHLQ(Imm(2), lddx)
	Load(Param("lddy"), dy.stride)
	SHLQ(Imm(2), dy.stride)
	Load(Param("b").Base(), bStart)
	Load(Param("count"), count)
	MOVQ(U32(panelBytes), second)
	Load(Param("rows"), RAX)
	label := func(rows int) string { return fmt.Sprintf("rows%d", rows) }
	w.dispatch(RAX, label)
	for rows := 1; rows <= w.rows; rows++ {
		name := func(s string) string { return fmt.Sprintf("%s_%s", label(rows), s) }
		Label(label(rows))
		CMPQ(count, number(1))
		JGT(LabelRef(name("pair")))
		JLT(LabelRef(name("end")))
		// A last single column: the second row of the pair is the first.
		XORQ(second, second)
		Label(name("pair"))
		Load(Param("dy").Base(), dy.row0)
		dy.start()
		MOVQ(bStart, b)
		for r := 0; r < rows; r++ {
			w.zero(w.accumulator(r, 0))
			w.zero(w.accumulator(r, 1))
		}
		step := func(offset int, masked bool) {
			VMOVUPS(Mem{Base: b, Disp: offset}, w.temporary(0))
			VMOVUPS(Mem{Base: b, Index: second, Scale: 1, Disp: offset}, w.temporary(1))
			for r := 0; r < rows; r++ {
				d := w.temporary(2 + r%4)
				w.load(dy.at(r, offset), d, masked, 0)
				VFMADD231PS(w.temporary(0), d, w.accumulator(r, 0))
				VFMADD231PS(w.temporary(1), d, w.accumulator(r, 1))
			}
		}
		Load(Param("n"), panels)
		SHRQ(Imm(5), panels)
		// The lines of one row in all panels may share one set of the nearest
		// cache: fetch few panels ahead, then the first panels of the next pair.
		LEAQ(Mem{Base: bStart, Disp: 2 * panelBytes}, ahead)
		CMPQ(panels, number(prefetchPanels))
		JLE(LabelRef(name("panel")))
		Load(Param("panelStride"), RAX)
		IMUL3Q(number(4*prefetchPanels), RAX, ahead)
		ADDQ(bStart, ahead)
		Label(name("panel"))
		TESTQ(panels, panels)
		JZ(LabelRef(name("tail")))
		CMPQ(panels, number(prefetchPanels))
		JNE(LabelRef(name("fetch")))
		LEAQ(Mem{Base: bStart, Disp: 2 * panelBytes}, ahead)
		Label(name("fetch"))
		for line := 0; line < 2*panelBytes; line += 64 {
			PREFETCHT0(Mem{Base: ahead, Disp: line})
		}
		for offset := 0; offset < panelBytes; offset += w.bytes() {
			step(offset, false)
		}
		Load(Param("panelStride"), RAX)
		LEAQ(Mem{Base: b, Index: RAX, Scale: 4}, b)
		LEAQ(Mem{Base: ahead, Index: RAX, Scale: 4}, ahead)
		dy.advance(panelBytes)
		DECQ(panels)
		JMP(LabelRef(name("panel")))

		Label(name("tail"))
		Load(Param("n"), RDX)
		ANDQ(Imm(31), RDX)
		Label(name("piece"))
		TESTQ(RDX, RDX)
		JLE(LabelRef(name("reduce")))
		w.setMasks(1, RDX, RAX)
		step(0, true)
		ADDQ(number(w.bytes()), b)
		dy.advance(w.bytes())
		SUBQ(number(w.lanes), RDX)
		JMP(LabelRef(name("piece")))

		Label(name("reduce"))
		var sums []VecPhysical
		for r := 0; r < w.rows; r++ {
			row := r
			if r >= rows {
				row = 0 // folded like the others, stored nowhere
			}
			sums = append(sums, w.accumulator(row, 0), w.accumulator(row, 1))
		}
		total := w.fold(sums)
		MOVQ(dx, RAX)
		TESTQ(second, second)
		JZ(LabelRef(name("single")))
		w.storePairs(total, rows, RAX, lddx, true)
		ADDQ(number(8), dx)
		ADDQ(number(2*panelBytes), bStart)
		SUBQ(number(2), count)
		JMP(LabelRef(label(rows)))
		Label(name("single"))
		w.storePairs(total, rows, RAX, lddx, false)
		Label(name("end"))
		end()
	}
}

// fold adds up the lanes of all accumulators by transposing them: element i
// of the result is the sum of sums[i]. The tree is the same for every i.
func (w width) fold(sums []VecPhysical) VecPhysical {
	t := w.temporary
	last := t(2*w.rows - 1)
	total := w.registers()[0] // VEX stores reach only the low sixteen registers
	half := len(sums) / 2
	for i := 0; i < half; i++ {
		VUNPCKLPS(sums[2*i+1], sums[2*i], t(i))
		VUNPCKHPS(sums[2*i+1], sums[2*i], last)
		VADDPS(last, t(i), t(i))
	}
	for i := 0; i < half/2; i++ {
		VUNPCKLPD(t(2*i+1), t(2*i), last)
		VUNPCKHPD(t(2*i+1), t(2*i), t(2*i))
		VADDPS(last, t(2*i), t(i))
	}
	if w.lanes == 8 {
		VPERM2F128(Imm(0x20), t(1), t(0), t(2))
		VPERM2F128(Imm(0x31), t(1), t(0), t(3))
		VADDPS(t(3), t(2), total)
		return total
	}
	quarter := func(a, b, to VecPhysical) {
		VSHUFF32X4(Imm(0x88), b, a, t(4))
		VSHUFF32X4(Imm(0xdd), b, a, t(5))
		VADDPS(t(5), t(4), to)
	}
	quarter(t(0), t(1), t(0))
	quarter(t(2), t(3), t(1))
	quarter(t(0), t(1), total)
	return total
}

// storePairs stores elements 2r and 2r+1 of the total in row r, or only the
// first of each pair.
func (w width) storePairs(total VecPhysical, rows int, dx, lddx GPPhysical, both bool) {
	var lane Register
	for r := 0; r < rows; r++ {
		to := Mem{Base: dx}
		switch {
		case r == 0:
			lane = total.AsX()
		case r%2 == 0:
			lane = w.registers()[1].AsX()
			if w.lanes == 16 {
				VEXTRACTF32X4(Imm(uint64(r/2)), total, lane)
			} else {
				VEXTRACTF128(Imm(uint64(r/2)), total, lane)
			}
		}
		switch {
		case both && r%2 == 0:
			VMOVLPS(lane, to)
		case both:
			VMOVHPS(lane, to)
		case r%2 == 0:
			VMOVSS(lane, to)
		default:
			VEXTRACTPS(Imm(2), lane, to)
		}
		if r+1 < rows {
			ADDQ(lddx, dx)
		}
	}
}
