package frontend

import (
	"math"
	"math/big"
	"slices"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
)

// builtin is a function of the language: an op on tensors, a function of
// compile-time values, or both.
type builtin struct {
	name     string
	params   []string
	optional int // the last so many parameters may be left out
	run      func(v *env, args []argument, at diag.Range) value
	// raw takes the call before its arguments are evaluated.
	raw func(v *env, x *syntax.Call) value
}

func (b *builtin) needed() []bool {
	out := make([]bool, len(b.params))
	for i := range out {
		out[i] = i < len(b.params)-b.optional
	}
	return out
}

// builtins is filled by init, because its functions evaluate expressions,
// which look names up in it.
var builtins map[string]*builtin

func init() {
	builtins = map[string]*builtin{}
	add := func(name string, params []string, optional int, run func(v *env, args []argument, at diag.Range) value) {
		builtins[name] = &builtin{name: name, params: params, optional: optional, run: run}
	}
	x := []string{"x"}
	for name, kind := range map[string]ir.Kind{
		"relu": ir.Relu, "sigmoid": ir.Sigmoid, "tanh": ir.Tanh, "gelu": ir.Gelu, "identity": ir.Identity,
		"softmax": ir.Softmax, "tril": ir.Tril,
	} {
		add(name, x, 0, opOf(kind))
	}
	for name, kind := range map[string]ir.Kind{"equal": ir.Equal, "less": ir.Less, "less_equal": ir.LessEqual} {
		add(name, []string{"a", "b"}, 0, opOf(kind))
	}
	add("cross_entropy", []string{"logits", "label"}, 0, opOf(ir.CrossEntropy))
	add("gather", []string{"table", "ids"}, 0, opOf(ir.Gather))
	add("dropout", []string{"x", "p"}, 0, dropout)
	add("split", []string{"x", "parts", "axis"}, 1, split)
	add("rsqrt", x, 0, realOr(ir.Rsqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }))
	add("exp", x, 0, realOr(ir.Exp, math.Exp))
	add("log", x, 0, realOr(ir.Log, math.Log))
	add("sqrt", x, 0, realOr(ir.Sqrt, math.Sqrt))
	add("abs", x, 0, absolute)
	add("maximum", []string{"a", "b"}, 0, extremum(ir.Maximum, 1))
	add("minimum", []string{"a", "b"}, 0, extremum(ir.Minimum, -1))
	add("where", []string{"condition", "a", "b"}, 0, where)
	add("matmul", []string{"a", "b", "transpose_a", "transpose_b"}, 2, matmul)
	add("flatten", []string{"x", "start"}, 1, flatten)
	add("reshape", []string{"x", "shape"}, 0, shaped(ir.Reshape, "shape"))
	add("broadcast_to", []string{"x", "shape"}, 0, shaped(ir.BroadcastTo, "shape"))
	add("transpose", []string{"x", "perm"}, 0, shaped(ir.Transpose, "perm"))
	add("squeeze", []string{"x", "axis"}, 0, squeeze)
	add("concat", []string{"tensors", "axis"}, 1, concat)
	add("cast", []string{"x", "dtype"}, 0, cast)
	add("sum", []string{"x", "axes", "keepdims"}, 2, reduce(ir.Sum))
	add("mean", []string{"x", "axes", "keepdims"}, 2, reduce(ir.Mean))
	add("argmax", []string{"x", "axis"}, 1, argmax)
	add("ratio", []string{"sum", "count"}, 0, makeRatio)
	add("floor", x, 0, rounded(false))
	add("ceil", x, 0, rounded(true))
	add("pow", []string{"x", "n"}, 0, power)
	add("len", x, 0, length)
	add("reversed", x, 0, reversed)
	add("zeros", []string{"shape", "dtype"}, 2, filled("zeros", 0))
	add("ones", []string{"shape", "dtype"}, 2, filled("ones", 1))
	add("xavier_uniform", nil, 0, initOf("xavier_uniform"))
	add("constant", []string{"value"}, 0, initOf("constant"))
	add("normal", []string{"std"}, 0, initOf("normal"))
	add("uniform", []string{"scale"}, 0, initOf("uniform"))
	add("he_uniform", []string{"a"}, 1, initOf("he_uniform"))
	add("warmup", []string{"steps", "then"}, 0, warmup)
	add("cosine", []string{"max", "min", "steps"}, 0, cosine)
	add("bias_correction", []string{"beta"}, 0, biasCorrection)
	builtins["has"] = &builtin{name: "has", raw: has}
	for name, kind := range map[string]ir.Kind{"print": ir.Print, "summary": ir.Summary, "tensor_dump": ir.TensorDump} {
		builtins[name] = &builtin{name: name, raw: output(kind)}
	}
	builtins["env"] = &builtin{name: "env", raw: func(v *env, x *syntax.Call) value {
		return v.errorf(diag.WrongType, x.At, "env(...) stands only in the entry `dataset`: it is read when the program runs")
	}}
}

