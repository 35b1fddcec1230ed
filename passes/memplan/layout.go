package memplan

import (
	"fmt"
	"sort"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Layout places all items and frames for one kind of device. It is a function of the plan and the device's table.
func Layout(p *plan.Plan, costs *plan.Costs) *plan.Memory {
	mem := &plan.Memory{Device: costs.Device}
	for s, st := range p.Stages {
		sm := plan.StageMemory{ByClass: make([]int, len(plan.Classes))}
		for _, a := range st.Areas {
			offset := 0
			offsets := make([]int, len(a.Items))
			for i, it := range a.Items {
				offsets[i] = offset
				offset += costs.Aligned(costs.ItemBytes(it))
			}
			sm.SlotBytes = append(sm.SlotBytes, offset)
			sm.Offsets = append(sm.Offsets, offsets)
			sm.Count(a.Class, offset*a.Slots)
		}
		fr := &framer{costs: costs, index: map[*ir.Func]int{}}
		ws := &workspace{costs: costs, packed: map[*ir.Param]bool{}, done: map[string]int{}}
		for _, sp := range st.Params {
			ws.packed[sp.Param] = sp.Form != plan.Rows
		}
		parted := st.PartedGradients()
		for _, q := range p.Programs {
			for _, c := range q.Chunks {
				if c.Stage != s {
					continue
				}
				for _, ph := range c.Phases {
					if ph.Func != nil {
						sm.Scratch = max(sm.Scratch, fr.frame(ph.Func).Bytes)
						packed := make([]bool, len(ph.Args))
						for i, r := range ph.Args {
							packed[i] = st.Areas[r.Area].Items[r.Item].Form != plan.Rows
							if sp := parted[r]; sp != nil {
								packed[i] = sp.Form != plan.Rows
							}
						}
						sm.Private = max(sm.Private, ws.function(ph.Func, packed))
					}
				}
			}
		}
		for _, sp := range st.Params {
			if p.Optimizer != nil && len(sp.Accumulators) > 0 {
				sm.Private = max(sm.Private, costs.OptimizerWorkspace(p.Optimizer.Func))
			}
		}
		sm.Frames = fr.frames
		sm.Count(plan.Scratch, sm.Scratch)
		sm.Count(plan.Private, sm.Private)
		mem.Stages = append(mem.Stages, sm)
	}
	return mem
}

// workspace finds the largest kernel workspace. Whether a product needs one depends on whether its right side or its
// accumulator is packed, so a function counts once per set of packed arguments.
type workspace struct {
	costs  *plan.Costs
	packed map[*ir.Param]bool
	done   map[string]int
}

func (w *workspace) function(f *ir.Func, args []bool) int {
	key := fmt.Sprint(f.Name, args)
	if n, ok := w.done[key]; ok {
		return n
	}
	packed := make([]bool, f.NumValues())
	for i, on := range args {
		packed[f.Args[i]] = on
	}
	for _, v := range f.ParamReads() {
		packed[v] = w.packed[f.Value(v).Param]
	}
	most := 0
	for _, op := range f.Ops {
		switch {
		case op.Callee != nil:
			mask := make([]bool, len(op.Args))
			for i, a := range op.Args {
				mask[i] = packed[a]
			}
			most = max(most, w.function(op.Callee, mask))
		case op.Kind == ir.MatMul || op.Kind == ir.MatMulAccumulate:
			right := op.Args[0]
			if op.Kind == ir.MatMul {
				right = op.Args[1]
			}
			in := make([]ir.Type, len(op.Args))
			for i, a := range op.Args {
				in[i] = f.TypeOf(a)
			}
			most = max(most, w.costs.Workspace(op.Kind, in, op.Attrs, packed[right]))
		}
	}
	w.done[key] = most
	return most
}

type framer struct {
	costs  *plan.Costs
	index  map[*ir.Func]int
	frames []plan.Frame
}

// frame places the inner values of f, and of its callees before it. Values whose lives overlap never overlap in place.
func (fr *framer) frame(f *ir.Func) *plan.Frame {
	if i, ok := fr.index[f]; ok {
		return &fr.frames[i]
	}
	root := f.Roots()
	last := make([]int, f.NumValues()) // by root: place of the last use
	outside := make([]bool, f.NumValues())
	for i, op := range f.Ops {
		for _, a := range op.Args {
			last[root[a]] = i
		}
		for _, r := range op.Results {
			last[root[r]] = max(last[root[r]], i)
		}
	}
	for _, r := range f.Results {
		outside[root[r]] = true
	}
	fm := plan.Frame{Func: f, Offsets: make([]int, f.NumValues()), Calls: make([]int, f.NumOps())}
	for v := range fm.Offsets {
		fm.Offsets[v] = -1
	}
	ends := make([][]ir.ValueID, len(f.Ops))
	h := &heap{align: fr.costs.Align}
	for i, op := range f.Ops {
		for _, r := range op.Results {
			if root[r] == r && !outside[r] {
				fm.Offsets[r] = h.take(f.TypeOf(r).Bytes())
				ends[last[r]] = append(ends[last[r]], r)
			}
		}
		if op.Callee != nil {
			if n := fr.frame(op.Callee).Bytes; n > 0 {
				fm.Calls[op.ID] = h.take(n)
				h.give(fm.Calls[op.ID], n)
			}
		}
		for _, r := range ends[i] {
			h.give(fm.Offsets[r], f.TypeOf(r).Bytes())
		}
	}
	fm.Bytes = h.high
	fr.index[f] = len(fr.frames)
	fr.frames = append(fr.frames, fm)
	return &fr.frames[len(fr.frames)-1]
}

// heap hands out offsets, first fit.
type heap struct {
	align, high int
	free        []span // sorted, disjoint, not adjacent; all below high
}

type span struct{ at, size int }

func (h *heap) round(n int) int { return max(1, (n+h.align-1)/h.align) * h.align }

func (h *heap) take(bytes int) int {
	n := h.round(bytes)
	for i, s := range h.free {
		if s.size >= n {
			if s.size == n {
				h.free = append(h.free[:i], h.free[i+1:]...)
			} else {
				h.free[i] = span{s.at + n, s.size - n}
			}
			return s.at
		}
	}
	at := h.high
	if k := len(h.free); k > 0 && h.free[k-1].at+h.free[k-1].size == h.high {
		at = h.free[k-1].at
		h.free = h.free[:k-1]
	}
	h.high = at + n
	return at
}

func (h *heap) give(at, bytes int) {
	n := h.round(bytes)
	i := sort.Search(len(h.free), func(i int) bool { return h.free[i].at > at })
	h.free = append(h.free, span{})
	copy(h.free[i+1:], h.free[i:])
	h.free[i] = span{at, n}
	if i+1 < len(h.free) && at+n == h.free[i+1].at {
		h.free[i].size += h.free[i+1].size
		h.free = append(h.free[:i+1], h.free[i+2:]...)
	}
	if i > 0 && h.free[i-1].at+h.free[i-1].size == at {
		h.free[i-1].size += h.free[i].size
		h.free = append(h.free[:i], h.free[i+1:]...)
	}
}
