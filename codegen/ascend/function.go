package ascend

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// functionEmitter turns a function into steps. Element-wise ops that follow
// each other in program order over one shape become one kernel; views become
// nothing; everything else has a kernel of its own.
type functionEmitter struct {
	stage    *stageEmitter
	f        *ir.Func
	frame    *plan.Frame // places of the inner values; nil where memory is not planned
	root     []ir.ValueID
	uses     [][]ir.Use
	results  []bool
	constant []*ir.Op // by value: the constant it is or is a view of
	steps    []emulator.Step

	group *group
}

// group is the fusion under construction.
type group struct {
	fusion
	node   map[ir.ValueID]int // of the values computed in the group
	input  map[ir.ValueID]int // of the tensors and constants read
	values []ir.ValueID       // tensors read, in the order of the kernel's parameters
	member []ir.ValueID       // results of the nodes
	ops    map[*ir.Op]bool
	place  int // of the last op
	narrow bool
}

// maxFusedOps bounds the registers of a kernel.
const maxFusedOps = 24

func (s *stageEmitter) function(f *ir.Func, frame *plan.Frame) (emulator.Function, error) {
	e := &functionEmitter{stage: s, f: f, frame: frame, root: f.Roots(), uses: f.Uses(),
		results: make([]bool, f.NumValues()), constant: make([]*ir.Op, f.NumValues())}
	for _, r := range f.Results {
		e.results[r] = true
	}
	for place, op := range f.Ops {
		if err := e.op(place, op); err != nil {
			return emulator.Function{}, diag.Errorf(diag.NotSupported, diag.At(op.Pos), "%s: %v", op.Kind, err)
		}
	}
	if err := e.flush(); err != nil {
		return emulator.Function{}, err
	}
	return emulator.Function{Name: f.Name, Steps: e.steps}, nil
}

func (e *functionEmitter) op(place int, op *ir.Op) error {
	info := op.Kind.Info()
	switch {
	case op.Kind == ir.Constant:
		e.constant[op.Results[0]] = op
		if !e.needsMemory(op.Results[0]) {
			return nil
		}
	case info.View:
		e.constant[op.Results[0]] = e.constant[op.Args[0]]
		return nil
	case info.Elementwise || op.Kind == ir.BroadcastTo:
		return e.fuse(place, op)
	}
	if err := e.flush(); err != nil {
		return err
	}
	if op.Callee != nil || info.Effect {
		e.steps = append(e.steps, emulator.Step{Kernel: -1, Op: place})
		return nil
	}
	return e.single(place, op)
}

