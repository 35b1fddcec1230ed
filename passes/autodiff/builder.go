package autodiff

import (
	"strconv"

	"github.com/ppc-lang/ppc/ir"
)

// builder differentiates one function: first it copies it to the forward form, then it walks that backwards.
type builder struct {
	*differ
	t *triple

	f        *ir.Func              // the forward form, whose results grow by what has to be kept
	active   []bool                // by value: has a gradient if one arrives
	isRead   []bool                // by value: a trained parameter
	constant []bool                // by value: depends on constants only
	calls    map[ir.OpID]*triple   // differentiated callees
	saved    []int                 // by value: 1 + the result of f that keeps it, 0 without
	input    *ir.Func              // the input-gradient form
	inputs   map[source]ir.ValueID // what became an argument of input
	from     map[ir.ValueID]source // and back
	consts   map[ir.ValueID]ir.ValueID
	export   map[ir.ValueID]int // value of input -> its result index
	given    [][]contribution   // by value

	accumulations []accumulation // in reverse program order
}

// contribution is the gradient that one consumer gives; scope -1 stands for the function's callers.
type contribution struct {
	scope ir.ScopeID
	grad  ir.ValueID
}

// accumulation is an operation of the weight function, or a call of one.
type accumulation struct {
	op       *ir.Op // forward operation
	kind     ir.Kind
	attrs    ir.Attrs
	callee   *triple
	reads    []read
	operands []source
}

// activity finds the values that a gradient can reach, given the active arguments.
func (d *differ) activity(f *ir.Func, args []bool) []bool {
	active := make([]bool, f.NumValues())
	for i, a := range f.Args {
		active[a] = args[i] && f.TypeOf(a).DType.IsFloat()
	}
	for _, v := range f.ParamReads() {
		active[v] = isTrained(f, v)
	}
	for _, op := range f.Ops {
		any := false
		mask := make([]bool, len(op.Args))
		for i, a := range op.Args {
			mask[i] = active[a] && takesGradient(op, i)
			any = any || mask[i]
		}
		switch {
		case !any:
		case op.Kind == ir.Call:
			for i, on := range d.reaches(op.Callee, mask) {
				active[op.Results[i]] = on
			}
		case op.Kind.Info().Gradient != nil:
			active[op.Results[0]] = f.TypeOf(op.Results[0]).DType.IsFloat()
		}
	}
	return active
}

// isTrained tells whether a value that is a parameter has a gradient.
func isTrained(f *ir.Func, v ir.ValueID) bool {
	return f.TypeOf(v).DType.IsFloat() && !f.Value(v).Param.Frozen
}

// reaches tells which results of f depend on an active argument.
func (d *differ) reaches(f *ir.Func, mask []bool) []bool {
	key := nameOf(f, mask)
	if out, ok := d.reach[key]; ok {
		return out
	}
	active := d.activity(f, mask)
	out := make([]bool, len(f.Results))
	for i, r := range f.Results {
		out[i] = active[r]
	}
	d.reach[key] = out
	return out
}

// sames gives, per value, the argument or parameter it is although it comes from a call or was given for two arguments
// of an inlined one; else the value itself.
func (d *differ) sames(f *ir.Func) []ir.ValueID {
	same := make([]ir.ValueID, f.NumValues())
	for v := range same {
		same[v] = ir.ValueID(v)
	}
	for _, op := range f.Ops {
		switch {
		case op.Kind == ir.Identity && op.Attrs.Bool("argument"):
			same[op.Results[0]] = same[op.Args[0]]
		case op.Callee != nil:
			for i, k := range d.returned(op.Callee) {
				if k >= 0 {
					same[op.Results[i]] = same[op.Args[k]]
				}
			}
		}
	}
	return same
}

// returned tells which argument each result of f is, -1 if none.
func (d *differ) returned(f *ir.Func) []int {
	out, ok := d.back[f]
	if !ok {
		same := d.sames(f)
		for _, r := range f.Results {
			rec, k := f.Value(same[r]), -1
			if rec.Op == nil && rec.Param == nil {
				k = rec.Index
			}
			out = append(out, k)
		}
		d.back[f] = out
	}
	return out
}

