package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ppc-lang/ppc"
	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/transport"
)

// logEvery is how many steps lie between two lines of the training log.
const logEvery = 10

func runFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "data", Usage: "folder or file that replaces the path of every data source"},
		&cli.IntFlag{Name: "steps", Usage: "end after that many steps in total", HideDefault: true},
		&cli.IntFlag{Name: "epochs", Usage: "epochs, instead of the file's", HideDefault: true},
		&cli.StringFlag{Name: "device", Usage: "cpu, emulator or ascend", Value: "cpu"},
		&cli.StringFlag{Name: "cpu", Usage: "kernels of the cpu device: generic, avx2 or avx512 (default the best here)"},
		&cli.StringFlag{Name: "reduction", Usage: "sum or mean over micro-batches, instead of the file's"},
		&cli.StringFlag{Name: "init", Usage: "npz or safetensors file, or checkpoint, with the first values of all parameters"},
		&cli.StringFlag{Name: "save", Usage: "npz or safetensors file for the parameters at the end"},
		&cli.StringFlag{Name: "checkpoint", Usage: "folder for checkpoints: one after the last step"},
		&cli.IntFlag{Name: "save-every", Usage: "a checkpoint after every so many steps too", HideDefault: true},
		&cli.IntFlag{Name: "keep", Usage: "how many checkpoints stay, the last ones (default all)", HideDefault: true},
		&cli.StringFlag{Name: "resume", Usage: "folder of checkpoints to go on from, or one checkpoint in it"},
		&cli.StringFlag{Name: "log", Usage: "file with one JSON object per step"},
		&cli.BoolFlag{Name: "log-norms", Usage: "the gradient norm of every parameter in -log"},
		&cli.BoolFlag{Name: "check-copies", Usage: "compare the copies of shared parameters after every step"},
		&cli.StringFlag{Name: "log-dir", Usage: "folder for what print operations show", Value: "log_output"},
		&cli.DurationFlag{Name: "deadline", Usage: "how long no rank may make progress", Value: 30 * time.Second},
	}
}

func (a *app) runCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "train (and evaluate) a model file or a bundle, or run its infer block", ArgsUsage: "FILE|DIR",
		Flags: slices.Concat(compileFlags(), runFlags(), inferFlags()),
		Action: func(ctx context.Context, c *cli.Command) error {
			defer a.questions()()
			name, err := file(c)
			if err != nil {
				return err
			}
			if err := apart(c, name); err != nil {
				return err
			}
			p, err := a.plan(ctx, c, name)
			if err != nil {
				return err
			}
			return a.train(ctx, c, p, nil)
		},
	}
}

// plan compiles a file or reads a bundle.
func (a *app) plan(ctx context.Context, c *cli.Command, name string) (*plan.Plan, error) {
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		for _, f := range compileFlags() {
			if n := f.Names()[0]; c.IsSet(n) && n != "seed" {
				return nil, usagef("-%s shapes the compiled program; %s is a bundle, which is compiled already", n, name)
			}
		}
		p, err := ppc.ReadBundle(name)
		if err != nil {
			return nil, wrong(err)
		}
		return p, nil
	}
	target := "none"
	if d := c.String("device"); d == "emulator" || d == "ascend" {
		target = "910b3"
	}
	o, err := a.options(c, name, target)
	if err != nil {
		return nil, err
	}
	r, err := ppc.Compile(ctx, o)
	if err != nil {
		return nil, refused(err)
	}
	a.show(r.Warnings, false)
	return r.Plan, nil
}

// savesFirst is what the user hears who interrupts a training with checkpoints.
const savesFirst = "the run ends when it has saved its state; another signal ends it at once"

// member is what a process has of a run that others take part in.
type member struct {
	transport transport.Transport
	tells     bool // of steps and results, and stores them: one of the processes does
	helps     bool // another process has locked the folder for checkpoints
	hosts     bool // others may be on other hosts, with other files
	log       io.Writer
	watch     func(look func() []runtime.Status)
	save      <-chan struct{} // closed when another process wants the run to save and end
}

