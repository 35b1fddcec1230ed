package syntax

import (
	"strings"
	"unicode/utf8"

	"github.com/ppc-lang/ppc/diag"
)

const indentWidth = 4

// Format gives the canonical layout of a file: four spaces per open bracket,
// one space around operators and after commas, the `=` of adjacent members and
// entries under each other, at most one blank line, comments where they were.
// Line ends are the author's. Text with errors is refused. Formatting the
// result again changes nothing.
func Format(name string, src []byte) ([]byte, diag.List) {
	if _, list := Parse(name, src); list.HasErrors() {
		return nil, list
	}
	var list diag.List
	lines := layLines(scan(name, string(src), &list))
	align(lines)
	var out strings.Builder
	for i, l := range lines {
		if l.blank && i > 0 {
			out.WriteByte('\n')
		}
		out.WriteString(strings.Repeat(" ", indentWidth*l.depth))
		out.WriteString(l.head)
		out.WriteString(strings.Repeat(" ", l.pad))
		out.WriteString(l.tail)
		out.WriteByte('\n')
	}
	return []byte(out.String()), list
}

// line is a line of the result. Its text is split before the sign that is
// aligned with that of its neighbours, if there is one.
type line struct {
	depth   int
	blank   bool // a blank line stands before it
	head    string
	tail    string
	aligned bool
	pad     int // spaces between head and tail
}

// bracket is an open bracket while lines are laid out.
type bracket struct {
	text   string // "(", "[" or "{"
	body   bool   // the statements of a construct, loop or condition
	group  bool   // items, not statements, stand inside
	indent int    // levels that it adds to the lines inside
}

// layLines puts the tokens on lines.
func layLines(tokens []token) []*line {
	var lines []*line
	var open []bracket
	var last token // before the row, comments aside
	for at := 0; at < len(tokens); {
		row := nextRow(tokens[at:])
		at += len(row)
		blank := row[0].breaks > 1
		row = tidy(row)
		l := &line{blank: blank}
		for _, b := range open {
			l.depth += b.indent
		}
		// Closing brackets at the start of a line stand under the line that
		// opened them.
		for i, k := 0, len(open)-1; i < len(row) && closes(row[i]) && k >= 0; i, k = i+1, k-1 {
			l.depth -= min(1, open[k].indent)
		}
		levels := 1
		if continued(last, row[0], open) {
			l.depth++
			levels = 2
		}
		split := alignable(row, open)
		before := len(open)
		lowest := before
		for i, t := range row {
			switch {
			case opens(t):
				previous := last
				if i > 0 {
					previous = row[i-1]
				}
				statements := t.is("{") && (previous.endsValue() || previous.is("else"))
				open = append(open, bracket{text: t.text, body: statements && bodyBrace(row, open), group: !statements})
			case closes(t) && len(open) > 0:
				open = open[:len(open)-1]
				lowest = min(lowest, len(open))
			}
		}
		if len(open) > lowest { // one level for all that the line leaves open
			open[lowest].indent = levels
		}
		if len(lines) > 0 && lines[len(lines)-1].opens() || closes(row[0]) {
			l.blank = false
		}
		text, cut := joinRow(row, split)
		l.head, l.tail, l.aligned = text[:cut], text[cut:], split > 0 && len(open) == before
		if !l.aligned {
			l.head, l.tail = text, ""
		}
		lines = append(lines, l)
		for _, t := range row {
			if t.kind != comment {
				last = t
			}
		}
	}
	return lines
}

// nextRow cuts off the tokens of the first line.
func nextRow(tokens []token) []token {
	end := 1
	for end < len(tokens) && tokens[end].breaks == 0 {
		end++
	}
	return tokens[:end]
}

// tidy drops what says nothing: a semicolon at the end of the line and a comma
// before a closing bracket.
func tidy(row []token) []token {
	var out []token
	for i, t := range row {
		end := i+1 == len(row) || row[i+1].kind == comment
		if i > 0 && (t.is(";") && end || t.is(",") && !end && closes(row[i+1])) {
			continue
		}
		out = append(out, t)
	}
	return out
}