// takesGradient reports whether operand k of op can get a gradient at all: labels and conditions do not.
func takesGradient(op *ir.Op, k int) bool {
	switch op.Kind {
	case ir.CrossEntropy:
		return k == 0
	case ir.Where:
		return k > 0
	case ir.Cast:
		return op.Attrs.DType("dtype").IsFloat()
	}
	return true
}

func (b *builder) run(f *ir.Func, wants, params, grads []bool) {
	b.copyForward(f, wants, params, grads)
	b.input = f.Module.NewFunc(f.Name + ".input_gradient")
	for _, s := range f.Scopes()[1:] {
		b.input.AddScope(s.Parent, s.Name)
	}
	b.inputs, b.from = map[source]ir.ValueID{}, map[ir.ValueID]source{}
	b.consts, b.export = map[ir.ValueID]ir.ValueID{}, map[ir.ValueID]int{}
	b.given = make([][]contribution, b.f.NumValues())
	for i := range f.Results {
		if grads[i] && b.active[b.f.Results[i]] {
			g := b.argument(source{kind: fromGrad, index: i}, "d."+strconv.Itoa(i), f.TypeOf(f.Results[i]))
			b.given[b.f.Results[i]] = append(b.given[b.f.Results[i]], contribution{-1, g})
		}
	}
	for i := len(b.f.Ops) - 1; i >= 0; i-- {
		if op := b.f.Ops[i]; b.calls[op.ID] != nil {
			b.call(op, b.calls[op.ID])
		} else {
			b.operation(op)
		}
	}
	b.t.gradOf = make([]int, len(b.f.Args))
	for i, a := range b.f.Args {
		b.t.gradOf[i] = -1
		if wants[i] {
			if g := b.fold(a, 0); g != 0 {
				b.t.gradOf[i] = b.result(g)
			}
		}
	}
	b.finish(f.Name)
}

// copyForward makes the forward function; its calls go to differentiated callees where a gradient will pass. Which
// results of a call get a gradient is known from a backward sweep.
func (b *builder) copyForward(f *ir.Func, wants, params, grads []bool) {
	mask := make([]bool, len(f.Args))
	isRead := make([]bool, f.NumValues())
	for i, a := range f.Args {
		mask[i] = wants[i] || params[i]
		isRead[a] = params[i] && f.TypeOf(a).DType.IsFloat()
	}
	for _, v := range f.ParamReads() {
		isRead[v] = isTrained(f, v)
	}
	// A parameter that comes back from a call is still the parameter: who uses it reads the parameter.
	same := b.sames(f)
	for v, s := range same {
		isRead[v] = isRead[s]
	}
	active := b.activity(f, mask)
	reached := make([]bool, f.NumValues()) // a gradient arrives at the value
	for i, r := range f.Results {
		reached[r] = reached[r] || grads[i] && active[r]
	}
	b.calls = map[ir.OpID]*triple{}
	for i := len(f.Ops) - 1; i >= 0; i-- {
		op := f.Ops[i]
		any := false
		for _, r := range op.Results {
			any = any || reached[r]
		}
		switch {
		case !any:
		case op.Kind != ir.Call:
			for k, a := range op.Args {
				reached[a] = reached[a] || active[a] && !isRead[a] && takesGradient(op, k)
			}
		default:
			w, p, g := make([]bool, len(op.Args)), make([]bool, len(op.Args)), make([]bool, len(op.Results))
			for k, a := range op.Args {
				p[k] = isRead[a]
				w[k] = active[a] && !isRead[a]
			}
			for k, r := range op.Results {
				g[k] = reached[r]
			}
			t := b.function(op.Callee, w, p, g)
			b.calls[op.ID] = t
			for k, a := range op.Args {
				reached[a] = reached[a] || t.gradOf[k] >= 0
			}
		}
	}

	forward := ir.NewCopier(f, f.Name+".forward")
	fwd, copies := forward.To, forward.Values
	b.f, b.t.forward = fwd, fwd
	for _, op := range f.Ops {
		c := *op
		t := b.calls[op.ID]
		if t != nil {
			c.Callee = t.forward
			c.Results = make([]ir.ValueID, len(t.forward.Results))
		}
		n := fwd.CopyOp(&c, forward.Mapped(op.Args), op.At)
		if n.ID != op.ID {
			panic("autodiff: operations of " + f.Name + " are not numbered in order")
		}
		forward.Bind(op, n.Results)
		for _, r := range op.Results {
			if isRead[r] {
				copies[r] = copies[same[r]]
			}
		}
	}
	forward.Finish()
	b.saved = make([]int, fwd.NumValues())
	for i, r := range fwd.Results {
		if b.saved[r] == 0 {
			b.saved[r] = i + 1
		}
	}
	b.constant = fwd.Constants()
	b.active = make([]bool, fwd.NumValues())
	b.isRead = make([]bool, fwd.NumValues())
	for v, c := range copies {
		if c != 0 {
			b.active[c], b.isRead[c] = active[v], isRead[v]
		}
	}
}

