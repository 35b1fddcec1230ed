// Package frontend turns .pp text into an elaborated pipeline block: every
// cell is unrolled, every compile-time value computed, and what is left are
// functions of tensors (package ir) and the settings of the block (package
// plan). The text itself is handled by the package syntax below.
//
// Elaboration evaluates the program. A fault is reported where it is found and
// gives a value that silences what depends on it, so that one run shows
// several independent faults.
package frontend

import (
	"fmt"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// Options are what a caller may decide beside the text.
type Options struct {
	Block      string            // name of the pipeline block; "" when the file leaves no choice
	Set        map[string]string // values of constants
	Stages     int               // stage count; 0 when not given
	Micro      int               // micro-batch count; 0 when not given
	Accumulate int               // batches of a step of a train block; 0 when not given
	Seed       *uint32           // overrides the entry `seed`
	Layout     string            // layout notation, NAME=NOTATION when there are several lists; replaces the entry `layout`
	Unsplit    bool              // build the block as one stage; marks are checked and left out

	// Read returns the text of an imported file; its name is the path in the
	// import joined to the folder of the importing file. nil refuses imports.
	Read func(name string) ([]byte, error)

	// Trees spares parsing what earlier calls with the same Trees have parsed; nil parses all.
	Trees *Trees

	// Done, when it is closed, ends the work early with the error `interrupted`; nil never does.
	Done <-chan struct{}
}

// Load elaborates one pipeline block of a file. The Spec is nil when the list
// has errors.
func Load(file string, src []byte, opts Options) (*plan.Spec, diag.List) {
	e, parsed := open(file, src, opts)
	if e.list.HasErrors() {
		return nil, e.list
	}
	block := e.choose(parsed)
	if block == nil {
		return nil, e.list
	}
	spec := e.block(block)
	e.checkSettings()
	if e.list.HasErrors() {
		return nil, e.list
	}
	return spec, e.list
}

// Check elaborates every pipeline block of a file, or the one that the options
// name, and returns what there is to say.
func Check(file string, src []byte, opts Options) diag.List {
	if opts.Trees == nil {
		opts.Trees = &Trees{}
	}
	e, parsed := open(file, src, opts)
	if e.list.HasErrors() {
		return e.list
	}
	var list diag.List
	list = append(list, e.list...)
	for i, b := range parsed.Blocks {
		if opts.Block != "" && b.Name.Text != opts.Block {
			continue
		}
		one, again := open(file, src, opts)
		one.block(again.Blocks[i])
		one.checkSettings()
		list = append(list, one.list...)
	}
	if len(parsed.Blocks) == 0 {
		e.checkConstants()
		list = append(list, e.list...)
	} else if opts.Block != "" {
		if e.choose(parsed) == nil {
			list = append(list, e.list...)
		}
	}
	return list.Sorted()
}

// Blocks names the pipeline blocks of a file, as Options.Block takes them; one without a name cannot be chosen. trees may be nil.
func Blocks(file string, src []byte, trees *Trees) []string {
	f, _ := trees.parse(nil, file, src)
	var names []string
	if f != nil {
		for _, b := range f.Blocks {
			if b.Name.Text != "" {
				names = append(names, b.Name.Text)
			}
		}
	}
	return names
}

// MaxFile is the largest source file accepted, in bytes.
const MaxFile = syntax.MaxFile

// Format gives the canonical layout of a file. Text with syntax errors is not
// laid out.
func Format(file string, src []byte) ([]byte, diag.List) { return syntax.Format(file, src) }

func open(file string, src []byte, opts Options) (*elaborator, *syntax.File) {
	e := &elaborator{opts: opts, files: map[string]*fileScope{}, module: ir.NewModule(""), funcs: map[string]int{}, twins: map[site][]elaborated{}}
	e.unsplit = opts.Unsplit || opts.Stages == 1
	scope, parsed := e.loadFile(file, src)
	e.main = scope
	return e, parsed
}

// choose picks the block to build: the one named, else the only train block,
// else the only infer block, else the only eval block.
func (e *elaborator) choose(f *syntax.File) *syntax.Block {
	at := diag.Range{Pos: diag.Pos{File: f.Name}}
	var names []string
	for _, b := range f.Blocks {
		if b.Name.Text != "" {
			names = append(names, b.Name.Text)
		}
	}
	if e.opts.Block != "" {
		for _, b := range f.Blocks {
			if b.Name.Text == e.opts.Block {
				return b
			}
		}
		d := diag.Errorf(diag.BadBlock, at, "the file has no block %q", e.opts.Block)
		if d.Repair = diag.DidYouMean(e.opts.Block, names); d.Repair == "" && len(names) > 0 {
			d.Repair = "its blocks are " + strings.Join(names, ", ")
		}
		e.list.Add(d)
		return nil
	}
	for _, kind := range []string{"train", "infer", "eval"} {
		var found []*syntax.Block
		for _, b := range f.Blocks {
			if b.Kind == kind {
				found = append(found, b)
			}
		}
		if len(found) == 1 {
			return found[0]
		}
		if len(found) > 1 {
			d := diag.Errorf(diag.BadBlock, found[1].At, "the file has %d %s blocks", len(found), kind)
			e.list.Add(d.WithNote(found[0].At, "the first is here").WithRepair("name one: -block %s", found[0].Name.Text))
			return nil
		}
	}
	e.list.Add(diag.Errorf(diag.BadBlock, at, "the file has no train, infer or eval block").
		WithRepair("train name { network = ...; loss = ...; optimizer = ...; input x: f32[32, 10] }"))
	return nil
}

// checkSettings reports -set values that name no constant.
func (e *elaborator) checkSettings() {
	e.checkConstants()
	var names []string
	for _, file := range sortedKeys(e.files) {
		names = append(names, sortedKeys(e.files[file].consts)...)
	}
	for _, n := range sortedKeys(e.opts.Set) {
		known := false
		for _, c := range names {
			known = known || c == n
		}
		if !known {
			d := diag.Errorf(diag.BadSetting, diag.Range{Pos: diag.Pos{File: e.main.name}}, "-set %s: the file has no constant of that name", n)
			if d.Repair = diag.DidYouMean(n, names); d.Repair == "" && len(names) > 0 {
				d.Repair = fmt.Sprintf("its constants are %s", strings.Join(names, ", "))
			}
			e.list.Add(d)
		}
	}
}

// checkConstants evaluates the constants that nothing has read.
func (e *elaborator) checkConstants() {
	v := &env{elaborator: e, file: e.main}
	for _, n := range sortedKeys(e.main.consts) {
		v.constant(e.main.consts[n])
	}
}
