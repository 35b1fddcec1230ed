package ascend

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

var cache string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if cache, err = os.MkdirTemp("", "ascend-test-*"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(cache)
		return m.Run()
	}())
}

func testChip(t *testing.T) chip.Chip {
	t.Helper()
	c, ok := chip.ByName("910b3")
	if !ok {
		t.Fatal("no chip")
	}
	return c
}

// tensor is a test value; elements are kept as float64 whatever the type.
type tensor struct {
	typ  ir.Type
	data []float64
}

func newTensor(d ir.DType, shape ...int) tensor {
	t := ir.Tensor(d, shape...)
	return tensor{t, make([]float64, t.Elems())}
}

// random fills a tensor from a seed: floats in [-4, 4), integers in [-9, 9], bools.
func (t tensor) random(seed uint64) tensor {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range t.data {
		switch t.typ.DType {
		case ir.F32:
			t.data[i] = float64(float32(8*r.Float64() - 4))
		case ir.F16, ir.BF16:
			t.data[i] = float64(r.IntN(65)-32) / 8
		case ir.I32:
			t.data[i] = float64(r.IntN(19) - 9)
		case ir.Bool:
			t.data[i] = float64(r.IntN(2))
		default:
			t.data[i] = float64(r.IntN(200))
		}
	}
	return t
}

// each replaces every element.
func (t tensor) each(f func(v float64) float64) tensor {
	for i := range t.data {
		t.data[i] = f(t.data[i])
	}
	return t
}

func (t tensor) encode(into []byte) {
	for i, v := range t.data {
		switch t.typ.DType {
		case ir.F32:
			binary.LittleEndian.PutUint32(into[4*i:], math.Float32bits(float32(v)))
		case ir.I32:
			binary.LittleEndian.PutUint32(into[4*i:], uint32(int32(v)))
		case ir.F16:
			binary.LittleEndian.PutUint16(into[2*i:], halfBits(v))
		case ir.BF16:
			binary.LittleEndian.PutUint16(into[2*i:], uint16(math.Float32bits(float32(v))>>16))
		default:
			into[i] = byte(v)
		}
	}
}

func (t tensor) decode(from []byte) {
	for i := range t.data {
		switch t.typ.DType {
		case ir.F32:
			t.data[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(from[4*i:])))
		case ir.I32:
			t.data[i] = float64(int32(binary.LittleEndian.Uint32(from[4*i:])))
		case ir.F16:
			t.data[i] = halfValue(binary.LittleEndian.Uint16(from[2*i:]))
		case ir.BF16:
			t.data[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(from[2*i:])) << 16))
		default:
			t.data[i] = float64(from[i])
		}
	}
}

// halfBits encodes values that a half holds exactly; the tests use no others as inputs.
func halfBits(v float64) uint16 {
	if v == 0 {
		return 0
	}
	sign := uint16(0)
	if v < 0 {
		sign, v = 0x8000, -v
	}
	fraction, exponent := math.Frexp(v)
	return sign | uint16(exponent+14)<<10 | uint16(fraction*2048)&0x3ff
}

func halfValue(h uint16) float64 {
	sign := 1.0
	if h&0x8000 != 0 {
		sign = -1
	}
	exponent, mantissa := int(h>>10&31), float64(h&0x3ff)
	if exponent == 0 {
		return sign * math.Ldexp(mantissa, -24)
	}
	return sign * math.Ldexp(1024+mantissa, exponent-25)
}

const kernelsPerFile = 40

// kernelCase runs one kernel: args in parameter order; outputs among them are compared with want.
type kernelCase struct {
	name      string
	kernel    *Kernel
	args      []tensor
	scalars   []emulator.Arg
	want      map[int]tensor // by index in args
	tolerance float64        // relative to max(1, |want|)
}