// argument makes (once) the argument of the input function that comes from s.
func (b *builder) argument(s source, name string, t ir.Type) ir.ValueID {
	if v, ok := b.inputs[s]; ok {
		return v
	}
	v := b.input.AddArg(name, t)
	b.inputs[s], b.from[v] = v, s
	return v
}

// source tells where the caller finds a forward value; one that is neither argument nor result becomes a result.
func (b *builder) source(v ir.ValueID) source {
	rec := b.f.Value(v)
	switch {
	case rec.Param != nil:
		return source{kind: fromParam, param: rec.Param}
	case rec.Op == nil:
		return source{kind: fromArg, index: rec.Index}
	}
	if b.saved[v] == 0 {
		b.f.Results = append(b.f.Results, v)
		b.saved[v] = len(b.f.Results)
	}
	return source{kind: fromResult, index: b.saved[v] - 1}
}

// value gives the input function's value of a forward value. What depends on constants only is made again, all else is
// an argument.
func (b *builder) value(v ir.ValueID) ir.ValueID {
	if b.constant[v] {
		c, ok := b.consts[v]
		if !ok {
			op := b.f.Value(v).Op
			args := make([]ir.ValueID, len(op.Args))
			for i, a := range op.Args {
				args[i] = b.value(a)
			}
			at := op.At
			at.Pass, at.Forward = ir.InputPass, op.ID
			c = b.input.MustEmit(op.Kind, args, op.Attrs, at)
			b.consts[v] = c
		}
		return c
	}
	return b.argument(b.source(v), "v"+strconv.Itoa(len(b.inputs)), b.f.TypeOf(v))
}

// result makes v a result of the input function.
func (b *builder) result(v ir.ValueID) int {
	i, ok := b.export[v]
	if !ok {
		i = len(b.input.Results)
		b.export[v] = i
		b.input.Results = append(b.input.Results, v)
	}
	return i
}

// operand tells where the caller of the weight function finds a value of the input function.
func (b *builder) operand(v ir.ValueID) source {
	if s, ok := b.from[v]; ok {
		return s
	}
	return source{kind: fromInput, index: b.result(v)}
}

func (b *builder) readOf(v ir.ValueID) read {
	rec := b.f.Value(v)
	return read{arg: rec.Index, param: rec.Param}
}

