package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
)

// MaxMicroBatches bounds the micro-batches of a step.
const MaxMicroBatches = 1 << 20

// Further bounds of what a bundle may ask for.
const (
	maxFileBytes = 1 << 28
	maxStages    = 1 << 12
	maxRanks     = 1 << 16
	maxBytes     = 1 << 46
)

// Read reads a bundle and checks version, hashes and bounds. It trusts nothing else in it. Errors are diagnostics.
func Read(dir string) (*Plan, error) { return ReadFS(os.DirFS(dir), dir) }

// ReadFS reads a bundle from a file system; name stands for it in diagnostics.
func ReadFS(dir fs.FS, name string) (*Plan, error) {
	p, err := read(dir)
	if err == nil {
		return p, nil
	}
	// A file that is there and cannot be read says nothing of the bundle.
	if f, ok := errors.AsType[*fs.PathError](err); ok && !errors.Is(err, fs.ErrNotExist) {
		return nil, diag.List{diag.Errorf(diag.CannotRead, diag.At(diag.Pos{File: name + "/" + strings.TrimPrefix(f.Path, name+"/")}), "cannot read: %v", f.Err)}
	}
	code := diag.BadBundle
	if errors.Is(err, errVersion) {
		code = diag.BundleVersion
	}
	return nil, diag.List{diag.Errorf(code, diag.At(diag.Pos{File: name}), "%v", err).WithRepair("compile the model again")}
}

var errVersion = errors.New("the bundle has another version")

func read(dir fs.FS) (p *Plan, err error) {
	// Indices and sizes of a bundle are checked where they are used; what is missed ends here.
	defer func() {
		if x := recover(); x != nil {
			p, err = nil, errors.New("the bundle is not consistent")
		}
	}()
	r := &reader{dir: dir}
	text, err := r.file(planFile)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("this is no bundle: it has no %s", planFile)
		}
		return nil, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var version struct {
		Version int `yaml:"version"`
	}
	if err := yaml.Unmarshal(text, &version); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %v", planFile, firstLine(err))
	}
	if version.Version != Version {
		return nil, fmt.Errorf("%w: %d, this ppc reads %d", errVersion, version.Version, Version)
	}
	if err := dec.Decode(&r.doc); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %v", planFile, firstLine(err))
	}
	if err := r.hashes(); err != nil {
		return nil, err
	}
	for _, step := range []func() error{r.header, r.module, r.stages, r.states, r.programs, r.messages, r.shared, r.actions, r.frames, r.places, r.check} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r.p, nil
}

// firstLine says what is wrong with a YAML text without the names of Go types.
func firstLine(err error) string {
	var kinds *yaml.TypeError
	if errors.As(err, &kinds) && len(kinds.Errors) > 0 {
		line, what, _ := strings.Cut(kinds.Errors[0], ": ")
		if field, _, ok := strings.Cut(strings.TrimPrefix(what, "field "), " not found"); ok {
			return fmt.Sprintf("%s: there is no field %q", line, field)
		}
		return line + ": a value of another kind is wanted here"
	}
	s, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(s, "yaml: ")
}

type reader struct {
	dir   fs.FS
	doc   planDoc
	p     *Plan
	files map[string][]byte
}

func (r *reader) file(name string) ([]byte, error) {
	f, err := r.dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The size that a file system tells need not be true (a device, a pipe).
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("%s has more than %d bytes, more than a bundle may have", name, maxFileBytes)
	}
	return b, nil
}

// hashes reads every listed file and compares its hash.
func (r *reader) hashes() error {
	names := make([]string, 0, len(r.doc.Hashes))
	for n := range r.doc.Hashes {
		names = append(names, n)
	}
	slices.Sort(names)
	r.files = map[string][]byte{}
	for _, n := range names {
		b, err := r.file(n)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("file %s is missing", n)
		case err != nil:
			return err
		}
		sum := sha256.Sum256(b)
		if hex.EncodeToString(sum[:]) != r.doc.Hashes[n] {
			return fmt.Errorf("file %s has been changed: its hash differs", n)
		}
		r.files[n] = b
	}
	return nil
}

// rows reads a listed CSV file with the given head.
func (r *reader) rows(name string, head []string) ([][]string, error) {
	b, ok := r.files[name]
	if !ok {
		return nil, fmt.Errorf("file %s is not listed", name)
	}
	c := csv.NewReader(bytes.NewReader(b))
	c.FieldsPerRecord = len(head)
	rows, err := c.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %v", name, err)
	}
	if len(rows) == 0 || !slices.Equal(rows[0], head) {
		return nil, fmt.Errorf("%s: the columns are not %s", name, strings.Join(head, ","))
	}
	return rows[1:], nil
}

