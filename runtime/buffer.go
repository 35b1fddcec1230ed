package runtime

import (
	"encoding/binary"
	"math"

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
