// Package runtime executes a plan: ranks, Degree for each stage, each with a device, joined by links. It decides nothing but when a
// weight pass within its lag runs.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/transport"
)

// Options of a run. The zero value trains as the plan says on nothing: Open must be set.
type Options struct {
	Open device.Open
	// Transport joins the ranks; nil if all of them run in this process. Another one holds what ranks of this process it has:
	// only the process with the first rank of the last stage (LossRank) then sees steps, evaluations and results.
	Transport transport.Transport
	Device    device.Options // Print and Seed are set by the runtime
	// Steps ends the run after that many training steps in total; 0 means as many as the epochs have.
	Steps int
	// Epochs replaces the plan's, if positive.
	Epochs int
	// Reduction over micro-batches, "sum" or "mean"; "" is the plan's.
	Reduction string
	Seed      uint32
	// Initial puts the first value of a parameter, row-major, into values, or returns false: then its initialiser does. It is
	// asked for the parameters that the ranks of this process hold, one after another. Nil for initialisers only.
	Initial func(name string, values []float32) (bool, error)
	// InitialDigest is the same for the same first values of Initial; 0 says nothing of them. See data.Digest.
	InitialDigest uint32
	// SkipParams leaves Result.Params empty, which would hold the parameters of all stages.
	SkipParams bool
	// Collect gets the parameters at the end instead of Result.Params: next gives one after another, row-major and in the order of
	// Module.Params, all of which it must take; the elements of one are good until the next is asked for. It is called in the process
	// with LossRank. No more than one whole parameter is in its memory, or in that of a rank that gives one. An error, also one of a
	// rank that next waits for, ends the run.
	Collect func(ctx context.Context, next func() (data.Array, error)) error
	// Buffers gives first values of buffers of cells by name; the others, and all in a block that generates, have those of the
	// plan. Bools are u8.
	Buffers map[string]data.Array
	// Checkpoint says where the state of a training is kept, and what it goes on from.
	Checkpoint Checkpoint
	// Inputs are those of an infer block, an array per input with all rows, instead of its dataset.
	Inputs []data.Array
	// Tokens is how many new tokens each request of a generating block gets: a number for each row of the prompts, or one for
	// all. Its prompts are the only array of Inputs, i32[requests, length], filled up with -1.
	Tokens []int
	// DataPath replaces the path of every source. Getenv reads the environment that a source may name.
	DataPath string
	Getenv   func(string) string
	// OnStep is called after each step, in order; OnEval after each evaluation; Notice for what the user should know.
	OnStep func(Step)
	OnEval func(Eval)
	Notice func(string)
	// Deadline is how long no rank may make progress before the run ends with an error that says who waits in which action
	// for whom; 0 is 30 s. A rank that computes is slow, not stuck: Notice tells of it.
	Deadline time.Duration
	// Watch is given, before the first step, what tells at any time what the ranks of this process do.
	Watch func(look func() []Status)
	// SkipEval leaves evaluations out.
	SkipEval bool
	// Norms asks for gradient norms in OnStep.
	Norms bool
	// Digests asks for digests of the parameters in OnStep. A copy of a shared parameter that is not bit-equal to its
	// owner's then ends the run with an error.
	Digests bool
	// Log returns where print operations of a rank write. It must be set if the plan prints; a writer that discards says that
	// nobody wants to see it.
	Log func(rank int) io.Writer
}

// Step is what one training step gave.
type Step struct {
	Epoch, Step int // Step counts within the epoch
	Total       int // steps before this one
	Loss        float64
	Skipped     bool      // a gradient is not finite: no parameter was updated
	LossScale   float64   // 1 without
	Norm        float64   // global gradient norm
	Norms       []float64 // by Module.Params; only if asked
	Digests     []uint64  // of the parameters after the step, by Module.Params; only if asked
}

// Eval is the result of an evaluation.
type Eval struct {
	Name    string
	Rows    int
	Metrics []Metric
}

// Metric is a named result.
type Metric struct {
	Name  string
	Value float64
}

