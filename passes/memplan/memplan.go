// Package memplan gives every value that outlives a pass of a chunk a place.
//
// Two levels: a function has a frame of offsets for the values that live inside it only; a stage has areas. Parameters,
// gradients and optimizer state are static. Inputs and results have a slot per micro-batch. Each chunk has pools of
// slots by lifetime (plan.Lifetime); the slot of micro-batch i is i mod the number of slots, which is how many can be
// alive at once in the order of the actions, weight passes as late as their lag allows.
package memplan

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/passes/partition"
	"github.com/ppc-lang/ppc/plan"
)

// Program is a cut program on its way into the plan.
type Program struct {
	*plan.Program
	Func      *ir.Func // coloured joint graph
	Inputs    int      // arguments of Func that are inputs; then buffers and, in training, the seed and the accumulators
	State     *partition.State
	Reads     []*ir.Param
	Results   int // results of Func that are program results; then new values of buffers
	Folds     []plan.Fold
	Parts     []*partition.Part
	Crossings []partition.Crossing
}

// Areas fills p.Stages and the phases, messages and outputs of every program. Chunks must have ID and Stage.
func Areas(p *plan.Plan, programs []*Program) {
	p.Stages = make([]*plan.Stage, p.NumStages)
	forms := operandForms(programs)
	b := &builder{plan: p, index: make([]map[areaKey]int, p.NumStages)}
	for s := range p.Stages {
		p.Stages[s] = &plan.Stage{Seed: plan.Ref{Area: -1, Item: -1}, Workspace: plan.Ref{Area: -1, Item: -1}, Inputs: make([][]plan.Ref, len(programs))}
		b.index[s] = map[areaKey]int{}
		b.parameters(s, programs, forms)
	}
	for i, q := range programs {
		b.program(i, q)
	}
}

type areaKey struct {
	program, chunk int
	lifetime       plan.Lifetime
	class          plan.Class
}

type builder struct {
	plan  *plan.Plan
	index []map[areaKey]int
	accs  map[ir.ValueID]plan.Ref // of the current program
}

// area finds or makes an area of a stage.
func (b *builder) area(stage int, k areaKey) int {
	i, ok := b.index[stage][k]
	if !ok {
		st := b.plan.Stages[stage]
		i = len(st.Areas)
		b.index[stage][k] = i
		st.Areas = append(st.Areas, plan.Area{Class: k.class, Lifetime: k.lifetime, Program: k.program, Chunk: k.chunk, Slots: 1})
	}
	return i
}

// item adds an item to an area.
func (b *builder) item(stage int, k areaKey, it plan.Item) plan.Ref {
	i := b.area(stage, k)
	a := &b.plan.Stages[stage].Areas[i]
	a.Items = append(a.Items, it)
	return plan.Ref{Area: i, Item: len(a.Items) - 1}
}

var static = func(c plan.Class) areaKey { return areaKey{-1, -1, plan.Static, c} }

// parameters places the parameters that the chunks of a stage read, in declaration order, with an accumulator per read on
// the stage. sharedparam settles owners and adds what they get from others.
func (b *builder) parameters(stage int, programs []*Program, forms map[*ir.Param]plan.Form) {
	read := map[*ir.Param]bool{}
	reads := map[*ir.Param]int{}
	for _, q := range programs {
		for _, part := range q.Parts {
			if q.Chunks[part.Chunk].Stage != stage {
				continue
			}
			for _, f := range part.Funcs {
				if f == nil {
					continue
				}
				for _, v := range f.ParamReads() {
					read[f.Value(v).Param] = true
				}
			}
		}
		for i, at := range q.ReadStages() {
			if at == stage {
				reads[q.Reads[i]]++
				read[q.Reads[i]] = true
			}
		}
	}
	for _, prm := range b.plan.Module.Params {
		if !read[prm] {
			continue
		}
		it := plan.Item{Name: prm.Name, Type: prm.Type, Form: forms[prm]}
		sp := plan.StageParam{Param: prm, Owner: stage, Form: it.Form, Value: b.item(stage, static(plan.Parameters), it)}
		for range reads[prm] {
			sp.Accumulators = append(sp.Accumulators, b.item(stage, static(plan.Gradients), it))
		}
		b.plan.Stages[stage].Params = append(b.plan.Stages[stage].Params, sp)
	}
}