func opOf(kind ir.Kind) func(v *env, args []argument, at diag.Range) value {
	return func(v *env, args []argument, at diag.Range) value {
		operands := make([]value, len(args))
		for i, a := range args {
			operands[i] = a.value
		}
		return v.emit(kind, v.sameType(operands, at), nil, at)
	}
}

// sameType makes numbers beside tensors scalars of their element type.
func (v *env) sameType(operands []value, at diag.Range) []value {
	for _, x := range operands {
		t, ok := typeOf(x)
		if !ok {
			continue
		}
		for i, y := range operands {
			if n, isNumber := y.(number); isNumber {
				operands[i] = v.constantOf(n, t.DType, at)
			}
		}
		break
	}
	return operands
}

// realOr is a real function of a number, an op of a tensor.
func realOr(kind ir.Kind, f func(float64) float64) func(v *env, args []argument, at diag.Range) value {
	return func(v *env, args []argument, at diag.Range) value {
		n, ok := args[0].value.(number)
		if !ok {
			return v.emit(kind, []value{args[0].value}, nil, at)
		}
		r := f(n.float())
		if math.IsNaN(r) || math.IsInf(r, 0) && !math.IsInf(n.float(), 0) {
			return v.errorf(diag.BadNumber, at, "%s(%s) has no value", kind, n)
		}
		return number{real: r}
	}
}

func absolute(v *env, args []argument, at diag.Range) value {
	n, ok := args[0].value.(number)
	switch {
	case !ok:
		return v.emit(ir.Abs, []value{args[0].value}, nil, at)
	case n.rat == nil:
		return number{real: math.Abs(n.real)}
	}
	return number{rat: new(big.Rat).Abs(n.rat)}
}

func extremum(kind ir.Kind, sign int) func(v *env, args []argument, at diag.Range) value {
	return func(v *env, args []argument, at diag.Range) value {
		a, ok1 := args[0].value.(number)
		b, ok2 := args[1].value.(number)
		if !ok1 || !ok2 {
			return opOf(kind)(v, args, at)
		}
		less := a.float() < b.float()
		if a.rat != nil && b.rat != nil {
			less = a.rat.Cmp(b.rat) < 0
		}
		if less == (sign > 0) {
			return b
		}
		return a
	}
}

func where(v *env, args []argument, at diag.Range) value {
	sides := v.sameType([]value{args[1].value, args[2].value}, at)
	return v.emit(ir.Where, append([]value{args[0].value}, sides...), nil, at)
}

// flag reads an optional bool argument.
func (v *env) flag(a argument, what string) (yes, ok bool) {
	switch b := a.value.(type) {
	case nil:
		return false, true
	case boolean:
		return bool(b), true
	}
	v.errorf(diag.WrongType, a.at, "`%s` is true or false, not %s", what, a.value.kind())
	return false, false
}

// axis reads an axis of a tensor of this rank; negative ones count from the
// end.
func (v *env) axis(a argument, rank, missing int) (int, bool) {
	if a.value == nil {
		return missing, true
	}
	n, ok := v.wholeValue(a.value, a.at, "an axis")
	if !ok {
		return 0, false
	}
	if n < 0 {
		n += rank
	}
	if n < 0 || n >= rank {
		v.errorf(diag.BadIndex, a.at, "the axis is outside a tensor with %d axes", rank)
		return 0, false
	}
	return n, true
}

// ints reads a sequence of whole numbers; a single one is a sequence of one.
func (v *env) ints(a argument, what string) ([]int, bool) {
	items, ok := sequence(a.value)
	if !ok {
		items = []value{a.value}
	}
	out := make([]int, len(items))
	for i, x := range items {
		if out[i], ok = v.wholeValue(x, a.at, what); !ok {
			return nil, false
		}
	}
	return out, true
}

func matmul(v *env, args []argument, at diag.Range) value {
	ta, ok1 := v.flag(args[2], "transpose_a")
	tb, ok2 := v.flag(args[3], "transpose_b")
	if !ok1 || !ok2 {
		return poison{}
	}
	var attrs ir.Attrs
	if ta {
		attrs = append(attrs, ir.BoolAttr("transpose_a", true))
	}
	if tb {
		attrs = append(attrs, ir.BoolAttr("transpose_b", true))
	}
	return v.emit(ir.MatMul, []value{args[0].value, args[1].value}, attrs, at)
}

// operand reads the tensor that an op works on.
func (v *env) operand(a argument, op string) (ir.Type, bool) {
	t, ok := typeOf(a.value)
	if !ok {
		v.errorf(diag.WrongType, a.at, "`%s` works on a tensor, not %s", op, a.value.kind())
	}
	return t, ok
}