func (r *reader) header() error {
	d := &r.doc
	if d.Stages < 1 || d.Stages > maxStages || len(d.StageList) != d.Stages || len(d.Programs) == 0 || len(d.Memory) == 0 || len(d.Memory) > 8 || d.WLag < 0 {
		return fmt.Errorf("%s: stages, programs and memory do not fit", planFile)
	}
	if d.Degree < 1 || d.Degree > maxRanks/d.Stages {
		return fmt.Errorf("%s: %d ranks per stage", planFile, d.Degree)
	}
	if d.ShardSize < 1 || d.Degree%d.ShardSize != 0 {
		return fmt.Errorf("%s: %d ranks cannot share out what %d have", planFile, d.ShardSize, d.Degree)
	}
	finite := func(v, least float64) bool { return v >= least && v <= math.MaxFloat32 }
	if l := d.LossScale; l != nil && !(finite(l.Initial, math.SmallestNonzeroFloat32) && l.Window >= 0 && (l.Window == 0 || finite(l.Factor, 1))) {
		return fmt.Errorf("%s: the loss scale is malformed", planFile)
	}
	if !finite(d.Clip.Norm, 0) || !finite(d.Clip.Value, 0) || d.Clip.Norm > 0 && d.Clip.Value > 0 {
		return fmt.Errorf("%s: the bounds of gradients are malformed", planFile)
	}
	if d.Epochs < 1 {
		return fmt.Errorf("%s: %d epochs", planFile, d.Epochs)
	}
	accumulate := max(d.Accumulate, 1)
	if d.Accumulate < 0 || d.MicroBatches < 1 || d.MicroBatches%accumulate != 0 {
		return fmt.Errorf("%s: %d micro-batches in %d batches", planFile, d.MicroBatches, d.Accumulate)
	}
	r.p = &Plan{
		Name: d.Name, Source: d.Source, NumStages: d.Stages, Degree: d.Degree, Accumulate: accumulate, MicroBatches: d.MicroBatches, Schedule: d.Schedule, WLag: d.WLag, Reduction: d.Reduction,
		Seed: d.Seed, Target: d.Target, Epochs: d.Epochs, Clip: d.Clip, LossScale: d.LossScale, ShardSize: d.ShardSize, GradientsSum: d.GradientsSum, FullBatch: d.FullBatch, Predicted: Prediction{d.Predicted.Makespan, d.Predicted.Bubble, d.Predicted.Busy},
	}
	if !slices.Equal(d.Axes, r.p.Axes()) {
		return fmt.Errorf("%s: the axes are not those of the ranks", planFile)
	}
	if d.Optimizer == nil {
		return nil
	}
	m, err := ir.Parse(string(r.files[optimizerFile]))
	if err != nil {
		return fmt.Errorf("%s: %w", optimizerFile, err)
	}
	o := d.Optimizer
	r.p.Optimizer = &Optimizer{Name: o.Name, Func: m.Func(o.Func), States: o.States, Scalars: o.Scalars, Groups: o.Groups}
	if r.p.Optimizer.Func == nil || len(r.p.Optimizer.Func.Args) != 2+len(o.States)+len(o.Scalars) || len(r.p.Optimizer.Func.Results) != 1+len(o.States) {
		return fmt.Errorf("%s: the function does not fit", optimizerFile)
	}
	lists := [][]Scalar{o.Scalars}
	for _, g := range o.Groups {
		if len(g.Scalars) != len(o.Scalars) {
			return fmt.Errorf("%s: a group of the optimizer does not fit", planFile)
		}
		lists = append(lists, g.Scalars)
	}
	for _, list := range lists {
		for _, s := range list {
			if err := s.Schedule.Check(); err != nil {
				return fmt.Errorf("%s: %w", planFile, err)
			}
		}
	}
	return nil
}

