package ascend

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

// A fusion is a directed acyclic graph of element-wise ops over one shape that
// becomes one vector kernel.
type fusion struct {
	shape   []int
	inputs  []fusionInput
	nodes   []fusionNode
	outputs []int // indices of the nodes whose values leave the kernel
}

// fusionInput is a tensor in global memory, a constant, or a scalar by value.
type fusionInput struct {
	typ       ir.Type
	immediate bool // a constant of the value, not a parameter of the kernel
	value     float64
	byValue   string // name of a float parameter; empty for tensors
}

// fusionNode is one op. An argument i >= 0 is the node i, an argument below 0
// is the input -1-i.
type fusionNode struct {
	kind  ir.Kind
	attrs ir.Attrs
	args  []int
	out   ir.Type
}

// accumulateNode marks the addition whose kernel takes `assign`: 1 copies the
// second argument, 0 adds it to the first, the accumulator.
const accumulateNode = ir.Accumulate

// argument kinds of a tensor input, by how it walks over rows and columns.
type walk int

const (
	walkFull   walk = iota
	walkRow         // the same row for all rows
	walkColumn      // one value per row
	walkScalar      // one value, also per outer index
)

// fusedInput is an input as the kernel sees it.
type fusedInput struct {
	fusionInput
	element  string
	name     string // of the kernel's parameter
	walk     walk
	strides  []int // per axis of the space
	register register
	value    operand
	queue    bool // comes through a queue
}

type fusedKernel struct {
	fusion  fusion
	chip    chip.Chip
	space   space
	inputs  []fusedInput
	outputs []fusedOutput
	program *vectorProgram
	assign  bool

	rows, columns         int // of the inner two axes
	tileRows, tileColumns int
	tileElements          int
	tiles, masks          int // work slots
	blocks                int
	buffers               int // per queue
	perBlock              int // elements of a row of a tile are padded to this many
}

type fusedOutput struct {
	element  string
	name     string
	register register
	node     int
}

// maxQueueBuffers of one position can be live at once.
const maxQueueBuffers = 8

// maxRowsPerMove is the limit of blockCount of a move.
const maxRowsPerMove = 4095

// emitFusion emits the kernel of a fusion. Its parameters are the tensor
// inputs, the outputs, the scalars by value, and `assign` if a node accumulates.
func emitFusion(c chip.Chip, f fusion, stem string) (*Kernel, error) {
	k := &fusedKernel{fusion: f, chip: c, program: newVectorProgram()}
	if err := k.placeInputs(); err != nil {
		return nil, err
	}
	if err := k.lower(); err != nil {
		return nil, err
	}
	k.tiles, k.masks = k.program.assignSlots()
	if err := k.tile(); err != nil {
		return nil, err
	}
	return k.write(stem).finish(), nil
}

// placeInputs finds how each input walks over the space.
func (k *fusedKernel) placeInputs() error {
	shapes := [][]int{k.fusion.shape}
	for _, in := range k.fusion.inputs {
		shapes = append(shapes, in.typ.Shape)
	}
	k.space = newSpace(k.fusion.shape, shapes).padded(2)
	axes := len(k.space.lengths)
	k.rows, k.columns = k.space.lengths[axes-2], k.space.lengths[axes-1]
	number := 0
	for i, in := range k.fusion.inputs {
		f := fusedInput{fusionInput: in, strides: k.space.strides[1+i]}
		if in.immediate || in.byValue != "" {
			text := in.byValue
			if in.immediate {
				text = floatLiteral(in.value)
				if in.typ.DType == ir.I32 {
					text = fmt.Sprintf("static_cast<int32_t>(%d)", int32(in.value))
				}
			}
			f.value = operand{scalar: text}
			k.inputs = append(k.inputs, f)
			continue
		}
		element, err := elementType(in.typ.DType)
		if err != nil {
			return err
		}
		f.element, f.name = element, fmt.Sprintf("x%d", number)
		number++
		row, column := f.strides[axes-2] != 0 || k.rows == 1, f.strides[axes-1] != 0 || k.columns == 1
		switch {
		case row && column:
			f.walk, f.queue = walkFull, true
		case column:
			f.walk, f.queue = walkRow, true
		case row && k.rows > 1:
			f.walk, f.queue = walkColumn, true
		default:
			f.walk = walkScalar
		}
		// Narrow scalars take the way of vectors: one value has to be converted there.
		if f.walk == walkScalar && elementSize(element) < 4 {
			return fmt.Errorf("broadcasting a single %s value is not supported; cast it to f32 first", in.typ.DType)
		}
		if f.walk == walkColumn && elementSize(element) < 4 {
			return fmt.Errorf("broadcasting a column of %s is not supported; cast it to f32 first", in.typ.DType)
		}
		k.inputs = append(k.inputs, f)
	}
	return nil
}

