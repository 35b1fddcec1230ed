package frontend

import (
	"fmt"
	"slices"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// entry builds the function of one micro-batch.
func (b *block) entry() {
	f := &frame{fn: b.newFunc(b.spec.Name), params: map[*storage]ir.ValueID{}, locals: map[string]value{}}
	at := b.decl.At
	b.spec.Entry = f.fn
	for _, in := range b.inputs {
		b.spec.Inputs = append(b.spec.Inputs, in.Input)
		t := in.Type
		if !in.Whole {
			shape := slices.Clone(t.Shape)
			shape[0] /= b.spec.MicroBatches
			t = ir.Tensor(t.DType, shape...)
		}
		f.locals[in.Name] = tensor{f.fn.AddArg(in.Name, t), t}
	}
	inside := *b.env
	inside.frame = f
	var results []tensor
	add := func(name string, x value, where diag.Range) {
		switch x := x.(type) {
		case tensor:
			results = append(results, x)
			b.spec.Results = append(b.spec.Results, plan.Result{Name: name})
		case ratio:
			results = append(results, x.sum, x.count)
			b.spec.Results = append(b.spec.Results, plan.Result{Name: name, Ratio: true})
		case poison:
		default:
			b.errorf(diag.BadReturn, where, "the result `%s` is a tensor or a ratio, not %s", name, x.kind())
		}
	}
	switch {
	case b.decl.Kind == "eval" && b.entries["metrics"] != nil:
		b.metrics(&inside, add)
	case b.construct != nil:
		b.blockConstruct(&inside, add)
	default:
		b.networkAndLoss(&inside, add)
	}
	if b.decl.Kind == "train" && len(b.spec.Results) > 0 && !b.list.HasErrors() {
		where := at
		if s := b.entries["loss"]; s != nil {
			where = s.Values[0].Range()
		}
		for _, t := range results {
			if !t.typ.Equal(ir.Tensor(ir.F32)) {
				b.fail(diag.Errorf(diag.BadShape, where, "the loss and the other results of a train block are scalars f32[], not %s", t.typ).
					WithRepair("take the mean(...) or sum(...)"))
				break
			}
		}
	}
	if b.decl.Kind == "infer" && !b.list.HasErrors() {
		b.inferred(f, results)
	}
	if s := b.entries["feedback"]; s != nil && !b.list.HasErrors() {
		b.feedback(s, results)
	}
	f.finish(append(results, f.newValues(at.Pos)...), at.Pos)
	b.arrangeBuffers(f)
	if inst := b.member("optimizer"); inst != nil && b.decl.Kind == "train" {
		b.optimizer(inst)
	}
}

// feed calls the network with its share of the inputs and returns its outputs
// with the inputs that are left.
func (b *block) feed(v *env) (output value, rest []*input) {
	network := b.member("network")
	at := b.entries["network"].Values[0].Range()
	n := len(network.construct.Params)
	for n > 0 && network.construct.Params[n-1].Default != nil {
		n--
	}
	if n > len(b.inputs) {
		return b.errorf(diag.MissingArgument, at, "the network takes %d inputs, the block declares %d", n, len(b.inputs)), nil
	}
	return v.apply(network, given(v, nil, b.inputs[:n], at), at), b.inputs[n:]
}

// given makes arguments of the results of the network, then of inputs.
func given(v *env, output value, inputs []*input, at diag.Range) []argument {
	var args []argument
	for _, x := range parts(output) {
		args = append(args, argument{at: at, value: x})
	}
	for _, in := range inputs {
		args = append(args, argument{at: at, value: v.frame.locals[in.Name]})
	}
	return args
}

// parts gives the values of a result: several when it is a sequence.
func parts(result value) []value {
	switch x := result.(type) {
	case nil:
		return nil
	case list:
		return x.items
	}
	return []value{result}
}

func (b *block) networkAndLoss(v *env, add func(string, value, diag.Range)) {
	output, rest := b.feed(v)
	if isPoison(output) {
		return
	}
	at := b.entries["network"].Values[0].Range()
	if loss := b.member("loss"); loss != nil && b.decl.Kind != "infer" {
		where := b.entries["loss"].Values[0].Range()
		add("loss", v.apply(loss, given(v, output, rest, where), where), where)
		return
	}
	for _, in := range rest {
		b.errorf(diag.BadEntry, in.decl.Name.At, "nothing takes this input")
	}
	var names []string
	for _, c := range b.member("network").compiled {
		names = c.names // the network is called once
	}
	for i, x := range parts(output) {
		name := fmt.Sprintf("output.%d", i)
		if i < len(names) && names[i] != "" {
			name = names[i]
		} else if len(parts(output)) == 1 {
			name = "output"
		}
		add(name, x, at)
	}
}

// metrics calls each metric with the outputs and the inputs that are left.
func (b *block) metrics(v *env, add func(string, value, diag.Range)) {
	output, rest := b.feed(v)
	m, ok := b.entries["metrics"].Values[0].(*syntax.Map)
	if !ok {
		b.fail(diag.Errorf(diag.BadEntry, b.entries["metrics"].Values[0].Range(), "`metrics` is a map").WithRepair("{ accuracy: Accuracy() }"))
		return
	}
	if isPoison(output) {
		return
	}
	outside := *b.env
	for i, k := range m.Keys {
		name, ok := k.(*syntax.Name)
		if !ok {
			b.errorf(diag.BadEntry, k.Range(), "a metric has a name")
			continue
		}
		at := m.Values[i].Range()
		x := outside.eval(m.Values[i])
		inst, ok := x.(*instance)
		if !ok {
			if !isPoison(x) {
				b.errorf(diag.BadEntry, at, "a metric is a cell, not %s", x.kind())
			}
			continue
		}
		b.place(inst, name.Text)
		inst.walk(func(*instance) {}, func(p *storage) {
			b.errorf(diag.BadEntry, at, "a metric has no parameters")
		})
		add(name.Text, v.apply(inst, given(v, output, rest, at), at), at)
	}
}

func (b *block) blockConstruct(v *env, add func(string, value, diag.Range)) {
	c := b.construct
	if len(c.Params) != len(b.inputs) {
		b.errorf(diag.MissingArgument, c.At, "the construct of a block takes its %d inputs, not %d", len(b.inputs), len(c.Params))
		return
	}
	locals := map[string]value{}
	for i, p := range c.Params {
		locals[p.Name.Text] = v.frame.locals[b.inputs[i].Name]
	}
	v.frame.locals = locals
	v.body(c.Body)
	if b.list.HasErrors() {
		return
	}
	if !v.frame.returned {
		b.errorf(diag.BadReturn, c.At, "the construct returns nothing; its first result is the loss")
		return
	}
	for i, x := range parts(v.frame.result) {
		name := ""
		if i < len(v.frame.names) {
			name = v.frame.names[i]
		}
		if i == 0 && b.decl.Kind == "train" {
			name = "loss"
		} else if name == "" {
			name = fmt.Sprintf("output.%d", i)
		}
		add(name, x, c.At)
	}
}

// unused warns of cells and parameters that nothing applies or reads. What is
// below an unused cell is not named again.
func (b *block) unused() {
	if b.list.HasErrors() {
		return
	}
	visit := func(i *instance) {
		if !i.applied && i.parent != nil && (i.parent == b.root || i.parent.applied) {
			b.list.Add(diag.Warningf(diag.UnusedCell, i.from, "the cell `%s` is never applied", i.path()))
		}
	}
	declare := func(p *storage) {
		if !p.read && p.owner.applied {
			what := "parameter"
			if p.buffer {
				what = "buffer"
			}
			b.list.Add(diag.Warningf(diag.UnusedCell, diag.At(p.param.Pos), "the %s `%s` is never read", what, p.param.Name))
		}
	}
	for _, name := range b.root.order {
		if inst := b.member(name); inst != nil && name != "optimizer" {
			inst.walk(visit, declare)
		}
	}
}