// module joins the functions of all stages; a function that several stages have must be the same.
func (r *reader) module() error {
	rows, err := r.rows(parametersFile, parametersHead)
	if err != nil {
		return err
	}
	lines := map[string]string{} // parameter -> its line in the program of its stage
	for s := range r.doc.Stages {
		for _, l := range strings.Split(string(r.files[stageFile(s, "program.ir")]), "\n") {
			if !strings.HasPrefix(l, "param @") {
				if strings.HasPrefix(l, "func ") {
					break
				}
				continue
			}
			name, _, _ := strings.Cut(l[len("param @"):], " ")
			lines[name] = l
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "module %s\n", r.doc.Module)
	last := ""
	for _, row := range rows {
		if row[2] == last {
			continue // the same parameter on a further stage
		}
		last = row[2]
		if l, ok := lines[row[2]]; ok {
			text.WriteString(l + "\n")
			continue
		}
		args := strings.Fields(row[5])
		for i, a := range args {
			if !strings.ContainsAny(a, ".enIN") {
				args[i] += ".0"
			}
		}
		fmt.Fprintf(&text, "param @%s : %s = %s(%s)\n", row[2], row[3], row[4], strings.Join(args, ", "))
	}
	seen := map[string]string{}
	for s := range r.doc.Stages {
		name := stageFile(s, "program.ir")
		b, ok := r.files[name]
		if !ok {
			return fmt.Errorf("file %s is not listed", name)
		}
		_, rest, _ := strings.Cut("\n"+string(b), "\nfunc @")
		for _, f := range strings.Split(rest, "\nfunc @") {
			if f == "" {
				continue
			}
			f = strings.TrimSuffix(f, "\n")
			id, _, _ := strings.Cut(f, "(")
			if old, ok := seen[id]; ok {
				if old != f {
					return fmt.Errorf("%s: function %s differs from that of another stage", name, id)
				}
				continue
			}
			seen[id] = f
			text.WriteString("func @" + f + "\n")
		}
	}
	if r.p.Module, err = ir.Parse(text.String()); err != nil {
		return fmt.Errorf("the stages' programs: %w", err)
	}
	if err := r.p.Module.Verify(ir.Cut); err != nil {
		return fmt.Errorf("the stages' programs: %w", err)
	}
	return nil
}

// parseRef reads area:item; -1:-1 is none.
func parseRef(s string) (Ref, error) {
	a, b, ok := strings.Cut(s, ":")
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil || x < -1 || y < -1 {
		return Ref{}, fmt.Errorf("%q is not area:item", s)
	}
	return Ref{x, y}, nil
}

func parseRefs(s string) ([]Ref, error) {
	var out []Ref
	for _, f := range strings.Fields(s) {
		r, err := parseRef(f)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func parseInts(s string) ([]int, error) {
	var out []int
	for _, f := range strings.Fields(s) {
		n, err := strconv.Atoi(f)
		if err != nil || n < -1 || n > maxBytes {
			return nil, fmt.Errorf("%q is out of bounds", f)
		}
		out = append(out, n)
	}
	return out, nil
}

func (r *reader) stages() error {
	for _, d := range r.doc.StageList {
		st := &Stage{}
		for _, a := range d.Areas {
			l := slices.Index(lifetimeNames[:], a.Lifetime)
			if l < 0 || !slices.Contains(Classes, a.Class) || a.Slots < 1 || a.Slots > MaxMicroBatches || a.Program < -1 || a.Program >= len(r.doc.Programs) {
				return fmt.Errorf("%s: an area is malformed", planFile)
			}
			st.Areas = append(st.Areas, Area{Class: a.Class, Lifetime: Lifetime(l), Program: a.Program, Chunk: a.Chunk, Slots: a.Slots})
		}
		var err error
		if st.Seed, err = parseRef(d.Seed); err != nil {
			return err
		}
		if (st.Seed.Area < 0) != (st.Seed.Item < 0) {
			return fmt.Errorf("%s: the seed of a stage is malformed", planFile)
		}
		if st.Workspace, err = parseRef(d.Workspace); err != nil {
			return err
		}
		if (st.Workspace.Area < 0) != (st.Workspace.Item < 0) {
			return fmt.Errorf("%s: the workspace of a stage is malformed", planFile)
		}
		if len(d.Inputs) != len(r.doc.Programs) {
			return fmt.Errorf("%s: inputs of a stage do not fit the programs", planFile)
		}
		for _, s := range d.Inputs {
			list, err := parseRefs(s)
			if err != nil {
				return err
			}
			st.Inputs = append(st.Inputs, list)
		}
		r.p.Stages = append(r.p.Stages, st)
	}
	for _, d := range r.doc.Memory {
		if len(d.Stages) != r.doc.Stages {
			return fmt.Errorf("%s: memory of %s does not fit the stages", planFile, d.Device)
		}
		m := &Memory{Device: d.Device}
		for s, x := range d.Stages {
			areas := len(r.p.Stages[s].Areas)
			if len(x.SlotBytes) != areas || len(x.ByClass) != len(Classes) || x.Scratch < 0 || x.Private < 0 || x.Scratch > maxBytes || x.Private > maxBytes {
				return fmt.Errorf("%s: memory of %s does not fit stage %d", planFile, d.Device, s)
			}
			for a, n := range x.SlotBytes {
				if n < 0 || n > maxBytes/r.p.Stages[s].Areas[a].Slots {
					return fmt.Errorf("%s: an area of stage %d is out of bounds", planFile, s)
				}
			}
			m.Stages = append(m.Stages, StageMemory{SlotBytes: x.SlotBytes, Offsets: make([][]int, areas), Scratch: x.Scratch, Private: x.Private, ByClass: x.ByClass, Peak: x.Peak})
		}
		r.p.Memory = append(r.p.Memory, m)
	}
	rows, err := r.rows(buffersFile, buffersHead)
	if err != nil {
		return err
	}
	for _, row := range rows {
		at, err := parseInts(strings.Join(row[:3], " "))
		if err != nil || len(at) != 3 || at[0] < 0 || at[0] >= len(r.p.Stages) || at[1] < 0 || at[1] >= len(r.p.Stages[at[0]].Areas) {
			return fmt.Errorf("%s: row %v is out of bounds", buffersFile, row[:3])
		}
		a := &r.p.Stages[at[0]].Areas[at[1]]
		t, err := ir.ParseType(row[4])
		form := slices.Index(formNames[:], row[5])
		offsets, err2 := parseInts(row[6])
		if err != nil || err2 != nil || form < 0 || at[2] != len(a.Items) || len(offsets) != len(r.p.Memory) || form > 0 && (t.Rank() != 2 || t.DType != ir.F32) {
			return fmt.Errorf("%s: buffer %s is malformed", buffersFile, row[3])
		}
		it := Item{Name: row[3], Type: t, Form: Form(form)}
		a.Items = append(a.Items, it)
		for k, m := range r.p.Memory {
			bytes := func(it Item) int {
				if m.Device == CPU.Device {
					return CPU.ItemBytes(it)
				}
				return it.Type.Bytes()
			}
			o, free := &m.Stages[at[0]].Offsets[at[1]], 0
			if n := len(*o); n > 0 {
				free = (*o)[n-1] + bytes(a.Items[n-1])
			}
			*o = append(*o, offsets[k])
			if offsets[k] < free || offsets[k] > m.Stages[at[0]].SlotBytes[at[1]]-bytes(it) || offsets[k]%CPU.Align != 0 {
				return fmt.Errorf("%s: buffer %s does not fit its area behind the one before it", buffersFile, row[3])
			}
		}
	}
	return r.parameters()
}

func (r *reader) parameters() error {
	rows, err := r.rows(parametersFile, parametersHead)
	if err != nil {
		return err
	}
	type place struct {
		stage int
		ref   Ref
	}
	taken := map[place]bool{}
	for _, row := range rows {
		s, err := strconv.Atoi(row[0])
		owner, err2 := strconv.Atoi(row[1])
		if err != nil || err2 != nil || s < -1 || s >= len(r.p.Stages) || owner < -1 || owner > s {
			return fmt.Errorf("%s: %s is on an unknown stage", parametersFile, row[2])
		}
		if s < 0 {
			continue
		}
		sp := StageParam{Param: r.p.Module.Param(row[2]), Owner: owner}
		if sp.Value, err = parseRef(row[7]); err == nil {
			if sp.Accumulators, err = parseRefs(row[8]); err == nil {
				sp.States, err = parseRefs(row[9])
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", parametersFile, row[2], err)
		}
		form := slices.Index(formNames[:], row[6])
		if form < 0 || form > 0 && sp.Param.Type.Rank() != 2 {
			return fmt.Errorf("%s: %s has no such form", parametersFile, row[2])
		}
		sp.Form = Form(form)
		if sp.Shard, err = strconv.Atoi(row[10]); err != nil || sp.Shard < ShardNone || sp.Shard > ShardValue || sp.Shard > ShardNone && !r.p.CanCut(&sp) {
			return fmt.Errorf("%s: %s cannot be shared out", parametersFile, row[2])
		}
		for _, kind := range []struct {
			refs  []Ref
			level int
		}{{[]Ref{sp.Value}, ShardValue}, {sp.Accumulators, ShardGradients}, {sp.States, ShardStates}} {
			want := r.p.Kept(&sp, kind.level)
			for _, ref := range kind.refs {
				if it := r.item(s, ref); it == nil || !it.Type.Equal(want.Type) || it.Form != want.Form {
					return fmt.Errorf("%s: a buffer of %s does not fit", parametersFile, row[2])
				}
				if taken[place{s, ref}] {
					return fmt.Errorf("%s: a buffer of %s is there twice", parametersFile, row[2])
				}
				taken[place{s, ref}] = true
			}
		}
		r.p.Stages[s].Params = append(r.p.Stages[s].Params, sp)
	}
	return nil
}

// item returns the item of a ref, nil if there is none.
func (r *reader) item(stage int, ref Ref) *Item {
	if stage < 0 || stage >= len(r.p.Stages) {
		return nil
	}
	areas := r.p.Stages[stage].Areas
	if ref.Area < 0 || ref.Area >= len(areas) || ref.Item < 0 || ref.Item >= len(areas[ref.Area].Items) {
		return nil
	}
	return &areas[ref.Area].Items[ref.Item]
}
