package plan

import (
	"slices"

	"github.com/ppc-lang/ppc/ir"
)

// Version is the format of a bundle; reading refuses another one.
const Version = 3

// Plan is a compiled program: for every stage the functions, buffers and actions it needs.
type Plan struct {
	Name         string
	Source       string // base name of the model file
	Module       *ir.Module
	NumStages    int
	Degree       int // ranks per stage: rank r is on stage r / Degree and takes the (r mod Degree)th part of every micro-batch
	Accumulate   int // batches of a step; rows and micro-batches are those of all of them
	MicroBatches int
	Schedule     string
	WLag         int
	Reduction    string
	Seed         uint32
	Target       string // chip, or "none"
	Epochs       int
	Optimizer    *Optimizer // nil when nothing is trained
	Clip         Clip
	LossScale    *LossScale // nil for none
	ShardSize    int        // consecutive ranks of a stage that share parameters out; 1 for none
	GradientsSum bool       // see Spec
	FullBatch    bool
	Programs     []*Program // [0] is the block itself, then its evaluations
	Stages       []*Stage
	Memory       []*Memory // [0] is the cpu device, then the target
	Predicted    Prediction
}

// Prediction is what the simulator found with the target's cost table.
type Prediction struct {
	Makespan float64   // seconds of a step
	Bubble   float64   // 1 - busy / (ranks x makespan)
	Busy     []float64 // seconds of compute per stage
}

// Program is one pass over a batch: training, inference, evaluation, or the evaluation of a single leftover row.
type Program struct {
	Name  string
	Train bool
	Infer bool // Outputs are tensors whose axis 0 is the rows of a micro-batch; otherwise they are scalars
	Batch int  // rows of the global batch
	// Degree is how many ranks of a stage have rows, the first ones: each Batch / MicroBatches / Degree of a micro-batch. The others
	// run the program only where values are shared out, since they have parts of them.
	Degree       int
	MicroBatches int
	Inputs       []Input
	Results      []Result
	// Outputs says where the values of the results lie, one slot per micro-batch: all of Entry's, ratios twice.
	Outputs  []Output
	Dataset  *Dataset
	Chunks   []*Chunk
	Messages []*Message
	Shared   []*SharedMessage // once per step
	Actions  [][]Action       // per stage
	// Feedback says that the program generates: Actions are those of a round. nil for other programs.
	Feedback *Feedback
	// Rest is the index in Plan.Programs of the program for one leftover row, -1 for none (rows are then dropped).
	Rest int
}

// Output is a result value of the program: the stage that computes it and its buffer there.
type Output struct {
	Stage int
	Type  ir.Type
	Ref   Ref
	Fold  Fold
}

// Fold says how a value of a whole micro-batch comes from those of the ranks of a stage, each of which has a part of the rows.
type Fold uint8

// The folds.
const (
	Whole    Fold = iota // every rank has the value
	ByRows               // the parts follow each other on axis 0, in rank order
	Summed               // the sum over the ranks
	Averaged             // the mean over the ranks
)

var foldNames = [...]string{"whole", "rows", "sum", "mean"}

func (f Fold) String() string { return foldNames[f] }

// Chunk is a part of a program on one stage. Chunks are numbered along the data; every stage has equally many, of which
// some may be empty.
type Chunk struct {
	ID    int
	Stage int
	Cells []string // instance paths, for people
	Flops float64  // of a step, all micro-batches
	// Phases by ir.Pass: forward, input gradient, weight gradient. Evaluation has the first only; a phase without
	// operations has a nil Func.
	Phases [3]Phase
	// Stores are the copies behind the forward pass of a micro-batch: new values of buffers.
	Stores []Store
}

// Empty reports whether the chunk has nothing to do.
func (c *Chunk) Empty() bool {
	return c.Phases[0].Func == nil && c.Phases[1].Func == nil && c.Phases[2].Func == nil
}

// Phase is a function and where its arguments and results lie in the stage's areas. Parameters are read by the function
// itself (Func.ParamReads) and lie where Stage.Params says.
type Phase struct {
	Func    *ir.Func
	Args    []Ref
	Results []Ref
}

// Ref is an item of an area of the stage.
type Ref struct{ Area, Item int }

// OutputOn tells where a stage has output k once the program has run: where it computes it, or where a result message
// brings it. ok is false if the stage never has it.
func (q *Program) OutputOn(stage, k int) (ref Ref, ok bool) {
	o := &q.Outputs[k]
	if o.Stage == stage {
		return o.Ref, true
	}
	for _, m := range q.Messages {
		if !m.Result || q.Chunks[m.From].Stage != o.Stage || q.Chunks[m.To].Stage != stage {
			continue
		}
		for _, t := range m.Tensors {
			if t.From == o.Ref {
				return t.To, true
			}
		}
	}
	return Ref{Area: -1, Item: -1}, false
}

