// Package passes turns an elaborated block into a plan: one table of passes, one table of reasons for their order, one
// driver.
package passes

import (
	"context"
	"fmt"
	"time"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/passes/autodiff"
	"github.com/ppc-lang/ppc/passes/broadcast"
	"github.com/ppc-lang/ppc/passes/check"
	"github.com/ppc-lang/ppc/passes/dataparallel"
	"github.com/ppc-lang/ppc/passes/feedback"
	"github.com/ppc-lang/ppc/passes/gradreduce"
	"github.com/ppc-lang/ppc/passes/lazyinline"
	"github.com/ppc-lang/ppc/passes/memplan"
	"github.com/ppc-lang/ppc/passes/partition"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/passes/shardout"
	"github.com/ppc-lang/ppc/passes/sharedparam"
	"github.com/ppc-lang/ppc/plan"
)

// Options of a compilation, settled: flags and entries have been merged.
type Options struct {
	Stages   int
	Devices  int // ranks in all, a multiple of Stages; 0: one per stage
	Schedule string
	WLag     int
	Target   *plan.Costs // nil: none
	// Dump is called after each pass with the IR text of all entry functions, if not nil.
	Dump func(pass, text string)
	// Verify checks the IR after every pass.
	Verify bool
}

// Timing is how long a pass took.
type Timing struct {
	Pass    string
	Seconds float64
}

// state is what the passes work on.
type state struct {
	spec     *plan.Spec
	opt      Options
	specs    []*plan.Spec // the block, its evaluations and their rests, as plan.Programs
	entries  []*ir.Func
	shard    int           // ranks that share parameters out
	degrees  []int         // of the programs: ranks of a stage that run them
	folds    [][]plan.Fold // of the results of entries
	chunks   [][]int       // the stage of every chunk, per entry
	steps    []*autodiff.Step
	programs []*memplan.Program
	plan     *plan.Plan
}

// buffers tells which values of the graph of program i are buffers.
func (s *state) buffers(i int) *partition.State {
	q := s.specs[i]
	out := &partition.State{Buffers: q.Buffers, Written: q.Written, Arg: len(q.Inputs)}
	for _, r := range q.Results {
		out.Result++
		if r.Ratio {
			out.Result++
		}
	}
	return out
}

// pass is a row of the table.
type pass struct {
	name  string
	doc   string
	phase ir.Phase // legality after the pass
	run   func(*state) error
}

var table = []pass{
	{"lazyinline", "one function for equal cells", ir.Elaborated, runLazyInline},
	{"dataparallel", "the part of a micro-batch that one rank of a stage works on", ir.Elaborated, runDataParallel},
	{"autodiff", "the joint graph: forward, gradients, accumulations of one micro-batch", ir.Joint, runAutodiff},
	{"partition", "a chunk for every operation", ir.Cut, runPartition},
	{"split", "the functions of each chunk and the values that cross", ir.Cut, runSplit},
	{"areas", "a place for every value that outlives a pass; messages", ir.Cut, runAreas},
	{"sharedparam", "owners and messages of parameters that several stages read", ir.Cut, runSharedParam},
	{"shardout", "parts of parameters, gradients and states for the ranks of a stage", ir.Cut, runShardOut},
	{"schedule", "the actions of each stage", ir.Cut, runSchedule},
	{"gradreduce", "the end of the step", ir.Cut, runGradReduce},
	{"broadcast", "results for every stage", ir.Cut, runBroadcast},
	{"feedback", "tokens on their way to the next pass", ir.Cut, runFeedback},
	{"memplan", "slots, offsets and frames", ir.Cut, runMemPlan},
	{"check", "deadlock, pairing, order, gradients", ir.Cut, runCheck},
}

// order holds the pairs that must stand in this order, with the reason.
var order = []struct{ before, after, reason string }{
	{"lazyinline", "dataparallel", "each different function is rewritten once"},
	{"lazyinline", "autodiff", "each different function is differentiated once"},
	{"dataparallel", "autodiff", "the gradient is that of the rows a rank has"},
	{"autodiff", "partition", "no cut may decide how gradients associate"},
	{"partition", "split", "functions are cut where colours change"},
	{"split", "areas", "areas hold what the functions exchange"},
	{"areas", "sharedparam", "copies of a parameter exist once its readers have places"},
	{"sharedparam", "shardout", "all stages that read a parameter cut it alike"},
	{"shardout", "gradreduce", "what is updated in parts is gathered"},
	{"shardout", "memplan", "how long a weight pass may wait decides how many slots there are"},
	{"sharedparam", "gradreduce", "the end of the step moves shared parameters"},
	{"areas", "schedule", "messages exist once values have places"},
	{"schedule", "memplan", "slots follow the order, and how long a weight pass may wait in it"},
	{"schedule", "gradreduce", "the step ends behind the last weight pass"},
	{"schedule", "broadcast", "results leave behind the passes"},
	{"schedule", "feedback", "a token leaves behind the pass that makes it"},
	{"feedback", "memplan", "windows follow the messages"},
	{"broadcast", "memplan", "buffers of results have slots and offsets"},
	{"gradreduce", "memplan", "lifetimes follow the complete action lists"},
	{"memplan", "check", "buffer reuse is part of the proof"},
}