// operation emits the gradient of one operation.
func (b *builder) operation(op *ir.Op) {
	info := op.Kind.Info()
	if info.Gradient == nil {
		return
	}
	d := b.fold(op.Results[0], op.Scope)
	if d == 0 {
		return
	}
	sums := make([]*accumulation, len(op.Args))
	grads := make([]ir.ValueID, len(op.Args))
	g := &ir.Gradient{
		Op: op, Func: b.input,
		Operand:     func(i int) ir.ValueID { return b.value(op.Args[i]) },
		Result:      func(i int) ir.ValueID { return b.value(op.Results[i]) },
		D:           func(int) ir.ValueID { return d },
		Needs:       func(i int) bool { return b.active[op.Args[i]] },
		OperandType: func(i int) ir.Type { return b.f.TypeOf(op.Args[i]) },
		ResultType:  func(i int) ir.Type { return b.f.TypeOf(op.Results[i]) },
	}
	g.Set = func(i int, v ir.ValueID) {
		switch {
		case b.isRead[op.Args[i]]:
			sums[i] = &accumulation{op: op, kind: ir.Accumulate, reads: []read{b.readOf(op.Args[i])}, operands: []source{b.operand(v)}}
		case b.active[op.Args[i]]:
			grads[i] = v
		}
	}
	g.SetMatMul = func(i int, x, dy ir.ValueID, transposed bool) {
		if !b.isRead[op.Args[i]] {
			g.Set(i, b.product(x, dy, transposed, g.At()))
			return
		}
		sums[i] = &accumulation{op: op, kind: ir.MatMulAccumulate, reads: []read{b.readOf(op.Args[i])}, operands: []source{b.operand(x), b.operand(dy)}}
		if transposed {
			sums[i].attrs = ir.Attrs{ir.BoolAttr("transpose_b", true)}
		}
	}
	g.SetGather = func(i int, ids, dy ir.ValueID) {
		if !b.isRead[op.Args[i]] {
			rows := ir.Attrs{ir.IntAttr("rows", g.OperandType(i).Shape[0])}
			g.Set(i, b.input.MustEmit(ir.GatherGrad, []ir.ValueID{dy, ids}, rows, g.At()))
			return
		}
		sums[i] = &accumulation{op: op, kind: ir.GatherAccumulate, reads: []read{b.readOf(op.Args[i])}, operands: []source{b.operand(ids), b.operand(dy)}}
	}
	info.Gradient(g)
	for i, v := range grads {
		if v != 0 {
			b.given[op.Args[i]] = append(b.given[op.Args[i]], contribution{op.Scope, v})
		}
	}
	for i := len(op.Args) - 1; i >= 0; i-- {
		if sums[i] != nil {
			b.accumulations = append(b.accumulations, *sums[i])
		}
	}
}

// product is x^T @ dy over all rows, transposed if asked.
func (b *builder) product(x, dy ir.ValueID, transposed bool, at ir.At) ir.ValueID {
	rows := func(v ir.ValueID) ir.ValueID {
		t := b.input.TypeOf(v)
		if t.Rank() == 2 {
			return v
		}
		n := t.Shape[t.Rank()-1]
		return b.input.MustEmit(ir.Reshape, []ir.ValueID{v}, ir.Attrs{ir.IntsAttr("shape", []int{t.Elems() / n, n})}, at)
	}
	x, dy = rows(x), rows(dy)
	if transposed {
		x, dy = dy, x
	}
	return b.input.MustEmit(ir.MatMul, []ir.ValueID{x, dy}, ir.Attrs{ir.BoolAttr("transpose_a", true)}, at)
}

