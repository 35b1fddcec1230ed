// Package ppc compiles models written in .pp for one device into pipeline-parallel programs.
//
// Compile takes source text and gives a plan: per stage the functions, buffers, messages and actions. Nothing is
// printed and no file is touched; imports and files go through hooks. Package runtime executes a plan, WriteBundle in
// package plan stores it.
package ppc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"strings"
	"time"

	"github.com/ppc-lang/ppc/codegen/ascend"
	"github.com/ppc-lang/ppc/codegen/ascend/chip"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend"
	"github.com/ppc-lang/ppc/passes"
	"github.com/ppc-lang/ppc/passes/check"
	"github.com/ppc-lang/ppc/passes/schedule"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device"
	"github.com/ppc-lang/ppc/runtime/device/cpu"
	"github.com/ppc-lang/ppc/runtime/device/emulator"
)

// Version of the compiler: a variable, and nobody's but the linker's, to which a release gives -X.
var Version = "0.1.0"

// DefaultWLag is how many micro-batches a weight pass may wait, at most.
const DefaultWLag = 4

// Options of a compilation.
type Options struct {
	// File names the source in messages and is what imports are relative to; Source is its text.
	File   string
	Source []byte
	// Read returns the text of an imported file; nil refuses imports.
	Read func(name string) ([]byte, error)
	// Trees spares parsing what earlier calls with the same Trees have parsed; nil parses all.
	Trees *frontend.Trees

	Block      string            // pipeline block; "" if the file leaves no choice
	Set        map[string]string // values of constants
	Stages     int               // 0: what the file says
	Devices    int               // ranks in all; 0: one per stage
	Micro      int               // micro-batches; 0: what the file says
	Accumulate int               // batches of a step; 0: what the file says
	Schedule   string            // "": what the file says, else 1f1b
	WLag       *int              // nil: DefaultWLag
	Target     string            // chip, or "none" or "" for no kernels
	Layout     string            // "": what the file says; see package frontend/layout
	Unsplit    bool              // one stage, whatever the file says
	LazyInline string            // auto, marked, off; "": what the file says, else auto
	Seed       *uint32

	// Logger gets debug records; nil for none. Dump gets the IR after every pass. Verify checks it there.
	Logger *slog.Logger
	Dump   func(pass, text string)
	Verify bool
}

// Result of a compilation.
type Result struct {
	Plan *plan.Plan
	// Code is what the code generator made for the target: kernels, host programs, build files; empty for "none".
	Code     []plan.File
	Warnings diag.List
	// Timings are those of the frontend and of every pass.
	Timings []passes.Timing
	Seconds float64
}

