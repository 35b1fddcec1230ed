package kernel

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestFunctions compares values with known ones and gradients with central
// differences.
func TestFunctions(t *testing.T) {
	points := []float32{-9, -2, -0.5, 0, 0.25, 1, 3, 12}
	functions := []struct {
		name     string
		value    func(dst, a []float32)
		want     func(x float64) float64
		gradient func(dst, dy, a []float32)
		ofOutput bool // the gradient takes the output instead of the input
	}{
		{"Exp", Exp, math.Exp, nil, false},
		{"Log", Log, math.Log, nil, false},
		{"Sqrt", Sqrt, math.Sqrt, nil, false},
		{"Tanh", Tanh, math.Tanh, TanhGrad, true},
		{"Sigmoid", Sigmoid, func(x float64) float64 { return math.Exp(x) / (math.Exp(x) + 1) }, SigmoidGrad, true},
		{"GELU", GELU, func(x float64) float64 {
			return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*math.Pow(x, 3))))
		}, GELUGrad, false},
	}
	for _, f := range functions {
		got := make([]float32, len(points))
		f.value(got, points)
		for i, x := range points {
			want := f.want(float64(x))
			if float32(want) != got[i] && !(math.Abs(float64(got[i])-want) <= 1e-7*math.Abs(want)+1e-12) && !math.IsNaN(want) {
				t.Errorf("%s(%g) = %g, want %g", f.name, x, got[i], want)
			}
		}
		if f.gradient == nil {
			continue
		}
		at := points
		if f.ofOutput {
			at = got
		}
		dy, dx := make([]float32, len(points)), make([]float32, len(points))
		for i := range dy {
			dy[i] = 2
		}
		f.gradient(dx, dy, at)
		for i, x := range points {
			const h = 1e-5
			want := (f.want(float64(x)+h) - f.want(float64(x)-h)) / h
			if math.Abs(float64(dx[i])-want) > 2e-6 {
				t.Errorf("the gradient of %s at %g is %g, want %g", f.name, x, dx[i], want)
			}
		}
	}
}

func TestCrossEntropy(t *testing.T) {
	const rows, classes = 5, 7
	random := rand.New(rand.NewPCG(9, 10))
	logits, dlosses := guarded(random, rows*classes), guarded(random, rows)
	logits[3] = 400 // must not overflow
	labels := []int32{0, 6, 3, 2, 5}
	losses, dx := make([]float32, rows), make([]float32, rows*classes)
	if err := CrossEntropy(losses, logits, labels, rows, classes); err != nil {
		t.Fatal(err)
	}
	if err := CrossEntropyGrad(dx, logits, labels, dlosses, rows, classes); err != nil {
		t.Fatal(err)
	}
	for r := range rows {
		if r == 0 {
			// All but the largest logit underflow.
			want := logits[3] - logits[labels[0]]
			if losses[0] != want {
				t.Errorf("loss of row 0 is %g, want %g", losses[0], want)
			}
			continue
		}
		sum := 0.0
		for i := range classes {
			sum += math.Exp(float64(logits[r*classes+i]))
		}
		for j := range classes {
			p := math.Exp(float64(logits[r*classes+j])) / sum
			if j == int(labels[r]) {
				if math.Abs(float64(losses[r])+math.Log(p)) > 1e-6 {
					t.Errorf("loss of row %d is %g, want %g", r, losses[r], -math.Log(p))
				}
				p--
			}
			if math.Abs(float64(dx[r*classes+j])-p*float64(dlosses[r])) > 1e-6 {
				t.Errorf("gradient [%d,%d] is %g, want %g", r, j, dx[r*classes+j], p*float64(dlosses[r]))
			}
		}
	}
	for _, label := range []int32{-1, classes} {
		labels[4] = label
		err := CrossEntropy(losses, logits, labels, rows, classes)
		if err == nil || !strings.Contains(err.Error(), "row 4") {
			t.Errorf("label %d: error %v does not name row 4", label, err)
		}
		if CrossEntropyGrad(dx, logits, labels, dlosses, rows, classes) == nil {
			t.Errorf("label %d: no error from the gradient", label)
		}
	}
}
