package runtime

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// exact gives the elements of an array in the type of an input, row-major and little endian: the array's own memory if it has
// that type. Floats become f32, integers i32; a value that does not fit is an error.
func exact(in plan.Input, a data.Array) ([]byte, error) {
	at := diag.At(diag.Pos{File: a.Name})
	switch {
	case in.Type.DType == ir.F32 && a.DType.IsFloat():
		if a.DType == data.F32 {
			return a.Data, nil
		}
		v := make([]float32, a.Elems())
		if err := a.Float32(v); err != nil {
			return nil, diag.List{diag.Errorf(diag.BadValueRange, at, "input `%s`: %v", in.Name, err)}
		}
		out := data.NewFloat32(a.Name, a.Shape, v)
		return out.Data, nil
	case in.Type.DType == ir.I32 && !a.DType.IsFloat():
		if a.DType == data.I32 {
			return a.Data, nil
		}
		out := make([]byte, 0, 4*a.Elems())
		for i := range a.Elems() {
			x := int64(0)
			if a.DType == data.I64 {
				x = int64(binary.LittleEndian.Uint64(a.Data[8*i:]))
			} else {
				x = int64(a.Data[i])
			}
			if x < math.MinInt32 || x > math.MaxInt32 {
				return nil, diag.List{diag.Errorf(diag.BadValueRange, at, "input `%s` is i32, and element %d is %d", in.Name, i, x)}
			}
			out = binary.LittleEndian.AppendUint32(out, uint32(int32(x)))
		}
		return out, nil
	case in.Type.DType == ir.Bool && a.DType == data.U8:
		for i, x := range a.Data {
			if x > 1 {
				return nil, diag.List{diag.Errorf(diag.BadValueRange, at, "input `%s` is bool, and element %d is %d", in.Name, i, x)}
			}
		}
		return a.Data, nil
	}
	return nil, diag.List{diag.Errorf(diag.BadDataFile, at, "input `%s` is %s, the array is %s", in.Name, in.Type.DType, a.DType)}
}

// openInputs takes the inputs of an inference from arrays, one per input of the program, and returns the number of rows.
func (r *runner) openInputs(q *plan.Program) (rows int, err error) {
	if len(r.opt.Inputs) != len(q.Inputs) {
		return 0, badData(diag.BadDataFile, "", "block %s has %d inputs, %d arrays are given", q.Name, len(q.Inputs), len(r.opt.Inputs))
	}
	rows = -1
	for i, in := range q.Inputs {
		a := r.opt.Inputs[i]
		want := in.Type.Shape
		if !in.Whole && len(a.Shape) > 0 {
			want = slices.Concat(a.Shape[:1], in.Type.Shape[1:])
		}
		size := a.DType.Size()
		for _, n := range a.Shape {
			size *= n
		}
		if !slices.Equal(a.Shape, want) || len(a.Data) != size {
			return 0, badData(diag.BadDataFile, a.Name, "input `%s` is %s with any number of rows, the array has the shape %s", in.Name, in.Type, ir.ShapeString(a.Shape))
		}
		if !in.Whole {
			if rows >= 0 && a.Shape[0] != rows {
				return 0, badData(diag.BadDataFile, a.Name, "input `%s` has %d rows, another has %d", in.Name, a.Shape[0], rows)
			}
			rows = a.Shape[0]
		}
		b, err := exact(in, a)
		if err != nil {
			return 0, err
		}
		r.inputs = append(r.inputs, b)
	}
	return rows, nil
}

// put copies the rows of a batch that a rank has, which starts at that row of the arrays, into the input buffers.
func (p *rankProgram) put(inputs [][]byte, row, replica int) {
	for _, in := range p.inputs {
		bytes := in.typ.Bytes()
		at, next := (row/(p.Batch/p.MicroBatches)*p.Degree+replica)*bytes, p.Degree*bytes
		if p.Inputs[in.column].Whole {
			at, next = 0, 0
		}
		for _, b := range in.micros {
			copy(b[:bytes], inputs[in.column][at:])
			at += next
		}
	}
}

// infer runs all rows through the program, batch by batch. Every rank keeps what it has of the results.
func (r *runner) infer(ctx context.Context) error {
	q := r.plan.Programs[0]
	rows := r.rows
	if left := rows % q.Batch; rows == 0 || left > 0 {
		repair := fmt.Sprintf("give %d rows more", q.Batch-left)
		if rows > q.Batch {
			repair = fmt.Sprintf("give %d or %d rows", rows-left, rows-left+q.Batch)
		}
		return diag.List{diag.Errorf(diag.BadDataFile, diag.Range{}, "block %s works on batches of %d rows; %d rows leave %d over", q.Name, q.Batch, rows, left).
			WithRepair("%s", repair)}
	}
	r.result.Rows = rows
	r.openOutputs(func(k int) data.Array { return newOutput(q, k, rows) })
	return r.all(ctx, func(k *rank) error {
		p := k.programs[0]
		for row := 0; row < rows; row += q.Batch {
			if r.dead.Load() {
				return errStopped
			}
			if r.inputs != nil {
				p.put(r.inputs, row, k.replica)
			} else if err := p.load(r.datasets[0], row, k.replica, r.plan.FullBatch); err != nil {
				return err
			}
			k.dev.Step(uint32(row / q.Batch))
			if err := k.run(0); err != nil {
				return err
			}
			take := func(stage, output, replica int, micros [][]byte) {
				a := r.result.Outputs[stage][output].Array
				if len(a.Data) > 0 {
					place(a.Data[row/q.Batch*q.MicroBatches*q.Degree*len(micros[0]):], micros, replica, q.Degree)
				}
			}
			for i := range p.outputs {
				if o := &p.outputs[i]; q.Outputs[o.value].Stage != k.stage { // it has been broadcast
					take(k.stage, o.value, k.replica, o.micros)
				}
			}
			err := r.deliver(k, func(output, replica int, micros [][]byte) {
				take(q.Outputs[output].Stage, output, replica, micros)
			})
			if err != nil {
				return err
			}
		}
		return k.delivered()
	})
}
