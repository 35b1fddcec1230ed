package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"

	"github.com/ppc-lang/ppc/ir"
)

// File is a file of a bundle: its path below the bundle's folder, with slashes, and its content.
type File struct {
	Path    string
	Content []byte
}

// The files of a bundle beside those of the stages.
const (
	planFile       = "plan.yaml"
	parametersFile = "parameters.csv"
	boundariesFile = "boundaries.csv"
	sharedFile     = "shared.csv"
	statesFile     = "states.csv"
	buffersFile    = "buffers.csv"
	framesFile     = "frames.csv"
	optimizerFile  = "optimizer.ir"
	scheduleFile   = "schedule.csv"
)

// The documents of plan.yaml. Refs are written area:item, lists of them separated by spaces.
type (
	planDoc struct {
		Version      int               `yaml:"version"`
		Name         string            `yaml:"name"`
		Source       string            `yaml:"source"`
		Module       string            `yaml:"module"`
		Stages       int               `yaml:"stages"`
		Degree       int               `yaml:"degree"`
		Accumulate   int               `yaml:"accumulate,omitempty"` // from 2 on
		MicroBatches int               `yaml:"micro_batches"`
		Schedule     string            `yaml:"schedule"`
		WLag         int               `yaml:"w_lag"`
		Reduction    string            `yaml:"reduction"`
		Seed         uint32            `yaml:"seed"`
		Target       string            `yaml:"target"`
		Epochs       int               `yaml:"epochs"`
		Predicted    predictionDoc     `yaml:"predicted"`
		Optimizer    *optimizerDoc     `yaml:"optimizer,omitempty"`
		Programs     []programDoc      `yaml:"programs"`
		StageList    []stageDoc        `yaml:"stage_list"`
		Memory       []memoryDoc       `yaml:"memory"`
		Clip         Clip              `yaml:"clip,omitempty"`
		LossScale    *LossScale        `yaml:"loss_scale,omitempty"`
		ShardSize    int               `yaml:"shard_size"`
		Axes         []Axis            `yaml:"axes"` // for people: they follow from the above
		GradientsSum bool              `yaml:"gradients_sum,omitempty"`
		FullBatch    bool              `yaml:"full_batch,omitempty"`
		Hashes       map[string]string `yaml:"hashes"` // yaml sorts the keys
	}
	predictionDoc struct {
		Makespan float64   `yaml:"makespan_s"`
		Bubble   float64   `yaml:"bubble"`
		Busy     []float64 `yaml:"busy_s,flow"`
	}
	optimizerDoc struct {
		Name    string   `yaml:"name"`
		Func    string   `yaml:"func"`
		States  []State  `yaml:"states,omitempty"`
		Scalars []Scalar `yaml:"scalars,omitempty"`
		Groups  []Group  `yaml:"groups,omitempty"`
	}
	programDoc struct {
		Name         string     `yaml:"name"`
		Train        bool       `yaml:"train"`
		Infer        bool       `yaml:"infer,omitempty"`
		Batch        int        `yaml:"batch"`
		Degree       int        `yaml:"degree"`
		MicroBatches int        `yaml:"micro_batches"`
		Rest         int        `yaml:"rest"`
		Inputs       []inputDoc `yaml:"inputs"`
		Results      []Result   `yaml:"results"`
		Outputs      []string   `yaml:"outputs,flow"` // stage type ref fold
		Dataset      *Dataset   `yaml:"dataset,omitempty"`
		Feedback     *Feedback  `yaml:"feedback,omitempty"`
		Chunks       []chunkDoc `yaml:"chunks"`
	}
	inputDoc struct {
		Name  string `yaml:"name"`
		Type  string `yaml:"type"`
		Whole bool   `yaml:"whole,omitempty"`
	}
	chunkDoc struct {
		Stage  int        `yaml:"stage"`
		Cells  []string   `yaml:"cells,flow"`
		Flops  float64    `yaml:"flops"`
		Phases []phaseDoc `yaml:"phases"`
		Stores string     `yaml:"stores,omitempty"` // from and to, alternating
	}
	phaseDoc struct {
		Func    string `yaml:"func"` // "" for a pass without operations
		Args    string `yaml:"args,omitempty"`
		Results string `yaml:"results,omitempty"`
	}
	stageDoc struct {
		Seed      string    `yaml:"seed"`
		Workspace string    `yaml:"workspace"`
		Inputs    []string  `yaml:"inputs"` // per program
		Areas     []areaDoc `yaml:"areas"`
	}
	areaDoc struct {
		Class    Class  `yaml:"class"`
		Lifetime string `yaml:"lifetime"`
		Program  int    `yaml:"program"`
		Chunk    int    `yaml:"chunk"`
		Slots    int    `yaml:"slots"`
	}
	memoryDoc struct {
		Device string           `yaml:"device"`
		Stages []stageMemoryDoc `yaml:"stages"`
	}
	stageMemoryDoc struct {
		Peak      int   `yaml:"peak_bytes"`
		ByClass   []int `yaml:"by_class,flow"`
		Scratch   int   `yaml:"scratch"`
		Private   int   `yaml:"private"`
		SlotBytes []int `yaml:"slot_bytes,flow"`
	}
)