// runOptions are what the flags of run say of how to run a plan, without what they name.
func runOptions(c *cli.Command, p *plan.Plan) (o runtime.Options, err error) {
	for _, n := range []string{"steps", "epochs"} {
		if c.IsSet(n) && c.Int(n) < 1 {
			return o, usagef("-%s is %d; it must be at least 1", n, c.Int(n))
		}
	}
	o = runtime.Options{
		Deadline: c.Duration("deadline"),
		Steps:    c.Int("steps"), Epochs: c.Int("epochs"), Reduction: c.String("reduction"), Seed: p.Seed,
		DataPath: c.String("data"), Getenv: os.Getenv, Norms: c.IsSet("log"), Digests: c.Bool("check-copies"), SkipParams: c.String("save") == "",
	}
	if o.Checkpoint, err = checkpoints(c); err != nil {
		return o, err
	}
	switch o.Reduction {
	case "", "sum", "mean":
	default:
		return o, usagef("-reduction is sum or mean, not `%s`", o.Reduction)
	}
	if c.Bool("log-norms") && !c.IsSet("log") {
		return o, usagef("-log-norms adds to the file of -log, which is not given")
	}
	s, err := seed(c)
	if err != nil {
		return o, err
	}
	if s != nil {
		o.Seed = *s
	}
	if o.Open, err = opener(c, p); err != nil {
		return o, err
	}
	if o.Device.Path, err = cpuPath(c); err != nil {
		return o, err
	}
	if d := c.Duration("deadline"); d <= 0 {
		return o, usagef("-deadline is %s; it must be longer than nothing", d)
	}
	if f := c.String("save"); f != "" && filepath.Clean(f) == filepath.Clean(c.String("log")) {
		return o, usagef("-save and -log name one file, %s", f)
	}
	return o, nil
}

// train runs a plan with the flags of run. one is nil if this process is the only one.
func (a *app) train(ctx context.Context, c *cli.Command, p *plan.Plan, one *member) error {
	tells := one == nil || one.tells
	o, err := runOptions(c, p)
	if err != nil {
		return err
	}
	in, err := a.inference(c, p.Programs[0], tells)
	if err != nil {
		return err
	}
	notice := func(s string) { fmt.Fprintln(a.err, "note:", s) }
	o.Notice = notice
	if c.String("device") == "cpu" && one == nil {
		if err := cpu.Fits(p); err != nil {
			return wrong(err)
		}
	}
	if dir, err := os.UserCacheDir(); err == nil {
		o.Device.CacheDir = filepath.Join(dir, "ppc")
	}
	if f := c.String("init"); f != "" {
		w, err := openWeights(f, notice)
		if err != nil {
			return wrong(err)
		}
		defer w.close()
		if err := w.fits(p); err != nil {
			return wrong(err)
		}
		o.Initial = w.values
		if one != nil && one.hosts {
			if o.InitialDigest, err = w.digest(); err != nil {
				return wrong(err)
			}
		}
		o.Buffers = firstBuffers(p, f, w.buffers, notice)
	}
	if f := c.String("save"); f != "" && tells {
		if err := writable(f); err != nil {
			return cannotWrite(f, err)
		}
	}
	logs := &workerLogs{dir: c.String("log-dir")}
	defer logs.close()
	o.Log = logs.writer
	if one == nil && runtime.Prints(p) {
		if err := logs.prepare(); err != nil {
			return cannotWrite(logs.dir, err)
		}
	}
	if one != nil {
		o.Transport = one.transport
		o.Log = func(int) io.Writer { return one.log }
	}
	var stepLog *lineLog
	if f := c.String("log"); f != "" && tells {
		if st, err := os.Stat(f); err == nil && st.Size() > 0 && o.Checkpoint.Resume != "" {
			notice(f + ", the log of an earlier run, is written anew from the step that this one begins with")
		}
		w, err := data.Create(ctx, f)
		if err != nil {
			return cannotWrite(f, err)
		}
		defer w.Close()
		stepLog = &lineLog{file: w}
	}
	if in != nil {
		o.Inputs, o.Tokens = in.inputs, in.tokens
	}
	done := make(chan struct{})
	defer close(done)
	o.Watch = func(look func() []runtime.Status) {
		if one != nil {
			one.watch(look)
		}
		go a.answer(look, done)
	}
	if o.Checkpoint.Dir != "" {
		o.Checkpoint.Held = one != nil && one.helps
		var ask, late func()
		o.Checkpoint.Preempt, ask, late = a.wish(one != nil, func() {
			if one == nil {
				notice(savesFirst)
			}
		})
		defer late()
		if one != nil && one.save != nil {
			go func() {
				select {
				case <-one.save:
					ask()
				case <-done:
				}
			}()
		}
	}
	var logErr error
	o.OnStep = func(s runtime.Step) {
		if !a.json && s.Step%logEvery == 0 {
			fmt.Fprintf(a.out, "epoch: %d step: %d, loss is %v\n", s.Epoch, s.Step, float32(s.Loss))
		}
		if !a.json && s.Skipped {
			fmt.Fprintf(a.out, "epoch: %d step: %d is skipped: a gradient is not finite at the loss scale %v\n", s.Epoch, s.Step, s.LossScale)
		}
		if stepLog != nil && logErr == nil {
			logErr = logStep(stepLog, p, s, c.Bool("log-norms"))
		}
	}
	o.Collect = func(ctx context.Context, next func() (data.Array, error)) error {
		if logErr != nil {
			return cannotWrite(c.String("log"), logErr)
		}
		f := c.String("save")
		err := save(ctx, f, p.Module.Params, next)
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err() // the end of writing to a pipe
		case err != nil:
			return cannotWrite(f, err)
		}
		return nil
	}
	r, err := runtime.Run(ctx, p, o)
	if err != nil {
		return failed(err)
	}
	if logErr != nil {
		return cannotWrite(c.String("log"), logErr)
	}
	if !tells {
		return nil
	}
	if f := c.String("save"); f != "" {
		if names := buffers(p); len(names) > 0 {
			what := "the buffer " + names[0] + " is"
			if len(names) > 1 {
				what = "the buffers " + strings.Join(names, ", ") + " are"
			}
			notice(fmt.Sprintf("%s has the parameters; %s not stored", f, what))
		}
	}
	if err := logs.close(); err != nil {
		return cannotWrite(logs.dir, err)
	}
	if in != nil {
		return a.inferred(ctx, p, in, r)
	}
	return a.report(r, logs)
}

