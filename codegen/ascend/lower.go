package ascend

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
)

// operand is what an op reads: a tile, or one scalar for all elements.
type operand struct {
	tile   register
	scalar string // C++ expression of the carrier type, when tile is 0
}

// carrier is the type that values of a dtype have between vector calls: the
// vector unit computes in float and int32_t.
func carrier(d ir.DType) (string, error) {
	switch d {
	case ir.F32, ir.F16, ir.BF16, ir.U8, ir.Bool:
		return "float", nil
	case ir.I32:
		return "int32_t", nil
	}
	_, err := elementType(d)
	return "", err
}

// loaded converts a tile from its form in global memory to its carrier.
func (p *vectorProgram) loaded(r register, d ir.DType) register {
	switch d {
	case ir.F16, ir.BF16:
		return p.cast(r, "float", "CAST_NONE")
	case ir.U8, ir.Bool:
		return p.cast(p.cast(r, "half", "CAST_NONE"), "float", "CAST_NONE")
	}
	return r
}

// stored converts a carrier to the form of d in global memory.
func (p *vectorProgram) stored(r register, d ir.DType) register {
	switch d {
	case ir.F16:
		return p.cast(r, "half", "CAST_RINT")
	case ir.BF16:
		return p.cast(r, "bfloat16_t", "CAST_RINT")
	case ir.U8, ir.Bool:
		return p.cast(p.cast(r, "half", "CAST_RINT"), "uint8_t", "CAST_TRUNC")
	}
	return r
}

// tileOf is the operand as a tile.
func (p *vectorProgram) tileOf(o operand, element string) register {
	if o.tile != 0 {
		return o.tile
	}
	return p.duplicate(element, o.scalar)
}

// sigmoid gives 1 / (1 + exp(-x)).
func (p *vectorProgram) sigmoid(x register) register {
	t := p.unary("Exp", p.scalar("Muls", x, "-1.0f"))
	t = p.scalar("Adds", t, "1.0f")
	return p.binary("Div", p.duplicate("float", "1.0f"), t)
}

// The tanh form of GELU (Hendrycks and Gimpel, 2016), with
// tanh(u) = 2 sigmoid(2u) - 1, so that gelu(x) = x sigmoid(2u).
const (
	geluRoot  = 0.7978845608028654 // sqrt(2/pi)
	geluCubic = 0.044715
)

// geluGate gives sigmoid(2u) for u = root (x + cubic x^3).
func (p *vectorProgram) geluGate(x register) register {
	t := p.scalar("Muls", p.binary("Mul", x, x), floatLiteral(2*geluRoot*geluCubic))
	t = p.scalar("Adds", t, floatLiteral(2*geluRoot))
	return p.sigmoid(p.binary("Mul", t, x))
}

// truth gives 1 where the mask is set and 0 elsewhere.
func (p *vectorProgram) truth(mask register) register {
	return p.choose(mask, p.duplicate("float", "1.0f"), 0, "0.0f")
}

// lower appends the calls of one element-wise op and returns its result.
func (p *vectorProgram) lower(kind ir.Kind, attrs ir.Attrs, args []operand, in []ir.Type, out ir.Type) (operand, error) {
	result := func(r register) (operand, error) { return operand{tile: r}, nil }
	element, err := carrier(in[0].DType)
	if err != nil {
		return operand{}, err
	}
	switch kind {
	case ir.Identity, ir.BroadcastTo:
		return result(p.tileOf(args[0], element))
	case ir.Cast:
		return p.lowerCast(args[0], in[0].DType, out.DType)
	case ir.Equal, ir.Less, ir.LessEqual:
		return result(p.lowerCompare(kind, args, element))
	case ir.Where:
		return p.lowerWhere(args, in[1].DType)
	}
	if in[0].DType == ir.U8 || element == "int32_t" && !integerOps[kind] {
		return operand{}, fmt.Errorf("the chip's vector cores have no `%s` for %s; use f32", kind, in[0].DType)
	}
	switch kind {
	case ir.Add, ir.Sub, ir.Mul, ir.Div, ir.Maximum, ir.Minimum:
		return result(p.lowerArithmetic(kind, args[0], args[1], element))
	}
	x := p.tileOf(args[0], element)
	switch kind {
	case ir.Neg:
		return result(p.scalar("Muls", x, "-1.0f"))
	case ir.Scale:
		return result(p.scalar("Muls", x, floatLiteral(attrs.Float("factor"))))
	case ir.Exp:
		return result(p.unary("Exp", x))
	case ir.Log:
		return result(p.unary("Ln", x))
	case ir.Sqrt:
		return result(p.unary("Sqrt", x))
	case ir.Abs:
		return result(p.unary("Abs", x))
	case ir.Relu:
		return result(p.unary("Relu", x))
	case ir.Sigmoid:
		return result(p.sigmoid(x))
	case ir.Tanh: // 2 sigmoid(2x) - 1
		t := p.scalar("Muls", p.sigmoid(p.scalar("Muls", x, "2.0f")), "2.0f")
		return result(p.scalar("Adds", t, "-1.0f"))
	case ir.Gelu:
		return result(p.binary("Mul", x, p.geluGate(x)))
	}
	if len(args) < 2 {
		return operand{}, fmt.Errorf("no vector form of `%s`", kind)
	}
	y := p.tileOf(args[1], element)
	switch kind {
	case ir.ReluGrad:
		return result(p.choose(p.compare(y, 0, "0.0f", "GT"), x, 0, "0.0f"))
	case ir.SigmoidGrad: // d y (1 - y)
		t := p.scalar("Adds", p.scalar("Muls", y, "-1.0f"), "1.0f")
		return result(p.binary("Mul", x, p.binary("Mul", t, y)))
	case ir.TanhGrad: // d (1 - y^2)
		t := p.scalar("Muls", p.binary("Mul", y, y), "-1.0f")
		return result(p.binary("Mul", x, p.scalar("Adds", t, "1.0f")))
	case ir.GeluGrad: // d s (1 + x (1 - s) 2 root (1 + 3 cubic x^2))
		s := p.geluGate(y)
		t := p.scalar("Muls", p.binary("Mul", y, y), floatLiteral(6*geluRoot*geluCubic))
		t = p.binary("Mul", p.scalar("Adds", t, floatLiteral(2*geluRoot)), y)
		rest := p.scalar("Adds", p.scalar("Muls", s, "-1.0f"), "1.0f")
		t = p.scalar("Adds", p.binary("Mul", t, rest), "1.0f")
		return result(p.binary("Mul", x, p.binary("Mul", t, s)))
	}
	return operand{}, fmt.Errorf("no vector form of `%s`", kind)
}

