package frontend

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// block is a pipeline block under elaboration. Its cells are members of a cell
// without a name, so that paths start below the network.
type block struct {
	*env
	decl      *syntax.Block
	root      *instance
	entries   map[string]*syntax.Assign
	inputs    []*input
	construct *syntax.Construct
	evals     []*syntax.Block
	groups    *syntax.Map // of the optimizer
	spec      *plan.Spec

	layoutStages int // stages of the layout, 0 without
}

type input struct {
	decl *syntax.Input
	plan.Input
	placing
}

// The entries of a block and whether this version builds them.
var entryNames = map[string]bool{
	"network": true, "loss": true, "optimizer": true, "micro_batch_num": true, "micro_reduction": true, "stages": true,
	"stage_config": true, "interleave": true, "schedule": true, "lazy_inline": true, "dataset": true, "epochs": true,
	"seed": true, "metrics": true, "layout": true, "output_broadcast": true, "feedback": true,
	"segment_config": true, "every": false, "clip_norm": true, "clip_value": true,
	"accumulate": true, "precision": false, "loss_scale": true,
	"optimizer_shard": true, "gradients_mean": true, "dataset_strategy": true, "frozen": true,
}

// Entries that only some kinds of block have.
var trainOnly = map[string]bool{"optimizer": true, "epochs": true, "micro_reduction": true, "clip_norm": true, "clip_value": true, "loss_scale": true,
	"optimizer_shard": true, "gradients_mean": true, "frozen": true, "accumulate": true}

func (e *elaborator) newBlock(decl *syntax.Block) *block {
	name := decl.Name.Text
	if name == "" {
		name = decl.Kind
	}
	root := &instance{class: &class{decl: &syntax.Cell{Name: decl.Name}, file: e.main}, at: decl.At, placing: nowhere, placed: true,
		members: map[string]value{}, memberAt: map[string]diag.Range{}, args: map[string]value{}}
	b := &block{env: &env{elaborator: e, file: e.main, inst: root}, decl: decl, root: root, entries: map[string]*syntax.Assign{}}
	b.spec = &plan.Spec{Name: name, Kind: decl.Kind, Pos: decl.At.Pos, Module: e.module, Accumulate: 1, MicroBatches: 1, Reduction: "sum", Epochs: 1, Seed: 1}
	return b
}

// block elaborates a top-level block.
func (e *elaborator) block(decl *syntax.Block) *plan.Spec {
	b := e.newBlock(decl)
	e.module.Name = b.spec.Name
	e.training = decl.Kind == "train"
	for _, m := range decl.Marks {
		b.errorf(diag.MisplacedMark, m.At, "a block takes no marks")
	}
	b.collect()
	b.settings()
	b.cells()
	b.inputTypes()
	b.register()
	if b.list.HasErrors() || b.halted {
		return nil
	}
	b.freeze()
	b.entry()
	b.stageCount()
	b.unused()
	if s := b.entries["dataset"]; s != nil {
		b.spec.Dataset = b.dataset(s.Values[0], b.inputs)
	}
	for _, decl := range b.evals {
		if spec := b.evaluation(decl); spec != nil {
			b.spec.Evals = append(b.spec.Evals, spec)
		}
	}
	b.spec.Keyed = e.keyed
	b.joinBatches()
	return b.spec
}