// Result of a run.
type Result struct {
	Steps    int // of this run
	LastLoss float64
	Seconds  float64 // wall time of the training loop, or of an infer block, data and logging included
	Evals    []Eval
	Ranks    []RankResult
	Params   []Param // by Module.Params, in the process of LossRank; see Options.Collect
	// Checkpoint is the folder of the last one that was written; "" without.
	Checkpoint string
	// Of an infer block: the number of rows, and by stage and result what its ranks have.
	Rows    int
	Outputs [][]Output
	// Of a generating block: the number of rounds. Its outputs have a row for each request and, on axis 1, a place for each new
	// token; places that a request with fewer tokens does not use hold -1, or NaN. Rows is the number of requests.
	Rounds int
}

// RankResult is what one rank reports.
type RankResult struct {
	Rank, Stage int
	Bytes       []int // allocated by the device, by plan.Classes
	PeakBytes   int
}

// Param is a parameter's value after the run, row-major.
type Param struct {
	Name   string
	Shape  []int
	Values []float32
}

// runner is one run.
type runner struct {
	plan     *plan.Plan
	opt      Options
	join     transport.Transport
	datasets []*data.Dataset // by program
	ranks    []*rank         // those of this process
	total    int             // training steps, those before a checkpoint included
	first    int             // the step that this run begins with
	resumed  *checkpoint.Checkpoint
	lock     *checkpoint.Lock
	perEpoch int
	stop     chan struct{}
	dead     atomic.Bool
	result   Result
	inputs   [][]byte  // of an inference on arrays: all rows of every input
	rows     int       // of an inference
	requests *requests // of a generating block
	contents []setting // of what has been read, to be compared with other processes
	session  bool      // results are handed out by the stage that computes them
}

// Run trains (and then evaluates), or runs an infer block over its rows, as the plan says.
func Run(ctx context.Context, p *plan.Plan, opt Options) (*Result, error) {
	r := &runner{plan: p, opt: opt, stop: make(chan struct{})}
	defer r.close()
	if err := r.openData(); err != nil {
		return nil, err
	}
	if err := r.openCheckpoint(); err != nil {
		return nil, err
	}
	if opt.Transport != nil {
		if err := r.readContents(); err != nil {
			return nil, err
		}
	}
	if err := r.openRanks(ctx); err != nil {
		return nil, err
	}
	if opt.Watch != nil {
		opt.Watch(r.look)
	}
	if opt.Transport != nil {
		if err := r.all(ctx, r.agree); err != nil {
			return nil, err
		}
	}
	if p.Programs[0].Infer {
		start := time.Now()
		run := r.infer
		if r.requests != nil {
			run = r.generate
		}
		if err := run(ctx); err != nil {
			return nil, err
		}
		r.result.Seconds = time.Since(start).Seconds()
		return &r.result, r.collect(ctx)
	}
	if err := r.all(ctx, r.train); err != nil {
		r.cleanCheckpoints() // what it cannot remove, the next run does
		return nil, err
	}
	ctx, cancel := r.orPreempted(ctx)
	defer cancel()
	if !opt.SkipEval {
		if err := r.evaluate(ctx); err != nil {
			return nil, err
		}
	}
	return &r.result, r.collect(ctx)
}

// close gives back what the run holds.
func (r *runner) close() {
	r.lock.Close()
	if r.resumed != nil {
		r.resumed.Close()
	}
	for _, k := range r.ranks {
		if k.dev != nil {
			k.dev.Close()
		}
	}
}