// needsMemory reports whether a constant is read by anything but fused ops,
// which have it as an immediate value.
func (e *functionEmitter) needsMemory(v ir.ValueID) bool {
	if e.results[v] {
		return true
	}
	for _, use := range e.uses[v] {
		info := use.Op.Kind.Info()
		switch {
		case info.Elementwise || use.Op.Kind == ir.BroadcastTo:
		case info.View:
			if e.needsMemory(use.Op.Results[0]) {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// fusable types are computed in the form they are stored in, so that fusing changes no bits.
func fusable(d ir.DType) bool { return d == ir.F32 || d == ir.I32 || d == ir.Bool }

func (e *functionEmitter) fuse(place int, op *ir.Op) error {
	result := op.Results[0]
	typ := e.f.TypeOf(result)
	narrow := !fusable(typ.DType)
	for _, a := range op.Args {
		narrow = narrow || !fusable(e.f.TypeOf(a).DType)
	}
	if g := e.group; g != nil && (narrow || g.narrow || !slices.Equal(g.shape, typ.Shape) || !e.joins(op)) {
		if err := e.flush(); err != nil {
			return err
		}
	}
	if e.group == nil {
		e.group = &group{fusion: fusion{shape: typ.Shape}, node: map[ir.ValueID]int{}, input: map[ir.ValueID]int{}, ops: map[*ir.Op]bool{}, narrow: narrow}
	}
	g := e.group
	node := fusionNode{kind: op.Kind, attrs: op.Attrs, out: typ}
	for _, a := range op.Args {
		if n, ok := g.node[a]; ok {
			node.args = append(node.args, n)
			continue
		}
		i, ok := g.input[a]
		if !ok {
			i = len(g.inputs)
			g.input[a] = i
			in := fusionInput{typ: e.f.TypeOf(a)}
			if c := e.constant[a]; c != nil {
				in.immediate, in.value = true, c.Attrs.Float("value")
			} else {
				g.values = append(g.values, a)
			}
			g.inputs = append(g.inputs, in)
		}
		node.args = append(node.args, -1-i)
	}
	g.node[result] = len(g.nodes)
	g.nodes = append(g.nodes, node)
	g.member = append(g.member, result)
	g.ops[op] = true
	g.place = place
	return nil
}

// joins reports whether op may become part of the open group: it reads no
// other view of what the group computes, there is room, and its result lies on
// none of the group's inputs. The planner ends the life of a value at its last reader, so a later
// result may have the memory of an earlier operand; the kernel reads all operands while it writes.
// Only the exact place of an operand walked element by element is harmless.
func (e *functionEmitter) joins(op *ir.Op) bool {
	g := e.group
	if len(g.nodes) >= maxFusedOps {
		return false
	}
	inputs := slices.Clone(g.values)
	for _, a := range op.Args {
		if _, inside := g.node[a]; inside || e.constant[a] != nil {
			continue
		}
		for _, m := range g.member {
			if e.root[m] == e.root[a] {
				return false
			}
		}
		if !slices.Contains(inputs, a) {
			inputs = append(inputs, a)
		}
	}
	if len(inputs) > maxQueueBuffers || len(g.nodes)+1 > maxQueueBuffers && e.leaving(op) >= maxQueueBuffers {
		return false
	}
	for _, result := range append(slices.Clone(g.member), op.Results[0]) {
		for _, in := range inputs {
			if e.clash(in, result) {
				return false
			}
		}
	}
	return true
}

// leaving counts the group's values that have a reader outside, op being inside.
func (e *functionEmitter) leaving(op *ir.Op) int {
	n := 0
	for _, m := range e.group.member {
		if e.leaves(m, op) {
			n++
		}
	}
	return n
}

// leaves reports whether a value of the group is read outside of it; extra is an op about to join.
func (e *functionEmitter) leaves(v ir.ValueID, extra *ir.Op) bool {
	if e.results[v] {
		return true
	}
	return slices.ContainsFunc(e.uses[v], func(u ir.Use) bool { return u.Op != extra && !e.group.ops[u.Op] })
}

// clash reports whether two values share memory in a way that a fused kernel must not have.
func (e *functionEmitter) clash(in, result ir.ValueID) bool {
	if e.frame == nil {
		return false
	}
	a, b := e.frame.Offsets[e.root[in]], e.frame.Offsets[e.root[result]]
	s, t := e.f.TypeOf(in), e.f.TypeOf(result)
	if a < 0 || b < 0 || a+s.Bytes() <= b || b+t.Bytes() <= a {
		return false
	}
	return a != b || !slices.Equal(s.Shape, t.Shape) || s.DType.Size() != t.DType.Size()
}

// flush emits the open group.
func (e *functionEmitter) flush() error {
	g := e.group
	if g == nil {
		return nil
	}
	var out []ir.ValueID
	for n, v := range g.member {
		if e.leaves(v, nil) {
			g.outputs = append(g.outputs, n)
			out = append(out, v)
		}
	}
	e.group = nil
	if len(out) == 0 {
		return nil
	}
	kernel, err := emitFusion(e.stage.chip, g.fusion, fusionName(g.fusion))
	if err != nil {
		at := e.f.Ops[g.place]
		return diag.Errorf(diag.NotSupported, diag.At(at.Pos), "%s: %v", at.Kind, err)
	}
	e.launch(g.place, kernel, false, append(g.values, out...)...)
	return nil
}

// fusionName is the readable part of a fused kernel's name.
func fusionName(f fusion) string {
	var parts []string
	for i, n := range f.nodes {
		if i == 3 {
			parts = append(parts, "more")
			break
		}
		parts = append(parts, n.kind.String())
	}
	return strings.Join(parts, "_") + "_" + shapeName(f.shape)
}

func (e *functionEmitter) launch(place int, k *Kernel, assign bool, operands ...ir.ValueID) {
	step := emulator.Step{Kernel: e.stage.kernel(k), Blocks: k.Blocks, Assign: assign, Op: place}
	for _, v := range operands {
		step.Operands = append(step.Operands, int(v))
	}
	e.steps = append(e.steps, step)
}

// single emits an op that is not fused.
func (e *functionEmitter) single(place int, op *ir.Op) error {
	in := make([]ir.Type, len(op.Args))
	for i, a := range op.Args {
		in[i] = e.f.TypeOf(a)
	}
	out := op.Results[0]
	typ := e.f.TypeOf(out)
	c := e.stage.chip
	var kernel *Kernel
	var err error
	operands := append(slices.Clone(op.Args), out)
	assign := false
	switch op.Kind {
	case ir.MatMul:
		kernel, err = emitProduct(c, matMulOf(in, op.Attrs))
	case ir.MatMulAccumulate:
		kernel, err = emitProduct(c, matMulAccumulateOf(in, op.Attrs))
		operands, assign = []ir.ValueID{op.Args[1], op.Args[2], out}, true
		if op.Attrs.Bool("transpose_b") {
			operands[0], operands[1] = op.Args[2], op.Args[1]
		}
	case ir.Accumulate:
		f := fusion{shape: typ.Shape, inputs: []fusionInput{{typ: in[0]}, {typ: in[1]}}, outputs: []int{0},
			nodes: []fusionNode{{kind: ir.Accumulate, args: []int{-1, -2}, out: typ}}}
		kernel, err = emitFusion(c, f, fusionName(f))
		assign = true
	case ir.SumTo:
		kernel, err = emitReduction(c, sumToOf(in[0], typ), typ.DType)
	case ir.Sum, ir.Mean:
		r := reduction{shape: in[0].Shape, scale: 1, name: op.Kind.String()}
		if op.Kind == ir.Mean {
			r.scale = float64(typ.Elems()) / float64(in[0].Elems())
		}
		if r.reduced, err = ir.ReducedAxes(in[0], op.Attrs); err != nil {
			return err
		}
		kernel, err = emitReduction(c, r, typ.DType)
	case ir.ArgMax:
		kernel, err = emitArgMax(c, in[0])
	case ir.CrossEntropy:
		kernel, err = emitCrossEntropy(c, in[0])
	case ir.CrossEntropyGrad:
		kernel, err = emitCrossEntropyGrad(c, in[0])
	case ir.Constant:
		kernel, err = emitFill(c, typ.DType, typ.Shape, whole(typ.Shape), op.Attrs.Float("value"))
	case ir.Transpose:
		perm := op.Attrs.Ints("perm")
		kernel = emitCopy(c, "transpose", typ.DType, typ.Shape, transposed(in[0].Shape, perm), whole(typ.Shape))
	case ir.Slice:
		kernel = emitCopy(c, "slice", typ.DType, typ.Shape, part(in[0].Shape, op.Attrs.Int("axis"), op.Attrs.Int("start")), whole(typ.Shape))
	case ir.Concat:
		start, axis := 0, op.Attrs.Int("axis")
		for i, t := range in {
			k := emitCopy(c, "concat", typ.DType, t.Shape, whole(t.Shape), part(typ.Shape, axis, start))
			e.launch(place, k, false, op.Args[i], out)
			start += t.Shape[axis]
		}
		return nil
	case ir.Pad:
		return e.pad(place, op, in[0], typ)
	default:
		return fmt.Errorf("there is no kernel for this operation")
	}
	if err != nil {
		return err
	}
	e.launch(place, kernel, assign, operands...)
	return nil
}

// sumToOf is the reduction that undoes a broadcast.
func sumToOf(in, out ir.Type) reduction {
	r := reduction{shape: in.Shape, reduced: make([]bool, in.Rank()), scale: 1, name: "sum_to"}
	for axis := range in.Shape {
		own := axis - (in.Rank() - out.Rank())
		r.reduced[axis] = own < 0 || out.Shape[own] == 1 && in.Shape[axis] != 1
	}
	return r
}

// pad copies the operand into its place and fills what is before and after it.
func (e *functionEmitter) pad(place int, op *ir.Op, in, out ir.Type) error {
	axis, start := op.Attrs.Int("axis"), op.Attrs.Int("start")
	end := start + in.Shape[axis]
	for _, gap := range [][2]int{{0, start}, {end, out.Shape[axis]}} {
		if gap[0] == gap[1] {
			continue
		}
		lengths := slices.Clone(out.Shape)
		lengths[axis] = gap[1] - gap[0]
		k, err := emitFill(e.stage.chip, out.DType, lengths, part(out.Shape, axis, gap[0]), 0)
		if err != nil {
			return err
		}
		e.launch(place, k, false, op.Results[0])
	}
	k := emitCopy(e.stage.chip, "pad", out.DType, in.Shape, whole(in.Shape), part(out.Shape, axis, start))
	e.launch(place, k, false, op.Args[0], op.Results[0])
	return nil
}
