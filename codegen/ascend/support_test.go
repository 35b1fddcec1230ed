package ascend

import (
	"testing"

	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/ir"
)

// operation is one operation on operands of these types.
type operation struct {
	attrs ir.Attrs
	in    []ir.Type
}

// operations has a case for every operation.
func operations() map[ir.Kind]operation {
	x, row := ir.Tensor(ir.F32, 8, 16), ir.Tensor(ir.F32, 8)
	label, flags := ir.Tensor(ir.I32, 8), ir.Tensor(ir.Bool, 8, 16)
	list := func(t ...ir.Type) []ir.Type { return t }
	shape := func(s ...int) ir.Attrs { return ir.Attrs{ir.IntsAttr("shape", s)} }
	out := map[ir.Kind]operation{
		ir.Reshape: {shape(16, 8), list(x)}, ir.Transpose: {ir.Attrs{ir.IntsAttr("perm", []int{1, 0})}, list(x)},
		ir.BroadcastTo: {shape(4, 8, 16), list(x)}, ir.SumTo: {shape(16), list(x)},
		ir.Concat:   {ir.Attrs{ir.IntAttr("axis", 0)}, list(x, x)},
		ir.Slice:    {ir.Attrs{ir.IntAttr("axis", 0), ir.IntAttr("start", 2), ir.IntAttr("stop", 5)}, list(x)},
		ir.Pad:      {ir.Attrs{ir.IntAttr("axis", 0), ir.IntAttr("start", 2), ir.IntAttr("size", 12)}, list(x)},
		ir.Cast:     {ir.Attrs{ir.DTypeAttr("dtype", ir.I32)}, list(x)},
		ir.Constant: {ir.Attrs{ir.DTypeAttr("dtype", ir.F32), ir.IntsAttr("shape", []int{8, 16}), ir.FloatAttr("value", 2)}, nil},
		ir.Where:    {nil, list(flags, x, x)}, ir.Scale: {ir.Attrs{ir.FloatAttr("factor", 0.5)}, list(x)},
		ir.MatMul: {nil, list(x, ir.Tensor(ir.F32, 16, 4))}, ir.MatMulAccumulate: {nil, list(ir.Tensor(ir.F32, 16, 16), x, x)},
		ir.CrossEntropy: {nil, list(x, label)}, ir.CrossEntropyGrad: {nil, list(x, label, row)},
		ir.Dropout: {ir.Attrs{ir.FloatAttr("p", 0.5)}, list(x, ir.Tensor(ir.I32))},
		ir.Gather:  {nil, list(x, label)}, ir.GatherGrad: {ir.Attrs{ir.IntAttr("rows", 4)}, list(x, label)},
		ir.GatherAccumulate: {nil, list(x, label, x)},
	}
	for _, k := range ir.Kinds() {
		if _, ok := out[k]; !ok {
			out[k] = operation{in: list(x, x)[:max(k.Info().Operands, 1)]}
		}
	}
	return out
}

// TestComplete: every operation has a kernel, or stands among those that are refused by name.
func TestComplete(t *testing.T) {
	c, _ := chip.ByName("910b3")
	for k, o := range operations() {
		f := ir.NewModule("test").NewFunc("f")
		var args []ir.ValueID
		for _, typ := range o.in {
			args = append(args, f.AddArg("x", typ))
		}
		if r, err := f.Emit(k, args, o.attrs, ir.Unmarked(ir.Pos{})); err != nil {
			t.Fatalf("%s: %v", k, err)
		} else {
			f.Return(r...)
		}
		s := &stageEmitter{chip: c, index: map[string]int{}}
		if _, err := s.function(f, nil); (err != nil) != unsupported[k] {
			t.Errorf("%s: refused %v, emitting it gives %v", k, unsupported[k], err)
		}
	}
}
