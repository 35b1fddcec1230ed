// Package dataparallel splits every micro-batch over the ranks of a stage.
//
// Shapes of a model are global. With degree d the ranks of a stage run one function on the r-th part of the rows each, so axis
// 0 of every value that holds rows becomes d times shorter here; constants that the model took from a shape stay what they
// were. What a value is to the whole batch follows from the operation that makes it: see plan.Fold. An operation whose result on
// a part of the rows is no part of its result on all of them (it mixes rows) is a diagnostic.
package dataparallel

import (
	"fmt"
	"slices"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Run rewrites an entry function for a part of the rows. rows is axis 0 of its inputs; whole says which of them have no rows. Buffers
// stand behind the inputs, and their new values behind the results, from number results on. They are the same on all ranks; but
// where each micro-batch has its own buffers (own), those with an entry for each row hold the entries of a rank's rows. Run returns
// how each result of the whole micro-batch comes from those of the ranks.
func Run(entry *ir.Func, rows, degree int, whole []bool, results int, own bool) (*ir.Func, []plan.Fold, diag.List) {
	if degree == 1 {
		return entry, make([]plan.Fold, len(entry.Results)), nil
	}
	s := &splitter{rows: rows, degree: degree, done: map[string]*part{}}
	args := make([]plan.Fold, len(entry.Args))
	for i, a := range entry.Args {
		t, buffer := entry.TypeOf(a), i >= len(whole)
		if !buffer && !whole[i] || buffer && own && t.Rank() > 0 && t.Shape[0] == rows {
			args[i] = plan.ByRows
		}
	}
	p := s.function(entry, args)
	for i := results; i < len(p.results); i++ {
		kept, at := args[len(whole)+i-results], diag.At(entry.Value(entry.Results[i]).Op.Pos)
		switch {
		case p.results[i] == kept:
			continue
		case kept == plan.ByRows:
			s.list.Add(diag.Errorf(diag.MixesRows, at, "a buffer with an entry for each row gets a value that has none for those of a rank; the rows are on %d ranks", degree).
				WithRepair("use as many devices as stages"))
		default:
			s.list.Add(diag.Errorf(diag.MixesRows, at, "a buffer gets a value that depends on the rows of the batch, which are on %d ranks", degree).
				WithRepair("use as many devices as stages"))
		}
		return nil, nil, s.list
	}
	return p.f, p.results, s.list
}

// part is a function on a part of the rows.
type part struct {
	f       *ir.Func
	results []plan.Fold
}

type splitter struct {
	rows, degree int
	done         map[string]*part
	list         diag.List
}

// body is a function under way.
type body struct {
	*splitter
	*ir.Copier
	fold []plan.Fold // by value of From
}

func (s *splitter) function(f *ir.Func, args []plan.Fold) *part {
	key := fmt.Sprint(f.Name, args)
	if p := s.done[key]; p != nil {
		return p
	}
	b := &body{splitter: s, Copier: &ir.Copier{From: f, To: f.Module.NewFunc(f.Name), Values: make([]ir.ValueID, f.NumValues())}, fold: make([]plan.Fold, f.NumValues())}
	b.To.LazyInline = f.LazyInline
	for i, a := range f.Args {
		b.fold[a] = args[i]
		b.Values[a] = b.To.AddArg(f.Value(a).Name, s.local(f.TypeOf(a), args[i]))
	}
	for _, v := range f.ParamReads() {
		b.Values[v] = b.To.ReadParam(f.Value(v).Param)
	}
	for _, scope := range f.Scopes()[1:] {
		b.To.AddScope(scope.Parent, scope.Name)
	}
	for _, op := range f.Ops {
		if s.list.HasErrors() {
			break // values behind the first fault have no meaning
		}
		if op.Callee != nil {
			b.call(op)
		} else {
			b.operation(op)
		}
	}
	p := &part{f: b.To}
	if !s.list.HasErrors() {
		b.Finish()
		for _, r := range f.Results {
			p.results = append(p.results, b.fold[r])
		}
	}
	s.done[key] = p
	return p
}

// local is the type of a rank's part of a value.
func (s *splitter) local(t ir.Type, fold plan.Fold) ir.Type {
	if fold != plan.ByRows {
		return t
	}
	return ir.Type{DType: t.DType, Shape: s.shorter(t.Shape)}
}

// shorter divides axis 0 by the degree.
func (s *splitter) shorter(shape []int) []int {
	out := slices.Clone(shape)
	out[0] /= s.degree
	return out
}

// holdsRows reports whether axis 0 can be rows: the same number of entries for each, next to each other.
func (s *splitter) holdsRows(shape []int) bool { return len(shape) > 0 && shape[0]%s.rows == 0 }

func (b *body) call(op *ir.Op) {
	kinds := make([]plan.Fold, len(op.Args))
	for i, a := range op.Args {
		kinds[i] = b.fold[a]
	}
	p := b.function(op.Callee, kinds)
	if b.list.HasErrors() {
		return
	}
	b.Bind(op, b.To.Call(p.f, b.Mapped(op.Args), op.At))
	for i, r := range op.Results {
		b.fold[r] = p.results[i]
	}
}

// operation copies an operation, with what its attributes say about rows adapted, and finds what its result is.
func (b *body) operation(op *ir.Op) {
	fold, ok := b.rule(op)
	args := make([]ir.ValueID, len(op.Args))
	for i, a := range op.Args {
		args[i] = b.Values[a]
		if !ok || !op.Kind.Info().Elementwise && op.Kind != ir.Concat || fold != plan.ByRows || b.fold[a] == plan.ByRows || !b.meetsRows(op, a) {
			continue
		}
		if args[i] = b.shrunk(a); args[i] == 0 {
			ok = false
		}
	}
	if !ok {
		b.list.Add(b.mixes(op))
		return
	}
	attrs := op.Attrs
	if fold == plan.ByRows {
		switch op.Kind {
		case ir.Reshape, ir.BroadcastTo:
			attrs = ir.Attrs{ir.IntsAttr("shape", b.shorter(b.From.TypeOf(op.Results[0]).Shape))}
		case ir.Dropout:
			attrs = append(slices.Clone(attrs), ir.BoolAttr("rows", true)) // the mask of a part is that part of the whole mask
		}
	}
	results, err := b.To.Emit(op.Kind, args, attrs, op.At)
	if err != nil {
		panic(fmt.Sprintf("dataparallel: %s in %s: %v", op.Kind, b.From.Name, err))
	}
	b.Bind(op, results)
	for _, r := range op.Results {
		b.fold[r] = fold
	}
}

// mixes is the error of an operation of which the ranks cannot make a part each.
func (b *body) mixes(op *ir.Op) diag.Diagnostic {
	joined := slices.IndexFunc(op.Args, func(a ir.ValueID) bool { return b.fold[a] == plan.Summed || b.fold[a] == plan.Averaged })
	if joined < 0 {
		return diag.Errorf(diag.MixesRows, diag.At(op.Pos), "`%s` mixes rows of the batch, which are on %d ranks", op.Kind, b.degree).
			WithRepair("work within each row before the loss, or use as many devices as stages")
	}
	a := op.Args[joined]
	what := "mean"
	if b.fold[a] == plan.Summed {
		what = "sum"
	}
	whole := slices.ContainsFunc(op.Args, func(a ir.ValueID) bool { return b.fold[a] == plan.Whole })
	var d diag.Diagnostic
	if what == "sum" && whole && (op.Kind == ir.Add || op.Kind == ir.Sub || op.Kind == ir.Concat) {
		d = diag.Errorf(diag.MixesRows, diag.At(op.Pos), "`%s` joins a sum over the rows of the batch, which are on %d ranks, with what each of them has whole: that would count %d times", op.Kind, b.degree, b.degree).
			WithRepair("take the mean over the rows instead of the sum; or add the value, divided by the number of rows, to each row before the sum")
	} else {
		d = diag.Errorf(diag.MixesRows, diag.At(op.Pos), "`%s` needs the %s over all rows of the batch, which are on %d ranks", op.Kind, what, b.degree).
			WithRepair("only multiples and sums of a %s can follow it: do the rest within each row; or use as many devices as stages", what)
	}
	if def := b.From.Value(a).Op; def != nil && def.Pos.IsValid() && def.Pos != op.Pos {
		d = d.WithNote(diag.At(def.Pos), "the %s is made here", what)
	}
	return d
}

// meetsRows reports whether axis 0 of an operand stands beside the rows of the result.
func (b *body) meetsRows(op *ir.Op, a ir.ValueID) bool {
	t, out := b.From.TypeOf(a), b.From.TypeOf(op.Results[0])
	return t.Rank() == out.Rank() && t.Shape[0] != 1
}

// shrunk makes a value that is the same in every row for fewer rows; 0 if it is not known to be.
func (b *body) shrunk(a ir.ValueID) ir.ValueID {
	def := b.From.Value(a).Op
	if def == nil {
		return 0
	}
	switch shape := b.From.TypeOf(a).Shape; def.Kind {
	case ir.Constant:
		attrs := ir.Attrs{ir.DTypeAttr("dtype", def.Attrs.DType("dtype")), ir.FloatAttr("value", def.Attrs.Float("value")), ir.IntsAttr("shape", b.shorter(shape))}
		return b.To.MustEmit(ir.Constant, nil, attrs, def.At)
	case ir.BroadcastTo:
		if from := b.From.TypeOf(def.Args[0]); from.Rank() < len(shape) || from.Shape[0] == 1 {
			return b.To.MustEmit(ir.BroadcastTo, []ir.ValueID{b.Values[def.Args[0]]}, ir.Attrs{ir.IntsAttr("shape", b.shorter(shape))}, def.At)
		}
	}
	return 0
}

// rule says what the result of an operation is, given what its operands are. ok is false if it mixes rows.
func (b *body) rule(op *ir.Op) (fold plan.Fold, ok bool) {
	in := make([]plan.Fold, len(op.Args))
	for i, a := range op.Args {
		in[i] = b.fold[a]
	}
	if op.Kind.Info().Effect {
		return plan.Whole, true // each rank shows its part
	}
	if !slices.ContainsFunc(in, func(k plan.Fold) bool { return k != plan.Whole }) {
		return plan.Whole, true
	}
	if slices.Contains(in, plan.Averaged) || slices.Contains(in, plan.Summed) {
		return b.linear(op, in)
	}
	shape := b.From.TypeOf(op.Args[0]).Shape
	out := b.From.TypeOf(op.Results[0]).Shape
	switch op.Kind {
	case ir.Sum, ir.Mean:
		axes, _ := ir.ReducedAxes(b.From.TypeOf(op.Args[0]), op.Attrs)
		switch {
		case !axes[0]:
			return plan.ByRows, true
		case op.Kind == ir.Sum:
			return plan.Summed, true
		}
		return plan.Averaged, true
	case ir.MatMul:
		return b.product(op, in)
	case ir.Gather:
		return plan.ByRows, in[0] == plan.Whole
	case ir.CrossEntropy:
		return plan.ByRows, in[0] == plan.ByRows && in[1] == plan.ByRows
	case ir.Reshape, ir.Flatten:
		return plan.ByRows, b.holdsRows(out)
	case ir.Transpose:
		return plan.ByRows, op.Attrs.Ints("perm")[0] == 0
	case ir.Concat, ir.Slice, ir.Pad:
		return plan.ByRows, op.Attrs.Int("axis") != 0
	case ir.Softmax, ir.ArgMax:
		return plan.ByRows, len(shape) > 1
	case ir.Tril:
		return plan.ByRows, len(shape) > 2
	case ir.Identity:
		return plan.ByRows, true
	case ir.Dropout, ir.BroadcastTo:
		return plan.ByRows, in[0] == plan.ByRows && len(shape) == len(out) && shape[0] == out[0]
	}
	if op.Kind.Info().Elementwise {
		for i, a := range op.Args {
			t := b.From.TypeOf(a)
			if in[i] == plan.ByRows && (t.Rank() != len(out) || t.Shape[0] != out[0]) {
				return 0, false // rows meet another axis
			}
		}
		return plan.ByRows, true
	}
	return 0, false
}

// product of matrices: rows of the left side stay rows; a product over the rows is a sum over them.
func (b *body) product(op *ir.Op, in []plan.Fold) (plan.Fold, bool) {
	x, y := b.From.TypeOf(op.Args[0]), b.From.TypeOf(op.Args[1])
	left, right := in[0] == plan.ByRows, in[1] == plan.ByRows
	over := op.Attrs.Bool("transpose_a") && x.Rank() == 2
	switch {
	case y.Rank() > 2: // axis 0 is a leading axis of both sides
		return plan.ByRows, left && right
	case over:
		return plan.Summed, left && right && !op.Attrs.Bool("transpose_b")
	}
	return plan.ByRows, left && !right
}

// linear: of a sum or mean over ranks only what is linear in it is one too.
func (b *body) linear(op *ir.Op, in []plan.Fold) (plan.Fold, bool) {
	kind := plan.Whole
	for _, k := range in {
		if k == plan.ByRows || k != plan.Whole && kind != plan.Whole && k != kind {
			return 0, false
		}
		if k != plan.Whole {
			kind = k
		}
	}
	switch op.Kind {
	case ir.Add, ir.Sub, ir.Concat:
		// A mean of terms with a constant has the constant once; a sum would have it for every rank.
		return kind, kind == plan.Averaged || !slices.Contains(in, plan.Whole)
	case ir.Mul, ir.MatMul:
		return kind, in[0] == plan.Whole || in[1] == plan.Whole
	case ir.Div:
		return kind, in[1] == plan.Whole
	case ir.Neg, ir.Scale, ir.Identity, ir.Reshape, ir.Flatten, ir.Transpose, ir.BroadcastTo, ir.Slice, ir.Pad, ir.Sum, ir.Mean:
		return kind, true
	case ir.Cast:
		return kind, op.Attrs.DType("dtype").IsFloat()
	}
	return 0, false
}