// lower makes the vector program: loads, ops, stores.
func (k *fusedKernel) lower() error {
	p := k.program
	for i := range k.inputs {
		in := &k.inputs[i]
		switch {
		case in.element == "":
		case in.walk == walkScalar:
			in.value = operand{scalar: in.name + "Value"}
		case in.walk == walkColumn:
			in.register = p.add(registerInfo{element: in.element, tensor: in.name + "Full"})
			in.value = operand{tile: in.register}
		default:
			in.register = p.add(registerInfo{element: in.element, row: in.walk == walkRow, tensor: in.name + "Tile"})
			in.value = operand{tile: p.loaded(in.register, in.typ.DType)}
		}
	}
	values := make([]operand, len(k.fusion.nodes))
	types := make([]ir.Type, len(k.fusion.nodes))
	for n, node := range k.fusion.nodes {
		args := make([]operand, len(node.args))
		in := make([]ir.Type, len(node.args))
		for i, a := range node.args {
			if a >= 0 {
				args[i], in[i] = values[a], types[a]
			} else {
				args[i], in[i] = k.inputs[-1-a].value, k.inputs[-1-a].typ
			}
		}
		types[n] = node.out
		if node.kind == accumulateNode {
			element, err := carrier(node.out.DType)
			if err != nil {
				return err
			}
			k.assign = true
			sum := p.binary("Add", p.tileOf(args[0], element), p.full(p.tileOf(args[1], element)))
			p.instructions[len(p.instructions)-1].assign = true
			values[n] = operand{tile: sum}
			continue
		}
		value, err := p.lower(node.kind, node.attrs, args, in, node.out)
		if err != nil {
			return err
		}
		values[n] = value
	}
	for i, node := range k.fusion.outputs {
		d := types[node].DType
		element, err := elementType(d)
		if err != nil {
			return err
		}
		out := fusedOutput{element: element, name: fmt.Sprintf("y%d", i), node: node}
		out.register = p.add(registerInfo{element: element, tensor: out.name + "Tile"})
		p.into(out.register, p.stored(values[node].tile, d))
		k.outputs = append(k.outputs, out)
	}
	return nil
}

