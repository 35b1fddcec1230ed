// Package check proves a compiled program before anything runs: every pass of every micro-batch exactly once and in
// order, sends paired with receives, every gradient written once, no deadlock under the execution model.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	graphs "gonum.org/v1/gonum/graph"
	"gonum.org/v1/gonum/graph/path"
	"gonum.org/v1/gonum/graph/simple"
	"gonum.org/v1/gonum/graph/topo"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Run checks the whole plan. An error is a fault of the compiler or of an imported schedule.
func Run(p *plan.Plan) error {
	for i, q := range p.Programs {
		for _, f := range []func(*plan.Plan, *plan.Program) error{passes, updates, messages, arguments, shared, results, tokens, states, gradients, slots, deadlock} {
			if err := f(p, q); err != nil {
				return fmt.Errorf("program %s: %w", p.Programs[i].Name, err)
			}
		}
	}
	return nil
}

// passes: each chunk runs F, I, W of every micro-batch once, each kind in ascending order, F before I before W.
func passes(p *plan.Plan, q *plan.Program) error {
	for _, c := range q.Chunks {
		var next [3]int
		for s, list := range q.Actions {
			for _, a := range list {
				if a.Chunk != c.ID || a.Kind > plan.WeightGrad {
					continue
				}
				if s != c.Stage {
					return fmt.Errorf("%s of chunk %d runs on stage %d, the chunk is on stage %d", a.Kind, c.ID, s, c.Stage)
				}
				if a.Micro != next[a.Kind] {
					return fmt.Errorf("stage %d: %s of micro-batch %d of chunk %d comes where micro-batch %d is due", s, a.Kind, a.Micro, c.ID, next[a.Kind])
				}
				next[a.Kind]++
				for before := plan.Forward; before < a.Kind; before++ {
					if (c.Phases[before].Func != nil || before == plan.InputGrad) && next[before] < next[a.Kind] {
						return fmt.Errorf("stage %d: %s of micro-batch %d of chunk %d comes before its %s", s, a.Kind, a.Micro, c.ID, before)
					}
				}
			}
		}
		for k, n := range next {
			due := c.Phases[k].Func != nil || k == 1 && c.Phases[2].Func != nil
			if k == 0 && c.Empty() && n == 0 {
				continue
			}
			if due && n != q.MicroBatches || !due && k > 0 && n != 0 {
				return fmt.Errorf("chunk %d runs %s %d times, wants %d", c.ID, plan.ActionKind(k), n, q.MicroBatches)
			}
		}
	}
	return nil
}

// updates: each stage of a training program has one update, and behind it values of shared parameters only; nothing else
// has one. Right before it, and nowhere else, gradients are reduced if the stage has several ranks, then normed if the update
// depends on all of them; right behind it what the update has shared out is gathered: all members of a collective come to the
// same ones in the same order. For those within passes to do so no weight pass may wait.
func updates(p *plan.Plan, q *plan.Program) error {
	if p.WLag > 0 && p.Shares(plan.ShardGradients) {
		return fmt.Errorf("ranks share out gradients, and a weight pass may wait for %d others", p.WLag)
	}
	end := []plan.ActionKind{plan.Update}
	if p.NeedsNorm() {
		end = append([]plan.ActionKind{plan.Norm}, end...)
	}
	if q.Degree > 1 {
		end = append([]plan.ActionKind{plan.Reduce}, end...)
	}
	for s, list := range q.Actions {
		n, collectives := 0, 0
		for at, a := range list {
			if a.Kind == plan.Reduce || a.Kind == plan.Norm {
				collectives++
			}
			if a.Kind == plan.Gather && (!p.Gathers(s) || at == 0 || list[at-1].Kind != plan.Update) ||
				a.Kind == plan.Update && p.Gathers(s) && (at+1 == len(list) || list[at+1].Kind != plan.Gather) {
				return fmt.Errorf("stage %d: parameters that are shared out are gathered right behind the update, and only there", s)
			}
			if a.Kind == plan.Update {
				n++
				for i, k := range end {
					if from := at - len(end) + 1 + i; from < 0 || list[from].Kind != k {
						return fmt.Errorf("stage %d: %s does not stand where it belongs before the update", s, k)
					}
				}
			} else if n > 0 && a.Kind != plan.Gather && a.Kind != plan.SendParam && a.Kind != plan.RecvParam {
				return fmt.Errorf("stage %d: %s behind the update", s, a.Kind)
			}
		}
		if n > 0 && collectives != len(end)-1 || n == 0 && collectives > 0 {
			return fmt.Errorf("stage %d: the step has %d collectives", s, collectives)
		}
		if q.Train && n != 1 || !q.Train && n != 0 {
			return fmt.Errorf("stage %d: the step has %d updates", s, n)
		}
	}
	return nil
}

