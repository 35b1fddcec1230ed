package runtime

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Prints reports whether a program of the plan has operations that show something.
func Prints(p *plan.Plan) bool {
	seen := map[*ir.Func]bool{}
	var in func(f *ir.Func) bool
	in = func(f *ir.Func) bool {
		if f == nil || seen[f] {
			return false
		}
		seen[f] = true
		for _, op := range f.Ops {
			if op.Kind.Info().Effect || in(op.Callee) {
				return true
			}
		}
		return false
	}
	for _, q := range p.Programs {
		for _, c := range q.Chunks {
			for _, ph := range c.Phases {
				if in(ph.Func) {
					return true
				}
			}
		}
	}
	return false
}

// edge is how many elements are shown at each end of a long axis.
const edge = 3

// printer shows tensors as MindSpore's Print does: the label, then the tensor with long axes elided.
func printer(w io.Writer) func(ir.Kind, string, ir.Type, []byte) {
	var buf []byte
	return func(_ ir.Kind, label string, t ir.Type, data []byte) {
		buf = append(buf[:0], label...)
		buf = append(buf, "\nTensor(shape=["...)
		for i, d := range t.Shape {
			if i > 0 {
				buf = append(buf, ", "...)
			}
			buf = strconv.AppendInt(buf, int64(d), 10)
		}
		buf = append(buf, "], dtype="...)
		buf = append(buf, dtypeName(t.DType)...)
		buf = append(buf, ", value=\n"...)
		buf = appendTensor(buf, t, data, 0, 0)
		buf = append(buf, ")\n"...)
		w.Write(buf)
	}
}

func dtypeName(d ir.DType) string {
	switch d {
	case ir.F32:
		return "Float32"
	case ir.I32:
		return "Int32"
	case ir.Bool:
		return "Bool"
	}
	return strings.ToUpper(d.String())
}

// appendTensor prints the block of axis `axis` that starts at element `at`.
func appendTensor(buf []byte, t ir.Type, data []byte, axis, at int) []byte {
	if axis == t.Rank() {
		return appendElement(buf, t.DType, data, at)
	}
	inner := 1
	for _, d := range t.Shape[axis+1:] {
		inner *= d
	}
	n := t.Shape[axis]
	last := axis == t.Rank()-1
	elided := false
	buf = append(buf, '[')
	for i := 0; i < n; i++ {
		if n > 2*edge && i == edge && t.Elems() > 1000 {
			i = n - edge
			elided = true
		}
		if i > 0 {
			switch {
			case last && elided:
				buf = append(buf, " ... "...)
			case last:
				buf = append(buf, ", "...)
			case elided:
				buf = append(buf, "\n ...\n "...)
			default:
				buf = append(buf, "\n "...)
			}
			elided = false
		}
		buf = appendTensor(buf, t, data, axis+1, at+i*inner)
	}
	return append(buf, ']')
}

func appendElement(buf []byte, d ir.DType, data []byte, i int) []byte {
	switch d {
	case ir.F32:
		return strconv.AppendFloat(buf, float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))), 'e', 8, 32)
	case ir.I32:
		return strconv.AppendInt(buf, int64(int32(binary.LittleEndian.Uint32(data[4*i:]))), 10)
	case ir.Bool:
		return strconv.AppendBool(buf, data[i] != 0)
	}
	return fmt.Appendf(buf, "?%s", d)
}
