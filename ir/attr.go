package ir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Attr is a named compile-time value of an operation: an int, float64, string, bool, []int or DType.
type Attr struct {
	Name  string
	Value any
}

// Attrs is a list of attributes sorted by name.
type Attrs []Attr

// IntAttr, FloatAttr and their kin build one attribute.
func IntAttr(name string, v int) Attr       { return Attr{name, v} }
func FloatAttr(name string, v float64) Attr { return Attr{name, v} }
func StringAttr(name string, v string) Attr { return Attr{name, v} }
func BoolAttr(name string, v bool) Attr     { return Attr{name, v} }
func IntsAttr(name string, v []int) Attr    { return Attr{name, v} }
func DTypeAttr(name string, v DType) Attr   { return Attr{name, v} }
func (a Attrs) get(name string) any         { v, _ := a.Lookup(name); return v }
func (a Attrs) Int(name string) int         { v, _ := a.get(name).(int); return v }
func (a Attrs) Float(name string) float64   { v, _ := a.get(name).(float64); return v }
func (a Attrs) Bool(name string) bool       { v, _ := a.get(name).(bool); return v }
func (a Attrs) Text(name string) string     { v, _ := a.get(name).(string); return v }
func (a Attrs) Ints(name string) []int      { v, _ := a.get(name).([]int); return v }
func (a Attrs) DType(name string) DType     { v, _ := a.get(name).(DType); return v }
func (a Attrs) Has(name string) bool        { _, ok := a.Lookup(name); return ok }
func sortAttrs(a Attrs) Attrs {
	slices.SortStableFunc(a, func(x, y Attr) int { return strings.Compare(x.Name, y.Name) })
	return a
}

// Lookup returns the value of the attribute of that name.
func (a Attrs) Lookup(name string) (any, bool) {
	for _, x := range a {
		if x.Name == name {
			return x.Value, true
		}
	}
	return nil, false
}

func (a Attrs) String() string {
	if len(a) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, x := range a {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(x.Name)
		b.WriteByte('=')
		b.WriteString(attrText(x.Value))
	}
	b.WriteByte('}')
	return b.String()
}

func attrText(v any) string {
	switch v := v.(type) {
	case int:
		return strconv.Itoa(v)
	case float64:
		return floatText(v)
	case string:
		return strconv.Quote(v)
	case bool:
		return strconv.FormatBool(v)
	case []int:
		return ShapeString(v)
	case DType:
		return v.String()
	}
	panic(fmt.Sprintf("ir: attribute of unknown type %T", v))
}

// floatText prints a float so that it reads back as a float, never as an int.
func floatText(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if strings.ContainsAny(s, ".enIN") {
		return s
	}
	return s + ".0"
}
