package ascend

import (
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// unsupported are the operations without kernels: they are refused by name.
var unsupported = map[ir.Kind]bool{
	ir.Rsqrt: true, ir.Softmax: true, ir.SoftmaxGrad: true, ir.Tril: true, ir.Dropout: true,
	ir.Gather: true, ir.GatherGrad: true, ir.GatherAccumulate: true,
}

// WithoutKernels is the repair of what has no kernel for a chip.
const WithoutKernels = "-target none compiles, and -device cpu runs, without kernels"

// supported refuses plans with operations that have no kernel, once per operation, and optimizers whose scalars are not
// the same for every step and parameter: programs for the chip have them as constants.
func supported(p *plan.Plan) diag.List {
	var errs diag.List
	told := map[ir.Kind]bool{}
	check := func(f *ir.Func) {
		for _, op := range f.Ops {
			if unsupported[op.Kind] && !told[op.Kind] {
				told[op.Kind] = true
				errs.Add(diag.Errorf(diag.NotSupported, diag.At(op.Pos), "`%s` has no kernel for the target `%s` yet", op.Kind, p.Target).
					WithRepair(WithoutKernels))
			}
		}
	}
	for _, m := range p.Memory {
		if m.Device != p.Target {
			continue
		}
		for _, st := range m.Stages {
			for _, frame := range st.Frames {
				check(frame.Func)
			}
		}
	}
	if o := p.Optimizer; o != nil {
		check(o.Func)
		varying := len(o.Groups) > 0
		for _, s := range o.Scalars {
			varying = varying || s.Schedule != nil
		}
		if varying {
			errs.Add(diag.Errorf(diag.NotSupported, diag.Range{}, "the optimizer %s has schedules or groups, which programs for the target `%s` do not have yet", o.Name, p.Target).
				WithRepair(WithoutKernels))
		}
	}
	return errs
}
