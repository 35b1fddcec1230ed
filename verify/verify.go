// Package verify compares programs with the unsplit one, step by step on the cpu device, and finds the first operation that
// gives another result.
package verify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// Reference is a run of an unsplit program, which others are compared with.
type Reference struct {
	plan    *plan.Plan
	options runtime.Options
	seen    outcome
}

// outcome is what two runs are compared by.
type outcome struct {
	steps []runtime.Step
	*runtime.Result
}

// NewReference runs a plan of one stage. The options say on what and for how many steps; device, norms and callbacks are
// those of the comparison, and evaluations are left out.
func NewReference(ctx context.Context, unsplit *plan.Plan, o runtime.Options) (*Reference, error) {
	o.Open, o.SkipEval = cpu.Open, true
	r := &Reference{plan: unsplit, options: o}
	var err error
	r.seen, err = r.run(ctx, unsplit)
	return r, err
}

// Steps is how many training steps were run, Rows how many rows of an infer block.
func (r *Reference) Steps() int { return len(r.seen.steps) }
func (r *Reference) Rows() int  { return r.seen.Rows }

// Distance is the largest difference of a loss or a parameter between two runs of one model, relative to the largest value of
// the parameter, or the loss; what names it.
func (r *Reference) Distance(other *Reference) (distance float64, what string) {
	consider := func(d float64, name string) {
		if !(d <= distance) {
			distance, what = d, name
		}
	}
	for i, s := range r.seen.steps {
		consider(math.Abs(s.Loss-other.seen.steps[i].Loss)/math.Abs(s.Loss), fmt.Sprintf("the loss of step %d", i))
	}
	for i, p := range r.seen.Params {
		largest, most := 0.0, 0.0
		for k, v := range p.Values {
			largest = max(largest, math.Abs(float64(v)))
			most = max(most, math.Abs(float64(v)-float64(other.seen.Params[i].Values[k])))
		}
		if most > 0 {
			consider(most/largest, "the parameter `"+p.Name+"`")
		}
	}
	return distance, what
}

func (r *Reference) run(ctx context.Context, p *plan.Plan) (outcome, error) {
	var out outcome
	o := r.options
	o.Norms, o.Digests = true, true
	o.OnStep = func(s runtime.Step) { out.steps = append(out.steps, s) }
	var err error
	out.Result, err = runtime.Run(ctx, p, o)
	return out, err
}

// Difference is the first thing in which a program differs from the unsplit one.
type Difference struct {
	// Step is the training step, or the batch of an infer block, from 0. Seen says what of its outcome differs.
	Step int
	Seen string
	// Op is nil if the programs do not differ when they are run operation by operation.
	Op *OpDifference
}

// OpDifference is the first operation, in the order of the unsplit program, that gives another result.
type OpDifference struct {
	Kind    string // of the operation; "" for the gradient or value of the parameter Cell
	Cell    string // path
	Pos     diag.Pos
	Pass    string // forward, input gradient, weight gradient, gradient, update
	Micro   int    // -1 at the end of a step
	Stage   int    // of the split program
	Element int    // the first that differs, in row-major order
	// Value and Unsplit are that element in the split and in the unsplit program.
	Value, Unsplit string
}

// Diagnostic reports the difference at the source of the operation.
func (d *Difference) Diagnostic() diag.Diagnostic {
	if d.Op == nil {
		return diag.Errorf(diag.NotEqual, diag.Range{}, "%s; no operation differs when the programs run one by one", d.Seen)
	}
	o := d.Op
	what := fmt.Sprintf("`%s`", o.Kind)
	switch {
	case o.Kind == "":
		what = fmt.Sprintf("the %s of `%s`", o.Pass, o.Cell)
	case o.Pos.Line == 0:
		what = "a sum of gradients"
	}
	if o.Kind != "" && o.Cell != "" {
		what += fmt.Sprintf(" of cell `%s`", o.Cell)
	}
	when := fmt.Sprintf("step %d", d.Step)
	if o.Micro >= 0 {
		when = fmt.Sprintf("%s of micro-batch %d, %s", o.Pass, o.Micro, when)
	}
	return diag.Errorf(diag.NotEqual, diag.At(o.Pos), "%s is the first that differs from the unsplit program: on stage %d element %d is %s, unsplit %s (%s)",
		what, o.Stage, o.Element, o.Value, o.Unsplit, when).WithNote(diag.Range{}, "%s", d.Seen)
}

