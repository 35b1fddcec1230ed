package cpu

import (
	"slices"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// fuse joins neighbours where one kernel does both with the same bits: a product with the bias row and the relu behind
// it, and an input gradient with the relu_grad behind it. The value between them must be in the scratch and have no
// other use, and the fused result must not lie on an operand that the kernel still reads.
func fuse(nodes []node, scratch int) []node {
	uses := map[int]int{} // by id of the value
	for i := range nodes {
		for _, o := range nodes[i].in {
			uses[o.id]++
		}
	}
	var out []node
	for i := range nodes {
		n := nodes[i]
		if len(out) > 0 {
			last := &out[len(out)-1]
			if last.op.Kind == ir.MatMul && last.out.area == scratch && uses[last.out.id] == 1 && join(last, &n) {
				continue
			}
		}
		out = append(out, n)
	}
	return out
}

// join fuses n into the product before it, if it can.
func join(last, n *node) bool {
	x := matricesOf(last)
	if x.batches != 1 || last.mask != nil || last.relu {
		return false
	}
	fused := *last
	switch {
	case x.inputGrad:
		if n.op.Kind != ir.ReluGrad || n.in[0].id != last.out.id {
			return false
		}
		fused.mask = &n.in[1]
	case n.op.Kind == ir.Relu:
		fused.relu = true
	case n.op.Kind == ir.Add && last.bias == nil:
		k := slices.IndexFunc(n.in, func(o operand) bool { return o.id == last.out.id })
		if k < 0 {
			return false
		}
		row := n.in[1-k]
		if product(row.typ.Shape) != x.columns || row.typ.Rank() == 0 || row.typ.Shape[row.typ.Rank()-1] != x.columns || row.form != plan.Rows ||
			product(n.out.typ.Shape) != x.rows*x.columns || n.in[k].typ.Shape[n.in[k].typ.Rank()-1] != x.columns {
			return false
		}
		fused.bias = &row
	default:
		return false
	}
	if n.op.Kind != ir.Add && n.in[0].id != last.out.id {
		return false
	}
	fused.out = n.out
	reads := slices.Clone(fused.in)
	for _, o := range []*operand{fused.bias, fused.mask} {
		if o != nil {
			reads = append(reads, *o)
		}
	}
	for _, o := range reads {
		if o.overlaps(fused.out.place) {
			return false
		}
	}
	*last = fused
	return true
}
