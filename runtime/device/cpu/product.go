package cpu

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// matrices describes a matmul node: batches products of [rows, inner] by [inner, columns].
//
// Forward products, and products with a transposed left side, use kernel.MatMul; gradient products use
// kernel.MatMulInputGrad. Both want the right side packed: a parameter that the plan keeps packed is, anything else is
// packed into the workspace first, for the same kernel and so the same bits.
type matrices struct {
	batches, rows, inner, columns int
	inputGrad                     bool
	swapA, swapB                  bool // the attributes transpose_a and transpose_b
}

func matricesOf(n *node) matrices {
	a, b, y := n.in[0].typ.Shape, n.in[1].typ.Shape, n.out.typ.Shape
	x := matrices{batches: 1, swapA: n.op.Attrs.Bool("transpose_a"), swapB: n.op.Attrs.Bool("transpose_b")}
	x.rows, x.columns = y[len(y)-2], y[len(y)-1]
	if x.inner = a[len(a)-1]; x.swapA {
		x.inner = a[len(a)-2]
	}
	if lead := product(a[:len(a)-2]); len(b) == 2 {
		x.rows *= lead
	} else {
		x.batches = lead
	}
	x.inputGrad = n.op.Pass != ir.ForwardPass && !x.swapA
	if form := n.in[1].form; form != plan.Rows {
		x.inputGrad = (form == plan.NK) != x.swapB
	}
	return x
}

// packedShape is the shape of the right side as it is packed: [inner, columns] for MatMul, its transpose for
// MatMulInputGrad.
func (x *matrices) packedShape() (rows, columns int) {
	if x.inputGrad {
		return x.columns, x.inner
	}
	return x.inner, x.columns
}

// pack writes a row-major right side in packed form.
func (x *matrices) pack(dst, b []float32) {
	rows, columns := x.packedShape()
	if x.swapB == x.inputGrad {
		kernel.Pack(dst, b, rows, columns)
	} else {
		kernel.PackTransposed(dst, b, rows, columns)
	}
}

func buildMatMul(m *machine, n *node) (step, error) {
	x := matricesOf(n)
	a, b, out, bias, mask := n.in[0].place, n.in[1].place, n.out.place, n.bias, n.mask
	relu := n.relu
	packed := n.in[1].form != plan.Rows
	rows, columns := x.packedShape()
	packedBytes := 0
	if !packed {
		packedBytes = 4 * kernel.PackedLen(rows, columns)
	}
	if packed && (x.swapA && x.inputGrad || x.batches != 1) {
		return nil, fmt.Errorf("cpu device: `matmul` of %s with a packed matrix %s", n.in[0].typ, n.in[1].typ)
	}
	right, err := m.work(0, packedBytes, n.op.Kind)
	if err != nil {
		return nil, err
	}
	left, err := m.work(packedBytes, 0, n.op.Kind)
	if err != nil {
		return nil, err
	}
	if x.swapA {
		if left, err = m.work(packedBytes, 4*x.rows*x.inner, n.op.Kind); err != nil {
			return nil, err
		}
	}
	return func(m *memory) error {
		as, bs, ys := m.floats(a), m.floats(b), m.floats(out)
		var epilogue kernel.Epilogue
		if bias != nil {
			epilogue.Bias = m.floats(bias.place)
		}
		epilogue.ReLU = relu
		var masks []float32
		if mask != nil {
			masks = m.floats(mask.place)
		}
		for i := range x.batches {
			l := as[i*x.rows*x.inner:][:x.rows*x.inner]
			y := ys[i*x.rows*x.columns:][:x.rows*x.columns]
			r := bs
			if !packed {
				r = m.floats(right)
				x.pack(r, bs[i*x.inner*x.columns:][:x.inner*x.columns])
			}
			if x.swapA {
				t := m.floats(left)
				swap(t, l, x.inner, x.rows)
				l = t
			}
			if x.inputGrad {
				m.path.MatMulInputGrad(y, l, r, masks, x.rows, x.columns, x.inner)
			} else {
				m.path.MatMul(y, l, r, x.rows, x.inner, x.columns, epilogue)
			}
		}
		return nil
	}, nil
}

// swap writes the transpose of a[rows, columns].
func swap(dst, a []float32, rows, columns int) {
	for r := range rows {
		for c, v := range a[r*columns:][:columns] {
			dst[c*rows+r] = v
		}
	}
}