// continued reports whether a row goes on with the statement of the row before
// it, outside of brackets that hold items.
func continued(last, first token, open []bracket) bool {
	if last.text == "" || first.kind == comment || len(open) > 0 && open[len(open)-1].group {
		return false
	}
	if closes(first) || first.is("else") {
		return false
	}
	return continues[first.text] && first.kind != text || !last.endsValue() && !last.is("{") && !last.is(";")
}

func (l *line) opens() bool {
	text := l.head + l.tail
	return strings.HasSuffix(text, "{") || strings.HasSuffix(text, "(") || strings.HasSuffix(text, "[")
}

func opens(t token) bool  { return t.is("(") || t.is("[") || t.is("{") }
func closes(t token) bool { return t.is(")") || t.is("]") || t.is("}") }

// bodyBrace reports whether a brace on this row opens the statements of a
// construct, or a block within them.
func bodyBrace(row []token, open []bracket) bool {
	if len(open) > 0 && open[len(open)-1].body {
		return true
	}
	for _, t := range row {
		if t.is("construct") {
			return true
		}
	}
	return false
}

// alignable returns the index of the token of a row that is aligned: the `=`
// of a member or entry, or the colon of an input; 0 without one.
func alignable(row []token, open []bracket) int {
	if len(open) == 0 || open[len(open)-1].text != "{" || open[len(open)-1].body || row[0].kind != ident || len(row) < 3 {
		return 0
	}
	i := 1
	if row[0].text == "input" && row[1].kind == ident {
		i = 2
		if row[2].is(":") {
			return 2
		}
		return 0
	}
	for ; i < len(row) && (row[i].is("[") || row[i].is("]") || row[i].kind == ident || row[i].kind == integer); i++ {
	}
	if i < len(row) && row[i].is("=") {
		for _, t := range row {
			if t.is(";") {
				return 0
			}
		}
		return i
	}
	return 0
}

// joinRow writes a row with its canonical spaces, and returns the offset at
// which the token with index split starts.
func joinRow(row []token, split int) (string, int) {
	var b strings.Builder
	cut := 0
	for i, t := range row {
		if i > 0 && spaced(row, i) {
			b.WriteByte(' ')
		}
		if i == split {
			cut = b.Len()
		}
		b.WriteString(t.text)
	}
	return b.String(), cut
}

// spaced reports whether a space stands before token i, which is not the first
// on its line.
func spaced(tokens []token, i int) bool {
	a, b := tokens[i-1], tokens[i]
	switch {
	case b.kind == comment:
		return true
	case a.is("(") || a.is("[") || a.is("@") || a.is("..") || b.is("..") && !a.is(","):
		return false
	case a.is(".") || b.is(".") || b.is(",") || b.is(";") || b.is(")") || b.is("]"):
		return false
	case a.is(",") || a.is(";"):
		return true
	case b.is(":"):
		return false
	case b.is("(") || b.is("["):
		// A call or an index follows its operand; after a keyword or an
		// operator the bracket starts a value.
		return !a.endsValue() && !a.is("construct") && !a.is("cell") && !a.is("param")
	case a.is("-") && i == 1:
		return false
	case a.is("-"):
		return tokens[i-2].endsValue() // a sign stands at its operand
	case a.is("{") && b.is("}"):
		return false
	case a.is("/") && literal(b) && literal(tokens[max(0, i-2)]), b.is("/") && literal(a) && i+1 < len(tokens) && literal(tokens[i+1]):
		return false // fractions: 1/255
	}
	return true
}

func literal(t token) bool { return t.kind == integer }

// align pads runs of neighbouring aligned lines of one depth.
func align(lines []*line) {
	for i := 0; i < len(lines); {
		j, width := i, 0
		for j < len(lines) && lines[j].aligned && lines[j].depth == lines[i].depth && (j == i || !lines[j].blank) {
			width = max(width, utf8.RuneCountInString(strings.TrimRight(lines[j].head, " ")))
			j++
		}
		for _, l := range lines[i:j] {
			l.head = strings.TrimRight(l.head, " ")
			l.pad = width - utf8.RuneCountInString(l.head) + 1
		}
		i = max(j, i+1)
	}
}
