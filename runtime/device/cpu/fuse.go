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
	k := slices.IndexFunc(n.in, func(o operand) bool { return o.id == last.out.id })
	switch {
	case x.inputGrad && n.op.Kind == ir.ReluGrad && k == 0:
		fused.mask = &n.in[1]
	case !x.inputGrad && n.op.Kind == ir.Relu && k == 0:
		fused.relu = true
	case !x.inputGrad && n.op.Kind == ir.Add && k >= 0 && last.bias == nil && addsRow(n, 1-k, &x):
		fused.bias = &n.in[1-k]
	default:
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

// addsRow reports whether operand k of an addition to a product is a row that is added to each of its rows.
func addsRow(n *node, k int, x *matrices) bool {
	row := n.in[k]
	rank := row.typ.Rank()
	return rank > 0 && row.typ.Shape[rank-1] == x.columns && row.typ.Elems() == x.columns && row.form == plan.Rows &&
		n.out.typ.Equal(n.in[1-k].typ) && n.out.typ.Shape[n.out.typ.Rank()-1] == x.columns
}