// collect sorts the statements of the block.
func (b *block) collect() {
	seen := map[string]diag.Range{}
	define := func(id syntax.Ident) bool {
		if first, ok := seen[id.Text]; ok {
			b.fail(diag.Errorf(diag.DuplicateName, id.At, "%q is given twice", id.Text).WithNote(first, "first given here"))
			return false
		}
		seen[id.Text] = id.At
		return true
	}
	for _, s := range b.decl.Entries {
		switch s := s.(type) {
		case *syntax.Input:
			if define(s.Name) {
				b.inputs = append(b.inputs, &input{decl: s, placing: nowhere})
			}
		case *syntax.Construct:
			if b.construct != nil {
				b.fail(diag.Errorf(diag.DuplicateName, s.At, "a block has one construct").WithNote(b.construct.At, "the first is here"))
			}
			b.construct = s
		case *syntax.Block:
			if b.decl.Kind != "train" || s.Kind != "eval" {
				b.errorf(diag.BadBlock, s.At, "only a train block holds other blocks, and those are eval blocks")
			} else {
				b.evals = append(b.evals, s)
			}
		case *syntax.Assign:
			n := s.Targets[0].(*syntax.Name)
			if !define(syntax.Ident{At: n.At, Text: n.Text}) {
				continue
			}
			b.entries[n.Text] = s
			if built, known := entryNames[n.Text]; known && !built {
				b.errorf(diag.NotSupported, n.At, "the entry `%s` is not built yet", n.Text)
			}
			if trainOnly[n.Text] && b.decl.Kind != "train" {
				b.fail(diag.Errorf(diag.UnknownEntry, n.At, "the entry `%s` belongs in a train block", n.Text).
					WithRepair("leave it out: this %s block trains nothing", b.decl.Kind))
			}
		}
	}
	if s := b.entries["output_broadcast"]; s != nil && b.decl.Kind != "infer" {
		b.errorf(diag.UnknownEntry, s.At, "the entry `output_broadcast` belongs in an infer block: only its results are tensors that a stage could have")
	}
	if s := b.entries["feedback"]; s != nil && b.decl.Kind != "infer" {
		b.errorf(diag.UnknownEntry, s.At, "the entry `feedback` belongs in an infer block")
	}
	if s := b.entries["metrics"]; s != nil && b.decl.Kind != "eval" {
		b.errorf(diag.UnknownEntry, s.At, "the entry `metrics` belongs in an eval block")
	}
}

// settings reads the entries that are plain values.
func (b *block) settings() {
	spec := b.spec
	b.microBatches(spec, b.entries["micro_batch_num"])
	b.micro = spec.MicroBatches
	b.accumulate()
	if n, at, ok := b.positive("stages", 1); ok {
		b.stages = n
		spec.Stages, spec.StagesPos = n, at.Pos
	}
	if b.opts.Stages > 0 {
		b.stages = b.opts.Stages
	}
	if b.unsplit && b.stages == 0 {
		b.stages = 1
	}
	if n, _, ok := b.positive("epochs", 1); ok {
		spec.Epochs = n
	}
	if n, at, ok := b.positive("seed", 0); ok {
		if n > math.MaxUint32 {
			b.errorf(diag.BadEntry, at, "the seed %d is above %d", n, uint32(math.MaxUint32))
		}
		spec.Seed = uint32(n)
	}
	if b.opts.Seed != nil {
		spec.Seed = *b.opts.Seed
	}
	if w, _, ok := b.word("micro_reduction", "sum", "mean"); ok {
		spec.Reduction = w
	}
	b.gradientSettings()
	if w, _, ok := b.word("lazy_inline", "auto", "marked", "off"); ok {
		spec.LazyInline = w
	}
	if w, at, ok := b.word("schedule"); ok {
		spec.Schedule, spec.SchedulePos = w, at.Pos
	}
	if s := b.entries["interleave"]; s != nil {
		yes, ok := b.condition(s.Values[0])
		spec.Interleave, spec.InterleavePos = yes && ok, s.Values[0].Range().Pos
	}
	if s := b.entries["output_broadcast"]; s != nil {
		yes, ok := b.condition(s.Values[0])
		spec.Broadcast = yes && ok
	}
}

// microBatches reads the micro-batch number of a block.
func (b *block) microBatches(spec *plan.Spec, s *syntax.Assign) {
	spec.MicroPos = b.decl.At.Pos
	if s != nil {
		spec.MicroPos = s.Values[0].Range().Pos
		if n, ok := b.whole(s.Values[0], "`micro_batch_num`"); ok {
			if spec.MicroBatches = n; n < 1 {
				b.errorf(diag.BadMicroBatches, s.Values[0].Range(), "there is at least one micro-batch, not %d", n)
				spec.MicroBatches = 1
			}
		}
	}
	if b.opts.Micro > 0 {
		spec.MicroBatches = b.opts.Micro
	}
}

