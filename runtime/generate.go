package runtime

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/transport"
)

// requests are what a generating program works on: prompts, and how many tokens each wants. Requests that stand together
// start together: a lot is as many as a micro-batch has rows.
type requests struct {
	prompts [][]int32
	tokens  []int
	most    int // of tokens
	rows    int // of a micro-batch
	passes  []int
}

// maxGenerated bounds the elements of a result.
const maxGenerated = 1 << 32

// openPrompts reads the prompts: i32[requests, length], shorter ones filled up with -1.
func (r *runner) openPrompts(q *plan.Program) error {
	name := q.Inputs[q.Feedback.Input].Name
	if len(r.opt.Inputs) != 1 {
		return badData(diag.BadDataFile, "", "block %s has one input, `%s`; %d arrays are given", q.Name, name, len(r.opt.Inputs))
	}
	a := r.opt.Inputs[0]
	size := a.DType.Size()
	for _, n := range a.Shape {
		size *= n
	}
	if len(a.Shape) != 2 || len(a.Data) != size {
		return badData(diag.BadDataFile, a.Name, "the prompts are i32[requests, length], the array has the shape %s", ir.ShapeString(a.Shape))
	}
	if size == 0 {
		return badData(diag.BadDataFile, a.Name, "there are no prompts: the array has the shape %s", ir.ShapeString(a.Shape))
	}
	b, err := exact(q.Inputs[q.Feedback.Input], a)
	if err != nil {
		return err
	}
	x := &requests{rows: q.Batch / q.MicroBatches, tokens: r.opt.Tokens}
	count, length := a.Shape[0], a.Shape[1]
	if len(x.tokens) == 1 && count > 1 {
		x.tokens = make([]int, count)
		for i := range x.tokens {
			x.tokens[i] = r.opt.Tokens[0]
		}
	}
	if len(x.tokens) != count {
		return diag.List{diag.Errorf(diag.BadSetting, diag.Range{}, "there are %d prompts, and %d numbers of new tokens", count, len(x.tokens)).
			WithRepair("give one number for all, or one for each prompt")}
	}
	for i := range count {
		p := make([]int32, 0, length)
		for k := range length {
			t := int32(binary.LittleEndian.Uint32(b[4*(i*length+k):]))
			switch {
			case t == -1 && k == 0:
				return badData(diag.BadValueRange, a.Name, "prompt %d is empty: it starts with -1, which fills prompts up at their end", i)
			case t == -1:
			case len(p) < k:
				return badData(diag.BadValueRange, a.Name, "prompt %d has the token %d at position %d, behind its end at %d: -1 fills prompts up at their end only", i, t, k, len(p))
			case t < 0:
				return badData(diag.BadValueRange, a.Name, "prompt %d: %d at position %d is no token", i, t, k)
			case q.Feedback.Limit > 0 && int(t) >= q.Feedback.Limit:
				return badData(diag.BadValueRange, a.Name, "prompt %d: the token %d at position %d is outside of the model's table of %d rows", i, t, k, q.Feedback.Limit)
			default:
				p = append(p, t)
			}
		}
		n := x.tokens[i]
		if n < 1 {
			return diag.List{diag.Errorf(diag.BadSetting, diag.Range{}, "prompt %d is to get %d new tokens; it gets at least one", i, n)}
		}
		passes := len(p) + n - 1 // the last token is not fed back
		if most := q.Feedback.Passes; most > 0 && passes > most {
			return diag.List{diag.Errorf(diag.BadSetting, diag.At(diag.Pos{File: a.Name}), "prompt %d has %d tokens and is to get %d new ones: that takes %d passes, and the block makes at most %d for a request", i, len(p), n, passes, most).
				WithRepair("ask for fewer tokens, or shorten the prompt")}
		}
		if i%x.rows == 0 {
			x.passes = append(x.passes, 0)
		}
		lot := &x.passes[i/x.rows]
		*lot = max(*lot, passes)
		x.most = max(x.most, n)
		x.prompts = append(x.prompts, p)
	}
	for _, o := range q.Outputs {
		if n := o.Type.Elems() * q.Degree / x.rows; x.most > maxGenerated/(n*count) {
			return diag.List{diag.Errorf(diag.BadSetting, diag.Range{}, "%d new tokens for %d prompts give more than %d elements", x.most, count, maxGenerated)}
		}
	}
	r.requests = x
	return nil
}

