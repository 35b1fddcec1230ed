package ir

import (
	"fmt"
	"strconv"
	"strings"
)

// Parse reads the text form. It bounds what it allocates by the length of the text, accepts exactly what String
// prints (and blank lines), and checks every operation with the table.
func Parse(text string) (*Module, error) {
	p := &parser{lines: strings.Split(text, "\n")}
	m, err := p.module()
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", p.line, err)
	}
	return m, nil
}

type parser struct {
	lines []string
	line  int // 1-based number of the current line
	rest  string
	m     *Module
}

func (p *parser) next() bool {
	for p.line < len(p.lines) {
		p.rest = strings.TrimSpace(p.lines[p.line])
		p.line++
		if p.rest != "" {
			return true
		}
	}
	return false
}

func (p *parser) module() (*Module, error) {
	if !p.next() || !p.take("module ") || p.rest == "" || strings.ContainsAny(p.rest, " \t") {
		return nil, fmt.Errorf("want `module NAME`")
	}
	p.m = NewModule(p.rest)
	for p.next() {
		var err error
		switch {
		case p.take("param @"):
			err = p.param()
		case p.take("func @"):
			err = p.function()
		default:
			err = fmt.Errorf("want `param` or `func`, found %q", clip(p.rest))
		}
		if err != nil {
			return nil, err
		}
	}
	return p.m, nil
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

func (p *parser) take(prefix string) bool {
	if strings.HasPrefix(p.rest, prefix) {
		p.rest = p.rest[len(prefix):]
		return true
	}
	return false
}

func (p *parser) want(prefix string) error {
	if !p.take(prefix) {
		return fmt.Errorf("want %q, found %q", prefix, clip(p.rest))
	}
	return nil
}

// word reads up to one of the stop characters.
func (p *parser) word(stop string) string {
	i := strings.IndexAny(p.rest, stop)
	if i < 0 {
		i = len(p.rest)
	}
	w := p.rest[:i]
	p.rest = p.rest[i:]
	return w
}

func (p *parser) typ() (Type, error) {
	d, ok := ParseDType(p.word("["))
	if !ok {
		return Type{}, fmt.Errorf("unknown element type before %q", clip(p.rest))
	}
	dims, err := p.ints()
	if err != nil {
		return Type{}, err
	}
	n := 1
	for _, x := range dims {
		if x < 0 || x > 1<<40 || x > 0 && n > (1<<46)/x {
			return Type{}, fmt.Errorf("shape %s is out of bounds", ShapeString(dims))
		}
		n *= x
	}
	return Type{d, dims}, nil
}

// ints reads [1, 2,3].
func (p *parser) ints() ([]int, error) {
	if err := p.want("["); err != nil {
		return nil, err
	}
	body := p.word("]")
	if err := p.want("]"); err != nil {
		return nil, err
	}
	out := []int{}
	if strings.TrimSpace(body) == "" {
		return out, nil
	}
	for _, f := range strings.Split(body, ",") {
		x, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", clip(f))
		}
		out = append(out, x)
	}
	return out, nil
}

// takePos reads a trailing ` // file:line:col`.
func (p *parser) takePos() (Pos, error) {
	p.rest = strings.TrimSpace(p.rest)
	if p.rest == "" {
		return Pos{}, nil
	}
	if err := p.want("// "); err != nil {
		return Pos{}, err
	}
	s := p.rest
	j := strings.LastIndexByte(s, ':')
	if j < 0 {
		return Pos{}, fmt.Errorf("bad position %q", clip(s))
	}
	i := strings.LastIndexByte(s[:j], ':')
	if i < 0 {
		return Pos{}, fmt.Errorf("bad position %q", clip(s))
	}
	line, err1 := strconv.Atoi(s[i+1 : j])
	col, err2 := strconv.Atoi(s[j+1:])
	if err1 != nil || err2 != nil || line <= 0 || col < 0 {
		return Pos{}, fmt.Errorf("bad position %q", clip(s))
	}
	p.rest = ""
	return Pos{File: s[:i], Line: line, Col: col}, nil
}

func (p *parser) param() error {
	name := p.word(" ")
	if name == "" || p.m.params[name] != nil {
		return fmt.Errorf("parameter name %q is empty or taken", clip(name))
	}
	if err := p.want(" : "); err != nil {
		return err
	}
	t, err := p.typ()
	if err != nil {
		return err
	}
	if err := p.want(" = "); err != nil {
		return err
	}
	init := Init{Kind: p.word("(")}
	if err := p.want("("); err != nil {
		return err
	}
	body := p.word(")")
	if err := p.want(")"); err != nil {
		return err
	}
	if body != "" {
		for _, f := range strings.Split(body, ",") {
			x, err := strconv.ParseFloat(strings.TrimSpace(f), 64)
			if err != nil {
				return fmt.Errorf("%q is not a number", clip(f))
			}
			init.Args = append(init.Args, x)
		}
	}
	frozen := p.take(" frozen")
	pos, err := p.takePos()
	if err != nil {
		return err
	}
	p.m.AddParam(&Param{Name: name, Type: t, Init: init, Frozen: frozen, Pos: pos})
	return nil
}

