package runtime

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/checkpoint"
)

// Checkpoint says where the state of a training is kept; see package checkpoint. The zero value keeps nothing.
type Checkpoint struct {
	// Dir gets a checkpoint after the last step and, if Every is positive, after every so many steps. It may hold checkpoints
	// before only if the run resumes from the last of them.
	Dir   string
	Every int
	Keep  int // checkpoints that stay in Dir, the last ones; 0: all
	// Resume is a folder of checkpoints, whose highest complete one the run goes on from, or one of them; "" for none.
	Resume string
	// Preempt, when it is closed, ends a training with Dir early: it saves behind a step, the same on all ranks, and Run gives
	// *Preempted. It is enough to close that of one rank; nil on one rank must be nil on all. Behind the training it ends the
	// run like a context.
	Preempt <-chan struct{}
	// Held says that another process of this run has locked Dir, and cleans it: see checkpoint.Store.
	Held bool
}

// due reports whether there is a checkpoint after that many steps of a training.
func (c *Checkpoint) due(steps, total int) bool {
	return c.Dir != "" && (steps == total || c.Every > 0 && steps%c.Every == 0)
}

func (c *Checkpoint) store() *checkpoint.Store { return &checkpoint.Store{Dir: c.Dir, Keep: c.Keep} }

// openCheckpoint finds the checkpoint to go on from and prepares the folder for others.
func (r *runner) openCheckpoint() error {
	c := &r.opt.Checkpoint
	if *c == (Checkpoint{}) {
		return nil
	}
	q := r.plan.Programs[0]
	if !q.Train {
		return fmt.Errorf("block %s does not train: it has no checkpoints", q.Name)
	}
	if err := distinctNames(r.plan); err != nil {
		return err
	}
	if c.Resume != "" {
		var err error
		if r.resumed, err = checkpoint.Find(c.Resume, r.opt.Notice); err != nil {
			return err
		}
		if err := r.fitsPlan(); err != nil {
			return err
		}
		r.first = r.resumed.Step
		if r.opt.Notice != nil {
			left := "nothing is left to train"
			if r.first < r.total {
				left = fmt.Sprintf("%d steps are left", r.total-r.first)
			}
			r.opt.Notice(fmt.Sprintf("goes on from %s: %s", r.resumed.Path, left))
		}
	}
	if c.Dir == "" {
		return nil
	}
	if err := c.store().Prepare(); err != nil {
		return err
	}
	if !c.Held {
		var err error
		if r.lock, err = c.store().Lock(r.opt.Notice); err != nil {
			return err
		}
	}
	if err := r.mayAdd(c); err != nil {
		return err
	}
	return r.cleanCheckpoints()
}

// cleanCheckpoints removes what is half-written, if that is for this process to do.
func (r *runner) cleanCheckpoints() error {
	if r.opt.Checkpoint.Dir == "" || r.opt.Checkpoint.Held {
		return nil
	}
	return r.opt.Checkpoint.store().Clean()
}

// mayAdd refuses a folder with checkpoints of another run: which one is the last would not be clear.
func (r *runner) mayAdd(c *Checkpoint) error {
	steps, err := checkpoint.Steps(c.Dir)
	if err != nil || len(steps) == 0 {
		return err
	}
	same := func(path string) bool {
		a, errA := os.Stat(path)
		b, errB := os.Stat(c.Dir)
		return errA == nil && errB == nil && os.SameFile(a, b)
	}
	if c.Resume != "" && (same(c.Resume) || same(filepath.Dir(filepath.Clean(c.Resume))) && steps[0] <= r.first) {
		return nil
	}
	return diag.List{diag.Errorf(diag.BadCheckpoint, diag.At(diag.Pos{File: c.Dir}), "the folder holds a checkpoint after step %d already, which this run does not go on from", steps[0]).
		WithRepair("-resume %s goes on from it; or give another folder", c.Dir)}
}

