package partition

import (
	"fmt"

	"github.com/ppc-lang/ppc/ir"
)

// Part is one chunk of a coloured joint graph as three functions, by ir.Pass. A pass without operations has no
// function.
type Part struct {
	Chunk int
	Funcs [3]*ir.Func
	// Args and Results name the joint graph's value behind every argument and result of the functions.
	Args, Results [3][]ir.ValueID
	// Local gives, for the joint values the chunk knows, the value whose buffer they share in this chunk.
	Local map[ir.ValueID]ir.ValueID
}

// Crossing is a value that leaves the chunk that makes it for another one.
type Crossing struct {
	Value    ir.ValueID
	From, To int
	Pass     ir.Pass // of its definition
}

// Split makes the functions of every chunk of a coloured function, and the list of crossings, ordered by definition
// and consuming chunk: the one object from which both sides derive what they send and receive. Some chunks may
// be empty.
func Split(f *ir.Func, chunks int) ([]*Part, []Crossing) {
	alias := map[*ir.Func][]ir.Alias{}
	parts := make([]*Part, chunks)
	for c := range parts {
		parts[c] = &Part{Chunk: c, Local: map[ir.ValueID]ir.ValueID{}}
	}
	// wanted[v]: the chunks and passes that read v outside the pass that defines it.
	type use struct {
		chunk int
		pass  ir.Pass
	}
	wanted := make([][]use, f.NumValues())
	ops := make([][3][]*ir.Op, chunks)
	for _, op := range f.Ops {
		ops[op.Chunk][op.Pass] = append(ops[op.Chunk][op.Pass], op)
		for _, a := range op.Args {
			d := f.Value(a).Op
			if d == nil || d.Chunk == op.Chunk && d.Pass == op.Pass {
				continue
			}
			u, known := use{op.Chunk, op.Pass}, false
			for _, w := range wanted[a] {
				known = known || w == u
			}
			if !known {
				wanted[a] = append(wanted[a], u)
			}
		}
	}
	isResult := make([]bool, f.NumValues())
	for _, r := range f.Results {
		isResult[r] = true
	}
	for c, p := range parts {
		for pass := range ir.WeightPass + 1 {
			if len(ops[c][pass]) > 0 {
				p.build(f, pass, ops[c][pass], alias, func(v ir.ValueID) bool { return isResult[v] || len(wanted[v]) > 0 })
			}
		}
	}
	var crossings []Crossing
	for v := range wanted {
		for c := range chunks {
			d := f.Value(ir.ValueID(v)).Op
			for _, w := range wanted[v] {
				if w.chunk == c && d.Chunk != c {
					crossings = append(crossings, Crossing{ir.ValueID(v), d.Chunk, c, d.Pass})
					break
				}
			}
		}
	}
	return parts, crossings
}

// build makes the function of one pass of a chunk.
func (p *Part) build(f *ir.Func, pass ir.Pass, ops []*ir.Op, alias map[*ir.Func][]ir.Alias, leaves func(ir.ValueID) bool) {
	g := f.Module.NewFunc(fmt.Sprintf("chunk%d.%s", p.Chunk, pass))
	values := map[ir.ValueID]ir.ValueID{}
	for _, s := range f.Scopes()[1:] {
		g.AddScope(s.Parent, s.Name)
	}
	local := func(v ir.ValueID) ir.ValueID {
		if r, ok := p.Local[v]; ok {
			return r
		}
		p.Local[v] = v
		return v
	}
	for _, op := range ops {
		args := make([]ir.ValueID, len(op.Args))
		for i, a := range op.Args {
			v, ok := values[a]
			if !ok {
				if q := f.Value(a).Param; q != nil {
					v = g.ReadParam(q)
				} else {
					v = g.AddArg(argName(f, a), f.TypeOf(a))
					p.Args[pass] = append(p.Args[pass], a)
				}
				values[a] = v
			}
			args[i] = v
			local(a)
		}
		n := g.CopyOp(op, args, op.At)
		for i, r := range op.Results {
			values[r] = n.Results[i]
			p.Local[r] = r
			if leaves(r) {
				g.Results = append(g.Results, n.Results[i])
				p.Results[pass] = append(p.Results[pass], r)
			}
		}
		switch info := op.Kind.Info(); {
		case info.View || info.InPlace:
			p.Local[op.Results[0]] = local(op.Args[0])
		case op.Callee != nil:
			as, ok := alias[op.Callee]
			if !ok {
				as = op.Callee.AliasOf()
				alias[op.Callee] = as
			}
			for i, a := range as {
				switch {
				case a.Arg >= 0:
					p.Local[op.Results[i]] = local(op.Args[a.Arg])
				case a.Result >= 0:
					p.Local[op.Results[i]] = local(op.Results[a.Result])
				}
			}
		}
	}
	p.Funcs[pass] = g
}

func argName(f *ir.Func, v ir.ValueID) string {
	if n := f.Value(v).Name; n != "" {
		return n
	}
	return fmt.Sprint("v", v)
}

// Covers checks that every operation of f is in exactly one part.
func Covers(f *ir.Func, parts []*Part) error {
	n := 0
	for _, p := range parts {
		for _, g := range p.Funcs {
			if g != nil {
				n += len(g.Ops)
			}
		}
	}
	if n != len(f.Ops) {
		return fmt.Errorf("the chunks hold %d operations, the step has %d", n, len(f.Ops))
	}
	return nil
}

// Cells lists the instance paths of the calls and operations of a chunk, each once, in program order.
func Cells(f *ir.Func, chunk int) []string {
	out := []string{}
	seen := map[string]bool{}
	for _, op := range f.Ops {
		if op.Chunk != chunk || op.Pass != ir.ForwardPass {
			continue
		}
		if p := f.Path(op); p != "" && !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}