func (p *parser) function() error {
	name := p.word("(")
	if name == "" || p.m.funcs[name] != nil || strings.ContainsAny(name, " ,") {
		return fmt.Errorf("function name %q is empty, taken or malformed", clip(name))
	}
	f := p.m.NewFunc(name)
	values := map[string]ValueID{}
	if err := p.want("("); err != nil {
		return err
	}
	for i := 0; !p.take(")"); i++ {
		if i > 0 {
			if err := p.want(", "); err != nil {
				return err
			}
		}
		arg := p.word(":")
		if len(arg) < 2 || arg[0] != '%' || values[arg] != 0 {
			return fmt.Errorf("argument name %q is malformed or taken", clip(arg))
		}
		if err := p.want(": "); err != nil {
			return err
		}
		t, err := p.typ()
		if err != nil {
			return err
		}
		values[arg] = f.AddArg(arg[1:], t)
	}
	if err := p.want(" -> ("); err != nil {
		return err
	}
	var results []Type
	for i := 0; !p.take(")"); i++ {
		if i > 0 {
			if err := p.want(", "); err != nil {
				return err
			}
		}
		t, err := p.typ()
		if err != nil {
			return err
		}
		results = append(results, t)
	}
	f.LazyInline = p.take(" lazy_inline")
	f.Front = p.take(" front")
	if p.rest != " {" {
		return fmt.Errorf("want `{`, found %q", clip(p.rest))
	}
	for p.next() {
		switch {
		case p.take("scope "):
			if err := p.scope(f); err != nil {
				return err
			}
		case p.rest == "return" || strings.HasPrefix(p.rest, "return "):
			p.take("return")
			p.rest = strings.TrimPrefix(p.rest, " ")
			vs, err := p.operands(f, values)
			if err != nil {
				return err
			}
			if p.rest != "" || len(vs) != len(results) {
				return fmt.Errorf("results do not fit the signature of %s", name)
			}
			for i, v := range vs {
				if !f.TypeOf(v).Equal(results[i]) {
					return fmt.Errorf("result %d of %s is %s, the signature says %s", i, name, f.TypeOf(v), results[i])
				}
			}
			f.Return(vs...)
			if !p.next() || p.rest != "}" {
				return fmt.Errorf("want `}` after return")
			}
			return nil
		default:
			if err := p.op(f, values); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("function %s does not end", name)
}

func (p *parser) scope(f *Func) error {
	id, err := strconv.Atoi(p.word(" "))
	if err != nil || id != len(f.scopes) {
		return fmt.Errorf("scopes must be numbered in order")
	}
	if err := p.want(" = "); err != nil {
		return err
	}
	parent, err := strconv.Atoi(p.word(" "))
	if err != nil || parent < 0 || parent >= id {
		return fmt.Errorf("bad parent scope")
	}
	name, err := strconv.Unquote(strings.TrimSpace(p.rest))
	if err != nil {
		return fmt.Errorf("bad scope name")
	}
	f.AddScope(ScopeID(parent), name)
	return nil
}

// operands reads `%a, @b, %3` as far as it goes.
func (p *parser) operands(f *Func, values map[string]ValueID) ([]ValueID, error) {
	var vs []ValueID
	for strings.HasPrefix(p.rest, "%") || strings.HasPrefix(p.rest, "@") {
		w := p.word(", ")
		if w[0] == '@' {
			q := p.m.params[w[1:]]
			if q == nil {
				return nil, fmt.Errorf("unknown parameter %s", clip(w))
			}
			vs = append(vs, f.ReadParam(q))
		} else {
			v := values[w]
			if v == 0 {
				return nil, fmt.Errorf("unknown value %s", clip(w))
			}
			vs = append(vs, v)
		}
		if !p.take(", ") {
			break
		}
	}
	return vs, nil
}

func (p *parser) op(f *Func, values map[string]ValueID) error {
	var names []string
	for strings.HasPrefix(p.rest, "%") {
		names = append(names, p.word(", ="))
		if !p.take(", ") {
			break
		}
	}
	if len(names) > 0 {
		if err := p.want(" = "); err != nil {
			return err
		}
	}
	kind, ok := KindByName(p.word(" "))
	if !ok {
		return fmt.Errorf("unknown operation before %q", clip(p.rest))
	}
	p.take(" ")
	var callee *Func
	if kind == Call {
		if err := p.want("@"); err != nil {
			return err
		}
		callee = p.m.funcs[p.word(", ")]
		if callee == nil || callee == f {
			return fmt.Errorf("call of an unknown function")
		}
		p.take(", ")
	}
	args, err := p.operands(f, values)
	if err != nil {
		return err
	}
	p.take(" ")
	attrs, err := p.attrs(kind)
	if err != nil {
		return err
	}
	at, err := p.marks(f)
	if err != nil {
		return err
	}
	var types []Type
	if p.take(": ") {
		for {
			t, err := p.typ()
			if err != nil {
				return err
			}
			types = append(types, t)
			if !p.take(", ") {
				break
			}
		}
	}
	if at.Pos, err = p.takePos(); err != nil {
		return err
	}
	var results []ValueID
	if kind == Call {
		if len(args) != len(callee.Args) {
			return fmt.Errorf("call of %s with %d arguments, wants %d", callee.Name, len(args), len(callee.Args))
		}
		for i, a := range callee.Args {
			if !callee.TypeOf(a).Equal(f.TypeOf(args[i])) {
				return fmt.Errorf("argument %d of %s is %s, wants %s", i, callee.Name, f.TypeOf(args[i]), callee.TypeOf(a))
			}
		}
		results = f.Call(callee, args, at)
	} else if results, err = f.Emit(kind, args, attrs, at); err != nil {
		return err
	}
	if len(results) != len(names) || len(results) != len(types) {
		return fmt.Errorf("`%s` has %d results, the text names %d", kind, len(results), len(names))
	}
	for i, r := range results {
		if !f.TypeOf(r).Equal(types[i]) {
			return fmt.Errorf("result of `%s` is %s, the text says %s", kind, f.TypeOf(r), types[i])
		}
		if len(names[i]) < 2 || values[names[i]] != 0 {
			return fmt.Errorf("value %s is malformed or defined twice", clip(names[i]))
		}
		values[names[i]] = r
	}
	return nil
}

func (p *parser) attrs(kind Kind) (Attrs, error) {
	var out Attrs
	if !p.take("{") {
		return nil, nil
	}
	for {
		name := p.word("=")
		if err := p.want("="); err != nil {
			return nil, err
		}
		v, err := p.attrValue(kind, name)
		if err != nil {
			return nil, err
		}
		out = append(out, Attr{name, v})
		if p.take("}") {
			p.take(" ")
			return out, nil
		}
		if err := p.want(", "); err != nil {
			return nil, err
		}
	}
}

func (p *parser) attrValue(kind Kind, name string) (any, error) {
	for _, s := range kind.Info().Attrs {
		if s.Name != name {
			continue
		}
		if _, ok := s.Example.([]int); ok {
			return p.ints()
		}
		if _, ok := s.Example.(string); ok {
			q, err := strconv.QuotedPrefix(p.rest)
			if err != nil {
				return nil, fmt.Errorf("attribute %s is not a string", name)
			}
			p.rest = p.rest[len(q):]
			return strconv.Unquote(q)
		}
		w := p.word(",}")
		var v any
		var err error
		switch s.Example.(type) {
		case int:
			v, err = strconv.Atoi(w)
		case float64:
			v, err = strconv.ParseFloat(w, 64)
		case bool:
			v, err = strconv.ParseBool(w)
		case DType:
			d, ok := ParseDType(w)
			if !ok {
				err = fmt.Errorf("no such type")
			}
			v = d
		}
		if err != nil {
			return nil, fmt.Errorf("attribute %s has a bad value %q", name, clip(w))
		}
		return v, nil
	}
	return nil, fmt.Errorf("`%s` has no attribute %q", kind, clip(name))
}

func (p *parser) marks(f *Func) (At, error) {
	at := At{Stage: -1, Segment: -1, Chunk: -1}
	for p.rest = strings.TrimPrefix(p.rest, " "); p.take("!"); p.rest = strings.TrimPrefix(p.rest, " ") {
		name := p.word("=")
		if err := p.want("="); err != nil {
			return at, err
		}
		if name == "instance" {
			q, err := strconv.QuotedPrefix(p.rest)
			if err != nil {
				return at, fmt.Errorf("bad instance")
			}
			p.rest = p.rest[len(q):]
			at.Instance, _ = strconv.Unquote(q)
			continue
		}
		n, err := strconv.Atoi(p.word(" "))
		if err != nil || n < 0 || n > 1<<30 {
			return at, fmt.Errorf("bad mark %q", clip(name))
		}
		switch name {
		case "stage":
			at.Stage = n
		case "segment":
			at.Segment = n
		case "chunk":
			at.Chunk = n
		case "scope":
			if n >= len(f.scopes) {
				return at, fmt.Errorf("unknown scope %d", n)
			}
			at.Scope = ScopeID(n)
		case "I":
			at.Pass, at.Forward = InputPass, OpID(n)
		case "W":
			at.Pass, at.Forward = WeightPass, OpID(n)
		default:
			return at, fmt.Errorf("unknown mark %q", clip(name))
		}
	}
	return at, nil
}

// ParseType reads what Type.String prints.
func ParseType(s string) (Type, error) {
	p := &parser{rest: s}
	t, err := p.typ()
	if err == nil && p.rest != "" {
		err = fmt.Errorf("%q is not a type", clip(s))
	}
	return t, err
}
