package frontend

import (
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
)

// split cuts an axis into equal parts.
func split(v *env, args []argument, at diag.Range) value {
	t, ok := v.operand(args[0], "split")
	if !ok {
		return poison{}
	}
	axis, ok1 := v.axis(args[2], t.Rank(), 0)
	n, ok2 := v.wholeValue(args[1].value, args[1].at, "the number of parts")
	if !ok1 || !ok2 {
		return poison{}
	}
	if t.Rank() == 0 || n < 1 || t.Shape[axis]%n != 0 {
		return v.errorf(diag.BadShape, at, "%s cannot be split into %d equal parts on axis %d", t, n, axis)
	}
	size := t.Shape[axis] / n
	parts := make([]value, n)
	for i := range parts {
		parts[i] = v.emit(ir.Slice, []value{args[0].value}, ir.Attrs{ir.IntAttr("axis", axis), ir.IntAttr("start", i*size), ir.IntAttr("stop", (i+1)*size)}, at)
		if isPoison(parts[i]) {
			return poison{}
		}
	}
	return list{parts}
}

// dropout is the identity outside of training.
func dropout(v *env, args []argument, at diag.Range) value {
	n, ok := args[1].value.(number)
	if !ok {
		return v.errorf(diag.WrongType, args[1].at, "the probability is a number, not %s", args[1].value.kind())
	}
	p := n.float()
	if !(p >= 0 && p < 1) {
		return v.errorf(diag.BadNumber, args[1].at, "a probability of %s is not possible; it is at least 0 and below 1", n)
	}
	if _, ok := v.operand(args[0], "dropout"); !ok {
		return poison{}
	}
	if v.frame != nil && (!v.training || p == 0) {
		return args[0].value
	}
	var key value = poison{}
	if v.frame != nil {
		key = v.frame.key(v.opPath("dropout"))
	}
	return v.emit(ir.Dropout, []value{args[0].value, key}, ir.Attrs{ir.FloatAttr("p", p)}, at)
}

// filled is an initialiser, or, given a shape, a tensor.
func filled(kind string, with float64) func(v *env, args []argument, at diag.Range) value {
	return func(v *env, args []argument, at diag.Range) value {
		if args[0].value == nil {
			if args[1].value != nil {
				return v.errorf(diag.MissingArgument, at, "%s of an element type needs a shape", kind)
			}
			return initializer{ir.Init{Kind: kind}}
		}
		shape, ok := v.ints(args[0], "an item of `shape`")
		if !ok {
			return poison{}
		}
		elements := 1
		for _, n := range shape {
			if n < 1 || elements > maxElements/n {
				return v.errorf(diag.BadShape, args[0].at, "a dimension of %d is not possible here", n)
			}
			elements *= n
		}
		d := dtype(ir.F32)
		if args[1].value != nil {
			if d, ok = args[1].value.(dtype); !ok {
				return v.errorf(diag.WrongType, args[1].at, "`%s` wants an element type such as f32, not %s", kind, args[1].value.kind())
			}
		}
		return v.emit(ir.Constant, nil, ir.Attrs{ir.DTypeAttr("dtype", ir.DType(d)), ir.IntsAttr("shape", shape), ir.FloatAttr("value", with)}, at)
	}
}
