// Package emulator is the emulator device: one stage of a plan run by its emitted Ascend C kernels, built with g++ on
// the headers of codegen/ascend/emulator. All memory of the stage lies in the arena that the kernels share, laid out as
// the plan says for the target chip.
package emulator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"unsafe"

	ascend "github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
)

// machine is the device of one stage.
type machine struct {
	plan    *plan.Plan
	index   int // of the stage
	stage   *plan.Stage
	layout  *plan.StageMemory
	program *ascend.StageProgram
	print   func(kind ir.Kind, label string, t ir.Type, data []byte)
	poison  bool

	server *ascend.Server
	base   []int // by area: where it starts in the arena; then the scratch
	size   int
	passes map[passKey][]action
	args   []ascend.Arg // of the launch under way
}

type passKey struct {
	program, chunk int
	pass           ir.Pass
}

// action is a launch or an effect with places instead of values.
type action struct {
	kernel, blocks int // kernel -1: an effect
	places         []place
	assign         bool
	op             *ir.Op
	typ            ir.Type // of what an effect shows
}

// place is a range of bytes in the current slot of an area; the area behind the last is the scratch.
type place struct{ area, offset, bytes int }

// largestArena bounds what a plan may ask for.
const largestArena = 1 << 36

// Opener gives the Open of plans for which the code generator made these programs, one per stage.
func Opener(programs []ascend.StageProgram) device.Open {
	return func(ctx context.Context, p *plan.Plan, stage int, opt device.Options) (device.Device, error) {
		if stage < 0 || stage >= len(p.Stages) || len(programs) != len(p.Stages) {
			return nil, fmt.Errorf("emulator device: the kernels are for %d stages, the plan has %d", len(programs), len(p.Stages))
		}
		if p.Shares(plan.ShardStates) {
			return nil, diag.List{diag.Errorf(diag.NotSupported, diag.Range{}, "the emulator has one rank for each stage, and ranks of this program share parameters out").WithRepair("-device cpu")}
		}
		m := &machine{plan: p, index: stage, stage: p.Stages[stage], program: &programs[stage], print: opt.Print, poison: opt.Poison, passes: map[passKey][]action{}}
		for _, memory := range p.Memory {
			if memory.Device == p.Target && stage < len(memory.Stages) {
				m.layout = &memory.Stages[stage]
			}
		}
		if m.layout == nil {
			return nil, fmt.Errorf("emulator device: the plan has no memory layout for the target `%s`", p.Target)
		}
		if err := m.place(); err != nil {
			return nil, err
		}
		if err := m.load(stage); err != nil {
			return nil, err
		}
		if err := m.start(ctx, opt.CacheDir); err != nil {
			return nil, err
		}
		return m, nil
	}
}

// place puts the areas into the arena.
func (m *machine) place() error {
	if len(m.layout.SlotBytes) != len(m.stage.Areas) || len(m.layout.Offsets) != len(m.stage.Areas) {
		return fmt.Errorf("emulator device: the layout has other areas than the stage")
	}
	take := func(bytes int) error {
		m.base = append(m.base, m.size)
		if bytes < 0 || bytes > largestArena-m.size {
			return fmt.Errorf("emulator device: the stage needs more than %d bytes", largestArena)
		}
		m.size += (bytes + arenaAlign - 1) / arenaAlign * arenaAlign
		return nil
	}
	for i, a := range m.stage.Areas {
		if a.Slots < 1 || m.layout.SlotBytes[i] < 0 || m.layout.SlotBytes[i] > largestArena/a.Slots || len(m.layout.Offsets[i]) != len(a.Items) {
			return fmt.Errorf("emulator device: area %d has %d slots of %d bytes", i, a.Slots, m.layout.SlotBytes[i])
		}
		for k, it := range a.Items {
			if at := m.layout.Offsets[i][k]; at < 0 || at > m.layout.SlotBytes[i]-it.Type.Bytes() {
				return fmt.Errorf("emulator device: %s is outside its area", it.Name)
			}
		}
		if err := take(a.Slots * m.layout.SlotBytes[i]); err != nil {
			return err
		}
	}
	return take(m.layout.Scratch)
}

// arenaAlign is what the moves of the chip like best.
const arenaAlign = 512

// start builds and starts the kernels.
func (m *machine) start(ctx context.Context, cache string) error {
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("emulator device: no folder for built kernels: %w", err)
		}
		cache = filepath.Join(user, "ppc", "emulator")
	}
	exe, err := ascend.Build(ctx, m.program.Kernels, cache)
	if err != nil {
		return err
	}
	m.server, err = ascend.Start(ctx, exe, max(m.size, arenaAlign))
	return err
}

