package plan

import "github.com/ppc-lang/ppc/ir"

// Buffer is a tensor that a cell keeps from one micro-batch to the next. Its name is its path below the network, as for
// parameters; no gradient flows into it.
type Buffer struct {
	Name  string
	Type  ir.Type
	First float64 // of every element
	Pos   ir.Pos
}

// StageBuffer is a buffer and where its stage keeps it. It has one slot, which every program and micro-batch shares, or, in
// a program that generates, one for each micro-batch.
type StageBuffer struct {
	*Buffer
	Ref Ref
}

// Store is a copy from the item with the new value of a buffer to the buffer.
type Store struct{ From, To Ref }
