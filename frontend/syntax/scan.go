package syntax

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ppc-lang/ppc/diag"
)

// MaxFile is the largest source file accepted, in bytes.
const MaxFile = 4 << 20

type kind int

// The kinds of token. A keyword is a reserved word; sep ends a statement.
const (
	ident kind = iota + 1
	keyword
	integer
	float
	text
	punct
	sep
	comment
)

// token is a piece of source. Text is the source text itself, quotes
// included; breaks counts the line ends between it and the token before it.
type token struct {
	kind   kind
	text   string
	offset int
	line   int
	col    int
	breaks int
}

func (t token) pos(file string) diag.Pos { return diag.Pos{File: file, Line: t.line, Col: t.col} }

func (t token) span(file string) diag.Range {
	return diag.Span(t.pos(file), max(1, utf8.RuneCountInString(t.text)))
}

func (t token) is(text string) bool { return t.text == text && (t.kind == punct || t.kind == keyword) }

// endsValue reports whether a statement may end after the token.
func (t token) endsValue() bool {
	switch t.kind {
	case ident, integer, float, text:
		return true
	}
	return t.is(")") || t.is("]") || t.is("}")
}

var reserved = map[string]bool{
	"and": true, "buffer": true, "cell": true, "const": true, "construct": true, "else": true, "for": true,
	"if": true, "import": true, "not": true, "or": true, "param": true, "return": true,
}

// IsReserved reports whether a word cannot be a name.
func IsReserved(word string) bool { return reserved[word] }

var punctuation = []string{ // longer ones first
	"..", "==", "!=", "<=", ">=",
	"(", ")", "[", "]", "{", "}", ",", ":", ";", "=", "<", ">", "+", "-", "*", "/", "%", "|", ".", "@",
}

var tokenRepairs = map[string]string{
	"'": `strings stand in double quotes`,
	"#": `comments start with //`,
	"&": `write "and"`,
	"!": `write "not"`,
	"^": `powers are written with pow(x, n)`,
}

// scanner cuts one file into tokens. Characters that the language does not
// have are reported and skipped, so that one run shows all of them.
type scanner struct {
	file   string
	src    string
	offset int
	line   int
	col    int
	breaks int
	tokens []token
	list   *diag.List
}

func scan(file, src string, list *diag.List) []token {
	s := &scanner{file: file, src: src, line: 1, col: 1, list: list, tokens: make([]token, 0, len(src)/4)}
	for s.next() {
	}
	return s.tokens
}

func (s *scanner) errorf(code diag.Code, n int, format string, args ...any) *diag.Diagnostic {
	at := diag.Span(diag.Pos{File: s.file, Line: s.line, Col: s.col}, max(1, n))
	*s.list = append(*s.list, diag.Errorf(code, at, format, args...))
	return &(*s.list)[len(*s.list)-1]
}

// take makes the next n bytes a token.
func (s *scanner) take(k kind, n int) {
	t := token{kind: k, text: s.src[s.offset : s.offset+n], offset: s.offset, line: s.line, col: s.col, breaks: s.breaks}
	s.tokens = append(s.tokens, t)
	s.breaks = 0
	s.skip(n)
}

// skip passes over n bytes without a line end.
func (s *scanner) skip(n int) {
	s.col += utf8.RuneCountInString(s.src[s.offset : s.offset+n])
	s.offset += n
}

func (s *scanner) next() bool {
	if s.offset >= len(s.src) {
		return false
	}
	rest := s.src[s.offset:]
	c, size := utf8.DecodeRuneInString(rest)
	switch {
	case c == '\n':
		s.offset++
		s.line, s.col = s.line+1, 1
		s.breaks++
	case c == ' ' || c == '\t' || c == '\r' || c == '\uFEFF' && s.offset == 0:
		s.skip(size)
	case strings.HasPrefix(rest, "//"):
		line, _, _ := strings.Cut(rest, "\n")
		s.take(comment, len(strings.TrimRight(line, " \t\r")))
	case c == '_' || unicode.IsLetter(c):
		n := strings.IndexFunc(rest, func(c rune) bool { return c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) })
		if n < 0 {
			n = len(rest)
		}
		k := ident
		if reserved[rest[:n]] {
			k = keyword
		}
		s.take(k, n)
	case c >= '0' && c <= '9':
		s.number(rest)
	case c == '"':
		s.quoted(rest)
	default:
		for _, p := range punctuation {
			if strings.HasPrefix(rest, p) {
				s.take(punct, len(p))
				return true
			}
		}
		if c == utf8.RuneError && size == 1 {
			s.errorf(diag.BadToken, 1, "the file is not UTF-8 text here")
		} else {
			d := s.errorf(diag.BadToken, 1, "unexpected character %q", c)
			d.Repair = tokenRepairs[string(c)]
		}
		s.skip(size)
	}
	return true
}

