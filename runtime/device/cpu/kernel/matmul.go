package kernel

import "fmt"

// Epilogue is what MatMul does to a sum before it stores it.
type Epilogue struct {
	Bias []float32 // [N], added to each row; nil for none
	ReLU bool      // max(0, .) after the bias
}

// MatMul sets y[m, n] = x[m, k] @ b with b packed. Each sum is one chain of
// multiply-adds over k ascending from zero; the epilogue gives the bits of
// separate operations.
func (p *Path) MatMul(y, x, b []float32, m, k, n int, epilogue Epilogue) {
	y, x, b = y[:m*n], x[:m*k], b[:PackedLen(k, n)]
	if epilogue.Bias != nil {
		epilogue.Bias = epilogue.Bias[:n]
	}
	for panel := range panels(n) {
		column := panel * PanelColumns
		weights := b[column*k:][:k*PanelColumns]
		bias := epilogue.Bias
		if bias != nil {
			bias = bias[column:]
		}
		for row := 0; row < m; row += p.tileRows {
			p.matMul(y[row*n+column:], n, x[row*k:], k, min(p.tileRows, m-row), weights, k, bias, panelColumns(panel, n), epilogue.ReLU)
		}
	}
}

// inputGradBlock is how many columns of dx are finished for all rows before
// the next ones are begun: their part of the weights stays in a near cache.
const inputGradBlock = 64

// MatMulInputGrad sets dx[m, k] = dy[m, n] @ b^T with b[k, n] packed. Where
// mask[m, k] is given (the output of a relu that made x), dx is 0 where mask
// is not above 0.
func (p *Path) MatMulInputGrad(dx, dy, b, mask []float32, m, k, n int) {
	dx, dy, b = dx[:m*k], dy[:m*n], b[:PackedLen(k, n)]
	if mask != nil {
		mask = mask[:m*k]
	}
	if n == 0 {
		clear(dx)
		return
	}
	for k0 := 0; k0 < k; k0 += inputGradBlock {
		count := min(inputGradBlock, k-k0)
		for row := 0; row < m; row += p.tileRows {
			rows := min(p.tileRows, m-row)
			p.inputGrad(dx[row*k+k0:], k, dy[row*n:], n, rows, b[k0*PanelColumns:], k*PanelColumns, n, count)
			if mask == nil {
				continue
			}
			for r := row; r < row+rows; r++ {
				d := dx[r*k+k0:][:count]
				p.reluGrad(d, d, mask[r*k+k0:][:count])
			}
		}
	}
}

// Segment is a run of rows that contributes to a weight gradient, such as one
// micro-batch: X[Rows, K] and DY[Rows, N].
type Segment struct {
	X, DY []float32
	Rows  int
}

// MatMulWeightGrad sets the packed acc[k, n] to the sum of X^T @ DY over the
// segments, or adds to it where load is true. Each element is one chain of
// multiply-adds over the rows of all segments in order, so a pass over several
// segments has the bits of passes over one each that load.
func (p *Path) MatMulWeightGrad(acc []float32, segments []Segment, k, n int, load bool) {
	acc = acc[:PackedLen(k, n)]
	for panel := range panels(n) {
		p.MatMulWeightGradBlock(acc[panel*k*PanelColumns:][:k*PanelColumns], segments, k, n, panel, 0, k, load)
	}
}

// MatMulWeightGradBlock is MatMulWeightGrad for the rows k0 to k1 of one
// panel only: block is that part of the accumulator, [k1-k0][32]. It lets a
// caller use a block while it is in the nearest cache.
func (p *Path) MatMulWeightGradBlock(block []float32, segments []Segment, k, n, panel, k0, k1 int, load bool) {
	if k0 < 0 || k0 > k1 || k1 > k || panel < 0 || panel >= panels(n) {
		panic(fmt.Sprintf("kernel: block of rows %d to %d of panel %d lies outside of a packed [%d, %d]", k0, k1, panel, k, n))
	}
	count := k1 - k0
	block = block[:count*PanelColumns]
	for i := range segments {
		s := &segments[i]
		_, _ = s.X[:s.Rows*k], s.DY[:s.Rows*n]
	}
	p.weightGrad(block, segments, k, n, k0, count, panel*PanelColumns, panelColumns(panel, n), load)
}