func flatten(v *env, args []argument, at diag.Range) value {
	t, ok := v.operand(args[0], "flatten")
	if !ok {
		return poison{}
	}
	start, ok := v.axis(args[1], t.Rank(), 1)
	if !ok {
		return poison{}
	}
	return v.emit(ir.Flatten, []value{args[0].value}, ir.Attrs{ir.IntAttr("start", start)}, at)
}

// shaped is an op with one attribute of whole numbers.
func shaped(kind ir.Kind, attr string) func(v *env, args []argument, at diag.Range) value {
	return func(v *env, args []argument, at diag.Range) value {
		n, ok := v.ints(args[1], "an item of `"+attr+"`")
		if !ok {
			return poison{}
		}
		return v.emit(kind, []value{args[0].value}, ir.Attrs{ir.IntsAttr(attr, n)}, at)
	}
}

func squeeze(v *env, args []argument, at diag.Range) value {
	t, ok := v.operand(args[0], "squeeze")
	if !ok {
		return poison{}
	}
	axis, ok := v.axis(args[1], t.Rank(), 0)
	if !ok {
		return poison{}
	}
	if t.Shape[axis] != 1 {
		return v.errorf(diag.BadShape, at, "axis %d of %s is not of length 1", axis, t)
	}
	return v.emit(ir.Reshape, []value{args[0].value}, ir.Attrs{ir.IntsAttr("shape", slices.Delete(slices.Clone(t.Shape), axis, axis+1))}, at)
}

func concat(v *env, args []argument, at diag.Range) value {
	items, ok := sequence(args[0].value)
	if !ok || len(items) == 0 {
		return v.errorf(diag.WrongType, args[0].at, "`concat` joins a sequence of tensors, not %s", args[0].value.kind())
	}
	t, ok := v.operand(argument{value: items[0], at: args[0].at}, "concat")
	if !ok {
		return poison{}
	}
	axis, ok := v.axis(args[1], t.Rank(), 0)
	if !ok {
		return poison{}
	}
	return v.emit(ir.Concat, slices.Clone(items), ir.Attrs{ir.IntAttr("axis", axis)}, at)
}

func cast(v *env, args []argument, at diag.Range) value {
	d, ok := args[1].value.(dtype)
	if !ok {
		return v.errorf(diag.WrongType, args[1].at, "`cast` wants an element type such as f32, not %s", args[1].value.kind())
	}
	return v.emit(ir.Cast, []value{args[0].value}, ir.Attrs{ir.DTypeAttr("dtype", ir.DType(d))}, at)
}

func reduce(kind ir.Kind) func(v *env, args []argument, at diag.Range) value {
	return func(v *env, args []argument, at diag.Range) value {
		t, ok := v.operand(args[0], kind.String())
		if !ok {
			return poison{}
		}
		var attrs ir.Attrs
		if _, all := args[1].value.(none); args[1].value != nil && !all {
			axes, ok := v.ints(args[1], "an axis")
			if !ok {
				return poison{}
			}
			for i, n := range axes {
				if n < 0 {
					axes[i] += t.Rank()
				}
			}
			attrs = append(attrs, ir.IntsAttr("axes", axes))
		}
		keep, ok := v.flag(args[2], "keepdims")
		if !ok {
			return poison{}
		}
		if keep {
			attrs = append(attrs, ir.BoolAttr("keepdims", true))
		}
		return v.emit(kind, []value{args[0].value}, attrs, at)
	}
}

func argmax(v *env, args []argument, at diag.Range) value {
	t, ok := v.operand(args[0], "argmax")
	if !ok {
		return poison{}
	}
	axis, ok := v.axis(args[1], t.Rank(), t.Rank()-1)
	if !ok {
		return poison{}
	}
	return v.emit(ir.ArgMax, []value{args[0].value}, ir.Attrs{ir.IntAttr("axis", axis)}, at)
}

func makeRatio(v *env, args []argument, at diag.Range) value {
	scalar := ir.Tensor(ir.F32)
	var parts [2]tensor
	for i, a := range args {
		x := a.value
		if n, ok := x.(number); ok {
			x = v.constantOf(n, ir.F32, at)
		}
		t, ok := x.(tensor)
		if !ok || !t.typ.Equal(scalar) {
			if !isPoison(x) {
				v.errorf(diag.WrongType, a.at, "a ratio is of two scalars f32[], not %s", x.kind())
			}
			return poison{}
		}
		parts[i] = t
	}
	return ratio{parts[0], parts[1]}
}

// floor gives the largest whole number not above n, and whether n is whole.
func (n number) floor() (*big.Int, bool) {
	r := n.rat
	if r == nil {
		if r = new(big.Rat).SetFloat64(n.real); r == nil {
			return nil, false
		}
	}
	q, rest := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	return q, rest.Sign() == 0
}

