// Package plan is the contract between the parts of ppc: the elaborated pipeline block that the passes compile
// (Spec), and the compiled program that code generator and runtime read (Plan). It is plain data and decides nothing.
package plan

import (
	"math"
	"slices"

	"github.com/ppc-lang/ppc/ir"
)

// Spec is an elaborated pipeline block.
type Spec struct {
	Name string
	Kind string // "train", "infer" or "eval"
	Pos  ir.Pos

	Module *ir.Module
	// Entry computes one micro-batch. Its arguments are the inputs with micro-batch shapes, in order; parameters are
	// read with ReadParam. Its results are those of Results, in order: in a train block the loss (f32[]) comes first.
	Entry   *ir.Func
	Results []Result
	// Buffers are what Entry takes behind the inputs, as they are before the micro-batch. The first Written of them it
	// returns behind the results, as they are after it.
	Buffers []*Buffer
	Written int
	// Feedback, of an infer block, makes its input a result of the pass before.
	Feedback *Feedback

	// Accumulate is the number of batches of a step: their gradients are added up before the optimizer runs. Inputs and
	// MicroBatches are those of all of them; only schedules and messages for people go by batches.
	Accumulate    int
	Inputs        []Input
	MicroBatches  int
	MicroPos      ir.Pos
	Stages        int    // fixed by marks or the entry `stages`; 0: not given
	StagesPos     ir.Pos // where that was said
	Marked        bool   // some cell carries a stage mark
	Interleave    bool
	InterleavePos ir.Pos // where that was said; unknown when a layout implies it
	Broadcast     bool   // of an infer block: every stage gets the results
	Schedule      string // "" = default
	SchedulePos   ir.Pos
	Reduction     string // "sum" or "mean" over micro-batches
	LazyInline    string // "auto", "marked" or "off"; "" = auto
	Optimizer     *Optimizer
	Clip          Clip
	LossScale     *LossScale
	Shard         Shard
	ShardPos      ir.Pos
	GradientsSum  bool // gradients are those of the mean over the ranks of a stage times their number
	FullBatch     bool // every rank reads all rows of a batch and keeps its own
	Dataset       *Dataset
	Epochs        int
	Seed          uint32
	Keyed         []Keyed // functions of cells whose @lazy_inline names the arguments of its key
	Evals         []*Spec // share Module
	// Rest, of an evaluation, is the same block for a batch of one row and one micro-batch: it serves the rows left over
	// by the batch size. The frontend sets it.
	Rest *Spec
}

// Clip bounds the gradients of a step; 0 is no bound. At most one is set.
type Clip struct {
	Norm  float64 `yaml:"norm,omitempty"`  // of all gradients together: they are multiplied by Norm / (their norm) if that is below 1
	Value float64 `yaml:"value,omitempty"` // of every element
}

// Shard says what the ranks of a stage share out of every parameter.
type Shard struct {
	Level     int `yaml:"level,omitempty"`     // ShardNone to ShardValue
	Threshold int `yaml:"threshold,omitempty"` // bytes; smaller parameters stay whole
	Size      int `yaml:"size,omitempty"`      // ranks that share a parameter, a divisor of the degree; 0: all of the stage
}

// LossScale multiplies the gradient of the loss, and divides the gradients before they are used. A step with a gradient that is
// not finite on any rank is skipped by all. Window 0 is a fixed scale; otherwise a skipped step divides the scale by Factor, to 1
// at the least, and Window good steps in a row multiply it.
type LossScale struct {
	Initial float64 `yaml:"initial"`
	Factor  float64 `yaml:"factor"`
	Window  int     `yaml:"window"`
}

// Next is the scale behind a step, and the number of good steps in a row.
func (l *LossScale) Next(scale float64, good int, overflow bool) (float64, int) {
	switch {
	case l.Window == 0:
		return scale, 0
	case overflow:
		return max(scale/l.Factor, 1), 0
	case good+1 == l.Window && scale*l.Factor > math.MaxFloat32:
		return scale, 0 // the gradient of the loss would not be finite
	case good+1 == l.Window:
		return scale * l.Factor, 0
	}
	return scale, good + 1
}

// Keyed is the function of a cell for which @lazy_inline says by which arguments such cells are equal: functions of one key
// must be.
type Keyed struct {
	Func *ir.Func
	Key  string   // the cell, its key arguments, and what it is called with
	Path string   // of the instance
	Pos  ir.Pos   // where it is made
	Rest []Argued // the arguments that are not in the key
}

// Argued is an argument of a cell as text.
type Argued struct{ Name, Value string }

// Result is a named result of the entry function. A ratio takes two values, a sum and a count, both f32[].
type Result struct {
	Name  string
	Ratio bool
}

// Input is a declared input with its global shape; axis 0 is the batch unless Whole.
type Input struct {
	Name  string
	Type  ir.Type
	Whole bool
	Pos   ir.Pos
}

// Optimizer updates every parameter element by element.
type Optimizer struct {
	Name string
	// Func works on scalars f32[]: arguments parameter, gradient, then states, then scalars; results the new
	// parameter, then the new states.
	Func    *ir.Func
	States  []State
	Scalars []Scalar
	// Groups are parameters with scalars of their own; a parameter is in one group at most.
	Groups []Group
}

// Group is parameters with other values of the scalars, which stand in the order of Optimizer.Scalars.
type Group struct {
	Params  []string
	Scalars []Scalar
}

// State is a per-element optimizer state with its first value.
type State struct {
	Name string
	Init float64
}

// Scalar is a named argument of the optimizer (lr): a constant, or a number of its own for every step.
type Scalar struct {
	Name     string
	Value    float64
	Schedule *Schedule `yaml:"schedule,omitempty"` // nil: always Value
}

// GroupOf is the number of a parameter's scalars in what At returns.
func (o *Optimizer) GroupOf(param string) int {
	for i, g := range o.Groups {
		if slices.Contains(g.Params, param) {
			return 1 + i
		}
	}
	return 0
}

// At fills values with the scalars of a step, counted from 0: those of parameters without group, then those of each group.
func (o *Optimizer) At(step int, values [][]float32) [][]float32 {
	for len(values) <= len(o.Groups) {
		values = append(values, nil)
	}
	for i := range values {
		scalars := o.Scalars
		if i > 0 {
			scalars = o.Groups[i-1].Scalars
		}
		v := values[i][:0]
		for _, s := range scalars {
			if s.Schedule != nil {
				v = append(v, float32(s.Schedule.At(step)))
			} else {
				v = append(v, float32(s.Value))
			}
		}
		values[i] = v
	}
	return values
}

// Dataset is `source(...) | step(...) | ...`.
type Dataset struct {
	Source  string // mnist, npz
	Path    string // as run will resolve it: joined to the folder of the source file
	Env     string // environment variable that replaces Path, "" for none
	Split   string // mnist: train or test
	Columns []string
	Steps   []Step
	Pos     ir.Pos
}

// Step is a transformation of one column; the first unless On names another.
type Step struct {
	Name string
	Args []float64
	Text string // a word or string argument: the dtype of cast
	On   string
}