// Compare runs a plan and compares losses, gradients and weights of every step, or the results of an infer block, with those
// of the unsplit program, bit by bit. If they differ, both programs are run again, operation by operation, to find the
// first operation that does. It returns nil if nothing differs; an error is a run that failed.
func (r *Reference) Compare(ctx context.Context, p *plan.Plan) (*Difference, error) {
	got, err := r.run(ctx, p)
	if err != nil {
		return nil, err
	}
	d := r.differ(p, &got)
	if d == nil {
		return nil, nil
	}
	if p.Degree > 1 || r.plan.Degree > 1 {
		return d, nil // operations work on parts of rows, which the unsplit program has no counterpart of
	}
	d.Op, err = r.locate(ctx, p, d.Step)
	return d, err
}

// differ compares an outcome with that of the unsplit program.
func (r *Reference) differ(p *plan.Plan, got *outcome) *Difference {
	params := r.plan.Module.Params
	for i, s := range r.seen.steps {
		u := got.steps[i]
		if math.Float64bits(s.Loss) != math.Float64bits(u.Loss) {
			return &Difference{Step: i, Seen: fmt.Sprintf("the loss of step %d is %v, unsplit %v", i, u.Loss, s.Loss)}
		}
		for k := range s.Norms {
			if math.Float64bits(s.Norms[k]) != math.Float64bits(u.Norms[k]) {
				return &Difference{Step: i, Seen: fmt.Sprintf("the gradient of `%s` (%s) in step %d has norm %v, unsplit %v", params[k].Name, params[k].Pos, i, u.Norms[k], s.Norms[k])}
			}
		}
		for k := range s.Digests {
			if s.Digests[k] != u.Digests[k] {
				return &Difference{Step: i, Seen: fmt.Sprintf("parameter `%s` (%s) has other values after step %d", params[k].Name, params[k].Pos, i)}
			}
		}
	}
	for rank, outputs := range got.Outputs {
		for k, o := range outputs {
			if o.Array == nil {
				continue
			}
			want := r.seen.Outputs[0][k].Array.Data
			for at := range want {
				if o.Array.Data[at] != want[at] {
					row := at * r.seen.Rows / len(want)
					return &Difference{Step: row / p.Programs[0].Batch, Seen: fmt.Sprintf("row %d of the result `%s` on rank %d is another one", row, o.Name, rank)}
				}
			}
		}
	}
	return nil
}

// key identifies what a record is about, whatever the cut: operations that agree in it stand at one place of the source.
type key struct {
	pass  ir.Pass
	kind  ir.Kind
	pos   diag.Pos
	path  string
	typ   string
	micro int
	// At the end of a step.
	param   string
	updated bool
}

func keyOf(r *device.Record) key {
	if r.Op == nil {
		return key{micro: -1, param: r.Param.Name, updated: r.Updated}
	}
	k := key{pass: r.Op.Pass, kind: r.Op.Kind, pos: r.Op.Pos, micro: r.Micro}
	if k.pos.IsValid() {
		k.path = r.Path
	} else {
		k.typ = r.Type.String() // a sum of gradients stands inside or outside of a call, as the form of the functions has it
	}
	return k
}

// trace is what the operations of one step gave, in the order in which they ran.
type trace struct {
	order []place
	by    map[key]*group
}

// value is the nth of a group that may not be there.
func (g *group) value(n int) *value {
	if g == nil || n >= len(g.values) {
		return nil
	}
	return &g.values[n]
}

// group is the values of a key.
type group struct {
	values []value
	has    map[uint64]bool // digests
}

// place is the nth record of a key.
type place struct {
	key key
	nth int
}

type value struct {
	digest uint64
	path   string
	stage  int
	typ    ir.Type
	pos    diag.Pos
	data   []byte // where it was asked for
}

