package frontend

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
)

// mostSuggestions: who has that many errors reads the first ones, and to look for the right name takes time by all names.
const mostSuggestions = 1000

// eval evaluates an expression. A fault is reported where it is found and the
// result is poison.
func (v *env) eval(x syntax.Expr) value {
	if !v.step(x.Range()) {
		return poison{}
	}
	switch x := x.(type) {
	case *syntax.Name:
		if y, ok := v.lookup(x.Text, x.At); ok {
			if p, ok := y.(*storage); ok && p.buffer {
				return v.buffer(p, x.At)
			}
			return y
		}
		d := diag.Errorf(diag.UnknownName, x.At, "unknown name %q", x.Text)
		if len(v.list) < mostSuggestions {
			d.Repair = diag.DidYouMean(x.Text, v.visible())
		}
		return v.fail(d)
	case *syntax.Number:
		return number{rat: x.Value}
	case *syntax.String:
		return text(x.Value)
	case *syntax.List:
		items := make([]value, len(x.Items))
		bad := false
		for i, item := range x.Items {
			items[i] = v.eval(item)
			bad = bad || isPoison(items[i])
		}
		if bad {
			return poison{}
		}
		return list{items}
	case *syntax.Map:
		return v.errorf(diag.WrongType, x.At, "a map stands only in an entry of a block")
	case *syntax.Steps:
		return v.errorf(diag.WrongType, x.At, "dataset steps stand only in the entry `dataset`")
	case *syntax.Marked:
		return v.marked(x)
	case *syntax.Call:
		return v.call(x)
	case *syntax.Index:
		return v.index(x)
	case *syntax.Select:
		return v.member(x)
	case *syntax.Unary:
		return v.unary(x)
	case *syntax.Binary:
		return v.binary(x)
	case *syntax.Choice:
		yes, ok := v.condition(x.Cond)
		switch {
		case !ok:
			return poison{}
		case yes:
			return v.eval(x.Then)
		}
		return v.eval(x.Else)
	case *syntax.Span:
		if x.From == nil || x.To == nil {
			return v.errorf(diag.WrongType, x.At, "a range without both ends stands only in an index")
		}
		from, ok1 := v.whole(x.From, "the start of a range")
		to, ok2 := v.whole(x.To, "the end of a range")
		if !ok1 || !ok2 {
			return poison{}
		}
		if to-from > maxItems {
			return v.errorf(diag.TooManyCells, x.At, "a range of %d items is too long (at most %d)", to-from, maxItems)
		}
		return interval{from, max(from, to)}
	}
	panic("frontend: unknown expression")
}

func (v *env) unary(x *syntax.Unary) value {
	y := v.eval(x.X)
	if isPoison(y) {
		return y
	}
	if x.Op == "not" {
		switch b := y.(type) {
		case boolean:
			return !b
		case tensor:
			return v.fail(diag.Errorf(diag.TensorCondition, x.At, "`not` works on compile-time conditions").
				WithRepair("where(condition, false, true)"))
		}
		return v.errorf(diag.WrongType, x.X.Range(), "`not` wants true or false, not %s", y.kind())
	}
	if n, ok := y.(number); ok {
		if n.rat == nil {
			return number{real: -n.real}
		}
		return number{rat: new(big.Rat).Neg(n.rat)}
	}
	if _, ok := typeOf(y); ok {
		return v.emit(ir.Neg, []value{y}, nil, x.At)
	}
	return v.errorf(diag.WrongType, x.X.Range(), "cannot negate %s", y.kind())
}

