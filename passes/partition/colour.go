package partition

import (
	"slices"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
)

// cloned is the colour of operations that every consuming chunk repeats.
const cloned = -2

// colour gives forward operations their chunk by the marks, and says on which stage each chunk is.
//
// A segment is a row of chunks, one on each stage, which the data pass in one direction: up, or down if the marks say so.
// Chunks are numbered segment by segment and within one in its direction, so along the data they never go down. A segment
// is stated by a mark, or counted: without a mark an operation stays in the segment that feeds it, and a stage against the
// direction of that one starts the next with interleave and is an error without.
//
// Operations that stay with a buffer float in a first turn; where they go is known when the others have their place.
func colour(f *ir.Func, s *State, stages int, interleave, first bool, pos ir.Pos) ([]int, []int, diag.List) {
	stores := s.stores(f)
	c := &colouring{f: f, state: s, stages: stages, interleave: interleave, constant: f.Constants(stores...), effects: &effects{has: map[*ir.Func]bool{}}, turned: map[int]turn{}}
	c.stored = make([]bool, f.NumOps())
	for _, v := range stores {
		c.stored[f.Value(v).Op.ID] = true
	}
	home, group := s.floats(f)
	c.home = make([]int, len(home))
	for id, h := range home {
		if c.home[id] = h; h >= 0 {
			c.home[id] = floating
		}
	}
	for !c.all() {
	}
	if len(s.Buffers) > 0 {
		at := s.homes(f, c.place, home, group, c.stage)
		for id, h := range home {
			if h >= 0 {
				c.home[id] = at[h]
			}
		}
		for !c.all() {
		}
	}
	if first && !c.errs.HasErrors() {
		c.everyStage(pos)
	}
	chunk, on, errs := c.compact()
	if !errs.HasErrors() {
		errs = append(errs, s.check(f, chunk, on)...)
	}
	return chunk, on, errs
}

type colouring struct {
	f          *ir.Func
	state      *State
	home       []int  // by operation: the place of its buffer, floating where that is not known yet, -1 for others
	stored     []bool // by operation: it makes the new value of a buffer
	stages     int
	interleave bool
	constant   []bool
	effects    *effects
	turned     map[int]turn // segments whose stages go down along the data

	place []int // by operation: segment x stages + position in it, or cloned
	errs  diag.List
}

// turn is why a segment goes down: an operation and what feeds it on a higher stage.
type turn struct{ op, from *ir.Op }

// at is the place of a stage in a segment.
func (c *colouring) at(segment, stage int) int {
	if _, down := c.turned[segment]; down {
		stage = c.stages - 1 - stage
	}
	return segment*c.stages + stage
}

// stage of a place.
func (c *colouring) stage(place int) int {
	if _, down := c.turned[place/c.stages]; down {
		return c.stages - 1 - place%c.stages
	}
	return place % c.stages
}

// all places every forward operation. It gives up, to be called again, when it finds that a segment goes down.
func (c *colouring) all() bool {
	c.place, c.errs = make([]int, c.f.NumOps()), nil
	for _, op := range c.f.Ops {
		if op.Pass != ir.ForwardPass {
			continue
		}
		if len(op.Results) > 0 && c.constant[op.Results[0]] {
			c.place[op.ID] = cloned // also where a cell around it is marked: constants are never sent
			continue
		}
		if !c.one(op) {
			return false
		}
	}
	return true
}

