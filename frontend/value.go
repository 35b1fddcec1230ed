package frontend

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// value is what an expression gives. Everything but a tensor is known at
// compile time.
type value interface {
	// kind names the sort of value in messages, with an article.
	kind() string
}

type (
	// poison stands for the value of an expression that was reported; what is
	// computed from it is poison too, silently.
	poison struct{}
	// none is the value of the name none.
	none struct{}
	// number is exact while rat is set, else a real.
	number struct {
		rat  *big.Rat // never changed
		real float64
	}
	boolean bool
	text    string
	dtype   ir.DType
	// list is a sequence; its items are never changed.
	list struct{ items []value }
	// interval is from..to, a sequence of whole numbers.
	interval struct{ from, to int }
	// class is a cell declaration with the file whose names it sees.
	class struct {
		decl *syntax.Cell
		file *fileScope
		lazy lazyInline
	}
	// function is a built-in function or op.
	function struct{ *builtin }
	// tensor is a value of the function under construction.
	tensor struct {
		id  ir.ValueID
		typ ir.Type
	}
	// initializer says how a parameter starts.
	initializer struct{ ir.Init }
	// schedule is a number that depends on the training step.
	schedule struct{ plan.Schedule }
	// ratio is a result to be divided once, over all micro-batches.
	ratio struct{ sum, count tensor }
	// cellList is the member that name[i] = ... fills; nil where nothing has
	// been assigned yet.
	cellList struct {
		items []value
		at    diag.Range
	}
)

func (poison) kind() string      { return "a faulty value" }
func (none) kind() string        { return "none" }
func (n number) kind() string    { return "the number " + n.String() }
func (boolean) kind() string     { return "a bool" }
func (text) kind() string        { return "a string" }
func (dtype) kind() string       { return "an element type" }
func (list) kind() string        { return "a sequence" }
func (interval) kind() string    { return "a range" }
func (c *class) kind() string    { return "the cell type " + c.decl.Name.Text }
func (f function) kind() string  { return "the function " + f.name }
func (t tensor) kind() string    { return "a tensor " + t.typ.String() }
func (initializer) kind() string { return "an initialiser" }
func (schedule) kind() string    { return "a schedule" }
func (ratio) kind() string       { return "a ratio" }
func (*cellList) kind() string   { return "a list of cells" }
func (i *instance) kind() string { return "a cell " + i.class.decl.Name.Text }
func (p *storage) kind() string {
	if p.buffer {
		return "a buffer " + p.param.Type.String()
	}
	return "a parameter " + p.param.Type.String()
}

func isPoison(v value) bool { _, bad := v.(poison); return bad }

// whole makes the number n.
func whole(n int) number { return number{rat: new(big.Rat).SetInt64(int64(n))} }

// float gives the nearest float64.
func (n number) float() float64 {
	if n.rat == nil {
		return n.real
	}
	f, _ := n.rat.Float64()
	return f
}

// int gives the number as an int; false for a fraction, a real, or one that is
// too large.
func (n number) int() (int, bool) {
	if n.rat == nil || !n.rat.IsInt() || !n.rat.Num().IsInt64() {
		return 0, false
	}
	i := n.rat.Num().Int64()
	return int(i), i >= -1<<53 && i <= 1<<53
}

func (n number) String() string {
	switch {
	case n.rat == nil:
		return strconv.FormatFloat(n.real, 'g', 6, 64)
	case n.rat.IsInt() && n.rat.Num().BitLen() < 200:
		return n.rat.Num().String()
	case n.rat.Num().BitLen() < 40 && n.rat.Denom().BitLen() < 40:
		return n.rat.RatString()
	}
	return strconv.FormatFloat(n.float(), 'g', 6, 64)
}

// sequence gives the items of a value that can be gone through.
func sequence(v value) ([]value, bool) {
	switch v := v.(type) {
	case list:
		return v.items, true
	case interval:
		items := make([]value, max(0, v.to-v.from))
		for i := range items {
			items[i] = whole(v.from + i)
		}
		return items, true
	case *cellList:
		return v.sequence(), true
	case *instance:
		if v.self != nil {
			return v.self.sequence(), true
		}
	}
	return nil, false
}

func (l *cellList) sequence() []value {
	if !slices.Contains(l.items, nil) {
		return l.items
	}
	return slices.DeleteFunc(slices.Clone(l.items), func(x value) bool { return x == nil })
}

// key describes a compile-time value so that equal descriptions mean equal
// values; a tensor is described by its type.
func key(b *strings.Builder, v value) {
	switch v := v.(type) {
	case number:
		if v.rat != nil {
			b.WriteString(v.rat.String())
		} else {
			b.WriteString("~" + strconv.FormatFloat(v.real, 'b', -1, 64))
		}
	case boolean:
		fmt.Fprintf(b, "%t", bool(v))
	case text:
		b.WriteString(strconv.Quote(string(v)))
	case dtype:
		b.WriteString(ir.DType(v).String())
	case tensor:
		b.WriteString("%" + v.typ.String())
	case list:
		b.WriteByte('[')
		for _, x := range v.items {
			key(b, x)
			b.WriteByte(',')
		}
		b.WriteByte(']')
	case interval:
		fmt.Fprintf(b, "%d..%d", v.from, v.to)
	case schedule:
		v.Describe(b)
	case ratio:
		b.WriteString("ratio")
	default: // reference values: identity is the pointer
		fmt.Fprintf(b, "%s#%p", v.kind(), v)
	}
	b.WriteByte(';')
}

// tensors appends the tensors inside v in order.
func tensors(out []tensor, v value) []tensor {
	switch v := v.(type) {
	case tensor:
		out = append(out, v)
	case list:
		for _, x := range v.items {
			out = tensors(out, x)
		}
	case ratio:
		out = append(out, v.sum, v.count)
	}
	return out
}

// replace rebuilds v with its tensors, in the order of [tensors], given by next.
func replace(v value, next func() tensor) value {
	switch v := v.(type) {
	case tensor:
		return next()
	case list:
		items := make([]value, len(v.items))
		for i, x := range v.items {
			items[i] = replace(x, next)
		}
		return list{items}
	case ratio:
		sum := next()
		return ratio{sum, next()}
	}
	return v
}
