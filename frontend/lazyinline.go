package frontend

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// lazyInline is what @lazy_inline says before a cell.
type lazyInline struct {
	on, front bool
	keyed     bool     // attrs were given
	attrs     []string // arguments of the cell
}

// cellMarks reads the marks before a cell, of which there is one, @lazy_inline(attrs, policy).
func (e *elaborator) cellMarks(c *syntax.Cell) (lazy lazyInline) {
	for _, m := range c.Marks {
		if m.Name != "lazy_inline" {
			d := diag.Errorf(diag.MisplacedMark, m.At, "unknown mark @%s before a cell", m.Name)
			if d.Repair = diag.DidYouMean(m.Name, []string{"lazy_inline"}); d.Repair == "" {
				d.Repair = "@lazy_inline stands there; @stage stands behind a new cell"
			}
			e.list.Add(d)
			continue
		}
		if lazy.on {
			e.list.Add(diag.Errorf(diag.BadMark, m.At, "@lazy_inline is given twice"))
		}
		lazy.on = true
		for _, a := range m.Args {
			at := a.Value.Range()
			switch a.Name.Text {
			case "policy":
				s, isText := a.Value.(*syntax.String)
				n, isName := a.Value.(*syntax.Name)
				if lazy.front = isText && s.Value == "front"; !lazy.front && !(isName && n.Text == "none") {
					e.list.Add(diag.Errorf(diag.BadMark, at, "the policy of @lazy_inline is \"front\" or none").
						WithRepair("\"front\" inlines the cell at once; none, the default, leaves that to the device"))
				}
			case "attrs":
				lazy.attrs, lazy.keyed = e.keyArguments(c, a.Value)
			default:
				what := fmt.Sprintf("an argument `%s`", a.Name.Text)
				if a.Name.Text == "" {
					what = "an argument without a name"
				}
				d := diag.Errorf(diag.UnknownArgument, m.At, "@lazy_inline does not take %s", what)
				if d.Repair = diag.DidYouMean(a.Name.Text, []string{"attrs", "policy"}); d.Repair == "" {
					d.Repair = "it takes attrs and policy"
				}
				e.list.Add(d)
			}
		}
	}
	return lazy
}

// keyArguments reads attrs: a string or a list of strings, each an argument of the cell.
func (e *elaborator) keyArguments(c *syntax.Cell, x syntax.Expr) (names []string, ok bool) {
	items := []syntax.Expr{x}
	if l, ok := x.(*syntax.List); ok {
		items = l.Items
	}
	var known []string
	for _, p := range c.Params {
		known = append(known, p.Name.Text)
	}
	for _, item := range items {
		s, ok := item.(*syntax.String)
		if !ok {
			e.list.Add(diag.Errorf(diag.BadMark, item.Range(), "the attrs of @lazy_inline are strings, the names of arguments of the cell").
				WithRepair(`attrs = ["in", "out"]`))
			return nil, false
		}
		if !slices.Contains(known, s.Value) {
			d := diag.Errorf(diag.UnknownName, item.Range(), "the cell %s has no argument %q", c.Name.Text, s.Value)
			if d.Repair = diag.DidYouMean(s.Value, known); d.Repair == "" && len(known) > 0 {
				d.Repair = "its arguments are " + strings.Join(known, ", ")
			}
			e.list.Add(d)
			return nil, false
		}
		names = append(names, s.Value)
	}
	return names, true
}

// noteKey keeps the function of a cell with a key, for whoever compares functions.
func (v *env) noteKey(inst *instance, fn *ir.Func, signature string) {
	lazy := inst.class.lazy
	if !lazy.keyed {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s;", inst.class.file.name, inst.class.decl.Name.Text)
	k := plan.Keyed{Func: fn, Path: inst.path(), Pos: inst.at.Pos}
	var cells []plan.Argued // which are never equal: they explain a difference only if nothing else does
	for _, p := range inst.class.decl.Params {
		name := p.Name.Text
		x := inst.args[name]
		if slices.Contains(lazy.attrs, name) {
			key(&b, x)
		} else if text, plain := printed(x); plain {
			k.Rest = append(k.Rest, plan.Argued{Name: name, Value: text})
		} else {
			cells = append(cells, plan.Argued{Name: name, Value: text})
		}
	}
	k.Key, k.Rest = b.String()+signature, append(k.Rest, cells...)
	v.keyed = append(v.keyed, k)
}

// printed is a value as one would write it; plain is false for cells and parameters, which stand for themselves.
func printed(x value) (text string, plain bool) {
	switch x := x.(type) {
	case number:
		return x.String(), true
	case boolean:
		return fmt.Sprint(bool(x)), true
	case interval:
		return fmt.Sprintf("%d..%d", x.from, x.to), true
	case *instance:
		return "the cell `" + x.path() + "`", false
	case *storage:
		return "the parameter `" + x.param.Name + "`", false
	}
	var b strings.Builder
	if items, ok := sequence(x); ok {
		plain = true
		for _, item := range items {
			t, p := printed(item)
			if plain = plain && p; b.Len() > 0 {
				b.WriteString(", ")
			}
			b.WriteString(t)
		}
		return "[" + b.String() + "]", plain
	}
	if s, ok := x.(schedule); ok {
		s.Describe(&b)
		return b.String(), true
	}
	key(&b, x)
	return strings.TrimSuffix(b.String(), ";"), true
}
