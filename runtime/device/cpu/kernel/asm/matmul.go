package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// prefetchRows is how many rows of a panel ahead of its use a row is fetched.
const prefetchRows = 16

// matmul writes a tile of up to w.rows rows and 32 columns of x @ panel.
func matmul(w width) {
	TEXT("matmul"+w.suffix, NOSPLIT, "func(y []float32, ldy int, x []float32, ldx int, rows int, panel []float32, k int, bias []float32, columns int, relu bool)")
	Doc(fmt.Sprintf("matmul%s writes up to %d rows and up to 32 columns of x @ panel (+ bias, then relu).", w.suffix, w.rows))
	Pragma("noescape")
	x := rowPointers{row0: RSI, row3: R9, row6: R10, stride: R8}
	y, panel, panelStart, k, columns := RDI, RBX, R13, RCX, RDX
	Load(Param("y").Base(), y)
	Load(Param("ldy"), R11)
	SHLQ(Imm(2), R11)
	Load(Param("ldx"), x.stride)
	SHLQ(Imm(2), x.stride)
	Load(Param("panel").Base(), panelStart)
	Load(Param("bias").Base(), R12)
	Load(Param("columns"), columns)
	Load(Param("rows"), RAX)
	label := func(rows int) string { return fmt.Sprintf("rows%d", rows) }
	w.dispatch(RAX, label)
	for rows := 1; rows <= w.rows; rows++ {
		name := func(s string) string { return fmt.Sprintf("%s_%s", label(rows), s) }
		Label(label(rows))
		Load(Param("x").Base(), x.row0)
		x.start()
		MOVQ(panelStart, panel)
		Load(Param("k"), k)
		for r := 0; r < rows; r++ {
			w.zero(w.accumulator(r, 0))
			w.zero(w.accumulator(r, 1))
		}
		step := func(i int) {
			w.load(Mem{Base: panel, Disp: i * panelBytes}, w.temporary(0), false, 0)
			w.load(Mem{Base: panel, Disp: i*panelBytes + w.bytes()}, w.temporary(1), false, 0)
			for line := 0; line < 2*w.bytes(); line += 64 {
				PREFETCHT0(Mem{Base: panel, Disp: (i+prefetchRows)*panelBytes + line})
			}
			for r := 0; r < rows; r++ {
				b := w.temporary(2 + r%4)
				VBROADCASTSS(x.at(r, 4*i), b)
				VFMADD231PS(w.temporary(0), b, w.accumulator(r, 0))
				VFMADD231PS(w.temporary(1), b, w.accumulator(r, 1))
			}
		}
		const unroll = 4
		Label(name("loop"))
		CMPQ(k, number(unroll))
		JLT(LabelRef(name("rest")))
		for i := 0; i < unroll; i++ {
			step(i)
		}
		ADDQ(number(unroll*panelBytes), panel)
		x.advance(4 * unroll)
		SUBQ(number(unroll), k)
		JMP(LabelRef(name("loop")))
		Label(name("rest"))
		TESTQ(k, k)
		JZ(LabelRef(name("epilogue")))
		step(0)
		ADDQ(number(panelBytes), panel)
		x.advance(4)
		DECQ(k)
		JMP(LabelRef(name("rest")))

		Label(name("epilogue"))
		CMPQ(columns, number(2*w.lanes))
		JLT(LabelRef(name("tail")))
		w.epilogue(rows, y, R12, name("full"), false)
		if w.passes() == 1 {
			end()
		} else {
			// The next columns of the panel, if any of them is valid.
			SUBQ(number(2*w.lanes), columns)
			JZ(LabelRef(name("done")))
			ADDQ(number(2*w.bytes()), y)
			ADDQ(number(2*w.bytes()), panelStart)
			TESTQ(R12, R12)
			JZ(LabelRef(label(rows)))
			ADDQ(number(2*w.bytes()), R12)
			JMP(LabelRef(label(rows)))
			Label(name("done"))
			end()
		}
		Label(name("tail"))
		w.setMasks(2, columns, RAX)
		w.epilogue(rows, y, R12, name("masked"), true)
		end()
	}
}

// epilogue adds the bias where there is one, applies relu where asked and
// stores the tile. It uses RAX.
func (w width) epilogue(rows int, y, bias GPPhysical, name string, masked bool) {
	TESTQ(bias, bias)
	JZ(LabelRef(name + "_nobias"))
	for v := 0; v < 2; v++ {
		w.load(Mem{Base: bias, Disp: v * w.bytes()}, w.temporary(0), masked, v)
		for r := 0; r < rows; r++ {
			VADDPS(w.temporary(0), w.accumulator(r, v), w.accumulator(r, v))
		}
	}
	Label(name + "_nobias")
	Load(Param("relu"), RAX.As8())
	TESTB(RAX.As8(), RAX.As8())
	JZ(LabelRef(name + "_norelu"))
	w.zero(w.temporary(0))
	for r := 0; r < rows; r++ {
		// The second source is the value: that keeps NaN and -0.
		VMAXPS(w.accumulator(r, 0), w.temporary(0), w.accumulator(r, 0))
		VMAXPS(w.accumulator(r, 1), w.temporary(0), w.accumulator(r, 1))
	}
	Label(name + "_norelu")
	MOVQ(y, RAX)
	for r := 0; r < rows; r++ {
		w.store(w.accumulator(r, 0), Mem{Base: RAX}, masked, 0)
		w.store(w.accumulator(r, 1), Mem{Base: RAX, Disp: w.bytes()}, masked, 1)
		if r+1 < rows {
			ADDQ(R11, RAX)
		}
	}
}