// number reads 12, 100_000, 1.5, 1e-2. After a dot the digits are an index
// ("layers.3.0"); a float needs a digit after its point ("0..n").
func (s *scanner) number(rest string) {
	digits := func(from int) int {
		for from < len(rest) && (rest[from] >= '0' && rest[from] <= '9' || rest[from] == '_') {
			from++
		}
		return from
	}
	n := digits(0)
	k := integer
	last := len(s.tokens) - 1
	if last < 0 || !s.tokens[last].is(".") {
		if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
			n, k = digits(n+1), float
		}
		if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
			from := n + 1
			if from < len(rest) && (rest[from] == '+' || rest[from] == '-') {
				from++
			}
			if end := digits(from); end > from {
				n, k = end, float
			}
		}
	}
	if n < len(rest) && (rest[n] == '_' || unicode.IsLetter(rune(rest[n]))) && rest[n] < utf8.RuneSelf {
		end := n
		for end < len(rest) && (rest[end] == '_' || rest[end] < utf8.RuneSelf && (unicode.IsLetter(rune(rest[end])) || unicode.IsDigit(rune(rest[end])))) {
			end++
		}
		d := s.errorf(diag.BadToken, end, "%q is neither a number nor a name", rest[:end])
		d.Repair = fmt.Sprintf("a word that starts with a digit needs quotes: %q", rest[:end])
		s.take(k, n)
		s.skip(end - n)
		return
	}
	s.take(k, n)
}

// quoted reads a string; it ends on its line.
func (s *scanner) quoted(rest string) {
	for n := 1; n < len(rest) && rest[n] != '\n'; n++ {
		switch rest[n] {
		case '\\':
			if n+1 < len(rest) && rest[n+1] != '\n' {
				n++
			}
		case '"':
			if _, err := unquote(rest[:n+1]); err != nil {
				s.errorf(diag.BadToken, n+1, "%v", err)
			}
			s.take(text, n+1)
			return
		}
	}
	line, _, _ := strings.Cut(rest, "\n")
	s.errorf(diag.BadToken, utf8.RuneCountInString(line), "the string has no closing quote on its line")
	s.take(text, len(line))
}

// unquote gives the value of a string literal. The escapes are \n, \t, \\ and
// \". A literal without its closing quote, reported before, is read as it is.
func unquote(literal string) (string, error) {
	var out strings.Builder
	body := strings.TrimPrefix(literal, `"`)
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			return out.String(), nil
		case c != '\\':
			out.WriteByte(c)
		case i+1 == len(body):
			return out.String(), nil
		default:
			i++
			at := strings.IndexByte(`nt\"`, body[i])
			if at < 0 {
				return "", fmt.Errorf(`unknown escape \%c in a string; there are \n, \t, \\ and \"`, body[i])
			}
			out.WriteByte("\n\t\\\""[at])
		}
	}
	return out.String(), nil
}

// contextual lists the words that are names everywhere but before a name or a
// brace at the start of a statement.
var contextual = map[string]bool{"train": true, "infer": true, "eval": true, "input": true}

// continues lists the tokens before which a line end does not end a statement.
var continues = map[string]bool{
	"|": true, ".": true, "..": true, ",": true, ":": true, "=": true, "==": true, "+": true, "*": true,
	"/": true, ")": true, "]": true, "else": true, "and": true, "or": true,
}

// separate turns line ends and semicolons into sep tokens and drops comments.
// A line end counts when the token before it may end a statement, the
// innermost open bracket is a brace or none, and the next token does not
// continue the line. Repeated seps and those after an opening brace vanish;
// a closing brace after a value gets one before it. A comma before a closing
// bracket vanishes too, and the contextual words become keywords where they
// start a block or an input.
func separate(tokens []token) []token {
	out := make([]token, 0, len(tokens)+len(tokens)/8)
	var open []byte
	separated := true // a sep here would be empty
	add := func(at token) {
		if !separated {
			out = append(out, token{kind: sep, text: ";", offset: at.offset, line: at.line, col: at.col})
			separated = true
		}
	}
	var last token
	broken := false // a line end since the last token, comments aside
	for _, t := range tokens {
		broken = broken || t.breaks > 0
		if t.kind == comment {
			continue
		}
		inGroup := len(open) > 0 && open[len(open)-1] != '{'
		end := last
		end.offset, end.col = last.offset+len(last.text), last.col+utf8.RuneCountInString(last.text)
		if broken && last.endsValue() && !inGroup && !(continues[t.text] && t.kind != text) {
			add(end)
		}
		if t.is("}") && last.endsValue() {
			add(end)
		}
		broken = false
		if t.is(";") {
			add(t)
			last = t
			continue
		}
		switch {
		case t.is("(") || t.is("[") || t.is("{"):
			open = append(open, t.text[0])
		case (t.is(")") || t.is("]") || t.is("}")) && len(open) > 0:
			open = open[:len(open)-1]
		}
		if n := len(out) - 1; n > 0 && last.is(",") && (t.is(")") || t.is("]") || t.is("}")) && out[n-1].endsValue() {
			out = out[:n]
		}
		if n := len(out) - 1; n >= 0 && (t.kind == ident || t.is("{")) && contextual[last.text] && last.kind == ident &&
			(last.text != "input" || t.kind == ident) && (n == 0 || out[n-1].kind == sep || out[n-1].is("{")) {
			out[n].kind = keyword
		}
		out = append(out, t)
		separated = t.is("{")
		last = t
	}
	if last.text != "" {
		last.offset, last.col = last.offset+len(last.text), last.col+utf8.RuneCountInString(last.text)
		add(last)
	}
	return out
}