// messages: one send and one receive of every message and micro-batch, on the right stages, micro-batches ascending on both
// sides; types and sizes of both ends agree.
func messages(p *plan.Plan, q *plan.Program) error {
	sends, recvs := make([]int, len(q.Messages)), make([]int, len(q.Messages))
	for s, list := range q.Actions {
		for _, a := range list {
			if a.Kind.IsCompute() || a.Kind.IsShared() {
				continue
			}
			if a.Message < 0 || a.Message >= len(q.Messages) {
				return fmt.Errorf("stage %d: %s of an unknown message", s, a.Kind)
			}
			m := q.Messages[a.Message]
			from, to := q.Chunks[m.From].Stage, q.Chunks[m.To].Stage
			tag := fmt.Sprintf("message %d, micro-batch %d", m.ID, a.Micro)
			back := a.Kind == plan.SendBackward || a.Kind == plan.RecvBackward
			result := a.Kind == plan.SendResult || a.Kind == plan.RecvResult
			token := a.Kind == plan.SendToken || a.Kind == plan.RecvToken
			if back != m.Backward || result != m.Result || token != m.Token {
				return fmt.Errorf("stage %d: %s of %s, which is of another kind", s, a.Kind, tag)
			}
			var next *int
			switch {
			case a.Kind.IsSend() && s == from:
				next = &sends[m.ID]
			case a.Kind.IsRecv() && s == to:
				next = &recvs[m.ID]
			default:
				return fmt.Errorf("stage %d: %s of %s, which goes from stage %d to stage %d", s, a.Kind, tag, from, to)
			}
			if a.Micro != *next {
				return fmt.Errorf("stage %d: %s of %s comes where micro-batch %d is due", s, a.Kind, tag, *next)
			}
			*next++
		}
	}
	for _, m := range q.Messages {
		from, to := q.Chunks[m.From].Stage, q.Chunks[m.To].Stage
		if from == to {
			return fmt.Errorf("message %d goes from stage %d to itself", m.ID, from)
		}
		if sends[m.ID] != q.MicroBatches || recvs[m.ID] != q.MicroBatches {
			return fmt.Errorf("message %d from stage %d to stage %d is sent %d times and received %d times; there are %d micro-batches", m.ID, from, to, sends[m.ID], recvs[m.ID], q.MicroBatches)
		}
		for _, t := range m.Tensors {
			a, b := p.Stages[from].Areas[t.From.Area].Items[t.From.Item], p.Stages[to].Areas[t.To.Area].Items[t.To.Item]
			if a.Type.Bytes() != t.Type.Bytes() || b.Type.Bytes() != t.Type.Bytes() {
				return fmt.Errorf("boundary %s is %s, kept as %s and %s", t.Name, t.Type, a.Type, b.Type)
			}
		}
	}
	return nil
}