// integerOps have an int32_t form.
var integerOps = map[ir.Kind]bool{ir.Add: true, ir.Sub: true, ir.Mul: true, ir.Maximum: true, ir.Minimum: true}

func (p *vectorProgram) lowerArithmetic(kind ir.Kind, a, b operand, element string) register {
	one := "-1.0f"
	if element == "int32_t" {
		one = "static_cast<int32_t>(-1)"
	}
	name := map[ir.Kind]string{ir.Add: "Add", ir.Sub: "Sub", ir.Mul: "Mul", ir.Div: "Div", ir.Maximum: "Max", ir.Minimum: "Min"}[kind]
	if a.tile == 0 && b.tile == 0 {
		a = operand{tile: p.tileOf(a, element)}
	}
	switch {
	case a.tile != 0 && b.tile != 0:
		return p.binary(name, a.tile, b.tile)
	case kind == ir.Div:
		return p.binary(name, p.tileOf(a, element), p.tileOf(b, element))
	case kind == ir.Sub && b.tile == 0:
		return p.scalar("Adds", a.tile, "-("+b.scalar+")")
	case kind == ir.Sub:
		return p.scalar("Adds", p.scalar("Muls", b.tile, one), a.scalar)
	case b.tile == 0:
		return p.scalar(name+"s", a.tile, b.scalar)
	}
	return p.scalar(name+"s", b.tile, a.scalar)
}

func (p *vectorProgram) lowerCompare(kind ir.Kind, args []operand, element string) register {
	a := p.tileOf(args[0], element)
	if element == "int32_t" {
		// Comparison is for floats only. a = b where a - b is 0; a < b where max(a, b) - a is not;
		// a <= b where max(a, b) - b is. Differences that wrap stay right, and none but 0 becomes 0.0.
		b := p.tileOf(args[1], element)
		first, mode := a, "EQ"
		switch kind {
		case ir.Less:
			first, b, mode = p.binary("Max", a, b), a, "NE"
		case ir.LessEqual:
			first = p.binary("Max", a, b)
		}
		difference := p.cast(p.binary("Sub", first, b), "float", "CAST_NONE")
		return p.truth(p.compare(difference, 0, "0.0f", mode))
	}
	mode := map[ir.Kind]string{ir.Equal: "EQ", ir.Less: "LT", ir.LessEqual: "LE"}[kind]
	return p.truth(p.compare(a, args[1].tile, args[1].scalar, mode))
}

func (p *vectorProgram) lowerWhere(args []operand, d ir.DType) (operand, error) {
	element, err := carrier(d)
	if err != nil {
		return operand{}, err
	}
	condition := p.tileOf(args[0], "float")
	yes, no, mode := args[1], args[2], "NE"
	if yes.tile == 0 && no.tile != 0 {
		yes, no, mode = no, yes, "EQ"
	}
	a := p.tileOf(yes, element)
	if no.tile == 0 && element != "float" {
		no = operand{tile: p.tileOf(no, element)}
	}
	return operand{tile: p.choose(p.compare(condition, 0, "0.0f", mode), a, no.tile, no.scalar)}, nil
}

// lowerCast converts between carriers; rounding to a narrow float is the store's work.
func (p *vectorProgram) lowerCast(a operand, from, to ir.DType) (operand, error) {
	source, err := carrier(from)
	if err != nil {
		return operand{}, err
	}
	target, err := carrier(to)
	if err != nil {
		return operand{}, err
	}
	x := p.tileOf(a, source)
	switch {
	case to == ir.Bool && from != ir.Bool:
		if source == "int32_t" {
			x = p.cast(x, "float", "CAST_NONE")
		}
		return operand{tile: p.truth(p.compare(x, 0, "0.0f", "NE"))}, nil
	case source == "float" && target == "int32_t":
		return operand{tile: p.cast(x, "int32_t", "CAST_TRUNC")}, nil
	case source == "int32_t" && target == "float":
		return operand{tile: p.cast(x, "float", "CAST_NONE")}, nil
	case to == ir.U8 && from.IsFloat():
		return operand{tile: p.cast(p.cast(x, "int32_t", "CAST_TRUNC"), "float", "CAST_NONE")}, nil
	}
	return operand{tile: x}, nil
}