// tile chooses the tile: as large as the unified buffer allows, but small
// enough that every block has work.
func (k *fusedKernel) tile() error {
	queued, widths := 0, map[int]bool{}
	perElement, bytes := 4*k.tiles, 0
	queueBytes := 0
	total := product(k.space.lengths)
	for _, in := range k.inputs {
		if !in.queue {
			continue
		}
		queued++
		size := elementSize(in.element)
		widths[size] = true
		queueBytes += size
		if in.walk == walkColumn {
			perElement += 4
		}
		if in.walk == walkFull {
			bytes += size * total
		}
	}
	for _, out := range k.outputs {
		size := elementSize(out.element)
		widths[size] = true
		queueBytes += size
		bytes += size * total
	}
	if queued > maxQueueBuffers || len(k.outputs) > maxQueueBuffers {
		return fmt.Errorf("%d inputs and %d outputs are more than a kernel's %d queues", queued, len(k.outputs), maxQueueBuffers)
	}
	k.perBlock = 8
	for width := range widths {
		k.perBlock = max(k.perBlock, 32/width)
	}
	elements := func(buffers int) int {
		// A mask has a bit per element; every buffer may lose 256 bytes to rounding.
		spare := 256 * (buffers*(queued+len(k.outputs)) + k.tiles + k.masks + 1)
		eighths := 8*(buffers*queueBytes+perElement) + k.masks
		return (k.chip.UnifiedBytes - spare) * 8 / eighths / 256 * 256
	}
	k.buffers = 2
	if 2*max(queued, len(k.outputs)) > maxQueueBuffers {
		k.buffers = 1
	}
	limit := elements(k.buffers)
	if limit < 256 {
		return fmt.Errorf("the fused ops need more registers than the unified buffer holds")
	}
	// Rows of several tiles at once need one padding for all operands.
	together := len(widths) == 1 && k.rows > 1
	k.blocks = vectorBlocks(k.chip, bytes, ceilDiv(total, 256))
	share := min(limit, max(256, roundUp(ceilDiv(total, k.blocks), 256)))
	if k.blocks > 1 && total > 2*share { // two tiles a block or more, to overlap moves and arithmetic
		share = min(limit, max(1024, roundUp(ceilDiv(total, 2*k.blocks), 256)))
	}
	pitch := roundUp(k.columns, k.perBlock)
	k.tileRows, k.tileColumns = 1, min(k.columns, share)
	if together && pitch <= limit {
		k.tileColumns = k.columns
		k.tileRows = max(1, min(k.rows, share/pitch, maxRowsPerMove))
	}
	k.tileElements = roundUp(k.tileRows*roundUp(k.tileColumns, k.perBlock), 256)
	items := k.items()
	k.blocks = min(k.blocks, items)
	if ceilDiv(items, k.blocks) == 1 {
		k.buffers = 1
	}
	return nil
}

func (k *fusedKernel) outer() []int { return k.space.lengths[:len(k.space.lengths)-2] }

func (k *fusedKernel) items() int {
	return product(k.outer()) * ceilDiv(k.rows, k.tileRows) * ceilDiv(k.columns, k.tileColumns)
}

// write emits the text.
func (k *fusedKernel) write(stem string) kernelText {
	c := newCode()
	text := kernelText{stem: stem, includes: vectorIncludes, blocks: k.blocks}
	for _, in := range k.inputs {
		if in.element != "" {
			text.parameters = append(text.parameters, parameter{emulator.Buffer, in.name})
			c.global(in.name+"Global", in.element, in.name, in.typ.Elems())
		}
	}
	for _, out := range k.outputs {
		text.parameters = append(text.parameters, parameter{emulator.Buffer, out.name})
		c.global(out.name+"Global", out.element, out.name, product(k.space.lengths))
	}
	for _, in := range k.inputs {
		if in.byValue != "" && !slices.ContainsFunc(text.parameters, func(p parameter) bool { return p.name == in.byValue }) {
			text.parameters = append(text.parameters, parameter{emulator.Float32, in.byValue})
		}
	}
	if k.assign {
		text.parameters = append(text.parameters, parameter{emulator.Int32, "assign"})
	}
	c.line("TPipe pipe;")
	k.writeBuffers(c)
	k.writeLoop(c)
	text.body = c.text.String()
	var ops []string
	for _, node := range k.fusion.nodes {
		ops = append(ops, node.kind.String())
	}
	text.title = fmt.Sprintf("%s on %s", strings.Join(ops, ", "), ir.ShapeString(k.fusion.shape))
	return text
}

