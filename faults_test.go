package ppc

import (
	"context"
	"testing"

	"pgregory.net/rapid"

	"github.com/ppc-lang/ppc/internal/modelgen"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/passes/check"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
)

// A fault changes a compiled plan; it reports whether the plan has a place for it.
type fault struct {
	name  string
	plant func(p *plan.Plan) bool
	// proved says that the check pass must refuse the plan, not only the run.
	proved bool
}

// gradients lists the messages that carry gradients.
func gradients(q *plan.Program) []*plan.Message {
	var out []*plan.Message
	for _, m := range q.Messages {
		if m.Backward {
			out = append(out, m)
		}
	}
	return out
}

var faults = []fault{
	{"a dropped boundary gradient", func(p *plan.Plan) bool {
		for _, m := range gradients(p.Programs[0]) {
			m.Tensors = m.Tensors[1:]
			return true
		}
		return false
	}, false},
	{"swapped messages", func(p *plan.Plan) bool {
		for s, list := range p.Programs[0].Actions {
			last := -1
			for i, a := range list {
				if a.Kind != plan.SendBackward {
					continue
				}
				if last >= 0 && list[last].Message == a.Message {
					l := p.Programs[0].Actions[s]
					l[last].Micro, l[i].Micro = l[i].Micro, l[last].Micro
					return true
				}
				last = i
			}
		}
		return false
	}, true},
	{"a missing receive", func(p *plan.Plan) bool {
		for s, list := range p.Programs[0].Actions {
			for i, a := range list {
				if a.Kind == plan.RecvBackward {
					p.Programs[0].Actions[s] = append(append([]plan.Action{}, list[:i]...), list[i+1:]...)
					return true
				}
			}
		}
		return false
	}, true},
	{"a weight pass twice", func(p *plan.Plan) bool {
		for s, list := range p.Programs[0].Actions {
			for i, a := range list {
				if a.Kind == plan.WeightGrad {
					l := append([]plan.Action{}, list[:i+1]...)
					p.Programs[0].Actions[s] = append(append(l, a), list[i+1:]...)
					return true
				}
			}
		}
		return false
	}, true},
	{"a gradient before its forward", func(p *plan.Plan) bool {
		for _, list := range p.Programs[0].Actions {
			for i, a := range list {
				if a.Kind == plan.InputGrad {
					copy(list[1:i+1], list[:i])
					list[0] = a
					return true
				}
			}
		}
		return false
	}, true},
	{"two stages that wait for each other", func(p *plan.Plan) bool {
		// The last stage posts its receive of the second micro-batch before it has sent the gradient of the first, and the
		// first stage waits for that gradient before it sends: a cycle through both lists.
		q := p.Programs[0]
		if q.MicroBatches < 2 || len(gradients(q)) == 0 {
			return false
		}
		for s, list := range q.Actions {
			for i, a := range list {
				if a.Kind == plan.SendForward && a.Micro == 0 {
					for j := i + 1; j < len(list); j++ {
						if list[j].Kind == plan.RecvBackward && q.Messages[list[j].Message].From == q.Messages[a.Message].To {
							// Send the activation behind the wait for its own gradient.
							for k := j; k < len(list); k++ {
								if list[k].Kind == plan.InputGrad {
									l := append([]plan.Action{}, list[:i]...)
									l = append(l, list[i+1:k+1]...)
									l = append(l, a)
									q.Actions[s] = append(l, list[k+1:]...)
									return true
								}
							}
						}
					}
				}
			}
		}
		return false
	}, true},
	{"a buffer freed early", func(p *plan.Plan) bool {
		for _, st := range p.Stages {
			for i := range st.Areas {
				a := &st.Areas[i]
				if a.Program == 0 && a.Slots > 1 && (a.Lifetime == plan.SavedForI || a.Lifetime == plan.SavedForW || a.Lifetime == plan.GradForW) {
					a.Slots--
					return true
				}
			}
		}
		return false
	}, true},
	{"values that overlap in a frame", func(p *plan.Plan) bool {
		for s := range p.Memory[0].Stages {
			for _, f := range p.Memory[0].Stages[s].Frames {
				if used(p.Programs[0], s, f.Func) && overlap(&f) {
					return true
				}
			}
		}
		return false
	}, false},
}

// used reports whether a chunk of the stage calls f itself, so that a fault in it must show.
func used(q *plan.Program, stage int, f *ir.Func) bool {
	for _, c := range q.Chunks {
		if c.Stage == stage && c.Phases[1].Func == f {
			return true
		}
	}
	return false
}

// overlap gives two results of different calls, both alive behind the second, one place.
func overlap(f *plan.Frame) bool {
	uses := f.Func.Uses()
	for i, op := range f.Func.Ops {
		for _, a := range op.Args {
			d := f.Func.Value(a).Op
			if d == nil || f.Offsets[a] < 0 {
				continue
			}
			for _, between := range f.Func.Ops[:i] {
				if between == d || between.ID < d.ID {
					continue
				}
				for _, r := range between.Results {
					if f.Offsets[r] >= 0 && len(uses[r]) > 0 && f.Func.TypeOf(r).Bytes() >= f.Func.TypeOf(a).Bytes() {
						f.Offsets[a] = f.Offsets[r]
						return true
					}
				}
			}
		}
	}
	return false
}

// Planted faults are found: by the proof, by the runtime, or because the outcome differs.
func TestPlantedFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			planted, shown := 0, 0
			rapid.Check(t, func(r *rapid.T) {
				m := modelgen.DrawDecoder(drawn{r})
				if len(m.Cuts) < 2 {
					return
				}
				cut := m.Cuts[len(m.Cuts)-1]
				lag := 0
				build := func() *plan.Plan {
					c, err := Compile(context.Background(), Options{File: "random.pp", Source: []byte(m.With(cut)), Micro: 4, WLag: &lag})
					if err != nil {
						r.Fatal(Diagnostics(err))
					}
					return c.Plan
				}
				p := build()
				if !f.plant(p) {
					return
				}
				planted++
				err := check.Run(p)
				if f.proved && err == nil {
					r.Fatalf("the proof accepts %s\n%s", f.name, m.With(cut))
				}
				if err != nil {
					shown++
					return
				}
				file := writeData(t, &m, 2*m.Batch)
				good := train(t, build(), runtime.Options{DataPath: file, Device: device.Options{Poison: true}})
				o := runtime.Options{Open: cpu.Open, Seed: 1, DataPath: file, SkipEval: true, Device: device.Options{Poison: true}}
				res, err := runtime.Run(context.Background(), p, o)
				if err != nil {
					shown++
					return
				}
				bad := outcomeOf(res)
				if bad.Losses = good.Losses; !good.equal(bad) {
					shown++
				}
			})
			// A lost gradient may have been zero, behind a dead relu; that is rare.
			if planted == 0 || shown*10 < planted*9 {
				t.Errorf("%d of %d faults were found", shown, planted)
			}
		})
	}
}
