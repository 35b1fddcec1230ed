package diag

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Source returns the text of a file, or false when it is not at hand.
type Source func(file string) ([]byte, bool)

const (
	tabWidth  = 4
	lineWidth = 120 // columns of source shown at most
	lead      = 40  // columns kept before the caret of a longer line
)

// Render writes the list for people: sorted, cut to [Limit], each with its
// source line and a caret where source knows the file. source may be nil.
func Render(w io.Writer, list List, source Source) error {
	shown, left := list.Capped()
	var out strings.Builder
	for _, d := range shown {
		out.WriteString(d.Error())
		out.WriteByte('\n')
		excerpt(&out, d.Range, source)
		for _, n := range d.Notes {
			if at := n.Range.String(); at != "" {
				fmt.Fprintf(&out, "  note: %s: %s\n", at, n.Message)
			} else {
				fmt.Fprintf(&out, "  note: %s\n", n.Message)
			}
			excerpt(&out, n.Range, source)
		}
		if d.Repair != "" {
			fmt.Fprintf(&out, "  repair: %s\n", d.Repair)
		}
	}
	if left > 0 {
		fmt.Fprintf(&out, "%d more not shown\n", left)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// excerpt writes the source line of r and a caret line below it.
func excerpt(out *strings.Builder, r Range, source Source) {
	if source == nil || !r.IsValid() {
		return
	}
	text, ok := source(r.File)
	if !ok {
		return
	}
	line, ok := nthLine(string(text), r.Line)
	if !ok {
		return
	}
	shown, from, width := layLine(line, r)
	margin := fmt.Sprintf("%5d", r.Line)
	fmt.Fprintf(out, "%s | %s\n", margin, shown)
	fmt.Fprintf(out, "%s | %s%s\n", strings.Repeat(" ", len(margin)), strings.Repeat(" ", from), strings.Repeat("^", width))
}

func nthLine(text string, n int) (string, bool) {
	for i := 1; i < n; i++ {
		end := strings.IndexByte(text, '\n')
		if end < 0 {
			return "", false
		}
		text = text[end+1:]
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSuffix(line, "\r"), true
}

// layLine expands tabs, cuts a long line around the caret and returns the text
// with the first column and the width of the caret, in columns of a terminal.
func layLine(line string, r Range) (shown string, from, width int) {
	var cells []string // one per column; a wide rune is followed by an empty one
	runes := []rune(line)
	start, end := -1, -1
	for i, c := range runes {
		if i == r.Col-1 {
			start = len(cells)
		}
		if r.EndLine == r.Line && i == r.EndCol-1 {
			end = len(cells)
		}
		switch n := runeWidth(c); {
		case c == '\t':
			for range tabWidth - len(cells)%tabWidth {
				cells = append(cells, " ")
			}
		case unicode.IsControl(c) || c == unicode.ReplacementChar:
			cells = append(cells, "?")
		case n == 0 && len(cells) > 0:
			cells[len(cells)-1] += string(c)
		case n == 0:
		default:
			cells = append(cells, string(c))
			for range n - 1 {
				cells = append(cells, "")
			}
		}
	}
	if start < 0 {
		start = len(cells)
	}
	if end < 0 && (r.EndLine > r.Line || r.EndLine == r.Line && r.EndCol > len(runes)) {
		end = len(cells)
	}
	if len(cells) <= lineWidth {
		return strings.Join(cells, ""), start, max(1, end-start)
	}
	const dots = "..."
	first := 0
	if start > lineWidth-lead {
		first = start - lead
		for first > 0 && cells[first] == "" {
			first--
		}
	}
	last := min(len(cells), first+lineWidth)
	for last < len(cells) && cells[last] == "" {
		last--
	}
	shown, from = strings.Join(cells[first:last], ""), start-first
	if first > 0 {
		shown, from = dots+shown, from+len(dots)
	}
	if last < len(cells) {
		shown += dots
	}
	return shown, from, max(1, min(end, last)-start)
}

// wideRunes lists the blocks whose runes take two columns of a terminal
// (East Asian Width W and F in Unicode's EastAsianWidth.txt, joined to ranges).
var wideRunes = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115f, Stride: 1}, {Lo: 0x2e80, Hi: 0x303e, Stride: 1}, {Lo: 0x3041, Hi: 0x33ff, Stride: 1},
		{Lo: 0x3400, Hi: 0x4dbf, Stride: 1}, {Lo: 0x4e00, Hi: 0x9fff, Stride: 1}, {Lo: 0xa000, Hi: 0xa4cf, Stride: 1},
		{Lo: 0xa960, Hi: 0xa97f, Stride: 1}, {Lo: 0xac00, Hi: 0xd7a3, Stride: 1}, {Lo: 0xf900, Hi: 0xfaff, Stride: 1},
		{Lo: 0xfe30, Hi: 0xfe6f, Stride: 1}, {Lo: 0xff00, Hi: 0xff60, Stride: 1}, {Lo: 0xffe0, Hi: 0xffe6, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x1f300, Hi: 0x1f64f, Stride: 1}, {Lo: 0x1f680, Hi: 0x1f6ff, Stride: 1}, {Lo: 0x1f900, Hi: 0x1f9ff, Stride: 1},
		{Lo: 0x20000, Hi: 0x3fffd, Stride: 1},
	},
}

func runeWidth(c rune) int {
	switch {
	case unicode.In(c, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.Is(wideRunes, c):
		return 2
	}
	return 1
}

type jsonRange struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Col     int    `json:"col,omitempty"`
	EndLine int    `json:"end_line,omitempty"`
	EndCol  int    `json:"end_col,omitempty"`
}

type jsonNote struct {
	jsonRange
	Message string `json:"message"`
}

func flat(r Range) jsonRange { return jsonRange{r.File, r.Line, r.Col, r.EndLine, r.EndCol} }

// MarshalJSON gives one flat object: severity, code, file, line, col,
// end_line, end_col, message, and notes and repair where there are any.
func (d Diagnostic) MarshalJSON() ([]byte, error) {
	notes := make([]jsonNote, len(d.Notes))
	for i, n := range d.Notes {
		notes[i] = jsonNote{flat(n.Range), n.Message}
	}
	return json.Marshal(struct {
		Severity Severity `json:"severity"`
		Code     Code     `json:"code"`
		jsonRange
		Message string     `json:"message"`
		Notes   []jsonNote `json:"notes,omitempty"`
		Repair  string     `json:"repair,omitempty"`
	}{d.Severity, d.Code, flat(d.Range), d.Message, notes, d.Repair})
}
