package runtime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
)

// fitsPlan compares the checkpoint with the program that goes on from it. The cut, the number of ranks and the settings of the
// optimizer may differ; what is kept, and what random numbers and rows follow from, may not.
func (r *runner) fitsPlan() error {
	c, q := r.resumed, r.plan.Programs[0]
	var errs diag.List
	wrong := func(repair, format string, args ...any) {
		d := diag.Errorf(diag.BadCheckpoint, diag.At(diag.Pos{File: c.Path}), format, args...)
		if repair != "" {
			d = d.WithRepair("%s", repair)
		}
		errs.Add(d)
	}
	var params, buffers []kept
	for s, st := range r.plan.Stages {
		for _, sp := range st.Params {
			if sp.Owner == s {
				params = append(params, kept{sp.Param.Name, sp.Param.Type, data.F32, len(sp.Accumulators) > 0})
			}
		}
		for _, b := range st.Buffers {
			buffers = append(buffers, kept{b.Name, b.Type, bufferType(b.Type), false})
		}
	}
	compare("parameter", params, c.Parameters, wrong)
	compare("buffer", buffers, c.Buffers, wrong)
	if o := r.plan.Optimizer; c.Optimizer.Name != o.Name {
		wrong("train on with it, or start anew from the parameters: -init "+c.Path, "the checkpoint is of the optimizer `%s`, the program has `%s`", c.Optimizer.Name, o.Name)
	} else if names := stateNames(r.plan); !slices.Equal(c.Optimizer.States, names) {
		wrong("start anew from the parameters: -init "+c.Path, "the optimizer `%s` of the checkpoint has the states [%s], that of the program [%s]", o.Name, strings.Join(c.Optimizer.States, ", "), strings.Join(names, ", "))
	}
	if (c.LossScale == nil) != (r.plan.LossScale == nil) {
		has := "has none"
		if c.LossScale != nil {
			has = "has one"
		}
		wrong("write the entry `loss_scale` as it was", "the checkpoint %s, the program differs: there is a loss scale in one of them only", has)
	}
	if c.Seed != r.opt.Seed {
		wrong(fmt.Sprintf("-seed %d", c.Seed), "the checkpoint is of the seed %d, this run has %d: its random numbers would be others", c.Seed, r.opt.Seed)
	}
	if c.Data.Batch != q.Batch {
		wrong(fmt.Sprintf("let the batches of a step have %d rows", c.Data.Batch), "a step of the checkpoint takes %d rows, one of this run %d: it would go on with other rows", c.Data.Batch, q.Batch)
	}
	if rows := r.datasets[0].Rows(); c.Data.Rows != rows {
		wrong("give the data that it was trained with", "the checkpoint is of data with %d rows, this run has %d: it would go on with other rows", c.Data.Rows, rows)
	}
	return errs.Err()
}

// kept is a parameter or a buffer of the program.
type kept struct {
	name    string
	typ     ir.Type
	stored  data.DType
	trained bool
}

// compare tells what a checkpoint lacks, has too much, or has in another shape.
func compare(what string, want []kept, have []checkpoint.Entry, wrong func(repair, format string, args ...any)) {
	var names []string
	for _, w := range want {
		names = append(names, w.name)
		at := slices.IndexFunc(have, func(e checkpoint.Entry) bool { return e.Name == w.name })
		switch {
		case at < 0:
			wrong("", "the checkpoint lacks the %s `%s`", what, w.name)
		case !slices.Equal(have[at].Shape, w.typ.Shape) || have[at].DType != w.stored.String():
			wrong("", "the %s `%s` is %s%s in the checkpoint and %s in the program", what, w.name, have[at].DType, ir.ShapeString(have[at].Shape), w.typ)
		case have[at].Trained != w.trained:
			is, was := "is not trained", "is"
			if w.trained {
				is, was = "is trained", "is not"
			}
			wrong("", "the %s `%s` %s here, in the checkpoint it %s: the states of the optimizer do not fit", what, w.name, is, was)
		}
	}
	for _, e := range have {
		if !slices.Contains(names, e.Name) {
			wrong(diag.DidYouMean(e.Name, names), "the %s `%s` of the checkpoint is none of the program", what, e.Name)
		}
	}
}

// resumedValues copies the elements of an f32 tensor of the checkpoint.
func (r *runner) resumedValues(name string, v []float32) error {
	a, err := r.resumed.Read(name)
	if err != nil {
		return err
	}
	return a.Float32(v)
}

// restore gives a rank, whose parameters have their values, the rest of the state of the checkpoint.
func (r *runner) restore(k *rank) error {
	st := r.plan.Stages[k.stage]
	k.applied = r.resumed.Updates
	if s := r.resumed.LossScale; s != nil {
		k.scale, k.good = s.Scale, s.GoodSteps
	}
	for i, sp := range st.Params {
		for state, ref := range sp.States {
			v := k.dense(sp.Param.Type.Elems())
			if err := r.resumedValues(checkpoint.StateName(r.plan.Optimizer.States[state].Name, sp.Param.Name), v); err != nil {
				return err
			}
			own := floats(k.dev.Buffer(ref, 0))
			if sp.Shard < plan.ShardStates {
				if err := k.dev.Pack(i, own, v); err != nil {
					return err
				}
				continue
			}
			whole := make([]float32, sp.Elems())
			for e := range whole {
				whole[e] = float32(r.plan.Optimizer.States[state].Init)
			}
			if err := k.dev.Pack(i, whole, v); err != nil {
				return err
			}
			lo, hi := r.plan.Part(len(whole), k.replica)
			copy(own, whole[lo:hi])
		}
	}
	for _, b := range st.Buffers {
		a, err := r.resumed.Read(checkpoint.BufferName(b.Name))
		if err != nil {
			return err
		}
		if err := setBuffer(k.dev.Buffer(b.Ref, 0), b.Buffer, &a); err != nil {
			return err
		}
	}
	return nil
}