// one places an operation whose operands have their place.
func (c *colouring) one(op *ir.Op) bool {
	if h := c.home[op.ID]; h == floating || h >= 0 && op.Segment < 0 && (op.Stage < 0 || op.Stage == c.stage(h)) {
		c.place[op.ID] = h
		return true
	}
	highest, from, inputsOnly := -1, (*ir.Op)(nil), true
	for _, a := range op.Args {
		v := c.f.Value(a)
		switch {
		case v.Param != nil:
			inputsOnly = false
		case v.Op != nil && c.place[v.Op.ID] == floating, c.state.of(c.f, a) >= 0:
			inputsOnly = false
		case v.Op != nil && c.place[v.Op.ID] != cloned:
			inputsOnly = false
			if p := c.place[v.Op.ID]; p > highest {
				highest, from = p, v.Op
			}
		}
	}
	segment := max(highest, 0) / c.stages
	place := max(highest, 0)
	switch {
	case op.Stage >= c.stages:
		c.errs.Add(diag.Errorf(diag.BadStage, diag.At(op.Pos), "%s is on stage %d, but there are %d stages (0 to %d)", what(c.f, op), op.Stage, c.stages, c.stages-1).
			WithRepair("give a stage below the number of stages, or raise `stages`"))
	case op.Segment >= 0 && op.Segment < segment:
		c.errs.Add(diag.Errorf(diag.SegmentOrder, diag.At(op.Pos), "%s is in segment %d but gets a value from %s in segment %d", what(c.f, op), op.Segment, what(c.f, from), segment).
			WithNote(diag.At(from.Pos), "the value is made here, in segment %d", segment).
			WithRepair("put %s in segment %d or higher: segments must not go down along the data", what(c.f, op), segment))
	case op.Stage >= 0:
		if op.Segment >= 0 {
			segment = op.Segment
		}
		if place = c.at(segment, op.Stage); place >= highest {
			break
		}
		switch reason, down := c.turned[segment]; {
		case op.Segment >= 0 && !down:
			c.turned[segment] = turn{op, from}
			return false
		case op.Segment >= 0:
			c.errs.Add(diag.Errorf(diag.SegmentOrder, diag.At(op.Pos), "segment %d goes up here, from %s on stage %d to %s on stage %d, and down elsewhere", segment, what(c.f, from), c.stage(highest), what(c.f, op), op.Stage).
				WithNote(diag.At(reason.op.Pos), "it goes down here, from %s to %s on stage %d", what(c.f, reason.from), what(c.f, reason.op), reason.op.Stage).
				WithRepair("put what comes later along the data in segment %d", segment+1))
		case c.interleave:
			place = c.at(segment+1, op.Stage)
		case down:
			c.errs.Add(diag.Errorf(diag.StageGoesDown, diag.At(op.Pos), "%s is on stage %d but gets a value from %s on stage %d, in segment %d, where stages go down", what(c.f, op), op.Stage, what(c.f, from), c.stage(highest), segment).
				WithNote(diag.At(from.Pos), "the value is made here, on stage %d", c.stage(highest)).
				WithRepair("put %s in segment %d, or set `interleave = true`", what(c.f, op), segment+1))
		default:
			c.errs.Add(diag.Errorf(diag.StageGoesDown, diag.At(op.Pos), "%s is on stage %d but gets a value from %s on stage %d", what(c.f, op), op.Stage, what(c.f, from), c.stage(highest)).
				WithNote(diag.At(from.Pos), "the value is made here, on stage %d", c.stage(highest)).
				WithRepair("put %s on stage %d or higher, give it a segment, or set `interleave = true`: stages must not go down along the data", what(c.f, op), c.stage(highest)))
		}
	case inputsOnly && !c.stored[op.ID] && !c.effects.of(op) && len(op.Results) > 0 && (op.Segment < 0 || op.Callee == nil):
		place = cloned
	case op.Segment >= 0 && (highest < 0 || op.Segment > segment) && !(op.Kind == ir.Identity && op.Attrs.Bool("argument")):
		c.errs.Add(diag.Errorf(diag.BadSegment, diag.At(op.Pos), "%s is in segment %d, but neither it nor what feeds it there has a stage", what(c.f, op), op.Segment).
			WithRepair("give it a stage: @stage(...) or `stage_config`"))
	}
	c.place[op.ID] = place
	return true
}

// everyStage reports stages without an operation.
func (c *colouring) everyStage(pos ir.Pos) {
	used := make([]bool, c.stages)
	for _, op := range c.f.Ops {
		if p := c.place[op.ID]; op.Pass == ir.ForwardPass && p >= 0 {
			used[c.stage(p)] = true
		}
	}
	for s, on := range used {
		if !on {
			c.errs.Add(diag.Errorf(diag.EmptyStage, diag.At(pos), "stage %d has nothing to do: no cell is marked with it", s).
				WithRepair("mark a cell with stage %d, or lower the marks above it", s))
		}
	}
}

// compact numbers the chunks of the segments that hold something, and says on which stage each is.
func (c *colouring) compact() (chunk, on []int, errs diag.List) {
	segments := []int{}
	for _, op := range c.f.Ops {
		if p := c.place[op.ID]; op.Pass == ir.ForwardPass && p >= 0 {
			segments = append(segments, p/c.stages)
		}
	}
	slices.Sort(segments)
	if segments = slices.Compact(segments); len(segments) == 0 {
		segments = []int{0}
	}
	row := map[int]int{}
	for i, s := range segments {
		row[s] = i
		for p := range c.stages {
			on = append(on, c.stage(s*c.stages+p))
		}
	}
	chunk = c.place
	for i, p := range chunk {
		if p >= 0 {
			chunk[i] = row[p/c.stages]*c.stages + p%c.stages
		}
	}
	return chunk, on, c.errs
}
