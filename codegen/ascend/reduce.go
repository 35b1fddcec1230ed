package ascend

import (
	"fmt"
	"strings"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

// A reduction sums a tensor over some axes and multiplies by scale. The result
// keeps the order of the other axes.
type reduction struct {
	shape   []int
	reduced []bool
	scale   float64
	name    string
}

// axis of a reduction after merging.
type reducedAxis struct {
	length, stride int
	reduced        bool
}

// axes merges neighbours that are both kept or both reduced and drops those of length 1.
func (r reduction) axes() []reducedAxis {
	var axes []reducedAxis
	for i, n := range r.shape {
		if n == 1 {
			continue
		}
		if len(axes) > 0 && axes[len(axes)-1].reduced == r.reduced[i] {
			axes[len(axes)-1].length *= n
			continue
		}
		axes = append(axes, reducedAxis{length: n, reduced: r.reduced[i]})
	}
	stride := 1
	for i := len(axes) - 1; i >= 0; i-- {
		axes[i].stride = stride
		stride *= axes[i].length
	}
	return axes
}

// Rows are processed in pieces of rowChunk elements, per-row results stored
// rowBatch at a time: five buffers of a chunk and five of a batch fit the unified buffer.
const (
	rowChunk = 6144
	rowBatch = 1024
)

// emitReduction emits the kernel of a reduction: parameters x, y.
func emitReduction(c chip.Chip, r reduction, d ir.DType) (*Kernel, error) {
	if d != ir.F32 {
		return nil, fmt.Errorf("sums of %s are not supported; cast to f32", d)
	}
	axes := r.axes()
	inner := reducedAxis{length: 1, stride: 1}
	if n := len(axes); n > 0 {
		inner, axes = axes[n-1], axes[:n-1]
	}
	var kept, summed []reducedAxis
	for _, a := range axes {
		if a.reduced {
			summed = append(summed, a)
		} else {
			kept = append(kept, a)
		}
	}
	w := newCode()
	w.global("x", "float", "xAddress", product(r.shape))
	var blocks int
	if inner.reduced {
		blocks = writeRowSums(w, c, r, inner, kept, summed)
	} else {
		blocks = writeColumnSums(w, c, r, inner, kept, summed)
	}
	var over []string
	for i, on := range r.reduced {
		if on {
			over = append(over, fmt.Sprint(i))
		}
	}
	return kernelText{
		stem: r.name + "_" + shapeName(r.shape), title: fmt.Sprintf("%s of %s over axes %s", r.name, ir.ShapeString(r.shape), strings.Join(over, ", ")),
		includes: vectorIncludes, parameters: []parameter{{emulator.Buffer, "xAddress"}, {emulator.Buffer, "yAddress"}},
		body: w.text.String(), blocks: blocks,
	}.finish(), nil
}

func lengths(axes []reducedAxis) int {
	n := 1
	for _, a := range axes {
		n *= a.length
	}
	return n
}

// walkOffset is the C++ expression of the offset that a flat index over axes has.
func walkOffset(index string, axes []reducedAxis) string {
	var terms []string
	divisor := 1
	for i := len(axes) - 1; i >= 0; i-- {
		terms = append(terms, fmt.Sprintf("static_cast<uint64_t>(%s / %d %% %d) * %d", index, divisor, axes[i].length, axes[i].stride))
		divisor *= axes[i].length
	}
	if len(terms) == 0 {
		return "0"
	}
	return strings.Join(terms, " + ")
}

// writeColumnSums adds whole pieces of rows: the innermost axis is kept.
func writeColumnSums(w *code, c chip.Chip, r reduction, inner reducedAxis, kept, summed []reducedAxis) int {
	outer, terms := lengths(kept), lengths(summed)
	w.global("y", "float", "yAddress", outer*inner.length)
	blocks := vectorBlocks(c, 4*product(r.shape), outer*ceilDiv(inner.length, 128))
	chunk := min(rowChunk, inner.length, max(128, roundUp(ceilDiv(outer*inner.length, blocks), 128)))
	chunks := ceilDiv(inner.length, chunk)
	bytes := roundUp(4*chunk, 32)
	w.line("TPipe pipe;")
	w.line("TQue<TPosition::VECIN, 1> source;")
	w.line("pipe.InitBuffer(source, 2, %d);", bytes)
	w.line("TQue<TPosition::VECOUT, 1> target;")
	w.line("pipe.InitBuffer(target, 2, %d);", bytes)
	writeShare(w, outer*chunks)
	w.open("for (uint32_t item = first; item < last; item++)")
	w.line("const uint32_t column = item %% %d * %d;", chunks, chunk)
	w.line("const uint32_t count = column + %d > %d ? %d - column : %d;", chunk, inner.length, inner.length, chunk)
	w.line("const uint32_t outer = item / %d;", chunks)
	w.line("const uint64_t base = %s + column;", walkOffset("outer", kept))
	w.line("LocalTensor<float> sum = target.AllocTensor<float>();")
	w.open("for (uint32_t term = 0; term < %d; term++)", terms)
	w.line("LocalTensor<float> row = source.AllocTensor<float>();")
	w.line("DataCopyPad(row, x[base + %s], DataCopyExtParams(1, count * 4, 0, 0, 0), DataCopyPadExtParams<float>(false, 0, 0, 0.0f));",
		walkOffset("term", summed))
	w.line("source.EnQue(row);")
	w.line("row = source.DeQue<float>();")
	w.open("if (term == 0)")
	w.line("Muls(sum, row, 1.0f, count);")
	w.depth--
	w.line("} else {")
	w.depth++
	w.line("Add(sum, sum, row, count);")
	w.close()
	w.line("PipeBarrier<PIPE_V>();")
	w.line("source.FreeTensor(row);")
	w.close()
	if r.scale != 1 {
		w.line("Muls(sum, sum, %s, count);", floatLiteral(r.scale))
	}
	w.line("target.EnQue(sum);")
	w.line("sum = target.DeQue<float>();")
	w.line("DataCopyPad(y[static_cast<uint64_t>(outer) * %d + column], sum, DataCopyExtParams(1, count * 4, 0, 0, 0));", inner.length)
	w.line("target.FreeTensor(sum);")
	w.close()
	return min(blocks, outer*chunks)
}

// writeRowSums adds up the elements of rows: the innermost axis is reduced.
func writeRowSums(w *code, c chip.Chip, r reduction, inner reducedAxis, kept, summed []reducedAxis) int {
	rows, terms := lengths(kept), lengths(summed)
	w.global("y", "float", "yAddress", rows)
	row := rowKernel{code: w, columns: inner.length, chunk: min(rowChunk, inner.length), rows: rows}
	row.begin("results")
	row.eachRow()
	w.line("float total = 0.0f;")
	w.open("for (uint32_t term = 0; term < %d; term++)", terms)
	row.chunks(fmt.Sprintf("%s + %s", walkOffset("row", kept), walkOffset("term", summed)), func() {
		w.line("ReduceSum(value, tile, work, count);")
		w.wait("V_S")
		w.line("total += value.GetValue(0);")
		w.wait("S_V")
	})
	w.close()
	w.line("results.SetValue(row - batch, total * %s);", floatLiteral(r.scale))
	row.end(func() {
		w.wait("S_MTE3")
		w.line("DataCopyPad(y[batch], results, DataCopyExtParams(1, rows * 4, 0, 0, 0));")
	})
	return vectorBlocks(c, 4*product(r.shape), rows)
}

// A rowKernel works on rows one by one: for every batch of rows, for every row,
// for every chunk of it. It declares the queue `source`, the one-element tensor `value`, the
// tensor `work` of the reductions, and per batch `batch`, its first row, and `rows`.
type rowKernel struct {
	*code
	columns, chunk, rows int
	powers               bool // a scratch tensor `powers` of a chunk
	target               bool // a queue `target` for results of a chunk
}

// begin declares buffers and opens the loop over batches; perRow names tensors with one float per
// row of a batch.
func (k rowKernel) begin(perRow ...string) {
	k.line("TPipe pipe;")
	k.line("TQue<TPosition::VECIN, 1> source;")
	k.line("pipe.InitBuffer(source, 2, %d);", roundUp(4*k.chunk, 32))
	k.scratch("value", 8)
	k.scratch("work", 2*roundUp(2*ceilDiv(k.chunk, 64), 8)+64)
	if k.powers {
		k.scratch("powers", k.chunk)
	}
	if k.target {
		k.line("TQue<TPosition::VECOUT, 1> target;")
		k.line("pipe.InitBuffer(target, 2, %d);", roundUp(4*k.chunk, 32))
	}
	batch := min(rowBatch, k.rows)
	for _, name := range perRow {
		k.scratch(name, batch)
	}
	writeShare(k.code, k.rows)
	k.open("for (uint32_t batch = first; batch < last; batch += %d)", batch)
	k.line("const uint32_t rows = batch + %d > last ? last - batch : %d;", batch, batch)
}

// scratch declares a tensor of floats outside the queues.
func (k rowKernel) scratch(name string, elements int) {
	k.line("TBuf<TPosition::VECCALC> %sBuffer;", name)
	k.line("pipe.InitBuffer(%sBuffer, %d);", name, roundUp(4*elements, 32))
	k.line("LocalTensor<float> %s = %sBuffer.Get<float>();", name, name)
}

// eachRow opens the loop over the rows of the batch.
func (k rowKernel) eachRow() { k.open("for (uint32_t row = batch; row < batch + rows; row++)") }

// chunks loads the pieces of a row from base on and runs body on each `tile` of `count` elements,
// the first of which is element `column` of the row.
func (k rowKernel) chunks(base string, body func()) {
	k.open("for (uint32_t column = 0; column < %d; column += %d)", k.columns, k.chunk)
	k.line("const uint32_t count = column + %d > %d ? %d - column : %d;", k.chunk, k.columns, k.columns, k.chunk)
	k.line("LocalTensor<float> tile = source.AllocTensor<float>();")
	k.line("DataCopyPad(tile, x[%s + column], DataCopyExtParams(1, count * 4, 0, 0, 0), DataCopyPadExtParams<float>(false, 0, 0, 0.0f));", base)
	k.line("source.EnQue(tile);")
	k.line("tile = source.DeQue<float>();")
	body()
	k.line("source.FreeTensor(tile);")
	k.close()
}

// end closes the loop over rows, lets store write the batch, and closes the loop over batches.
func (k rowKernel) end(store func()) {
	k.close()
	store()
	k.line("PipeBarrier<PIPE_ALL>();")
	k.close()
}
