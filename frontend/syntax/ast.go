// Package syntax turns the text of a .pp file into a tree and back: scanner,
// grammar, tree and canonical layout. It knows nothing of what names mean.
package syntax

import (
	"math/big"

	"github.com/ppc-lang/ppc/diag"
)

// File is a parsed source file. Declarations that had syntax errors are left
// out.
type File struct {
	Name    string
	Imports []*Import
	Consts  []*Const
	Cells   []*Cell
	Blocks  []*Block
}

// Import names a file whose cells and constants become visible.
type Import struct {
	At   diag.Range
	Path string
}

// Const is a file-level constant.
type Const struct {
	Name  Ident
	Type  *Type // nil when not given
	Value Expr
}

// Cell is the declaration of a module.
type Cell struct {
	Marks   []Mark
	Name    Ident
	Params  []Param
	Members []Stmt // storage, constructs, loops, conditions, assignments
}

// Block is a train, infer or eval block.
type Block struct {
	At      diag.Range
	Marks   []Mark
	Kind    string
	Name    Ident  // empty text when not given
	Entries []Stmt // inputs, constructs, blocks, assignments
}

// Ident is a name with its place.
type Ident struct {
	At   diag.Range
	Text string
}

// Param is a parameter of a cell or of a construct, or the storage that
// `param` and `buffer` declare.
type Param struct {
	Name    Ident
	Type    *Type // nil when not given
	Default Expr  // nil when not given
}

// Type is a type as written: a word and, for tensors and sequences, the
// values in brackets.
type Type struct {
	At     diag.Range
	Name   string
	Tensor bool // brackets were written
	Shape  []Expr
}

// Mark is an annotation such as @stage(1).
type Mark struct {
	At   diag.Range
	Name string
	Args []Arg
}

// Arg is an argument of a call; Name is empty for a positional one.
type Arg struct {
	Name  Ident
	Value Expr
}

// Stmt is a statement of a construct, a member of a cell or an entry of a
// block; the grammar says which may stand where.
type Stmt interface{ stmt() }

// The statements.
type (
	// Assign gives values to targets; without targets the values are
	// evaluated for their effect.
	Assign struct {
		At      diag.Range
		Targets []Expr
		Values  []Expr
	}
	// Return ends a construct.
	Return struct {
		At     diag.Range
		Values []Expr
	}
	// For repeats its body for each element.
	For struct {
		At   diag.Range
		Vars []Ident
		In   Expr
		Body []Stmt
	}
	// If chooses one of two bodies.
	If struct {
		At         diag.Range
		Cond       Expr
		Then, Else []Stmt
	}
	// Storage declares a parameter or a buffer.
	Storage struct {
		At     diag.Range
		Buffer bool
		Param
	}
	// Construct is the body of a cell or of a block.
	Construct struct {
		At     diag.Range
		Params []Param
		Body   []Stmt
	}
	// Input declares an input of a block.
	Input struct {
		At    diag.Range
		Name  Ident
		Type  *Type
		Marks []Mark
	}
)

func (*Assign) stmt()    {}
func (*Return) stmt()    {}
func (*For) stmt()       {}
func (*If) stmt()        {}
func (*Storage) stmt()   {}
func (*Construct) stmt() {}
func (*Input) stmt()     {}
func (*Block) stmt()     {}

// Expr is an expression.
type Expr interface{ Range() diag.Range }

// place is the source range that every expression carries.
type place struct{ At diag.Range }

// Range is the source of the expression.
func (p place) Range() diag.Range { return p.At }

// The expressions.
type (
	// Name refers to something by its name.
	Name struct {
		place
		Text string
	}
	// Number is an exact number.
	Number struct {
		place
		Value *big.Rat // never changed
	}
	// String is a text.
	String struct {
		place
		Value string
	}
	// List is a sequence.
	List struct {
		place
		Items []Expr
	}
	// Map is a list of pairs; a key is a path or a string.
	Map struct {
		place
		Keys, Values []Expr
	}
	// Call applies a cell, an op or a function.
	Call struct {
		place
		Fn   Expr
		Args []Arg
	}
	// Index takes elements or slices.
	Index struct {
		place
		X     Expr
		Items []Expr
	}
	// Select is x.name or x.3.
	Select struct {
		place
		X    Expr
		Name Ident
	}
	// Unary is "-" or "not".
	Unary struct {
		place
		Op string
		X  Expr
	}
	// Binary is an operator between two operands.
	Binary struct {
		place
		Op    string
		OpAt  diag.Range
		Left  Expr
		Right Expr
	}
	// Span is from..to; either end may be nil.
	Span struct {
		place
		From, To Expr
	}
	// Choice is "then if cond else other".
	Choice struct {
		place
		Then, Cond, Else Expr
	}
	// Steps is a dataset expression: a source and its steps.
	Steps struct {
		place
		List []Expr
	}
	// Marked is an expression with marks.
	Marked struct {
		place
		X     Expr
		Marks []Mark
	}
)