func (v *env) binary(x *syntax.Binary) value {
	if x.Op == "and" || x.Op == "or" {
		left, ok := v.condition(x.Left)
		if !ok {
			return poison{}
		}
		if left == (x.Op == "or") {
			return boolean(left)
		}
		right, ok := v.condition(x.Right)
		if !ok {
			return poison{}
		}
		return boolean(right)
	}
	a, b := v.eval(x.Left), v.eval(x.Right)
	if isPoison(a) || isPoison(b) {
		return poison{}
	}
	_, noneA := a.(none)
	_, noneB := b.(none)
	if (noneA || noneB) && (x.Op == "==" || x.Op == "!=") {
		return boolean((noneA && noneB) == (x.Op == "=="))
	}
	_, ta := typeOf(a)
	_, tb := typeOf(b)
	if ta || tb {
		return v.tensorBinary(x.Op, a, b, x.At)
	}
	n, okN := a.(number)
	m, okM := b.(number)
	if okN && okM {
		return v.arithmetic(x, n, m)
	}
	switch x.Op {
	case "==", "!=":
		var ka, kb strings.Builder
		key(&ka, a)
		key(&kb, b)
		return boolean((ka.String() == kb.String()) == (x.Op == "=="))
	case "+":
		if s, ok := a.(text); ok {
			if t, ok := b.(text); ok && len(s)+len(t) <= maxItems {
				return s + t
			}
		}
		p, ok1 := sequence(a)
		q, ok2 := sequence(b)
		if ok1 && ok2 {
			if len(p)+len(q) > maxItems {
				return v.errorf(diag.TooManyCells, x.At, "a sequence of %d items is too long", len(p)+len(q))
			}
			return list{append(append(make([]value, 0, len(p)+len(q)), p...), q...)}
		}
	}
	return v.errorf(diag.WrongType, x.OpAt, "`%s` does not work on %s and %s", x.Op, a.kind(), b.kind())
}

// arithmetic computes with two numbers, exactly while both are exact.
func (v *env) arithmetic(x *syntax.Binary, a, b number) value {
	exact := a.rat != nil && b.rat != nil
	order := func() int {
		if exact {
			return a.rat.Cmp(b.rat)
		}
		switch p, q := a.float(), b.float(); {
		case p < q:
			return -1
		case p > q:
			return 1
		}
		return 0
	}
	switch x.Op {
	case "==":
		return boolean(order() == 0)
	case "!=":
		return boolean(order() != 0)
	case "<":
		return boolean(order() < 0)
	case "<=":
		return boolean(order() <= 0)
	case ">":
		return boolean(order() > 0)
	case ">=":
		return boolean(order() >= 0)
	case "%":
		p, ok1 := a.int()
		q, ok2 := b.int()
		if !ok1 || !ok2 {
			return v.errorf(diag.NotWhole, x.OpAt, "`%%` wants whole numbers, not %s and %s", a, b)
		}
		if q == 0 {
			return v.errorf(diag.BadNumber, x.OpAt, "division by zero")
		}
		return whole(((p % q) + q) % q)
	}
	if x.Op == "/" && b.float() == 0 && (b.rat == nil || b.rat.Sign() == 0) {
		return v.errorf(diag.BadNumber, x.OpAt, "division by zero")
	}
	if !exact {
		p, q := a.float(), b.float()
		var r float64
		switch x.Op {
		case "+":
			r = p + q
		case "-":
			r = p - q
		case "*":
			r = p * q
		case "/":
			r = p / q
		}
		if math.IsNaN(r) {
			return v.errorf(diag.BadNumber, x.OpAt, "the result of %s %s %s is not a number", a, x.Op, b)
		}
		return number{real: r}
	}
	r := new(big.Rat)
	switch x.Op {
	case "+":
		r.Add(a.rat, b.rat)
	case "-":
		r.Sub(a.rat, b.rat)
	case "*":
		r.Mul(a.rat, b.rat)
	case "/":
		r.Quo(a.rat, b.rat)
	}
	if r.Num().BitLen() > maxBits || r.Denom().BitLen() > maxBits {
		return v.errorf(diag.BadNumber, x.OpAt, "the number has more than %d bits", maxBits)
	}
	return number{rat: r}
}

// index is x[i] or, on tensors, a slice.
func (v *env) index(x *syntax.Index) value {
	y := v.eval(x.X)
	if isPoison(y) {
		return y
	}
	if _, ok := typeOf(y); ok {
		return v.slices(y, x)
	}
	items, ok := sequence(y)
	if !ok {
		return v.errorf(diag.WrongType, x.At, "cannot index %s", y.kind())
	}
	if len(x.Items) != 1 {
		return v.errorf(diag.BadIndex, x.At, "a sequence takes one index")
	}
	if s, ok := x.Items[0].(*syntax.Span); ok {
		from, to, ok := v.bounds(s, len(items))
		if !ok {
			return poison{}
		}
		return list{items[from:to]}
	}
	i, ok := v.whole(x.Items[0], "an index")
	if !ok {
		return poison{}
	}
	return v.item(items, i, x.Items[0].Range())
}

func (v *env) item(items []value, i int, at diag.Range) value {
	j := i
	if i < 0 {
		j += len(items)
	}
	if j < 0 || j >= len(items) {
		return v.errorf(diag.BadIndex, at, "index %d is outside a sequence of %d", i, len(items))
	}
	return items[j]
}