// at is the arena's range of a place for a micro-batch.
func (m *machine) at(p place, micro int) (offset, bytes int) {
	offset = m.base[p.area] + p.offset
	if p.area < len(m.stage.Areas) {
		offset += micro % m.stage.Areas[p.area].Slots * m.layout.SlotBytes[p.area]
	}
	return offset, p.bytes
}

func (m *machine) memory(p place, micro int) []byte {
	offset, bytes := m.at(p, micro)
	return m.server.Arena()[offset : offset+bytes : offset+bytes]
}

func (m *machine) refPlace(r plan.Ref) (place, error) {
	if r.Area < 0 || r.Area >= len(m.stage.Areas) || r.Item < 0 || r.Item >= len(m.stage.Areas[r.Area].Items) {
		return place{}, fmt.Errorf("emulator device: the plan refers to item %d of area %d, which is not there", r.Item, r.Area)
	}
	return place{r.Area, m.layout.Offsets[r.Area][r.Item], m.stage.Areas[r.Area].Items[r.Item].Type.Bytes()}, nil
}

// Buffer implements device.Device.
func (m *machine) Buffer(ref plan.Ref, slot int) []byte {
	p, err := m.refPlace(ref)
	if err != nil {
		return nil
	}
	return m.memory(p, slot)
}

// Step implements device.Device. The code generator has no random operations.
func (m *machine) Step(uint32) {}

// Run implements device.Device.
func (m *machine) Run(program, chunk int, pass ir.Pass, lo, hi int) error {
	for micro := lo; micro < hi; micro++ {
		if m.poison {
			fill(m.server.Arena()[m.base[len(m.stage.Areas)]:])
		}
		for _, a := range m.passes[passKey{program, chunk, pass}] {
			if err := m.do(&a, micro); err != nil {
				if a.op.Pos.IsValid() {
					return fmt.Errorf("%s: `%s` of micro-batch %d: %w", a.op.Pos, a.op.Kind, micro, err)
				}
				return fmt.Errorf("`%s` of micro-batch %d: %w", a.op.Kind, micro, err)
			}
		}
		m.end(program, chunk, pass, micro)
	}
	return nil
}

func (m *machine) do(a *action, micro int) error {
	if a.kernel < 0 {
		if m.print != nil {
			m.print(a.op.Kind, a.op.Attrs.Text("label"), a.typ, m.memory(a.places[0], micro))
		}
		return nil
	}
	m.args = m.args[:0]
	for _, p := range a.places {
		m.args = append(m.args, ascend.BufferArg(m.at(p, micro)))
	}
	if a.assign {
		first := int32(0)
		if micro == 0 {
			first = 1
		}
		m.args = append(m.args, ascend.Int32Arg(first))
	}
	return m.server.Launch(a.kernel, a.blocks, m.args)
}

// lastUse is the pass after which the slots of an area are dead.
var lastUse = map[plan.Lifetime]ir.Pass{
	plan.RecvToF: ir.ForwardPass, plan.SavedForI: ir.InputPass, plan.RecvToI: ir.InputPass,
	plan.SavedForW: ir.WeightPass, plan.GradForW: ir.WeightPass,
}

// end fills, in a test, what is dead behind a pass.
func (m *machine) end(program, chunk int, pass ir.Pass, micro int) {
	if !m.poison {
		return
	}
	q := m.plan.Programs[program]
	sent := q.Sent(q.Chunks[chunk].Stage)
	for i, a := range m.stage.Areas {
		if last, ok := lastUse[a.Lifetime]; !ok || last != pass || a.Program != program || a.Chunk != chunk {
			continue
		}
		for k, it := range a.Items {
			if !sent[plan.Ref{Area: i, Item: k}] {
				fill(m.memory(place{i, m.layout.Offsets[i][k], it.Type.Bytes()}, micro))
			}
		}
	}
}

