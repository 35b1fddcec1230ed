package runtime

import (
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/threefry"
)

// Initial fills dst with the first value of a parameter, row-major. It depends on seed, name, shape and initialiser only.
// Bounds as in MindSpore: fan_in is shape[1], fan_out shape[0], both times the receptive field; he_uniform is
// sqrt(6/((1+a^2) fan_in)), xavier_uniform sqrt(6/(fan_in+fan_out)).
func Initial(p *ir.Param, seed uint32, dst []float32) error {
	arg := func(i int, otherwise float64) float64 {
		if i < len(p.Init.Args) {
			return p.Init.Args[i]
		}
		return otherwise
	}
	fanIn, fanOut := fans(p.Type.Shape)
	key := threefry.Stream(seed, p.Name, 0, 0)
	uniform := func(bound float64) {
		for e := range dst {
			u := (float64(key.Element(uint64(e))[0]) + 0.5) / (1 << 32)
			dst[e] = float32(bound * (2*u - 1))
		}
	}
	fill := func(v float64) {
		for e := range dst {
			dst[e] = float32(v)
		}
	}
	switch p.Init.Kind {
	case "zeros":
		fill(0)
	case "ones":
		fill(1)
	case "constant":
		fill(arg(0, 0))
	case "uniform":
		uniform(arg(0, 0.07))
	case "he_uniform":
		a := arg(0, 0)
		uniform(math.Sqrt(6 / ((1 + a*a) * fanIn)))
	case "xavier_uniform":
		uniform(arg(0, 1) * math.Sqrt(6/(fanIn+fanOut)))
	case "normal": // Box-Muller
		std := arg(0, 0.02)
		for e := range dst {
			w := key.Element(uint64(e))
			u1, u2 := (float64(w[0])+0.5)/(1<<32), (float64(w[1])+0.5)/(1<<32)
			dst[e] = float32(std * math.Sqrt(-2*math.Log(u1)) * math.Cos(2*math.Pi*u2))
		}
	default:
		return fmt.Errorf("parameter %s has an unknown initialiser `%s`", p.Name, p.Init.Kind)
	}
	return nil
}

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