func init() {
	at := map[string]int{}
	for i, p := range table {
		at[p.name] = i
	}
	for _, o := range order {
		b, ok1 := at[o.before]
		a, ok2 := at[o.after]
		if !ok1 || !ok2 || b >= a {
			panic(fmt.Sprintf("passes: %s must come before %s: %s", o.before, o.after, o.reason))
		}
	}
}

// Names of the passes in order, with their purpose.
func Names() (names, docs []string) {
	for _, p := range table {
		names = append(names, p.name)
		docs = append(docs, p.doc)
	}
	return
}

// Run compiles a block. A diag.List in the error chain is for the user; any other error is a fault of the compiler.
func Run(ctx context.Context, spec *plan.Spec, opt Options) (p *plan.Plan, timings []Timing, err error) {
	s := &state{spec: spec, opt: opt}
	s.specs = append(s.specs, spec)
	for _, e := range spec.Evals {
		s.specs = append(s.specs, e)
		if e.Rest != nil {
			s.specs = append(s.specs, e.Rest)
		}
	}
	for _, q := range s.specs {
		s.entries = append(s.entries, q.Entry)
	}
	current := ""
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pass %s failed on %s: %v", current, spec.Name, r)
		}
	}()
	for _, row := range table {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		current = row.name
		start := time.Now()
		if err := row.run(s); err != nil {
			if _, user := err.(diag.List); user {
				return nil, nil, err
			}
			return nil, nil, fmt.Errorf("pass %s: %w", row.name, err)
		}
		timings = append(timings, Timing{row.name, time.Since(start).Seconds()})
		if opt.Verify {
			if err := spec.Module.Verify(row.phase); err != nil {
				return nil, nil, fmt.Errorf("after pass %s: %w", row.name, err)
			}
		}
		if opt.Dump != nil {
			opt.Dump(row.name, s.text())
		}
	}
	return s.plan, timings, nil
}

// text prints the functions the programs are made of at this point, callees first.
func (s *state) text() string {
	m := ir.NewModule(s.spec.Module.Name)
	m.Params = s.spec.Module.Params
	m.Funcs = append(m.Funcs, s.entries...)
	for _, q := range s.programs {
		for _, part := range q.Parts {
			for _, f := range part.Funcs {
				if f != nil {
					m.Funcs = append(m.Funcs, f)
				}
			}
		}
	}
	return m.String()
}

func runLazyInline(s *state) error {
	entries, errs := lazyinline.Run(s.spec.Module, s.entries, s.spec.LazyInline, s.spec.Keyed)
	if errs.HasErrors() {
		return errs
	}
	s.entries = entries
	return nil
}

