package ir

import (
	"fmt"
	"slices"
)

// Kind names an operation; its row in the table says all there is to know about it.
type Kind uint8

// The operations.
const (
	NoOp Kind = iota
	Call
	Identity
	Reshape
	Flatten
	Transpose
	BroadcastTo
	SumTo
	Concat
	Slice
	Pad
	Cast
	Constant
	Add
	Sub
	Mul
	Div
	Maximum
	Minimum
	Equal
	Less
	LessEqual
	Where
	Neg
	Scale
	Exp
	Log
	Sqrt
	Rsqrt
	Abs
	Relu
	Sigmoid
	Tanh
	Gelu
	ReluGrad
	SigmoidGrad
	TanhGrad
	GeluGrad
	Softmax
	SoftmaxGrad
	Tril
	Dropout
	Gather
	GatherGrad
	GatherAccumulate
	MatMul
	MatMulAccumulate
	Accumulate
	Sum
	Mean
	ArgMax
	CrossEntropy
	CrossEntropyGrad
	Print
	Summary
	TensorDump
	numKinds
)

// Info is a row of the operation table.
type Info struct {
	Name     string
	Operands int // -1: one or more
	Attrs    []AttrSpec
	// Infer gives the result types; its errors are read by users.
	Infer func(in []Type, attrs Attrs) ([]Type, error)
	// Effect: the operation does something beside its results; it is never cloned, merged, recomputed or dropped.
	Effect bool
	// View: the result has the bytes of operand 0; no kernel runs.
	View bool
	// InPlace: result 0 is written over operand 0, which must be an accumulator.
	InPlace bool
	// Elementwise: element i of the result depends on element i of the (broadcast) operands only.
	Elementwise bool
	// Flops per result element; nil means one.
	Flops func(in, out []Type, attrs Attrs) float64
	// Bytes read and written; nil means all of the operands and results.
	Bytes func(in, out []Type) int
	// Gradient emits the vector-Jacobian product; nil where the operation has none (see grad.go).
	Gradient func(*Gradient)
}

// AttrSpec describes an attribute: its type by an example value.
type AttrSpec struct {
	Name     string
	Example  any
	Optional bool
}

// Info returns the row of k.
func (k Kind) Info() *Info { return &table[k] }

func (k Kind) String() string { return table[k].Name }

// KindByName returns the operation of that name.
func KindByName(name string) (Kind, bool) { k, ok := kindByName[name]; return k, ok }

// Kinds returns every operation but call.
func Kinds() []Kind {
	var ks []Kind
	for k := Call + 1; k < numKinds; k++ {
		ks = append(ks, k)
	}
	return ks
}

// kindByName is filled with the table.
var kindByName = map[string]Kind{}

var (
	reduceAttrs = []AttrSpec{{"axes", []int(nil), true}, {"keepdims", false, true}}
	labelAttrs  = []AttrSpec{{"label", "", true}}
)

// table is filled by init: the gradient rules refer to it through Emit.
var table [numKinds]Info

