package ir

import (
	"fmt"

	"github.com/ppc-lang/ppc/diag"
)

// Pos is a position in a source file.
type Pos = diag.Pos

// Dense identities. Values and operations are numbered per function from 1; 0 is none.
type (
	ValueID int32
	OpID    int32
	ScopeID int32
)

// Init says how a parameter gets its first values.
type Init struct {
	Kind string // zeros, ones, constant, normal, uniform, he_uniform, xavier_uniform
	Args []float64
}

// Param is a trained tensor of the module. Its name is its path below the network; names are identity.
type Param struct {
	Name   string
	Type   Type
	Init   Init
	Frozen bool // no gradient, no update
	Pos    Pos
	index  int
}

// Index is the place of the parameter in Module.Params (declaration order).
func (p *Param) Index() int { return p.index }

// Module is a unit of compilation. Funcs[0] need not be the entry; callers hold the functions they need.
type Module struct {
	Name   string
	Params []*Param
	Funcs  []*Func
	params map[string]*Param
	funcs  map[string]*Func
}

// NewModule returns an empty module.
func NewModule(name string) *Module {
	return &Module{Name: name, params: map[string]*Param{}, funcs: map[string]*Func{}}
}

// AddParam adds a parameter; its name must be new.
func (m *Module) AddParam(p *Param) *Param {
	if m.params[p.Name] != nil {
		panic("ir: parameter " + p.Name + " twice")
	}
	p.index = len(m.Params)
	m.Params = append(m.Params, p)
	m.params[p.Name] = p
	return p
}

// Param returns the parameter of that name, or nil.
func (m *Module) Param(name string) *Param { return m.params[name] }

// Func returns the function of that name, or nil.
func (m *Module) Func(name string) *Func { return m.funcs[name] }

// NewFunc adds an empty function. A name that is taken gets a number: Dense, Dense.1, Dense.2.
func (m *Module) NewFunc(name string) *Func {
	base := name
	for i := 1; m.funcs[name] != nil; i++ {
		name = fmt.Sprintf("%s.%d", base, i)
	}
	f := &Func{Name: name, Module: m, scopes: []Scope{{}}}
	f.values.add(Value{}) // id 0 is none
	m.Funcs = append(m.Funcs, f)
	m.funcs[name] = f
	return f
}

// Scope is a call path inside a function: operations that came from a call that was inlined stay together.
// Scope 0 is the function's own body.
type Scope struct {
	Parent ScopeID
	Name   string // instance name of the call
	Call   int    // distinguishes two calls of one instance: the place of the call among the scopes
}

// Value is an argument, a parameter read or a result of an operation.
type Value struct {
	Type  Type
	Op    *Op    // defining operation, nil for arguments and parameters
	Index int    // result or argument index
	Param *Param // for parameter reads
	Name  string // arguments only
}

// At says where an operation comes from.
type At struct {
	Pos      Pos
	Stage    int    // stage mark; -1 when unmarked
	Segment  int    // segment mark; -1 when unmarked
	Instance string // calls: member name of the called cell below the caller's
	Scope    ScopeID
	Chunk    int // set by partition; -1 before
	Pass     Pass
	Forward  OpID // gradient operations: the forward operation this one belongs to; 0 for folds of gradients
}

// Pass says which part of a training step an operation belongs to; autodiff sets it.
type Pass uint8

// The passes of a micro-batch over a chunk. B of the schedules is InputPass, then WeightPass.
const (
	ForwardPass Pass = iota // F
	InputPass               // I: gradients of activations, and all that the accumulations read
	WeightPass              // W: accumulations of parameter gradients, nothing else
)

func (p Pass) String() string { return "FIW"[p : p+1] }

// Unmarked is the At of an operation without marks.
func Unmarked(p Pos) At { return At{Pos: p, Stage: -1, Segment: -1, Chunk: -1} }

// Op is one operation. Args and Results are changed by Func's methods only.
type Op struct {
	ID      OpID
	Kind    Kind
	Args    []ValueID
	Results []ValueID
	Attrs   Attrs
	Callee  *Func // calls only
	At
}

