package layout

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Model is what a notation leaves open; a zero means that it is not known.
type Model struct {
	Layers int // that the network has, without noop layers
	Stages int
	Chunks int // of each stage
}

// Parse reads a notation:
//
//	Et*9|t*10|t*12|t*9L   Megatron; the stages are those of the model, else one per chunk
//	9,10,12,9             layers of each stage
//	offset:-1,0,2,-1      MindFormers; a row per chunk, separated by ;, or one number for all
//	noop:47,62,63         MindSpeed's noop layers; the other slots are shared out evenly
//
// Numbers may also be written as lists in brackets, as in the configuration files they come from. What the model says
// must agree with the notation.
func Parse(text string, m Model) (*Layout, error) {
	l, err := parse(text, m)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Layers > 0 && l.Layers() != m.Layers:
		return nil, bad("the layout places %d layers, but there are %d", l.Layers(), m.Layers)
	case m.Stages > 0 && l.Stages() != m.Stages:
		return nil, bad("the layout has %d stages, but %d are asked for", l.Stages(), m.Stages)
	case m.Chunks > 0 && l.Chunks() != m.Chunks:
		return nil, bad("the layout has %d chunks on each stage, but %d are asked for", l.Chunks(), m.Chunks)
	}
	return l, nil
}

func parse(text string, m Model) (*Layout, error) {
	text = strings.TrimSpace(text)
	if rest, ok := strings.CutPrefix(text, "offset:"); ok {
		table, err := numbers(rest)
		if err != nil {
			return nil, err
		}
		if m.Layers == 0 {
			return nil, bad("an offset says nothing without the number of layers")
		}
		if len(table) == 1 && len(table[0]) == 1 && m.Stages != 1 {
			if m.Stages == 0 {
				return nil, bad("one offset for all stages says nothing without the number of stages")
			}
			return uniform(m, table[0][0])
		}
		return Offset(m.Layers, len(table[0]), len(table), table)
	}
	if rest, ok := strings.CutPrefix(text, "noop:"); ok {
		table, err := numbers(rest)
		if err != nil {
			return nil, err
		}
		switch {
		case len(table) != 1:
			return nil, bad("noop layers are one list of numbers")
		case m.Layers == 0 || m.Stages == 0:
			return nil, bad("noop layers say nothing without the numbers of layers and stages")
		}
		return Noop(m.Layers+len(table[0]), m.Stages, max(m.Chunks, 1), table[0])
	}
	if word, _, ok := strings.Cut(text, ":"); ok {
		return nil, bad("%q is no kind of layout", word).WithRepair("a layout string, a list of numbers, offset: or noop:")
	}
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsLetter(r) || r == '|' }) {
		return Megatron(text, m.Stages)
	}
	table, err := numbers(text)
	if err != nil {
		return nil, err
	}
	if len(table) > 1 {
		return nil, bad("a layer list has one row, for one chunk on each stage").WithRepair("several chunks are written as offset: or as a layout string")
	}
	return List(table[0])
}

// uniform is one offset for every stage and chunk.
func uniform(m Model, n int) (*Layout, error) {
	chunks := max(m.Chunks, 1)
	if err := checkShape(m.Layers, m.Stages, chunks); err != nil {
		return nil, err
	}
	table := make([][]int, chunks)
	for c := range table {
		table[c] = make([]int, m.Stages)
		for s := range table[c] {
			table[c][s] = n
		}
	}
	return Offset(m.Layers, m.Stages, chunks, table)
}

// numbers reads rows of numbers: 1,2;3,4 or [1, 2] or [[1, 2], [3, 4]].
func numbers(text string) ([][]int, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, bad("the layout is empty")
	}
	if strings.HasPrefix(text, "[") {
		var table [][]int
		if json.Unmarshal([]byte(text), &table) == nil && len(table) > 0 {
			return table, nil
		}
		var row []int
		if json.Unmarshal([]byte(text), &row) == nil {
			return [][]int{row}, nil
		}
		return nil, bad("%q is no list of whole numbers, nor a list of such lists", text)
	}
	var table [][]int
	for line := range strings.SplitSeq(text, ";") {
		var row []int
		for field := range strings.SplitSeq(line, ",") {
			field = strings.TrimSpace(field)
			n, err := strconv.Atoi(field)
			if err != nil {
				return nil, bad("%q is no whole number", field)
			}
			row = append(row, n)
		}
		table = append(table, row)
	}
	return table, nil
}

// Notations are the names [Layout.Format] knows.
func Notations() []string { return []string{"megatron", "mindformers", "list"} }

// Format writes the layout in a notation, so that [Parse] reads it back.
func (l *Layout) Format(notation string) (string, error) {
	switch notation {
	case "megatron":
		return l.megatron(), nil
	case "mindformers":
		table, err := l.ToOffset()
		if err != nil {
			return "", err
		}
		rows := make([]string, len(table))
		for c, row := range table {
			rows[c] = Join(row)
		}
		return "offset:" + strings.Join(rows, ";"), nil
	case "list":
		list, err := l.ToList()
		if err != nil {
			return "", err
		}
		return Join(list), nil
	}
	return "", bad("unknown notation %q", notation).WithRepair("the notations are %s", strings.Join(Notations(), ", "))
}

// Join writes numbers with commas.
func Join(list []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ",")
}