func init() {
	table = [numKinds]Info{
		NoOp:             {Name: "noop"},
		Call:             {Name: "call", Operands: -1},
		Identity:         {Name: "identity", Operands: 1, Attrs: []AttrSpec{{"argument", false, true}}, Infer: same, View: true, Gradient: gradIdentity},
		Reshape:          {Name: "reshape", Operands: 1, Attrs: []AttrSpec{{"shape", []int(nil), false}}, Infer: inferReshape, View: true, Gradient: gradReshape},
		Flatten:          {Name: "flatten", Operands: 1, Attrs: []AttrSpec{{"start", 0, true}}, Infer: inferFlatten, View: true, Gradient: gradReshape},
		Transpose:        {Name: "transpose", Operands: 1, Attrs: []AttrSpec{{"perm", []int(nil), false}}, Infer: inferTranspose, Flops: noFlops, Gradient: gradTranspose},
		BroadcastTo:      {Name: "broadcast_to", Operands: 1, Attrs: []AttrSpec{{"shape", []int(nil), false}}, Infer: inferBroadcastTo, Flops: noFlops, Gradient: gradBroadcastTo},
		SumTo:            {Name: "sum_to", Operands: 1, Attrs: []AttrSpec{{"shape", []int(nil), false}}, Infer: inferSumTo, Flops: inFlops, Gradient: gradSumTo},
		Concat:           {Name: "concat", Operands: -1, Attrs: []AttrSpec{{"axis", 0, false}}, Infer: inferConcat, Flops: noFlops, Gradient: gradConcat},
		Slice:            {Name: "slice", Operands: 1, Attrs: []AttrSpec{{"axis", 0, false}, {"start", 0, false}, {"stop", 0, false}}, Infer: inferSlice, Flops: noFlops, Gradient: gradSlice},
		Pad:              {Name: "pad", Operands: 1, Attrs: []AttrSpec{{"axis", 0, false}, {"start", 0, false}, {"size", 0, false}}, Infer: inferPad, Flops: noFlops, Gradient: gradPad},
		Cast:             {Name: "cast", Operands: 1, Attrs: []AttrSpec{{"dtype", F32, false}}, Infer: inferCast, Elementwise: true, Gradient: gradCast},
		Constant:         {Name: "constant", Operands: 0, Attrs: []AttrSpec{{"dtype", F32, false}, {"shape", []int(nil), false}, {"value", 0.0, false}}, Infer: inferConstant, Flops: noFlops},
		Add:              {Name: "add", Operands: 2, Infer: inferArithmetic, Elementwise: true, Gradient: gradAdd},
		Sub:              {Name: "sub", Operands: 2, Infer: inferArithmetic, Elementwise: true, Gradient: gradSub},
		Mul:              {Name: "mul", Operands: 2, Infer: inferArithmetic, Elementwise: true, Gradient: gradMul},
		Div:              {Name: "div", Operands: 2, Infer: inferArithmetic, Elementwise: true, Gradient: gradDiv},
		Maximum:          {Name: "maximum", Operands: 2, Infer: inferArithmetic, Elementwise: true, Gradient: gradExtremum},
		Minimum:          {Name: "minimum", Operands: 2, Infer: inferArithmetic, Elementwise: true, Gradient: gradExtremum},
		Equal:            {Name: "equal", Operands: 2, Infer: inferCompare, Elementwise: true},
		Less:             {Name: "less", Operands: 2, Infer: inferCompare, Elementwise: true},
		LessEqual:        {Name: "less_equal", Operands: 2, Infer: inferCompare, Elementwise: true},
		Where:            {Name: "where", Operands: 3, Infer: inferWhere, Elementwise: true, Gradient: gradWhere},
		Neg:              {Name: "neg", Operands: 1, Infer: sameFloat, Elementwise: true, Gradient: gradNeg},
		Scale:            {Name: "scale", Operands: 1, Attrs: []AttrSpec{{"factor", 0.0, false}}, Infer: sameFloat, Elementwise: true, Gradient: gradScale},
		Exp:              {Name: "exp", Operands: 1, Infer: sameFloat, Elementwise: true, Flops: flopsEach(8), Gradient: gradExp},
		Log:              {Name: "log", Operands: 1, Infer: sameFloat, Elementwise: true, Flops: flopsEach(8), Gradient: gradLog},
		Sqrt:             {Name: "sqrt", Operands: 1, Infer: sameFloat, Elementwise: true, Flops: flopsEach(4), Gradient: gradSqrt},
		Rsqrt:            {Name: "rsqrt", Operands: 1, Infer: sameFloat, Elementwise: true, Flops: flopsEach(5), Gradient: gradRsqrt},
		Abs:              {Name: "abs", Operands: 1, Infer: sameFloat, Elementwise: true, Gradient: gradAbs},
		Relu:             {Name: "relu", Operands: 1, Infer: sameFloat, Elementwise: true, Gradient: gradRelu},
		Sigmoid:          {Name: "sigmoid", Operands: 1, Infer: sameFloat, Elementwise: true, Flops: flopsEach(10), Gradient: gradFromResult(SigmoidGrad)},
		Tanh:             {Name: "tanh", Operands: 1, Infer: sameFloat, Elementwise: true, Flops: flopsEach(12), Gradient: gradFromResult(TanhGrad)},
		Gelu:             {Name: "gelu", Operands: 1, Infer: sameFloat, Elementwise: true, Flops: flopsEach(18), Gradient: gradGelu},
		ReluGrad:         {Name: "relu_grad", Operands: 2, Infer: inferSameTwo, Elementwise: true},
		SigmoidGrad:      {Name: "sigmoid_grad", Operands: 2, Infer: inferSameTwo, Elementwise: true, Flops: flopsEach(3)},
		TanhGrad:         {Name: "tanh_grad", Operands: 2, Infer: inferSameTwo, Elementwise: true, Flops: flopsEach(3)},
		GeluGrad:         {Name: "gelu_grad", Operands: 2, Infer: inferSameTwo, Elementwise: true, Flops: flopsEach(24)},
		Softmax:          {Name: "softmax", Operands: 1, Infer: inferSoftmax, Flops: flopsEach(12), Gradient: gradFromResult(SoftmaxGrad)},
		SoftmaxGrad:      {Name: "softmax_grad", Operands: 2, Infer: inferSameTwo, Flops: flopsEach(4)},
		Tril:             {Name: "tril", Operands: 1, Infer: inferTril, Flops: noFlops, Gradient: gradTril},
		Dropout:          {Name: "dropout", Operands: 2, Attrs: []AttrSpec{{"p", 0.0, false}, {"rows", false, true}}, Infer: inferDropout, Flops: flopsEach(60), Gradient: gradDropout},
		Gather:           {Name: "gather", Operands: 2, Infer: inferGather, Flops: noFlops, Bytes: gatherBytes, Gradient: gradGather},
		GatherGrad:       {Name: "gather_grad", Operands: 2, Attrs: []AttrSpec{{"rows", 0, false}}, Infer: inferGatherGrad, Flops: inFlops},
		GatherAccumulate: {Name: "gather_accumulate", Operands: 3, Infer: inferGatherAccumulate, InPlace: true, Flops: func(in, _ []Type, _ Attrs) float64 { return float64(in[2].Elems()) }},
		MatMul:           {Name: "matmul", Operands: 2, Attrs: []AttrSpec{{"transpose_a", false, true}, {"transpose_b", false, true}}, Infer: inferMatMul, Flops: matMulFlops, Gradient: gradMatMul},
		MatMulAccumulate: {Name: "matmul_accumulate", Operands: 3, Attrs: []AttrSpec{{"transpose_b", false, true}}, Infer: inferMatMulAccumulate, InPlace: true, Flops: matMulAccumulateFlops},
		Accumulate:       {Name: "accumulate", Operands: 2, Infer: inferSameTwo, InPlace: true},
		Sum:              {Name: "sum", Operands: 1, Attrs: reduceAttrs, Infer: inferReduce, Flops: inFlops, Gradient: gradSum},
		Mean:             {Name: "mean", Operands: 1, Attrs: reduceAttrs, Infer: inferReduce, Flops: inFlops, Gradient: gradMean},
		ArgMax:           {Name: "argmax", Operands: 1, Attrs: []AttrSpec{{"axis", 0, true}}, Infer: inferArgMax, Flops: inFlops},
		CrossEntropy:     {Name: "cross_entropy", Operands: 2, Infer: inferCrossEntropy, Flops: func(in, out []Type, _ Attrs) float64 { return 12 * float64(in[0].Elems()) }, Gradient: gradCrossEntropy},
		CrossEntropyGrad: {Name: "cross_entropy_grad", Operands: 3, Infer: inferCrossEntropyGrad, Flops: flopsEach(14)},
		Print:            {Name: "print", Operands: 1, Attrs: labelAttrs, Infer: nothing, Effect: true, Flops: noFlops},
		Summary:          {Name: "summary", Operands: 1, Attrs: labelAttrs, Infer: nothing, Effect: true, Flops: noFlops},
		TensorDump:       {Name: "tensor_dump", Operands: 1, Attrs: labelAttrs, Infer: nothing, Effect: true, Flops: noFlops},
	}
	for k := Call; k < numKinds; k++ {
		if table[k].Name == "" {
			panic(fmt.Sprintf("ir: operation %d has no row", k))
		}
		kindByName[table[k].Name] = k
	}
}