// shared: every message of a shared parameter is sent and received once, on the right stages, gradients before and values
// behind the update; both ends hold tensors of the parameter's type.
func shared(p *plan.Plan, q *plan.Program) error {
	sent, received := make([]int, len(q.Shared)), make([]int, len(q.Shared))
	for s, list := range q.Actions {
		updated := false
		for _, a := range list {
			updated = updated || a.Kind == plan.Update
			if !a.Kind.IsShared() {
				continue
			}
			if a.Message < 0 || a.Message >= len(q.Shared) {
				return fmt.Errorf("stage %d: %s of an unknown message", s, a.Kind)
			}
			m := q.Shared[a.Message]
			value := a.Kind == plan.SendParam || a.Kind == plan.RecvParam
			if value != m.Value || value != updated {
				return fmt.Errorf("stage %d: %s stands on the wrong side of the update", s, a.Kind)
			}
			switch {
			case a.Kind.IsSend() && m.From == s:
				sent[m.ID]++
			case a.Kind.IsRecv() && m.To == s:
				received[m.ID]++
			default:
				return fmt.Errorf("stage %d: %s of a message from stage %d to stage %d", s, a.Kind, m.From, m.To)
			}
		}
	}
	for _, m := range q.Shared {
		if sent[m.ID] != 1 || received[m.ID] != 1 {
			return fmt.Errorf("shared parameters from stage %d to stage %d are sent %d times and received %d times", m.From, m.To, sent[m.ID], received[m.ID])
		}
		for _, t := range m.Tensors {
			a, b := p.Stages[m.From].Areas[t.From.Area].Items[t.From.Item], p.Stages[m.To].Areas[t.To.Area].Items[t.To.Item]
			if !a.Type.Equal(t.Type) || !b.Type.Equal(t.Type) || a.Form != b.Form {
				return fmt.Errorf("%s is kept differently on stages %d and %d", t.Name, m.From, m.To)
			}
		}
	}
	return nil
}

// results: with a broadcast every stage gets every result it does not compute exactly once, from where it is computed, and
// sends it behind the pass that makes it; receives are behind all passes, so that their buffers are nobody's concern.
func results(p *plan.Plan, q *plan.Program) error {
	type copied struct {
		from plan.Ref
		to   int
	}
	type place struct {
		stage int
		ref   plan.Ref
	}
	sent, kept, sending := map[int]map[copied]int{}, map[place]bool{}, false
	for _, m := range q.Messages {
		if !m.Result {
			continue
		}
		sending = true
		from, to := q.Chunks[m.From].Stage, q.Chunks[m.To].Stage
		if sent[from] == nil {
			sent[from] = map[copied]int{}
		}
		for _, t := range m.Tensors {
			sent[from][copied{t.From, to}]++
			a := p.Stages[to].Areas[t.To.Area]
			if kept[place{to, t.To}] || a.Class != plan.Outputs || a.Lifetime != plan.PerMicro || a.Slots != q.MicroBatches {
				return fmt.Errorf("result %s has no place of its own on stage %d", t.Name, to)
			}
			kept[place{to, t.To}] = true
		}
	}
	if !sending {
		return nil
	}
	for k, o := range q.Outputs {
		if kept[place{o.Stage, o.Ref}] {
			return fmt.Errorf("result %d of stage %d lies where another one is received", k, o.Stage)
		}
		for s := range p.Stages {
			if n := sent[o.Stage][copied{o.Ref, s}]; s != o.Stage && n != 1 {
				return fmt.Errorf("stage %d gets result %d from stage %d %d times", s, k, o.Stage, n)
			}
		}
	}
	for s, list := range q.Actions {
		received, done := false, make([]int, len(q.Chunks))
		for _, a := range list {
			switch {
			case a.Kind == plan.Forward && received:
				return fmt.Errorf("stage %d: %s behind the receive of a result", s, a.Kind)
			case a.Kind == plan.Forward:
				done[a.Chunk] = a.Micro + 1
			case a.Kind == plan.RecvResult:
				received = true
			case a.Kind == plan.SendResult:
				for _, c := range q.Chunks {
					if c.Stage == s && c.Phases[ir.ForwardPass].Func != nil && done[c.ID] <= a.Micro {
						return fmt.Errorf("stage %d: %s of micro-batch %d before chunk %d has computed it", s, a.Kind, a.Micro, c.ID)
					}
				}
			}
		}
	}
	return nil
}