// runDataParallel rewrites every program for the rows of one rank. An evaluation whose rows cannot be shared out, as those of
// single rows left over, runs on the first rank of each stage.
func runDataParallel(s *state) error {
	degree := 1
	if s.opt.Devices > 0 {
		if s.opt.Devices%s.opt.Stages != 0 {
			return diag.List{diag.Errorf(diag.BadDevices, diag.Range{}, "%d devices cannot be shared out to %d stages", s.opt.Devices, s.opt.Stages).
				WithRepair("use a multiple of %d devices, for example %d", s.opt.Stages, max(s.opt.Devices/s.opt.Stages, 1)*s.opt.Stages)}
		}
		degree = s.opt.Devices / s.opt.Stages
	}
	s.shard = 1
	if sh := s.spec.Shard; sh.Level > 0 {
		if s.shard = degree; sh.Size > 0 && degree > 1 {
			s.shard = sh.Size
		}
		if degree%s.shard != 0 {
			return diag.List{diag.Errorf(diag.BadDevices, diag.At(s.spec.ShardPos), "groups of %d ranks do not fit the %d ranks of a stage", s.shard, degree).
				WithRepair("use a divisor of %d as `size`", degree)}
		}
	}
	for i, q := range s.specs {
		rows, whole := 0, make([]bool, len(q.Inputs))
		for k, in := range q.Inputs {
			if whole[k] = in.Whole; !in.Whole {
				rows = in.Type.Shape[0] / q.MicroBatches
			}
		}
		s.degrees = append(s.degrees, degree)
		switch {
		case rows%degree == 0:
		case i > 0:
			s.degrees[i] = 1
		default:
			micro := q.MicroBatches / q.Accumulate
			return diag.List{diag.Errorf(diag.BadDevices, diag.At(q.Pos), "the %d rows of a micro-batch of block %s cannot be shared out to the %d ranks of a stage", rows, q.Name, degree).
				WithRepair("use a batch that is a multiple of %d, or %d devices%s", micro*degree, s.opt.Stages*commonDivisor(rows, degree), fewer(rows*micro, micro, degree))}
		}
		results := s.buffers(i).Result
		f, folds, errs := dataparallel.Run(s.entries[i], rows, s.degrees[i], whole, results, q.Feedback != nil)
		if errs.HasErrors() {
			return errs
		}
		for k, fold := range folds[:results] {
			if q.Kind == "infer" && degree > 1 && fold != plan.ByRows {
				return diag.List{diag.Errorf(diag.MixesRows, diag.At(q.Pos), "the rows of the result `%s` of block %s are not those of the batch, which are on %d ranks", q.Results[k].Name, q.Name, degree).
					WithRepair("use as many devices as stages")}
			}
		}
		s.entries[i], s.folds = f, append(s.folds, folds)
		for k, b := range q.Buffers {
			if t := f.TypeOf(f.Args[len(q.Inputs)+k]); !t.Equal(b.Type) { // a rank keeps it for its rows
				part := *b
				part.Type = t
				q.Buffers[k] = &part
			}
		}
	}
	return nil
}

// fewer is a further repair: a smaller number of micro-batches, whose rows can be shared out; "" if there is none.
func fewer(batch, micro, degree int) string {
	for m := micro - 1; m > 0; m-- {
		if batch%(m*degree) == 0 {
			return fmt.Sprintf(", or -micro %d", m)
		}
	}
	return ""
}

func commonDivisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func runAutodiff(s *state) error {
	s.steps = make([]*autodiff.Step, len(s.specs))
	for i, q := range s.specs {
		if q.Kind != "train" {
			continue
		}
		step, err := autodiff.Run(s.entries[i])
		if err != nil {
			return err
		}
		s.steps[i], s.entries[i] = step, step.Func
	}
	return nil
}

func runPartition(s *state) error {
	var placement partition.Placement
	costs := s.opt.Target
	if costs == nil {
		costs = &plan.CPU
	}
	home := map[*plan.Buffer]int{}
	for i := range s.specs {
		var errs diag.List
		f, on := s.entries[i], partition.Straight(s.opt.Stages)
		buffers := s.buffers(i)
		buffers.Home = home
		switch {
		case s.opt.Stages == 1:
			f = partition.One(f)
		case s.spec.Marked:
			f, on, errs = partition.Marked(f, buffers, s.opt.Stages, s.spec.Interleave, i == 0, s.spec.StagesPos)
		case i == 0:
			f, placement, errs = partition.Auto(f, buffers, s.opt.Stages, costs, s.spec.StagesPos)
		default:
			f, errs = partition.Apply(f, buffers, placement, s.opt.Stages, s.spec.StagesPos)
		}
		if errs.HasErrors() {
			return errs
		}
		if errs := buffers.Settle(f, on); errs.HasErrors() {
			return errs
		}
		s.entries[i] = f
		s.chunks = append(s.chunks, on)
	}
	return nil
}

func runSharedParam(s *state) error {
	sharedparam.Run(s.plan, s.programs[0])
	return nil
}

func runShardOut(s *state) error {
	shardout.Run(s.plan, s.spec.Shard.Level, s.spec.Shard.Threshold)
	return nil
}

