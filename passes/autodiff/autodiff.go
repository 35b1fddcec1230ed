// Package autodiff builds the joint graph: the unsplit training step of one micro-batch.
//
// It works on calls. Each (function, which arguments want a gradient, which results have one) gives, once, three
// functions: the forward one with the values to keep as extra results, the input-gradient one, and the
// weight-gradient one, which holds accumulations only. Reads of a parameter are never folded here: every read (one
// operand of one operation at one call path) has an accumulator of its own.
//
// The gradient of a value with several consumers is a left fold over them in reverse program order, where the uses in
// one scope (the chain of calls an operation was written in) are folded first and count as one consumer in the scope
// above, and the uses outside the scope that defines the value count as the last. So it does not matter whether a call
// was inlined.
package autodiff

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
)

// Step is the joint graph of one micro-batch.
type Step struct {
	// Func has the arguments of the entry function, then the seed of the loss (f32[]), then an accumulator per read. Its
	// results are those of the entry function, then the accumulators.
	Func *ir.Func
	// Reads names the parameter of every accumulator, in program order.
	Reads []*ir.Param
}

// Run differentiates the first result of entry, a scalar, by every parameter it reads.
func Run(entry *ir.Func) (*Step, error) {
	if len(entry.Results) == 0 || entry.TypeOf(entry.Results[0]).Rank() != 0 {
		return nil, fmt.Errorf("the first result of %s is not a scalar loss", entry.Name)
	}
	d := &differ{done: map[string]*triple{}, reach: map[string][]bool{}, back: map[*ir.Func][]int{}}
	none := make([]bool, len(entry.Args))
	grads := make([]bool, len(entry.Results))
	grads[0] = true
	t := d.function(entry, none, none, grads)

	m := entry.Module
	f := m.NewFunc(entry.Name + ".step")
	step := &Step{Func: f}
	args := make([]ir.ValueID, len(entry.Args))
	for i, a := range entry.Args {
		args[i] = f.AddArg(entry.Value(a).Name, entry.TypeOf(a))
	}
	seed := f.AddArg("seed", entry.TypeOf(entry.Results[0]))
	accs := make([]ir.ValueID, len(t.reads))
	for i, r := range t.reads {
		p := r.param
		step.Reads = append(step.Reads, p)
		accs[i] = f.AddArg("grad."+p.Name, p.Type)
	}
	at := ir.Unmarked(ir.Pos{})
	forward := f.Inline(&ir.Op{Callee: t.forward, At: at}, args, false)
	find := func(s source) ir.ValueID {
		switch s.kind {
		case fromArg:
			return args[s.index]
		case fromResult:
			return forward.Results[s.index]
		case fromParam:
			return f.ReadParam(s.param)
		}
		return seed
	}
	pick := func(ss []source, input []ir.ValueID) []ir.ValueID {
		out := make([]ir.ValueID, len(ss))
		for i, s := range ss {
			if s.kind == fromInput {
				out[i] = input[s.index]
			} else {
				out[i] = find(s)
			}
		}
		return out
	}
	input := f.Inline(&ir.Op{Callee: t.input, At: at}, pick(t.inputArgs, nil), false)
	weight := f.Inline(&ir.Op{Callee: t.weight, At: at}, append(append([]ir.ValueID{}, accs...), pick(t.weightArgs, input.Results)...), false)
	link(forward.Ops, input.Ops)
	link(forward.Ops, weight.Ops)
	f.Return(append(append([]ir.ValueID{}, forward.Results[:len(entry.Results)]...), weight.Results...)...)
	return step, nil
}

// link rewrites Forward of inlined gradient operations from ids of the forward function to those of the copies.
func link(forward, gradient []*ir.Op) {
	for _, op := range gradient {
		if op != nil && op.Forward != 0 {
			op.Forward = forward[op.Forward].ID
		}
	}
}

// source says where the caller finds an argument of a gradient function.
type source struct {
	kind  sourceKind
	index int
	param *ir.Param
}

type sourceKind uint8

const (
	fromArg    sourceKind = iota // argument of the forward function
	fromResult                   // result of the forward function
	fromGrad                     // gradient of a result
	fromInput                    // result of the input-gradient function
	fromParam                    // module parameter (entry function only)
)

// read is one read of a parameter: the argument of this function it goes back to, or the parameter itself.
type read struct {
	arg   int
	param *ir.Param
}

// triple is the differentiated form of a function.
type triple struct {
	forward, input, weight *ir.Func
	inputArgs              []source // of input
	weightArgs             []source // of weight, behind the accumulators
	gradOf                 []int    // per argument: the result of input that is its gradient, -1 for none
	reads                  []read   // program order
}

type differ struct {
	done  map[string]*triple
	reach map[string][]bool
	back  map[*ir.Func][]int
}

// nameOf is the name of f for these properties of its arguments and results.
func nameOf(f *ir.Func, masks ...[]bool) string {
	key := []byte(f.Name)
	for _, mask := range masks {
		key = append(key, ' ')
		for _, on := range mask {
			if on {
				key = append(key, '1')
			} else {
				key = append(key, '0')
			}
		}
	}
	return string(key)
}

// function differentiates f. wants: per argument, whether its gradient is asked; params: whether it is a trained
// parameter; grads: per result, whether a gradient arrives.
func (d *differ) function(f *ir.Func, wants, params, grads []bool) *triple {
	key := nameOf(f, wants, params, grads)
	if t := d.done[key]; t != nil {
		return t
	}
	b := &builder{differ: d, t: &triple{}}
	b.run(f, wants, params, grads)
	d.done[key] = b.t
	return b.t
}