// opener gives what opens the stages of a plan on the device of -device.
func opener(c *cli.Command, p *plan.Plan) (device.Open, error) {
	d := c.String("device")
	switch d {
	case "cpu", "emulator", "ascend":
	default:
		return nil, usagef("unknown device `%s`; the devices are cpu, emulator and ascend", d)
	}
	if d != "cpu" && c.IsSet("cpu") {
		return nil, usagef("-cpu chooses kernels of the cpu device; -device is %s", d)
	}
	open, err := ppc.Device(d, p)
	if err != nil {
		return nil, failed(err)
	}
	return open, nil
}

// answer says what the ranks are doing whenever somebody asks.
func (a *app) answer(look func() []runtime.Status, done <-chan struct{}) {
	for {
		select {
		case <-a.quit:
			_, text := runtime.Stuck(look())
			fmt.Fprintln(a.err, "note:", text)
		case <-done:
			return
		}
	}
}

// buffers names the buffers of all cells.
func buffers(p *plan.Plan) (names []string) {
	for _, st := range p.Stages {
		for _, b := range st.Buffers {
			names = append(names, "`"+b.Name+"`")
		}
	}
	return names
}

// report prints what a run gave.
func (a *app) report(r *runtime.Result, logs *workerLogs) error {
	if a.json {
		type rankJSON struct {
			Rank      int `json:"rank"`
			Stage     int `json:"stage"`
			PeakBytes int `json:"peak_bytes"`
		}
		out := map[string]any{"steps": r.Steps, "loss_last": number(r.LastLoss), "steps_per_s": number(perSecond(r))}
		var ranks []rankJSON
		for _, k := range r.Ranks {
			ranks = append(ranks, rankJSON{k.Rank, k.Stage, k.PeakBytes})
		}
		out["ranks"] = ranks
		if r.Checkpoint != "" {
			out["checkpoint"] = r.Checkpoint
		}
		for _, e := range r.Evals {
			for _, m := range e.Metrics {
				key := m.Name
				if _, taken := out[key]; taken { // a metric may have any name, and several evaluations the same metrics
					key = e.Name + "." + m.Name
				}
				out[key] = number(m.Value)
			}
		}
		return a.printJSON(out)
	}
	if r.Steps > 0 {
		fmt.Fprintf(a.out, "%d steps in %.2f s (%.0f steps/s)\n", r.Steps, r.Seconds, perSecond(r))
	}
	for _, e := range r.Evals {
		for _, m := range e.Metrics {
			fmt.Fprintf(a.out, "%s: %s %.4f on %d rows\n", e.Name, m.Name, m.Value, e.Rows)
		}
	}
	if r.Checkpoint != "" {
		fmt.Fprintf(a.out, "checkpoint: %s\n", r.Checkpoint)
	}
	if names := logs.names(); len(names) > 0 {
		fmt.Fprintf(a.out, "printed tensors: %s\n", strings.Join(names, ", "))
	}
	return nil
}

