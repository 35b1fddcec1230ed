package frontend

import (
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
)

// argument is an evaluated argument of a call. A nil value means that the
// default applies.
type argument struct {
	name  string
	at    diag.Range
	value value
}

// arguments evaluates the arguments of a call; false when one was faulty.
func (v *env) arguments(args []syntax.Arg) ([]argument, bool) {
	out, ok := make([]argument, len(args)), true
	for i, a := range args {
		out[i] = argument{name: a.Name.Text, at: a.Value.Range(), value: v.eval(a.Value)}
		if a.Name.Text != "" {
			out[i].at = diag.Range{Pos: a.Name.At.Pos, EndLine: out[i].at.EndLine, EndCol: out[i].at.EndCol}
		}
		if isPoison(out[i].value) {
			ok = false
		}
	}
	return out, ok
}

// bind gives each parameter its argument, by position, then by name. What is
// not given keeps a nil value when it has a default.
func (v *env) bind(what string, params []syntax.Param, args []argument, at diag.Range) ([]argument, bool) {
	names := make([]string, len(params))
	needed := make([]bool, len(params))
	for i, p := range params {
		names[i], needed[i] = p.Name.Text, p.Default == nil
	}
	return v.bindNames(what, names, needed, args, at)
}

func (v *env) bindNames(what string, names []string, needed []bool, args []argument, at diag.Range) ([]argument, bool) {
	out := make([]argument, len(names))
	ok := true
	named := false
	for i, a := range args {
		place := i
		if a.name != "" {
			named = true
			place = -1
			for j, n := range names {
				if n == a.name {
					place = j
				}
			}
			if place < 0 {
				d := diag.Errorf(diag.UnknownArgument, a.at, "the %s has no argument %q", what, a.name)
				d.Repair = diag.DidYouMean(a.name, names)
				if d.Repair == "" && len(names) > 0 {
					d.Repair = "its arguments are " + strings.Join(names, ", ")
				}
				v.fail(d)
				ok = false
				continue
			}
		} else if named {
			v.errorf(diag.UnknownArgument, a.at, "an argument without a name cannot follow one with a name")
			ok = false
			continue
		}
		if place >= len(names) {
			v.errorf(diag.UnknownArgument, a.at, "the %s takes %d arguments, not %d", what, len(names), len(args))
			return nil, false
		}
		if out[place].value != nil {
			v.errorf(diag.UnknownArgument, a.at, "the argument %q is given twice", names[place])
			ok = false
			continue
		}
		out[place] = a
	}
	if !ok {
		return nil, false
	}
	var missing []string
	for i, n := range names {
		if out[i].value == nil && needed[i] {
			missing = append(missing, "`"+n+"`")
		}
	}
	if len(missing) > 0 {
		v.errorf(diag.MissingArgument, at, "the %s needs its argument %s", what, strings.Join(missing, ", "))
		return nil, false
	}
	return out, true
}

// whole evaluates an expression to a whole number.
func (v *env) whole(x syntax.Expr, what string) (int, bool) {
	return v.wholeValue(v.eval(x), x.Range(), what)
}

func (v *env) wholeValue(x value, at diag.Range, what string) (int, bool) {
	n, ok := x.(number)
	if !ok {
		if !isPoison(x) {
			v.errorf(diag.WrongType, at, "%s is a whole number, not %s", what, x.kind())
		}
		return 0, false
	}
	i, ok := n.int()
	if !ok {
		if n.rat != nil && n.rat.IsInt() {
			v.errorf(diag.BadNumber, at, "%s is a whole number between -2^53 and 2^53", what)
			return 0, false
		}
		v.fail(diag.Errorf(diag.NotWhole, at, "%s is a whole number, not %s", what, n).WithRepair("use floor, ceil or %%"))
		return 0, false
	}
	return i, true
}

// coerce checks a value against a written type; what names the place.
func (v *env) coerce(x value, t *syntax.Type, at diag.Range, what string) value {
	if isPoison(x) {
		return x
	}
	wrong := func(want string) value {
		return v.errorf(diag.WrongType, at, "%s is %s, not %s", what, want, x.kind())
	}
	if t.Tensor && len(t.Shape) == 0 && t.Name != "f32" { // int[], cell[]: a sequence
		items, ok := sequence(x)
		if !ok {
			if _, isDType := ir.ParseDType(t.Name); !isDType {
				return wrong("a sequence of " + t.Name)
			}
		} else {
			element := &syntax.Type{At: t.At, Name: t.Name}
			for _, item := range items {
				if y := v.coerce(item, element, at, "an item of "+what); isPoison(y) {
					return y
				}
			}
			return x
		}
	}
	n, isNumber := x.(number)
	switch t.Name {
	case "int":
		if !isNumber {
			return wrong("an int")
		}
		if _, ok := v.wholeValue(x, at, what); !ok {
			return poison{}
		}
	case "float":
		if !isNumber {
			return wrong("a float")
		}
		return n
	case "bool":
		if _, ok := x.(boolean); !ok && !t.Tensor {
			return wrong("a bool")
		}
	case "schedule":
		if _, ok := x.(schedule); !ok && !isNumber {
			return wrong("a number or a schedule")
		}
	case "string":
		if _, ok := x.(text); !ok {
			return wrong("a string")
		}
	case "dtype":
		if _, ok := x.(dtype); !ok {
			return wrong("an element type")
		}
	case "cell":
		if _, ok := x.(*instance); !ok {
			return wrong("a cell")
		}
	case "param":
		if _, ok := x.(*storage); !ok {
			return wrong("a parameter")
		}
	default:
		if _, ok := ir.ParseDType(t.Name); !ok {
			return v.fail(diag.Errorf(diag.UnknownName, t.At, "unknown type %q", t.Name).
				WithRepair("int, float, bool, string, dtype, schedule, cell, param, or a tensor type such as f32[8, 4]"))
		}
	}
	if _, isDType := ir.ParseDType(t.Name); isDType && (t.Name != "bool" || t.Tensor) {
		want, ok := v.tensorType(t, at)
		if !ok {
			return poison{}
		}
		got, isTensor := typeOf(x)
		if !isTensor {
			return wrong("a tensor " + want.String())
		}
		if !got.Equal(want) {
			return v.errorf(diag.BadShape, at, "%s is a tensor %s, not %s", what, want, got)
		}
	}
	return x
}

// typeOf gives the tensor type of a tensor or parameter.
func typeOf(x value) (ir.Type, bool) {
	switch x := x.(type) {
	case tensor:
		return x.typ, true
	case *storage:
		return x.param.Type, true
	}
	return ir.Type{}, false
}