// positive reads an entry that is a whole number of at least least.
func (b *block) positive(name string, least int) (int, diag.Range, bool) {
	s := b.entries[name]
	if s == nil {
		return 0, diag.Range{}, false
	}
	at := s.Values[0].Range()
	n, ok := b.whole(s.Values[0], "`"+name+"`")
	if ok && n < least {
		b.errorf(diag.BadEntry, at, "`%s` is at least %d, not %d", name, least, n)
		return 0, at, false
	}
	return n, at, ok
}

// word reads an entry that is an option word, as a bare name or a string.
// Without a list of words any is taken; the part that knows them checks it.
func (b *block) word(name string, words ...string) (string, diag.Range, bool) {
	s := b.entries[name]
	if s == nil {
		return "", diag.Range{}, false
	}
	at := s.Values[0].Range()
	w := ""
	switch x := s.Values[0].(type) {
	case *syntax.Name:
		w = x.Text
	case *syntax.String:
		w = x.Value
	default:
		b.errorf(diag.BadEntry, at, "`%s` is a word", name)
		return "", at, false
	}
	if len(words) > 0 && !slices.Contains(words, w) {
		d := diag.Errorf(diag.BadEntry, at, "`%s` is one of %s, not %q", name, strings.Join(words, ", "), w)
		d.Repair = diag.DidYouMean(w, words)
		b.fail(d)
		return "", at, false
	}
	return w, at, true
}

func (b *block) unknownEntry(n *syntax.Name) {
	d := diag.Errorf(diag.UnknownEntry, n.At, "unknown entry %q in a %s block", n.Text, b.decl.Kind)
	if d.Repair = diag.DidYouMean(n.Text, append(sortedKeys(entryNames), "input", "construct")); d.Repair == "" {
		d.Repair = "the entries are " + strings.Join(sortedKeys(entryNames), ", ")
	}
	b.fail(d)
}

// cells makes the cells of the block: the network, the loss and any other.
func (b *block) cells() {
	for _, s := range b.decl.Entries {
		a, ok := s.(*syntax.Assign)
		if !ok || b.entries[a.Targets[0].(*syntax.Name).Text] != a {
			continue
		}
		n := a.Targets[0].(*syntax.Name)
		_, known := entryNames[n.Text]
		if known && n.Text != "network" && n.Text != "loss" && n.Text != "optimizer" {
			continue
		}
		expr := a.Values[0]
		if _, ok := expr.(*syntax.Map); ok && !known {
			b.unknownEntry(n)
			continue
		}
		if b.buffers = n.Text == "optimizer"; b.buffers {
			expr = b.withoutGroups(expr)
		}
		x := b.eval(expr)
		b.buffers = false
		inst, ok := x.(*instance)
		switch {
		case isPoison(x):
		case !ok && !known:
			b.unknownEntry(n)
		case !ok:
			b.errorf(diag.BadEntry, a.Values[0].Range(), "`%s` is a cell, not %s", n.Text, x.kind())
		case inst.placed:
			b.errorf(diag.BadEntry, a.Values[0].Range(), "`%s` is a new cell", n.Text)
		case !known && b.construct == nil:
			b.fail(diag.Errorf(diag.UnusedMember, n.At, "nothing uses the cell %q", n.Text).
				WithRepair("a block with a construct can call it"))
		}
		if ok {
			name := n.Text
			if name == "network" {
				name = ""
			}
			b.place(inst, name)
		}
		b.define(syntax.Ident{At: n.At, Text: n.Text}, x)
	}
	for _, name := range []string{"network", "loss", "optimizer"} {
		need := name == "network" || b.decl.Kind == "train" && (name == "optimizer" || b.construct == nil)
		if need && b.entries[name] == nil {
			b.fail(diag.Errorf(diag.MissingEntry, b.decl.At, "the %s block has no `%s`", b.decl.Kind, name).
				WithRepair("%s = ...", name))
		}
	}
}

// member returns a cell of the block, or nil.
func (b *block) member(name string) *instance {
	inst, _ := b.root.members[name].(*instance)
	return inst
}

