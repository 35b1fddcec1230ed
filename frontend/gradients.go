package frontend

import (
	"math"
	"slices"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// gradientSettings reads what happens to the gradients between the backward passes and the optimizer.
func (b *block) gradientSettings() {
	spec := b.spec
	if s := b.entries["clip_norm"]; s != nil {
		spec.Clip.Norm, _ = b.above("clip_norm", s.Values[0])
	}
	if s := b.entries["clip_value"]; s != nil {
		spec.Clip.Value, _ = b.above("clip_value", s.Values[0])
		if other := b.entries["clip_norm"]; other != nil {
			b.fail(diag.Errorf(diag.BadEntry, s.At, "gradients are clipped by norm or by value, not both").WithNote(other.At, "the other one is here").
				WithRepair("leave one out"))
		}
	}
	if s := b.entries["loss_scale"]; s != nil {
		spec.LossScale = b.lossScale(s.Values[0])
	}
	if s := b.entries["optimizer_shard"]; s != nil {
		spec.Shard, spec.ShardPos = b.shard(s.Values[0]), s.Values[0].Range().Pos
	}
	if s := b.entries["gradients_mean"]; s != nil {
		mean, ok := b.condition(s.Values[0])
		spec.GradientsSum = ok && !mean
	}
	if w, _, ok := b.word("dataset_strategy", "data_parallel", "full_batch"); ok {
		spec.FullBatch = w == "full_batch"
	}
}

// accumulate reads how many batches make a step.
func (b *block) accumulate() {
	spec, at := b.spec, b.decl.At
	if s := b.entries["accumulate"]; s != nil {
		at = s.Values[0].Range()
		switch n, ok := b.whole(s.Values[0], "`accumulate`"); {
		case ok && n < 1:
			b.fail(diag.Errorf(diag.BadEntry, at, "a step has at least one batch, not %d", n).WithRepair("accumulate = 1, the default, is an update for every batch"))
		case ok:
			spec.Accumulate = n
		}
	}
	if b.opts.Accumulate > 0 && b.decl.Kind == "train" {
		spec.Accumulate, at = b.opts.Accumulate, b.decl.At
	}
	if most := max(1, plan.MaxMicroBatches/spec.MicroBatches); spec.Accumulate > most {
		b.fail(diag.Errorf(diag.BadEntry, at, "%d batches of %d micro-batches are too many for a step, which has at most %d micro-batches",
			spec.Accumulate, spec.MicroBatches, plan.MaxMicroBatches).WithRepair("accumulate at most %d batches", most))
		spec.Accumulate = 1
	}
}

// joinBatches makes one step of the batches that are accumulated: their rows follow each other, and so do their micro-batches. The
// entry function, which is that of one micro-batch, is the same.
func (b *block) joinBatches() {
	spec := b.spec
	spec.MicroBatches *= spec.Accumulate
	for i := range spec.Inputs {
		if in := &spec.Inputs[i]; !in.Whole {
			shape := slices.Clone(in.Type.Shape)
			shape[0] *= spec.Accumulate
			in.Type = ir.Tensor(in.Type.DType, shape...)
		}
	}
}

// freeze takes the parameters that `frozen` names out of the training.
func (b *block) freeze() {
	s := b.entries["frozen"]
	if s == nil {
		return
	}
	keys := s.Values
	if list, ok := keys[0].(*syntax.List); ok {
		keys = list.Items
	}
	frozen := map[string]bool{}
	for _, k := range keys {
		for _, name := range b.matchParams("frozen", k) {
			frozen[name] = true
		}
	}
	left := false
	for _, p := range b.module.Params {
		p.Frozen = frozen[p.Name]
		left = left || !p.Frozen
	}
	if !left && len(b.module.Params) > 0 {
		b.fail(diag.Errorf(diag.BadEntry, s.At, "every parameter is frozen, nothing is left to train").WithRepair("leave one out, or use an infer block"))
	}
}

// above reads a number above 0 that float32 can hold.
func (b *block) above(name string, x syntax.Expr) (float64, bool) {
	v := b.eval(x)
	n, ok := v.(number)
	switch f := n.float(); {
	case isPoison(v):
	case !ok:
		b.errorf(diag.BadEntry, x.Range(), "`%s` is a number, not %s", name, v.kind())
	case !(f > 0 && f <= math.MaxFloat32 && float32(f) > 0):
		b.errorf(diag.BadEntry, x.Range(), "`%s` is a number above 0 that f32 can hold, not %s", name, n)
	default:
		return f, true
	}
	return 0, false
}

// shard reads what the ranks of a stage share out: a level, or a map. The threshold is in KB, as in MindSpore.
func (b *block) shard(x syntax.Expr) plan.Shard {
	s := plan.Shard{Level: 1, Threshold: 64}
	level := func(x syntax.Expr) {
		switch n, ok := b.whole(x, "the level"); {
		case ok && (n < 0 || n > 3):
			b.errorf(diag.BadEntry, x.Range(), "the level of `optimizer_shard` is 0 to 3, not %d", n)
		case ok:
			s.Level = n
		}
	}
	m, ok := x.(*syntax.Map)
	if !ok {
		level(x)
	} else {
		for i, k := range m.Keys {
			name, _ := k.(*syntax.Name)
			switch {
			case name != nil && name.Text == "level":
				level(m.Values[i])
			case name != nil && (name.Text == "threshold" || name.Text == "size"):
				n, ok := b.whole(m.Values[i], "`"+name.Text+"`")
				least := 0
				if name.Text == "size" {
					least = 1
				}
				if ok && (n < least || n > 1<<40) {
					b.errorf(diag.BadEntry, m.Values[i].Range(), "`%s` is at least %d, not %d", name.Text, least, n)
				} else if name.Text == "size" {
					s.Size = n
				} else {
					s.Threshold = n
				}
			default:
				b.fail(diag.Errorf(diag.BadEntry, k.Range(), "`optimizer_shard` has no such setting").WithRepair("what it has is level, threshold, size"))
			}
		}
	}
	s.Threshold <<= 10
	return s
}

// lossScale reads a number, or a map for a scale that adapts.
func (b *block) lossScale(x syntax.Expr) *plan.LossScale {
	m, ok := x.(*syntax.Map)
	if !ok {
		f, _ := b.above("loss_scale", x)
		return &plan.LossScale{Initial: f}
	}
	l := &plan.LossScale{Initial: 65536, Factor: 2, Window: 1000}
	for i, k := range m.Keys {
		name, _ := k.(*syntax.Name)
		switch {
		case name != nil && name.Text == "initial":
			l.Initial, _ = b.above("initial", m.Values[i])
		case name != nil && name.Text == "factor":
			if f, ok := b.above("factor", m.Values[i]); ok && f <= 1 {
				b.errorf(diag.BadEntry, m.Values[i].Range(), "`factor` is above 1: a step that is skipped divides the scale by it")
			} else {
				l.Factor = f
			}
		case name != nil && name.Text == "window":
			if n, ok := b.whole(m.Values[i], "`window`"); ok && n < 1 {
				b.errorf(diag.BadEntry, m.Values[i].Range(), "`window` is at least 1, not %d", n)
			} else {
				l.Window = n
			}
		default:
			b.fail(diag.Errorf(diag.BadEntry, k.Range(), "a loss scale has no such setting").WithRepair("what it has is initial, factor, window"))
		}
	}
	return l
}
