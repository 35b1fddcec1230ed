package runtime

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/ppc-lang/ppc/ir"
)

// counted ends when it has been asked a number of times.
type counted struct {
	context.Context
	left int
}

func (c *counted) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// The values of a large parameter stop coming when the run is interrupted, and an interrupt that does not come changes none.
func TestInterruptedInitial(t *testing.T) {
	p := &ir.Param{Name: "w", Type: ir.Type{Shape: []int{1, 4 * interruptible}}}
	for _, kind := range []string{"zeros", "uniform", "normal"} {
		p.Init.Kind = kind
		nan := float32(math.NaN())
		v := slices.Repeat([]float32{nan}, p.Type.Elems())
		if err := Initial(&counted{t.Context(), 2}, p, 1, v); err != context.Canceled || v[2*interruptible-1] != v[2*interruptible-1] || v[2*interruptible] == v[2*interruptible] {
			t.Errorf("%s goes on behind an interrupt, or stops before it: %v", kind, err)
		}
		if err := Initial(t.Context(), p, 1, v); err != nil || slices.ContainsFunc(v, func(x float32) bool { return x != x }) {
			t.Errorf("%s: %v, or not all values", kind, err)
		}
	}
}