// inputTypes evaluates the declared inputs.
func (b *block) inputTypes() {
	for _, in := range b.inputs {
		b.once(in.decl.Marks)
		for _, m := range in.decl.Marks {
			if m.Name == "whole" {
				in.Whole = true
			} else if m.Name == "segment" {
				b.errorf(diag.MisplacedMark, m.At, "@segment stands after a new cell or a parameter")
			} else {
				b.placeMark(m, &in.placing)
			}
		}
		in.Name, in.Pos = in.decl.Name.Text, in.decl.Name.At.Pos
		t, ok := b.tensorType(in.decl.Type, in.decl.Name.At)
		if ok && t.Rank() == 0 && !in.Whole {
			b.fail(diag.Errorf(diag.BadShape, in.decl.Type.At, "axis 0 of an input is the batch; this one has no axes").WithRepair("@whole"))
			ok = false
		}
		if !ok {
			t = ir.Tensor(ir.Invalid)
		}
		in.Type = t
	}
	if len(b.inputs) == 0 {
		b.fail(diag.Errorf(diag.MissingEntry, b.decl.At, "the %s block has no inputs", b.decl.Kind).WithRepair("input x: f32[32, 10]"))
	}
	b.checkMicro(b.spec, b.inputs)
}

// checkMicro reports a micro-batch number that does not divide the batch.
func (b *block) checkMicro(spec *plan.Spec, inputs []*input) {
	m := spec.MicroBatches
	for _, in := range inputs {
		if in.Whole || in.Type.Rank() == 0 || in.Type.Shape[0]%m == 0 {
			continue
		}
		batch := in.Type.Shape[0]
		below, above := m, m+1
		for below > 1 && batch%below != 0 {
			below--
		}
		for above < batch && batch%above != 0 {
			above++
		}
		repair := fmt.Sprintf("the nearest numbers that do are %d and %d", below, above)
		if m > batch {
			repair = fmt.Sprintf("the nearest number that does is %d", batch)
		}
		at := diag.At(spec.MicroPos)
		if s := b.entries["micro_batch_num"]; s != nil && b.opts.Micro == 0 {
			at = s.Values[0].Range()
		}
		d := diag.Errorf(diag.BadMicroBatches, at, "%d micro-batches do not divide the %d rows of the input `%s`", m, batch, in.Name).
			WithNote(in.decl.Name.At, "the input").WithRepair("%s", repair)
		if spec.Kind == "eval" {
			d = d.WithNote(b.decl.At, "a batch of this block has %d rows; `micro_batch_num` in it may differ from that of training", batch)
		}
		b.fail(d)
		return
	}
}

// register names the parameters and applies stage_config, now that every cell
// has its path.
func (b *block) register() {
	cells := map[string]*instance{}
	visit := func(i *instance) {
		if i != b.root {
			cells[i.path()] = i
		}
	}
	seen := map[string]ir.Pos{}
	index := 0
	declare := func(p *storage) {
		p.param.Name = p.name
		p.index = index
		index++
		if path := p.owner.path(); path != "" {
			p.param.Name = path + "." + p.name
		}
		if first, ok := seen[p.param.Name]; ok {
			b.fail(diag.Errorf(diag.DuplicateName, diag.At(p.param.Pos), "two parameters have the path %q", p.param.Name).
				WithNote(diag.At(first), "the other is here"))
			return
		}
		seen[p.param.Name] = p.param.Pos
		if p.buffer {
			p.state.Name = p.param.Name
			return
		}
		b.module.AddParam(p.param)
	}
	for _, name := range []string{"network", "loss"} { // the network's parameters come first
		if inst := b.member(name); inst != nil {
			inst.walk(visit, declare)
		}
	}
	for _, name := range b.root.order {
		if inst := b.member(name); inst != nil && name != "network" && name != "loss" && name != "optimizer" {
			inst.walk(visit, declare)
		}
	}
	if inst := b.member("optimizer"); inst != nil {
		inst.walk(func(*instance) {}, func(p *storage) {
			if !p.buffer || p.owner != inst {
				b.errorf(diag.NotSupported, p.at, "an optimizer has no parameters, and cells inside it have no buffers; what it keeps is a `buffer` of its own")
			}
		})
	}
	if network := cells[""]; network != nil {
		delete(cells, "")
		if cells["network"] == nil {
			cells["network"] = network
		}
	}
	if isPoison(b.root.members["network"]) {
		return // it was reported, and keys would find none of its cells
	}
	if b.member("network") != nil {
		b.layouts()
	}
	b.config("stage_config", cells, stageOf)
	b.config("segment_config", cells, segmentOf)
}