func runSplit(s *state) error {
	for i, q := range s.specs {
		f := s.entries[i]
		prog := &plan.Program{
			Name: q.Name, Train: q.Kind == "train", Infer: q.Kind == "infer", MicroBatches: q.MicroBatches, Degree: s.degrees[i], Inputs: q.Inputs, Results: q.Results,
			Dataset: q.Dataset, Rest: -1, Feedback: q.Feedback,
		}
		for _, in := range q.Inputs {
			if !in.Whole {
				prog.Batch = in.Type.Shape[0]
				break
			}
		}
		if q.Rest != nil {
			prog.Rest = i + 1
		}
		m := &memplan.Program{Program: prog, Func: f, Inputs: len(q.Inputs), State: s.buffers(i), Folds: s.folds[i]}
		m.Results = m.State.Result
		if s.steps[i] != nil {
			m.Reads = s.steps[i].Reads
		}
		m.Parts, m.Crossings = partition.Split(f, len(s.chunks[i]))
		if err := partition.Covers(f, m.Parts); err != nil {
			return err
		}
		for c := range m.Parts {
			prog.Chunks = append(prog.Chunks, &plan.Chunk{ID: c, Stage: s.chunks[i][c], Cells: partition.Cells(f, c)})
		}
		s.programs = append(s.programs, m)
	}
	return nil
}

func runAreas(s *state) error {
	p := &plan.Plan{
		Name: s.spec.Name, Module: s.spec.Module, NumStages: s.opt.Stages, Degree: s.degrees[0], Accumulate: s.spec.Accumulate, MicroBatches: s.spec.MicroBatches, Schedule: s.opt.Schedule,
		WLag: min(s.opt.WLag, s.spec.MicroBatches), Reduction: s.spec.Reduction, Seed: s.spec.Seed, Target: "none",
		Epochs: s.spec.Epochs, Optimizer: s.spec.Optimizer, Clip: s.spec.Clip, LossScale: s.spec.LossScale,
		ShardSize: s.shard, GradientsSum: s.spec.GradientsSum, FullBatch: s.spec.FullBatch,
	}
	for _, q := range s.programs {
		p.Programs = append(p.Programs, q.Program)
	}
	s.plan = p
	memplan.Areas(p, s.programs)
	return nil
}

func runSchedule(s *state) error {
	for _, q := range s.plan.Programs {
		batches := 1
		if q.Train {
			batches = s.plan.Accumulate
		}
		schedule.Run(q, s.opt.Schedule, s.opt.Stages, batches)
	}
	if s.plan.Rounds() {
		s.plan.WLag = 0 // a weight pass that waits into the next round keeps what a micro-batch more needs
	}
	return nil
}

func runGradReduce(s *state) error {
	for _, q := range s.plan.Programs {
		gradreduce.Run(q, s.plan.NeedsNorm(), s.plan.Gathers)
	}
	return nil
}

func runBroadcast(s *state) error {
	if s.spec.Broadcast {
		broadcast.Run(s.plan, 0)
	}
	return nil
}

func runFeedback(s *state) error {
	if s.spec.Feedback != nil {
		feedback.Run(s.plan, 0)
	}
	return nil
}

func runMemPlan(s *state) error {
	windows := make([][]int, len(s.plan.Programs))
	for i, q := range s.plan.Programs {
		var err error
		if windows[i], err = schedule.Windows(q); err != nil {
			return err
		}
	}
	memplan.Slots(s.plan, windows)
	s.plan.Memory = []*plan.Memory{memplan.Layout(s.plan, &plan.CPU)}
	costs := &plan.CPU
	if s.opt.Target != nil {
		costs = s.opt.Target
		s.plan.Target = costs.Device
		s.plan.Memory = append(s.plan.Memory, memplan.Layout(s.plan, costs))
		if errs := fits(s, costs); errs.HasErrors() {
			return errs
		}
	}
	for i, q := range s.plan.Programs {
		got, err := schedule.Simulate(q, schedule.Measure(s.plan, q, costs), s.plan.WLag, costs)
		if err != nil {
			return err
		}
		if i == 0 {
			s.plan.Predicted = got
		}
	}
	return nil
}

// fits refuses stages that need more memory than a device of the target has.
func fits(s *state, costs *plan.Costs) diag.List {
	const gib = 1 << 30
	var errs diag.List
	for i, st := range s.plan.Memory[1].Stages {
		if costs.MemoryBytes > 0 && st.Peak > costs.MemoryBytes {
			errs.Add(diag.Errorf(diag.OutOfMemory, diag.At(s.spec.Pos), "stage %d needs %.1f GiB at its peak; a %s has %.1f GiB",
				i, float64(st.Peak)/gib, costs.Device, float64(costs.MemoryBytes)/gib).
				WithRepair("use more stages, or more and smaller micro-batches"))
		}
	}
	return errs
}

func runCheck(s *state) error { return check.Run(s.plan) }
