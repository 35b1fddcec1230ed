package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ppc-lang/ppc/ir"
)

func (r *reader) programs() error {
	for i, d := range r.doc.Programs {
		if d.Batch < 1 || d.MicroBatches < 1 || d.MicroBatches > maxMicro || d.Batch%d.MicroBatches != 0 || d.Rest >= len(r.doc.Programs) || d.Rest < -1 {
			return fmt.Errorf("%s: program %s is malformed", planFile, d.Name)
		}
		if d.Train && (i > 0 || r.p.Optimizer == nil) || d.Rest >= 0 && (d.Train || d.Rest != i+1) {
			return fmt.Errorf("%s: program %s is malformed", planFile, d.Name)
		}
		if d.Infer && (d.Train || i > 0 || d.Rest >= 0 || d.Degree != r.p.Degree) {
			return fmt.Errorf("%s: program %s is malformed", planFile, d.Name)
		}
		q := &Program{Name: d.Name, Train: d.Train, Infer: d.Infer, Batch: d.Batch, Degree: d.Degree, MicroBatches: d.MicroBatches, Rest: d.Rest, Results: d.Results, Dataset: d.Dataset, Feedback: d.Feedback}
		if q.Degree != 1 && q.Degree != r.p.Degree || d.MicroBatches < 1 || d.Batch%(d.MicroBatches*q.Degree) != 0 {
			return fmt.Errorf("%s: the %d rows of program %s cannot be shared out", planFile, d.Batch, d.Name)
		}
		for _, in := range d.Inputs {
			t, err := ir.ParseType(in.Type)
			if err != nil {
				return fmt.Errorf("%s: input %s: %w", planFile, in.Name, err)
			}
			if t.Rank() == 0 || !in.Whole && t.Shape[0] != d.Batch {
				return fmt.Errorf("%s: input %s is %s, the batch has %d rows", planFile, in.Name, t, d.Batch)
			}
			q.Inputs = append(q.Inputs, Input{Name: in.Name, Type: t, Whole: in.Whole})
		}
		for _, o := range d.Outputs {
			f := strings.Fields(o)
			if len(f) != 4 {
				return fmt.Errorf("%s: output %q is malformed", planFile, o)
			}
			s, err := strconv.Atoi(f[0])
			t, err2 := ir.ParseType(f[1])
			ref, err3 := parseRef(f[2])
			fold := slices.Index(foldNames[:], f[3])
			if err != nil || err2 != nil || err3 != nil || fold < 0 || !r.holds(s, ref, t) || !fitsOutput(t, q) || r.p.Stages[s].Areas[ref.Area].Slots != d.MicroBatches || d.Infer && d.Degree > 1 && Fold(fold) != ByRows {
				return fmt.Errorf("%s: output %q is malformed", planFile, o)
			}
			q.Outputs = append(q.Outputs, Output{s, t, ref, Fold(fold)})
		}
		values := 0
		for _, res := range d.Results {
			values++
			if res.Ratio && d.Infer {
				return fmt.Errorf("%s: result %s of an infer block is a ratio", planFile, res.Name)
			}
			if res.Ratio {
				values++
			}
		}
		if values != len(q.Outputs) || values == 0 {
			return fmt.Errorf("%s: the outputs of %s do not fit its results", planFile, d.Name)
		}
		if !fitsFeedback(q) {
			return fmt.Errorf("%s: the feedback of %s does not fit its inputs and results", planFile, d.Name)
		}
		for c, cd := range d.Chunks {
			if cd.Stage < 0 || cd.Stage >= r.doc.Stages || len(cd.Phases) != 3 {
				return fmt.Errorf("%s: chunk %d of %s is malformed", planFile, c, d.Name)
			}
			chunk := &Chunk{ID: c, Stage: cd.Stage, Cells: cd.Cells, Flops: cd.Flops}
			for k, ph := range cd.Phases {
				var err error
				if chunk.Phases[k], err = r.phase(cd.Stage, ir.Pass(k), ph); err != nil {
					return fmt.Errorf("%s: chunk %d of %s: %w", planFile, c, d.Name, err)
				}
			}
			if err := r.stores(chunk, cd.Stores); err != nil {
				return fmt.Errorf("%s: chunk %d of %s: %w", planFile, c, d.Name, err)
			}
			q.Chunks = append(q.Chunks, chunk)
		}
		for s, st := range r.p.Stages {
			if len(st.Inputs[i]) != len(q.Inputs) {
				return fmt.Errorf("%s: inputs of stage %d do not fit %s", planFile, s, d.Name)
			}
			for k, ref := range st.Inputs[i] {
				if ref.Item >= 0 && (r.item(s, ref) == nil || st.Areas[ref.Area].Slots != q.MicroBatches || !fitsInput(r.item(s, ref).Type, q, k)) {
					return fmt.Errorf("%s: inputs of stage %d do not fit %s", planFile, s, d.Name)
				}
			}
		}
		r.p.Programs = append(r.p.Programs, q)
	}
	for i, q := range r.p.Programs {
		if q.Rest >= 0 {
			rest := r.p.Programs[q.Rest]
			if rest.Batch != 1 || rest.Rest >= 0 || len(rest.Outputs) != len(q.Outputs) || len(rest.Inputs) != len(q.Inputs) {
				return fmt.Errorf("%s: program %s does not fit the rows that program %d leaves over", planFile, rest.Name, i)
			}
		}
	}
	return nil
}

