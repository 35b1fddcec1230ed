package ir

import (
	"fmt"
	"slices"
)

// Inlined says what became of the operations of an inlined callee.
type Inlined struct {
	Results []ValueID
	Ops     []*Op // by OpID of the callee; nil where there was none
}

// Inline appends the body of a call to f: the operations of call.Callee with values mapped to args. The operations get
// the scope `instance` below the call's scope, a scope of their own below it for each scope inside, and the call's
// stage and segment where they have none. It is how calls are inlined and opened; nothing else moves operations between functions.
//
// Before gradients are made, apart must be set: a value given for two arguments, returned twice, or returned as it was
// given, then stays as many values, so that gradients are folded per argument and result, as in a call. These
// identities carry the mark `argument`: reads of a parameter go through them.
func (f *Func) Inline(call *Op, args []ValueID, apart bool) Inlined {
	callee := call.Callee
	scopes := make([]ScopeID, len(callee.scopes))
	scopes[0] = f.AddScope(call.Scope, call.Instance)
	copied := func(v ValueID) ValueID {
		at := At{Pos: call.Pos, Stage: call.Stage, Segment: call.Segment, Chunk: call.Chunk, Scope: scopes[0], Pass: call.Pass}
		return f.MustEmit(Identity, []ValueID{v}, Attrs{BoolAttr("argument", true)}, at)
	}
	values := make([]ValueID, callee.values.count)
	for i, a := range callee.Args {
		values[a] = args[i]
	}
	for i := len(args) - 1; apart && i > 0; i-- {
		if slices.Contains(args[:i], args[i]) {
			values[callee.Args[i]] = copied(args[i])
		}
	}
	for _, v := range callee.order {
		values[v] = f.ReadParam(callee.values.at(v).Param)
	}
	for i, s := range callee.scopes[1:] {
		scopes[i+1] = f.AddScope(scopes[s.Parent], s.Name)
	}
	done := Inlined{Ops: make([]*Op, callee.NumOps())}
	for _, op := range callee.Ops {
		at := op.At
		at.Scope = scopes[op.Scope]
		if at.Stage < 0 {
			at.Stage = call.Stage
		}
		if at.Segment < 0 {
			at.Segment = call.Segment
		}
		done.Ops[op.ID] = f.CopyOp(op, mapped(op.Args, values), at)
		for i, r := range done.Ops[op.ID].Results {
			values[op.Results[i]] = r
		}
	}
	done.Results = mapped(callee.Results, values)
	for i := len(done.Results) - 1; apart && i >= 0; i-- {
		r := callee.Results[i]
		if callee.values.at(r).Op == nil || slices.Contains(callee.Results[:i], r) {
			done.Results[i] = copied(done.Results[i])
		}
	}
	return done
}

func mapped(vs, to []ValueID) []ValueID {
	out := make([]ValueID, len(vs))
	for i, v := range vs {
		if out[i] = to[v]; out[i] == 0 {
			panic(fmt.Sprintf("ir: value %d is not defined where it is copied", v))
		}
	}
	return out
}

// CopyOp appends a copy of an operation (of any function) with other operands of the same types.
func (f *Func) CopyOp(op *Op, args []ValueID, at At) *Op {
	out := make([]Type, len(op.Results))
	if op.Callee != nil {
		for i, r := range op.Callee.Results {
			out[i] = op.Callee.values.at(r).Type
		}
	} else if len(out) > 0 {
		types := make([]Type, len(args))
		for i, a := range args {
			types[i] = f.values.at(a).Type
		}
		var err error
		if out, err = op.Kind.Info().Infer(types, op.Attrs); err != nil {
			panic(fmt.Sprintf("ir: copy of %s to %s: %v", op.Kind, f.Name, err))
		}
	}
	f.append(op.Kind, args, op.Attrs, op.Callee, at, out)
	return f.Ops[len(f.Ops)-1]
}

// Alias says whose buffer a result shares: that of an argument, of an earlier result, or its own (both -1).
type Alias struct{ Arg, Result int }

// AliasOf returns the alias of every result: a view of an argument or an accumulator written in place shares the
// argument's buffer, a second view of one value that of the first.
func (f *Func) AliasOf() []Alias {
	root := f.Roots()
	out := make([]Alias, len(f.Results))
	first := map[ValueID]int{}
	for i, r := range f.Results {
		out[i] = Alias{-1, -1}
		v := root[r]
		if f.values.at(v).Op == nil && f.values.at(v).Param == nil {
			out[i].Arg = f.values.at(v).Index
			continue
		}
		if j, ok := first[v]; ok {
			out[i].Result = j
		} else {
			first[v] = i
		}
	}
	return out
}

// Roots returns, per value, the value whose buffer it shares: itself, or the root of the operand of a view, of an
// in-place operation or of a call that returns its argument.
func (f *Func) Roots() []ValueID {
	root := make([]ValueID, f.values.count)
	for v := range root {
		root[v] = ValueID(v)
	}
	alias := map[*Func][]Alias{}
	for _, op := range f.Ops {
		switch info := op.Kind.Info(); {
		case info.View || info.InPlace:
			root[op.Results[0]] = root[op.Args[0]]
		case op.Callee != nil:
			as, ok := alias[op.Callee]
			if !ok {
				as = op.Callee.AliasOf()
				alias[op.Callee] = as
			}
			for i, a := range as {
				switch {
				case a.Arg >= 0:
					root[op.Results[i]] = root[op.Args[a.Arg]]
				case a.Result >= 0:
					root[op.Results[i]] = root[op.Results[a.Result]]
				}
			}
		}
	}
	return root
}