// Message carries all boundary tensors from one chunk to another for one micro-batch and direction.
type Message struct {
	ID       int
	From, To int  // chunks
	Backward bool // gradients
	// Result marks outputs of the program on their way to a stage that does not compute them. Both sides keep them in areas with
	// a slot per micro-batch, and nothing waits for them but the end of the program.
	Result bool
	// Token marks what Program.Feedback sends. Both sides have a slot per micro-batch.
	Token   bool
	Tensors []Tensor
	// Window is the reuse distance on the sending side: the send of micro-batch i must be complete before the action
	// that makes that of micro-batch i+Window starts.
	Window int
}

// Tensor is a boundary: one value and where both sides keep it. Both sides derive what they do from this object.
type Tensor struct {
	Name     string
	Type     ir.Type
	From, To Ref
}

// SharedMessage carries what a parameter on several stages needs once per step: the gradients of its reads to the owner,
// or the updated value from it.
type SharedMessage struct {
	ID       int
	From, To int // stages
	Value    bool
	Tensors  []Tensor
}

// Sent tells which items a stage sends from. They live until they have left, also where their lifetime ends before.
func (q *Program) Sent(stage int) map[Ref]bool {
	out := map[Ref]bool{}
	for _, m := range q.Messages {
		if q.Chunks[m.From].Stage != stage {
			continue
		}
		for _, t := range m.Tensors {
			out[t.From] = true
		}
	}
	return out
}

// Bytes of the message.
func (m *Message) Bytes() int {
	n := 0
	for _, t := range m.Tensors {
		n += t.Type.Bytes()
	}
	return n
}

// ActionKind is what a rank does next.
type ActionKind uint8

// The actions.
const (
	Forward ActionKind = iota
	InputGrad
	WeightGrad
	SendForward
	RecvForward
	SendBackward
	RecvBackward
	Update   // end of step: fold gradients, run the optimizer
	SendGrad // gradients of shared parameters, to their owner
	RecvGrad
	SendParam // updated shared parameters, from their owner
	RecvParam
	SendResult // outputs, to a stage that does not compute them
	RecvResult
	SendToken // the input of the next pass
	RecvToken
	Reduce // gradients folded over reads are summed over the ranks of the stage, in rank order
	Gather // parameters whose update ranks have shared out
	Norm   // the ranks of all stages with the same part of the rows tell each other the sums of squares of their gradients
)

