package ir

// Gradient is what a gradient rule works on: the forward operation, its values in the backward function, the
// gradients of its results, and where to put those of its operands.
//
// A rule emits the operations of one vector-Jacobian product. It must emit the same operations whatever is needed
// besides, so that the result of one operand never depends on whether another one wants a gradient.
type Gradient struct {
	Op *Op
	// Func is the function under construction.
	Func *Func
	// Operand and Result give the backward function's value of a forward operand or result; asking for one saves it.
	Operand func(i int) ValueID
	Result  func(i int) ValueID
	// D is the gradient of result i; never 0 for the operations of the table, which have one result.
	D func(i int) ValueID
	// Needs reports whether operand i wants a gradient.
	Needs func(i int) bool
	// Set gives the gradient of operand i.
	Set func(i int, d ValueID)
	// SetMatMul gives the gradient x^T @ dy of operand i, a matrix ([n, k] if transposed). For a parameter it
	// becomes matmul_accumulate, whose chain of multiply-adds runs on over micro-batches.
	SetMatMul func(i int, x, dy ValueID, transposed bool)
	// SetGather gives the gradient of operand i, a table: rows of dy added up at ids. For a parameter it becomes
	// gather_accumulate, whose additions run on over micro-batches.
	SetGather func(i int, ids, dy ValueID)
	// OperandType and ResultType are forward types.
	OperandType func(i int) Type
	ResultType  func(i int) Type
}

func (g *Gradient) emit(k Kind, args []ValueID, attrs ...Attr) ValueID {
	return g.Func.MustEmit(k, args, attrs, g.At())
}

// At is the position of gradient operations: that of the forward operation, in the input pass.
func (g *Gradient) At() At {
	at := g.Op.At
	at.Instance, at.Pass, at.Forward = "", InputPass, g.Op.ID
	return at
}

// like reduces d to the shape of operand i, undoing a broadcast.
func (g *Gradient) like(i int, d ValueID) ValueID {
	want := g.OperandType(i)
	if equalInts(g.Func.TypeOf(d).Shape, want.Shape) {
		return d
	}
	return g.emit(SumTo, []ValueID{d}, IntsAttr("shape", want.Shape))
}

func gradIdentity(g *Gradient) { g.Set(0, g.D(0)) }

func gradReshape(g *Gradient) {
	g.Set(0, g.emit(Reshape, []ValueID{g.D(0)}, IntsAttr("shape", g.OperandType(0).Shape)))
}

func gradTranspose(g *Gradient) {
	perm := g.Op.Attrs.Ints("perm")
	inverse := make([]int, len(perm))
	for i, p := range perm {
		inverse[p] = i
	}
	g.Set(0, g.emit(Transpose, []ValueID{g.D(0)}, IntsAttr("perm", inverse)))
}

func gradBroadcastTo(g *Gradient) { g.Set(0, g.like(0, g.D(0))) }

func gradSumTo(g *Gradient) {
	g.Set(0, g.emit(BroadcastTo, []ValueID{g.D(0)}, IntsAttr("shape", g.OperandType(0).Shape)))
}

func gradConcat(g *Gradient) {
	axis, start := g.Op.Attrs.Int("axis"), 0
	for i := range g.Op.Args {
		stop := start + g.OperandType(i).Shape[axis]
		if g.Needs(i) {
			g.Set(i, g.emit(Slice, []ValueID{g.D(0)}, IntAttr("axis", axis), IntAttr("start", start), IntAttr("stop", stop)))
		}
		start = stop
	}
}

func gradSlice(g *Gradient) {
	axis := g.Op.Attrs.Int("axis")
	g.Set(0, g.emit(Pad, []ValueID{g.D(0)}, IntAttr("axis", axis), IntAttr("start", g.Op.Attrs.Int("start")), IntAttr("size", g.OperandType(0).Shape[axis])))
}

