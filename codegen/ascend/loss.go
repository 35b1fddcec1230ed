package ascend

import (
	"fmt"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

func requireRows(x ir.Type, op ir.Kind) error {
	if x.DType != ir.F32 {
		return fmt.Errorf("`%s` of %s is not supported; cast to f32", op, x.DType)
	}
	return nil
}

// rowsOf gives the rows and columns of a tensor as its last axis sees it.
func rowsOf(x ir.Type) (rows, columns int) {
	columns = x.Shape[x.Rank()-1]
	return x.Elems() / columns, columns
}

// writeRowBase declares `base`, the first element of the row.
func (k rowKernel) writeRowBase() {
	k.line("const uint64_t base = static_cast<uint64_t>(row) * %d;", k.columns)
}

// loadPerRow moves one value per row of the batch into a tensor.
func (k rowKernel) loadPerRow(tensor, global, element string) {
	k.line("DataCopyPad(%s, %s[batch], DataCopyExtParams(1, rows * 4, 0, 0, 0), DataCopyPadExtParams<%s>(false, 0, 0, %s));",
		tensor, global, element, zeroOf(element))
}

// writeMaximum declares `maximum`, the largest element of the row.
func (k rowKernel) writeMaximum(found func()) {
	k.line("float maximum = 0.0f;")
	k.chunks("base", func() {
		k.line("ReduceMax(value, tile, work, count);")
		k.wait("V_S")
		k.line("const float largest = value.GetValue(0);")
		k.line("maximum = column == 0 || largest > maximum ? largest : maximum;")
		found()
		k.wait("S_V")
	})
}

// writeExponentials declares `total`, the sum of exp(x - maximum) over the row.
func (k rowKernel) writeExponentials() {
	k.line("float total = 0.0f;")
	k.chunks("base", func() {
		k.line("Adds(powers, tile, -maximum, count);")
		k.line("PipeBarrier<PIPE_V>();")
		k.line("Exp(powers, powers, count);")
		k.line("PipeBarrier<PIPE_V>();")
		k.line("ReduceSum(value, powers, work, count);")
		k.wait("V_S")
		k.line("total += value.GetValue(0);")
		k.wait("S_V")
	})
}

// emitCrossEntropy emits loss[row] = log(sum exp(x[row])) - x[row][label[row]]: parameters x, label, loss.
func emitCrossEntropy(c chip.Chip, x ir.Type) (*Kernel, error) {
	if err := requireRows(x, ir.CrossEntropy); err != nil {
		return nil, err
	}
	rows, columns := rowsOf(x)
	w := newCode()
	w.global("x", "float", "xAddress", rows*columns)
	w.global("label", "int32_t", "labelAddress", rows)
	w.global("loss", "float", "lossAddress", rows)
	k := rowKernel{code: w, columns: columns, chunk: min(rowChunk, columns), rows: rows, powers: true}
	k.begin("labelBits", "sums", "maxima", "picks")
	w.line("LocalTensor<int32_t> labels = labelBits.ReinterpretCast<int32_t>();")
	k.loadPerRow("labels", "label", "int32_t")
	w.wait("MTE2_S")
	k.eachRow()
	k.writeRowBase()
	w.line("const uint32_t wanted = static_cast<uint32_t>(labels.GetValue(row - batch));")
	k.writeMaximum(func() {
		w.open("if (wanted >= column && wanted < column + count)")
		w.line("picks.SetValue(row - batch, tile.GetValue(wanted - column));")
		w.close()
	})
	k.writeExponentials()
	w.line("sums.SetValue(row - batch, total);")
	w.line("maxima.SetValue(row - batch, maximum);")
	k.end(func() {
		w.wait("S_V")
		w.line("Ln(sums, sums, rows);")
		w.line("PipeBarrier<PIPE_V>();")
		w.line("Add(sums, sums, maxima, rows);")
		w.line("PipeBarrier<PIPE_V>();")
		w.line("Sub(sums, sums, picks, rows);")
		w.wait("V_MTE3")
		w.line("DataCopyPad(loss[batch], sums, DataCopyExtParams(1, rows * 4, 0, 0, 0));")
	})
	return rowText("cross_entropy", x, w, vectorBlocks(c, 8*x.Elems(), rows), "xAddress", "labelAddress", "lossAddress"), nil
}

// emitCrossEntropyGrad emits dx[row] = (softmax(x[row]) - onehot(label[row])) d[row]: parameters x, label, d, dx.
func emitCrossEntropyGrad(c chip.Chip, x ir.Type) (*Kernel, error) {
	if err := requireRows(x, ir.CrossEntropyGrad); err != nil {
		return nil, err
	}
	rows, columns := rowsOf(x)
	w := newCode()
	w.global("x", "float", "xAddress", rows*columns)
	w.global("label", "int32_t", "labelAddress", rows)
	w.global("d", "float", "dAddress", rows)
	w.global("dx", "float", "dxAddress", rows*columns)
	k := rowKernel{code: w, columns: columns, chunk: min(rowChunk, columns), rows: rows, powers: true, target: true}
	k.begin("labelBits", "slopes")
	w.line("LocalTensor<int32_t> labels = labelBits.ReinterpretCast<int32_t>();")
	k.loadPerRow("labels", "label", "int32_t")
	k.loadPerRow("slopes", "d", "float")
	w.wait("MTE2_S")
	k.eachRow()
	k.writeRowBase()
	w.line("const uint32_t wanted = static_cast<uint32_t>(labels.GetValue(row - batch));")
	w.line("const float slope = slopes.GetValue(row - batch);")
	k.writeMaximum(func() {})
	k.writeExponentials()
	k.chunks("base", func() {
		w.line("LocalTensor<float> out = target.AllocTensor<float>();")
		w.line("Adds(out, tile, -maximum, count);")
		w.line("PipeBarrier<PIPE_V>();")
		w.line("Exp(out, out, count);")
		w.line("PipeBarrier<PIPE_V>();")
		w.line("Muls(out, out, 1.0f / total, count);")
		w.open("if (wanted >= column && wanted < column + count)")
		w.wait("V_S")
		w.line("out.SetValue(wanted - column, out.GetValue(wanted - column) - 1.0f);")
		w.wait("S_V")
		w.close()
		w.line("PipeBarrier<PIPE_V>();")
		w.line("Muls(out, out, slope, count);")
		w.line("target.EnQue(out);")
		w.line("out = target.DeQue<float>();")
		w.line("DataCopyPad(dx[base + column], out, DataCopyExtParams(1, count * 4, 0, 0, 0));")
		w.line("target.FreeTensor(out);")
	})
	k.end(func() {})
	return rowText("cross_entropy_grad", x, w, vectorBlocks(c, 8*x.Elems(), rows), "xAddress", "labelAddress", "dAddress", "dxAddress"), nil
}

// emitArgMax emits y[row] = the first index of the largest element: parameters x, y.
func emitArgMax(c chip.Chip, x ir.Type) (*Kernel, error) {
	if err := requireRows(x, ir.ArgMax); err != nil {
		return nil, err
	}
	rows, columns := rowsOf(x)
	w := newCode()
	w.global("x", "float", "xAddress", rows*columns)
	w.global("y", "int32_t", "yAddress", rows)
	k := rowKernel{code: w, columns: columns, chunk: min(rowChunk, columns), rows: rows}
	k.begin("resultBits")
	w.line("LocalTensor<int32_t> results = resultBits.ReinterpretCast<int32_t>();")
	k.eachRow()
	k.writeRowBase()
	w.line("float maximum = 0.0f;")
	w.line("uint32_t best = 0;")
	k.chunks("base", func() {
		w.line("ReduceMax(value, tile, work, count, true);")
		w.wait("V_S")
		w.line("const float largest = value.GetValue(0);")
		w.line("const uint32_t index = value.ReinterpretCast<uint32_t>().GetValue(1);")
		w.open("if (column == 0 || largest > maximum)")
		w.line("maximum = largest;")
		w.line("best = column + index;")
		w.close()
		w.wait("S_V")
	})
	w.line("results.SetValue(row - batch, static_cast<int32_t>(best));")
	k.end(func() {
		w.wait("S_MTE3")
		w.line("DataCopyPad(y[batch], results, DataCopyExtParams(1, rows * 4, 0, 0, 0));")
	})
	return rowText("argmax", x, w, vectorBlocks(c, 4*x.Elems(), rows), "xAddress", "yAddress"), nil
}

func rowText(name string, x ir.Type, w *code, blocks int, parameters ...string) *Kernel {
	text := kernelText{stem: name + "_" + shapeName(x.Shape), title: fmt.Sprintf("%s of %s", name, x),
		includes: vectorIncludes, body: w.text.String(), blocks: blocks}
	for _, p := range parameters {
		text.parameters = append(text.parameters, parameter{emulator.Buffer, p})
	}
	return text.finish()
}
