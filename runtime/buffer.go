package runtime

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// store is a copy between two buffers of the device of a rank.
type store struct{ to, from []byte }

// stores resolves the copies behind the forward pass of a micro-batch.
func (r *rank) stores(c *plan.Chunk, slot func(plan.Ref) int) (list []store) {
	for _, s := range c.Stores {
		list = append(list, store{r.dev.Buffer(s.To, slot(s.To)), r.dev.Buffer(s.From, slot(s.From))})
	}
	return list
}

// reset gives the buffers of cells their first values in a slot.
func (r *rank) reset(slot int) {
	for _, b := range r.plan.Stages[r.stage].Buffers {
		fill(r.dev.Buffer(b.Ref, slot), b.Type.DType, b.First)
	}
}

// fill sets every element.
func fill(b []byte, t ir.DType, v float64) {
	switch {
	case v == 0:
		clear(b)
	case t == ir.Bool:
		for i := range b {
			b[i] = 1
		}
	default:
		bits := math.Float32bits(float32(v))
		if t == ir.I32 {
			bits = uint32(int32(v))
		}
		for i := 0; i+4 <= len(b); i += 4 {
			binary.LittleEndian.PutUint32(b[i:], bits)
		}
	}
}

// bufferType is the type of a buffer in a file.
func bufferType(t ir.Type) data.DType {
	switch t.DType {
	case ir.I32:
		return data.I32
	case ir.Bool:
		return data.U8
	}
	return data.F32
}

// setBuffer copies an array to a buffer of that type and shape.
func setBuffer(to []byte, b *plan.Buffer, a *data.Array) error {
	if a.DType != bufferType(b.Type) || !slices.Equal(a.Shape, b.Type.Shape) {
		return diag.List{diag.Errorf(diag.BadDataFile, diag.Range{}, "the buffer `%s` is %s, the array for it %s%s", b.Name, b.Type, a.DType, ir.ShapeString(a.Shape))}
	}
	if at := slices.IndexFunc(a.Data, func(x byte) bool { return b.Type.DType == ir.Bool && x > 1 }); at >= 0 {
		return diag.List{diag.Errorf(diag.BadValueRange, diag.Range{}, "the buffer `%s` is bool, and element %d is %d", b.Name, at, a.Data[at])}
	}
	copy(to, a.Data)
	return nil
}
