package syntax

import (
	"fmt"
	"math/big"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/participle/v2/lexer"

	"github.com/ppc-lang/ppc/diag"
)

// lowering turns the nodes of one declaration into the tree. The grammar's
// tiers for precedence vanish here.
type lowering struct {
	file   string
	tokens []token
	list   *diag.List
}

func (l *lowering) pos(p lexer.Position) diag.Pos {
	return diag.Pos{File: l.file, Line: p.Line, Col: p.Column}
}

// between gives the range from a position to the last token before next,
// which is the position of the token after the node.
func (l *lowering) between(from, next lexer.Position) diag.Range {
	i := sort.Search(len(l.tokens), func(i int) bool { return l.tokens[i].offset >= next.Offset })
	if next.Offset == 0 || next.Offset <= from.Offset {
		i = len(l.tokens)
	}
	for i > 0 && l.tokens[i-1].kind == sep {
		i--
	}
	if i == 0 {
		return diag.At(l.pos(from))
	}
	last := l.tokens[i-1]
	return diag.Range{Pos: l.pos(from), EndLine: last.line, EndCol: last.col + utf8.RuneCountInString(last.text)}
}

// join gives the range from the start of one to the end of another.
func join(a, b diag.Range) diag.Range {
	return diag.Range{Pos: a.Pos, EndLine: b.EndLine, EndCol: b.EndCol}
}

func (l *lowering) decl(d *decl, f *File) {
	marks := l.marks(d.Marks)
	switch {
	case d.Cell != nil:
		c := &Cell{Marks: marks, Name: l.name(d.Cell.Name), Members: l.members(d.Cell.Members)}
		if d.Cell.Params != nil {
			c.Params = l.params(d.Cell.Params)
		}
		f.Cells = append(f.Cells, c)
		return
	case d.Pipe != nil:
		b := l.block(d.Pipe)
		b.Marks = marks
		f.Blocks = append(f.Blocks, b)
		return
	case d.Imp != nil:
		path, _ := unquote(d.Imp.Path)
		at := diag.Span(l.pos(d.Imp.Pos), utf8.RuneCountInString(d.Imp.Path))
		f.Imports = append(f.Imports, &Import{At: at, Path: path})
	case d.Const != nil:
		f.Consts = append(f.Consts, &Const{Name: l.name(d.Const.Name), Type: l.typ(d.Const.Type), Value: l.marked(d.Const.Value)})
	}
	for _, m := range marks {
		l.list.Add(diag.Errorf(diag.MisplacedMark, m.At, "a mark stands before a cell or a block"))
	}
}

func (l *lowering) name(n *name) Ident {
	return Ident{At: diag.Span(l.pos(n.Pos), utf8.RuneCountInString(n.Text)), Text: n.Text}
}

func (l *lowering) names(list []*name) []Ident {
	out := make([]Ident, len(list))
	for i, n := range list {
		out[i] = l.name(n)
	}
	return out
}

func (l *lowering) params(p *parms) []Param {
	out := make([]Param, len(p.List))
	for i, x := range p.List {
		out[i] = l.param(x)
	}
	return out
}

func (l *lowering) param(p *parm) Param {
	out := Param{Name: l.name(p.Name), Type: l.typ(p.Type)}
	if p.Value != nil {
		out.Default = l.marked(p.Value)
	}
	return out
}

func (l *lowering) typ(t *typ) *Type {
	if t == nil {
		return nil
	}
	return &Type{At: l.between(t.Pos, t.EndPos), Name: t.Name, Tensor: t.Tensor, Shape: l.values(t.Shape)}
}

func (l *lowering) members(list []*member) []Stmt {
	out := make([]Stmt, 0, len(list))
	for _, m := range list {
		at := l.between(m.Pos, m.EndPos)
		switch {
		case m.Storage != nil:
			out = append(out, &Storage{At: at, Buffer: m.Buffer, Param: l.param(m.Storage)})
		case m.Construct != nil:
			out = append(out, l.construct(m.Construct))
		case m.For != nil:
			out = append(out, &For{At: at, Vars: l.names(m.For.Loop.Vars), In: l.marked(m.For.Loop.In), Body: l.members(m.For.Body)})
		case m.If != nil:
			out = append(out, l.memberCond(m.If))
		default:
			out = append(out, l.simple(m.Simple, at))
		}
	}
	return out
}

func (l *lowering) memberCond(c *memberCond) *If {
	out := &If{At: diag.At(l.pos(c.Pos)), Cond: l.marked(c.Cond), Then: l.members(c.Then)}
	if c.Elif != nil {
		out.Else = []Stmt{l.memberCond(c.Elif)}
	} else if c.Else != nil {
		out.Else = l.members(c.Else.List)
	}
	return out
}

func (l *lowering) construct(c *construct) *Construct {
	return &Construct{At: diag.Span(l.pos(c.Pos), len("construct")), Params: l.params(c.Params), Body: l.body(c.Body)}
}