// seat is what a micro-batch works on: a lot of requests and their next pass. It is done when there are no more passes.
type seat struct{ lot, pass, passes int }

// idle reports whether the micro-batch has nothing to do.
func (s *seat) idle() bool { return s.pass == s.passes }

// generator is the program of a generating rank.
type generator struct {
	*rank
	p     *rankProgram
	x     *requests
	seats []seat
	next  int // lot that waits
	round int

	reader int          // chunk whose pass the input must be complete for, -1 on a stage that does not read it
	input  [][]byte     // by micro-batch
	fed    [][]byte     // the result that is fed back, by micro-batch, where this rank computes it; else nil
	posted []uint64     // transfers so far, by message
	sends  [][]outgoing // by chunk: the messages of its forward passes
}

// outgoing is a message that a chunk sends. slots has, by slot, 1 + the number of the transfer that used it last.
type outgoing struct {
	id    int
	link  transport.End
	slots []uint64
}

// generate runs all requests. Which requests a micro-batch works on in a round follows from their lengths alone, so that
// every rank finds it by itself: lots start in order, in the lowest micro-batch that is free.
func (r *runner) generate(ctx context.Context) error {
	q, x := r.plan.Programs[0], r.requests
	r.result.Rows = len(x.prompts)
	r.openOutputs(func(k int) data.Array {
		a := newOutput(q, k, len(x.prompts))
		a.Shape = append([]int{len(x.prompts), x.most}, a.Shape[1:]...)
		return a
	})
	for s := range r.result.Outputs {
		for _, o := range r.result.Outputs[s] {
			if o.Array != nil {
				unused(o.Array)
			}
		}
	}
	return r.all(ctx, func(k *rank) error {
		g := newGenerator(k, x)
		for g.seat() {
			if r.dead.Load() {
				return errStopped
			}
			if err := g.run(); err != nil {
				return err
			}
			err := r.deliver(k, func(output, replica int, micros [][]byte) {
				g.collect(r.result.Outputs[q.Outputs[output].Stage][output].Array, replica, micros)
			})
			if err != nil {
				return err
			}
			g.step()
		}
		if k.number == LossRank(r.plan) {
			r.result.Rounds = g.round
		}
		return k.delivered()
	})
}

// unused marks what no request will fill: -1, or NaN.
func unused(a *data.Array) {
	v := uint32(math.MaxUint32)
	if a.DType == data.F32 {
		v = math.Float32bits(float32(math.NaN()))
	}
	for i := 0; i < len(a.Data); i += 4 {
		binary.LittleEndian.PutUint32(a.Data[i:], v)
	}
}

func newGenerator(k *rank, x *requests) *generator {
	p := k.programs[0]
	q := p.Program
	g := &generator{rank: k, p: p, x: x, seats: make([]seat, q.MicroBatches), reader: -1}
	if in := k.plan.Stages[k.stage].Inputs[0][q.Feedback.Input]; in.Item >= 0 {
		g.reader = q.Reader(k.stage, in)
		g.input = p.inputs[0].micros
	}
	for _, o := range p.outputs {
		if o.value == q.Feedback.Output && g.input != nil {
			g.fed = o.micros
		}
	}
	g.posted = make([]uint64, len(q.Messages))
	g.sends = make([][]outgoing, len(q.Chunks))
	for _, m := range q.Messages {
		if q.Chunks[m.From].Stage == k.stage {
			g.sends[m.From] = append(g.sends[m.From], outgoing{m.ID, p.links[m.ID], make([]uint64, m.Window)})
		}
	}
	return g
}