// openData opens the dataset of every program and settles how many steps there are.
func (r *runner) openData() error {
	r.datasets = make([]*data.Dataset, len(r.plan.Programs))
	path := "" // of the first program
	for i, q := range r.plan.Programs {
		if i > 0 && r.plan.Programs[i-1].Rest == i {
			r.datasets[i] = r.datasets[i-1]
			continue
		}
		if q.Feedback != nil && r.opt.Inputs != nil {
			if err := r.openPrompts(q); err != nil {
				return err
			}
			continue
		}
		if q.Feedback == nil && r.opt.Tokens != nil {
			return diag.List{diag.Errorf(diag.BadSetting, diag.Range{}, "block %s has no `feedback`: it makes no tokens", q.Name)}
		}
		if q.Infer && r.opt.Inputs != nil {
			var err error
			if r.rows, err = r.openInputs(q); err != nil {
				return err
			}
			continue
		}
		if q.Dataset == nil && q.Infer {
			return diag.List{diag.Errorf(diag.BadDataset, diag.Range{}, "block %s has no `dataset` and no inputs are given: there is nothing to run on", q.Name).
				WithRepair("-input %s=FILE.npy", q.Inputs[0].Name)}
		}
		if q.Dataset == nil {
			return badData(diag.BadDataset, "", "block %s has no `dataset`: there is nothing to run on", q.Name)
		}
		spec := data.Spec{Source: q.Dataset.Source, Path: r.source(q.Dataset), Split: q.Dataset.Split, Columns: q.Dataset.Columns}
		for _, s := range q.Dataset.Steps {
			spec.Steps = append(spec.Steps, data.Step(s))
		}
		d, err := data.Open(spec)
		if err != nil {
			return err
		}
		if err := fits(q, d, spec.Path); err != nil {
			return err
		}
		if i == 0 {
			path = spec.Path
		}
		r.datasets[i] = d
	}
	q := r.plan.Programs[0]
	if q.Infer {
		if r.inputs == nil && r.requests == nil {
			r.rows = r.datasets[0].Rows()
		}
		return nil
	}
	rows := r.datasets[0].Rows()
	r.perEpoch = rows / q.Batch
	if r.perEpoch == 0 {
		return badData(diag.BadDataFile, path, "the data of block %s has %d rows, less than %s", q.Name, rows, stepRows(r.plan, "one batch"))
	}
	if !q.Train {
		return nil
	}
	epochs := r.plan.Epochs
	if r.opt.Epochs > 0 {
		epochs = r.opt.Epochs
	}
	epochs = max(epochs, 1)
	r.total = math.MaxInt
	if epochs < math.MaxInt/r.perEpoch {
		r.total = r.perEpoch * epochs
	}
	if r.opt.Steps > 0 {
		r.total = min(r.total, r.opt.Steps)
	}
	if left := rows % q.Batch; left > 0 && r.opt.Notice != nil && r.total >= r.perEpoch {
		r.opt.Notice(fmt.Sprintf("training drops the last %d of %d rows of an epoch: they do not fill %s", left, rows, stepRows(r.plan, "a batch")))
	}
	return nil
}

// stepRows says what a step takes of the data: one batch, in the words given, or several.
func stepRows(p *plan.Plan, one string) string {
	rows := p.Programs[0].Batch / p.Accumulate
	if p.Accumulate == 1 {
		return fmt.Sprintf("%s of %d", one, rows)
	}
	return fmt.Sprintf("the %d batches of %d of a step", p.Accumulate, rows)
}

// source is where the data of a pipeline lie in this run.
func (r *runner) source(d *plan.Dataset) string {
	if r.opt.DataPath != "" {
		return r.opt.DataPath
	}
	if d.Env != "" && r.opt.Getenv != nil {
		if v := r.opt.Getenv(d.Env); v != "" {
			return v
		}
	}
	return d.Path
}

// badData reports data that a run cannot use.
func badData(code diag.Code, path, format string, args ...any) error {
	return diag.List{diag.Errorf(code, diag.At(diag.Pos{File: path}), format, args...)}
}

