package syntax

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"

	"github.com/ppc-lang/ppc/diag"
)

// MaxDepth bounds how deep brackets, blocks and else branches may nest, and
// with them the recursion of everything that walks the tree.
const MaxDepth = 200

// Parse reads a file. Errors are reported per declaration, so that one run
// shows several; the declarations without errors are in the result.
func Parse(name string, src []byte) (*File, diag.List) { return ParseUntil(nil, name, src) }

// ParseUntil is Parse, and gives up between two declarations with the error `interrupted` once done is closed.
func ParseUntil(done <-chan struct{}, name string, src []byte) (*File, diag.List) {
	var list diag.List
	f := &File{Name: name}
	if len(src) > MaxFile {
		list.Add(diag.Errorf(diag.FileTooLarge, diag.Range{Pos: diag.Pos{File: name}}, "the file has more than %d bytes; no model file needs that many", MaxFile))
		return f, list
	}
	tokens := separate(scan(name, string(src), &list))
	if list.HasErrors() {
		// The grammar would report the holes that bad characters leave.
		return f, list
	}
	for at := 0; at < len(tokens); {
		select {
		case <-done:
			list.Add(diag.Errorf(diag.RunFailed, diag.Range{}, "interrupted"))
			return f, list
		default:
		}
		end := declEnd(tokens, at)
		chunk := tokens[at:end]
		d, bad := parseDecl(name, chunk)
		if bad == nil {
			l := lowering{file: name, tokens: chunk, list: &list}
			l.decl(d, f)
			at = end + 1
			continue
		}
		list.Add(bad.Diagnostic)
		at = resume(tokens, at, bad.token, end)
	}
	return f, list
}

// declEnd returns the index of the sep that ends the declaration starting at
// index at. Marks stand before a declaration, with or without a sep.
func declEnd(tokens []token, at int) int {
	depth, marks := 0, true
	for i := at; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case t.is("(") || t.is("[") || t.is("{"):
			depth++
		case t.is(")") || t.is("]") || t.is("}"):
			depth--
		case t.kind == sep && depth <= 0 && !marks:
			return i
		case depth <= 0 && startsDecl(tokens, i) && !t.is("@"):
			marks = false
		case i == at && !t.is("@"):
			marks = false
		}
	}
	return len(tokens)
}

// startsDecl reports whether a token looks like the start of a declaration.
func startsDecl(tokens []token, i int) bool {
	switch t := tokens[i]; t.text {
	case "cell", "const", "import", "train", "infer", "eval":
		return t.kind == keyword
	case "@":
		return t.kind == punct
	}
	return false
}

// resume finds where to go on after an error at token bad of the declaration
// at..end: at the next line that starts, in its first column, like a
// declaration. That holds also when brackets do not match.
func resume(tokens []token, at, bad, end int) int {
	for i := at + max(1, bad); i < len(tokens); i++ {
		if i == end+1 && tokens[i-1].kind == sep {
			return i
		}
		if tokens[i].col == 1 && startsDecl(tokens, i) {
			return i
		}
	}
	return len(tokens)
}

// syntaxError is a diagnostic with the index of the token it is about.
type syntaxError struct {
	diag.Diagnostic
	token int
}

func parseDecl(name string, tokens []token) (*decl, *syntaxError) {
	if i := tooDeep(tokens); i >= 0 {
		return nil, &syntaxError{diag.Errorf(diag.TooDeep, tokens[i].span(name), "nested more than %d deep", MaxDepth), i}
	}
	d, err := parseTokens(name, tokens)
	if err == nil {
		return d, nil
	}
	var unexpected participle.Error
	offset := -1
	if errors.As(err, &unexpected) {
		offset = unexpected.Position().Offset
	}
	i := sort.Search(len(tokens), func(i int) bool { return tokens[i].offset >= offset })
	var odd *participle.UnexpectedTokenError
	if errors.As(err, &odd) && odd.Unexpected.EOF() {
		i = len(tokens)
	}
	return nil, explain(name, tokens, i)
}

func parseTokens(name string, tokens []token) (*decl, error) {
	lex, err := lexer.Upgrade(&stream{file: name, tokens: tokens})
	if err != nil {
		return nil, err
	}
	return declParser().ParseFromLexer(lex)
}