// fitsFeedback reports whether a program can feed a result back: its only input and the result have a token for each row.
func fitsFeedback(q *Program) bool {
	fb := q.Feedback
	if fb == nil {
		return true
	}
	if !q.Infer || len(q.Inputs) != 1 || fb.Input != 0 || fb.Output < 0 || fb.Output >= len(q.Outputs) || fb.Limit < 0 || fb.Passes < 0 || q.Dataset != nil {
		return false
	}
	in, out := q.Inputs[0], q.Outputs[fb.Output].Type
	return !in.Whole && in.Type.DType == ir.I32 && in.Type.Rank() == 1 && out.DType == ir.I32 && out.Rank() == 1
}

// fitsOutput reports whether a result of a program may have that type.
func fitsOutput(t ir.Type, q *Program) bool {
	if q.Infer {
		return (t.DType == ir.F32 || t.DType == ir.I32) && t.Rank() > 0 && t.Shape[0] == q.Batch/q.MicroBatches/q.Degree
	}
	return t.DType == ir.F32 && t.Rank() == 0
}

// fitsInput reports whether a buffer of that type holds a micro-batch of input k.
func fitsInput(t ir.Type, q *Program, k int) bool {
	in := q.Inputs[k]
	n := in.Type.Elems()
	if !in.Whole {
		n /= q.MicroBatches * q.Degree
	}
	return t.DType == in.Type.DType && t.Elems() == n
}

// holds reports whether there is an item that keeps a value of that type.
func (r *reader) holds(stage int, ref Ref, t ir.Type) bool {
	it := r.item(stage, ref)
	return it != nil && it.Type.DType == t.DType && it.Type.Elems() == t.Elems()
}

// phase reads the function of a pass and its places. A weight pass writes over accumulators, of which a rank may have a part.
func (r *reader) phase(stage int, pass ir.Pass, d phaseDoc) (Phase, error) {
	var ph Phase
	if d.Func == "" {
		return ph, nil
	}
	if ph.Func = r.p.Module.Func(d.Func); ph.Func == nil {
		return ph, fmt.Errorf("unknown function %s", d.Func)
	}
	var err error
	if ph.Args, err = parseRefs(d.Args); err != nil {
		return ph, err
	}
	if ph.Results, err = parseRefs(d.Results); err != nil {
		return ph, err
	}
	parted := r.p.Stages[stage].PartedGradients()
	fits := func(refs []Ref, values []ir.ValueID) bool {
		if len(refs) != len(values) {
			return false
		}
		for i, ref := range refs {
			t := ph.Func.TypeOf(values[i])
			if pass == ir.WeightPass {
				if sp := parted[ref]; sp != nil && sp.Param.Type.Equal(t) {
					continue
				}
			}
			if !r.holds(stage, ref, t) {
				return false
			}
		}
		return true
	}
	if !fits(ph.Args, ph.Func.Args) || !fits(ph.Results, ph.Func.Results) {
		return ph, fmt.Errorf("buffers do not fit function %s", d.Func)
	}
	return ph, nil
}