// trace runs a program up to a step and keeps digests of it, and the data of one key if it is given.
func (r *Reference) trace(ctx context.Context, p *plan.Plan, step int, seed maphash.Seed, keep *key) (*trace, error) {
	t := &trace{by: map[key]*group{}}
	var mu sync.Mutex
	o := r.options
	if p.Programs[0].Train {
		o.Steps = step + 1
	}
	o.Device.Trace = func(x *device.Record) {
		if x.Step != step {
			return
		}
		k := keyOf(x)
		v := value{digest: maphash.Bytes(seed, x.Data), path: x.Path, stage: x.Stage, typ: x.Type}
		if x.Op != nil {
			v.pos = x.Op.Pos
		} else {
			v.pos = x.Param.Pos
		}
		if keep != nil && k == *keep {
			v.data = bytes.Clone(x.Data)
		}
		mu.Lock()
		defer mu.Unlock()
		g := t.by[k]
		if g == nil {
			g = &group{has: map[uint64]bool{}}
			t.by[k] = g
		}
		t.order = append(t.order, place{k, len(g.values)})
		g.values = append(g.values, v)
		g.has[v.digest] = true
	}
	_, err := runtime.Run(ctx, p, o)
	// Ranks run side by side: what they gave is put in an order that does not depend on it.
	for _, g := range t.by {
		slices.SortStableFunc(g.values, func(a, b value) int { return cmp.Compare(a.stage, b.stage) })
	}
	return t, err
}

// locate finds the first operation of a step that differs; nil if none does.
func (r *Reference) locate(ctx context.Context, p *plan.Plan, step int) (*OpDifference, error) {
	seed := maphash.MakeSeed()
	whole, err := r.trace(ctx, r.plan, step, seed, nil)
	if err != nil {
		return nil, err
	}
	split, err := r.trace(ctx, p, step, seed, nil)
	if err != nil {
		return nil, err
	}
	at, i, j := compare(whole, split)
	if i < 0 {
		return nil, nil
	}
	// Run both again, for the elements.
	if whole, err = r.trace(ctx, r.plan, step, seed, &at); err != nil {
		return nil, err
	}
	if split, err = r.trace(ctx, p, step, seed, &at); err != nil {
		return nil, err
	}
	a, b := whole.by[at].value(i), split.by[at].value(j)
	if a == nil || b == nil {
		return nil, nil // the fault depends on timing
	}
	d := &OpDifference{Cell: b.path, Pos: b.pos, Micro: at.micro, Stage: b.stage}
	switch {
	case at.param == "":
		d.Kind, d.Pass = at.kind.String(), []string{"forward", "input gradient", "weight gradient"}[at.pass]
	case at.updated:
		d.Cell, d.Pass = at.param, "update"
	default:
		d.Cell, d.Pass = at.param, "gradient"
	}
	size := a.typ.DType.Size()
	for ; (d.Element+1)*size < len(a.data); d.Element++ {
		if !bytes.Equal(a.data[d.Element*size:][:size], b.data[d.Element*size:][:size]) {
			break
		}
	}
	d.Value, d.Unsplit = element(b, d.Element), element(a, d.Element)
	return d, nil
}

// compare finds the first key, in the order of the unsplit program, whose values differ, and which of them; i is -1 if none
// does. A cut may change the order of the values at one place of the source, and repeat what it computes on several
// stages: each must be among those of the other program. What only one of them computes is not compared.
func compare(whole, split *trace) (at key, i, j int) {
	for _, p := range whole.order {
		a, b := whole.by[p.key], split.by[p.key]
		if b == nil {
			continue
		}
		if v := &a.values[p.nth]; !b.has[v.digest] {
			// Its counterpart is one that the unsplit program does not have, in the same cell if there is one.
			j := a.lacks(b, func(w *value) bool { return w.path == v.path })
			if j < 0 {
				j = a.lacks(b, func(*value) bool { return true })
			}
			if j < 0 {
				j = min(p.nth, len(b.values)-1)
			}
			return p.key, p.nth, j
		}
		if p.nth == len(a.values)-1 {
			if j := a.lacks(b, func(*value) bool { return true }); j >= 0 {
				return p.key, min(j, p.nth), j
			}
		}
	}
	return key{}, -1, -1
}

// lacks finds a value of another group that the group does not have, -1 if there is none.
func (g *group) lacks(other *group, suits func(*value) bool) int {
	for j := range other.values {
		if w := &other.values[j]; !g.has[w.digest] && suits(w) {
			return j
		}
	}
	return -1
}

// element prints one element of a value.
func element(v *value, i int) string {
	size := v.typ.DType.Size()
	b := v.data[i*size:][:size]
	switch v.typ.DType {
	case ir.F32:
		return fmt.Sprint(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case ir.I32:
		return fmt.Sprint(int32(binary.LittleEndian.Uint32(b)))
	}
	return fmt.Sprint(b[0]) // bool
}