func rounded(up bool) func(v *env, args []argument, at diag.Range) value {
	return func(v *env, args []argument, at diag.Range) value {
		n, ok := args[0].value.(number)
		if !ok {
			return v.errorf(diag.WrongType, args[0].at, "floor and ceil work on numbers, not on %s", args[0].value.kind())
		}
		q, isWhole := n.floor()
		if q == nil {
			return v.errorf(diag.BadNumber, at, "%s cannot be rounded", n)
		}
		if up && !isWhole {
			q.Add(q, big.NewInt(1))
		}
		return number{rat: new(big.Rat).SetInt(q)}
	}
}

func power(v *env, args []argument, at diag.Range) value {
	x, ok1 := args[0].value.(number)
	n, ok2 := args[1].value.(number)
	if !ok1 || !ok2 {
		return v.errorf(diag.WrongType, at, "pow works on numbers, not on %s and %s", args[0].value.kind(), args[1].value.kind())
	}
	if e, ok := n.int(); ok && x.rat != nil && e >= 0 && e <= maxBits {
		r := big.NewRat(1, 1)
		for range e {
			if r.Mul(r, x.rat); r.Num().BitLen() > maxBits || r.Denom().BitLen() > maxBits {
				return v.errorf(diag.BadNumber, at, "the number has more than %d bits", maxBits)
			}
		}
		return number{rat: r}
	}
	r := math.Pow(x.float(), n.float())
	if math.IsNaN(r) || math.IsInf(r, 0) {
		return v.errorf(diag.BadNumber, at, "pow(%s, %s) has no value", x, n)
	}
	return number{real: r}
}

func length(v *env, args []argument, at diag.Range) value {
	if t, ok := typeOf(args[0].value); ok && t.Rank() > 0 {
		return whole(t.Shape[0])
	}
	if s, ok := args[0].value.(text); ok {
		return whole(len(s))
	}
	items, ok := sequence(args[0].value)
	if !ok {
		return v.errorf(diag.WrongType, args[0].at, "%s has no length", args[0].value.kind())
	}
	return whole(len(items))
}

func reversed(v *env, args []argument, at diag.Range) value {
	items, ok := sequence(args[0].value)
	if !ok {
		return v.errorf(diag.WrongType, args[0].at, "%s cannot be reversed", args[0].value.kind())
	}
	items = slices.Clone(items)
	slices.Reverse(items)
	return list{items}
}

// initOf is an initialiser with at most one number.
func initOf(kind string) func(v *env, args []argument, at diag.Range) value {
	return func(v *env, args []argument, at diag.Range) value {
		init := initializer{ir.Init{Kind: kind}}
		for _, a := range args {
			x := a.value
			if x == nil {
				x = whole(0)
			}
			n, ok := x.(number)
			if !ok {
				return v.errorf(diag.WrongType, a.at, "%s takes a number, not %s", kind, x.kind())
			}
			f := n.float()
			if math.IsInf(f, 0) || f < 0 && kind != "constant" && kind != "he_uniform" {
				return v.errorf(diag.BadNumber, a.at, "%s(%s) is not possible", kind, n)
			}
			init.Args = append(init.Args, f)
		}
		return init
	}
}

// has(name) asks whether the cell has a member of that name.
func has(v *env, x *syntax.Call) value {
	if len(x.Args) == 1 && v.inst != nil {
		if n, ok := x.Args[0].Value.(*syntax.Name); ok {
			_, found := v.inst.members[n.Text]
			return boolean(found)
		}
	}
	return v.errorf(diag.WrongType, x.At, "has(name) takes the name of a member, inside a cell")
}

// output is print and its kin: strings are labels of the tensor that follows.
func output(kind ir.Kind) func(v *env, x *syntax.Call) value {
	return func(v *env, x *syntax.Call) value {
		args, ok := v.arguments(x.Args)
		if !ok {
			return poison{}
		}
		label, count := "", 0
		for _, a := range args {
			if a.name != "" {
				return v.errorf(diag.UnknownArgument, a.at, "`%s` takes strings and tensors, without names", kind)
			}
			if s, ok := a.value.(text); ok {
				if label != "" {
					label += " "
				}
				label += string(s)
				continue
			}
			if _, ok := typeOf(a.value); !ok {
				return v.errorf(diag.WrongType, a.at, "`%s` writes tensors, not %s", kind, a.value.kind())
			}
			var attrs ir.Attrs
			if label != "" {
				attrs = ir.Attrs{ir.StringAttr("label", label)}
			}
			if isPoison(v.emit(kind, []value{a.value}, attrs, x.At)) {
				return poison{}
			}
			label, count = "", count+1
		}
		if count == 0 || label != "" {
			return v.errorf(diag.WrongType, x.At, "`%s` takes a tensor, with a string before it as its label", kind)
		}
		return none{}
	}
}