func (r *reader) messages() error {
	rows, err := r.rows(boundariesFile, boundariesHead)
	if err != nil {
		return err
	}
	for _, row := range rows {
		n, err := parseInts(strings.Join([]string{row[0], row[1], row[2], row[3], row[5]}, " "))
		if err != nil || len(n) != 5 || n[0] < 0 || n[0] >= len(r.p.Programs) {
			return fmt.Errorf("%s: a row is malformed", boundariesFile)
		}
		q := r.p.Programs[n[0]]
		if n[1] == len(q.Messages) {
			q.Messages = append(q.Messages, &Message{ID: n[1], From: n[2], To: n[3], Backward: row[4] == "B", Result: row[4] == "R", Token: row[4] == "T", Window: n[4]})
		}
		if n[1] < 0 || n[1] != len(q.Messages)-1 {
			return fmt.Errorf("%s: message %d is out of order", boundariesFile, n[1])
		}
		m := q.Messages[n[1]]
		if m.From != n[2] || m.To != n[3] || m.Backward != (row[4] == "B") || m.Result != (row[4] == "R") || m.Token != (row[4] == "T") || m.Window != n[4] || n[2] < 0 || n[3] < 0 || n[2] >= len(q.Chunks) || n[3] >= len(q.Chunks) || m.Window < 1 {
			return fmt.Errorf("%s: message %d is malformed", boundariesFile, n[1])
		}
		t, err := ir.ParseType(row[7])
		from, err2 := parseRef(row[8])
		to, err3 := parseRef(row[9])
		if err != nil || err2 != nil || err3 != nil {
			return fmt.Errorf("%s: boundary %s is malformed", boundariesFile, row[6])
		}
		sender, receiver := q.Chunks[m.From].Stage, q.Chunks[m.To].Stage
		if (m.Result || m.Token) && (!q.Infer || m.Window != q.MicroBatches) || m.Token && q.Feedback == nil {
			return fmt.Errorf("%s: result %s is malformed", boundariesFile, row[6])
		}
		if !r.holds(sender, from, t) || !r.holds(receiver, to, t) || m.Window > r.p.Stages[sender].Areas[from.Area].Slots {
			return fmt.Errorf("%s: boundary %s does not fit its buffers", boundariesFile, row[6])
		}
		m.Tensors = append(m.Tensors, Tensor{Name: row[6], Type: t, From: from, To: to})
	}
	return nil
}

func (r *reader) shared() error {
	rows, err := r.rows(sharedFile, sharedHead)
	if err != nil {
		return err
	}
	for _, row := range rows {
		n, err := parseInts(strings.Join(row[:4], " "))
		if err != nil || len(n) != 4 || n[0] < 0 || n[0] >= len(r.p.Programs) {
			return fmt.Errorf("%s: a row is malformed", sharedFile)
		}
		q := r.p.Programs[n[0]]
		if n[1] == len(q.Shared) {
			q.Shared = append(q.Shared, &SharedMessage{ID: n[1], From: n[2], To: n[3], Value: row[4] == "value"})
		}
		if n[1] != len(q.Shared)-1 {
			return fmt.Errorf("%s: message %d is out of order", sharedFile, n[1])
		}
		m := q.Shared[n[1]]
		t, err := ir.ParseType(row[6])
		from, err2 := parseRef(row[7])
		to, err3 := parseRef(row[8])
		if err != nil || err2 != nil || err3 != nil || m.From != n[2] || m.To != n[3] || m.Value != (row[4] == "value") {
			return fmt.Errorf("%s: %s is malformed", sharedFile, row[5])
		}
		a, b := r.item(m.From, from), r.item(m.To, to)
		if a == nil || b == nil || !a.Type.Equal(t) || !b.Type.Equal(t) || a.Form != b.Form {
			return fmt.Errorf("%s: %s does not fit its buffers", sharedFile, row[5])
		}
		m.Tensors = append(m.Tensors, Tensor{Name: row[5], Type: t, From: from, To: to})
	}
	return nil
}