// distinctNames holds that no two tensors of a checkpoint have one name.
func distinctNames(p *plan.Plan) error {
	seen := map[string]bool{}
	for s := range p.Stages {
		for _, t := range tensorsOf(p, s) {
			if seen[t.Name] {
				return diag.List{diag.Errorf(diag.DuplicateName, diag.Range{}, "a parameter has the name `%s`, which another tensor has in checkpoints", t.Name).
					WithRepair("give its cell another name")}
			}
			seen[t.Name] = true
		}
	}
	return nil
}

// saved is a tensor of a checkpoint and where its stage has it.
type saved struct {
	data.Tensor
	param  int // index into Stage.Params; -1 for a buffer
	state  int // index into StageParam.States; -1 for the value
	buffer int // index into Stage.Buffers
}

// tensorsOf lists what a stage writes, which is what it owns: values, then state by state, then buffers.
func tensorsOf(p *plan.Plan, stage int) (list []saved) {
	st := p.Stages[stage]
	for i, sp := range st.Params {
		if sp.Owner == stage {
			list = append(list, saved{data.Tensor{Name: sp.Param.Name, DType: data.F32, Shape: sp.Param.Type.Shape}, i, -1, -1})
		}
	}
	for k, name := range stateNames(p) {
		for i, sp := range st.Params {
			if sp.Owner == stage && len(sp.States) > 0 {
				list = append(list, saved{data.Tensor{Name: checkpoint.StateName(name, sp.Param.Name), DType: data.F32, Shape: sp.Param.Type.Shape}, i, k, -1})
			}
		}
	}
	for i, b := range st.Buffers {
		list = append(list, saved{data.Tensor{Name: checkpoint.BufferName(b.Name), DType: bufferType(b.Type), Shape: b.Type.Shape}, -1, -1, i})
	}
	return list
}

func stageFile(stage int) string { return fmt.Sprintf("stage-%d.safetensors", stage) }

// checkpointValues is how many numbers the ranks of a pipeline tell each other about a file: its hash, 32 bits each, and its size.
const checkpointValues = 9

// save writes what this rank owns to the checkpoint after that many steps. All ranks call it at the same step: the first one of
// every stage writes, those that share states with it give it their parts, and the first stage commits when all have written.
func (r *runner) save(k *rank, step int) error {
	if k.replica >= r.plan.ShardSize {
		return nil
	}
	list := tensorsOf(r.plan, k.stage)
	if k.replica > 0 {
		for _, t := range list {
			if t.param < 0 || !shared(&r.plan.Stages[k.stage].Params[t.param], t) {
				continue
			}
			if _, err := k.elements(t); err != nil {
				return err
			}
		}
		k.buffer = nil
		return nil
	}
	tensors := make([]data.Tensor, len(list))
	for i, t := range list {
		tensors[i] = t.Tensor
	}
	store := r.opt.Checkpoint.store()
	file, err := store.Write(step, stageFile(k.stage), tensors, func(i int) ([]byte, error) {
		return k.elements(list[i])
	})
	k.buffer = nil
	if err != nil {
		return err
	}
	hash, err := hex.DecodeString(file.SHA256)
	if err != nil {
		return err
	}
	var own []float64
	for i := 0; i < len(hash); i += 4 {
		own = append(own, float64(binary.BigEndian.Uint32(hash[i:])))
	}
	all, err := k.column.Gather(append(own, float64(file.Bytes)))
	if err != nil {
		return k.during("saving a checkpoint", err)
	}
	if k.stage == r.plan.Programs[0].Outputs[0].Stage {
		r.result.Checkpoint = store.Path(step) // if the run ends well
	}
	if k.stage > 0 {
		return nil
	}
	x := r.index(k, step)
	for s, v := range all {
		var hash []byte
		for _, word := range v[:len(v)-1] {
			hash = binary.BigEndian.AppendUint32(hash, uint32(word))
		}
		x.Files = append(x.Files, checkpoint.File{Name: stageFile(s), Bytes: int64(v[len(v)-1]), SHA256: hex.EncodeToString(hash)})
	}
	return store.Commit(x)
}

