// Package cpu is the cpu device: one stage of a plan on one core, in float32, int32 and bool.
//
// Open lays out memory as the plan says and flattens every pass of every chunk to a list of steps, calls included; a
// step is a function value over places that were checked against their areas. Matrices that the plan marks as right
// sides of products are kept packed (see package kernel) for good. Nothing is allocated after Open.
//
// Results depend on the operations, their shapes and the kernel path alone: fusing steps, packing operands, running
// several micro-batches in one pass and updating parameters behind their last accumulation do not change a bit.
package cpu

import (
	"context"
	"fmt"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

var _ device.Open = Open

// machine is the device of one stage.
type machine struct {
	memory
	plan     *plan.Plan
	index    int // of the stage
	stage    *plan.Stage
	layout   *plan.StageMemory
	arenas   []arena // by area; then the scratch and the workspace
	pooled   []int   // areas with more than one slot
	programs []program
	params   []parameter
	update   optimizer
	segments []kernel.Segment // of one weight pass, as long as there are micro-batches
	poison   bool
	trace    func(*device.Record)
	// Of ranks that share gradients or values out: where a whole one is made, and how they meet.
	whole           []float32
	scatter, gather func([]float32) error
}

// program is what the stage does for one of the plan's programs.
type program struct {
	chunks []*code // by chunk; nil on other stages
	// sums has, by parameter and accumulator, what writes it; it is nil for evaluations.
	sums [][]*accumulation
}

// code is a chunk's passes.
type code struct {
	steps  [2][]instruction // forward and input gradient
	sums   []accumulation   // weight gradient
	passes [3]bool
	ends   [3][]place // items that die with the pass, in the slot of the micro-batch
}

// instruction is a step and what it belongs to.
type instruction struct {
	run     step
	op      *ir.Op
	gathers []gathering // values that the step reads
}

// Open makes the device of a stage. Plans with places outside their areas, and operations on types that the device does
// not have, are errors.
func Open(ctx context.Context, p *plan.Plan, stage int, opt device.Options) (device.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	path, err := kernel.Select(opt.Path)
	if err != nil {
		return nil, err
	}
	m, err := newMachine(p, stage, path, opt)
	if err != nil {
		return nil, err
	}
	if err := m.load(opt.Trace == nil); err != nil {
		return nil, err
	}
	return m, nil
}

// newMachine allocates the memory of a stage.
func newMachine(p *plan.Plan, stage int, path *kernel.Path, opt device.Options) (*machine, error) {
	if stage < 0 || stage >= len(p.Stages) || len(p.Memory) == 0 || stage >= len(p.Memory[0].Stages) {
		return nil, fmt.Errorf("cpu device: the plan has no stage %d", stage)
	}
	m := &machine{plan: p, index: stage, stage: p.Stages[stage], layout: &p.Memory[0].Stages[stage], poison: opt.Poison, trace: opt.Trace, scatter: opt.Scatter, gather: opt.Gather}
	m.path, m.print, m.seed, m.replica = path, opt.Print, opt.Seed, opt.Replica
	if len(m.layout.SlotBytes) != len(m.stage.Areas) || len(m.layout.Offsets) != len(m.stage.Areas) {
		return nil, fmt.Errorf("cpu device: the layout of stage %d has other areas than the stage", stage)
	}
	for i, a := range m.stage.Areas {
		if err := checkArea(&a, m.layout.SlotBytes[i], m.layout.Offsets[i]); err != nil {
			return nil, err
		}
		if a.Slots > 1 {
			m.pooled = append(m.pooled, i)
		}
		m.arenas = append(m.arenas, arena{a.Class, a.Slots, m.layout.SlotBytes[i], allocate(a.Slots * m.layout.SlotBytes[i])})
	}
	for _, x := range []struct {
		class plan.Class
		bytes int
	}{{plan.Scratch, m.layout.Scratch}, {plan.Private, m.layout.Private}} {
		if x.bytes < 0 || x.bytes > largestArena {
			return nil, fmt.Errorf("cpu device: %s of %d bytes", x.class, x.bytes)
		}
		m.arenas = append(m.arenas, arena{x.class, 1, x.bytes, allocate(x.bytes)})
	}
	for i := range m.arenas {
		m.base = append(m.base, m.arenas[i].slot(0))
	}
	for _, q := range p.Programs {
		if n := max(q.MicroBatches, 1); n > len(m.segments) {
			m.segments = make([]kernel.Segment, n)
		}
	}
	return m, nil
}

func checkArea(a *plan.Area, slotBytes int, offsets []int) error {
	if len(offsets) != len(a.Items) || a.Slots < 1 || slotBytes < 0 || slotBytes > largestArena/a.Slots {
		return fmt.Errorf("cpu device: an area of %s has %d slots of %d bytes", a.Class, a.Slots, slotBytes)
	}
	for i, it := range a.Items {
		if !supported(it.Type.DType) {
			return fmt.Errorf("cpu device: %s is %s; elements are f32, i32 or bool", it.Name, it.Type)
		}
		if offsets[i]%alignment != 0 {
			return fmt.Errorf("cpu device: %s is not aligned", it.Name)
		}
		if it.Form != plan.Rows && (it.Type.Rank() != 2 || it.Type.DType != ir.F32) {
			return fmt.Errorf("cpu device: %s, %s, cannot be packed", it.Name, it.Type)
		}
		if err := within(place{0, offsets[i], plan.CPU.ItemBytes(it)}, slotBytes, it.Name); err != nil {
			return err
		}
	}
	return nil
}

// scratch and workspace are the areas behind those of the stage.
func (m *machine) scratch() int   { return len(m.stage.Areas) }
func (m *machine) workspace() int { return len(m.stage.Areas) + 1 }

// Buffer implements device.Device.
func (m *machine) Buffer(ref plan.Ref, slot int) []byte {
	a := &m.arenas[ref.Area]
	at := m.layout.Offsets[ref.Area][ref.Item]
	n := plan.CPU.ItemBytes(m.stage.Areas[ref.Area].Items[ref.Item])
	return a.slot(slot)[at : at+n : at+n]
}

// Run implements device.Device.
func (m *machine) Run(program, chunk int, pass ir.Pass, lo, hi int) error {
	c, err := m.code(program, chunk, lo, hi)
	if err != nil {
		return err
	}
	if !c.passes[pass] {
		return nil
	}
	if pass == ir.WeightPass {
		if m.trace != nil && program == 0 {
			if err := m.traceSums(c, lo, hi); err != nil {
				return err
			}
		} else {
			for i := range c.sums {
				if err := m.sum(&c.sums[i], lo, hi); err != nil {
					return err
				}
			}
		}
	} else {
		for micro := lo; micro < hi; micro++ {
			if err := m.steps(c.steps[pass], micro); err != nil {
				return err
			}
		}
	}
	m.end(c, pass, lo, hi)
	return nil
}

// Step implements device.Device.
func (m *machine) Step(n uint32) { m.stepNumber = n }

func (m *machine) code(program, chunk, lo, hi int) (*code, error) {
	if program < 0 || program >= len(m.programs) || chunk < 0 || chunk >= len(m.programs[program].chunks) {
		return nil, fmt.Errorf("cpu device: there is no chunk %d of program %d", chunk, program)
	}
	c := m.programs[program].chunks[chunk]
	if c == nil {
		return nil, fmt.Errorf("cpu device: chunk %d of program %d is on another stage", chunk, program)
	}
	if lo < 0 || lo >= hi || hi > m.plan.Programs[program].MicroBatches {
		return nil, fmt.Errorf("cpu device: micro-batches %d to %d of program %d", lo, hi-1, program)
	}
	return c, nil
}

// steps runs one micro-batch.
func (m *machine) steps(list []instruction, micro int) error {
	m.micro = uint32(micro)
	for _, a := range m.pooled {
		m.base[a] = m.arenas[a].slot(micro)
	}
	if m.poison {
		fill(m.base[m.scratch()])
		fill(bytesOf(m.whole))
	}
	for i := range list {
		for _, g := range list[i].gathers {
			if err := m.gatherValue(g); err != nil {
				return err
			}
		}
		if err := list[i].run(&m.memory); err != nil {
			return stepError(list[i].op, micro, err)
		}
	}
	return nil
}

func stepError(op *ir.Op, micro int, err error) error {
	if op.Pos.Line > 0 {
		return fmt.Errorf("%s:%d:%d: `%s` of micro-batch %d: %w", op.Pos.File, op.Pos.Line, op.Pos.Col, op.Kind, micro, err)
	}
	return fmt.Errorf("`%s` of micro-batch %d: %w", op.Kind, micro, err)
}

// end fills, in a test, what is dead behind a pass.
func (m *machine) end(c *code, pass ir.Pass, lo, hi int) {
	if !m.poison {
		return
	}
	for _, p := range c.ends[pass] {
		for micro := lo; micro < hi; micro++ {
			fill(m.arenas[p.area].slot(micro)[p.offset:][:p.bytes])
		}
	}
}

// fill writes what is NaN as float32, -1 as int32 and no bool.
func fill(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

// Bytes implements device.Device.
func (m *machine) Bytes() []int {
	out := make([]int, len(plan.Classes))
	for i := range m.arenas {
		for k, c := range plan.Classes {
			if c == m.arenas[i].class {
				out[k] += len(m.arenas[i].data)
			}
		}
	}
	return out
}

// Close implements device.Device.
func (m *machine) Close() error { return nil }
