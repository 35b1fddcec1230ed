package plan

import (
	"fmt"
	"math"
	"strconv"

	"github.com/ppc-lang/ppc/ir"
)

// states reads the buffers of cells. A buffer is on one stage.
func (r *reader) states() error {
	rows, err := r.rows(statesFile, statesHead)
	if err != nil {
		return err
	}
	seen, taken := map[string]bool{}, map[[2]Ref]bool{}
	for _, row := range rows {
		s, err := strconv.Atoi(row[0])
		t, err2 := ir.ParseType(row[2])
		first, err3 := strconv.ParseFloat(row[3], 64)
		ref, err4 := parseRef(row[4])
		if err != nil || err2 != nil || err3 != nil || err4 != nil || seen[row[1]] || !FirstFits(t.DType, first) {
			return fmt.Errorf("%s: buffer %s is malformed", statesFile, row[1])
		}
		it := r.item(s, ref)
		if it == nil || !it.Type.Equal(t) || it.Form != Rows || r.p.Stages[s].Areas[ref.Area].Class != States || taken[[2]Ref{{Item: s}, ref}] {
			return fmt.Errorf("%s: buffer %s has no place", statesFile, row[1])
		}
		seen[row[1]], taken[[2]Ref{{Item: s}, ref}] = true, true
		r.p.Stages[s].Buffers = append(r.p.Stages[s].Buffers, StageBuffer{Buffer: &Buffer{Name: row[1], Type: t, First: first}, Ref: ref})
	}
	return nil
}

// FirstFits reports whether every element of a buffer of that type can start with v.
func FirstFits(t ir.DType, v float64) bool {
	switch t {
	case ir.F32:
		return math.Abs(v) <= math.MaxFloat32 || math.IsInf(v, 0)
	case ir.I32:
		return v == float64(int32(v))
	case ir.Bool:
		return v == 0 || v == 1
	}
	return false
}

// stores reads the copies behind the forward pass of a chunk: each goes to a buffer of its stage, and none twice.
func (r *reader) stores(c *Chunk, text string) error {
	list, err := parseRefs(text)
	if err != nil {
		return err
	}
	if len(list)%2 > 0 {
		return fmt.Errorf("the new values of buffers are malformed")
	}
	seen := map[Ref]bool{}
	for i := 0; i < len(list); i += 2 {
		s := Store{list[i], list[i+1]}
		to := r.item(c.Stage, s.To)
		buffer := false
		for _, b := range r.p.Stages[c.Stage].Buffers {
			buffer = buffer || b.Ref == s.To
		}
		if !buffer || seen[s.To] || !r.holds(c.Stage, s.From, to.Type) || s.From == s.To {
			return fmt.Errorf("a new value does not fit its buffer")
		}
		seen[s.To] = true
		c.Stores = append(c.Stores, s)
	}
	return nil
}
