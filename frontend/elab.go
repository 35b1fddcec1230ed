package frontend

import (
	"embed"
	"math"
	"math/big"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Bounds of one run, so that a short program cannot ask for endless work.
const (
	maxInstances = 100_000   // cells
	maxSteps     = 2_000_000 // statements and expressions
	askEvery     = 1024      // steps between two looks whether to go on
	maxItems     = 1_000_000 // items of one sequence
	maxElements  = 1 << 40   // elements of one tensor
	maxBits      = 4096      // of an exact number
	maxStages    = 4096
)

//go:embed std/*.pp
var stdFiles embed.FS

// stdScope holds the cells of the standard library. It is parsed once and not
// changed afterwards.
var stdScope = sync.OnceValue(func() *fileScope {
	scope := &fileScope{name: "std", std: true, cells: map[string]*class{}, consts: map[string]*constant{}}
	entries, err := stdFiles.ReadDir("std")
	if err != nil {
		panic(err)
	}
	for _, entry := range entries {
		name := "std/" + entry.Name()
		src, err := stdFiles.ReadFile(name)
		if err != nil {
			panic(err)
		}
		f, list := syntax.Parse(name, src)
		if err := list.Err(); err != nil {
			panic(err)
		}
		for _, c := range f.Cells {
			scope.cells[c.Name.Text] = &class{decl: c, file: scope}
		}
	}
	return scope
})

// Source gives the text of a file of the standard library, for excerpts.
func Source(file string) ([]byte, bool) {
	src, err := stdFiles.ReadFile(file)
	return src, err == nil
}

// fileScope is what the names of a file mean.
type fileScope struct {
	name    string
	std     bool
	cells   map[string]*class
	consts  map[string]*constant
	imports []*fileScope
}

// constant is a file-level constant, evaluated when first read.
type constant struct {
	decl  *syntax.Const
	file  *fileScope
	value value
	busy  bool
}

// elaborator turns one pipeline block, with the blocks inside it, into IR.
type elaborator struct {
	opts       Options
	list       diag.List
	main       *fileScope
	files      map[string]*fileScope
	module     *ir.Module
	stages     int  // value of the name stages; 0 when nobody gave one
	micro      int  // value of the name micro_batch_num
	stagesRead bool // a mark or shape depends on the name stages
	training   bool
	buffers    bool // cells may have buffers: the optimizer is elaborated
	unsplit    bool // marks are checked and then left out
	steps      int
	halted     bool
	instances  int
	funcs      map[string]int // functions made, by cell
	twins      map[site][]elaborated
	active     []*syntax.Cell // cells whose member lists are under way
	keyed      []plan.Keyed   // functions of cells whose @lazy_inline has a key
}

// env is where an expression stands.
type env struct {
	*elaborator
	file  *fileScope
	inst  *instance        // whose members and arguments are visible
	frame *frame           // nil outside of a construct
	names map[string]value // loop variables
	from  diag.Range       // the user's call that led into a file of the library
}

// fail reports a diagnostic. One inside the library is moved to the call that
// led there.
func (v *env) fail(d diag.Diagnostic) value {
	if strings.HasPrefix(d.Range.File, "std/") && v.from.IsValid() {
		d = d.WithNote(d.Range, "in the library")
		d.Range = v.from
	}
	v.list.Add(d)
	return poison{}
}

func (v *env) errorf(code diag.Code, at diag.Range, format string, args ...any) value {
	return v.fail(diag.Errorf(code, at, format, args...))
}

// step counts work and reports false once the run has done too much.
func (v *env) step(at diag.Range) bool {
	v.steps++
	if v.steps > maxSteps && !v.halted {
		v.halted = true
		v.errorf(diag.TooManyCells, at, "the program takes more than %d steps to unroll", maxSteps)
	}
	if v.steps%askEvery == 0 && !v.halted {
		select {
		case <-v.opts.Done:
			v.halted = true
			v.errorf(diag.RunFailed, diag.Range{}, "interrupted")
		default:
		}
	}
	return !v.halted
}

// origin is the range to remember for calls that lead into the library.
func (v *env) origin(at diag.Range) diag.Range {
	if strings.HasPrefix(at.File, "std/") && v.from.IsValid() {
		return v.from
	}
	return at
}

var dtypes = []ir.DType{ir.F32, ir.F64, ir.F16, ir.BF16, ir.I32, ir.I64, ir.U8, ir.Bool}

// lookup finds what a name means: loop variables, locals, members, arguments, file, imports,
// library, predeclared names.
func (v *env) lookup(name string, at diag.Range) (value, bool) {
	if x, ok := v.names[name]; ok {
		return x, true
	}
	if v.frame != nil {
		if x, ok := v.frame.locals[name]; ok {
			return x, true
		}
	}
	if v.inst != nil {
		if name == "self" && v.inst.self != nil {
			return v.inst.self, true
		}
		if m, ok := v.inst.members[name]; ok {
			return m, true
		}
		if x, ok := v.inst.args[name]; ok {
			return x, true
		}
	}
	if x, ok := v.fileName(v.file, name); ok {
		return x, true
	}
	for _, imported := range v.file.imports {
		if x, ok := v.fileName(imported, name); ok {
			return x, true
		}
	}
	if c, ok := stdScope().cells[name]; ok {
		return c, true
	}
	return v.predeclared(name, at)
}

func (v *env) fileName(f *fileScope, name string) (value, bool) {
	if c, ok := f.cells[name]; ok {
		return c, true
	}
	if c, ok := f.consts[name]; ok {
		return v.constant(c), true
	}
	return nil, false
}

func (v *env) predeclared(name string, at diag.Range) (value, bool) {
	switch name {
	case "true", "false":
		return boolean(name == "true"), true
	case "none":
		return none{}, true
	case "inf":
		return number{real: math.Inf(1)}, true
	case "training":
		if v.frame == nil {
			return v.fail(diag.Errorf(diag.MisplacedMark, at, "`training` is known inside a construct only").
				WithRepair("cells are the same for training and evaluation")), true
		}
		return boolean(v.training), true
	case "micro_batch_num":
		if v.micro == 0 {
			return v.fail(diag.Errorf(diag.BadEntry, at, "`micro_batch_num` depends on itself").WithRepair("micro_batch_num = 4")), true
		}
		return whole(v.micro), true
	case "stages":
		v.stagesRead = true
		if v.stages == 0 {
			v.stages = 1 // reported once
			return v.fail(diag.Errorf(diag.MissingEntry, at, "the program depends on the stage count, which is not given").
				WithRepair("give -stages, or the entry `stages`")), true
		}
		return whole(v.stages), true
	}
	for _, d := range dtypes {
		if d.String() == name {
			return dtype(d), true
		}
	}
	if f, ok := builtins[name]; ok {
		return function{f}, true
	}
	return nil, false
}

// visible lists the names in scope, for "did you mean".
func (v *env) visible() []string {
	var names []string
	if v.frame != nil {
		for n := range v.frame.locals {
			names = append(names, n)
		}
	}
	for n := range v.names {
		names = append(names, n)
	}
	if v.inst != nil {
		for n := range v.inst.members {
			names = append(names, n)
		}
		for n := range v.inst.args {
			names = append(names, n)
		}
	}
	for _, f := range append([]*fileScope{v.file, stdScope()}, v.file.imports...) {
		for n := range f.cells {
			names = append(names, n)
		}
		for n := range f.consts {
			names = append(names, n)
		}
	}
	for n := range builtins {
		names = append(names, n)
	}
	for _, d := range dtypes {
		names = append(names, d.String())
	}
	names = append(names, "true", "false", "none", "inf", "training", "stages", "micro_batch_num")
	sort.Strings(names)
	return slices.Compact(names)
}

// constant evaluates a file-level constant, or takes what -set says.
func (v *env) constant(c *constant) value {
	if c.value != nil {
		return c.value
	}
	at := c.decl.Name.At
	if c.busy {
		return v.errorf(diag.UnknownName, at, "the constant %q depends on itself", c.decl.Name.Text)
	}
	c.busy = true
	outer := &env{elaborator: v.elaborator, file: c.file}
	c.value = outer.eval(c.decl.Value)
	if c.decl.Type != nil {
		c.value = outer.coerce(c.value, c.decl.Type, c.decl.Value.Range(), "the constant "+c.decl.Name.Text)
	}
	switch c.value.(type) {
	case *instance, *storage:
		c.value = outer.errorf(diag.WrongType, c.decl.Value.Range(), "a constant cannot be %s: cells belong to cells and blocks", c.value.kind())
	}
	if setting, ok := v.opts.Set[c.decl.Name.Text]; ok && !isPoison(c.value) {
		c.value = outer.setting(c, setting)
	}
	c.busy = false
	return c.value
}

// setting reads the literal that -set gives for a constant.
func (v *env) setting(c *constant, literal string) value {
	bad := func(want string) value {
		return v.errorf(diag.BadSetting, c.decl.Name.At, "-set %s=%s: the constant wants %s", c.decl.Name.Text, literal, want)
	}
	switch c.value.(type) {
	case number:
		negative := strings.HasPrefix(literal, "-")
		r, err := syntax.ParseNumber(strings.TrimPrefix(literal, "-"))
		if err != nil {
			return bad("a number")
		}
		if negative {
			r = new(big.Rat).Neg(r)
		}
		if c.decl.Type != nil {
			return v.coerce(number{rat: r}, c.decl.Type, c.decl.Name.At, "-set "+c.decl.Name.Text)
		}
		return number{rat: r}
	case boolean:
		if literal != "true" && literal != "false" {
			return bad("true or false")
		}
		return boolean(literal == "true")
	case text:
		return text(literal)
	case dtype:
		if d, ok := ir.ParseDType(literal); ok {
			return dtype(d)
		}
		return bad("an element type")
	}
	return v.errorf(diag.BadSetting, c.decl.Name.At, "-set %s: only numbers, bools, strings and element types can be set", c.decl.Name.Text)
}

// loadFile parses a file and, through the read hook, its imports. Files may
// import each other: names are looked up when they are used.
func (e *elaborator) loadFile(name string, src []byte) (*fileScope, *syntax.File) {
	f, list := e.opts.Trees.parse(e.opts.Done, name, src)
	e.list = append(e.list, list...)
	scope := &fileScope{name: name, cells: map[string]*class{}, consts: map[string]*constant{}}
	e.files[name] = scope
	seen := map[string]diag.Range{}
	define := func(id syntax.Ident) bool {
		if first, ok := seen[id.Text]; ok {
			e.list.Add(diag.Errorf(diag.DuplicateName, id.At, "%q is defined twice", id.Text).WithNote(first, "first defined here"))
			return false
		}
		seen[id.Text] = id.At
		return true
	}
	for _, c := range f.Consts {
		if define(c.Name) {
			scope.consts[c.Name.Text] = &constant{decl: c, file: scope}
		}
	}
	for _, c := range f.Cells {
		lazy := e.cellMarks(c)
		if define(c.Name) {
			scope.cells[c.Name.Text] = &class{c, scope, lazy}
		}
	}
	for _, i := range f.Imports {
		e.importFile(scope, i, seen)
	}
	return scope, f
}

func (e *elaborator) importFile(scope *fileScope, i *syntax.Import, seen map[string]diag.Range) {
	name := path.Join(path.Dir(scope.name), i.Path)
	imported, ok := e.files[name]
	switch {
	case name == scope.name:
		e.list.Add(diag.Errorf(diag.BadImport, i.At, "%s imports itself", name))
		return
	case !ok:
		if e.opts.Read == nil {
			e.list.Add(diag.Errorf(diag.BadImport, i.At, "this text cannot import: no way to read files was given"))
			return
		}
		src, err := e.opts.Read(name)
		if err != nil {
			e.list.Add(diag.Errorf(diag.BadImport, i.At, "cannot read %s: %v", name, err))
			return
		}
		if len(e.files) > 1000 {
			e.list.Add(diag.Errorf(diag.BadImport, i.At, "more than 1000 files are imported"))
			return
		}
		imported, _ = e.loadFile(name, src)
	}
	names := imported.defined()
	for _, n := range sortedKeys(names) {
		if first, ok := seen[n]; ok && first != names[n] {
			e.list.Add(diag.Errorf(diag.DuplicateName, i.At, "the import defines %q, which is defined already", n).
				WithNote(first, "defined here").WithNote(names[n], "and here"))
		}
		seen[n] = names[n]
	}
	scope.imports = append(scope.imports, imported)
}

// defined returns the names of a file with their places.
func (f *fileScope) defined() map[string]diag.Range {
	names := map[string]diag.Range{}
	for n, c := range f.cells {
		names[n] = c.decl.Name.At
	}
	for n, c := range f.consts {
		names[n] = c.decl.Name.At
	}
	return names
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
