package frontend

import (
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// feedback reads the entry of that name: { input: result, passes: n }. A pass of a request then works on one token a row,
// and the result of one pass is the input of the next.
func (b *block) feedback(s *syntax.Assign, results []tensor) {
	at := s.Values[0].Range()
	const form = "feedback = { token: next }"
	m, ok := s.Values[0].(*syntax.Map)
	if !ok {
		b.fail(diag.Errorf(diag.BadEntry, at, "`feedback` is a map from the input to the result that is its next value").WithRepair(form))
		return
	}
	fb := &plan.Feedback{Input: -1}
	for i, k := range m.Keys {
		key, ok := k.(*syntax.Name)
		if ok && key.Text == "passes" {
			n, ok := b.whole(m.Values[i], "`passes`")
			if ok && n < 1 {
				b.errorf(diag.BadEntry, m.Values[i].Range(), "a request makes at least one pass, not %d", n)
			}
			fb.Passes = n
			continue
		}
		result, ok2 := m.Values[i].(*syntax.Name)
		switch {
		case !ok || !ok2:
			b.fail(diag.Errorf(diag.BadEntry, k.Range(), "`feedback` names an input and a result").WithRepair(form))
			return
		case fb.Input >= 0:
			b.errorf(diag.BadEntry, k.Range(), "one input is fed back, not two")
			return
		}
		if fb.Input, ok = b.inputNamed(key); !ok {
			return
		}
		if fb.Output, ok = b.resultNamed(result); !ok {
			return
		}
	}
	if fb.Input < 0 {
		b.fail(diag.Errorf(diag.BadEntry, at, "`feedback` names no input").WithRepair(form))
		return
	}
	in, out := b.inputs[fb.Input], results[fb.Output]
	f := b.spec.Entry
	arg := f.Args[fb.Input]
	switch rows := f.TypeOf(arg); {
	case len(b.inputs) > 1:
		other := b.inputs[1-min(fb.Input, 1)]
		b.fail(diag.Errorf(diag.BadEntry, other.decl.Name.At, "a block with `feedback` has one input, the one that is fed back; `%s` is another", other.Name).
			WithRepair("make it a parameter, a buffer or a constant of the network"))
	case in.Whole || in.Type.Rank() != 1 || in.Type.DType != ir.I32:
		b.fail(diag.Errorf(diag.BadShape, in.decl.Name.At, "the input `%s` is %s; with `feedback` it has one token for each request: i32[rows]", in.Name, in.Type).
			WithRepair("%s: i32[%d]", in.Name, max(b.spec.MicroBatches, 1)))
	case !out.typ.Equal(rows):
		b.fail(diag.Errorf(diag.BadShape, m.Values[0].Range(), "the result `%s` is %s; the input `%s` of a micro-batch is %s", b.spec.Results[fb.Output].Name, out.typ, in.Name, rows).
			WithRepair("the next token of each row, for example argmax(logits)"))
	case f.Value(f.Roots()[out.id]).Op == nil:
		b.errorf(diag.BadEntry, m.Values[0].Range(), "the result `%s` is the input itself: every pass would do the same", b.spec.Results[fb.Output].Name)
	default:
		fb.Limit = tableRows(f, arg)
		b.spec.Feedback = fb
	}
	for _, name := range []string{"dataset", "output_broadcast"} {
		if e := b.entries[name]; e != nil {
			why := "its prompts come from -input"
			if name != "dataset" {
				why = "a result that every stage has to wait for would hold the next pass up"
			}
			b.errorf(diag.BadEntry, e.At, "a block with `feedback` has no `%s`: %s", name, why)
		}
	}
}

func (b *block) inputNamed(n *syntax.Name) (int, bool) {
	var names []string
	for i, in := range b.inputs {
		if in.Name == n.Text {
			return i, true
		}
		names = append(names, in.Name)
	}
	d := diag.Errorf(diag.UnknownName, n.At, "the block has no input %q", n.Text)
	if d.Repair = diag.DidYouMean(n.Text, names); d.Repair == "" {
		d.Repair = "its inputs are " + strings.Join(names, ", ")
	}
	b.fail(d)
	return 0, false
}

func (b *block) resultNamed(n *syntax.Name) (int, bool) {
	var names []string
	for i, r := range b.spec.Results {
		if r.Name == n.Text {
			return i, true
		}
		names = append(names, r.Name)
	}
	d := diag.Errorf(diag.UnknownName, n.At, "the block has no result %q", n.Text)
	if d.Repair = diag.DidYouMean(n.Text, names); d.Repair == "" {
		d.Repair = "its results are " + strings.Join(names, ", ")
	}
	b.fail(d)
	return 0, false
}

// tableRows is the number of rows of the smallest table in which f looks v up, 0 if there is none: an index beyond it would
// end the run.
func tableRows(f *ir.Func, v ir.ValueID) int {
	same := make([]bool, f.NumValues())
	same[v] = true
	least := 0
	found := func(n int) {
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	for _, op := range f.Ops {
		for i, a := range op.Args {
			switch {
			case !same[a]:
			case op.Callee != nil:
				found(tableRows(op.Callee, op.Callee.Args[i]))
			case op.Kind == ir.Gather && i == 1:
				found(f.TypeOf(op.Args[0]).Shape[0])
			case op.Kind.Info().View:
				same[op.Results[0]] = true
			}
		}
	}
	return least
}