// tooDeep returns the token at which the nesting passes MaxDepth, or -1. An
// else counts as a level until its statement or item ends.
func tooDeep(tokens []token) int {
	elses := []int{0}
	total := 0
	for i, t := range tokens {
		last := len(elses) - 1
		switch {
		case t.is("(") || t.is("[") || t.is("{"):
			elses = append(elses, 0)
		case (t.is(")") || t.is("]") || t.is("}")) && last > 0:
			total -= elses[last]
			elses = elses[:last]
		case t.is("else"):
			elses[last]++
			total++
		case t.kind == sep || t.is(","):
			total -= elses[last]
			elses[last] = 0
		}
		if len(elses)+total > MaxDepth {
			return i
		}
	}
	return -1
}

// explain words the error that token i cannot be read; i is len(tokens) when
// the text ends too early.
func explain(name string, tokens []token, i int) *syntaxError {
	var t, before token
	if i > 0 {
		before = tokens[i-1]
	}
	at := diag.Range{}
	what := ""
	if i < len(tokens) {
		t = tokens[i]
		at, what = t.span(name), fmt.Sprintf("unexpected %s", describe(t))
	} else {
		end := before.pos(name)
		end.Col += utf8.RuneCountInString(before.text)
		if before.kind == sep {
			end = before.pos(name)
		}
		at, what = diag.Span(end, 1), "the text ends too early"
	}
	open := innermost(tokens[:min(i, len(tokens))])
	d := diag.Errorf(diag.BadSyntax, at, "%s", what)
	want := wanted(before, open)
	repair := ""
	switch {
	case t.kind == keyword && (want == "a name" || want == "a value"):
		d.Message = fmt.Sprintf("%q is a reserved word and cannot be a name", t.text)
		want = ""
	case t.is("=") && before.kind == keyword:
		d.Range, i = before.span(name), i-1
		d.Message = fmt.Sprintf("%q is a reserved word and cannot be a name", before.text)
		want = ""
	case t.is("="):
		repair = `compare with "=="; an assignment is a statement of its own`
	case open.is("[") && t.is(":"):
		repair = "slices are written a..b"
	case open.is("(") && t.is(","):
		repair = "sequences are written [a, b]"
	case before.kind == sep && openMap(tokens[:i]):
		repair = `pairs of a map are separated by ","`
	case t.is("*") && before.is("*"):
		repair = "powers are written pow(x, n)"
	case i >= len(tokens) && open.text != "":
		d.Message = fmt.Sprintf("%q is not closed", open.text)
		d = d.WithNote(open.span(name), "opened here")
		want = ""
	}
	if want != "" && !t.is(",") {
		d.Message += ", expected " + want
	}
	d.Repair = repair
	return &syntaxError{d, i}
}

func describe(t token) string {
	switch t.kind {
	case sep:
		return "end of line"
	case text:
		return "string"
	case integer, float:
		return "number " + t.text
	case ident:
		return fmt.Sprintf("name %q", t.text)
	}
	return fmt.Sprintf("%q", t.text)
}

// innermost returns the last bracket that is still open, or no token.
func innermost(tokens []token) token {
	var open []token
	for _, t := range tokens {
		switch {
		case t.is("(") || t.is("[") || t.is("{"):
			open = append(open, t)
		case (t.is(")") || t.is("]") || t.is("}")) && len(open) > 0:
			open = open[:len(open)-1]
		}
	}
	if len(open) == 0 {
		return token{}
	}
	return open[len(open)-1]
}

// openMap reports whether the innermost open bracket starts a map: its brace
// stands where a value does.
func openMap(tokens []token) bool {
	open := innermost(tokens)
	i := sort.Search(len(tokens), func(i int) bool { return tokens[i].offset >= open.offset })
	return open.text == "{" && i > 0 && !tokens[i-1].endsValue() && tokens[i-1].kind != keyword
}

// wanted says what may stand after a token; open is the innermost bracket.
func wanted(before, open token) string {
	switch {
	case before.text == "":
		return "cell, const, import, train, infer or eval"
	case before.kind == keyword && strings.Contains("cell const for param buffer", before.text), before.is("@"):
		return "a name"
	case before.kind == keyword && before.text == "import":
		return "a string"
	case before.is("."):
		return "a name or a number"
	case before.kind == keyword && before.text == "construct":
		return `"("`
	case before.kind == keyword && before.text == "else" && open.text == "{":
		return `"if" or "{"`
	case before.is("{"), before.kind == sep && open.text == "{":
		return "" // statements, members, entries or pairs: too many to name
	case before.endsValue() && open.is("("):
		return `"," or ")"`
	case before.endsValue() && open.is("["):
		return `"," or "]"`
	case before.endsValue(), before.kind == sep:
		return ""
	}
	return "a value"
}