func gradPad(g *Gradient) {
	axis, start := g.Op.Attrs.Int("axis"), g.Op.Attrs.Int("start")
	g.Set(0, g.emit(Slice, []ValueID{g.D(0)}, IntAttr("axis", axis), IntAttr("start", start), IntAttr("stop", start+g.OperandType(0).Shape[axis])))
}

func gradCast(g *Gradient) {
	if g.Op.Attrs.DType("dtype").IsFloat() {
		g.Set(0, g.emit(Cast, []ValueID{g.D(0)}, DTypeAttr("dtype", g.OperandType(0).DType)))
	}
}

func gradAdd(g *Gradient) {
	for i := range 2 {
		if g.Needs(i) {
			g.Set(i, g.like(i, g.D(0)))
		}
	}
}

func gradSub(g *Gradient) {
	if g.Needs(0) {
		g.Set(0, g.like(0, g.D(0)))
	}
	if g.Needs(1) {
		g.Set(1, g.emit(Neg, []ValueID{g.like(1, g.D(0))}))
	}
}

func gradMul(g *Gradient) {
	for i := range 2 {
		if g.Needs(i) {
			g.Set(i, g.like(i, g.emit(Mul, []ValueID{g.D(0), g.Operand(1 - i)})))
		}
	}
}

func gradDiv(g *Gradient) {
	if g.Needs(0) {
		g.Set(0, g.like(0, g.emit(Div, []ValueID{g.D(0), g.Operand(1)})))
	}
	if g.Needs(1) { // d(a/b)/db = -(a/b)/b
		t := g.emit(Mul, []ValueID{g.D(0), g.Result(0)})
		t = g.emit(Div, []ValueID{t, g.Operand(1)})
		g.Set(1, g.emit(Neg, []ValueID{g.like(1, t)}))
	}
}

// gradExtremum sends the gradient of max(a, b) or min(a, b) to a where they are equal.
func gradExtremum(g *Gradient) {
	first, second := g.Operand(1), g.Operand(0) // b <= a
	if g.Op.Kind == Minimum {
		first, second = second, first
	}
	chosen := g.emit(LessEqual, []ValueID{first, second})
	zero := g.emit(Constant, nil, DTypeAttr("dtype", g.ResultType(0).DType), FloatAttr("value", 0), IntsAttr("shape", []int{}))
	if g.Needs(0) {
		g.Set(0, g.like(0, g.emit(Where, []ValueID{chosen, g.D(0), zero})))
	}
	if g.Needs(1) {
		g.Set(1, g.like(1, g.emit(Where, []ValueID{chosen, zero, g.D(0)})))
	}
}

func gradWhere(g *Gradient) {
	zero := g.emit(Constant, nil, DTypeAttr("dtype", g.ResultType(0).DType), FloatAttr("value", 0), IntsAttr("shape", []int{}))
	if g.Needs(1) {
		g.Set(1, g.like(1, g.emit(Where, []ValueID{g.Operand(0), g.D(0), zero})))
	}
	if g.Needs(2) {
		g.Set(2, g.like(2, g.emit(Where, []ValueID{g.Operand(0), zero, g.D(0)})))
	}
}

func gradNeg(g *Gradient) { g.Set(0, g.emit(Neg, []ValueID{g.D(0)})) }

func gradScale(g *Gradient) {
	g.Set(0, g.emit(Scale, []ValueID{g.D(0)}, FloatAttr("factor", g.Op.Attrs.Float("factor"))))
}

func gradExp(g *Gradient) { g.Set(0, g.emit(Mul, []ValueID{g.D(0), g.Result(0)})) }

func gradLog(g *Gradient) { g.Set(0, g.emit(Div, []ValueID{g.D(0), g.Operand(0)})) }

func gradSqrt(g *Gradient) { // 1/(2 sqrt x)
	half := g.emit(Scale, []ValueID{g.D(0)}, FloatAttr("factor", 0.5))
	g.Set(0, g.emit(Div, []ValueID{half, g.Result(0)}))
}

