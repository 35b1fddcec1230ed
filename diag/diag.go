// Package diag holds what ppc tells its user: diagnostics as values, with a
// stable code, a place in the source, notes with places of their own and a
// repair. Every other package reports through it and none of them prints;
// [Render] makes the text and the JSON tags make the machine form.
package diag

import (
	"cmp"
	"fmt"
	"slices"
)

// Pos is a place in a source file. Line and Col count from 1; Col counts
// runes. The zero Pos means that the place is not known.
type Pos struct {
	File string
	Line int
	Col  int
}

// IsValid reports whether the position names a line.
func (p Pos) IsValid() bool { return p.Line > 0 }

// String gives file:line:col, leaving out what is not known.
func (p Pos) String() string {
	switch {
	case !p.IsValid():
		return p.File
	case p.File == "":
		return fmt.Sprintf("%d:%d", p.Line, p.Col)
	default:
		return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
	}
}

// Compare orders positions by file, line and column.
func (p Pos) Compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Col, q.Col))
}

// Range is a piece of source text. The end is exclusive; a zero end means
// that only the start is known.
type Range struct {
	Pos
	EndLine int
	EndCol  int
}

// At makes a range of which only the start is known.
func At(p Pos) Range { return Range{Pos: p} }

// Span makes a range of n runes on the line of p.
func Span(p Pos, n int) Range { return Range{Pos: p, EndLine: p.Line, EndCol: p.Col + n} }

// Severity says whether a diagnostic stops the work.
type Severity uint8

// The severities.
const (
	Error Severity = iota
	Warning
)

// String gives the word printed in front of a message.
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// MarshalText makes the severity a word in JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Note adds a related place to a diagnostic ("stage 1 was set here"). Its
// range may be unknown.
type Note struct {
	Range   Range
	Message string
}

// Diagnostic is one thing to tell the user. Message is one line without a
// trailing period; Repair, when not empty, says what to write instead.
type Diagnostic struct {
	Severity Severity
	Code     Code
	Range    Range
	Message  string
	Notes    []Note
	Repair   string
}

// Errorf makes an error at a range.
func Errorf(code Code, at Range, format string, args ...any) Diagnostic {
	return Diagnostic{Code: code, Range: at, Message: fmt.Sprintf(format, args...)}
}

// Warningf makes a warning at a range.
func Warningf(code Code, at Range, format string, args ...any) Diagnostic {
	return Diagnostic{Severity: Warning, Code: code, Range: at, Message: fmt.Sprintf(format, args...)}
}

// WithNote returns the diagnostic with one more note.
func (d Diagnostic) WithNote(at Range, format string, args ...any) Diagnostic {
	d.Notes = append(slices.Clip(d.Notes), Note{Range: at, Message: fmt.Sprintf(format, args...)})
	return d
}

// WithRepair returns the diagnostic with a repair.
func (d Diagnostic) WithRepair(format string, args ...any) Diagnostic {
	d.Repair = fmt.Sprintf(format, args...)
	return d
}

// Error gives place, severity, code and message on one line, so that a single
// diagnostic can travel as an error value.
func (d Diagnostic) Error() string {
	text := fmt.Sprintf("%s %s: %s", d.Severity, d.Code, d.Message)
	if at := d.Range.String(); at != "" {
		text = at + ": " + text
	}
	return text
}

// Limit is how many diagnostics of one run are shown.
const Limit = 20

// List collects diagnostics. Producers append in any order; consumers read
// [List.Sorted].
type List []Diagnostic

// Add appends a diagnostic.
func (l *List) Add(d Diagnostic) { *l = append(*l, d) }

// HasErrors reports whether a diagnostic of the list is an error.
func (l List) HasErrors() bool {
	return slices.ContainsFunc(l, func(d Diagnostic) bool { return d.Severity == Error })
}

// Sorted returns the diagnostics by position, errors before warnings at one
// place, without repetitions. The list itself is left as it is.
func (l List) Sorted() List {
	sorted := slices.Clone(l)
	slices.SortStableFunc(sorted, func(a, b Diagnostic) int {
		return cmp.Or(a.Range.Compare(b.Range.Pos), cmp.Compare(a.Severity, b.Severity),
			cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message))
	})
	return slices.CompactFunc(sorted, func(a, b Diagnostic) bool {
		return a.Range == b.Range && a.Code == b.Code && a.Message == b.Message
	})
}

// Capped returns the sorted list cut to [Limit], errors being kept in
// preference to warnings, and the number of diagnostics left out.
func (l List) Capped() (List, int) {
	sorted := l.Sorted()
	if len(sorted) <= Limit {
		return sorted, 0
	}
	left := len(sorted) - Limit
	errorsOnly := slices.DeleteFunc(slices.Clone(sorted), func(d Diagnostic) bool { return d.Severity != Error })
	if len(errorsOnly) >= Limit {
		return errorsOnly[:Limit], left
	}
	warnings := Limit - len(errorsOnly)
	return slices.DeleteFunc(sorted, func(d Diagnostic) bool {
		if d.Severity == Error {
			return false
		}
		warnings--
		return warnings < 0
	}), left
}

// Err returns the list as an error when it holds one, else nil.
func (l List) Err() error {
	if !l.HasErrors() {
		return nil
	}
	return l
}

// Error gives the first error, with the number of further ones.
func (l List) Error() string {
	text, more := "no errors", 0
	for _, d := range l.Sorted() {
		if d.Severity != Error {
			continue
		}
		if more == 0 {
			text = d.Error()
		}
		more++
	}
	if more > 1 {
		text += fmt.Sprintf(" (and %d more)", more-1)
	}
	return text
}
