package plan

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
)

func (r *reader) frames() error {
	rows, err := r.rows(framesFile, framesHead)
	if err != nil {
		return err
	}
	for _, row := range rows {
		at, err := parseInts(row[0] + " " + row[1] + " " + row[3])
		f := r.p.Module.Func(row[2])
		offsets, err2 := parseInts(row[4])
		calls, err3 := parseInts(row[5])
		if err != nil || err2 != nil || err3 != nil || f == nil || len(at) != 3 || at[0] < 0 || at[0] >= len(r.p.Memory) || at[1] < 0 || at[1] >= r.doc.Stages {
			return fmt.Errorf("%s: the frame of %s is malformed", framesFile, row[2])
		}
		fm := Frame{Func: f, Bytes: at[2], Offsets: make([]int, f.NumValues()), Calls: make([]int, f.NumOps())}
		for i := range fm.Offsets {
			fm.Offsets[i] = -1
		}
		o, c := 0, 0
		for _, op := range f.Ops {
			for _, v := range op.Results {
				if o >= len(offsets) || offsets[o] >= 0 && offsets[o]+f.TypeOf(v).Bytes() > fm.Bytes {
					return fmt.Errorf("%s: the frame of %s does not hold its values", framesFile, row[2])
				}
				fm.Offsets[v] = offsets[o]
				o++
			}
			if op.Callee != nil {
				if c >= len(calls) || calls[c] < 0 || calls[c] > fm.Bytes {
					return fmt.Errorf("%s: the frame of %s does not hold its calls", framesFile, row[2])
				}
				fm.Calls[op.ID] = calls[c]
				c++
			}
		}
		if o != len(offsets) || c != len(calls) {
			return fmt.Errorf("%s: the frame of %s has too many values", framesFile, row[2])
		}
		sm := &r.p.Memory[at[0]].Stages[at[1]]
		sm.Frames = append(sm.Frames, fm)
	}
	return nil
}

// places holds that all that a pass calls has its place: every value of a function that is not the caller's in the frame, every frame of
// a callee in that of the caller, and that of the pass in the scratch memory.
func (r *reader) places() error {
	for _, m := range r.p.Memory {
		for s := range m.Stages {
			sm := &m.Stages[s]
			frames := map[*ir.Func]*Frame{}
			for i := range sm.Frames {
				frames[sm.Frames[i].Func] = &sm.Frames[i]
			}
			kept, done := map[*ir.Param]bool{}, map[*ir.Func]bool{}
			for _, sp := range r.p.Stages[s].Params {
				kept[sp.Param] = true
			}
			var function func(f *ir.Func) error
			function = func(f *ir.Func) error {
				if done[f] {
					return nil
				}
				done[f] = true
				fm := frames[f]
				if fm == nil {
					return fmt.Errorf("%s: stage %d has no frame of %s", framesFile, s, f.Name)
				}
				for _, v := range f.ParamReads() {
					if p := f.Value(v).Param; !kept[p] {
						return fmt.Errorf("%s: stage %d does not keep %s, which %s reads", parametersFile, s, p.Name, f.Name)
					}
				}
				root := f.Roots()
				outside := make([]bool, f.NumValues())
				for _, v := range f.Results {
					outside[root[v]] = true
				}
				for _, op := range f.Ops {
					for _, v := range op.Results {
						if at := fm.Offsets[v]; root[v] == v && !outside[v] && (at < 0 || at%CPU.Align != 0) {
							return fmt.Errorf("%s: the frame of %s has no aligned place for a value of `%s`", framesFile, f.Name, op.Kind)
						}
					}
					if op.Callee == nil {
						continue
					}
					if err := function(op.Callee); err != nil {
						return err
					}
					if at := fm.Calls[op.ID]; at%CPU.Align != 0 || at+frames[op.Callee].Bytes > fm.Bytes {
						return fmt.Errorf("%s: the frame of %s does not hold that of %s", framesFile, f.Name, op.Callee.Name)
					}
				}
				return nil
			}
			for _, q := range r.p.Programs {
				for _, c := range q.Chunks {
					for _, ph := range c.Phases {
						if c.Stage != s || ph.Func == nil {
							continue
						}
						if err := function(ph.Func); err != nil {
							return err
						}
						if frames[ph.Func].Bytes > sm.Scratch {
							return fmt.Errorf("%s: the scratch memory of stage %d does not hold the frame of %s", planFile, s, ph.Func.Name)
						}
					}
				}
			}
		}
	}
	return nil
}
