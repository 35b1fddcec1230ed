package runtime

import (
	"fmt"
	"slices"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/transport"
)

// Output is a result of an infer block as the ranks of a stage have it together: all rows, in order. Array is nil where the
// stage does not have the result, and Missing says why. Array.Data is nil in a process that does not see it: one without the
// rank that puts results together (LossRank), and, of results that are broadcast, one without all ranks of the stage.
type Output struct {
	Name    string
	Array   *data.Array
	Missing string
}

// newOutput describes rows of output k, without its data.
func newOutput(q *plan.Program, k, rows int) data.Array {
	t := q.Outputs[k].Type
	a := data.Array{Name: q.Results[k].Name, DType: data.F32, Shape: slices.Clone(t.Shape)}
	if a.Shape[0] = rows; t.DType == ir.I32 {
		a.DType = data.I32
	}
	return a
}

// allocate gives an array its data.
func allocate(a *data.Array) {
	size := a.DType.Size()
	for _, n := range a.Shape {
		size *= n
	}
	a.Data = make([]byte, size)
}

// openOutputs makes room for what this process sees of the results. describe gives an output's array without its data.
func (r *runner) openOutputs(describe func(k int) data.Array) {
	q := r.plan.Programs[0]
	r.result.Outputs = make([][]Output, r.plan.NumStages)
	for s := range r.result.Outputs {
		for k, o := range q.Outputs {
			out := Output{Name: q.Results[k].Name}
			if _, ok := q.OutputOn(s, k); ok {
				a := describe(k)
				if r.opt.Transport == nil || o.Stage == s && r.join.Holds(LossRank(r.plan)) {
					allocate(&a)
				}
				out.Array = &a
			} else if out.Missing = fmt.Sprintf("stage %d computes it", o.Stage); q.Feedback == nil {
				out.Missing += " and `output_broadcast` is not set"
			}
			r.result.Outputs[s] = append(r.result.Outputs[s], out)
		}
	}
}

// outlet carries what a rank computes of a result to a process that does not have the rank, step by step.
type outlet struct {
	transport.End
	output, replica int
	micros          [][]byte // of a step, one behind the other in message
	message         [][]byte
	posted          uint64
}

// openOutlets opens the queues of the results. id is the first number that no queue has.
func (r *runner) openOutlets(k *rank, id int) {
	q, to := r.plan.Programs[0], LossRank(r.plan)
	for n, o := range q.Outputs {
		for replica := range r.plan.Degree {
			from := o.Stage*r.plan.Degree + replica
			id++
			if from == to || k.number != from && k.number != to || r.join.Holds(from) && r.join.Holds(to) {
				continue
			}
			bytes := o.Type.Bytes()
			message := make([]byte, q.MicroBatches*bytes)
			x := &outlet{output: n, replica: replica, message: [][]byte{message}}
			for m := range q.MicroBatches {
				x.micros = append(x.micros, message[m*bytes:(m+1)*bytes])
			}
			x.End = k.endpoint.End(transport.Queue{ID: id - 1, From: from, To: to, Outstanding: 1, Bytes: len(message)})
			k.outlets = append(k.outlets, x)
		}
	}
}

// deliver brings what the ranks have computed of the results of a step to where they are put together. There put is called, on
// the goroutine of some rank, with the output, the part of the rows and its micro-batches. It waits for nothing but the delivery
// of the step before, and on the rank that results go to for those of this step.
func (r *runner) deliver(k *rank, put func(output, replica int, micros [][]byte)) error {
	p, to := k.programs[0], LossRank(r.plan)
	for i := range p.outputs {
		if o := &p.outputs[i]; p.Outputs[o.value].Stage == k.stage && r.join.Holds(to) {
			put(o.value, k.replica, o.micros)
		}
	}
	for _, x := range k.outlets {
		if k.number != to {
			if err := x.finish(); err != nil {
				return k.during("handing over a result", err)
			}
			for i := range p.outputs {
				if o := &p.outputs[i]; o.value == x.output {
					for m, b := range o.micros {
						copy(x.micros[m], b)
					}
				}
			}
		}
		x.Post(x.message)
		x.posted++
		if k.number == to {
			if err := x.finish(); err != nil {
				return k.during("taking a result", err)
			}
			put(x.output, x.replica, x.micros)
		}
	}
	return nil
}

// finish waits until the last message is where it goes.
func (x *outlet) finish() error {
	if x.posted == 0 {
		return nil
	}
	return x.Wait(x.posted - 1)
}

// delivered waits until everything that this rank has handed over is gone.
func (k *rank) delivered() error {
	for _, x := range k.outlets {
		if err := x.finish(); err != nil {
			return k.during("handing over a result", err)
		}
	}
	return nil
}

// place copies the micro-batches of the rows that one of several ranks has to where they lie in dst.
func place(dst []byte, micros [][]byte, replica, degree int) {
	for m, b := range micros {
		copy(dst[(m*degree+replica)*len(b):], b)
	}
}
