package runtime

import (
	"context"
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/threefry"
)

// Initial fills dst with the first value of a parameter, row-major. It depends on seed, name, shape and initialiser only.
// Bounds as in MindSpore: fan_in is shape[1], fan_out shape[0], both times the receptive field; he_uniform is
// sqrt(6/((1+a^2) fan_in)), xavier_uniform sqrt(6/(fan_in+fan_out)).
func Initial(ctx context.Context, p *ir.Param, seed uint32, dst []float32) error {
	arg := func(i int, otherwise float64) float64 {
		if i < len(p.Init.Args) {
			return p.Init.Args[i]
		}
		return otherwise
	}
	fanIn, fanOut := fans(p.Type.Shape)
	key := threefry.Stream(seed, p.Name, 0, 0)
	uniform := func(bound float64) func(e int) float64 {
		return func(e int) float64 {
			u := (float64(key.Element(uint64(e))[0]) + 0.5) / (1 << 32)
			return bound * (2*u - 1)
		}
	}
	constant := func(v float64) func(e int) float64 { return func(int) float64 { return v } }
	var value func(e int) float64
	switch p.Init.Kind {
	case "zeros":
		value = constant(0)
	case "ones":
		value = constant(1)
	case "constant":
		value = constant(arg(0, 0))
	case "uniform":
		value = uniform(arg(0, 0.07))
	case "he_uniform":
		a := arg(0, 0)
		value = uniform(math.Sqrt(6 / ((1 + a*a) * fanIn)))
	case "xavier_uniform":
		value = uniform(arg(0, 1) * math.Sqrt(6/(fanIn+fanOut)))
	case "normal": // Box-Muller
		std := arg(0, 0.02)
		value = func(e int) float64 {
			w := key.Element(uint64(e))
			u1, u2 := (float64(w[0])+0.5)/(1<<32), (float64(w[1])+0.5)/(1<<32)
			return std * math.Sqrt(-2*math.Log(u1)) * math.Cos(2*math.Pi*u2)
		}
	default:
		return fmt.Errorf("parameter %s has an unknown initialiser `%s`", p.Name, p.Init.Kind)
	}
	for e := range dst {
		if e%interruptible == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		dst[e] = float32(value(e))
	}
	return nil
}

// interruptible is how many elements of a parameter are made, some milliseconds, before the end of the context is noticed.
const interruptible = 1 << 16

func fans(shape []int) (in, out float64) {
	in, out = 1, 1
	if len(shape) > 0 {
		in, out = float64(shape[0]), float64(shape[0])
	}
	if len(shape) > 1 {
		field := 1
		for _, d := range shape[2:] {
			field *= d
		}
		in, out = float64(shape[1]*field), float64(shape[0]*field)
	}
	return in, out
}
