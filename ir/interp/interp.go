// Package interp evaluates functions of the IR slowly and plainly: it is what everything else is compared with.
//
// Every value is kept as float64. An operation is computed in float64 and each result element is rounded to its type;
// where an operation adds up many terms, every addition is rounded, in row-major order of the terms. In Exact mode
// floating-point results are not rounded at all.
package interp

import (
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/ir"
)

// Tensor is a value: elements in row-major order, bool as 0 and 1.
type Tensor struct {
	Type ir.Type
	Data []float64
}

// Interp holds how to evaluate. The zero value rounds.
type Interp struct {
	// Exact keeps floating-point values in float64.
	Exact bool
	// Micro is the number of the micro-batch: accumulations assign in micro-batch 0 and add in the others.
	Micro int
	// Seed and Step are what random numbers depend on, beside key, micro-batch and element.
	Seed, Step uint32
	// Show receives what print, summary and tensor_dump show, if not nil.
	Show func(kind ir.Kind, label string, v Tensor)
}

// Run evaluates f. args are those of f, in order; params gives every parameter that f reads. The operands are not
// changed. The error names the operation that could not be evaluated.
func (in *Interp) Run(f *ir.Func, args []Tensor, params map[*ir.Param]Tensor) ([]Tensor, error) {
	if len(args) != len(f.Args) {
		return nil, fmt.Errorf("%s takes %d arguments, not %d", f.Name, len(f.Args), len(args))
	}
	values := make([]Tensor, f.NumValues())
	for i, a := range f.Args {
		if !args[i].Type.Equal(f.TypeOf(a)) || len(args[i].Data) != args[i].Type.Elems() {
			return nil, fmt.Errorf("argument %d of %s is %s with %d elements, wants %s", i, f.Name, args[i].Type, len(args[i].Data), f.TypeOf(a))
		}
		values[a] = args[i]
	}
	for _, v := range f.ParamReads() {
		p := f.Value(v).Param
		t, ok := params[p]
		if !ok || !t.Type.Equal(p.Type) || len(t.Data) != p.Type.Elems() {
			return nil, fmt.Errorf("%s reads parameter %s, %s, which has no such value", f.Name, p.Name, p.Type)
		}
		values[v] = t
	}
	for _, op := range f.Ops {
		operands := make([]Tensor, len(op.Args))
		for i, a := range op.Args {
			operands[i] = values[a]
		}
		if op.Callee != nil {
			results, err := in.Run(op.Callee, operands, params)
			if err != nil {
				return nil, err
			}
			for i, r := range op.Results {
				values[r] = results[i]
			}
			continue
		}
		if op.Kind.Info().Effect {
			if in.Show != nil {
				in.Show(op.Kind, op.Attrs.Text("label"), operands[0])
			}
			continue
		}
		out := Tensor{Type: f.TypeOf(op.Results[0])}
		out.Data = make([]float64, out.Type.Elems())
		e := &evaluation{Interp: in, op: op, in: operands, out: out}
		if err := e.run(); err != nil {
			return nil, fmt.Errorf("`%s` in %s: %w", op.Kind, f.Name, err)
		}
		values[op.Results[0]] = out
	}
	results := make([]Tensor, len(f.Results))
	for i, r := range f.Results {
		results[i] = values[r]
	}
	return results, nil
}

// Round gives the value of a type that is nearest to v; integers are cut and wrap around as in Go.
func Round(t ir.DType, v float64) float64 {
	switch t {
	case ir.F32:
		return float64(float32(v))
	case ir.F16:
		return roundBinary(v, 11, -13, 16)
	case ir.BF16:
		return roundBinary(v, 8, -125, 128)
	case ir.I32:
		return float64(int32(int64(v)))
	case ir.I64:
		return float64(int64(v))
	case ir.U8:
		return float64(uint8(int64(v)))
	case ir.Bool:
		return truth(v != 0)
	}
	return v
}

// roundBinary rounds to a significand of bits, even on ties. An exponent below low is subnormal; from 2^high on it is
// infinite.
func roundBinary(v float64, bits, low, high int) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return v
	}
	_, e := math.Frexp(v)
	unit := math.Ldexp(1, max(e, low)-bits)
	r := math.RoundToEven(v/unit) * unit
	if math.Abs(r) >= math.Ldexp(1, high) {
		return math.Inf(int(math.Copysign(1, v)))
	}
	return r
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// round rounds a value of the result's type.
func (e *evaluation) round(v float64) float64 {
	if e.Exact && e.out.Type.DType.IsFloat() {
		return v
	}
	return Round(e.out.Type.DType, v)
}