// Func is a function: arguments, operations in program order, results.
type Func struct {
	Name    string
	Module  *Module
	Args    []ValueID
	Ops     []*Op
	Results []ValueID

	// LazyInline is set for cells that carry the mark, and Front for those that it asks to inline before anything else.
	LazyInline, Front bool

	values values
	scopes []Scope
	params map[*Param]ValueID
	order  []ValueID // parameter reads in first-read order
	lastOp OpID
}

// values are the records of a function, by ValueID, in blocks: a function of many values grows without being copied.
type values struct {
	blocks [][]Value
	count  int
}

const valuesPerBlock = 256

func (s *values) add(v Value) ValueID {
	if s.count%valuesPerBlock == 0 {
		// Small functions are many: the first block grows as it is filled.
		size := valuesPerBlock
		if s.count == 0 {
			size = 16
		}
		s.blocks = append(s.blocks, make([]Value, 0, size))
	}
	last := &s.blocks[len(s.blocks)-1]
	*last = append(*last, v)
	s.count++
	return ValueID(s.count - 1)
}

func (s *values) at(v ValueID) *Value { return &s.blocks[v/valuesPerBlock][v%valuesPerBlock] }

// NumValues bounds the value ids: every id is below it. Side tables are slices of this length.
func (f *Func) NumValues() int { return f.values.count }

// NumOps bounds the operation ids.
func (f *Func) NumOps() int { return int(f.lastOp) + 1 }

// Value returns the record of v; the pointer stays valid only until the next value is made.
func (f *Func) Value(v ValueID) *Value { return f.values.at(v) }

// TrimArgs removes the arguments that nothing reads and returns the old indices of those that stay.
func (f *Func) TrimArgs() []int {
	read := make([]bool, f.values.count)
	for _, op := range f.Ops {
		for _, a := range op.Args {
			read[a] = true
		}
	}
	for _, r := range f.Results {
		read[r] = true
	}
	var args []ValueID
	var kept []int
	for i, a := range f.Args {
		if read[a] {
			f.values.at(a).Index = len(args)
			args = append(args, a)
			kept = append(kept, i)
		}
	}
	f.Args = args
	return kept
}

// TypeOf returns the type of v.
func (f *Func) TypeOf(v ValueID) Type { return f.values.at(v).Type }

// Scopes returns the scope table; index 0 is the function's own body.
func (f *Func) Scopes() []Scope { return f.scopes }

// AddScope adds a scope below parent.
func (f *Func) AddScope(parent ScopeID, name string) ScopeID {
	f.scopes = append(f.scopes, Scope{Parent: parent, Name: name, Call: len(f.scopes)})
	return ScopeID(len(f.scopes) - 1)
}

// Path is the chain of instances an operation was written in, below the network and inside f. It is the same whether the
// calls on the way are inlined or not.
func (f *Func) Path(op *Op) string {
	path := op.Instance
	for s := op.Scope; s > 0; s = f.scopes[s].Parent {
		if n := f.scopes[s].Name; n != "network" {
			path = JoinPath(n, path)
		}
	}
	return path
}

// JoinPath joins two instance paths, either of which may be empty.
func JoinPath(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "." + b
}

func (f *Func) newValue(v Value) ValueID {
	return f.values.add(v)
}

// AddArg adds an argument.
func (f *Func) AddArg(name string, t Type) ValueID {
	v := f.newValue(Value{Type: t, Index: len(f.Args), Name: name})
	f.Args = append(f.Args, v)
	return v
}

// ReadParam returns the value of a module parameter. Only entry functions use it; cells get parameters as arguments.
func (f *Func) ReadParam(p *Param) ValueID {
	if v, ok := f.params[p]; ok {
		return v
	}
	if f.params == nil {
		f.params = map[*Param]ValueID{}
	}
	v := f.newValue(Value{Type: p.Type, Param: p})
	f.params[p] = v
	f.order = append(f.order, v)
	return v
}

