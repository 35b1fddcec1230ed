// Package ascend generates Ascend C from a plan: vector kernels of fused
// element-wise ops and reductions, cube kernels of matrix products, a host
// program per stage, and build files. Everything is text in memory, the same
// bytes for the same plan.
//
// Generate goes over the functions of each stage. A function becomes a list of
// steps (function.go); a step launches a kernel, whose emitter knows shapes,
// types and the chip and computes the tiling: elementwise.go for fused ops
// (lowered in lower.go to the calls of program.go), matmul.go, reduce.go and
// loss.go, copy.go. Kernels are specialised for their shapes and have no
// tiling arguments; equal ones are emitted once.
package ascend

import (
	"fmt"
	"sort"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Output is the generated code: files sorted by path, and per stage the
// program that the files run.
type Output struct {
	Files  []plan.File
	Stages []emulator.StageProgram
}

// Costs is the planner's table of a chip.
func Costs(c chip.Chip) *plan.Costs {
	return &plan.Costs{
		Device: c.Name, MatrixFlops: c.CubeFlops32, VectorFlops: c.VectorFlops32, Bandwidth: c.MemoryBandwidth,
		Launch: launchSeconds, Link: c.NodeBandwidth, Latency: messageSeconds, Align: bufferAlign, MemoryBytes: c.MemoryBytes,
	}
}

const (
	launchSeconds  = 5e-6  // of a kernel on an idle stream
	messageSeconds = 10e-6 // of an empty message inside a node
	bufferAlign    = 512   // moves from other addresses lose bandwidth
)

// Generate emits the code for the chip that the plan is for. Errors that a
// user can mend are diagnostics with the position of the operation.
func Generate(p *plan.Plan) (*Output, error) {
	c, ok := chip.ByName(p.Target)
	if !ok {
		return nil, diag.Errorf(diag.BadTarget, diag.Range{}, "there is no code generator for the target `%s`", p.Target)
	}
	var memory *plan.Memory
	for _, m := range p.Memory {
		if m.Device == p.Target {
			memory = m
		}
	}
	if memory == nil {
		return nil, fmt.Errorf("the plan has no memory layout for %s", p.Target)
	}
	if errs := supported(p); errs.HasErrors() {
		return nil, errs
	}
	out := &Output{}
	updates := map[updateKey]*Kernel{}
	for stage := range p.Stages {
		s := &stageEmitter{plan: p, stage: stage, chip: c, memory: &memory.Stages[stage], index: map[string]int{}, updates: updates}
		if err := s.emit(); err != nil {
			return nil, err
		}
		out.Stages = append(out.Stages, s.program)
		files, err := s.files()
		if err != nil {
			return nil, err
		}
		out.Files = append(out.Files, files...)
	}
	out.Files = append(out.Files, buildFiles(p, c)...)
	sort.Slice(out.Files, func(i, j int) bool { return out.Files[i].Path < out.Files[j].Path })
	return out, nil
}

// stageEmitter collects the kernels and functions of a stage.
type stageEmitter struct {
	plan    *plan.Plan
	stage   int
	chip    chip.Chip
	memory  *plan.StageMemory
	index   map[string]int // of kernels by name
	program emulator.StageProgram
	funcs   []*ir.Func
	// updates has the optimizer's kernels of all stages: many parameters are alike.
	updates map[updateKey]*Kernel
}

type updateKey struct {
	dtype           ir.DType
	elements, reads int
}

// kernel adds a kernel unless the stage has it and returns its index.
func (s *stageEmitter) kernel(k *Kernel) int {
	if i, ok := s.index[k.Name]; ok {
		return i
	}
	i := len(s.program.Kernels.Kernels)
	s.index[k.Name] = i
	s.program.Kernels.Sources = append(s.program.Kernels.Sources, emulator.Source{Name: k.Name + ".cpp", Text: k.Source})
	s.program.Kernels.Kernels = append(s.program.Kernels.Kernels, emulator.Kernel{Name: k.Name, Parameters: k.Parameters})
	return i
}

// emit goes over the functions of the stage, callees first, and the optimizer.
func (s *stageEmitter) emit() error {
	s.program.Kernels.VectorCores, s.program.Kernels.CubeCores = s.chip.VectorCores, s.chip.CubeCores
	for i := range s.memory.Frames {
		frame := &s.memory.Frames[i]
		f, err := s.function(frame.Func, frame)
		if err != nil {
			return err
		}
		s.funcs = append(s.funcs, frame.Func)
		s.program.Functions = append(s.program.Functions, f)
	}
	for _, param := range s.plan.Stages[s.stage].Params {
		u := emulator.Update{Kernel: -1}
		if s.plan.Optimizer != nil && len(param.Accumulators) > 0 {
			k, err := s.update(param.Param.Type, len(param.Accumulators))
			if err != nil {
				return diag.Errorf(diag.NotSupported, diag.At(param.Param.Pos), "the update of %s: %v", param.Param.Name, err)
			}
			u = emulator.Update{Kernel: s.kernel(k), Blocks: k.Blocks}
		}
		s.program.Updates = append(s.program.Updates, u)
	}
	return nil
}

func (s *stageEmitter) update(t ir.Type, reads int) (*Kernel, error) {
	key := updateKey{t.DType, t.Elems(), reads}
	if k := s.updates[key]; k != nil {
		return k, nil
	}
	k, err := emitUpdate(s.chip, s.plan.Optimizer, t, reads)
	if err == nil {
		s.updates[key] = k
	}
	return k, err
}

// emitUpdate emits the optimizer as one kernel over all elements of a
// parameter. Its operands are those of emulator.StageProgram.Updates; the
// gradient is the sum of the accumulators in program order.
func emitUpdate(c chip.Chip, o *plan.Optimizer, t ir.Type, reads int) (*Kernel, error) {
	flat := ir.Tensor(t.DType, t.Elems())
	f := fusion{shape: flat.Shape}
	for range 1 + reads + len(o.States) {
		f.inputs = append(f.inputs, fusionInput{typ: flat})
	}
	for _, s := range o.Scalars {
		f.inputs = append(f.inputs, fusionInput{typ: ir.Tensor(t.DType), byValue: s.Name + "Value"})
	}
	add := func(kind ir.Kind, attrs ir.Attrs, args ...int) int {
		f.nodes = append(f.nodes, fusionNode{kind: kind, attrs: attrs, args: args, out: flat})
		return len(f.nodes) - 1
	}
	gradient := -2
	for read := 1; read < reads; read++ {
		gradient = add(ir.Add, nil, gradient, -2-read)
	}
	values := make([]int, o.Func.NumValues())
	for i, a := range o.Func.Args {
		switch {
		case i == 0:
			values[a] = -1
		case i == 1:
			values[a] = gradient
		default:
			values[a] = -1 - reads - (i - 1)
		}
	}
	for _, op := range o.Func.Ops {
		if op.Kind == ir.Constant {
			f.inputs = append(f.inputs, fusionInput{typ: ir.Tensor(t.DType), immediate: true, value: op.Attrs.Float("value")})
			values[op.Results[0]] = -len(f.inputs)
			continue
		}
		if !op.Kind.Info().Elementwise {
			return nil, fmt.Errorf("`%s` is not element-wise", op.Kind)
		}
		args := make([]int, len(op.Args))
		for i, a := range op.Args {
			args[i] = values[a]
		}
		values[op.Results[0]] = add(op.Kind, op.Attrs, args...)
	}
	taken := map[int]bool{}
	for _, r := range o.Func.Results {
		v := values[r]
		if v < 0 || taken[v] {
			v = add(ir.Identity, nil, v)
		}
		taken[v] = true
		f.outputs = append(f.outputs, v)
	}
	return emitFusion(c, f, o.Name+"_"+shapeName(flat.Shape))
}
