// Package device is what the executor asks of the hardware of one rank: memory laid out by the plan, phases to run,
// an optimizer step. It has one package per device below it.
package device

import (
	"context"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Device holds one stage of a plan. Its methods are called from one goroutine, except Buffer, whose memory the peer's
// rank writes while no action that uses it runs.
type Device interface {
	// Buffer is the memory of an item in a slot, row-major, little endian. Items of class Parameters and Gradients are in the
	// device's own form, the same on every rank of that kind of device.
	Buffer(ref plan.Ref, slot int) []byte
	// Step tells the number of the training step that begins, from 0: random numbers depend on it.
	Step(n uint32)
	// Run executes one pass of a chunk for the micro-batches lo..hi-1. Only WeightPass is given more than one. A pass
	// without function does nothing.
	Run(program, chunk int, pass ir.Pass, lo, hi int) error
	// FoldGradients adds up the accumulators of every parameter (one per read, in program order) in the first.
	FoldGradients() error
	// Squares gives the sum of squares of each trained parameter's gradient, by Stage.Params. It follows FoldGradients.
	Squares(squares []float64) error
	// BoundGradients multiplies every gradient by a factor, then bounds its elements to -limit..limit if that is above 0. It
	// follows FoldGradients.
	BoundGradients(factor, limit float32) error
	// Update runs the optimizer on all parameters of the stage. Pending weight passes run first, in the order given; a
	// device may run each parameter's update right behind its last accumulation. scalars are those of the step, as
	// plan.Optimizer.At gives them. folded says that FoldGradients ran.
	Update(program int, pending []Pending, scalars [][]float32, folded bool) error
	// SetParam and Param copy a parameter (index into Stage.Params) from and to dense row-major form. Param gathers one of which
	// ranks have parts: all of the group call it.
	SetParam(i int, v []float32) error
	Param(i int, v []float32) error
	// Value is the memory of a parameter (index into Stage.Params) as f32 elements in the device's form: all of it, or this
	// rank's part where values are shared out.
	Value(i int) []float32
	// Pack and Unpack copy between dense row-major form and that of parameter i, which its optimizer states share: packed has
	// as many elements as the whole value. Pack leaves elements that only fill up the form as they are.
	Pack(i int, packed, dense []float32) error
	Unpack(i int, dense, packed []float32) error
	// Bytes is what the device has allocated, counted by itself, by class as in plan.Classes.
	Bytes() []int
	Close() error
}

// Pending is a weight pass that has not run yet: micro-batches Lo..Hi-1 of a chunk.
type Pending struct{ Chunk, Lo, Hi int }

// Options for opening a device.
type Options struct {
	// Path selects the kernels of the cpu device: generic, avx2, avx512; "" is the best of the machine.
	Path string
	// Seed of random operations.
	Seed uint32
	// Replica is the place of the rank among those of its stage: which part of the rows of a micro-batch it has.
	Replica int
	// Poison makes the device fill buffers with NaN at the end of their planned life (tests).
	Poison bool
	// Scatter sums the part of a gradient that this rank has over its group; Gather fills in the parts of a value that the others
	// have. The device calls them within passes, and all ranks of a group in the same order; a plan in which ranks share out
	// gradients or values needs them.
	Scatter, Gather func(whole []float32) error
	// Print receives what print, summary and tensor_dump operations show. data is valid during the call.
	Print func(kind ir.Kind, label string, t ir.Type, data []byte)
	// CacheDir keeps builds of the emulator.
	CacheDir string
	// Trace, if set, makes the cpu device run the operations of the plan's first program one by one and tell what each gave.
	// Ranks call it at the same time.
	Trace func(*Record)
}

// Record is what an operation gave, or, where Op is nil, the summed gradient or the new value of a parameter at the end
// of a step.
type Record struct {
	Stage, Step int
	Micro       int // -1 at the end of a step
	Op          *ir.Op
	Path        string    // of the cell the operation was written in; see ir.Func.Path
	Param       *ir.Param // at the end of a step
	Updated     bool      // the value of Param, not its gradient
	Type        ir.Type
	Data        []byte // row-major, little endian; valid during the call. Of a gradient that is shared out, that of the micro-batch
}

// Open makes the device of a stage.
type Open func(ctx context.Context, p *plan.Plan, stage int, opt Options) (Device, error)