// seed is the number of the argument that is the gradient of the loss; the accumulators are behind it.
func (q *Program) seed() int { return q.Inputs + len(q.State.Buffers) }

// sameStage reports whether a crossing goes from one chunk to another of the same stage.
func (q *Program) sameStage(x partition.Crossing) bool {
	return q.Chunks[x.From].Stage == q.Chunks[x.To].Stage
}

// leaves reports whether an input is sent from a stage as it is, or is a result.
func (q *Program) leaves(input ir.ValueID, stage int) bool {
	for _, x := range q.Crossings {
		if q.Chunks[x.From].Stage == stage && !q.sameStage(x) && q.Parts[x.From].Local[x.Value] == input {
			return true
		}
	}
	for _, v := range q.Func.Results[:q.Results] {
		if v == input {
			return true
		}
		for _, part := range q.Parts {
			if root, ok := part.Local[v]; ok && root == input && q.Chunks[part.Chunk].Stage == stage {
				return true
			}
		}
	}
	return false
}

// ReadStages gives, per read of a parameter, the stage whose weight pass accumulates it.
func (q *Program) ReadStages() []int {
	stages := make([]int, len(q.Reads))
	for _, op := range q.Func.Ops {
		for _, a := range op.Args {
			if v := q.Func.Value(a); v.Op == nil && v.Param == nil && v.Index > q.seed() {
				stages[v.Index-q.seed()-1] = q.Chunks[op.Chunk].Stage
			}
		}
	}
	return stages
}

// accumulators maps the accumulator arguments of a joint graph to the stage's gradients.
func (b *builder) accumulators(q *Program) {
	b.accs = map[ir.ValueID]plan.Ref{}
	type key struct {
		stage int
		param *ir.Param
	}
	used := map[key]int{}
	at := map[key]*plan.StageParam{}
	for s, st := range b.plan.Stages {
		for i := range st.Params {
			at[key{s, st.Params[i].Param}] = &st.Params[i]
		}
	}
	for i, s := range q.ReadStages() {
		k := key{s, q.Reads[i]}
		b.accs[q.Func.Args[q.seed()+1+i]] = at[k].Accumulators[used[k]]
		used[k]++
	}
}