// runKernels builds the kernels of all cases into one server and runs each case.
func runKernels(t *testing.T, cases []kernelCase) {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("g++ is missing")
		}
		t.Skip("g++ is missing")
	}
	c := testChip(t)
	set := emulator.KernelSet{VectorCores: c.VectorCores, CubeCores: c.CubeCores}
	index := map[string]int{}
	arena := 0
	for _, k := range cases {
		if _, ok := index[k.kernel.Name]; !ok {
			index[k.kernel.Name] = len(set.Kernels)
			if len(set.Kernels)%kernelsPerFile == 0 {
				set.Sources = append(set.Sources, emulator.Source{Name: fmt.Sprintf("bundle%d.cpp", len(set.Sources))})
			}
			set.Kernels = append(set.Kernels, emulator.Kernel{Name: k.kernel.Name, Parameters: k.kernel.Parameters})
			// Many kernels to a file: the headers cost more than the kernels.
			file := &set.Sources[len(set.Sources)-1]
			file.Text = append(file.Text, k.kernel.Source...)
		}
		bytes := 0
		for _, a := range k.args {
			bytes += roundUp(a.typ.Bytes(), 512) + 512
		}
		arena = max(arena, bytes)
	}
	exe, err := emulator.Build(context.Background(), set, cache)
	if err != nil {
		t.Fatal(err)
	}
	server, err := emulator.Start(context.Background(), exe, arena)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			memory := server.Arena()
			for i := range memory {
				memory[i] = 0xff // a NaN where nothing was written
			}
			var args []emulator.Arg
			offsets := make([]int, len(k.args))
			at := 0
			for i, a := range k.args {
				offsets[i] = at
				a.encode(memory[at:])
				args = append(args, emulator.BufferArg(at, a.typ.Bytes()))
				at += roundUp(a.typ.Bytes(), 512) + 512
			}
			before := append([]byte(nil), memory...)
			if err := server.Launch(index[k.kernel.Name], k.kernel.Blocks, append(args, k.scalars...)); err != nil {
				t.Fatalf("%v\n%s", err, k.kernel.Source)
			}
			for i, a := range k.args {
				end := offsets[i] + a.typ.Bytes()
				if want, ok := k.want[i]; ok {
					got := newTensor(a.typ.DType, a.typ.Shape...)
					got.decode(memory[offsets[i]:])
					compare(t, fmt.Sprintf("argument %d", i), got, want, k.tolerance)
				} else if string(memory[offsets[i]:end]) != string(before[offsets[i]:end]) {
					t.Errorf("argument %d is an input and was changed", i)
				}
				for b := end; b < len(memory) && b < roundUp(end, 512)+512; b++ {
					if memory[b] != before[b] {
						t.Fatalf("byte %d after argument %d was changed", b-end, i)
					}
				}
			}
		})
	}
}

func compare(t *testing.T, what string, got, want tensor, tolerance float64) {
	t.Helper()
	if len(got.data) != len(want.data) {
		t.Fatalf("%s has %d elements, want %d", what, len(got.data), len(want.data))
	}
	for i := range want.data {
		g, w := got.data[i], want.data[i]
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		if !(math.Abs(g-w) <= tolerance*max(1, math.Abs(w))) {
			t.Fatalf("%s, element %d of %s: got %v, want %v", what, i, want.typ, g, w)
		}
	}
}

// at is the element of a broadcast operand for the flat index of a result of shape.
func (t tensor) at(flat int, shape []int) float64 {
	index, step := 0, 1
	for axis := len(shape) - 1; axis >= 0; axis-- {
		i := flat % shape[axis]
		flat /= shape[axis]
		own := axis - (len(shape) - len(t.typ.Shape))
		if own < 0 {
			continue
		}
		if t.typ.Shape[own] != 1 {
			index += i * step
		}
		step *= t.typ.Shape[own]
	}
	return t.data[index]
}

func sigmoidOf(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func geluSlope(x float64) float64 {
	s := sigmoidOf(2 * geluRoot * (x + geluCubic*x*x*x))
	return s * (1 + x*(1-s)*2*geluRoot*(1+3*geluCubic*x*x))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// reference computes an element-wise op on one element in float64.
func reference(kind ir.Kind, attrs ir.Attrs, a []float64) float64 {
	switch kind {
	case ir.Identity, ir.BroadcastTo, ir.Cast:
		return a[0]
	case ir.Add, ir.Accumulate:
		return a[0] + a[1]
	case ir.Sub:
		return a[0] - a[1]
	case ir.Mul:
		return a[0] * a[1]
	case ir.Div:
		return a[0] / a[1]
	case ir.Maximum:
		return math.Max(a[0], a[1])
	case ir.Minimum:
		return math.Min(a[0], a[1])
	case ir.Equal:
		return truth(a[0] == a[1])
	case ir.Less:
		return truth(a[0] < a[1])
	case ir.LessEqual:
		return truth(a[0] <= a[1])
	case ir.Where:
		if a[0] != 0 {
			return a[1]
		}
		return a[2]
	case ir.Neg:
		return -a[0]
	case ir.Scale:
		return a[0] * attrs.Float("factor")
	case ir.Exp:
		return math.Exp(a[0])
	case ir.Log:
		return math.Log(a[0])
	case ir.Sqrt:
		return math.Sqrt(a[0])
	case ir.Abs:
		return math.Abs(a[0])
	case ir.Relu:
		return math.Max(a[0], 0)
	case ir.Sigmoid:
		return sigmoidOf(a[0])
	case ir.Tanh:
		return math.Tanh(a[0])
	case ir.Gelu:
		return a[0] * sigmoidOf(2*geluRoot*(a[0]+geluCubic*a[0]*a[0]*a[0]))
	case ir.ReluGrad:
		return a[0] * truth(a[1] > 0)
	case ir.SigmoidGrad:
		return a[0] * a[1] * (1 - a[1])
	case ir.TanhGrad:
		return a[0] * (1 - a[1]*a[1])
	case ir.GeluGrad:
		return a[0] * geluSlope(a[1])
	}
	panic("no reference for " + kind.String())
}