func (k *fusedKernel) writeBuffers(c *code) {
	queueBytes := func(walk walk, element string) int {
		size := elementSize(element)
		switch walk {
		case walkRow:
			return roundUp(roundUp(k.tileColumns, k.perBlock), 256) * size
		case walkColumn:
			return roundUp(k.tileRows*size, 32)
		}
		return k.tileElements * size
	}
	for _, in := range k.inputs {
		if in.queue {
			c.line("TQue<TPosition::VECIN, 1> %sQueue;", in.name)
			c.line("pipe.InitBuffer(%sQueue, %d, %d);", in.name, k.buffers, queueBytes(in.walk, in.element))
		}
	}
	for _, out := range k.outputs {
		c.line("TQue<TPosition::VECOUT, 1> %sQueue;", out.name)
		c.line("pipe.InitBuffer(%sQueue, %d, %d);", out.name, k.buffers, queueBytes(walkFull, out.element))
	}
	scratch := func(name, element string, elements int) {
		c.line("TBuf<TPosition::VECCALC> %sBuffer;", name)
		c.line("pipe.InitBuffer(%sBuffer, %d);", name, elements*elementSize(element))
		c.line("LocalTensor<%s> %s = %sBuffer.Get<%s>();", element, name, name, element)
	}
	for _, in := range k.inputs {
		if in.walk == walkColumn && in.queue {
			scratch(in.name+"Full", in.element, k.tileElements)
		}
	}
	for i := range k.tiles {
		scratch(fmt.Sprintf("tile%d", i), "float", k.tileElements)
	}
	for i := range k.masks {
		scratch(fmt.Sprintf("mask%d", i), "uint8_t", k.tileElements/8)
	}
}

// offset is the C++ expression of an operand's first element of a tile.
func (k *fusedKernel) offset(strides []int) string {
	axes := len(k.space.lengths)
	var terms []string
	for axis := range k.outer() {
		if strides[axis] != 0 {
			terms = append(terms, fmt.Sprintf("static_cast<uint64_t>(index%d) * %d", axis, strides[axis]))
		}
	}
	if s := strides[axes-2]; s != 0 {
		terms = append(terms, fmt.Sprintf("static_cast<uint64_t>(firstRow) * %d", s))
	}
	if strides[axes-1] != 0 {
		terms = append(terms, "firstColumn")
	}
	if len(terms) == 0 {
		return "0"
	}
	return strings.Join(terms, " + ")
}

func (k *fusedKernel) writeLoop(c *code) {
	writeShare(c, k.items())
	columnTiles, rowTiles := ceilDiv(k.columns, k.tileColumns), ceilDiv(k.rows, k.tileRows)
	c.open("for (uint32_t item = first; item < last; item++)")
	c.line("const uint32_t firstColumn = item %% %d * %d;", columnTiles, k.tileColumns)
	c.line("const uint32_t firstRow = item / %d %% %d * %d;", columnTiles, rowTiles, k.tileRows)
	divisor := columnTiles * rowTiles
	for axis := len(k.outer()) - 1; axis >= 0; axis-- {
		c.line("const uint32_t index%d = item / %d %% %d;", axis, divisor, k.space.lengths[axis])
		divisor *= k.space.lengths[axis]
	}
	c.line("const uint32_t columns = firstColumn + %d > %d ? %d - firstColumn : %d;", k.tileColumns, k.columns, k.columns, k.tileColumns)
	if k.tileRows > 1 {
		c.line("const uint32_t rows = firstRow + %d > %d ? %d - firstRow : %d;", k.tileRows, k.rows, k.rows, k.tileRows)
		c.line("const uint32_t pitch = (columns + %d) / %d * %d;", k.perBlock-1, k.perBlock, k.perBlock)
		c.line("const uint32_t count = rows * pitch;")
	} else {
		c.line("const uint32_t rows = 1;")
		c.line("const uint32_t pitch = columns;")
		c.line("const uint32_t count = columns;")
	}
	if k.masks > 0 {
		c.line("const uint32_t roundedCount = (count + 63) / 64 * 64;")
	}
	for _, in := range k.inputs {
		if in.walk == walkScalar && in.element != "" {
			c.line("const %s %sValue = %sGlobal.GetValue(%s);", in.element, in.name, in.name, k.offset(in.strides))
		}
	}
	for _, in := range k.inputs {
		if in.queue {
			k.writeLoad(c, in)
		}
	}
	for _, in := range k.inputs {
		if in.queue {
			c.line("%sTile = %sQueue.DeQue<%s>();", in.name, in.name, in.element)
		}
	}
	for _, out := range k.outputs {
		c.line("LocalTensor<%s> %sTile = %sQueue.AllocTensor<%s>();", out.element, out.name, out.name, out.element)
	}
	k.writeColumns(c)
	k.program.write(c, k.tileRows > 1)
	for _, in := range k.inputs {
		if in.queue {
			c.line("%sQueue.FreeTensor(%sTile);", in.name, in.name)
		}
	}
	for _, out := range k.outputs {
		c.line("%sQueue.EnQue(%sTile);", out.name, out.name)
		c.line("%sTile = %sQueue.DeQue<%s>();", out.name, out.name, out.element)
		c.line("DataCopyPad(%sGlobal[%s], %sTile, DataCopyExtParams(rows, columns * %d, 0, 0, 0));",
			out.name, k.offset(k.space.strides[0]), out.name, elementSize(out.element))
		c.line("%sQueue.FreeTensor(%sTile);", out.name, out.name)
	}
	if k.masksOrScratch() {
		// Work registers are reused by the next tile.
		c.line("PipeBarrier<PIPE_V>();")
	}
	c.close()
}

