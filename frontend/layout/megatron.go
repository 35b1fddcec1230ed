package layout

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds nested brackets.
const maxDepth = 100

// Megatron reads a layout string: E embedding, t decoder layer, m layer that predicts a further token, L loss, | the
// end of a chunk; x*n and (...)*n repeat; commas and spaces say nothing. Chunk k is on stage k mod stages, and may be
// empty. stages = 0 means one chunk on each stage.
func Megatron(text string, stages int) (*Layout, error) {
	p := &megatronParser{text: text}
	symbols, err := p.sequence(0)
	if err != nil {
		return nil, err
	}
	chunks := []Part{{}}
	order, last := "EtmL", byte('E')
	for i := range len(symbols) {
		c, part := symbols[i], &chunks[len(chunks)-1]
		if c != '|' {
			if strings.IndexByte(order, c) < strings.IndexByte(order, last) {
				return nil, bad("a layout names E, t, m and L in this order; here `%c` stands behind `%c`", c, last)
			}
			last = c
		}
		switch c {
		case 'E':
			part.Embeddings++
		case 't':
			part.Layers++
		case 'm':
			part.Predictions++
		case 'L':
			part.Losses++
		case '|':
			chunks = append(chunks, Part{})
		}
	}
	switch embeddings := strings.Count(symbols, "E"); {
	case embeddings == 0:
		return nil, bad("the layout has no embedding").WithRepair("name it with E, in the first chunk")
	case embeddings > 1:
		return nil, bad("the layout has %d embeddings", embeddings)
	case chunks[0].Embeddings == 0:
		return nil, bad("the layout has its embedding behind the first chunk").WithRepair("put E in front")
	case last != 'L':
		return nil, bad("the layout has no loss").WithRepair("name it with L, at the end")
	}
	if stages == 0 {
		stages = len(chunks)
	}
	if err := checkShape(0, stages, 1); err != nil {
		return nil, err
	}
	if len(chunks)%stages != 0 {
		return nil, bad("the layout has %d chunks, which is no multiple of %d stages", len(chunks), stages).
			WithRepair("a chunk more is one | more; empty chunks are allowed")
	}
	l := &Layout{}
	for len(chunks) > 0 {
		l.Parts = append(l.Parts, chunks[:stages:stages])
		chunks = chunks[stages:]
	}
	return l, nil
}

// megatronParser expands repetitions.
type megatronParser struct {
	text string
	at   int
}

// sequence expands up to the closing bracket of depth, or the end.
func (p *megatronParser) sequence(depth int) (string, error) {
	if depth > maxDepth {
		return "", bad("the brackets of the layout are nested too deeply")
	}
	var out strings.Builder
	for p.at < len(p.text) {
		start := p.at
		c, size := utf8.DecodeRuneInString(p.text[p.at:])
		p.at += size
		unit := ""
		switch c {
		case ',', ' ':
			continue
		case 'E', 't', 'm', 'L', '|':
			unit = string(c)
		case '(':
			inner, err := p.sequence(depth + 1)
			if err != nil {
				return "", err
			}
			if p.at == len(p.text) {
				return "", bad("the bracket at character %d of the layout is not closed", start+1)
			}
			p.at++
			unit = inner
		case ')':
			if depth == 0 {
				return "", bad("the bracket at character %d of the layout closes nothing", start+1)
			}
			p.at = start
			return out.String(), nil
		default:
			return "", bad("character %d of the layout is %q", start+1, c).
				WithRepair("a layout is made of E, t, m, L, |, x*n and (...)*n")
		}
		n, err := p.repeat()
		if err != nil {
			return "", err
		}
		if len(unit) > 0 && n > (maxLayers-out.Len())/len(unit) {
			return "", bad("the layout has more than %d layers and chunks", maxLayers)
		}
		out.WriteString(strings.Repeat(unit, n))
	}
	return out.String(), nil
}

// repeat reads *n; 1 without.
func (p *megatronParser) repeat() (int, error) {
	if p.at == len(p.text) || p.text[p.at] != '*' {
		return 1, nil
	}
	p.at++
	start, n := p.at, 0
	for ; p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9'; p.at++ {
		if n = 10*n + int(p.text[p.at]-'0'); n > maxLayers {
			return 0, bad("the layout repeats something more than %d times", maxLayers)
		}
	}
	if start == p.at || n == 0 {
		return 0, bad("a number above 0 is missing behind the * at character %d of the layout", start)
	}
	return n, nil
}

// megatron writes the layout string.
func (l *Layout) megatron() string {
	var chunks []string
	for _, row := range l.Parts {
		for _, p := range row {
			text := strings.Repeat("E", p.Embeddings) + run("t", p.Layers) + run("m", p.Predictions) + run("L", p.Losses)
			chunks = append(chunks, text)
		}
	}
	var b strings.Builder
	for i := 0; i < len(chunks); {
		n := 1 // equal chunks, all but the last of which have a | behind them
		for i+n < len(chunks)-1 && chunks[i+n] == chunks[i] {
			n++
		}
		switch {
		case i == len(chunks)-1:
			b.WriteString(chunks[i])
		case n > 1:
			fmt.Fprintf(&b, "(%s|)*%d", chunks[i], n)
		default:
			b.WriteString(chunks[i] + "|")
		}
		i += n
	}
	return b.String()
}

func run(letter string, n int) string {
	if n > 2 {
		return fmt.Sprintf("%s*%d", letter, n)
	}
	return strings.Repeat(letter, n)
}
