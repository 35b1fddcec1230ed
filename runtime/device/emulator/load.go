package emulator

import (
	"fmt"

	ascend "github.com/ppc-lang/ppc/codegen/ascend/emulator"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// loader turns the steps of functions into actions on places.
type loader struct {
	m         *machine
	functions map[string]*ascend.Function
	frames    map[*ir.Func]*plan.Frame
	params    map[*ir.Param]place
	actions   []action
}

// load prepares every pass of the stage.
func (m *machine) load(stage int) error {
	l := &loader{m: m, functions: map[string]*ascend.Function{}, frames: map[*ir.Func]*plan.Frame{}, params: map[*ir.Param]place{}}
	for i := range m.program.Functions {
		l.functions[m.program.Functions[i].Name] = &m.program.Functions[i]
	}
	for i := range m.layout.Frames {
		l.frames[m.layout.Frames[i].Func] = &m.layout.Frames[i]
	}
	if len(m.program.Updates) != len(m.stage.Params) {
		return fmt.Errorf("emulator device: the kernels update %d parameters, the stage has %d", len(m.program.Updates), len(m.stage.Params))
	}
	for _, sp := range m.stage.Params {
		p, err := m.refPlace(sp.Value)
		if err != nil {
			return err
		}
		l.params[sp.Param] = p
	}
	for i, q := range m.plan.Programs {
		for c, chunk := range q.Chunks {
			if chunk.Stage != stage {
				continue
			}
			for pass := range chunk.Phases {
				actions, err := l.phase(&chunk.Phases[pass])
				if err != nil {
					return err
				}
				m.passes[passKey{i, c, ir.Pass(pass)}] = actions
			}
		}
	}
	return nil
}

func (l *loader) phase(ph *plan.Phase) ([]action, error) {
	l.actions = nil
	if ph.Func == nil {
		return nil, nil
	}
	if len(ph.Args) != len(ph.Func.Args) || len(ph.Results) != len(ph.Func.Results) {
		return nil, fmt.Errorf("emulator device: the plan places %d arguments and %d results of %s", len(ph.Args), len(ph.Results), ph.Func.Name)
	}
	places := func(refs []plan.Ref) ([]place, error) {
		out := make([]place, len(refs))
		for i, r := range refs {
			var err error
			if out[i], err = l.m.refPlace(r); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	args, err := places(ph.Args)
	if err != nil {
		return nil, err
	}
	results, err := places(ph.Results)
	if err != nil {
		return nil, err
	}
	err = l.function(ph.Func, 0, args, results, &l.actions)
	return l.actions, err
}

// function appends the actions of f, whose frame starts at base.
func (l *loader) function(f *ir.Func, base int, args, results []place, out *[]action) error {
	frame, steps := l.frames[f], l.functions[f.Name]
	if frame == nil || steps == nil || len(frame.Offsets) != f.NumValues() || len(frame.Calls) != f.NumOps() {
		return fmt.Errorf("emulator device: there are no kernels or no frame for %s", f.Name)
	}
	root := f.Roots()
	values := make([]place, f.NumValues()) // by root
	known := make([]bool, f.NumValues())
	set := func(v ir.ValueID, p place) { values[v], known[v] = p, true }
	for i, a := range f.Args {
		set(a, args[i])
	}
	for _, v := range f.ParamReads() {
		p, ok := l.params[f.Value(v).Param]
		if !ok {
			return fmt.Errorf("emulator device: %s reads %s, which the stage does not keep", f.Name, f.Value(v).Param.Name)
		}
		set(v, p)
	}
	for i, r := range f.Results {
		if v := root[r]; !known[v] {
			set(v, results[i])
		}
	}
	of := func(v ir.ValueID) (place, error) {
		r := root[v]
		if !known[r] {
			p := place{len(l.m.stage.Areas), base + frame.Offsets[r], f.TypeOf(r).Bytes()}
			if frame.Offsets[r] < 0 || p.offset+p.bytes > l.m.layout.Scratch {
				return place{}, fmt.Errorf("emulator device: a value of %s has no place", f.Name)
			}
			set(r, p)
		}
		return values[r], nil
	}
	list := func(vs []ir.ValueID) ([]place, error) {
		ps := make([]place, len(vs))
		for i, v := range vs {
			var err error
			if ps[i], err = of(v); err != nil {
				return nil, err
			}
		}
		return ps, nil
	}
	for _, s := range steps.Steps {
		if s.Op < 0 || s.Op >= len(f.Ops) {
			return fmt.Errorf("emulator device: the kernels of %s are for another function", f.Name)
		}
		op := f.Ops[s.Op]
		if s.Kernel < 0 && op.Callee != nil {
			in, err := list(op.Args)
			if err != nil {
				return err
			}
			made, err := list(op.Results)
			if err != nil {
				return err
			}
			if err := l.function(op.Callee, base+frame.Calls[op.ID], in, made, out); err != nil {
				return err
			}
			continue
		}
		a := action{kernel: s.Kernel, blocks: s.Blocks, assign: s.Assign, op: op}
		operands := make([]ir.ValueID, len(s.Operands))
		for i, v := range s.Operands {
			if v <= 0 || v >= f.NumValues() {
				return fmt.Errorf("emulator device: the kernels of %s are for another function", f.Name)
			}
			operands[i] = ir.ValueID(v)
		}
		if s.Kernel < 0 {
			operands = op.Args
			a.typ = f.TypeOf(op.Args[0])
		}
		var err error
		if a.places, err = list(operands); err != nil {
			return err
		}
		*out = append(*out, a)
	}
	return nil
}