// seat starts waiting requests in the micro-batches that are done and reports whether there is anything to do. The buffers of
// new requests start anew; the others get their token, where this rank has it.
func (g *generator) seat() bool {
	busy := false
	for m := range g.seats {
		s := &g.seats[m]
		switch {
		case !s.idle():
			if g.fed != nil {
				copy(g.input[m], g.fed[m])
			}
		case g.next < len(g.x.passes):
			*s = seat{g.next, 0, g.x.passes[g.next]}
			g.next++
			g.reset(m)
		}
		busy = busy || !s.idle()
	}
	return busy
}

// run makes one round.
func (g *generator) run() error {
	var wants []transfer // received, for the next pass; nth counts over all rounds
	for i := range g.p.actions {
		a := &g.p.actions[i]
		s := &g.seats[a.Micro]
		if s.idle() || a.Kind == plan.RecvToken && s.pass == 0 || a.Kind == plan.SendToken && s.pass == s.passes-1 {
			continue
		}
		g.progress.Add(1)
		g.current.Store(uint64(i))
		if a.Kind != plan.Forward {
			t := a.transfer
			t.perStep, t.nth = 0, g.posted[a.Message]
			g.posted[a.Message]++
			if a.Kind.IsRecv() {
				wants = append(wants, t)
			} else {
				for _, o := range g.sends[a.Chunk] {
					if o.id == a.Message {
						o.slots[a.Micro%len(o.slots)] = t.nth + 1
					}
				}
			}
			a.link.Post(a.buffers)
			continue
		}
		if err := g.pass(a, wants); err != nil {
			if err == errStopped {
				return err
			}
			return fmt.Errorf("rank %d: %s of round %d: %w", g.number, a.describe(), g.round, err)
		}
		wants = wants[:0]
	}
	return nil
}

// step goes on to the next round.
func (g *generator) step() {
	for m := range g.seats {
		if s := &g.seats[m]; !s.idle() {
			s.pass++
		}
	}
	g.round++
}

// pass makes a forward pass: behind the messages that it needs and the sends whose buffers it writes again.
func (g *generator) pass(a *rankAction, wants []transfer) error {
	for i := range wants {
		if err := g.wait(g.p, &wants[i]); err != nil {
			return err
		}
	}
	for _, o := range g.sends[a.Chunk] {
		if n := o.slots[a.Micro%len(o.slots)]; n > 0 {
			if err := o.link.Wait(n - 1); err != nil {
				return err
			}
		}
	}
	if a.Chunk == g.reader {
		g.prompt(a.Micro)
	}
	return g.forward(g.p, a)
}

// prompt gives the rows that are inside of their prompt their token. Rows that no request is left for repeat the first of
// the lot.
func (g *generator) prompt(micro int) {
	s := &g.seats[micro]
	rows := g.x.rows / g.p.Degree
	for row := range rows {
		n := s.lot*g.x.rows + g.replica*rows + row
		if n >= len(g.x.prompts) {
			n = s.lot * g.x.rows
		}
		if p := g.x.prompts[n]; s.pass < len(p) {
			binary.LittleEndian.PutUint32(g.input[micro][4*row:], uint32(p[s.pass]))
		}
	}
}

// collect takes the new tokens of a round, or what else the program returns with them, from what a rank has computed.
func (g *generator) collect(a *data.Array, replica int, micros [][]byte) {
	rows := g.x.rows / g.p.Degree
	for m, b := range micros {
		s := &g.seats[m]
		if s.idle() {
			continue
		}
		bytes := len(b) / rows
		for row := range rows {
			n := s.lot*g.x.rows + replica*rows + row
			if n >= len(g.x.prompts) {
				break
			}
			if at := s.pass - (len(g.x.prompts[n]) - 1); at >= 0 && at < g.x.tokens[n] {
				copy(a.Data[(n*g.x.most+at)*bytes:], b[row*bytes:(row+1)*bytes])
			}
		}
	}
}