// Files gives the bundle of a plan in memory, in a fixed order; extra are the files of the code generator. The same plan
// gives the same bytes.
func Files(p *Plan, extra []File) ([]File, error) {
	type part struct {
		path  string
		write func() []byte
	}
	parts := []part{
		{parametersFile, func() []byte { return parameterTable(p) }},
		{boundariesFile, func() []byte { return boundaryTable(p) }},
		{sharedFile, func() []byte { return sharedTable(p) }},
		{statesFile, func() []byte { return stateTable(p) }},
		{buffersFile, func() []byte { return bufferTable(p) }},
		{framesFile, func() []byte { return frameTable(p) }},
		{scheduleFile, func() []byte { return scheduleTable(p) }},
	}
	if p.Optimizer != nil {
		m := ir.NewModule("optimizer")
		m.Funcs = []*ir.Func{p.Optimizer.Func}
		parts = append(parts, part{optimizerFile, func() []byte { return []byte(m.String()) }})
	}
	for s := range p.Stages {
		parts = append(parts,
			part{stageFile(s, "program.ir"), func() []byte { return []byte(stageProgram(p, s)) }},
			part{stageFile(s, "actions.csv"), func() []byte { return actionTable(p, s) }})
	}
	files := make([]File, len(parts), len(parts)+len(extra)+1)
	var writing sync.WaitGroup
	for i, x := range parts {
		writing.Go(func() { files[i] = File{x.path, x.write()} })
	}
	writing.Wait()
	files = append(files, extra...)
	sort.Slice(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	doc := document(p)
	doc.Hashes = map[string]string{}
	for _, f := range files {
		sum := sha256.Sum256(f.Content)
		doc.Hashes[f.Path] = hex.EncodeToString(sum[:])
	}
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return nil, err
	}
	return append(files, File{planFile, buf.Bytes()}), nil
}

// looksLikeBundle says whether a folder may be replaced: plan.yaml is a name that others use too, so one of the tables must
// stand beside it. A damaged bundle is still one.
func looksLikeBundle(dir string) bool {
	has := func(name string) bool {
		st, err := os.Stat(filepath.Join(dir, name))
		return err == nil && st.Mode().IsRegular()
	}
	return has(planFile) && (has(parametersFile) || has(boundariesFile) || has(buffersFile) || has(framesFile))
}