// bounds evaluates a slice of an axis of n; negative ends count from the end.
func (v *env) bounds(s *syntax.Span, n int) (from, to int, ok bool) {
	from, to, ok = 0, n, true
	if s.From != nil {
		from, ok = v.whole(s.From, "the start of a slice")
	}
	if ok && s.To != nil {
		to, ok = v.whole(s.To, "the end of a slice")
	}
	if !ok {
		return 0, 0, false
	}
	if from < 0 {
		from += n
	}
	if to < 0 {
		to += n
	}
	if from < 0 || to > n || from > to {
		v.errorf(diag.BadIndex, s.At, "the slice %d..%d does not fit a length of %d", from, to, n)
		return 0, 0, false
	}
	return from, to, true
}

// slices takes x[0..3, .., -1] of a tensor: a range keeps the axis, a number
// removes it.
func (v *env) slices(y value, x *syntax.Index) value {
	t, _ := typeOf(y)
	if len(x.Items) > t.Rank() {
		return v.errorf(diag.BadIndex, x.At, "%d indices for a tensor %s", len(x.Items), t)
	}
	var shape []int
	dropped := false
	for axis, item := range x.Items {
		n := t.Shape[axis]
		from, to, keep := 0, n, true
		if s, ok := item.(*syntax.Span); ok {
			if from, to, ok = v.bounds(s, n); !ok {
				return poison{}
			}
		} else {
			i, ok := v.whole(item, "an index")
			if !ok {
				return poison{}
			}
			if i < 0 {
				i += n
			}
			if i < 0 || i >= n {
				return v.errorf(diag.BadIndex, item.Range(), "the index is outside axis %d of %s", axis, t)
			}
			from, to, keep = i, i+1, false
		}
		if to-from != n {
			y = v.emit(ir.Slice, []value{y}, ir.Attrs{ir.IntAttr("axis", axis), ir.IntAttr("start", from), ir.IntAttr("stop", to)}, x.At)
		}
		if keep {
			shape = append(shape, to-from)
		} else {
			dropped = true
		}
	}
	if !dropped || isPoison(y) {
		return y
	}
	shape = append(append([]int{}, shape...), t.Shape[len(x.Items):]...)
	return v.emit(ir.Reshape, []value{y}, ir.Attrs{ir.IntsAttr("shape", shape)}, x.At)
}

// member is x.name.
func (v *env) member(x *syntax.Select) value {
	y := v.eval(x.X)
	if isPoison(y) {
		return y
	}
	name := x.Name.Text
	if i, err := strconv.Atoi(name); err == nil {
		items, ok := sequence(y)
		if !ok {
			return v.errorf(diag.WrongType, x.At, "cannot index %s", y.kind())
		}
		return v.item(items, i, x.Name.At)
	}
	if t, ok := typeOf(y); ok {
		switch name {
		case "shape":
			dims := make([]value, t.Rank())
			for i, n := range t.Shape {
				dims[i] = whole(n)
			}
			return list{dims}
		case "dtype":
			return dtype(t.DType)
		}
		return v.fail(diag.Errorf(diag.UnknownMember, x.Name.At, "%s has no %q", y.kind(), name).WithRepair("a tensor has shape and dtype"))
	}
	inst, ok := y.(*instance)
	if !ok {
		return v.errorf(diag.WrongType, x.Name.At, "%s has no members", y.kind())
	}
	if m, ok := inst.members[name]; ok {
		if p, ok := m.(*storage); ok && p.buffer {
			return v.buffer(p, x.At)
		}
		return m
	}
	if a, ok := inst.args[name]; ok {
		return a
	}
	d := diag.Errorf(diag.UnknownMember, x.Name.At, "the cell %s has no member %q", inst.class.decl.Name.Text, name)
	d.Repair = diag.DidYouMean(name, inst.order)
	return v.fail(d)
}

// marked applies marks to a new cell.
func (v *env) marked(x *syntax.Marked) value {
	y := v.eval(x.X)
	if isPoison(y) {
		return y
	}
	inst, ok := y.(*instance)
	fresh, p := ok && !inst.placed, &placing{}
	if fresh {
		p = &inst.placing
	}
	v.once(x.Marks)
	for _, m := range x.Marks {
		switch {
		case !v.placeMark(m, p):
			return poison{}
		case !fresh:
			return v.fail(diag.Errorf(diag.MisplacedMark, m.At, "a mark stands after a new cell, a parameter or an input, not after %s", y.kind()))
		}
	}
	return y
}