func (l *lowering) body(b *statement) []Stmt {
	out := make([]Stmt, 0, len(b.List))
	for _, s := range b.List {
		at := l.between(s.Pos, s.EndPos)
		switch {
		case s.Return != nil:
			out = append(out, &Return{At: at, Values: l.values(s.Return)})
		case s.For != nil:
			out = append(out, &For{At: at, Vars: l.names(s.For.Loop.Vars), In: l.marked(s.For.Loop.In), Body: l.body(s.For.Body)})
		case s.If != nil:
			out = append(out, l.cond(s.If))
		default:
			out = append(out, l.simple(s.Simple, at))
		}
	}
	return out
}

func (l *lowering) cond(c *stmtCond) *If {
	out := &If{At: diag.At(l.pos(c.Pos)), Cond: l.marked(c.Cond), Then: l.body(c.Then)}
	if c.Elif != nil {
		out.Else = []Stmt{l.cond(c.Elif)}
	} else if c.Else != nil {
		out.Else = l.body(c.Else)
	}
	return out
}

func (l *lowering) simple(s *simple, at diag.Range) *Assign {
	left := make([]Expr, len(s.Targets))
	for i, t := range s.Targets {
		left[i] = l.postfix(t)
	}
	if s.Values == nil {
		return &Assign{At: at, Values: left}
	}
	return &Assign{At: at, Targets: left, Values: l.values(s.Values)}
}

func (l *lowering) block(p *pipe) *Block {
	b := &Block{At: diag.Span(l.pos(p.Pos), len(p.Kind)), Kind: p.Kind, Name: Ident{At: diag.At(l.pos(p.Pos))}}
	if p.Name != nil {
		b.Name = l.name(p.Name)
	}
	for _, e := range p.Entries {
		switch {
		case e.Input != nil:
			in := e.Input
			b.Entries = append(b.Entries, &Input{At: diag.Span(l.pos(in.Pos), len("input")), Name: l.name(in.Name), Type: l.typ(in.Type), Marks: l.marks(in.Marks)})
		case e.Construct != nil:
			b.Entries = append(b.Entries, l.construct(e.Construct))
		case e.Pipe != nil:
			b.Entries = append(b.Entries, l.block(e.Pipe))
		default:
			n := l.name(e.Name)
			b.Entries = append(b.Entries, &Assign{At: l.between(e.Pos, e.EndPos), Targets: []Expr{&Name{place{n.At}, n.Text}}, Values: []Expr{l.marked(e.Value)}})
		}
	}
	return b
}

func (l *lowering) values(list []*marked) []Expr {
	out := make([]Expr, len(list))
	for i, m := range list {
		out[i] = l.marked(m)
	}
	return out
}

func (l *lowering) marked(m *marked) Expr {
	x := l.expr(m.X)
	if len(m.Marks) == 0 {
		return x
	}
	marks := l.marks(m.Marks)
	return &Marked{place{join(x.Range(), marks[len(marks)-1].At)}, x, marks}
}

func (l *lowering) marks(list []*mark) []Mark {
	var out []Mark
	for _, m := range list {
		out = append(out, Mark{At: l.between(m.Pos, m.EndPos), Name: m.Name, Args: l.args(m.Args)})
	}
	return out
}

func (l *lowering) args(a *args) []Arg {
	if a == nil {
		return nil
	}
	out := make([]Arg, len(a.List))
	for i, x := range a.List {
		left := l.marked(x.Left)
		if x.Value == nil {
			out[i].Value = left
			continue
		}
		n, ok := left.(*Name)
		if !ok {
			l.list.Add(diag.Errorf(diag.BadSyntax, left.Range(), "the left side of \"=\" in a call is the name of an argument"))
			n = &Name{place{left.Range()}, "?"}
		}
		out[i] = Arg{Name: Ident{At: n.At, Text: n.Text}, Value: l.marked(x.Value)}
	}
	return out
}

func (l *lowering) expr(e *expr) Expr {
	x := l.steps(e.X)
	if e.Cond == nil {
		return x
	}
	other := l.expr(e.Else)
	return &Choice{place{join(x.Range(), other.Range())}, x, l.or(e.Cond), other}
}

func (l *lowering) steps(s *steps) Expr {
	if len(s.List) == 1 {
		return l.or(s.List[0])
	}
	out := &Steps{List: make([]Expr, len(s.List))}
	for i, x := range s.List {
		out.List[i] = l.or(x)
	}
	out.At = join(out.List[0].Range(), out.List[len(out.List)-1].Range())
	return out
}

func binary(op string, at diag.Range, left, right Expr) Expr {
	return &Binary{place{join(left.Range(), right.Range())}, op, at, left, right}
}

func (l *lowering) or(o *or) Expr {
	x := l.and(o.List[0])
	for _, r := range o.List[1:] {
		right := l.and(r)
		x = binary("or", x.Range(), x, right)
	}
	return x
}

func (l *lowering) and(a *and) Expr {
	x := l.not(a.List[0])
	for _, r := range a.List[1:] {
		right := l.not(r)
		x = binary("and", x.Range(), x, right)
	}
	return x
}