// gradients: a weight pass or a receive writes every accumulator exactly once.
func gradients(p *plan.Plan, q *plan.Program) error {
	if !q.Train {
		return nil
	}
	for s, st := range p.Stages {
		written := map[plan.Ref]int{}
		for _, c := range q.Chunks {
			if c.Stage == s && c.Phases[ir.WeightPass].Func != nil {
				for _, r := range c.Phases[ir.WeightPass].Results {
					written[r]++
				}
			}
		}
		for _, m := range q.Shared {
			for _, t := range m.Tensors {
				if m.To == s && !m.Value {
					written[t.To]++
				}
			}
		}
		for _, sp := range st.Params {
			for i, r := range sp.Accumulators {
				if written[r] != 1 {
					return fmt.Errorf("stage %d: gradient %d of parameter %s is written %d times", s, i, sp.Param.Name, written[r])
				}
				delete(written, r)
			}
		}
		if len(written) > 0 {
			return fmt.Errorf("stage %d: a weight pass writes something that is no gradient", s)
		}
	}
	return nil
}

// deadlock builds the graph of all actions, where the two ends of a transfer are one node, and shows a cycle if there
// is one. Edges: a stage's compute actions in order; a transfer after every compute action before it in either list;
// transfers of a message in order of micro-batches; compute after the transfers it needs; a buffer's next writer after its last send.
//
// One rank per stage is enough. The r-th ranks of all stages exchange messages among each other only, by the same list, and meet
// the others of their stage in collectives. Each of these stands at one place of the list: at the end of the step, or, of ranks that
// share out gradients or values, within a pass, between the same two steps of it on every rank (and a weight pass then runs where it
// stands: see updates). So in the graph of all ranks join every action with that of the other ranks of its stage. Every edge
// between actions goes to the edge of this graph between the actions of the stages, and a collective becomes part of one node; it
// waits for nothing but for the others to come to it, in the order that all have. A cycle of waits among all ranks would thus be
// a cycle here.
//
// A program that generates repeats its actions in rounds, and a token that is sent in one round is received in the next. A
// transfer belongs to the round in which it is received. Then every edge goes from a round to the same or the next one, never
// back, so a cycle lies within one round; all rounds but the first are alike, and the first lacks only what would come from
// the one before. Two rounds show therefore what any number would. Micro-batches without requests leave actions out:
// that takes nodes away and puts no edge between others that a path did not join before.
func deadlock(p *plan.Plan, q *plan.Program) error {
	g := &graph{names: nil, transfer: map[[3]int]int{}}
	node := func(name string) int {
		g.names = append(g.names, name)
		g.edges = append(g.edges, nil)
		return len(g.names) - 1
	}
	transfer := func(message, micro, round int) int {
		k := [3]int{message, micro, round}
		n, ok := g.transfer[k]
		if !ok {
			if message < 0 {
				m := q.Shared[-1-message]
				n = node(fmt.Sprintf("shared parameters from stage %d to stage %d", m.From, m.To))
			} else {
				m := q.Messages[message]
				n = node(fmt.Sprintf("message %d of micro-batch %d from stage %d to stage %d", message, micro, q.Chunks[m.From].Stage, q.Chunks[m.To].Stage))
			}
			g.transfer[k] = n
		}
		return n
	}
	rounds := 1
	if q.Feedback != nil {
		rounds = 2
	}
	last := map[int]int{} // message -> last transfer
	norm := -1            // all stages meet there
	for s, actions := range q.Actions {
		compute := -1
		var wants []int
		for at := range rounds * len(actions) {
			a, round := actions[at%len(actions)], at/len(actions)
			if !a.Kind.IsCompute() {
				id := a.Message
				if a.Kind.IsShared() {
					id = -1 - id
				}
				if a.Kind == plan.RecvToken && round == 0 {
					continue // new requests start
				}
				of := round
				if a.Kind == plan.SendToken {
					if of++; of == rounds {
						continue
					}
				}
				t := transfer(id, a.Micro, of)
				if compute >= 0 {
					g.edge(compute, t)
				}
				if a.Kind.IsRecv() {
					wants = append(wants, t)
				} else {
					if before, ok := last[id]; ok {
						g.edge(before, t)
					}
					last[id] = t
				}
				continue
			}
			n := norm
			if a.Kind != plan.Norm {
				n = node(fmt.Sprintf("%s of micro-batch %d on stage %d", a.Kind, a.Micro, s))
			} else if n < 0 {
				n = node("the norm of all gradients")
				norm = n
			}
			if compute >= 0 {
				g.edge(compute, n)
			}
			for _, t := range wants {
				g.edge(t, n)
			}
			wants = wants[:0]
			for _, m := range q.Messages {
				if m.From != a.Chunk || !(a.Kind == plan.Forward && !m.Backward || a.Kind == plan.InputGrad && m.Backward) {
					continue
				}
				switch {
				case a.Micro >= m.Window:
					g.edge(transfer(m.ID, a.Micro-m.Window, round), n)
				case round > 0 && m.Token:
					g.edge(transfer(m.ID, a.Micro, round), n)
				case round > 0: // the last one of the round before that used the same slot
					g.edge(transfer(m.ID, a.Micro+(q.MicroBatches-1-a.Micro)/m.Window*m.Window, round-1), n)
				}
			}
			compute = n
		}
	}
	if cycle := g.cycle(); cycle != nil {
		return fmt.Errorf("deadlock: %s", strings.Join(cycle, " waits for "))
	}
	return nil
}