func gradRsqrt(g *Gradient) { // -1/2 x^(-3/2)
	r := g.Result(0)
	cube := g.emit(Mul, []ValueID{g.emit(Mul, []ValueID{r, r}), r})
	g.Set(0, g.emit(Scale, []ValueID{g.emit(Mul, []ValueID{g.D(0), cube})}, FloatAttr("factor", -0.5)))
}

func gradTril(g *Gradient) { g.Set(0, g.emit(Tril, []ValueID{g.D(0)})) }

// gradDropout draws the mask again: the same key gives the same mask.
func gradDropout(g *Gradient) {
	g.Set(0, g.emit(Dropout, []ValueID{g.D(0), g.Operand(1)}, g.Op.Attrs...))
}

func gradGather(g *Gradient) { g.SetGather(0, g.Operand(1), g.D(0)) }

func gradAbs(g *Gradient) {
	zero := g.emit(Constant, nil, DTypeAttr("dtype", g.ResultType(0).DType), FloatAttr("value", 0), IntsAttr("shape", []int{}))
	negative := g.emit(Less, []ValueID{g.Operand(0), zero})
	g.Set(0, g.emit(Where, []ValueID{negative, g.emit(Neg, []ValueID{g.D(0)}), g.D(0)}))
}

// gradRelu needs the result only: it is positive where the operand is.
func gradRelu(g *Gradient) { g.Set(0, g.emit(ReluGrad, []ValueID{g.D(0), g.Result(0)})) }

func gradFromResult(k Kind) func(*Gradient) {
	return func(g *Gradient) { g.Set(0, g.emit(k, []ValueID{g.D(0), g.Result(0)})) }
}

func gradGelu(g *Gradient) { g.Set(0, g.emit(GeluGrad, []ValueID{g.D(0), g.Operand(0)})) }

// gradMatMul: for y = op(a) op(b) the four products that the transpositions ask for.
func gradMatMul(g *Gradient) {
	ta, tb := g.Op.Attrs.Bool("transpose_a"), g.Op.Attrs.Bool("transpose_b")
	product := func(x, y ValueID, tx, ty bool) ValueID {
		return g.emit(MatMul, []ValueID{x, y}, BoolAttr("transpose_a", tx), BoolAttr("transpose_b", ty))
	}
	if g.Needs(0) {
		if ta {
			g.Set(0, product(g.Operand(1), g.D(0), tb, true))
		} else {
			g.Set(0, product(g.D(0), g.Operand(1), false, !tb))
		}
	}
	if !g.Needs(1) {
		return
	}
	a, d := g.Operand(0), g.D(0)
	switch {
	case g.OperandType(1).Rank() == 2 && !ta:
		g.SetMatMul(1, a, d, tb)
	case tb:
		g.Set(1, product(d, a, true, ta))
	default:
		g.Set(1, product(a, d, !ta, false))
	}
}

// spread undoes a reduction: reshape to the kept form, then broadcast.
func (g *Gradient) spread(d ValueID) ValueID {
	t := g.OperandType(0)
	on, _ := ReducedAxes(t, g.Op.Attrs)
	kept := make([]int, t.Rank())
	for i, n := range t.Shape {
		kept[i] = n
		if on[i] {
			kept[i] = 1
		}
	}
	if !equalInts(kept, g.Func.TypeOf(d).Shape) {
		d = g.emit(Reshape, []ValueID{d}, IntsAttr("shape", kept))
	}
	return g.emit(BroadcastTo, []ValueID{d}, IntsAttr("shape", t.Shape))
}

func gradSum(g *Gradient) { g.Set(0, g.spread(g.D(0))) }

func gradMean(g *Gradient) {
	share := float64(g.ResultType(0).Elems()) / float64(g.OperandType(0).Elems())
	g.Set(0, g.spread(g.emit(Scale, []ValueID{g.D(0)}, FloatAttr("factor", share))))
}

func gradCrossEntropy(g *Gradient) {
	g.Set(0, g.emit(CrossEntropyGrad, []ValueID{g.Operand(0), g.Operand(1), g.D(0)}))
}