// ParamReads returns the parameter values of the function in first-read order.
func (f *Func) ParamReads() []ValueID { return f.order }

// Emit appends an operation and infers its result types from the table. The error is for users.
func (f *Func) Emit(kind Kind, args []ValueID, attrs Attrs, at At) ([]ValueID, error) {
	types := make([]Type, len(args))
	for i, a := range args {
		types[i] = f.values.at(a).Type
	}
	info := kind.Info()
	attrs = sortAttrs(attrs)
	if err := checkOperands(info, types, attrs); err != nil {
		return nil, err
	}
	out, err := info.Infer(types, attrs)
	if err != nil {
		return nil, err
	}
	return f.append(kind, args, attrs, nil, at, out), nil
}

// MustEmit is Emit for passes whose operands are known to fit; it panics otherwise. It returns the only result.
func (f *Func) MustEmit(kind Kind, args []ValueID, attrs Attrs, at At) ValueID {
	r, err := f.Emit(kind, args, attrs, at)
	if err != nil {
		panic(fmt.Sprintf("ir: %s in %s: %v", kind, f.Name, err))
	}
	if len(r) == 0 {
		return 0
	}
	return r[0]
}

// Call appends a call.
func (f *Func) Call(callee *Func, args []ValueID, at At) []ValueID {
	if len(args) != len(callee.Args) {
		panic(fmt.Sprintf("ir: call of %s with %d arguments, wants %d", callee.Name, len(args), len(callee.Args)))
	}
	out := make([]Type, len(callee.Results))
	for i, r := range callee.Results {
		out[i] = callee.values.at(r).Type
	}
	return f.append(Call, args, nil, callee, at, out)
}

func (f *Func) append(kind Kind, args []ValueID, attrs Attrs, callee *Func, at At, out []Type) []ValueID {
	f.lastOp++
	ids := make([]ValueID, len(args)+len(out))
	op := &Op{ID: f.lastOp, Kind: kind, Args: ids[:len(args):len(args)], Results: ids[len(args):], Attrs: attrs, Callee: callee, At: at}
	copy(op.Args, args)
	for i, t := range out {
		op.Results[i] = f.newValue(Value{Type: t, Op: op, Index: i})
	}
	f.Ops = append(f.Ops, op)
	return op.Results
}

// Return sets the results.
func (f *Func) Return(vs ...ValueID) { f.Results = append([]ValueID(nil), vs...) }

// Uses returns, per value, the operations that read it, in program order; an operation stands once per operand.
// It is computed anew: passes that build functions call it once on a finished function.
func (f *Func) Uses() [][]Use {
	count := make([]int, f.values.count)
	total := 0
	for _, op := range f.Ops {
		for _, a := range op.Args {
			count[a]++
			total++
		}
	}
	backing := make([]Use, 0, total)
	uses := make([][]Use, f.values.count)
	for v, n := range count {
		if n > 0 {
			start := len(backing)
			backing = backing[:start+n]
			uses[v] = backing[start : start : start+n]
		}
	}
	for place, op := range f.Ops {
		for i, a := range op.Args {
			uses[a] = append(uses[a], Use{op, i, place})
		}
	}
	return uses
}

// Constants tells, per value, whether it depends on constants only: such values are computed again where they are needed,
// never kept for the gradient or sent. What depends on the values in except does not count.
func (f *Func) Constants(except ...ValueID) []bool {
	out, not := make([]bool, f.values.count), make([]bool, f.values.count)
	for _, v := range except {
		not[v] = true
	}
	for _, op := range f.Ops {
		if op.Callee != nil || op.Kind.Info().Effect || len(op.Results) == 0 {
			continue
		}
		only := true
		for _, a := range op.Args {
			only = only && out[a]
		}
		for _, r := range op.Results {
			out[r] = only && !not[r]
		}
	}
	return out
}

// Use is one operand of one operation.
type Use struct {
	Op      *Op
	Operand int
	Place   int // index of Op in Func.Ops
}
