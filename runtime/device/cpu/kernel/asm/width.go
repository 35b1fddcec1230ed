package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// panelBytes is the size of one row of a weight panel: 32 columns of float32.
const panelBytes = 32 * 4

// width is one vector width. A tile always holds rows x 2 vectors, which
// leaves half of the registers for operands and masks.
type width struct {
	suffix string
	lanes  int
	rows   int // rows of a full tile
}

var (
	avx2   = width{suffix: "AVX2", lanes: 8, rows: 4}
	avx512 = width{suffix: "AVX512", lanes: 16, rows: 8}
)

var (
	yRegisters = []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13, Y14, Y15}
	zRegisters = []VecPhysical{
		Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
		Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31,
	}
	kRegisters = []OpmaskPhysical{K1, K2}
)

func (w width) bytes() int  { return w.lanes * 4 }
func (w width) passes() int { return 32 / (2 * w.lanes) }

func (w width) registers() []VecPhysical {
	if w.lanes == 16 {
		return zRegisters
	}
	return yRegisters
}

// accumulator is the register of one vector of a tile.
func (w width) accumulator(row, vector int) VecPhysical { return w.registers()[2*row+vector] }

// temporary is the i-th register that holds no accumulator.
func (w width) temporary(i int) VecPhysical { return w.registers()[2*w.rows+i] }

// mask is the register that holds the mask of one vector where there are no
// mask registers; it is the last but i of all.
func (w width) mask(i int) VecPhysical { r := w.registers(); return r[len(r)-1-i] }

func (w width) zero(r VecPhysical) {
	if w.lanes == 16 {
		VPXORD(r, r, r)
		return
	}
	VPXOR(r, r, r)
}

// setMasks makes the masks of count consecutive vectors of which the first
// `columns` elements are valid. It changes scratch and, on AVX2, the
// temporaries 0 and 1.
func (w width) setMasks(count int, columns, scratch GPPhysical) {
	if w.lanes == 16 {
		MOVQ(U32(0xffffffff), scratch)
		BZHIQ(columns, scratch, scratch)
		for i := 0; i < count; i++ {
			KMOVW(scratch.As32(), kRegisters[i])
			if i+1 < count {
				SHRQ(Imm(16), scratch)
			}
		}
		return
	}
	MOVQ(columns, w.temporary(0).AsX())
	VPBROADCASTD(w.temporary(0).AsX(), w.temporary(0))
	for i := 0; i < count; i++ {
		VMOVDQU(laneNumbers().Offset(i*w.bytes()), w.temporary(1))
		VPCMPGTD(w.temporary(1), w.temporary(0), w.mask(i))
	}
}

// laneNumbers is the constant 0, 1, ..., 15 in memory.
func laneNumbers() Mem { return NewDataAddr(NewStaticSymbol("laneNumbers"), 0) }

func emitLaneNumbers() {
	GLOBL("laneNumbers", attr.RODATA|attr.NOPTR)
	for i := 0; i < 16; i++ {
		DATA(4*i, U32(i))
	}
}

// load reads a vector; a masked one reads only valid elements, the rest are 0.
func (w width) load(from Mem, to VecPhysical, masked bool, i int) {
	switch {
	case !masked:
		VMOVUPS(from, to)
	case w.lanes == 16:
		VMOVUPS_Z(from, kRegisters[i], to)
	default:
		VMASKMOVPS(from, w.mask(i), to)
	}
}

func (w width) store(from VecPhysical, to Mem, masked bool, i int) {
	switch {
	case !masked:
		VMOVUPS(from, to)
	case w.lanes == 16:
		VMOVUPS(from, kRegisters[i], to)
	default:
		VMASKMOVPS(from, w.mask(i), to)
	}
}

// clearInvalid sets the elements outside of mask i to zero.
func (w width) clearInvalid(r VecPhysical, i int) {
	if w.lanes == 16 {
		VMOVAPS_Z(r, kRegisters[i], r)
		return
	}
	VANDPS(w.mask(i), r, r)
}

// rowPointers addresses up to eight equally spaced rows with three pointers.
type rowPointers struct {
	row0, row3, row6, stride GPPhysical
}

// start sets the pointers of rows 3 and 6 from that of row 0.
func (p rowPointers) start() {
	LEAQ(Mem{Base: p.row0, Index: p.stride, Scale: 2}, p.row3)
	ADDQ(p.stride, p.row3)
	LEAQ(Mem{Base: p.row3, Index: p.stride, Scale: 2}, p.row6)
	ADDQ(p.stride, p.row6)
}

func (p rowPointers) advance(bytes int) {
	for _, r := range []GPPhysical{p.row0, p.row3, p.row6} {
		ADDQ(number(bytes), r)
	}
}

func (p rowPointers) at(row, displacement int) Mem {
	switch row {
	case 0:
		return Mem{Base: p.row0, Disp: displacement}
	case 1, 2, 4:
		return Mem{Base: p.row0, Index: p.stride, Scale: uint8(row), Disp: displacement}
	case 3:
		return Mem{Base: p.row3, Disp: displacement}
	case 5, 7:
		return Mem{Base: p.row3, Index: p.stride, Scale: uint8(row - 3), Disp: displacement}
	case 6:
		return Mem{Base: p.row6, Disp: displacement}
	}
	panic(fmt.Sprintf("no row %d in a tile", row))
}

// end returns without dirty upper halves of registers.
func end() {
	VZEROUPPER()
	RET()
}

// dispatch jumps to the label of the row count in the register.
func (w width) dispatch(rows GPPhysical, label func(rows int) string) {
	for r := w.rows; r > 1; r-- {
		CMPQ(rows, number(r))
		JEQ(LabelRef(label(r)))
	}
}

// number is an immediate of a 64-bit instruction: there is no 16-bit form.
func number(n int) Op {
	if n < 128 {
		return I8(n)
	}
	return I32(n)
}