func (l *lowering) not(n *not) Expr {
	x := l.compare(n.X)
	if !n.Not {
		return x
	}
	return &Unary{place{join(diag.At(l.pos(n.Pos)), x.Range())}, "not", x}
}

func (l *lowering) compare(c *compare) Expr {
	left := l.span(c.Left)
	if c.Op == nil {
		return left
	}
	return binary(c.Op.Text, diag.Span(l.pos(c.Op.Pos), len(c.Op.Text)), left, l.span(c.Right))
}

func (l *lowering) span(s *span) Expr {
	switch {
	case s.Start && s.Upto == nil:
		return &Span{place{diag.Span(l.pos(s.Pos), 2)}, nil, nil}
	case s.Start:
		to := l.sum(s.Upto)
		return &Span{place{join(diag.At(l.pos(s.Pos)), to.Range())}, nil, to}
	}
	from := l.sum(s.From)
	switch {
	case !s.Dots:
		return from
	case s.To == nil:
		return &Span{place{from.Range()}, from, nil}
	}
	to := l.sum(s.To)
	return &Span{place{join(from.Range(), to.Range())}, from, to}
}

func (l *lowering) sum(s *sum) Expr {
	x := l.term(s.Left)
	for _, r := range s.Rest {
		x = binary(r.Op, diag.Span(l.pos(r.Pos), 1), x, l.term(r.X))
	}
	return x
}

func (l *lowering) term(t *term) Expr {
	x := l.unary(t.Left)
	for _, r := range t.Rest {
		x = binary(r.Op, diag.Span(l.pos(r.Pos), 1), x, l.unary(r.X))
	}
	return x
}

func (l *lowering) unary(u *unary) Expr {
	x := l.postfix(u.X)
	if !u.Minus {
		return x
	}
	return &Unary{place{join(diag.At(l.pos(u.Pos)), x.Range())}, "-", x}
}

func (l *lowering) postfix(p *postfix) Expr {
	x := l.atom(p.Atom)
	start := p.Atom.Pos
	for _, s := range p.Suffixes {
		at := place{l.between(start, s.EndPos)}
		switch {
		case s.Args != nil:
			x = &Call{at, x, l.args(s.Args)}
		case s.Index != nil:
			x = &Index{at, x, l.values(s.Index)}
		default:
			d := s.Dot
			x = &Select{at, x, Ident{diag.Span(l.pos(d.Pos), utf8.RuneCountInString(d.Text)), d.Text}}
		}
	}
	return x
}

func (l *lowering) atom(a *atom) Expr {
	at := place{l.between(a.Pos, a.EndPos)}
	switch {
	case a.Number != "":
		v, err := ParseNumber(a.Number)
		if err != nil {
			l.list.Add(diag.Errorf(diag.BadNumber, at.At, "%v", err))
			v = new(big.Rat)
		}
		return &Number{at, v}
	case a.Text != "":
		s, _ := unquote(a.Text)
		return &String{at, s}
	case a.Name != "":
		return &Name{at, a.Name}
	case a.Paren != nil:
		return l.expr(a.Paren)
	case a.List != nil:
		return &List{at, l.values(a.List.Items)}
	}
	m := &Map{place: at}
	seen := map[string]Expr{}
	for _, p := range a.Map.List {
		k := l.postfix(p.Key)
		if id := keyOf(k); id != "" {
			if first, ok := seen[id]; ok {
				l.list.Add(diag.Errorf(diag.DuplicateName, k.Range(), "the key %s is given twice", id).WithNote(first.Range(), "first given here"))
			}
			seen[id] = k
		}
		m.Keys = append(m.Keys, k)
		m.Values = append(m.Values, l.marked(p.Value))
	}
	return m
}

// keyOf is the text of a simple key; "" for one that has to be evaluated.
func keyOf(k Expr) string {
	switch k := k.(type) {
	case *Name:
		return strconv.Quote(k.Text)
	case *String:
		return strconv.Quote(k.Value)
	case *Select:
		if x := keyOf(k.X); x != "" {
			return x + "." + k.Name.Text
		}
	}
	return ""
}

// ParseNumber reads a number literal exactly. Digits and exponent are bounded,
// so that its size is too.
func ParseNumber(s string) (*big.Rat, error) {
	digits := strings.ReplaceAll(s, "_", "")
	mantissa, exponent, found := strings.Cut(strings.ToLower(digits), "e")
	e := 0
	if found {
		var err error
		if e, err = strconv.Atoi(exponent); err != nil || e < -400 || e > 400 {
			return nil, fmt.Errorf("the exponent of %s is out of range", s)
		}
	}
	if len(mantissa) > 400 {
		return nil, fmt.Errorf("a number of %d digits is too long", len(mantissa))
	}
	v, ok := new(big.Rat).SetString(fmt.Sprintf("%se%d", mantissa, e))
	if !ok {
		return nil, fmt.Errorf("%q is not a number", s)
	}
	return v, nil
}