type graph struct {
	names    []string
	edges    [][]int // from what must come first
	transfer map[[3]int]int
}

func (g *graph) edge(from, to int) { g.edges[from] = append(g.edges[from], to) }

// cycle returns the names along a shortest cycle, each waiting for the next, or nil. Kahn's algorithm decides; only a graph
// with a cycle is handed to gonum, for the counter-example.
func (g *graph) cycle() []string {
	degree := make([]int, len(g.names))
	for _, es := range g.edges {
		for _, e := range es {
			degree[e]++
		}
	}
	var ready []int
	for n, d := range degree {
		if d == 0 {
			ready = append(ready, n)
		}
	}
	left := len(g.names)
	for len(ready) > 0 {
		n := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		left--
		for _, e := range g.edges[n] {
			if degree[e]--; degree[e] == 0 {
				ready = append(ready, e)
			}
		}
	}
	if left == 0 {
		return nil
	}
	waits := simple.NewDirectedGraph() // edges from who waits to what it waits for
	for n, es := range g.edges {
		for _, e := range es {
			if degree[n] > 0 && degree[e] > 0 && n != e {
				waits.SetEdge(waits.NewEdge(simple.Node(e), simple.Node(n)))
			}
		}
	}
	var best []graphs.Node
	for _, component := range topo.TarjanSCC(waits) {
		if len(component) < 2 {
			continue
		}
		slices.SortFunc(component, func(a, b graphs.Node) int { return cmp.Compare(a.ID(), b.ID()) })
		start := component[0]
		from := path.DijkstraFrom(start, waits)
		for _, end := range component[1:] {
			if !waits.HasEdgeFromTo(end.ID(), start.ID()) {
				continue
			}
			if way, _ := from.To(end.ID()); best == nil || len(way)+1 < len(best) {
				best = append(way, start)
			}
		}
	}
	names := make([]string, len(best))
	for i, n := range best {
		names[i] = g.names[n.ID()]
	}
	return names
}