// program places the values of one program.
func (b *builder) program(index int, q *Program) {
	b.accumulators(q)
	for s, st := range b.plan.Stages {
		st.Inputs[index] = make([]plan.Ref, q.Inputs)
		for i := range st.Inputs[index] {
			st.Inputs[index][i] = plan.Ref{Area: -1, Item: -1}
		}
		if q.Train {
			st.Seed = b.item(s, static(plan.InputsOf), plan.Item{Name: "seed", Type: q.Func.TypeOf(q.Func.Args[q.seed()])})
		}
	}
	q.Outputs = make([]plan.Output, q.Results)
	refs := make([]map[ir.ValueID]plan.Ref, len(q.Parts))
	for c, part := range q.Parts {
		refs[c] = b.chunk(index, q, part)
	}
	// A value that another chunk of the same stage made is where that chunk keeps it.
	var borrow func(x partition.Crossing) plan.Ref
	borrow = func(x partition.Crossing) plan.Ref {
		root := q.Parts[x.From].Local[x.Value]
		ref, ok := refs[x.From][root]
		for _, y := range q.Crossings {
			if !ok && y.To == x.From && y.Value == root && q.sameStage(y) {
				ref, ok = borrow(y), true
			}
		}
		refs[x.To][q.Parts[x.To].Local[x.Value]] = ref
		return ref
	}
	for _, x := range q.Crossings {
		if q.sameStage(x) {
			borrow(x)
		}
	}
	of := func(c int, v ir.ValueID) plan.Ref {
		ref, ok := refs[c][q.Parts[c].Local[v]]
		if !ok {
			panic(fmt.Sprintf("memplan: a value of chunk %d has no place", c))
		}
		return ref
	}
	for c, part := range q.Parts {
		for pass, f := range part.Funcs {
			ph := plan.Phase{Func: f}
			for _, v := range part.Args[pass] {
				ph.Args = append(ph.Args, of(c, v))
			}
			for _, v := range part.Results[pass] {
				ph.Results = append(ph.Results, of(c, v))
			}
			q.Chunks[c].Phases[pass] = ph
		}
	}
	for i, v := range q.Func.Results[:q.Results] {
		c := 0
		if d := q.Func.Value(v).Op; d != nil {
			c = d.Chunk
		}
		q.Outputs[i] = plan.Output{Stage: q.Chunks[c].Stage, Type: q.Func.TypeOf(v), Ref: of(c, v), Fold: q.Folds[i]}
	}
	for i, v := range q.Func.Results[q.Results : q.Results+q.State.Written] {
		c := q.Chunks[q.Func.Value(v).Op.Chunk]
		c.Stores = append(c.Stores, plan.Store{From: of(c.ID, v), To: b.buffer(c.Stage, index, q.State.Buffers[i])})
	}
	messages := map[[3]int]*plan.Message{}
	for _, x := range q.Crossings {
		if q.sameStage(x) {
			continue // no message
		}
		back := x.Pass != ir.ForwardPass
		key := [3]int{x.From, x.To, int(x.Pass)}
		m := messages[key]
		if m == nil {
			m = &plan.Message{ID: len(q.Messages), From: x.From, To: x.To, Backward: back}
			messages[key] = m
			q.Messages = append(q.Messages, m)
		}
		m.Tensors = append(m.Tensors, plan.Tensor{
			Name: valueName(q.Func, x.Value), Type: q.Func.TypeOf(x.Value), From: of(x.From, x.Value), To: of(x.To, x.Value),
		})
	}
}

// buffer gives the place of a buffer of cells on its stage.
func (b *builder) buffer(stage, program int, of *plan.Buffer) plan.Ref {
	st := b.plan.Stages[stage]
	for _, x := range st.Buffers {
		if x.Buffer == of {
			return x.Ref
		}
	}
	k := static(plan.States)
	if b.plan.Programs[program].Feedback != nil {
		k = areaKey{program, -1, plan.PerMicro, plan.States} // the requests of each micro-batch have their own
	}
	ref := b.item(stage, k, plan.Item{Name: of.Name, Type: of.Type})
	st.Buffers = append(st.Buffers, plan.StageBuffer{Buffer: of, Ref: ref})
	return ref
}

// valueName names a boundary for people: what makes it.
func valueName(f *ir.Func, v ir.ValueID) string {
	rec := f.Value(v)
	if rec.Op == nil {
		return rec.Name
	}
	name := f.Path(rec.Op)
	if rec.Op.Pass != ir.ForwardPass {
		name = "d." + name
	}
	if rec.Op.Callee == nil {
		if name != "" && name != "d." {
			name += "."
		}
		name += rec.Op.Kind.String()
	} else if rec.Index > 0 {
		name = fmt.Sprintf("%s#%d", name, rec.Index)
	}
	return name
}