func (r *reader) actions() error {
	for _, q := range r.p.Programs {
		if len(q.Chunks) == 0 {
			return fmt.Errorf("%s: program %s has no chunk", planFile, q.Name)
		}
		q.Actions = make([][]Action, r.doc.Stages)
	}
	for s := range r.doc.Stages {
		name := stageFile(s, "actions.csv")
		rows, err := r.rows(name, actionsHead)
		if err != nil {
			return err
		}
		for i, row := range rows {
			n, err := parseInts(row[0] + " " + strings.Join(row[2:], " "))
			kind := slices.Index(actionNames[:], row[1])
			if err != nil || len(n) != 5 || kind < 0 || n[0] < 0 || n[0] >= len(r.p.Programs) {
				return fmt.Errorf("%s: row %d is malformed", name, i+2)
			}
			q := r.p.Programs[n[0]]
			a := Action{Kind: ActionKind(kind), Chunk: n[1], Micro: n[2], Peer: n[3], Message: n[4]}
			messages := len(q.Messages)
			if a.Kind.IsShared() {
				messages = len(q.Shared)
			}
			ok := a.Micro >= 0 && a.Micro < q.MicroBatches && a.Chunk >= -1 && a.Chunk < len(q.Chunks) && a.Message < messages
			ok = ok && (a.Kind.IsEnd() || a.Kind.IsShared()) == (a.Chunk < 0) && a.Kind.IsCompute() == (a.Message < 0)
			if !ok || a.Chunk >= 0 && q.Chunks[a.Chunk].Stage != s {
				return fmt.Errorf("%s: row %d is out of bounds", name, i+2)
			}
			if a.Peer != q.peer(a) {
				return fmt.Errorf("%s: row %d has another peer than its message", name, i+2)
			}
			q.Actions[s] = append(q.Actions[s], a)
		}
	}
	return nil
}

// peer is the stage at the other end of an action's message; -1 without one.
func (q *Program) peer(a Action) int {
	from, to := -1, -1
	switch {
	case a.Message < 0:
	case a.Kind.IsShared():
		from, to = q.Shared[a.Message].From, q.Shared[a.Message].To
	default:
		m := q.Messages[a.Message]
		from, to = q.Chunks[m.From].Stage, q.Chunks[m.To].Stage
	}
	if a.Kind.IsRecv() {
		return from
	}
	return to
}

// check compares the seed and the workspaces with their buffers, and what the areas add up to with the classes and the peak.
func (r *reader) check() error {
	for s, st := range r.p.Stages {
		if st.Seed.Item >= 0 && !r.holds(s, st.Seed, ir.Type{DType: ir.F32}) {
			return fmt.Errorf("%s: the seed of stage %d has no place", planFile, s)
		}
		if n := r.p.WorkspaceElems(s); n > 0 && !r.holds(s, st.Workspace, ir.Tensor(ir.F32, n)) || n == 0 && st.Workspace.Item >= 0 {
			return fmt.Errorf("%s: the workspace of stage %d does not fit", planFile, s)
		}
	}
	for _, m := range r.p.Memory {
		for s, sm := range m.Stages {
			sum := StageMemory{ByClass: make([]int, len(Classes))}
			for a, n := range sm.SlotBytes {
				area := &r.p.Stages[s].Areas[a]
				sum.Count(area.Class, n*area.Slots)
			}
			sum.Count(Scratch, sm.Scratch)
			sum.Count(Private, sm.Private)
			if sum.Peak != sm.Peak || !slices.Equal(sum.ByClass, sm.ByClass) {
				return fmt.Errorf("the areas of stage %d on %s take %d bytes, the plan says %d", s, m.Device, sum.Peak, sm.Peak)
			}
		}
	}
	return nil
}