// Write stores a bundle: it is written beside dir and renamed. An existing folder is replaced only if it is a bundle.
func Write(dir string, p *Plan, extra []File) error {
	files, err := Files(p, extra)
	if err != nil {
		return err
	}
	dir = filepath.Clean(dir)
	if _, err := os.Lstat(dir); err == nil {
		if !looksLikeBundle(dir) {
			return errors.New("something that is no bundle has this name; it is left as it is")
		}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, f := range files {
		name := filepath.Join(tmp, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			return err
		}
		mode := os.FileMode(0o666)
		if strings.HasSuffix(f.Path, ".sh") {
			mode = 0o777
		}
		if err := os.WriteFile(name, f.Content, mode); err != nil {
			return err
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(dir); err == nil {
		old := tmp + ".old"
		if err := os.Rename(dir, old); err != nil {
			return err
		}
		if err := os.Rename(tmp, dir); err != nil {
			os.Rename(old, dir)
			return err
		}
		return os.RemoveAll(old)
	}
	return os.Rename(tmp, dir)
}

func stageFile(s int, name string) string { return fmt.Sprintf("stage%d/%s", s, name) }

func (r Ref) String() string { return strconv.Itoa(r.Area) + ":" + strconv.Itoa(r.Item) }

func refs(list []Ref) string {
	var b []byte
	for i, r := range list {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, int64(r.Area), 10)
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(r.Item), 10)
	}
	return string(b)
}

func document(p *Plan) *planDoc {
	d := &planDoc{
		Version: Version, Name: p.Name, Source: p.Source, Module: p.Module.Name, Stages: p.NumStages, Degree: p.Degree, MicroBatches: p.MicroBatches, Schedule: p.Schedule,
		WLag: p.WLag, Reduction: p.Reduction, Seed: p.Seed, Target: p.Target, Epochs: p.Epochs, Clip: p.Clip, LossScale: p.LossScale, ShardSize: p.ShardSize, Axes: p.Axes(), GradientsSum: p.GradientsSum, FullBatch: p.FullBatch,
		Predicted: predictionDoc{p.Predicted.Makespan, p.Predicted.Bubble, p.Predicted.Busy},
	}
	if p.Accumulate > 1 {
		d.Accumulate = p.Accumulate
	}
	if o := p.Optimizer; o != nil {
		d.Optimizer = &optimizerDoc{o.Name, o.Func.Name, o.States, o.Scalars, o.Groups}
	}
	for _, q := range p.Programs {
		x := programDoc{Name: q.Name, Train: q.Train, Infer: q.Infer, Batch: q.Batch, Degree: q.Degree, MicroBatches: q.MicroBatches, Rest: q.Rest, Results: q.Results, Dataset: q.Dataset, Feedback: q.Feedback}
		for _, in := range q.Inputs {
			x.Inputs = append(x.Inputs, inputDoc{in.Name, in.Type.String(), in.Whole})
		}
		for _, o := range q.Outputs {
			x.Outputs = append(x.Outputs, fmt.Sprintf("%d %s %s %s", o.Stage, o.Type, o.Ref, o.Fold))
		}
		for _, c := range q.Chunks {
			y := chunkDoc{Stage: c.Stage, Cells: c.Cells, Flops: c.Flops}
			for _, ph := range c.Phases {
				z := phaseDoc{Args: refs(ph.Args), Results: refs(ph.Results)}
				if ph.Func != nil {
					z.Func = ph.Func.Name
				}
				y.Phases = append(y.Phases, z)
			}
			var stores []Ref
			for _, s := range c.Stores {
				stores = append(stores, s.From, s.To)
			}
			y.Stores = refs(stores)
			x.Chunks = append(x.Chunks, y)
		}
		d.Programs = append(d.Programs, x)
	}
	for _, st := range p.Stages {
		x := stageDoc{Seed: st.Seed.String(), Workspace: st.Workspace.String()}
		for _, in := range st.Inputs {
			x.Inputs = append(x.Inputs, refs(in))
		}
		for _, a := range st.Areas {
			x.Areas = append(x.Areas, areaDoc{a.Class, a.Lifetime.String(), a.Program, a.Chunk, a.Slots})
		}
		d.StageList = append(d.StageList, x)
	}
	for _, m := range p.Memory {
		x := memoryDoc{Device: m.Device}
		for _, s := range m.Stages {
			x.Stages = append(x.Stages, stageMemoryDoc{s.Peak, s.ByClass, s.Scratch, s.Private, s.SlotBytes})
		}
		d.Memory = append(d.Memory, x)
	}
	return d
}

// table collects the rows of a CSV file.
type table struct {
	buf bytes.Buffer
	w   *csv.Writer
}

func newTable(head ...string) *table {
	t := &table{}
	t.w = csv.NewWriter(&t.buf)
	t.w.Write(head)
	return t
}

func (t *table) row(cells ...any) {
	s := make([]string, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case string:
			s[i] = c
		case int:
			s[i] = strconv.Itoa(c)
		default:
			s[i] = fmt.Sprint(c)
		}
	}
	t.w.Write(s)
}