func perSecond(r *runtime.Result) float64 {
	if r.Seconds == 0 {
		return 0
	}
	return float64(r.Steps) / r.Seconds
}

// stepJSON is a line of -log.
type stepJSON struct {
	Epoch    int               `json:"epoch"`
	Step     int               `json:"step"`
	Loss     number            `json:"loss"`
	GradNorm number            `json:"grad_norm"`
	Skipped  bool              `json:"skipped,omitempty"`
	Scale    number            `json:"loss_scale,omitempty"`
	Norms    map[string]number `json:"grad_norms,omitempty"` // encoding/json sorts the names
}

func logStep(w io.Writer, p *plan.Plan, s runtime.Step, norms bool) error {
	line := stepJSON{Epoch: s.Epoch, Step: s.Step, Loss: number(s.Loss), GradNorm: number(s.Norm)}
	if p.LossScale != nil {
		line.Skipped, line.Scale = s.Skipped, number(s.LossScale)
	}
	if norms {
		line.Norms = map[string]number{}
		for i, n := range s.Norms {
			line.Norms[p.Module.Params[i].Name] = number(n)
		}
	}
	return json.NewEncoder(w).Encode(line)
}

// workerLogs holds worker_N.log of every rank that prints; files appear with the first line.
type workerLogs struct {
	dir    string
	ranks  []*workerLog
	closed bool
}

type workerLog struct {
	path string
	dir  string
	file *os.File
	buf  *bufio.Writer
	err  error
}

// prepare finds out whether files can be made.
func (l *workerLogs) prepare() error {
	if err := os.MkdirAll(l.dir, 0o777); err != nil {
		return err
	}
	return writable(filepath.Join(l.dir, "worker_0.log"))
}

func (l *workerLogs) writer(rank int) io.Writer {
	w := &workerLog{dir: l.dir, path: filepath.Join(l.dir, fmt.Sprintf("worker_%d.log", rank))}
	l.ranks = append(l.ranks, w)
	return w
}

// Write is called by one rank only.
func (w *workerLog) Write(b []byte) (int, error) {
	if w.file == nil && w.err == nil {
		if w.err = os.MkdirAll(w.dir, 0o777); w.err == nil {
			w.file, w.err = os.Create(w.path)
		}
		if w.err == nil {
			w.buf = bufio.NewWriterSize(w.file, 1<<16)
		}
	}
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.buf.Write(b)
	w.err = err
	return n, err
}

func (l *workerLogs) close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	var first error
	for _, w := range l.ranks {
		if w.file != nil {
			if err := w.buf.Flush(); w.err == nil {
				w.err = err
			}
			if err := w.file.Close(); w.err == nil {
				w.err = err
			}
		}
		if first == nil {
			first = w.err
		}
	}
	return first
}

func (l *workerLogs) names() []string {
	var out []string
	for _, w := range l.ranks {
		if w.file != nil {
			out = append(out, w.path)
		}
	}
	sort.Strings(out)
	return out
}
