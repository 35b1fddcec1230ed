package ir

import "fmt"

// Phase says which operations are legal.
type Phase int

// The phases in order.
const (
	Elaborated Phase = iota // forward operations only
	Joint                   // after autodiff: gradients and accumulators
	Cut                     // after partition: every operation of an entry has a chunk
)

// Verify checks the invariants of a module in a phase: every value is defined before its use, types are those the
// table infers, calls fit their callee and do not recurse, accumulators are used once.
func (m *Module) Verify(phase Phase) error {
	state := map[*Func]int{}
	var visit func(f *Func) error
	visit = func(f *Func) error {
		switch state[f] {
		case 1:
			return fmt.Errorf("%s calls itself", f.Name)
		case 2:
			return nil
		}
		state[f] = 1
		for _, op := range f.Ops {
			if op.Callee != nil {
				if err := visit(op.Callee); err != nil {
					return err
				}
			}
		}
		state[f] = 2
		if err := f.verify(phase); err != nil {
			return fmt.Errorf("function %s: %w", f.Name, err)
		}
		return nil
	}
	for _, f := range m.Funcs {
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

func (f *Func) verify(phase Phase) error {
	defined := make([]bool, f.values.count)
	for i, a := range f.Args {
		if f.values.at(a).Index != i {
			return fmt.Errorf("argument %d has index %d", i, f.values.at(a).Index)
		}
		defined[a] = true
	}
	for _, v := range f.order {
		defined[v] = true
	}
	accumulated := make([]bool, f.values.count)
	names := f.Names()
	for _, op := range f.Ops {
		types := make([]Type, len(op.Args))
		for i, a := range op.Args {
			if a <= 0 || int(a) >= len(defined) || !defined[a] {
				return fmt.Errorf("%s uses a value before its definition", op.Kind)
			}
			if accumulated[a] {
				return fmt.Errorf("%s reads %s, which has been accumulated over", op.Kind, names[a])
			}
			types[i] = f.values.at(a).Type
		}
		var want []Type
		switch {
		case op.Kind == Call:
			if op.Callee == nil || op.Callee.Module != f.Module {
				return fmt.Errorf("call without a callee of the same module")
			}
			if len(op.Args) != len(op.Callee.Args) {
				return fmt.Errorf("call of %s with %d arguments, wants %d", op.Callee.Name, len(op.Args), len(op.Callee.Args))
			}
			for i, a := range op.Callee.Args {
				if !op.Callee.TypeOf(a).Equal(types[i]) {
					return fmt.Errorf("argument %d of %s is %s, wants %s", i, op.Callee.Name, types[i], op.Callee.TypeOf(a))
				}
			}
			for _, r := range op.Callee.Results {
				want = append(want, op.Callee.TypeOf(r))
			}
		default:
			info := op.Kind.Info()
			if err := checkOperands(info, types, op.Attrs); err != nil {
				return err
			}
			var err error
			if want, err = info.Infer(types, op.Attrs); err != nil {
				return fmt.Errorf("%s: %w", op.Kind, err)
			}
			if info.InPlace {
				if phase < Joint {
					return fmt.Errorf("%s before autodiff", op.Kind)
				}
				accumulated[op.Args[0]] = true
			}
		}
		if op.Pass != ForwardPass && phase < Joint {
			return fmt.Errorf("%s is a gradient operation before autodiff", op.Kind)
		}
		if len(want) != len(op.Results) {
			return fmt.Errorf("%s has %d results, wants %d", op.Kind, len(op.Results), len(want))
		}
		for i, r := range op.Results {
			if defined[r] {
				return fmt.Errorf("%s defines %s again", op.Kind, names[r])
			}
			if !f.TypeOf(r).Equal(want[i]) {
				return fmt.Errorf("%s of %s has type %s, wants %s", names[r], op.Kind, f.TypeOf(r), want[i])
			}
			defined[r] = true
		}
		if int(op.Scope) >= len(f.scopes) {
			return fmt.Errorf("%s is in an unknown scope", op.Kind)
		}
	}
	for _, r := range f.Results {
		if r <= 0 || int(r) >= len(defined) || !defined[r] {
			return fmt.Errorf("returns an undefined value")
		}
	}
	return nil
}