var actionNames = [...]string{"F", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UPDATE", "SEND_G", "RECV_G", "SEND_P", "RECV_P", "SEND_R", "RECV_R", "SEND_T", "RECV_T", "REDUCE", "GATHER", "NORM"}

func (k ActionKind) String() string { return actionNames[k] }

// IsCompute reports whether the action runs in the compute queue.
func (k ActionKind) IsCompute() bool {
	return k <= WeightGrad || k.IsEnd()
}

// IsEnd reports whether the action belongs to the end of a step and to no chunk; messages of shared parameters do too.
func (k ActionKind) IsEnd() bool { return k == Update || k == Reduce || k == Norm || k == Gather }

// IsSend and IsRecv report the direction of a transfer.
func (k ActionKind) IsSend() bool {
	return k == SendForward || k == SendBackward || k == SendGrad || k == SendParam || k == SendResult || k == SendToken
}

// IsRecv reports whether the action receives a message.
func (k ActionKind) IsRecv() bool {
	return k == RecvForward || k == RecvBackward || k == RecvGrad || k == RecvParam || k == RecvResult || k == RecvToken
}

// IsShared reports whether the action is about a message of Program.Shared.
func (k ActionKind) IsShared() bool { return k >= SendGrad && k <= RecvParam }

// Action is an element of a rank's program.
type Action struct {
	Kind    ActionKind
	Chunk   int // -1 for Reduce, Norm, Update, Gather and shared messages
	Micro   int
	Message int // index in Program.Messages, or in Program.Shared; -1 for compute
	Peer    int // stage at the other end; -1 for compute
}

// Class of memory.
type Class string

// The classes, in the order they are printed.
const (
	Parameters Class = "parameters"
	Gradients  Class = "gradients"
	OptState   Class = "optimizer"
	States     Class = "state"
	InputsOf   Class = "inputs"
	Saved      Class = "saved"
	Boundary   Class = "boundary"
	Outputs    Class = "outputs"
	Scratch    Class = "scratch"
	Private    Class = "private"
)

// Classes in the order they are printed.
var Classes = []Class{Parameters, Gradients, OptState, States, InputsOf, Saved, Boundary, Outputs, Scratch, Private}

// Lifetime of the areas of a chunk: from the first action to the last that touches a slot.
type Lifetime uint8

// The lifetimes. Static areas live for the whole run; the others are pools of slots, slot = micro-batch mod Slots.
const (
	Static    Lifetime = iota
	PerMicro           // one slot per micro-batch (inputs and results)
	RecvToF            // received, dead after F
	FToSend            // made by F, dead when sent
	SavedForI          // received or made by F, dead after I
	SavedForW          // received or made by F, dead after W
	RecvToI            // received gradient, dead after I
	IToSend            // made by I, dead when sent
	GradForW           // received gradient or made by I, dead after W
	Lent               // received or made by a chunk, dead after the last pass of any chunk of the stage that reads it
	Stored             // made by F, dead when it has been copied to a buffer right behind
	Loaded             // inputs: read from the data before the first pass of the stage that reads them, dead after the last
)

var lifetimeNames = [...]string{"static", "per_micro", "recv_f", "send_f", "saved_i", "saved_w", "recv_b", "send_b", "grad_w", "lent", "stored", "loaded"}

// Touched tells which actions of a program write and read the items of an area of a stage. It is how long values live that
// several chunks share. What is loaded is written where it is read first, so whatever reads it may write it.
func (p *Plan) Touched(q *Program, stage, area int) (writes, reads func(Action) bool) {
	in := func(refs []Ref) bool {
		return slices.ContainsFunc(refs, func(r Ref) bool { return r.Area == area })
	}
	written, read := make([][3]bool, len(q.Chunks)), make([][3]bool, len(q.Chunks))
	for c, ch := range q.Chunks {
		for pass := range ch.Phases {
			if ch.Stage == stage {
				written[c][pass], read[c][pass] = in(ch.Phases[pass].Results), in(ch.Phases[pass].Args)
			}
		}
	}
	received := make([]bool, len(q.Messages))
	for i, m := range q.Messages {
		received[i] = q.Chunks[m.To].Stage == stage && slices.ContainsFunc(m.Tensors, func(t Tensor) bool { return t.To.Area == area })
	}
	writes = func(a Action) bool {
		if a.Kind <= WeightGrad {
			return written[a.Chunk][a.Kind]
		}
		return a.Kind.IsRecv() && !a.Kind.IsShared() && received[a.Message]
	}
	reads = func(a Action) bool { return a.Kind <= WeightGrad && read[a.Chunk][a.Kind] }
	if p.Stages[stage].Areas[area].Lifetime == Loaded {
		return reads, reads
	}
	return writes, reads
}

func (l Lifetime) String() string { return lifetimeNames[l] }

// Area is a pool of equal slots, each with all items.
type Area struct {
	Class    Class
	Lifetime Lifetime
	Program  int // -1 for static areas
	Chunk    int // -1 where it belongs to the stage
	Slots    int
	Items    []Item
}

// Item is a buffer of an area.
type Item struct {
	Name string
	Type ir.Type
	// Form says how a matrix that is only used as the right side of products may be kept: KN is [inner, columns],
	// NK its transpose, Rows anything else. A device may keep KN and NK in packed form.
	Form Form
}

// Form of a parameter as an operand.
type Form uint8

// The forms.
const (
	Rows Form = iota
	KN
	NK
)

// Stage is what a stage keeps.
type Stage struct {
	Areas  []Area
	Params []StageParam
	// Buffers of cells that the stage keeps.
	Buffers []StageBuffer
	// Seed is the gradient of the loss of a micro-batch: 1, or 1/M under `mean`; Item -1 without training.
	Seed Ref
	// Workspace is where ranks that share out gradients or values have one whole at a time; Item -1 if there are none.
	Workspace Ref
	// Inputs is, per program and input, where the stage keeps it (one slot per micro-batch); Item -1 if it has no use for it.
	Inputs [][]Ref
}

// StageParam is a parameter of a stage with its buffers. Accumulators has one entry per read of the parameter, in
// program order; it is empty for parameters that are not trained. States are those of the optimizer.
type StageParam struct {
	Param *ir.Param
	// Owner is the stage that folds the gradients and updates the parameter, the lowest that reads it. Its Accumulators are
	// those of all reads; another stage has those of its own.
	Owner        int
	Value        Ref
	Accumulators []Ref
	States       []Ref
	// Form is that of the whole value, which Accumulators have too. A part is elements of it, one after the other.
	Form Form
	// Shard is what each rank of a group of Plan.ShardSize has a part of only: ShardNone to ShardValue.
	Shard int
}

// Memory is the layout of every stage's areas on one kind of device. All numbers are bytes.
type Memory struct {
	Device string
	Stages []StageMemory
}

// StageMemory places the items of a stage. The address of an item is the base of its area, plus slot x SlotBytes, plus
// its offset.
type StageMemory struct {
	SlotBytes []int   // per area
	Offsets   [][]int // per area and item
	Frames    []Frame // of every function the stage calls, callees first
	Scratch   int     // largest frame of a phase
	Private   int     // kernel workspaces
	ByClass   []int   // as Classes
	Peak      int     // sum
}

// Frame places the values of a function that are neither arguments, parameters nor results (nor share their buffers)
// relative to the base the caller gives.
type Frame struct {
	Func    *ir.Func
	Offsets []int // by value; -1 where the value has no place in the frame
	Calls   []int // by operation: where the frame of the callee starts
	Bytes   int
}

// Rounds reports whether the batches of a step run one behind the other, each in a round of its own.
func (p *Plan) Rounds() bool { return p.Accumulate > 1 && p.Schedule == "gpipe" }

// NeedsNorm reports whether the gradients of a step are looked at before the update.
func (p *Plan) NeedsNorm() bool { return p.Clip.Norm > 0 || p.LossScale != nil }

// Count adds bytes to a class and the peak.
func (m *StageMemory) Count(c Class, bytes int) {
	for i, k := range Classes {
		if k == c {
			m.ByClass[i] += bytes
		}
	}
	m.Peak += bytes
}