func (t *table) bytes() []byte {
	t.w.Flush()
	return t.buf.Bytes()
}

var (
	sharedHead     = []string{"program", "message", "from_stage", "to_stage", "carries", "name", "type", "from", "to"}
	statesHead     = []string{"stage", "name", "type", "first", "place"}
	parametersHead = []string{"stage", "owner", "name", "type", "initialiser", "arguments", "form", "value", "accumulators", "states", "shared_out"}
	boundariesHead = []string{"program", "message", "from_chunk", "to_chunk", "direction", "window", "name", "type", "from", "to"}
	buffersHead    = []string{"stage", "area", "item", "name", "type", "form", "offsets"}
	framesHead     = []string{"device", "stage", "function", "bytes", "offsets", "calls"}
	actionsHead    = []string{"program", "op", "chunk", "micro", "peer", "message"}
)

func parameterTable(p *Plan) []byte {
	t := newTable(parametersHead...)
	index := map[*ir.Param][][]any{}
	for s, st := range p.Stages {
		for _, sp := range st.Params {
			index[sp.Param] = append(index[sp.Param], []any{s, sp.Owner, formNames[sp.Form], sp.Value.String(), refs(sp.Accumulators), refs(sp.States), sp.Shard})
		}
	}
	for _, q := range p.Module.Params {
		args := make([]string, len(q.Init.Args))
		for i, a := range q.Init.Args {
			args[i] = strconv.FormatFloat(a, 'g', -1, 64)
		}
		places := index[q]
		if len(places) == 0 {
			places = [][]any{{-1, -1, "", "", "", "", 0}}
		}
		for _, at := range places {
			t.row(at[0], at[1], q.Name, q.Type.String(), q.Init.Kind, strings.Join(args, " "), at[2], at[3], at[4], at[5], at[6])
		}
	}
	return t.bytes()
}

// stateTable lists the buffers of cells.
func stateTable(p *Plan) []byte {
	t := newTable(statesHead...)
	for s, st := range p.Stages {
		for _, b := range st.Buffers {
			t.row(s, b.Name, b.Type.String(), strconv.FormatFloat(b.First, 'g', -1, 64), b.Ref.String())
		}
	}
	return t.bytes()
}

func sharedTable(p *Plan) []byte {
	t := newTable(sharedHead...)
	for i, q := range p.Programs {
		for _, m := range q.Shared {
			carries := "gradient"
			if m.Value {
				carries = "value"
			}
			for _, x := range m.Tensors {
				t.row(i, m.ID, m.From, m.To, carries, x.Name, x.Type.String(), x.From.String(), x.To.String())
			}
		}
	}
	return t.bytes()
}

