package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Layout of kernel.Segment.
const (
	segmentX     = 0
	segmentDY    = 24
	segmentRows  = 48
	segmentBytes = 56
)

// weightGrad adds x^T @ dy over all segments to a block of one panel.
func weightGrad(w width) {
	TEXT("weightGrad"+w.suffix, NOSPLIT, "func(block []float32, segments *byte, segmentCount int, ldx int, lddy int, k0 int, count int, column int, columns int, load bool)")
	Doc(fmt.Sprintf("weightGrad%s adds the rows k0..k0+count of x^T @ dy, columns column..column+columns, to a block of a panel.", w.suffix))
	Pragma("noescape")
	block, ldx, lddy, kOffset, columnOffset, count, columns := RDI, R8, R9, R10, R11, R12, R13
	Load(Param("ldx"), ldx)
	SHLQ(Imm(2), ldx)
	Load(Param("lddy"), lddy)
	SHLQ(Imm(2), lddy)
	Load(Param("column"), columnOffset)
	SHLQ(Imm(2), columnOffset)
	Load(Param("columns"), columns)
	XORQ(R14, R14) // byte offset of the pass in a row of the panel

	Label("pass")
	Load(Param("block").Base(), block)
	ADDQ(R14, block)
	Load(Param("k0"), kOffset)
	SHLQ(Imm(2), kOffset)
	Load(Param("count"), count)
	CMPQ(columns, number(2*w.lanes))
	JLT(LabelRef("masked"))
	w.weightTiles("full", false)
	Label("full_end")
	if w.passes() > 1 {
		SUBQ(number(2*w.lanes), columns)
		ADDQ(number(2*w.bytes()), columnOffset)
		ADDQ(number(2*w.bytes()), R14)
		CMPQ(R14, number(panelBytes))
		JLT(LabelRef("pass"))
	}
	end()

	Label("masked")
	// The second pass over a narrow panel has no valid column: its masks are
	// empty and it writes zeros.
	w.setMasks(2, columns, RAX)
	w.weightTiles("masked", true)
	Label("masked_end")
	if w.passes() > 1 {
		XORQ(columns, columns)
		ADDQ(number(2*w.bytes()), columnOffset)
		ADDQ(number(2*w.bytes()), R14)
		CMPQ(R14, number(panelBytes))
		JLT(LabelRef("pass"))
	}
	end()
}

// weightTiles emits the loop over the tiles of a block and jumps to the label
// name_end after the last.
func (w width) weightTiles(name string, masked bool) {
	block, ldx, lddy, kOffset, columnOffset, count := RDI, R8, R9, R10, R11, R12
	label := func(rows int) string { return fmt.Sprintf("%s_rows%d", name, rows) }
	Label(name + "_tile")
	CMPQ(count, number(w.rows))
	JGE(LabelRef(label(w.rows)))
	for r := w.rows - 1; r > 0; r-- {
		CMPQ(count, number(r))
		JEQ(LabelRef(label(r)))
	}
	JMP(LabelRef(name + "_end"))
	for rows := w.rows; rows > 0; rows-- {
		at := func(s string) string { return label(rows) + "_" + s }
		Label(label(rows))
		Load(Param("load"), RAX.As8())
		TESTB(RAX.As8(), RAX.As8())
		JZ(LabelRef(at("zero")))
		for r := 0; r < rows; r++ {
			for v := 0; v < 2; v++ {
				VMOVUPS(Mem{Base: block, Disp: r*panelBytes + v*w.bytes()}, w.accumulator(r, v))
			}
		}
		JMP(LabelRef(at("start")))
		Label(at("zero"))
		for r := 0; r < rows; r++ {
			w.zero(w.accumulator(r, 0))
			w.zero(w.accumulator(r, 1))
		}
		Label(at("start"))
		Load(Param("segments"), RSI)
		Load(Param("segmentCount"), RCX)
		Label(at("segment"))
		TESTQ(RCX, RCX)
		JZ(LabelRef(at("store")))
		MOVQ(Mem{Base: RSI, Disp: segmentX}, RAX)
		ADDQ(kOffset, RAX)
		MOVQ(Mem{Base: RSI, Disp: segmentDY}, RBX)
		ADDQ(columnOffset, RBX)
		MOVQ(Mem{Base: RSI, Disp: segmentRows}, RDX)
		ADDQ(number(segmentBytes), RSI)
		DECQ(RCX)
		Label(at("row"))
		TESTQ(RDX, RDX)
		JZ(LabelRef(at("segment")))
		w.load(Mem{Base: RBX}, w.temporary(0), masked, 0)
		w.load(Mem{Base: RBX, Disp: w.bytes()}, w.temporary(1), masked, 1)
		for r := 0; r < rows; r++ {
			b := w.temporary(2 + r%4)
			VBROADCASTSS(Mem{Base: RAX, Disp: 4 * r}, b)
			VFMADD231PS(w.temporary(0), b, w.accumulator(r, 0))
			VFMADD231PS(w.temporary(1), b, w.accumulator(r, 1))
		}
		ADDQ(ldx, RAX)
		ADDQ(lddy, RBX)
		DECQ(RDX)
		JMP(LabelRef(at("row")))
		Label(at("store"))
		for r := 0; r < rows; r++ {
			for v := 0; v < 2; v++ {
				if masked {
					// 0 * Inf must not reach the padding.
					w.clearInvalid(w.accumulator(r, v), v)
				}
				VMOVUPS(w.accumulator(r, v), Mem{Base: block, Disp: r*panelBytes + v*w.bytes()})
			}
		}
		if rows < w.rows {
			JMP(LabelRef(name + "_end"))
			continue
		}
		ADDQ(number(rows*panelBytes), block)
		ADDQ(number(4*rows), kOffset)
		SUBQ(number(rows), count)
		JMP(LabelRef(name + "_tile"))
	}
}