func (k *fusedKernel) masksOrScratch() bool {
	return k.tiles+k.masks > 0 || slices.ContainsFunc(k.inputs, func(in fusedInput) bool { return in.walk == walkColumn && in.queue })
}

// writeLoad moves an input's part of the tile into its queue. Rows end on
// 32 bytes; what is added is 0, so that no arithmetic reads garbage.
func (k *fusedKernel) writeLoad(c *code, in fusedInput) {
	size := elementSize(in.element)
	rows, columns := "rows", "columns"
	if in.walk == walkRow {
		rows = "1"
	}
	if in.walk == walkColumn {
		rows, columns = "1", "rows"
	}
	c.line("LocalTensor<%s> %sTile = %sQueue.AllocTensor<%s>();", in.element, in.name, in.name, in.element)
	fill := "0"
	if k.tileRows > 1 && in.walk != walkColumn {
		fill = "pitch - columns"
	}
	c.line("DataCopyPad(%sTile, %sGlobal[%s], DataCopyExtParams(%s, %s * %d, 0, 0, 0), DataCopyPadExtParams<%s>(%t, 0, %s, %s));",
		in.name, in.name, k.offset(in.strides), rows, columns, size, in.element, fill != "0", fill, zeroOf(in.element))
	c.line("%sQueue.EnQue(%sTile);", in.name, in.name)
}

// writeColumns spreads one value per row over its row.
func (k *fusedKernel) writeColumns(c *code) {
	var columns []fusedInput
	for _, in := range k.inputs {
		if in.queue && in.walk == walkColumn {
			columns = append(columns, in)
		}
	}
	if len(columns) == 0 {
		return
	}
	c.wait("MTE2_S")
	c.open("for (uint32_t row = 0; row < rows; row++)")
	for _, in := range columns {
		c.line("Duplicate(%sFull[row * pitch], %sTile.GetValue(row), pitch);", in.name, in.name)
	}
	c.close()
	// The vector pipe frees the columns: it has to know that the scalar unit has read them.
	c.wait("S_V")
	c.line("PipeBarrier<PIPE_V>();")
}

func zeroOf(element string) string {
	if element == "float" {
		return "0.0f"
	}
	return fmt.Sprintf("static_cast<%s>(0)", element)
}

// writeShare declares first and last, the items of this block; blocks differ by one item at most.
func writeShare(c *code, items int) {
	c.line("const uint32_t first = static_cast<uint64_t>(%d) * GetBlockIdx() / GetBlockNum();", items)
	c.line("const uint32_t last = static_cast<uint64_t>(%d) * (GetBlockIdx() + 1) / GetBlockNum();", items)
}