// shared reports whether ranks have parts of a tensor of a checkpoint.
func shared(sp *plan.StageParam, t saved) bool {
	return t.state < 0 && sp.Shard >= plan.ShardValue || t.state >= 0 && sp.Shard >= plan.ShardStates
}

// elements are those of a tensor of a checkpoint, row-major and little endian, until the next call. Ranks put together what they
// share out, one tensor at a time.
func (k *rank) elements(t saved) ([]byte, error) {
	st := k.plan.Stages[k.stage]
	if t.param < 0 {
		b := &st.Buffers[t.buffer]
		return k.dev.Buffer(b.Ref, 0)[:b.Type.Bytes()], nil
	}
	v := k.dense(st.Params[t.param].Param.Type.Elems())
	if t.state < 0 {
		return raw(v), k.value(t.param, v)
	}
	return raw(v), k.stateOf(t, v)
}

// dense is memory for the elements of one parameter, row-major, until it is asked for again: beside what it keeps, a rank has no
// more than one parameter.
func (k *rank) dense(n int) []float32 {
	if k.buffer == nil {
		most := 0
		for _, sp := range k.plan.Stages[k.stage].Params {
			most = max(most, sp.Param.Type.Elems())
		}
		k.buffer = make([]float32, most) // at once: what it would grow out of would be garbage beside it
	}
	return k.buffer[:n]
}

// value copies a parameter of the stage, row-major. All ranks of a group that share it out call it.
func (k *rank) value(i int, v []float32) error {
	return k.during("gathering what is shared out", k.dev.Param(i, v))
}

// stateOf copies one of the optimizer's states, row-major.
func (k *rank) stateOf(t saved, v []float32) error {
	sp := &k.plan.Stages[k.stage].Params[t.param]
	packed := floats(k.dev.Buffer(sp.States[t.state], 0))
	if shared(sp, t) {
		part := packed
		packed = make([]float32, sp.Elems())
		lo, hi := k.plan.Part(len(packed), k.replica)
		copy(packed[lo:hi], part)
		if err := k.during("gathering what is shared out", k.gatherParts(packed)); err != nil {
			return err
		}
	}
	return k.dev.Unpack(t.param, v, packed)
}

// index describes the state after that many steps, without the files.
func (r *runner) index(k *rank, step int) *checkpoint.Index {
	q := r.plan.Programs[0]
	x := &checkpoint.Index{
		Model: r.plan.Name, Step: step, Seed: r.opt.Seed, Updates: k.applied, Parameters: []checkpoint.Entry{}, Buffers: []checkpoint.Entry{},
		Data:      checkpoint.Position{Epoch: step / r.perEpoch, Row: step % r.perEpoch * q.Batch, Batch: q.Batch, Rows: r.datasets[0].Rows()},
		Optimizer: checkpoint.Optimizer{Name: r.plan.Optimizer.Name, States: stateNames(r.plan)},
	}
	if r.plan.LossScale != nil {
		x.LossScale = &checkpoint.LossScale{Scale: k.scale, GoodSteps: k.good}
	}
	for s, st := range r.plan.Stages {
		for _, sp := range st.Params {
			if sp.Owner == s {
				x.Parameters = append(x.Parameters, checkpoint.Entry{Name: sp.Param.Name, DType: data.F32.String(), Shape: shapeOf(sp.Param.Type), File: stageFile(s), Trained: len(sp.Accumulators) > 0})
			}
		}
		for _, b := range st.Buffers {
			x.Buffers = append(x.Buffers, checkpoint.Entry{Name: b.Name, DType: bufferType(b.Type).String(), Shape: shapeOf(b.Type), File: stageFile(s)})
		}
	}
	return x
}

// shapeOf is never nil, which JSON would show as null.
func shapeOf(t ir.Type) []int { return append([]int{}, t.Shape...) }

func stateNames(p *plan.Plan) []string {
	names := []string{}
	for _, s := range p.Optimizer.States {
		names = append(names, s.Name)
	}
	return names
}
