package plan

import (
	"slices"

	"github.com/ppc-lang/ppc/ir"
)

// Feedback makes a program generate. Every row of its input is a request; it runs in rounds, in each of which every
// micro-batch makes one pass, and the input of a pass is a result of the pass before. Micro-batches have buffers of their
// own, which start anew with new requests. Messages marked Token bring the result to other stages that read the input: what
// is sent in a round is received in the next. A request whose prompt is not used up takes its token from there instead.
type Feedback struct {
	Input  int // in Program.Inputs: i32[rows]
	Output int // in Program.Outputs, of the same type
	// Limit is one more than the largest token that the program can look up, 0 if it does not tell. Passes is how many a
	// request may make, 0 for any number.
	Limit  int
	Passes int
}

// Reader is the first chunk of a stage that reads an item in its forward pass. If none does, because the item is a result
// as it is, the first chunk that has one stands for it; -1 means that the stage has no pass.
func (q *Program) Reader(stage int, ref Ref) int {
	first := -1
	for _, c := range q.Chunks {
		if c.Stage != stage || c.Phases[ir.ForwardPass].Func == nil {
			continue
		}
		if slices.Contains(c.Phases[ir.ForwardPass].Args, ref) {
			return c.ID
		}
		if first < 0 {
			first = c.ID
		}
	}
	return first
}
