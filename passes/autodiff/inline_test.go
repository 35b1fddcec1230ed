package autodiff_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/ir/interp"
	"github.com/ppc-lang/ppc/passes/autodiff"
	"github.com/ppc-lang/ppc/passes/lazyinline"
)

// choices is a list of drawn numbers that a builder uses up; behind its end all are 0.
type choices struct{ left []int }

func (c *choices) next(n int) int {
	if len(c.left) == 0 || n == 0 {
		return 0
	}
	v := uint64(c.left[0]) * 0x9e3779b97f4a7c15 >> 32 // drawn numbers are small as a rule
	c.left = c.left[1:]
	return int(v % uint64(n))
}

// graph builds random cells that call each other. All activations are [2, 3]; parameters are [3, 3] or [3].
type graph struct {
	*choices
	m      *ir.Module
	cells  []*ir.Func
	shapes [][]ir.Type // of the arguments, by cell
}

var (
	activation = f32(2, 3)
	square     = f32(3, 3)
	row        = f32(3)
)

// weights are the parameters that a function knows: its own, and those that calls gave back.
type weights struct {
	*graph
	f    *ir.Func
	have []ir.ValueID
	more func(ir.Type) ir.ValueID // makes or finds one
}

func (w *weights) add(v ir.ValueID) { w.have = append(w.have, v) }

func (w *weights) get(t ir.Type) ir.ValueID {
	var fitting []ir.ValueID
	for _, v := range w.have {
		if w.f.TypeOf(v).Equal(t) {
			fitting = append(fitting, v)
		}
	}
	if k := w.next(len(fitting) + 1); k < len(fitting) {
		return fitting[k]
	}
	return w.more(t)
}

// body emits operations on a growing pool of values.
func (g *graph) body(f *ir.Func, pool []ir.ValueID, weights *weights) []ir.ValueID {
	at := ir.Unmarked(ir.Pos{})
	pick := func() ir.ValueID { // a late value as often as any
		if g.next(2) == 0 {
			return pool[len(pool)-1-g.next(min(2, len(pool)))]
		}
		return pool[g.next(len(pool))]
	}
	emit := func(k ir.Kind, args ...ir.ValueID) { pool = append(pool, f.MustEmit(k, args, nil, at)) }
	for n := 2 + g.next(6); n > 0; n-- {
		switch g.next(8) {
		case 0, 1, 2:
			if len(g.cells) == 0 {
				emit(ir.Tanh, pick())
				break
			}
			k := g.next(len(g.cells))
			var args []ir.ValueID
			for _, t := range g.shapes[k] {
				if t.Equal(activation) {
					args = append(args, pick())
				} else {
					args = append(args, weights.get(t))
				}
			}
			call := at
			call.Instance = fmt.Sprint("c", len(f.Ops))
			for _, r := range f.Call(g.cells[k], args, call) {
				if f.TypeOf(r).Equal(activation) {
					pool = append(pool, r)
				} else {
					weights.add(r)
				}
			}
		case 3:
			emit(ir.MatMul, pick(), weights.get(square))
		case 4:
			emit(ir.Mul, pick(), weights.get(row))
		case 5:
			emit(ir.Mul, pick(), pick())
		case 6:
			emit(ir.Add, pick(), pick())
		case 7:
			emit(ir.Sigmoid, pick())
		}
	}
	return pool
}

// cell adds a cell; a parameter it wants is one it has, or a new argument.
func (g *graph) cell() {
	f := g.m.NewFunc(fmt.Sprint("Cell", len(g.cells)))
	f.LazyInline = g.next(2) == 1
	var pool []ir.ValueID
	for range 1 + g.next(3) {
		pool = append(pool, f.AddArg("x", activation))
	}
	given := len(pool)
	w := &weights{graph: g, f: f}
	w.more = func(t ir.Type) ir.ValueID {
		w.add(f.AddArg("w", t))
		return w.have[len(w.have)-1]
	}
	pool = g.body(f, pool, w)
	// Results: new values as a rule, now and then an argument or one value twice.
	for range 1 + g.next(2) {
		if n := len(pool) - given; g.next(5) > 0 {
			f.Results = append(f.Results, pool[given+g.next(n)])
		} else {
			f.Results = append(f.Results, pool[g.next(len(pool))])
		}
	}
	if len(w.have) > 0 && g.next(4) == 0 {
		f.Results = append(f.Results, w.have[g.next(len(w.have))])
	}
	var shapes []ir.Type
	for _, a := range f.Args {
		shapes = append(shapes, f.TypeOf(a))
	}
	g.cells, g.shapes = append(g.cells, f), append(g.shapes, shapes)
}