// call emits the call of a callee's input-gradient function and notes that of its weight-gradient function.
func (b *builder) call(op *ir.Op, t *triple) {
	grads := make([]ir.ValueID, len(op.Results))
	for i, r := range op.Results {
		if b.active[r] {
			grads[i] = b.fold(r, op.Scope)
		}
	}
	// A forward value of the callee is one of the caller: an argument of the call or one of its results.
	forward := func(s source) ir.ValueID {
		if s.kind == fromArg {
			return op.Args[s.index]
		}
		return op.Results[s.index]
	}
	args := make([]ir.ValueID, len(t.inputArgs))
	for i, s := range t.inputArgs {
		if s.kind == fromGrad {
			args[i] = grads[s.index]
		} else {
			args[i] = b.value(forward(s))
		}
	}
	at := op.At
	at.Pass, at.Forward = ir.InputPass, op.ID
	var results []ir.ValueID
	if len(t.input.Results) > 0 {
		results = b.input.Call(t.input, args, at)
	}
	// A value given for several arguments gets one contribution, as when the call is inlined.
	terms := map[ir.ValueID][]ir.ValueID{}
	for i, a := range op.Args {
		if t.gradOf[i] >= 0 {
			terms[a] = append(terms[a], results[t.gradOf[i]])
		}
	}
	for _, a := range op.Args {
		if list := terms[a]; len(list) > 0 {
			b.given[a] = append(b.given[a], contribution{op.Scope, b.sum(op.Scope, list)})
			delete(terms, a)
		}
	}
	if len(t.reads) == 0 {
		return
	}
	a := accumulation{op: op, callee: t}
	for _, r := range t.reads {
		a.reads = append(a.reads, b.readOf(op.Args[r.arg]))
	}
	for _, s := range t.weightArgs {
		switch s.kind {
		case fromInput:
			a.operands = append(a.operands, b.operand(results[s.index]))
		case fromGrad:
			a.operands = append(a.operands, b.operand(grads[s.index]))
		default:
			v := forward(s)
			if b.constant[v] {
				a.operands = append(a.operands, b.operand(b.value(v)))
			} else {
				a.operands = append(a.operands, b.source(v))
			}
		}
	}
	b.accumulations = append(b.accumulations, a)
}

// finish closes the input function and builds the weight function.
func (b *builder) finish(name string) {
	b.input.TrimArgs()
	for _, a := range b.input.Args {
		b.t.inputArgs = append(b.t.inputArgs, b.from[a])
	}
	b.t.input = b.input
	w := b.f.Module.NewFunc(name + ".weight_gradient")
	b.t.weight = w
	for _, s := range b.f.Scopes()[1:] {
		w.AddScope(s.Parent, s.Name)
	}
	for i := len(b.accumulations) - 1; i >= 0; i-- {
		b.t.reads = append(b.t.reads, b.accumulations[i].reads...)
	}
	accs := make([]ir.ValueID, len(b.t.reads))
	for i, r := range b.t.reads {
		var t ir.Type
		if r.param != nil {
			t = r.param.Type
		} else {
			t = b.f.TypeOf(b.f.Args[r.arg])
		}
		accs[i] = w.AddArg("acc"+strconv.Itoa(i), t)
	}
	args := map[source]ir.ValueID{}
	next := 0
	for i := len(b.accumulations) - 1; i >= 0; i-- {
		a := b.accumulations[i]
		operands := append([]ir.ValueID{}, accs[next:next+len(a.reads)]...)
		for _, s := range a.operands {
			v, ok := args[s]
			if !ok {
				v = w.AddArg("v"+strconv.Itoa(len(args)), b.typeOf(s))
				args[s] = v
				b.t.weightArgs = append(b.t.weightArgs, s)
			}
			operands = append(operands, v)
		}
		at := a.op.At
		at.Pass, at.Forward = ir.WeightPass, a.op.ID
		var done []ir.ValueID
		if a.callee != nil {
			done = w.Call(a.callee.weight, operands, at)
		} else {
			at.Instance = ""
			done = []ir.ValueID{w.MustEmit(a.kind, operands, a.attrs, at)}
		}
		copy(accs[next:], done)
		next += len(a.reads)
	}
	w.Return(accs...)
}

func (b *builder) typeOf(s source) ir.Type {
	switch s.kind {
	case fromArg:
		return b.f.TypeOf(b.f.Args[s.index])
	case fromResult:
		return b.f.TypeOf(b.f.Results[s.index])
	case fromParam:
		return s.param.Type
	case fromGrad:
		return b.input.TypeOf(b.inputs[s])
	}
	return b.input.TypeOf(b.input.Results[s.index])
}
