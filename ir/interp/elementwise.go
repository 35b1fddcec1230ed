package interp

import (
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/ir"
)

// elementwise computes every element of the result from those of the operands at its place.
func (e *evaluation) elementwise() error {
	f := e.function()
	if f == nil {
		return fmt.Errorf("the interpreter has no rule for it")
	}
	x := make([]float64, len(e.in))
	e.fill(func(at []int) float64 {
		for i := range e.in {
			x[i] = e.in[i].spread(at)
		}
		return e.round(f(x))
	})
	return nil
}

// function gives the mathematical function of an element-wise operation, nil if it has none.
func (e *evaluation) function() func(x []float64) float64 {
	switch e.op.Kind {
	case ir.Cast:
		if to := e.op.Attrs.DType("dtype"); to == ir.I32 {
			return func(x []float64) float64 { return within(x[0], math.MinInt32, math.MaxInt32) }
		}
		return func(x []float64) float64 { return x[0] }
	case ir.Add:
		return func(x []float64) float64 { return x[0] + x[1] }
	case ir.Sub:
		return func(x []float64) float64 { return x[0] - x[1] }
	case ir.Mul:
		return func(x []float64) float64 { return x[0] * x[1] }
	case ir.Div:
		return func(x []float64) float64 { return x[0] / x[1] }
	case ir.Maximum:
		return func(x []float64) float64 { return max(x[0], x[1]) }
	case ir.Minimum:
		return func(x []float64) float64 { return min(x[0], x[1]) }
	case ir.Equal:
		return func(x []float64) float64 { return truth(x[0] == x[1]) }
	case ir.Less:
		return func(x []float64) float64 { return truth(x[0] < x[1]) }
	case ir.LessEqual:
		return func(x []float64) float64 { return truth(x[0] <= x[1]) }
	case ir.Where:
		return func(x []float64) float64 {
			if x[0] != 0 {
				return x[1]
			}
			return x[2]
		}
	case ir.Neg:
		return func(x []float64) float64 { return -x[0] }
	case ir.Scale:
		factor := e.round(e.op.Attrs.Float("factor"))
		return func(x []float64) float64 { return factor * x[0] }
	case ir.Exp:
		return func(x []float64) float64 { return math.Exp(x[0]) }
	case ir.Log:
		return func(x []float64) float64 { return math.Log(x[0]) }
	case ir.Sqrt:
		return func(x []float64) float64 { return math.Sqrt(x[0]) }
	case ir.Rsqrt:
		return func(x []float64) float64 { return 1 / math.Sqrt(x[0]) }
	case ir.Abs:
		return func(x []float64) float64 { return math.Abs(x[0]) }
	case ir.Relu:
		return func(x []float64) float64 {
			if x[0] < 0 {
				return 0
			}
			return x[0]
		}
	case ir.Sigmoid:
		return func(x []float64) float64 { return 1 / (1 + math.Exp(-x[0])) }
	case ir.Tanh:
		return func(x []float64) float64 { return math.Tanh(x[0]) }
	case ir.Gelu:
		return func(x []float64) float64 { return x[0] * geluGate(x[0]) }
	case ir.ReluGrad:
		return func(x []float64) float64 {
			if x[1] > 0 {
				return x[0]
			}
			return 0
		}
	case ir.SigmoidGrad:
		return func(x []float64) float64 { return x[0] * (x[1] * (1 - x[1])) }
	case ir.TanhGrad:
		return func(x []float64) float64 { return x[0] * (1 - x[1]*x[1]) }
	case ir.GeluGrad:
		return func(x []float64) float64 {
			s := geluGate(x[1])
			return x[0] * (s + x[1]*s*(1-s)*(2*geluRoot*(1+3*geluCubic*x[1]*x[1])))
		}
	}
	return nil
}

// The tanh form of GELU (Hendrycks and Gimpel, 2016), x/2 (1 + tanh u), which is x sigmoid(2u).
var geluRoot = math.Sqrt(2 / math.Pi)

const geluCubic = 0.044715

func geluGate(x float64) float64 { return 1 / (1 + math.Exp(-2*geluRoot*(x+geluCubic*x*x*x))) }

// within cuts the fraction and holds the rest in a range; NaN becomes 0.
func within(v, low, high float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return math.Trunc(min(max(v, low), high))
}
