package kernel

import (
	"fmt"
	"math"
)

// The functions below are plain Go on every path: each value is computed in
// float64 and rounded once. As above, operands have the length of dst, and dst
// may be one of them.

// Exp sets dst = e**a.
func Exp(dst, a []float32) {
	for i, v := range a[:len(dst)] {
		dst[i] = float32(math.Exp(float64(v)))
	}
}

// Log sets dst to the natural logarithm of a.
func Log(dst, a []float32) {
	for i, v := range a[:len(dst)] {
		dst[i] = float32(math.Log(float64(v)))
	}
}

// Sqrt sets dst to the square root of a.
func Sqrt(dst, a []float32) {
	for i, v := range a[:len(dst)] {
		dst[i] = float32(math.Sqrt(float64(v)))
	}
}

// Rsqrt sets dst = 1 / sqrt(a).
func Rsqrt(dst, a []float32) {
	for i, v := range a[:len(dst)] {
		dst[i] = float32(1 / math.Sqrt(float64(v)))
	}
}

// Tanh sets dst to the hyperbolic tangent of a.
func Tanh(dst, a []float32) {
	for i, v := range a[:len(dst)] {
		dst[i] = float32(math.Tanh(float64(v)))
	}
}

// TanhGrad sets dst = dy * (1 - y*y) where y is the output of Tanh.
func TanhGrad(dst, dy, y []float32) {
	dy, y = dy[:len(dst)], y[:len(dst)]
	for i := range dst {
		t := float64(y[i])
		dst[i] = float32(float64(dy[i]) * (1 - float64(t*t)))
	}
}

// Sigmoid sets dst = 1 / (1 + e**-a).
func Sigmoid(dst, a []float32) {
	for i, v := range a[:len(dst)] {
		dst[i] = float32(1 / (1 + math.Exp(-float64(v))))
	}
}

// SigmoidGrad sets dst = dy * y * (1 - y) where y is the output of Sigmoid.
func SigmoidGrad(dst, dy, y []float32) {
	dy, y = dy[:len(dst)], y[:len(dst)]
	for i := range dst {
		s := float64(y[i])
		dst[i] = float32(float64(dy[i]) * (s * (1 - s)))
	}
}

// The tanh form of GELU (Hendrycks and Gimpel, 2016):
// a/2 * (1 + tanh(u)) with u = sqrt(2/pi) * (a + 0.044715 a^3), which is
// a * sigmoid(2u).
const (
	geluRoot  = 0.7978845608028653558798921198687637
	geluCubic = 0.044715
)

// GELU sets dst to the tanh form of the Gaussian error linear unit of a.
func GELU(dst, a []float32) {
	for i, v := range a[:len(dst)] {
		x := float64(v)
		dst[i] = float32(x * geluGate(x))
	}
}

// GELUGrad sets dst = dy times the derivative of GELU at its input a.
func GELUGrad(dst, dy, a []float32) {
	dy, a = dy[:len(dst)], a[:len(dst)]
	for i := range dst {
		x := float64(a[i])
		s := geluGate(x)
		inner := 2 * geluRoot * (1 + float64(3*geluCubic*x*x))
		derivative := s + float64(float64(x*s)*(1-s)*inner)
		dst[i] = float32(float64(dy[i]) * derivative)
	}
}

// geluGate is sigmoid(2u).
func geluGate(x float64) float64 {
	return 1 / (1 + math.Exp(-2*geluRoot*(x+float64(geluCubic*x*x*x))))
}

// CrossEntropy sets losses[rows] to -log softmax(logits[rows, classes]) at the
// label of each row. A label outside of the classes is an error.
func CrossEntropy(losses, logits []float32, labels []int32, rows, classes int) error {
	losses, labels = losses[:rows], labels[:rows]
	for r, label := range labels {
		if label < 0 || int(label) >= classes {
			return labelError(label, r, classes)
		}
		x := logits[r*classes:][:classes]
		largest, sum := softmaxSum(x)
		losses[r] = float32(math.Log(sum) - (float64(x[label]) - largest))
	}
	return nil
}

// CrossEntropyGrad sets dx[rows, classes] = (softmax(logits) - onehot(label)) *
// dlosses[row]. A label outside of the classes is an error.
func CrossEntropyGrad(dx, logits []float32, labels []int32, dlosses []float32, rows, classes int) error {
	labels, dlosses = labels[:rows], dlosses[:rows]
	for r, label := range labels {
		if label < 0 || int(label) >= classes {
			return labelError(label, r, classes)
		}
		x := logits[r*classes:][:classes]
		out := dx[r*classes:][:classes]
		largest, sum := softmaxSum(x)
		for j, v := range x {
			probability := math.Exp(float64(v)-largest) / sum
			if j == int(label) {
				probability--
			}
			out[j] = float32(probability * float64(dlosses[r]))
		}
	}
	return nil
}

// Softmax sets every row of dst to e**x / sum of e**x over the row of x.
func Softmax(dst, x []float32, columns int) {
	for at := 0; at < len(dst); at += columns {
		row, out := x[at:][:columns], dst[at:][:columns]
		largest, sum := softmaxSum(row)
		for j, v := range row {
			out[j] = float32(math.Exp(float64(v)-largest) / sum)
		}
	}
}

// SoftmaxGrad sets every row of dst to y * (dy - sum(dy * y)), where y is the
// output of Softmax.
func SoftmaxGrad(dst, dy, y []float32, columns int) {
	for at := 0; at < len(dst); at += columns {
		d, s, out := dy[at:][:columns], y[at:][:columns], dst[at:][:columns]
		sum := 0.0
		for j, v := range s {
			sum += float64(float64(d[j]) * float64(v))
		}
		for j, v := range s {
			out[j] = float32(float64(v) * (float64(d[j]) - sum))
		}
	}
}

// softmaxSum is the largest logit and the sum of e**(x - largest).
func softmaxSum(x []float32) (largest, sum float64) {
	largest = math.Inf(-1)
	for _, v := range x {
		largest = max(largest, float64(v))
	}
	for _, v := range x {
		sum += math.Exp(float64(v) - largest)
	}
	return largest, sum
}

func labelError(label int32, row, classes int) error {
	return fmt.Errorf("label %d in row %d of a micro-batch is outside of the classes 0 to %d", label, row, classes-1)
}
