package kernel

// Add sets dst = a + b. Here and below the operands have the length of dst,
// and dst may be one of them.
func (p *Path) Add(dst, a, b []float32) { p.add(dst, a[:len(dst)], b[:len(dst)]) }

// Sub sets dst = a - b.
func (p *Path) Sub(dst, a, b []float32) { p.sub(dst, a[:len(dst)], b[:len(dst)]) }

// Mul sets dst = a * b.
func (p *Path) Mul(dst, a, b []float32) { p.mul(dst, a[:len(dst)], b[:len(dst)]) }

// Scale sets dst = s * a.
func (p *Path) Scale(dst, a []float32, s float32) { p.scale(dst, a[:len(dst)], s) }

// ReLU sets dst = max(0, a); NaN stays NaN.
func (p *Path) ReLU(dst, a []float32) { p.relu(dst, a[:len(dst)]) }

// ReLUGrad sets dst = dy where y > 0, else 0; y may be the input or the output
// of the relu.
func (p *Path) ReLUGrad(dst, dy, y []float32) { p.reluGrad(dst, dy[:len(dst)], y[:len(dst)]) }

// MultiplyAdd sets dst = a + s*b, rounded after each operation.
func (p *Path) MultiplyAdd(dst, a, b []float32, s float32) {
	p.multiplyAdd(dst, a[:len(dst)], b[:len(dst)], s)
}

// SGD sets parameters = parameters - rate*gradients, rounded after each
// operation.
func (p *Path) SGD(parameters, gradients []float32, rate float32) {
	p.multiplySubtract(parameters, parameters, gradients[:len(parameters)], rate)
}

// AddBias sets y[m, n] = x[m, n] + bias[n].
func (p *Path) AddBias(y, x, bias []float32, m, n int) {
	y, x, bias = y[:m*n], x[:m*n], bias[:n]
	for r := range m {
		p.add(y[r*n:][:n], x[r*n:][:n], bias)
	}
}

// ColumnSums sets sums[n] to the sums of the columns of x[m, n], or continues
// them where load is true: one chain of additions over rows ascending.
func (p *Path) ColumnSums(sums, x []float32, m, n int, load bool) {
	sums, x = sums[:n], x[:m*n]
	if !load {
		clear(sums)
	}
	p.columnSums(sums, x, m)
}
