package ir

import (
	"fmt"
	"strconv"
	"strings"
)

// String prints the module. Names of values are given here, in program order, so the text does not depend on how
// the module was built.
func (m *Module) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "module %s\n", m.Name)
	for _, p := range m.Params {
		frozen := ""
		if p.Frozen {
			frozen = " frozen"
		}
		fmt.Fprintf(&b, "param @%s : %s = %s(%s)%s%s\n", p.Name, p.Type, p.Init.Kind, floatList(p.Init.Args), frozen, posText(p.Pos))
	}
	for _, f := range m.CalleesFirst() {
		f.write(&b, true)
	}
	return b.String()
}

// CalleesFirst returns the functions so that every callee stands before its callers.
func (m *Module) CalleesFirst() []*Func {
	out := make([]*Func, 0, len(m.Funcs))
	seen := make(map[*Func]bool, len(m.Funcs))
	var visit func(f *Func)
	visit = func(f *Func) {
		if seen[f] {
			return
		}
		seen[f] = true
		for _, op := range f.Ops {
			if op.Callee != nil {
				visit(op.Callee)
			}
		}
		out = append(out, f)
	}
	for _, f := range m.Funcs {
		visit(f)
	}
	return out
}

// String prints the function.
func (f *Func) String() string {
	var b strings.Builder
	f.write(&b, true)
	return b.String()
}

// Structure is the text of the function without its name and without positions: what makes two functions equal.
func (f *Func) Structure() string {
	var b strings.Builder
	f.write(&b, false)
	_, rest, _ := strings.Cut(b.String(), "(")
	return rest
}

func floatList(v []float64) string {
	s := make([]string, len(v))
	for i, x := range v {
		s[i] = floatText(x)
	}
	return strings.Join(s, ", ")
}

func posText(p Pos) string {
	if p.Line == 0 {
		return ""
	}
	return fmt.Sprintf(" // %s:%d:%d", p.File, p.Line, p.Col)
}

// Names returns the printed name of every value: %name of arguments, @path of parameters, %n of results.
func (f *Func) Names() []string {
	names := make([]string, f.values.count)
	taken := map[string]bool{}
	for i, a := range f.Args {
		n := f.values.at(a).Name
		if n == "" || n[0] >= '0' && n[0] <= '9' {
			n = "arg" + strconv.Itoa(i)
		}
		base := n
		for k := 1; taken[n]; k++ {
			n = fmt.Sprintf("%s.%d", base, k)
		}
		taken[n] = true
		names[a] = "%" + n
	}
	for _, v := range f.order {
		names[v] = "@" + f.values.at(v).Param.Name
	}
	n := 0
	for _, op := range f.Ops {
		for _, r := range op.Results {
			n++
			names[r] = "%" + strconv.Itoa(n)
		}
	}
	return names
}

func (f *Func) write(b *strings.Builder, positions bool) {
	names := f.Names()
	list := func(vs []ValueID) string {
		s := make([]string, len(vs))
		for i, v := range vs {
			s[i] = names[v]
		}
		return strings.Join(s, ", ")
	}
	fmt.Fprintf(b, "func @%s(", f.Name)
	for i, a := range f.Args {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(b, "%s: %s", names[a], f.TypeOf(a))
	}
	b.WriteString(") -> (")
	for i, r := range f.Results {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(f.TypeOf(r).String())
	}
	b.WriteString(")")
	if f.LazyInline {
		b.WriteString(" lazy_inline")
	}
	if f.Front {
		b.WriteString(" front")
	}
	b.WriteString(" {\n")
	for i, s := range f.scopes[1:] {
		fmt.Fprintf(b, "  scope %d = %d %q\n", i+1, s.Parent, s.Name)
	}
	for _, op := range f.Ops {
		b.WriteString("  ")
		if len(op.Results) > 0 {
			b.WriteString(list(op.Results))
			b.WriteString(" = ")
		}
		b.WriteString(op.Kind.String())
		if op.Kind == Call {
			b.WriteString(" @" + op.Callee.Name)
			if len(op.Args) > 0 {
				b.WriteByte(',')
			}
		}
		if len(op.Args) > 0 {
			b.WriteString(" " + list(op.Args))
		}
		if s := op.Attrs.String(); s != "" {
			b.WriteString(" " + s)
		}
		b.WriteString(op.At.marks())
		if len(op.Results) > 0 {
			b.WriteString(" : ")
			for i, r := range op.Results {
				if i > 0 {
					b.WriteString(", ")
				}
				b.WriteString(f.TypeOf(r).String())
			}
		}
		if positions {
			b.WriteString(posText(op.Pos))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(b, "  return %s\n}\n", list(f.Results))
}

func (a At) marks() string {
	var b strings.Builder
	if a.Stage >= 0 {
		fmt.Fprintf(&b, " !stage=%d", a.Stage)
	}
	if a.Segment >= 0 {
		fmt.Fprintf(&b, " !segment=%d", a.Segment)
	}
	if a.Chunk >= 0 {
		fmt.Fprintf(&b, " !chunk=%d", a.Chunk)
	}
	if a.Scope > 0 {
		fmt.Fprintf(&b, " !scope=%d", a.Scope)
	}
	if a.Pass != ForwardPass {
		fmt.Fprintf(&b, " !%s=%d", a.Pass, a.Forward)
	}
	if a.Instance != "" {
		fmt.Fprintf(&b, " !instance=%q", a.Instance)
	}
	return b.String()
}
