package ascend

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
)

// Kernel is one emitted entry function. Its parameters are buffers first, then
// scalars by value.
type Kernel struct {
	Name       string
	Source     []byte
	Parameters []emulator.ParameterKind
	Blocks     int // how many blocks a launch has
}

// kernelText is a kernel whose name is not known yet: the name is made from the text.
type kernelText struct {
	stem       string // readable part of the name
	title      string // comment on top
	includes   string
	parameters []parameter
	body       string
	blocks     int
	cube       bool
}

type parameter struct {
	kind emulator.ParameterKind
	name string
}

// finish names the kernel: the stem and a hash of everything else, so that equal
// kernels have one name and different ones never share one.
func (k kernelText) finish() *Kernel {
	var list []string
	var kinds []emulator.ParameterKind
	for _, p := range k.parameters {
		kinds = append(kinds, p.kind)
		switch p.kind {
		case emulator.Float32:
			list = append(list, "float "+p.name)
		case emulator.Int32:
			list = append(list, "int32_t "+p.name)
		default:
			list = append(list, "GM_ADDR "+p.name)
		}
	}
	core := "KERNEL_TYPE_AIV_ONLY"
	if k.cube {
		core = "KERNEL_TYPE_AIC_ONLY"
	}
	rest := fmt.Sprintf("(%s)\n{\n    KERNEL_TASK_TYPE_DEFAULT(%s);\n%s}\n", strings.Join(list, ", "), core, k.body)
	sum := sha256.Sum256([]byte(k.includes + rest))
	name := k.stem + "_" + hex.EncodeToString(sum[:8])
	source := fmt.Sprintf("// %s. Blocks: %d.\n%s\nusing namespace AscendC;\n\nextern \"C\" __global__ __aicore__ void %s%s",
		k.title, k.blocks, k.includes, name, rest)
	return &Kernel{Name: name, Source: []byte(source), Parameters: kinds, Blocks: k.blocks}
}

const vectorIncludes = "#include \"kernel_operator.h\"\n"

// code collects lines of C++ with their indentation.
type code struct {
	text  strings.Builder
	depth int
}

func newCode() *code { return &code{depth: 1} }

func (c *code) line(format string, args ...any) {
	c.text.WriteString(strings.Repeat("    ", c.depth))
	fmt.Fprintf(&c.text, format, args...)
	c.text.WriteByte('\n')
}

// open starts a block under a head, close ends it.
func (c *code) open(format string, args ...any) {
	if format != "" {
		format += " "
	}
	c.line(format+"{", args...)
	c.depth++
}

func (c *code) close() {
	c.depth--
	c.line("}")
}

// global declares a GlobalTensor over a parameter.
func (c *code) global(name, element, parameter string, elements int) {
	c.line("GlobalTensor<%s> %s;", element, name)
	c.line("%s.SetGlobalBuffer(reinterpret_cast<__gm__ %s*>(%s), %d);", name, element, parameter, elements)
}

// wait makes one pipe wait for what another has done so far.
func (c *code) wait(event string) {
	c.open("")
	c.line("const event_t id = static_cast<event_t>(pipe.FetchEventID(HardEvent::%s));", event)
	c.line("SetFlag<HardEvent::%s>(id);", event)
	c.line("WaitFlag<HardEvent::%s>(id);", event)
	c.close()
}

// elementType is the C++ type of a tensor's elements in global memory.
func elementType(d ir.DType) (string, error) {
	switch d {
	case ir.F32:
		return "float", nil
	case ir.F16:
		return "half", nil
	case ir.BF16:
		return "bfloat16_t", nil
	case ir.I32:
		return "int32_t", nil
	case ir.U8, ir.Bool:
		return "uint8_t", nil
	}
	return "", fmt.Errorf("the chip's vector cores have no arithmetic for %s; use f32 or i32", d)
}

func elementSize(element string) int {
	switch element {
	case "float", "int32_t", "uint32_t":
		return 4
	case "half", "bfloat16_t", "uint16_t":
		return 2
	}
	return 1
}

// shapeName is a shape as part of an identifier.
func shapeName(shape []int) string {
	if len(shape) == 0 {
		return "scalar"
	}
	parts := make([]string, len(shape))
	for i, n := range shape {
		parts[i] = fmt.Sprint(n)
	}
	return strings.Join(parts, "x")
}

// floatLiteral is the C++ literal of a float.
func floatLiteral(v float64) string {
	s := fmt.Sprintf("%.9g", float32(v))
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s + "f"
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

func roundUp(n, unit int) int { return ceilDiv(n, unit) * unit }

// blockBytes of traffic make a block worth its start.
const blockBytes = 16 << 10

// vectorBlocks is the number of blocks for a kernel that moves bytes and can be cut into items.
func vectorBlocks(c chip.Chip, bytes, items int) int {
	return max(1, min(ceilDiv(bytes, blockBytes), items, c.VectorCores))
}