// fill writes what is NaN as float32.
func fill(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

// FoldGradients implements device.Device. The fold is part of the update's kernel.
func (m *machine) FoldGradients() error { return nil }

// Value implements device.Device.
func (m *machine) Value(i int) []float32 {
	b := m.Buffer(m.stage.Params[i].Value, 0)
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// BoundGradients implements device.Device.
func (m *machine) BoundGradients(float32, float32) error {
	return errors.New("the emulator has no kernel that clips or scales gradients")
}

// Squares implements device.Device: it folds for itself.
func (m *machine) Squares(squares []float64) error {
	for i, sp := range m.stage.Params {
		squares[i] = 0
		if len(sp.Accumulators) == 0 || sp.Owner != m.index {
			continue
		}
		sum := make([]float32, sp.Param.Type.Elems())
		for read, ref := range sp.Accumulators {
			values := m.Buffer(ref, 0)
			for k := range sum {
				v := getFloat(values, k)
				if read > 0 {
					v += sum[k]
				}
				sum[k] = v
			}
		}
		for _, v := range sum {
			squares[i] += float64(v) * float64(v)
		}
	}
	return nil
}

// Update implements device.Device.
func (m *machine) Update(program int, pending []device.Pending, scalars [][]float32, _ bool) error {
	for _, w := range pending {
		if err := m.Run(program, w.Chunk, ir.WeightPass, w.Lo, w.Hi); err != nil {
			return err
		}
	}
	for i, sp := range m.stage.Params {
		u := m.program.Updates[i]
		if u.Kernel < 0 || sp.Owner != m.index {
			continue
		}
		refs := append([]plan.Ref{sp.Value}, sp.Accumulators...)
		refs = append(append(append(refs, sp.States...), sp.Value), sp.States...)
		m.args = m.args[:0]
		for _, r := range refs {
			p, err := m.refPlace(r)
			if err != nil {
				return err
			}
			m.args = append(m.args, ascend.BufferArg(m.at(p, 0)))
		}
		for _, v := range scalars[m.plan.Optimizer.GroupOf(sp.Param.Name)] {
			m.args = append(m.args, ascend.Float32Arg(v))
		}
		if err := m.server.Launch(u.Kernel, u.Blocks, m.args); err != nil {
			return fmt.Errorf("the update of %s: %w", sp.Param.Name, err)
		}
	}
	return nil
}

// SetParam implements device.Device.
func (m *machine) SetParam(i int, v []float32) error {
	b := m.Buffer(m.stage.Params[i].Value, 0)
	if len(b) != 4*len(v) {
		return fmt.Errorf("emulator device: %d values for %s", len(v), m.stage.Params[i].Param.Name)
	}
	for k, x := range v {
		binary.LittleEndian.PutUint32(b[4*k:], math.Float32bits(x))
	}
	for k, ref := range m.stage.Params[i].States {
		state := m.Buffer(ref, 0)
		for j := range len(state) / 4 {
			binary.LittleEndian.PutUint32(state[4*j:], math.Float32bits(float32(m.plan.Optimizer.States[k].Init)))
		}
	}
	return nil
}

// Param implements device.Device.
func (m *machine) Param(i int, v []float32) error {
	b := m.Buffer(m.stage.Params[i].Value, 0)
	if len(b) != 4*len(v) {
		return fmt.Errorf("emulator device: %d values for %s", len(v), m.stage.Params[i].Param.Name)
	}
	for k := range v {
		v[k] = getFloat(b, k)
	}
	return nil
}

// Pack implements device.Device. The chip keeps parameters and states row-major.
func (m *machine) Pack(i int, packed, dense []float32) error { return m.copyDense(i, packed, dense) }

// Unpack implements device.Device.
func (m *machine) Unpack(i int, dense, packed []float32) error { return m.copyDense(i, dense, packed) }

func (m *machine) copyDense(i int, to, from []float32) error {
	if n := m.stage.Params[i].Param.Type.Elems(); len(to) != n || len(from) != n {
		return fmt.Errorf("emulator device: %d and %d values for %s", len(to), len(from), m.stage.Params[i].Param.Name)
	}
	copy(to, from)
	return nil
}

func getFloat(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

// Bytes implements device.Device.
func (m *machine) Bytes() []int {
	out := make([]int, len(plan.Classes))
	add := func(class plan.Class, bytes int) {
		for k, c := range plan.Classes {
			if c == class {
				out[k] += bytes
			}
		}
	}
	for i, a := range m.stage.Areas {
		add(a.Class, a.Slots*m.layout.SlotBytes[i])
	}
	add(plan.Scratch, m.layout.Scratch)
	add(plan.Private, m.layout.Private)
	return out
}

// Close implements device.Device.
func (m *machine) Close() error {
	if m.server == nil {
		return nil
	}
	server := m.server
	m.server = nil
	return server.Close()
}