// Flops of one operation on operands and results of these types.
func (k Kind) Flops(in, out []Type, attrs Attrs) float64 {
	info := k.Info()
	if info.View {
		return 0
	}
	if info.Flops != nil {
		return info.Flops(in, out, attrs)
	}
	n := 0
	for _, t := range out {
		n += t.Elems()
	}
	return float64(n)
}

func noFlops(_, _ []Type, _ Attrs) float64 { return 0 }

func inFlops(in, _ []Type, _ Attrs) float64 { return float64(in[0].Elems()) }

func flopsEach(n float64) func(_, _ []Type, _ Attrs) float64 {
	return func(_, out []Type, _ Attrs) float64 { return n * float64(out[0].Elems()) }
}

func matMulFlops(in, out []Type, attrs Attrs) float64 {
	k := in[0].Shape[in[0].Rank()-1]
	if attrs.Bool("transpose_a") {
		k = in[0].Shape[in[0].Rank()-2]
	}
	return 2 * float64(k) * float64(out[0].Elems())
}

func matMulAccumulateFlops(in, _ []Type, _ Attrs) float64 {
	rows := in[1].Elems() / in[1].Shape[in[1].Rank()-1]
	return 2 * float64(rows) * float64(in[0].Elems())
}

// Bytes that one operation reads and writes.
func (k Kind) Bytes(in, out []Type) int {
	if f := k.Info().Bytes; f != nil {
		return f(in, out)
	}
	n := 0
	for _, t := range in {
		n += t.Bytes()
	}
	for _, t := range out {
		n += t.Bytes()
	}
	return n
}

// gatherBytes: of the table only the rows that are asked for.
func gatherBytes(in, out []Type) int { return in[1].Bytes() + 2*out[0].Bytes() }

func checkOperands(info *Info, in []Type, attrs Attrs) error {
	switch {
	case info.Operands >= 0 && len(in) != info.Operands:
		return fmt.Errorf("`%s` takes %s, not %d", info.Name, plural(info.Operands, "operand"), len(in))
	case info.Operands < 0 && len(in) == 0:
		return fmt.Errorf("`%s` takes at least one operand", info.Name)
	}
	for _, a := range attrs {
		i := slices.IndexFunc(info.Attrs, func(s AttrSpec) bool { return s.Name == a.Name })
		if i < 0 {
			return fmt.Errorf("`%s` has no attribute `%s`", info.Name, a.Name)
		}
		if fmt.Sprintf("%T", info.Attrs[i].Example) != fmt.Sprintf("%T", a.Value) {
			return fmt.Errorf("attribute `%s` of `%s` has the wrong type", a.Name, info.Name)
		}
	}
	for _, s := range info.Attrs {
		if !s.Optional && !attrs.Has(s.Name) {
			return fmt.Errorf("`%s` needs the attribute `%s`", info.Name, s.Name)
		}
	}
	return nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