// random builds the module that the numbers describe, always the same one, and its entry.
func random(numbers []int) *ir.Func {
	g := &graph{choices: &choices{numbers}, m: ir.NewModule("random")}
	for range 1 + g.next(4) {
		g.cell()
	}
	for i := range 4 {
		t := square
		if i%2 == 1 {
			t = row
		}
		g.m.AddParam(&ir.Param{Name: fmt.Sprint("p", i), Type: t})
	}
	f := g.m.NewFunc("net")
	at := ir.Unmarked(ir.Pos{})
	w := &weights{graph: g, f: f}
	w.more = func(t ir.Type) ir.ValueID {
		i := 2 * g.next(2)
		if t.Equal(row) {
			i++
		}
		return f.ReadParam(g.m.Params[i])
	}
	var pool []ir.ValueID
	for _, name := range []string{"x", "y"} { // a gradient reaches everything
		pool = append(pool, f.MustEmit(ir.Mul, []ir.ValueID{f.AddArg(name, activation), w.get(row)}, nil, at))
	}
	pool = g.body(f, pool, w)
	total := pool[len(pool)-1]
	for range 1 + g.next(3) {
		total = f.MustEmit(ir.Add, []ir.ValueID{total, pool[g.next(len(pool))]}, nil, at)
	}
	f.Return(f.MustEmit(ir.Sum, []ir.ValueID{total}, nil, at))
	return f
}

// evaluation runs the joint graph of a random net on fixed values.
type evaluation struct {
	f      *ir.Func
	step   *autodiff.Step
	args   []interp.Tensor
	params map[*ir.Param]interp.Tensor
}

func newEvaluation(t *rapid.T, f *ir.Func, mode string) *evaluation {
	out, errs := lazyinline.Run(f.Module, []*ir.Func{f}, mode, nil)
	if errs.HasErrors() {
		t.Fatal(errs)
	}
	f = out[0]
	step, err := autodiff.Run(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Module.Verify(ir.Joint); err != nil {
		t.Fatalf("%s: %v", mode, err)
	}
	fill := rand.New(rand.NewPCG(5, 6))
	tensor := func(typ ir.Type) interp.Tensor {
		v := interp.Tensor{Type: typ, Data: make([]float64, typ.Elems())}
		for e := range v.Data {
			v.Data[e] = float64(float32(fill.NormFloat64()))
		}
		return v
	}
	e := &evaluation{f: f, step: step, params: map[*ir.Param]interp.Tensor{}}
	for _, p := range f.Module.Params {
		e.params[p] = tensor(p.Type)
	}
	e.args = []interp.Tensor{tensor(activation), tensor(activation)}
	return e
}

// run gives the loss and every accumulator, by read.
func (e *evaluation) run(t *rapid.T, in *interp.Interp) [][]float64 {
	args := append(e.args[:2:2], interp.Tensor{Type: f32(), Data: []float64{1}})
	for _, p := range e.step.Reads {
		args = append(args, interp.Tensor{Type: p.Type, Data: make([]float64, p.Type.Elems())})
	}
	out, err := in.Run(e.step.Func, args, e.params)
	if err != nil {
		t.Fatal(err)
	}
	var values [][]float64
	for _, v := range out {
		values = append(values, v.Data)
	}
	return values
}

func (e *evaluation) reads() (out []string) {
	for _, p := range e.step.Reads {
		out = append(out, p.Name)
	}
	return out
}

func numbers(t *rapid.T) []int {
	return rapid.SliceOfN(rapid.IntRange(0, 1000), 60, 200).Draw(t, "numbers")
}

// TestInliningKeepsBits: calls, marked calls and inlined code give the same gradients, read by read and bit by bit.
func TestInliningKeepsBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := numbers(t)
		plain := newEvaluation(t, random(numbers), "off")
		want := plain.run(t, &interp.Interp{})
		for _, mode := range []string{"marked", "auto"} {
			e := newEvaluation(t, random(numbers), mode)
			if fmt.Sprint(e.reads()) != fmt.Sprint(plain.reads()) {
				t.Fatalf("%s reads %v, inlined %v\n%s", mode, e.reads(), plain.reads(), random(numbers).Module)
			}
			got := e.run(t, &interp.Interp{})
			for i := range want {
				for k := range want[i] {
					if math.Float64bits(got[i][k]) != math.Float64bits(want[i][k]) && !(math.IsNaN(got[i][k]) && math.IsNaN(want[i][k])) {
						t.Fatalf("%s: element %d of result %d is %v, inlined %v\n%s", mode, k, i, got[i][k], want[i][k], random(numbers).Module)
					}
				}
			}
		}
	})
}

// TestGraphsAgainstDifferences: the accumulators of each parameter add up to the slope of the loss along a direction.
func TestGraphsAgainstDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exact := &interp.Interp{Exact: true}
		e := newEvaluation(t, random(numbers(t)), "auto")
		out := e.run(t, exact)
		for _, p := range e.f.Module.Params {
			slope, size := 0.0, 0.0
			direction := func(k int) float64 { return math.Cos(float64(k)) }
			for i, q := range e.step.Reads {
				for k, g := range out[1+i] {
					if q == p {
						slope += g * direction(k)
						size += math.Abs(g)
					}
				}
			}
			v := e.params[p].Data
			old := slices.Clone(v)
			at := func(h float64) float64 {
				for k := range v {
					v[k] = old[k] + h*direction(k)
				}
				return e.run(t, exact)[0][0]
			}
			const h = 1e-5
			loss := at(0)
			want := (at(h) - at(-h)) / (2 * h)
			copy(v, old)
			if bound := 1e-4 * (1 + size + math.Abs(want) + math.Abs(loss)); math.Abs(loss) < 1e6 && !(math.Abs(slope-want) <= bound) {
				t.Fatalf("%s: slope %v, the difference says %v\n%s", p.Name, slope, want, e.f.Module)
			}
		}
	})
}
