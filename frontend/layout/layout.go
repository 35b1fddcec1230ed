// Package layout reads and writes the notations in which other systems say how many layers each stage of a pipeline
// holds: Megatron's layout strings, MindFormers' offsets, MindSpeed's layer lists and noop layers. A notation becomes a
// Layout, and a Layout any of the notations that can express it.
//
// The errors are diagnostics without a place: the caller knows where the text stands.
package layout

import (
	"slices"

	"github.com/ppc-lang/ppc/diag"
)

// Bounds of what a notation may ask for.
const (
	MaxStages = 4096
	maxLayers = 100_000 // and chunks
)

// Part is what a stage holds of a chunk.
type Part struct {
	Embeddings  int // E
	Layers      int // t
	Predictions int // m: layers that predict further tokens
	Losses      int // L
}

// Layout says what each stage holds of each chunk: Parts[chunk][stage]. The data pass the stages of chunk 0 in order,
// then those of chunk 1. There is at least one chunk and one stage, and all rows are equally long.
type Layout struct{ Parts [][]Part }

// Stages is the number of stages.
func (l *Layout) Stages() int { return len(l.Parts[0]) }

// Chunks is the number of chunks of each stage.
func (l *Layout) Chunks() int { return len(l.Parts) }

// Layers is the number of layers of all stages, without those that predict further tokens.
func (l *Layout) Layers() int {
	n := 0
	for _, row := range l.Parts {
		for _, p := range row {
			n += p.Layers
		}
	}
	return n
}

// Sizes gives the number of layers of each chunk and stage.
func (l *Layout) Sizes() [][]int {
	sizes := make([][]int, len(l.Parts))
	for c, row := range l.Parts {
		for _, p := range row {
			sizes[c] = append(sizes[c], p.Layers)
		}
	}
	return sizes
}

// PerStage gives the number of layers of each stage.
func (l *Layout) PerStage() []int {
	n := make([]int, l.Stages())
	for _, row := range l.Parts {
		for s, p := range row {
			n[s] += p.Layers
		}
	}
	return n
}

func bad(format string, args ...any) diag.Diagnostic {
	return diag.Errorf(diag.BadLayout, diag.Range{}, format, args...)
}

// fromSizes adds the embedding to the first part and the loss to the last.
func fromSizes(sizes [][]int) *Layout {
	l := &Layout{Parts: make([][]Part, len(sizes))}
	for c, row := range sizes {
		l.Parts[c] = make([]Part, len(row))
		for s, n := range row {
			l.Parts[c][s].Layers = n
		}
	}
	l.Parts[0][0].Embeddings = 1
	l.Parts[l.Chunks()-1][l.Stages()-1].Losses = 1
	return l
}

// checkShape holds the bounds; every constructor calls it before it allocates.
func checkShape(layers, stages, chunks int) error {
	switch {
	case stages < 1 || stages > MaxStages:
		return bad("%d stages are outside 1..%d", stages, MaxStages)
	case chunks < 1 || chunks > maxLayers/stages:
		return bad("%d chunks on each of %d stages are outside 1..%d chunks in all", chunks, stages, maxLayers)
	case layers < 0 || layers > maxLayers:
		return bad("%d layers are outside 0..%d", layers, maxLayers)
	}
	return nil
}

// List gives each stage its number of layers, in one chunk.
func List(sizes []int) (*Layout, error) {
	if err := checkShape(0, len(sizes), 1); err != nil {
		return nil, err
	}
	sum := 0
	for s, n := range sizes {
		if n < 0 || n > maxLayers-sum {
			return nil, bad("stage %d cannot have %d layers", s, n)
		}
		sum += n
	}
	return fromSizes([][]int{sizes}), nil
}

// Offset gives stage s of chunk c layers/(stages*chunks) layers, rounded down, plus offset[c][s]. The offsets sum up to
// the remainder of that division.
func Offset(layers, stages, chunks int, offset [][]int) (*Layout, error) {
	if err := checkShape(layers, stages, chunks); err != nil {
		return nil, err
	}
	if len(offset) != chunks {
		return nil, bad("the offset has %d rows for %d chunks", len(offset), chunks)
	}
	base, remainder := layers/(stages*chunks), layers%(stages*chunks)
	sum, sizes := 0, make([][]int, chunks)
	for c, row := range offset {
		if len(row) != stages {
			return nil, bad("row %d of the offset has %d numbers for %d stages", c, len(row), stages)
		}
		for s, n := range row {
			if n < -base || n > maxLayers {
				return nil, bad("the offset %d gives stage %d of chunk %d %d layers", n, s, c, base+n)
			}
			sum += n
			sizes[c] = append(sizes[c], base+n)
		}
	}
	if sum != remainder {
		return nil, bad("the offsets sum up to %d, but %d layers on %d stages with %d chunks leave %d over", sum, layers, stages, chunks, remainder).
			WithRepair("change the offsets so that their sum is %d", remainder)
	}
	return fromSizes(sizes), nil
}

// Noop shares slots evenly out among stages and chunks; the slots named in noop, counted from 0 in the order of the
// data, hold no layer.
func Noop(slots, stages, chunks int, noop []int) (*Layout, error) {
	if err := checkShape(slots, stages, chunks); err != nil {
		return nil, err
	}
	parts := stages * chunks
	if slots%parts != 0 {
		return nil, bad("%d layers, noop layers included, cannot be shared evenly among %d stages with %d chunks", slots, stages, chunks).
			WithRepair("%d noop layers more would do", parts-slots%parts)
	}
	each := slots / parts
	sizes := make([][]int, chunks)
	for c := range sizes {
		sizes[c] = slices.Repeat([]int{each}, stages)
	}
	sorted := slices.Sorted(slices.Values(noop))
	for i, slot := range sorted {
		switch {
		case slot < 0 || slot >= slots:
			return nil, bad("the noop layer %d is outside 0..%d", slot, slots-1)
		case i > 0 && slot == sorted[i-1]:
			return nil, bad("the noop layer %d is named twice", slot)
		}
		part := slot / each
		sizes[part/stages][part%stages]--
	}
	return fromSizes(sizes), nil
}

// ToList is the inverse of [List].
func (l *Layout) ToList() ([]int, error) {
	if err := l.plain("a layer list"); err != nil {
		return nil, err
	}
	if l.Chunks() > 1 {
		return nil, bad("a layer list has one chunk on each stage; this layout has %d", l.Chunks())
	}
	return l.PerStage(), nil
}

// ToOffset is the inverse of [Offset].
func (l *Layout) ToOffset() ([][]int, error) {
	if err := l.plain("an offset"); err != nil {
		return nil, err
	}
	base := l.Layers() / (l.Stages() * l.Chunks())
	offset := l.Sizes()
	for _, row := range offset {
		for s := range row {
			row[s] -= base
		}
	}
	return offset, nil
}

// plain reports what only Megatron's notation can say.
func (l *Layout) plain(what string) error {
	last := l.Parts[l.Chunks()-1][l.Stages()-1]
	losses, predictions := 0, 0
	for _, row := range l.Parts {
		for _, p := range row {
			losses += p.Losses
			predictions += p.Predictions
		}
	}
	switch {
	case predictions > 0:
		return bad("%s counts decoder layers; it cannot say where the %d layers `m` are", what, predictions)
	case losses != last.Losses || losses != 1:
		return bad("%s has the loss on the last stage; this layout has it elsewhere, or in parts", what)
	}
	return nil
}
