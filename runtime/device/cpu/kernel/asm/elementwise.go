package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// operation is one element-wise kernel: emit writes the result to v[0], from
// the operands v[1] and v[2] and the scalar s in every lane. v[3] is free.
type operation struct {
	name      string
	arguments []string
	scalar    string
	doc       string
	emit      func(v [4]VecPhysical, s, zero VecPhysical)
}

var operations = []operation{
	{"add", []string{"a", "b"}, "", "a + b", func(v [4]VecPhysical, _, _ VecPhysical) { VADDPS(v[2], v[1], v[0]) }},
	{"sub", []string{"a", "b"}, "", "a - b", func(v [4]VecPhysical, _, _ VecPhysical) { VSUBPS(v[2], v[1], v[0]) }},
	{"mul", []string{"a", "b"}, "", "a * b", func(v [4]VecPhysical, _, _ VecPhysical) { VMULPS(v[2], v[1], v[0]) }},
	{"scale", []string{"a"}, "s", "s * a", func(v [4]VecPhysical, s, _ VecPhysical) { VMULPS(v[1], s, v[0]) }},
	{"relu", []string{"a"}, "", "max(0, a)", func(v [4]VecPhysical, _, zero VecPhysical) { VMAXPS(v[1], zero, v[0]) }},
	{"reluGrad", []string{"a", "b"}, "", "a where b > 0, else 0", func(v [4]VecPhysical, _, zero VecPhysical) {
		if v[0].Size() == 64 {
			VCMPPS(Imm(0x1e), zero, v[2], K1)
			VMOVAPS_Z(v[1], K1, v[0])
			return
		}
		VCMPPS(Imm(0x1e), zero, v[2], v[3])
		VANDPS(v[1], v[3], v[0])
	}},
	{"multiplySubtract", []string{"a", "b"}, "s", "a - s * b, rounded twice", func(v [4]VecPhysical, s, _ VecPhysical) {
		VMULPS(v[2], s, v[3])
		VSUBPS(v[3], v[1], v[0])
	}},
	{"multiplyAdd", []string{"a", "b"}, "s", "a + s * b, rounded twice", func(v [4]VecPhysical, s, _ VecPhysical) {
		VMULPS(v[2], s, v[3])
		VADDPS(v[3], v[1], v[0])
	}},
}

// elementwise emits every operation: four vectors at a time, then one, then
// single elements in the low lane.
func elementwise(w width) {
	for _, op := range operations {
		name := op.name + w.suffix
		signature := "func(dst"
		for _, a := range op.arguments {
			signature += ", " + a
		}
		signature += " []float32"
		if op.scalar != "" {
			signature += ", " + op.scalar + " float32"
		}
		TEXT(name, NOSPLIT, signature+")")
		Doc(fmt.Sprintf("%s sets dst = %s; all operands have the length of dst.", name, op.doc))
		Pragma("noescape")
		pointers := []GPPhysical{RDI, RSI, RBX}[:1+len(op.arguments)]
		Load(Param("dst").Base(), RDI)
		Load(Param("dst").Len(), RCX)
		for i, a := range op.arguments {
			Load(Param(a).Base(), pointers[1+i])
		}
		s, zero := w.registers()[14], w.registers()[15]
		w.zero(zero)
		if op.scalar != "" {
			address, err := Param(op.scalar).Resolve()
			if err != nil {
				panic(err)
			}
			VBROADCASTSS(address.Addr, s)
		}
		group := func(u int) (v [4]VecPhysical) {
			// Two registers a group and one for all is enough for four
			// groups: the result may overwrite the first operand.
			r := w.registers()
			return [4]VecPhysical{r[3*u], r[3*u], r[3*u+1], r[3*u+2]}
		}
		advance := func(bytes int) {
			for _, p := range pointers {
				ADDQ(number(bytes), p)
			}
		}
		vectors := func(count int, label, next string) {
			Label(label)
			CMPQ(RCX, number(count*w.lanes))
			JLT(LabelRef(next))
			for u := 0; u < count; u++ {
				v := group(u)
				for i, p := range pointers[1:] {
					VMOVUPS(Mem{Base: p, Disp: u * w.bytes()}, v[1+i])
				}
				op.emit(v, s, zero)
				VMOVUPS(v[0], Mem{Base: RDI, Disp: u * w.bytes()})
			}
			advance(count * w.bytes())
			SUBQ(number(count*w.lanes), RCX)
			JMP(LabelRef(label))
		}
		vectors(4, "vectors4", "vectors1")
		vectors(1, "vectors1", "elements")
		Label("elements")
		TESTQ(RCX, RCX)
		JZ(LabelRef("end"))
		v := group(0)
		for i, p := range pointers[1:] {
			VMOVSS(Mem{Base: p}, v[1+i].AsX())
		}
		op.emit(v, s, zero)
		VMOVSS(v[0].AsX(), Mem{Base: RDI})
		advance(4)
		DECQ(RCX)
		JMP(LabelRef("elements"))
		Label("end")
		end()
	}
}

// columnSums continues the sums of columns over rows.
func columnSums(w width) {
	name := "columnSums" + w.suffix
	TEXT(name, NOSPLIT, "func(sums []float32, x []float32, rows int)")
	Doc(fmt.Sprintf("%s adds each row of x[rows, len(sums)] to sums, rows ascending.", name))
	Pragma("noescape")
	Load(Param("sums").Base(), RDI)
	Load(Param("sums").Len(), RCX)
	Load(Param("x").Base(), RSI)
	MOVQ(RCX, R8)
	SHLQ(Imm(2), R8)
	columns := func(count int, label, next string, scalar bool) {
		width, bytes := count*w.lanes, count*w.bytes()
		if scalar {
			width, bytes = 1, 4
		}
		move := func(from, to Op) {
			if scalar {
				VMOVSS(from, to)
			} else {
				VMOVUPS(from, to)
			}
		}
		register := func(u int) VecPhysical {
			if scalar {
				return w.registers()[u].AsX().(VecPhysical)
			}
			return w.registers()[u]
		}
		Label(label)
		CMPQ(RCX, number(width))
		JLT(LabelRef(next))
		for u := 0; u < count; u++ {
			move(Mem{Base: RDI, Disp: u * w.bytes()}, register(u))
		}
		MOVQ(RSI, RBX)
		Load(Param("rows"), RDX)
		Label(label + "_row")
		TESTQ(RDX, RDX)
		JZ(LabelRef(label + "_store"))
		for u := 0; u < count; u++ {
			from := Mem{Base: RBX, Disp: u * w.bytes()}
			if scalar {
				VADDSS(from, register(u), register(u))
			} else {
				VADDPS(from, register(u), register(u))
			}
		}
		ADDQ(R8, RBX)
		DECQ(RDX)
		JMP(LabelRef(label + "_row"))
		Label(label + "_store")
		for u := 0; u < count; u++ {
			move(register(u), Mem{Base: RDI, Disp: u * w.bytes()})
		}
		ADDQ(number(bytes), RDI)
		ADDQ(number(bytes), RSI)
		SUBQ(number(width), RCX)
		JMP(LabelRef(label))
	}
	columns(4, "vectors4", "vectors1", false)
	columns(1, "vectors1", "elements", false)
	columns(1, "elements", "end", true)
	Label("end")
	end()
}
