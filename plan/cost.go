package plan

import "github.com/ppc-lang/ppc/ir"

// Costs is the cost table of a device: what the planner and the simulator know about it.
type Costs struct {
	Device      string
	MatrixFlops float64 // per second, matrix products
	VectorFlops float64 // per second, everything else
	Bandwidth   float64 // bytes per second to memory
	Launch      float64 // seconds per operation
	Link        float64 // bytes per second between stages, one direction
	Latency     float64 // seconds per message
	Align       int     // bytes; of every buffer
	// PackMatrices: matrices that are only the right side of products are kept in panels of 32 columns.
	PackMatrices bool
	MemoryBytes  int // of one device; 0: not limited here
}

// CPU is the table of the cpu device: one core with AVX-512, measured on the kernels of runtime/device/cpu.
var CPU = Costs{
	Device: "cpu", MatrixFlops: 100e9, VectorFlops: 5e9, Bandwidth: 20e9, Launch: 100e-9,
	Link: 10e9, Latency: 2e-6, Align: 64, PackMatrices: true,
}

// PanelColumns is the width of the panels of packed matrices.
const PanelColumns = 32

// ItemBytes is the size of an item on the device, without alignment.
func (c *Costs) ItemBytes(it Item) int {
	if c.PackMatrices && it.Form != Rows {
		k, n := it.Type.Shape[0], it.Type.Shape[1]
		if it.Form == NK {
			k, n = n, k
		}
		return (n + PanelColumns - 1) / PanelColumns * PanelColumns * k * it.Type.DType.Size()
	}
	return it.Type.Bytes()
}

// Aligned rounds a size up to the device's alignment.
func (c *Costs) Aligned(bytes int) int { return (bytes + c.Align - 1) / c.Align * c.Align }

// Op is the time of one operation in seconds: the larger of computing and moving, and the launch. Views are free.
func (c *Costs) Op(k ir.Kind, in, out []ir.Type, attrs ir.Attrs) float64 {
	if k.Info().View || k == ir.Constant {
		return 0
	}
	rate := c.VectorFlops
	if k == ir.MatMul || k == ir.MatMulAccumulate {
		rate = c.MatrixFlops
	}
	return max(k.Flops(in, out, attrs)/rate, float64(k.Bytes(in, out))/c.Bandwidth) + c.Launch
}

// BlockElements is how many elements of a parameter the cpu device updates at a time: 8 KB of each operand.
const BlockElements = 2048

// Workspace is what an operation needs on the device beside operands and results, in bytes. On the cpu a product whose
// right side is not packed (a parameter kept so) packs it first, in the orientation of a forward or of a gradient product;
// a sum of products on an accumulator that is not packed goes through a block.
func (c *Costs) Workspace(k ir.Kind, in []ir.Type, attrs ir.Attrs, packed bool) int {
	switch {
	case !c.PackMatrices:
		return 0
	case k == ir.MatMulAccumulate && !packed:
		return BlockElements * 4
	case k != ir.MatMul:
		return 0
	}
	bytes := 0
	if !packed {
		b := in[1].Shape
		kk, n := b[len(b)-2], b[len(b)-1]
		panels := func(n int) int { return (n + PanelColumns - 1) / PanelColumns * PanelColumns }
		bytes = max(panels(n)*kk, panels(kk)*n) * 4
	}
	if attrs.Bool("transpose_a") {
		a := in[0].Shape
		bytes += a[len(a)-1] * a[len(a)-2] * 4
	}
	return c.Aligned(bytes)
}

// OptimizerWorkspace is what the update of a block of a parameter needs: every intermediate value of the update function,
// and its results.
func (c *Costs) OptimizerWorkspace(f *ir.Func) int {
	if !c.PackMatrices {
		return 0
	}
	return (len(f.Ops) + len(f.Results)) * BlockElements * 4
}
