package frontend

import (
	"path"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// optimizer elaborates the update of one element of a parameter. The first two arguments of its construct are element and
// gradient; each further one is a scalar with the value of the cell's member or argument of that name. The cell's buffers
// are kept for every element.
func (b *block) optimizer(inst *instance) {
	params := inst.construct.Params
	at := b.entries["optimizer"].Values[0].Range()
	if len(params) < 2 {
		b.errorf(diag.MissingArgument, at, "the construct of an optimizer takes a parameter and its gradient")
		return
	}
	o := &plan.Optimizer{Name: inst.class.decl.Name.Text}
	f := &frame{fn: b.newFunc(o.Name), inst: inst, params: map[*storage]ir.ValueID{}, locals: map[string]value{}}
	f.element = true
	inside := &env{elaborator: b.elaborator, file: inst.class.file, inst: inst, from: at, frame: f}
	scalar := ir.Tensor(ir.F32)
	argument := func(name string) {
		f.locals[name] = tensor{f.fn.AddArg(name, scalar), scalar}
	}
	argument(params[0].Name.Text)
	argument(params[1].Name.Text)
	for _, name := range inst.order {
		p, ok := inst.buffer(name)
		if !ok {
			continue
		}
		first, constant := firstValue(p.param.Init)
		if !constant || !p.param.Type.Equal(scalar) {
			b.errorf(diag.WrongType, p.at, "a buffer of an optimizer is f32[], for each element, and starts with zeros(), ones() or constant(c)")
			return
		}
		argument(name)
		o.States = append(o.States, plan.State{Name: name, Init: first})
	}
	for _, p := range params[2:] {
		s, ok := scalarOf(p.Name.Text, inst.members[p.Name.Text])
		if !ok {
			s, ok = scalarOf(p.Name.Text, inst.args[p.Name.Text])
		}
		if !ok {
			b.errorf(diag.MissingArgument, at, "the optimizer %s has no number `%s`", o.Name, p.Name.Text)
			return
		}
		argument(p.Name.Text)
		o.Scalars = append(o.Scalars, s)
	}
	before := len(b.list)
	inside.body(inst.construct.Body)
	if b.list[before:].HasErrors() || b.halted {
		return
	}
	if len(f.sites) > 0 {
		b.errorf(diag.NotSupported, at, "an optimizer has no random operations")
		return
	}
	element, ok := f.result.(tensor)
	if !ok || !element.typ.Equal(scalar) {
		what := "nothing"
		if f.result != nil {
			what = f.result.kind()
		}
		b.errorf(diag.BadReturn, at, "an optimizer returns the new value of the element, not %s", what)
		return
	}
	results := []tensor{element}
	for _, s := range o.States {
		results = append(results, f.locals[s.Name].(tensor))
	}
	f.finish(results, inside.origin(at).Pos)
	o.Func = f.fn
	b.optimizerGroups(o)
	dropScalars(f, o)
	b.spec.Optimizer = o
}

// firstValue is what an initialiser gives to every element; false if that depends on the element.
func firstValue(i ir.Init) (float64, bool) {
	switch i.Kind {
	case "zeros":
		return 0, true
	case "ones":
		return 1, true
	case "constant":
		return i.Args[0], true
	}
	return 0, false
}

// scalarOf makes a scalar of a number or schedule.
func scalarOf(name string, x value) (plan.Scalar, bool) {
	switch x := x.(type) {
	case number:
		return plan.Scalar{Name: name, Value: x.float()}, true
	case schedule:
		return plan.Scalar{Name: name, Schedule: &x.Schedule}, true
	}
	return plan.Scalar{}, false
}

// readScalars tells which scalars of the optimizer its function reads.
func readScalars(o *plan.Optimizer) []bool {
	uses := o.Func.Uses()
	first := 2 + len(o.States)
	out := make([]bool, len(o.Scalars))
	for i := range out {
		out[i] = len(uses[o.Func.Args[first+i]]) > 0
	}
	return out
}

// dropScalars removes the scalars that nothing reads.
func dropScalars(f *frame, o *plan.Optimizer) {
	read := readScalars(o)
	first := 2 + len(o.States)
	arguments := slices.Clone(o.Func.Args[:first])
	kept := func(list []plan.Scalar) (out []plan.Scalar) {
		for i, s := range list {
			if read[i] {
				out = append(out, s)
			}
		}
		return out
	}
	for i, on := range read {
		if on {
			arguments = append(arguments, o.Func.Args[first+i])
		}
	}
	o.Scalars = kept(o.Scalars)
	for i := range o.Groups {
		o.Groups[i].Scalars = kept(o.Groups[i].Scalars)
	}
	f.arrange(arguments)
}

// withoutGroups takes the argument `groups` out of the optimizer's call: it is a map, which is no value of the language.
func (b *block) withoutGroups(x syntax.Expr) syntax.Expr {
	call, ok := x.(*syntax.Call)
	if !ok {
		return x
	}
	i := slices.IndexFunc(call.Args, func(a syntax.Arg) bool { return a.Name.Text == "groups" })
	if i < 0 {
		return x
	}
	m, ok := call.Args[i].Value.(*syntax.Map)
	if !ok {
		b.fail(diag.Errorf(diag.BadEntry, call.Args[i].Value.Range(), "`groups` is a map from parameters to settings").
			WithRepair(`{ "*.bias": { weight_decay: 0 } }`))
	}
	b.groups = m
	rest := *call
	rest.Args = slices.Delete(slices.Clone(call.Args), i, i+1)
	return &rest
}

// optimizerGroups gives parameters scalars of their own. The first key that matches a parameter has it; a key that gets
// none is an error.
func (b *block) optimizerGroups(o *plan.Optimizer) {
	if b.groups == nil {
		return
	}
	read := readScalars(o)
	taken := map[string]bool{}
	for i, k := range b.groups.Keys {
		m, ok := b.groups.Values[i].(*syntax.Map)
		if !ok {
			b.fail(diag.Errorf(diag.BadEntry, b.groups.Values[i].Range(), "the settings of a group are a map").WithRepair("{ weight_decay: 0 }"))
			continue
		}
		g := plan.Group{Scalars: slices.Clone(o.Scalars)}
		matched := b.matchParams("groups", k)
		trained := slices.DeleteFunc(slices.Clone(matched), func(name string) bool { return b.module.Param(name).Frozen })
		for _, p := range trained {
			if !taken[p] {
				taken[p] = true
				g.Params = append(g.Params, p)
			}
		}
		switch {
		case len(matched) > 0 && len(trained) == 0:
			b.errorf(diag.BadEntry, k.Range(), "every parameter that this key matches is frozen")
		case len(trained) > 0 && len(g.Params) == 0:
			b.errorf(diag.BadEntry, k.Range(), "earlier keys have every parameter that this one matches")
		}
		for j, name := range m.Keys {
			b.override(o, g.Scalars, read, name, m.Values[j])
		}
		o.Groups = append(o.Groups, g)
	}
}

// override sets one scalar of a group.
func (b *block) override(o *plan.Optimizer, scalars []plan.Scalar, read []bool, key, x syntax.Expr) {
	n, ok := key.(*syntax.Name)
	if !ok {
		b.errorf(diag.BadEntry, key.Range(), "a setting of a group is a name")
		return
	}
	var names []string
	for _, s := range o.Scalars {
		names = append(names, s.Name)
	}
	i := slices.Index(names, n.Text)
	if i < 0 {
		b.fail(diag.Errorf(diag.UnknownArgument, n.At, "`%s` of %s cannot differ between parameters", n.Text, o.Name).
			WithRepair("what can are %s", strings.Join(names, ", ")))
		return
	}
	v := b.eval(x)
	s, ok := scalarOf(n.Text, v)
	switch {
	case isPoison(v):
	case !ok:
		b.errorf(diag.WrongType, x.Range(), "`%s` is a number or a schedule, not %s", n.Text, v.kind())
	case !read[i]:
		b.fail(diag.Errorf(diag.BadEntry, n.At, "`%s` has no effect here: the optimizer does not use it", n.Text).
			WithRepair("give `%s` to %s itself and set it back in groups", n.Text, o.Name))
	default:
		scalars[i] = s
	}
}

// matchParams gives the parameters that a key means: a pattern, or the path of a parameter or of a cell that holds some.
func (b *block) matchParams(entry string, k syntax.Expr) []string {
	var names, found []string
	for _, p := range b.module.Params {
		names = append(names, p.Name)
	}
	key := ""
	if s, ok := k.(*syntax.String); ok {
		key = s.Value
		for _, p := range names {
			match, err := path.Match(s.Value, p)
			if err != nil {
				b.errorf(diag.BadEntry, k.Range(), "%q is not a pattern", s.Value)
				return nil
			}
			if match {
				found = append(found, p)
			}
		}
	} else {
		wanted, ok := b.keyPaths(entry, k)
		if !ok {
			return nil
		}
		for _, w := range wanted {
			key = w
			before := len(found)
			for _, p := range names {
				if p == w || strings.HasPrefix(p, w+".") {
					found = append(found, p)
				}
			}
			if len(found) == before {
				found = nil
				break
			}
		}
	}
	if len(found) == 0 {
		d := diag.Errorf(diag.UnknownName, k.Range(), "no parameter %q in the network", key)
		d.Repair = diag.DidYouMean(key, names)
		b.fail(d)
	}
	return found
}

// scheduleOf makes a schedule of a number or schedule.
func (v *env) scheduleOf(a argument) (plan.Schedule, bool) {
	switch x := a.value.(type) {
	case number:
		return plan.Schedule{Kind: "constant", Args: []float64{x.float()}}, true
	case schedule:
		return x.Schedule, true
	}
	v.errorf(diag.WrongType, a.at, "a schedule or a number is wanted, not %s", a.value.kind())
	return plan.Schedule{}, false
}

// stepCount reads a number of steps.
func (v *env) stepCount(a argument) (float64, bool) {
	n, ok := v.wholeValue(a.value, a.at, "a number of steps")
	if ok && n < 1 {
		v.errorf(diag.BadNumber, a.at, "a number of steps is at least 1, not %d", n)
		ok = false
	}
	return float64(n), ok
}

func warmup(v *env, args []argument, at diag.Range) value {
	n, ok1 := v.stepCount(args[0])
	then, ok2 := v.scheduleOf(args[1])
	if !ok1 || !ok2 {
		return poison{}
	}
	return schedule{plan.Schedule{Kind: "warmup", Args: []float64{n}, Then: &then}}
}

func cosine(v *env, args []argument, at diag.Range) value {
	n, ok := v.stepCount(args[2])
	top, ok1 := args[0].value.(number)
	low, ok2 := args[1].value.(number)
	if !ok {
		return poison{}
	}
	if !ok1 || !ok2 {
		return v.errorf(diag.WrongType, at, "`cosine` goes from one number to another, not from %s to %s", args[0].value.kind(), args[1].value.kind())
	}
	return schedule{plan.Schedule{Kind: "cosine", Args: []float64{top.float(), low.float(), n}}}
}

func biasCorrection(v *env, args []argument, at diag.Range) value {
	n, ok := args[0].value.(number)
	if !ok || !(n.float() >= 0 && n.float() < 1) {
		return v.errorf(diag.BadNumber, at, "the decay of a running mean is at least 0 and below 1, not %s", args[0].value.kind())
	}
	return schedule{plan.Schedule{Kind: "bias_correction", Args: []float64{n.float()}}}
}