func boundaryTable(p *Plan) []byte {
	t := newTable(boundariesHead...)
	for i, q := range p.Programs {
		for _, m := range q.Messages {
			direction := "F"
			switch {
			case m.Backward:
				direction = "B"
			case m.Result:
				direction = "R"
			case m.Token:
				direction = "T"
			}
			for _, x := range m.Tensors {
				t.row(i, m.ID, m.From, m.To, direction, m.Window, x.Name, x.Type.String(), x.From.String(), x.To.String())
			}
		}
	}
	return t.bytes()
}

var formNames = [...]string{"rows", "kn", "nk"}

func bufferTable(p *Plan) []byte {
	t := newTable(buffersHead...)
	for s, st := range p.Stages {
		for a, area := range st.Areas {
			for i, it := range area.Items {
				offsets := make([]string, len(p.Memory))
				for k, m := range p.Memory {
					offsets[k] = strconv.Itoa(m.Stages[s].Offsets[a][i])
				}
				t.row(s, a, i, it.Name, it.Type.String(), formNames[it.Form], strings.Join(offsets, " "))
			}
		}
	}
	return t.bytes()
}

func ints(list []int) string {
	var b []byte
	for i, x := range list {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, int64(x), 10)
	}
	return string(b)
}

func frameTable(p *Plan) []byte {
	t := newTable(framesHead...)
	for k, m := range p.Memory {
		for s, sm := range m.Stages {
			for _, f := range sm.Frames {
				t.row(k, s, f.Func.Name, f.Bytes, ints(f.InProgramOrder()), ints(f.CallsInOrder()))
			}
		}
	}
	return t.bytes()
}

// InProgramOrder lists the offsets of the results of all operations, as the text form names them.
func (f *Frame) InProgramOrder() []int {
	var out []int
	for _, op := range f.Func.Ops {
		for _, r := range op.Results {
			out = append(out, f.Offsets[r])
		}
	}
	return out
}

// CallsInOrder lists the frame offsets of the calls in program order.
func (f *Frame) CallsInOrder() []int {
	var out []int
	for _, op := range f.Func.Ops {
		if op.Callee != nil {
			out = append(out, f.Calls[op.ID])
		}
	}
	return out
}

func actionTable(p *Plan, stage int) []byte {
	t := newTable(actionsHead...)
	for i, q := range p.Programs {
		for _, a := range q.Actions[stage] {
			t.row(i, a.Kind.String(), a.Chunk, a.Micro, a.Peer, a.Message)
		}
	}
	return t.bytes()
}

// scheduleTable is the block's schedule in PyTorch's notation: one row per rank; what is a stage there is a chunk here; B for
// an I directly followed by its W.
func scheduleTable(p *Plan) []byte {
	var buf bytes.Buffer
	w := csv.NewWriter(&buf)
	for _, list := range p.Programs[0].Actions {
		var row []string
		for i := 0; i < len(list); i++ {
			a := list[i]
			if !a.Kind.IsCompute() || a.Kind == Update {
				continue
			}
			name := a.Kind.String()
			if a.Kind == InputGrad {
				for j := i + 1; j < len(list) && (list[j].Kind.IsSend() || list[j].Kind == WeightGrad); j++ {
					if list[j].Kind == WeightGrad {
						name, i = "B", j
						break
					}
				}
			}
			row = append(row, fmt.Sprintf("%d%s%d", a.Chunk, name, a.Micro))
		}
		w.Write(row)
	}
	w.Flush()
	return buf.Bytes()
}

// stageProgram is the IR of a stage: the parameters it keeps and the functions of its chunks.
func stageProgram(p *Plan, stage int) string {
	m := ir.NewModule(p.Module.Name)
	for _, sp := range p.Stages[stage].Params {
		m.Params = append(m.Params, sp.Param)
	}
	for _, q := range p.Programs {
		for _, c := range q.Chunks {
			if c.Stage != stage {
				continue
			}
			for _, ph := range c.Phases {
				if ph.Func != nil {
					m.Funcs = append(m.Funcs, ph.Func)
				}
			}
		}
	}
	return m.String()
}
