package plan

import "github.com/ppc-lang/ppc/ir"

// What the ranks of a group share out of a parameter (StageParam.Shard). Each level contains those below it.
const (
	ShardNone      = iota
	ShardStates    // a rank has a part of the states, and updates that part of the parameter
	ShardGradients // and that part of the gradient: those of every micro-batch are summed over the group and cut
	ShardValue     // and that part of the value: the whole is gathered where it is read
)

// Part is the elements of a parameter that a rank has of what is shared out, of n in the device's form. Buffers of parts have as
// many elements as the largest part.
func (p *Plan) Part(n, replica int) (lo, hi int) {
	size := PartSize(n, p.ShardSize)
	lo = min(replica%p.ShardSize*size, n)
	return lo, min(lo+size, n)
}

// PartSize is the number of elements of the largest of parts of n elements; parts begin at a multiple of 64 bytes of f32.
func PartSize(n, parts int) int { return ((n+parts-1)/parts + 15) / 16 * 16 }

// Whole is the value of a parameter as an item, where it is not a part.
func (sp *StageParam) Whole() Item {
	return Item{Name: sp.Param.Name, Type: sp.Param.Type, Form: sp.Form}
}

// Elems is the number of elements of the whole value in its form on the cpu device.
func (sp *StageParam) Elems() int { return CPU.ItemBytes(sp.Whole()) / sp.Param.Type.DType.Size() }

// CanCut reports whether the parts of a parameter would be smaller than the whole.
func (p *Plan) CanCut(sp *StageParam) bool {
	return p.ShardSize > 1 && sp.Param.Type.DType == ir.F32 && PartSize(sp.Elems(), p.ShardSize) < sp.Elems()
}

// Kept is the item of what is shared out from a level on: states, accumulators or the value. It is like the whole value, or a part.
func (p *Plan) Kept(sp *StageParam, level int) Item {
	it := sp.Whole()
	if sp.Shard >= level {
		it.Type, it.Form = ir.Tensor(it.Type.DType, PartSize(sp.Elems(), p.ShardSize)), Rows
	}
	return it
}

// PartedGradients are the accumulators that hold a part, with their parameters.
func (st *Stage) PartedGradients() map[Ref]*StageParam {
	parted := map[Ref]*StageParam{}
	for i := range st.Params {
		if sp := &st.Params[i]; sp.Shard >= ShardGradients {
			for _, a := range sp.Accumulators {
				parted[a] = sp
			}
		}
	}
	return parted
}

// Gathers reports whether the ranks of the stage, once they have updated their parts of parameters, tell each other.
func (p *Plan) Gathers(stage int) bool {
	for _, sp := range p.Stages[stage].Params {
		if sp.Updated(stage) && (sp.Shard == ShardStates || sp.Shard == ShardGradients) {
			return true
		}
	}
	return false
}

// Updated reports whether the stage updates the parameter.
func (sp *StageParam) Updated(stage int) bool {
	return sp.Owner == stage && len(sp.Accumulators) > 0
}

// Shares reports whether ranks share out what a level says, of any parameter. From ShardGradients on they meet within passes, and
// every pass runs where it stands in the list.
func (p *Plan) Shares(level int) bool {
	for _, st := range p.Stages {
		for i := range st.Params {
			if st.Params[i].Shard >= level {
				return true
			}
		}
	}
	return false
}

// Reads calls visit for every operation of a function, calls followed, in order, with the parameters that the stage keeps a part
// of and that the operation reads, by Stage.Params and each once: what a rank gathers before it. Views read nothing. If the stage
// keeps all parameters whole there is nothing to visit.
func (st *Stage) Reads(f *ir.Func, visit func(op *ir.Op, params []int)) {
	parts := map[*ir.Param]int{} // 1 + index
	for i, sp := range st.Params {
		if sp.Shard >= ShardValue {
			parts[sp.Param] = 1 + i
		}
	}
	if len(parts) == 0 {
		return
	}
	var walk func(f *ir.Func, args []int)
	walk = func(f *ir.Func, args []int) {
		root := f.Roots()
		of := make([]int, f.NumValues()) // by root
		for i, a := range f.Args {
			of[a] = args[i]
		}
		for _, v := range f.ParamReads() {
			of[v] = parts[f.Value(v).Param]
		}
		for _, op := range f.Ops {
			if op.Callee != nil {
				inner := make([]int, len(op.Args))
				for i, a := range op.Args {
					inner[i] = of[root[a]]
				}
				walk(op.Callee, inner)
				continue
			}
			if op.Kind.Info().View {
				continue
			}
			var reads []int
			for k, a := range op.Args {
				n := of[root[a]]
				for _, before := range op.Args[:k] {
					if of[root[before]] == n {
						n = 0
					}
				}
				if n > 0 {
					reads = append(reads, n-1)
				}
			}
			visit(op, reads)
		}
	}
	walk(f, make([]int, len(f.Args)))
}

// WorkspaceElems is how many elements Stage.Workspace has at least: a gradient of a micro-batch before it is cut, or the values
// that a step of a pass reads. A step is an operation, or a product with the operation behind it.
func (p *Plan) WorkspaceElems(stage int) int {
	st := p.Stages[stage]
	most := 0
	for i := range st.Params {
		if sp := &st.Params[i]; sp.Shard >= ShardGradients {
			most = max(most, sp.Elems())
		}
	}
	for _, q := range p.Programs {
		for _, c := range q.Chunks {
			if c.Stage != stage {
				continue
			}
			for _, ph := range c.Phases {
				if ph.Func != nil {
					most = max(most, st.largestStep(ph.Func))
				}
			}
		}
	}
	return most
}

func (st *Stage) largestStep(f *ir.Func) (most int) {
	before := 0 // elements that the product right before reads
	st.Reads(f, func(op *ir.Op, params []int) {
		n := 0
		for _, i := range params {
			n += WorkspaceSpan(st.Params[i].Elems())
		}
		most = max(most, before+n)
		if before = 0; op.Kind == ir.MatMul {
			before = n
		}
	})
	return most
}

// WorkspaceSpan is how far the next value is behind one of n elements in a workspace.
func WorkspaceSpan(n int) int { return (n + 15) / 16 * 16 }