// fits checks the columns of a dataset against the inputs of a program.
func fits(q *plan.Program, d *data.Dataset, path string) error {
	cols := d.Columns()
	if len(cols) < len(q.Inputs) {
		return badData(diag.BadDataFile, path, "the data of block %s has %d columns, the block has %d inputs", q.Name, len(cols), len(q.Inputs))
	}
	for i, in := range q.Inputs {
		n, m := 1, 1
		for _, x := range cols[i].Shape {
			n *= x
		}
		for _, x := range in.Type.Shape[1:] {
			m *= x
		}
		wants, has := in.Type.DType == ir.F32, cols[i].DType
		if n != m || wants != (has == data.F32) || !wants && has.IsFloat() {
			d := diag.Errorf(diag.BadDataFile, diag.At(diag.Pos{File: path}), "input `%s` of block %s wants rows of %s, column `%s` of the data has rows of %s%s",
				in.Name, q.Name, ir.Type{DType: in.Type.DType, Shape: in.Type.Shape[1:]}, cols[i].Name, has, ir.ShapeString(cols[i].Shape))
			if n == m && wants {
				on := ""
				if i > 0 {
					on = fmt.Sprintf(", on = %q", cols[i].Name)
				}
				d = d.WithRepair("add a step to the dataset: | cast(f32%s), or | rescale(1/255%s)", on, on)
			}
			return diag.List{d}
		}
	}
	return nil
}

// openRanks opens a device per stage, joins them and gives parameters their first values.
func (r *runner) openRanks(ctx context.Context) error {
	n, degree := r.plan.NumStages*r.plan.Degree, r.plan.Degree
	if r.opt.Log == nil && Prints(r.plan) {
		return errors.New("the plan prints tensors and the options have no Log to write them to")
	}
	r.join = r.opt.Transport
	if r.join == nil {
		r.join = transport.NewInProcess(n)
	}
	reduction := r.plan.Reduction
	if r.opt.Reduction != "" {
		reduction = r.opt.Reduction
	}
	r.opt.Reduction = reduction
	for number := range n {
		if !r.join.Holds(number) {
			continue
		}
		s, replica := number/degree, number%degree
		k := &rank{number: number, stage: s, replica: replica, session: r.session, plan: r.plan}
		k.endpoint = r.join.Endpoint(number, r.stop, k.waits)
		r.ranks = append(r.ranks, k)
		opt := r.opt.Device
		opt.Seed, opt.Replica, opt.Scatter, opt.Gather = r.opt.Seed, replica, k.scatterPart, k.gatherParts
		if r.opt.Log != nil {
			show := printer(r.opt.Log(number))
			opt.Print = func(kind ir.Kind, label string, t ir.Type, data []byte) {
				if !k.silent {
					show(kind, label, t, data)
				}
			}
		}
		dev, err := r.opt.Open(ctx, r.plan, s, opt)
		if err != nil {
			return fmt.Errorf("rank %d: %w", number, err)
		}
		k.dev = dev
		r.meet(k, k.prepare())
		st := r.plan.Stages[s]
		for _, b := range st.Buffers {
			for slot := range st.Areas[b.Ref.Area].Slots {
				fill(dev.Buffer(b.Ref, slot), b.Type.DType, b.First)
			}
			if a, ok := r.opt.Buffers[b.Name]; ok && r.plan.Programs[0].Feedback == nil {
				if err := setBuffer(dev.Buffer(b.Ref, 0), b.Buffer, &a); err != nil {
					return err
				}
			}
		}
		if st.Seed.Item >= 0 {
			seed := float32(1)
			if reduction == "mean" {
				seed = 1 / float32(r.plan.Programs[0].MicroBatches)
			}
			// The loss of a micro-batch is the mean of those of the ranks, unless it is their sum.
			if r.plan.Programs[0].Outputs[0].Fold != plan.Summed {
				seed /= float32(degree)
			}
			if r.plan.GradientsSum {
				seed *= float32(degree)
			}
			k.seed = seed
		}
		for i, sp := range st.Params {
			v := k.dense(sp.Param.Type.Elems())
			if err := r.initial(ctx, sp.Param, v); err != nil {
				return err
			}
			if err := dev.SetParam(i, v); err != nil {
				return err
			}
		}
		if r.resumed != nil {
			if err := r.restore(k); err != nil {
				return err
			}
		}
		k.buffer = nil
	}
	return nil
}

// initial puts the first value of a parameter in this run, row-major, into v.
func (r *runner) initial(ctx context.Context, p *ir.Param, v []float32) error {
	if err := ctx.Err(); err != nil {
		return err // reading may take as long as making them
	}
	if r.resumed != nil {
		return r.resumedValues(p.Name, v)
	}
	return r.firstValue(ctx, p, v)
}

