package partition

import (
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Auto cuts f without marks into stages: contiguous pieces of its program order (a stable topological order) so that
// the largest stage's cost, forward and backward, is least; then the bytes that cross, then the sum of squares of the
// stage costs, then the earliest cut. The result is exact. The unit is an operation or call of the network's own body;
// the most expensive call is opened while there are fewer units than stages. pos is where the number of stages was set.
// The placement says where the cells went, for other programs with the same network.
func Auto(f *ir.Func, s *State, stages int, costs *plan.Costs, pos ir.Pos) (*ir.Func, Placement, diag.List) {
	c := &coster{costs: costs, funcs: map[*ir.Func]float64{}}
	network := map[ir.OpID]bool{}
	for _, op := range f.Ops {
		if op.Pass == ir.ForwardPass && op.Callee != nil && op.Instance == "network" {
			network[op.ID] = true
		}
	}
	if len(network) > 0 {
		f = open(f, network)
	}
	var units []unit
	for {
		units = s.glue(f, weigh(f, s, c))
		if len(units) >= stages {
			break
		}
		var call *ir.Op
		most := 0.0
		for _, u := range units {
			for _, op := range u.ops {
				if op.Callee != nil && (call == nil || u.cost > most) {
					call, most = op, u.cost
				}
			}
		}
		if call == nil {
			return nil, nil, diag.List{diag.Errorf(diag.TooManyStages, diag.At(pos), "%d stages are asked, but the model has only %s to put on them", stages, pieces(len(units))).
				WithRepair("use at most %d stages", len(units))}
		}
		f = open(f, map[ir.OpID]bool{call.ID: true})
	}
	chunk := make([]int, f.NumOps())
	constant := f.Constants(s.stores(f)...)
	for _, op := range f.Ops {
		if len(op.Results) > 0 && constant[op.Results[0]] {
			chunk[op.ID] = cloned
		}
	}
	start := 0
	for stage, end := range cutChain(f, units, stages) {
		for _, u := range units[start:end] {
			for _, op := range u.ops {
				chunk[op.ID] = stage
			}
		}
		start = end
	}
	placement := Placement{}
	keys := keysOf(f)
	for _, u := range units {
		for _, op := range u.ops {
			if k := keys[op.ID]; k != "" {
				placement[k] = chunk[op.ID]
			}
		}
	}
	return recolour(f, chunk), placement, nil
}

// Placement maps operations and calls of the network to stages, by path and place in the text.
type Placement map[string]int

// keysOf names the forward operations inside the network: the path of their scope, their place in the text, and which of
// several there it is. The same operation has the same key in every program, although training may have others beside it.
func keysOf(f *ir.Func) []string {
	keys := make([]string, f.NumOps())
	count := map[string]int{}
	for _, op := range f.Ops {
		if op.Pass != ir.ForwardPass || op.Kind == ir.Identity {
			continue
		}
		inside, path := false, ""
		for s := op.Scope; s > 0; s = f.Scopes()[s].Parent {
			if f.Scopes()[s].Name == "network" {
				inside = true
				break
			}
			path = f.Scopes()[s].Name + "." + path
		}
		if inside {
			key := fmt.Sprintf("%s%d:%d:%s", path, op.Pos.Line, op.Pos.Col, op.Kind)
			keys[op.ID] = fmt.Sprintf("%s:%d", key, count[key])
			count[key]++
		}
	}
	return keys
}

// Apply colours another program of the same network as Auto coloured the first one. Operations that are not of the network
// run on the highest stage of their producers.
func Apply(f *ir.Func, s *State, placement Placement, stages int, pos ir.Pos) (*ir.Func, diag.List) {
	opened := map[string]bool{}
	for key := range placement {
		for i, c := range key {
			if c == '.' {
				opened[key[:i]] = true
			}
		}
	}
	for {
		keys, which := keysOf(f), map[ir.OpID]bool{}
		for _, op := range f.Ops {
			if op.Pass == ir.ForwardPass && op.Callee != nil && (op.Instance == "network" || opened[scopePath(f, op)] && keys[op.ID] != "" && !has(placement, keys[op.ID])) {
				which[op.ID] = true
			}
		}
		if len(which) == 0 {
			for _, op := range f.Ops {
				if stage, ok := placement[keys[op.ID]]; ok && keys[op.ID] != "" {
					op.Stage = stage
				}
			}
			chunk, _, errs := colour(f, s, stages, false, false, pos) // the marks are stages that never go down: chunk k is on stage k
			if errs.HasErrors() {
				return nil, errs
			}
			return recolour(f, chunk), nil
		}
		f = open(f, which)
	}
}

func has(p Placement, key string) bool { _, ok := p[key]; return ok }

// scopePath is the path below the network that the operations of a call get when it is inlined.
func scopePath(f *ir.Func, call *ir.Op) string {
	path := call.Instance
	for s := call.Scope; s > 0 && f.Scopes()[s].Name != "network"; s = f.Scopes()[s].Parent {
		path = f.Scopes()[s].Name + "." + path
	}
	return path
}

// unit is what the planner keeps together: an operation or call, or all of them between uses of a buffer.
type unit struct {
	ops  []*ir.Op
	cost float64 // forward and backward
}

func pieces(n int) string {
	if n == 1 {
		return "1 piece"
	}
	return fmt.Sprintf("%d pieces", n)
}

// weigh lists the forward operations of f, constants aside, with their cost and that of their gradient operations.
func weigh(f *ir.Func, s *State, c *coster) []unit {
	var units []unit
	place := make([]int, f.NumOps())
	constant := f.Constants(s.stores(f)...)
	skipped := make([]bool, f.NumOps())
	for _, op := range f.Ops {
		switch {
		case len(op.Results) > 0 && constant[op.Results[0]], skipped[op.Forward]:
			skipped[op.ID] = true
		case op.Pass == ir.ForwardPass:
			place[op.ID] = len(units)
			units = append(units, unit{[]*ir.Op{op}, c.op(f, op)})
		case op.Forward != 0:
			units[place[op.Forward]].cost += c.op(f, op)
		}
	}
	return units
}

// cutChain returns the end of each of the stages in units.
func cutChain(f *ir.Func, units []unit, stages int) []int {
	n := len(units)
	prefix := make([]float64, n+1)
	for i, u := range units {
		prefix[i+1] = prefix[i] + u.cost
	}
	limit := bottleneck(prefix, stages) * (1 + 1e-12)

	at := make([]int, f.NumOps()) // place of an operation among the units; behind them for constants, which never cross
	for i := range at {
		at[i] = n
	}
	for i, u := range units {
		for _, op := range u.ops {
			at[op.ID] = i
		}
	}
	type state struct {
		bytes  int
		square float64
		next   int
	}
	none := state{bytes: -1}
	// best[s][i]: units i.. on s stages; computed from the right, so that the first of equal choices is the earliest cut.
	best := make([][]state, stages+1)
	for s := range best {
		best[s] = make([]state, n+1)
		for i := range best[s] {
			best[s][i] = none
		}
	}
	best[0][n] = state{}
	seen := make([]int, f.NumValues())
	for i := n - 1; i >= 0; i-- {
		bytes := 0
		for j := i + 1; j <= n && prefix[j]-prefix[i] <= limit; j++ {
			for _, op := range units[j-1].ops {
				for _, a := range op.Args {
					d := f.Value(a).Op
					if d != nil && at[d.ID] < i && seen[a] != i+1 {
						seen[a] = i + 1
						bytes += f.TypeOf(a).Bytes()
					}
				}
			}
			w := prefix[j] - prefix[i]
			for s := 1; s <= stages && s <= n-i; s++ {
				rest := best[s-1][j]
				if rest.bytes < 0 {
					continue
				}
				x := state{rest.bytes + bytes, rest.square + w*w, j}
				if y := &best[s][i]; y.bytes < 0 || x.bytes < y.bytes || x.bytes == y.bytes && x.square < y.square*(1-1e-12) {
					*y = x
				}
			}
		}
	}
	ends := make([]int, stages)
	for s, i := stages, 0; s > 0; s-- {
		i = best[s][i].next
		ends[stages-s] = i
	}
	return ends
}

// bottleneck is the least possible cost of the most expensive of `stages` non-empty contiguous pieces.
func bottleneck(prefix []float64, stages int) float64 {
	n := len(prefix) - 1
	least := make([]float64, n+1) // for the first j units on s stages
	for j := 1; j <= n; j++ {
		least[j] = prefix[j]
	}
	for s := 2; s <= stages; s++ {
		for j := n; j >= 1; j-- {
			if j < s {
				least[j] = math.Inf(1)
				continue
			}
			// least[i] grows and the last piece shrinks with i: the crossing is the best place.
			lo, hi := s-1, j-1
			for lo < hi {
				mid := (lo + hi) / 2
				if least[mid] >= prefix[j]-prefix[mid] {
					hi = mid
				} else {
					lo = mid + 1
				}
			}
			v := max(least[lo], prefix[j]-prefix[lo])
			if lo > s-1 {
				v = min(v, max(least[lo-1], prefix[j]-prefix[lo-1]))
			}
			least[j] = v
		}
	}
	return least[n]
}
