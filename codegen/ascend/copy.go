package ascend

import (
	"fmt"
	"strings"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

// A block is a box of a tensor: a walk over it from an offset. Offsets and
// strides count elements.
type block struct {
	elements int // of the whole tensor
	offset   int
	strides  []int
}

// denseStrides are those of a row-major tensor.
func denseStrides(shape []int) []int {
	strides := make([]int, len(shape))
	step := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= shape[i]
	}
	return strides
}

// whole is all of a dense tensor.
func whole(shape []int) block {
	return block{elements: product(shape), strides: denseStrides(shape)}
}

// part is the box of a dense tensor that starts at `start` on one axis.
func part(shape []int, axis, start int) block {
	b := whole(shape)
	b.offset = start * b.strides[axis]
	return b
}

// transposed is a dense tensor walked in the order of perm.
func transposed(shape, perm []int) block {
	b := whole(shape)
	strides := make([]int, len(perm))
	for i, p := range perm {
		strides[i] = b.strides[p]
	}
	b.strides = strides
	return b
}

// moveElement is the unsigned type of that size; 8-byte elements move as two words.
func moveElement(size int) string {
	return map[int]string{1: "uint8_t", 2: "uint16_t", 4: "uint32_t"}[size]
}

// boxes merges the axes of boxes with these lengths and gives the inner two as
// rows and columns; the columns are contiguous in every box.
func boxes(lengths []int, bs ...*block) space {
	strides := make([][]int, len(bs))
	for i, b := range bs {
		strides[i] = b.strides
	}
	s := mergeAxes(lengths, strides)
	contiguous := len(s.lengths) > 0
	for i := range s.strides {
		contiguous = contiguous && s.strides[i][len(s.lengths)-1] == 1
	}
	if !contiguous {
		s.lengths = append(s.lengths, 1)
		for i := range s.strides {
			s.strides[i] = append(s.strides[i], 1)
		}
	}
	return s.padded(2)
}

// moveTiles is a box cut into tiles of rows and columns.
type moveTiles struct {
	space
	rows, columns         int
	tileRows, tileColumns int
	bytes                 int // of a tile in the unified buffer
}

// moveBytes is the size of a tile of a kernel that only moves.
const moveBytes = 32 << 10

func cut(c chip.Chip, s space, size int) (moveTiles, int) {
	axes := len(s.lengths)
	t := moveTiles{space: s, rows: s.lengths[axes-2], columns: s.lengths[axes-1]}
	t.tileColumns = min(t.columns, moveBytes/size)
	rowBytes := roundUp(t.tileColumns*size, 32)
	t.tileRows = max(1, min(t.rows, moveBytes/rowBytes, maxRowsPerMove))
	for i := range s.strides {
		// Gaps between rows must not be negative.
		if s.strides[i][axes-2] < t.columns {
			t.tileRows = 1
		}
	}
	t.bytes = t.tileRows * rowBytes
	blocks := vectorBlocks(c, 2*size*product(s.lengths), t.items())
	return t, blocks
}

func (t moveTiles) outer() []int { return t.lengths[:len(t.lengths)-2] }

func (t moveTiles) items() int {
	return product(t.outer()) * ceilDiv(t.rows, t.tileRows) * ceilDiv(t.columns, t.tileColumns)
}

// loop opens the loop over the tiles and declares firstRow, firstColumn, rows, columns and the outer indices.
func (t moveTiles) loop(w *code) {
	writeShare(w, t.items())
	columnTiles, rowTiles := ceilDiv(t.columns, t.tileColumns), ceilDiv(t.rows, t.tileRows)
	w.open("for (uint32_t item = first; item < last; item++)")
	w.line("const uint32_t firstColumn = item %% %d * %d;", columnTiles, t.tileColumns)
	w.line("const uint32_t firstRow = item / %d %% %d * %d;", columnTiles, rowTiles, t.tileRows)
	divisor := columnTiles * rowTiles
	for axis := len(t.outer()) - 1; axis >= 0; axis-- {
		w.line("const uint32_t index%d = item / %d %% %d;", axis, divisor, t.lengths[axis])
		divisor *= t.lengths[axis]
	}
	w.line("const uint32_t columns = firstColumn + %d > %d ? %d - firstColumn : %d;", t.tileColumns, t.columns, t.columns, t.tileColumns)
	w.line("const uint32_t rows = firstRow + %d > %d ? %d - firstRow : %d;", t.tileRows, t.rows, t.rows, t.tileRows)
}

// offset is the first element of the tile in box i.
func (t moveTiles) offset(i, start int) string {
	terms := []string{fmt.Sprintf("firstColumn + %d", start)}
	for axis := range t.outer() {
		terms = append(terms, fmt.Sprintf("static_cast<uint64_t>(index%d) * %d", axis, t.strides[i][axis]))
	}
	terms = append(terms, fmt.Sprintf("static_cast<uint64_t>(firstRow) * %d", t.strides[i][len(t.lengths)-2]))
	return strings.Join(terms, " + ")
}