// firstValue is that of a parameter before all training.
func (r *runner) firstValue(ctx context.Context, p *ir.Param, v []float32) error {
	if r.opt.Initial != nil {
		if ok, err := r.opt.Initial(p.Name, v); ok || err != nil {
			return err
		}
	}
	return Initial(ctx, p, r.opt.Seed, v)
}

// all runs f on every rank. The first error, or panic, stops the others and is returned.
func (r *runner) all(ctx context.Context, f func(*rank) error) error {
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	fail := func(err error) {
		once.Do(func() {
			first = err
			r.dead.Store(true)
			close(r.stop)
		})
	}
	finished := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
			fail(ctx.Err())
		case <-finished:
		}
	}()
	go r.watch(finished, fail)
	for _, k := range r.ranks {
		wg.Add(1)
		k.finished.Store(false)
		go func() {
			defer wg.Done()
			defer k.finished.Store(true)
			defer func() {
				if x := recover(); x != nil {
					fail(fmt.Errorf("rank %d: internal fault: %v", k.number, x))
				}
			}()
			if err := f(k); err != nil && err != errStopped {
				fail(err)
			}
		}()
	}
	wg.Wait()
	close(finished)
	once.Do(func() {})
	return first
}

// train is the training loop of one rank. Ranks meet in messages only: the first stage may be a step ahead.
func (r *runner) train(k *rank) error {
	q := r.plan.Programs[0]
	if !q.Train {
		return nil
	}
	p := k.programs[0]
	if r.opt.Norms && k.squares == nil {
		k.wantSquares()
	}
	var own []float64 // losses of this rank
	start := time.Now()
	seen := watched{since: start, last: r.first}
	for n := r.first; n < r.total; n++ {
		if r.dead.Load() {
			return errStopped
		}
		if err := p.load(r.datasets[0], n%r.perEpoch*q.Batch, k.replica, r.plan.FullBatch); err != nil {
			return err
		}
		scale := k.scale
		k.begin(n)
		if err := k.run(0); err != nil {
			return err
		}
		var losses [][]float64 // of the ranks of the stage
		if k.stage == q.Outputs[0].Stage {
			var err error
			own = p.values(own[:0], 0)
			if losses, err = k.gatherOnStage(own); err != nil {
				return k.during("gathering losses", err)
			}
		}
		if k.replica == 0 || r.opt.Digests && k.replica < r.plan.ShardSize && r.plan.Shares(plan.ShardValue) {
			if err := r.tell(k, n, scale, losses); err != nil {
				return err
			}
		}
		saved := r.opt.Checkpoint.due(n+1, r.total)
		if saved {
			if err := r.save(k, n+1); err != nil {
				return err
			}
		}
		if n+1 < r.total {
			if leave, err := r.leaves(k, &seen, n+1); err != nil {
				return err
			} else if leave {
				return r.leave(k, n+1, saved)
			}
		}
	}
	if k.stage == q.Outputs[0].Stage && k.replica == 0 {
		r.result.Seconds = time.Since(start).Seconds()
	} else if k.reports != nil {
		return k.during("reporting the last step", k.reports[k.stage].finish())
	}
	return nil
}

// values appends a result of this rank for every micro-batch.
func (p *rankProgram) values(v []float64, value int) []float64 {
	for _, o := range p.outputs {
		if o.value == value {
			for m := range o.micros {
				v = append(v, o.at(m))
			}
		}
	}
	return v
}

// reduce adds a result over the micro-batches of a step, in ascending order, or takes their mean. parts are the values of the
// ranks of the stage.
func (r *runner) reduce(p *rankProgram, value int, parts [][]float64) float64 {
	sum := 0.0
	for m := range p.MicroBatches {
		whole := 0.0
		for _, v := range parts {
			whole += v[m]
		}
		if p.Outputs[value].Fold != plan.Summed {
			whole /= float64(len(parts))
		}
		sum += whole
	}
	if r.opt.Reduction == "mean" {
		sum /= float64(p.MicroBatches)
	}
	return sum
}