// chunk places the values a chunk knows, by the value whose buffer they share.
func (b *builder) chunk(index int, q *Program, part *partition.Part) map[ir.ValueID]plan.Ref {
	f, c, stage := q.Func, part.Chunk, q.Chunks[part.Chunk].Stage
	refs := map[ir.ValueID]plan.Ref{}
	last := map[ir.ValueID]ir.Pass{}
	received, sent, output, stored := map[ir.ValueID]bool{}, map[ir.ValueID]bool{}, map[ir.ValueID]bool{}, map[ir.ValueID]bool{}
	for pass, args := range part.Args {
		for _, v := range args {
			last[part.Local[v]] = ir.Pass(pass)
		}
	}
	borrowed, lent := map[ir.ValueID]bool{}, map[ir.ValueID]bool{} // among chunks of this stage
	for _, x := range q.Crossings {
		switch {
		case x.To == c && q.sameStage(x):
			borrowed[part.Local[x.Value]] = true
		case x.To == c:
			received[part.Local[x.Value]] = true
		case x.From == c && q.sameStage(x):
			lent[part.Local[x.Value]] = true
		case x.From == c:
			sent[part.Local[x.Value]] = true
		}
	}
	for _, v := range f.Results[:q.Results] {
		if root, ok := part.Local[v]; ok {
			if d := f.Value(v).Op; d == nil || d.Chunk == c {
				output[root] = true
			}
		}
	}
	for _, v := range f.Results[q.Results : q.Results+q.State.Written] {
		if root, ok := part.Local[v]; ok {
			stored[root] = true
		}
	}
	put := func(v ir.ValueID) {
		root := part.Local[v]
		if _, done := refs[root]; done || borrowed[root] {
			return
		}
		rec := f.Value(root)
		it := plan.Item{Name: valueName(f, root), Type: rec.Type}
		k := areaKey{program: index, chunk: c, class: plan.Saved}
		switch {
		case rec.Param != nil:
			panic("memplan: the value of a parameter leaves its chunk")
		case rec.Op == nil && rec.Index < q.Inputs:
			if ref := b.plan.Stages[stage].Inputs[index][rec.Index]; ref.Item < 0 {
				k := areaKey{index, -1, plan.PerMicro, plan.InputsOf}
				if q.Train && b.plan.Accumulate > 1 && !q.leaves(root, stage) {
					k.lifetime = plan.Loaded // memory for the inputs of one batch, not of all
				}
				b.plan.Stages[stage].Inputs[index][rec.Index] = b.item(stage, k, it)
			}
			refs[root] = b.plan.Stages[stage].Inputs[index][rec.Index]
			return
		case rec.Op == nil && rec.Index < q.seed():
			refs[root] = b.buffer(stage, index, q.State.Buffers[rec.Index-q.Inputs])
			return
		case rec.Op == nil && rec.Index == q.seed():
			refs[root] = b.plan.Stages[stage].Seed
			return
		case rec.Op == nil:
			refs[root] = b.accs[root]
			return
		case output[root]:
			k = areaKey{index, -1, plan.PerMicro, plan.Outputs}
		case lent[root]:
			// Another chunk of this stage reads it, in a pass of its own.
			k.lifetime = plan.Lent
			if sent[root] {
				k.lifetime = plan.PerMicro
			}
		case received[root] && (sent[root] || stored[root]):
			// A view of what came in goes out again: the next receive must not overwrite it before it has left.
			k.lifetime, k.class = plan.PerMicro, plan.Boundary
		case rec.Op.Pass == ir.ForwardPass:
			k.lifetime = plan.FToSend
			switch last[root] {
			case ir.WeightPass:
				k.lifetime = plan.SavedForW
			case ir.InputPass:
				k.lifetime = plan.SavedForI
			default:
				k.class = plan.Boundary
				switch {
				case received[root]:
					k.lifetime = plan.RecvToF
				case stored[root] && !sent[root]:
					k.lifetime, k.class = plan.Stored, plan.States
				}
			}
		default:
			switch {
			case last[root] == ir.WeightPass:
				k.lifetime = plan.GradForW
			case received[root]:
				k.lifetime, k.class = plan.RecvToI, plan.Boundary
			default:
				k.lifetime, k.class = plan.IToSend, plan.Boundary
			}
		}
		refs[root] = b.item(stage, k, it)
	}
	for pass := range part.Funcs {
		for _, v := range part.Args[pass] {
			put(v)
		}
		for _, v := range part.Results[pass] {
			put(v)
		}
	}
	for _, v := range f.Results[:q.Results] {
		if d := f.Value(v).Op; d == nil && c == 0 {
			part.Local[v] = v
			put(v)
		}
	}
	return refs
}