// gap is the C++ expression of the bytes between two rows of box i.
func (t moveTiles) gap(i, size int) string {
	if t.tileRows == 1 {
		return "0"
	}
	return fmt.Sprintf("(%d - columns) * %d", t.strides[i][len(t.lengths)-2], size)
}

// emitCopy emits the copy of one box to another of the same lengths: parameters x, y.
func emitCopy(c chip.Chip, name string, d ir.DType, lengths []int, from, to block) *Kernel {
	size := d.Size()
	if size == 8 {
		lengths, from, to, size = append(append([]int(nil), lengths...), 2), from.halved(), to.halved(), 4
	}
	s := boxes(lengths, &from, &to)
	t, blocks := cut(c, s, size)
	element := moveElement(size)
	w := newCode()
	w.global("x", element, "xAddress", from.elements)
	w.global("y", element, "yAddress", to.elements)
	w.line("TPipe pipe;")
	w.line("TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;")
	w.line("pipe.InitBuffer(queue, 2, %d);", t.bytes)
	t.loop(w)
	w.line("LocalTensor<%s> tile = queue.AllocTensor<%s>();", element, element)
	w.line("DataCopyPad(tile, x[%s], DataCopyExtParams(rows, columns * %d, %s, 0, 0), DataCopyPadExtParams<%s>(false, 0, 0, %s));",
		t.offset(0, from.offset), size, t.gap(0, size), element, zeroOf(element))
	w.line("queue.EnQue(tile);")
	w.line("tile = queue.DeQue<%s>();", element)
	w.line("DataCopyPad(y[%s], tile, DataCopyExtParams(rows, columns * %d, 0, %s, 0));", t.offset(1, to.offset), size, t.gap(1, size))
	w.line("queue.FreeTensor(tile);")
	w.close()
	return kernelText{stem: name + "_" + shapeName(lengths), title: fmt.Sprintf("%s of %s", name, ir.Tensor(d, lengths...)), includes: vectorIncludes,
		parameters: []parameter{{emulator.Buffer, "xAddress"}, {emulator.Buffer, "yAddress"}}, body: w.text.String(), blocks: blocks}.finish()
}

// halved describes a box of 8-byte elements in 4-byte words.
func (b block) halved() block {
	h := block{elements: 2 * b.elements, offset: 2 * b.offset}
	for _, s := range b.strides {
		h.strides = append(h.strides, 2*s)
	}
	h.strides = append(h.strides, 1)
	return h
}

// emitFill emits the kernel that sets a box to a value: parameter y.
func emitFill(c chip.Chip, d ir.DType, lengths []int, to block, value float64) (*Kernel, error) {
	element, err := elementType(d)
	if err != nil {
		return nil, err
	}
	size := d.Size()
	s := boxes(lengths, &to)
	t, blocks := cut(c, s, size)
	w := newCode()
	w.global("y", element, "yAddress", to.elements)
	w.line("TPipe pipe;")
	w.line("TBuf<TPosition::VECCALC> buffer;")
	w.line("pipe.InitBuffer(buffer, %d);", t.bytes)
	switch d {
	case ir.U8, ir.Bool:
		// The vector unit fills no bytes: two at once.
		w.line("Duplicate(buffer.Get<uint16_t>(), static_cast<uint16_t>(%d), %d);", 0x101*int(uint8(value)), t.bytes/2)
	case ir.I32:
		w.line("Duplicate(buffer.Get<int32_t>(), static_cast<int32_t>(%d), %d);", int32(value), t.bytes/4)
	case ir.F32:
		w.line("Duplicate(buffer.Get<float>(), %s, %d);", floatLiteral(value), t.bytes/4)
	default:
		w.line("TBuf<TPosition::VECCALC> wide;")
		w.line("pipe.InitBuffer(wide, %d);", 2*t.bytes)
		w.line("Duplicate(wide.Get<float>(), %s, %d);", floatLiteral(value), t.bytes/2)
		w.line("PipeBarrier<PIPE_V>();")
		w.line("Cast(buffer.Get<%s>(), wide.Get<float>(), RoundMode::CAST_RINT, %d);", element, t.bytes/2)
	}
	w.line("const LocalTensor<%s> tile = buffer.Get<%s>();", element, element)
	w.wait("V_MTE3")
	t.loop(w)
	w.line("DataCopyPad(y[%s], tile, DataCopyExtParams(rows, columns * %d, 0, %s, 0));", t.offset(0, to.offset), size, t.gap(0, size))
	w.close()
	return kernelText{stem: "fill_" + shapeName(lengths), title: fmt.Sprintf("fill %s with %v", ir.Tensor(d, lengths...), value), includes: vectorIncludes,
		parameters: []parameter{{emulator.Buffer, "yAddress"}}, body: w.text.String(), blocks: blocks}.finish(), nil
}
