package partition

import (
	"fmt"
	"slices"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// State tells which values of a joint graph are buffers: argument Arg+i is buffer i before the micro-batch, result Result+i
// the same behind it, for the first Written of them. The zero value has none.
//
// A buffer is in one place: the chunk of the operations that read and write it. What depends on buffers and parameters only
// could run anywhere; it runs there too.
type State struct {
	Buffers []*plan.Buffer
	Written int
	Arg     int
	Result  int
	// Home has the stage of buffers that another program has placed.
	Home map[*plan.Buffer]int
}

// stores are the new values.
func (s *State) stores(f *ir.Func) []ir.ValueID { return f.Results[s.Result : s.Result+s.Written] }

// of gives the number of the buffer that a value is before the micro-batch, -1 if it is none.
func (s *State) of(f *ir.Func, v ir.ValueID) int {
	rec := f.Value(v)
	if rec.Op != nil || rec.Param != nil || rec.Index < s.Arg || rec.Index >= s.Arg+len(s.Buffers) {
		return -1
	}
	return rec.Index - s.Arg
}

// uses lists, by buffer, the forward operations that read or write it, also through a view. What training copies to keep is
// read by the readers of the copy.
func (s *State) uses(f *ir.Func) [][]*ir.Op {
	out := make([][]*ir.Op, len(s.Buffers))
	if len(out) == 0 {
		return out
	}
	root := f.Roots()
	copied := map[ir.ValueID]int{}
	for _, op := range f.Ops {
		if op.Pass != ir.ForwardPass {
			continue
		}
		for _, a := range op.Args {
			b := s.of(f, root[a])
			if c, ok := copied[root[a]]; ok {
				b = c
			}
			if b < 0 {
				continue
			}
			if op.Kind == ir.BroadcastTo && s.of(f, a) >= 0 {
				copied[op.Results[0]] = b
			}
			if n := len(out[b]); n == 0 || out[b][n-1] != op {
				out[b] = append(out[b], op)
			}
		}
	}
	for i, v := range s.stores(f) {
		out[i] = append(out[i], f.Value(v).Op)
	}
	return out
}

// floating is the colour of operations that go to the home of a buffer.
const floating = -3

// floats finds the operations that go to the home of a buffer, by the number of the home, -1 for others. Buffers that one of
// them joins have one home: group tells it.
func (s *State) floats(f *ir.Func) (home []int, group []int) {
	home, group = make([]int, f.NumOps()), make([]int, len(s.Buffers))
	for id := range home {
		home[id] = -1
	}
	for b := range group {
		group[b] = b
	}
	find := func(b int) int {
		for group[b] != b {
			b = group[b]
		}
		return b
	}
	written := map[ir.OpID][]int{}
	stores := s.stores(f)
	for i, v := range stores {
		id := f.Value(v).Op.ID
		written[id] = append(written[id], i)
	}
	constant := f.Constants(stores...)
	for _, op := range f.Ops {
		if op.Pass != ir.ForwardPass {
			continue
		}
		with := slices.Clone(written[op.ID])
		fixed, keeps := false, len(with) > 0 && op.Kind == ir.BroadcastTo // an input as it is may float too
		for _, a := range op.Args {
			d := f.Value(a).Op
			switch b := s.of(f, a); {
			case b >= 0:
				with = append(with, b)
			case d != nil && home[d.ID] >= 0:
				with = append(with, home[d.ID])
			case d != nil && !constant[a], d == nil && f.Value(a).Param == nil && !keeps:
				fixed = true
			}
		}
		if fixed || len(with) == 0 {
			continue
		}
		for _, b := range with {
			group[find(b)] = find(with[0])
		}
		home[op.ID] = with[0]
	}
	for id, b := range home {
		if b >= 0 {
			home[id] = find(b)
		}
	}
	for b := range group {
		group[b] = find(b)
	}
	return home, group
}

// homes gives the place of every home, when all operations that do not float have theirs: that of the operation that writes
// a buffer, else the one that is known from another program, else the lowest that reads one, else that of a mark. on tells the
// stage of a place.
func (s *State) homes(f *ir.Func, place, home, group []int, on func(place int) int) []int {
	writer, reader, mark := make([]int, len(group)), make([]int, len(group)), make([]int, len(group))
	for b := range group {
		writer[b], reader[b], mark[b] = -1, -1, -1
	}
	for i, v := range s.stores(f) {
		if d := f.Value(v).Op; home[d.ID] < 0 {
			writer[group[i]] = max(writer[group[i]], place[d.ID])
		}
	}
	for _, op := range f.Ops {
		if op.Pass != ir.ForwardPass {
			continue
		}
		if h := home[op.ID]; h >= 0 {
			mark[h] = max(mark[h], op.Stage)
			continue
		}
		for _, a := range op.Args {
			h := -1
			if b := s.of(f, a); b >= 0 {
				h = group[b]
			} else if d := f.Value(a).Op; d != nil {
				h = home[d.ID]
			}
			if h >= 0 && (reader[h] < 0 || place[op.ID] < reader[h]) {
				reader[h] = place[op.ID]
			}
		}
	}
	out := make([]int, len(group))
	for b, x := range s.Buffers {
		stage, ok := s.Home[x]
		if !ok || writer[group[b]] >= 0 {
			continue
		}
		// A program that only reads it: the last place on its stage before the reader.
		p := reader[group[b]]
		for p >= 0 && on(p) != stage {
			p--
		}
		if p < 0 {
			p = stage
		}
		writer[group[b]] = p
	}
	for b := range out {
		for _, c := range []int{mark[b], reader[b], writer[b]} {
			if c >= 0 {
				out[b] = c
			}
		}
	}
	return out
}

// check refuses buffers that several chunks read or write.
func (s *State) check(f *ir.Func, chunk, on []int) diag.List {
	var errs diag.List
	for b, ops := range s.uses(f) {
		store := (*ir.Op)(nil)
		if b < s.Written {
			store = ops[len(ops)-1]
		}
		does := func(op *ir.Op) string {
			if op == store {
				return "set"
			}
			return "read"
		}
		for _, op := range ops {
			x, y := chunk[ops[0].ID], chunk[op.ID]
			if x == y {
				continue
			}
			places := fmt.Sprintf("%s on stage %d and %s on stage %d", does(ops[0]), on[x], does(op), on[y])
			if on[x] == on[y] {
				places = fmt.Sprintf("used in two chunks of stage %d", on[x])
			}
			errs.Add(diag.Errorf(diag.BufferStages, diag.At(op.Pos), "the buffer `%s` is %s; it can only be in one place", s.Buffers[b].Name, places).
				WithNote(diag.At(ops[0].Pos), "%s here, on stage %d", does(ops[0]), on[x]).
				WithNote(diag.At(s.Buffers[b].Pos), "the buffer").
				WithRepair("put the cells that use it on one stage, or hand its value on as a tensor"))
			break
		}
	}
	return errs
}

// Settle adds the stages of the buffers that a coloured graph uses to those that are known, and refuses another one. on is the
// stage of every chunk.
func (s *State) Settle(f *ir.Func, on []int) diag.List {
	var errs diag.List
	for b, ops := range s.uses(f) {
		if len(ops) == 0 {
			continue
		}
		x, at := s.Buffers[b], ops[0].Chunk
		first, known := s.Home[x]
		if known && first != on[at] {
			errs.Add(diag.Errorf(diag.BufferStages, diag.At(ops[0].Pos), "the buffer `%s` is on stage %d here, and on stage %d for the other programs of the block; it can only be in one place", x.Name, on[at], first).
				WithNote(diag.At(x.Pos), "the buffer").WithRepair("mark the cells that use it with one stage"))
		}
		s.Home[x] = on[at]
	}
	return errs
}

// glue joins the units between the first and the last one that use a buffer.
func (s *State) glue(f *ir.Func, units []unit) []unit {
	if len(s.Buffers) == 0 {
		return units
	}
	at := make([]int, f.NumOps())
	for i, u := range units {
		at[u.ops[0].ID] = i
	}
	joined := make([]bool, len(units)) // with the one before
	for _, ops := range s.uses(f) {
		if len(ops) == 0 {
			continue
		}
		first, last := at[ops[0].ID], at[ops[0].ID]
		for _, op := range ops {
			first, last = min(first, at[op.ID]), max(last, at[op.ID])
		}
		for i := first + 1; i <= last; i++ {
			joined[i] = true
		}
	}
	var out []unit
	for i, u := range units {
		if !joined[i] {
			out = append(out, u)
			continue
		}
		last := &out[len(out)-1]
		last.ops, last.cost = append(last.ops, u.ops...), last.cost+u.cost
	}
	return out
}