// Compile compiles one pipeline block. Errors for the user are a diag.List.
func Compile(ctx context.Context, o Options) (*Result, error) {
	start := time.Now()
	costs, errs := Target(o.Target)
	if errs.HasErrors() {
		return nil, errs
	}
	spec, list := frontend.Load(o.File, o.Source, frontend.Options{
		Block: o.Block, Set: o.Set, Stages: o.Stages, Micro: o.Micro, Accumulate: o.Accumulate, Seed: o.Seed,
		Layout: o.Layout, Unsplit: o.Unsplit, Read: o.Read, Trees: o.Trees, Done: ctx.Done(),
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if list.HasErrors() || spec == nil {
		return nil, list
	}
	elaborated := time.Since(start).Seconds()
	opt := passes.Options{Stages: spec.Stages, Schedule: spec.Schedule, WLag: DefaultWLag, Target: costs, Dump: o.Dump, Verify: o.Verify}
	if o.Unsplit || opt.Stages < 1 {
		opt.Stages = 1
	}
	if !o.Unsplit {
		opt.Devices = o.Devices
	}
	if o.Schedule != "" {
		opt.Schedule = o.Schedule
		spec.SchedulePos = diag.Pos{}
	}
	if opt.Schedule == "" {
		opt.Schedule = "1f1b"
	}
	if errs := schedule.Known(opt.Schedule, spec.SchedulePos); errs.HasErrors() {
		return nil, errs
	}
	if o.WLag != nil {
		opt.WLag = *o.WLag
	}
	if opt.WLag < 0 {
		return nil, diag.List{diag.Errorf(diag.BadSetting, diag.Range{}, "the lag of weight passes is %d; it cannot be negative", opt.WLag).
			WithRepair("use -w-lag 0 for the textbook order")}
	}
	if o.LazyInline != "" {
		spec.LazyInline = o.LazyInline
	}
	if costs != nil && opt.Devices > opt.Stages {
		return nil, diag.List{diag.Errorf(diag.NotSupported, diag.At(spec.Pos), "the host programs for the target `%s` run one rank per stage", o.Target).
			WithRepair(ascend.WithoutKernels)}
	}
	if costs != nil && (spec.Clip != plan.Clip{} || spec.LossScale != nil) {
		return nil, diag.List{diag.Errorf(diag.NotSupported, diag.At(spec.Pos), "the target `%s` has no kernels yet that clip or scale gradients", o.Target).
			WithRepair(ascend.WithoutKernels)}
	}
	if costs != nil && spec.Kind == "infer" {
		return nil, diag.List{diag.Errorf(diag.NotSupported, diag.At(spec.Pos), "the host programs for the target `%s` do not run infer blocks yet", o.Target).
			WithRepair(ascend.WithoutKernels)}
	}
	if costs != nil {
		for _, s := range append([]*plan.Spec{spec}, spec.Evals...) {
			for _, b := range s.Buffers {
				return nil, diag.List{diag.Errorf(diag.NotSupported, diag.At(b.Pos), "the host programs for the target `%s` do not keep buffers yet; the cells have `%s`", o.Target, b.Name).
					WithRepair(ascend.WithoutKernels)}
			}
		}
	}
	p, timings, err := passes.Run(ctx, spec, opt)
	if err != nil {
		return nil, err
	}
	p.Source = path.Base(o.File)
	r := &Result{Plan: p, Warnings: append(list, warnings(spec, p, &o)...)}
	r.Timings = append([]passes.Timing{{Pass: "frontend", Seconds: elaborated}}, timings...)
	if costs != nil {
		generating := time.Now()
		out, err := ascend.Generate(p)
		if err != nil {
			return nil, err
		}
		r.Code = out.Files
		r.Timings = append(r.Timings, passes.Timing{Pass: "codegen", Seconds: time.Since(generating).Seconds()})
	}
	r.Seconds = time.Since(start).Seconds()
	if o.Logger != nil {
		for _, t := range r.Timings {
			o.Logger.Debug("pass", "name", t.Pass, "seconds", t.Seconds)
		}
	}
	return r, nil
}

// Target returns the cost table of a chip; nil for "none" and "".
func Target(name string) (*plan.Costs, diag.List) {
	if name == "" || name == "none" {
		return nil, nil
	}
	if c, ok := chip.ByName(name); ok {
		return ascend.Costs(c), nil
	}
	d := diag.Errorf(diag.BadTarget, diag.Range{}, "unknown target `%s`", name)
	names := append(chip.Names(), "none")
	if s := diag.DidYouMean(name, names); s != "" {
		return nil, diag.List{d.WithRepair("%s", s)}
	}
	return nil, diag.List{d.WithRepair("the targets are %s", strings.Join(names, ", "))}
}

// Device returns what opens the stages of a plan on a kind of device: cpu, emulator (the plan's target must be a chip)
// or ascend.
func Device(name string, p *plan.Plan) (device.Open, error) {
	switch name {
	case "cpu":
		return cpu.Open, nil
	case "emulator":
		if p.Target == "none" {
			return nil, diag.List{diag.Errorf(diag.BadTarget, diag.Range{}, "the emulator runs the kernels of a chip; this program was compiled for none").
				WithRepair("compile with -target, for example 910b3")}
		}
		out, err := ascend.Generate(p)
		if err != nil {
			return nil, err
		}
		return emulator.Opener(out.Stages), nil
	case "ascend":
		return nil, diag.List{diag.Errorf(diag.MissingTool, diag.Range{}, "the ascend device needs the vendor's runtime libraries, which this program does not load").
			WithRepair("compile a bundle and use its run.sh where they are installed, or run with -device emulator")}
	}
	return nil, diag.List{diag.Errorf(diag.BadDevices, diag.Range{}, "unknown device `%s`", name).WithRepair("the devices are cpu, emulator and ascend")}
}

// Diagnostics returns the diagnostics in an error of Compile; any other error is a fault of the compiler.
func Diagnostics(err error) diag.List {
	var list diag.List
	if errors.As(err, &list) {
		return list
	}
	var one diag.Diagnostic
	if errors.As(err, &one) {
		return diag.List{one}
	}
	if err == nil {
		return nil
	}
	return diag.List{diag.Errorf(diag.CompilerFault, diag.Range{}, "%s", fmt.Sprint(err))}
}

// WriteBundle stores a result as a folder, whole or not at all. See package plan.
func WriteBundle(dir string, r *Result) error { return plan.Write(dir, r.Plan, r.Code) }

// ReadBundle reads a folder that WriteBundle made. It trusts nothing in it: the proof of package check is made again.
func ReadBundle(dir string) (*plan.Plan, error) { return ReadBundleFS(os.DirFS(dir), dir) }

// ReadBundleFS reads a bundle from a file system; name stands for it in diagnostics.
func ReadBundleFS(dir fs.FS, name string) (*plan.Plan, error) {
	p, err := plan.ReadFS(dir, name)
	if err != nil {
		return nil, err
	}
	if err := check.Run(p); err != nil {
		return nil, diag.List{diag.Errorf(diag.BadBundle, diag.At(diag.Pos{File: name}), "%v", err).WithRepair("compile the model again")}
	}
	return p, nil
}
