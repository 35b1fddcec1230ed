package frontend

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/frontend/syntax"
	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
)

// column is what is known of a dataset column at compile time; known is false
// for sources whose types show at run time.
type column struct {
	name  string
	known bool
	typ   ir.Type // of one row
}

// steps that a dataset may take after its source, with their arguments.
var datasetSteps = map[string][]string{
	"rescale": {"factor", "on"}, "normalize": {"mean", "std", "on"}, "hwc2chw": {"on"}, "cast": {"dtype", "on"}, "batch": {"n"},
}

// batchOf gives the rows of the batch step of a dataset expression, 0 when it
// has none.
func (b *block) batchOf(x syntax.Expr) int {
	steps, ok := x.(*syntax.Steps)
	if !ok {
		return 0
	}
	for _, s := range steps.List {
		c, ok := s.(*syntax.Call)
		if !ok {
			continue
		}
		if n, ok := c.Fn.(*syntax.Name); ok && n.Text == "batch" && len(c.Args) == 1 {
			if rows, ok := b.whole(c.Args[0].Value, "a batch"); ok && rows > 0 {
				return rows
			}
		}
	}
	return 0
}

// dataset checks a dataset expression against the inputs it feeds.
func (b *block) dataset(x syntax.Expr, inputs []*input) *plan.Dataset {
	list := []syntax.Expr{x}
	if s, ok := x.(*syntax.Steps); ok {
		list = s.List
	}
	d := &plan.Dataset{Pos: x.Range().Pos}
	columns, ok := b.source(list[0], d, inputs)
	if !ok {
		return nil
	}
	rows := 0
	for _, s := range list[1:] {
		if rows > 0 {
			b.errorf(diag.BadDataset, s.Range(), "batch is the last step")
			return nil
		}
		if rows, ok = b.datasetStep(s, d, columns); !ok {
			return nil
		}
	}
	if rows == 0 {
		b.fail(diag.Errorf(diag.BadDataset, x.Range(), "the dataset has no batch step").WithRepair("... | batch(%d)", max(1, firstRows(inputs))))
		return nil
	}
	b.checkColumns(x.Range(), columns, inputs, rows)
	return d
}

func firstRows(inputs []*input) int {
	for _, in := range inputs {
		if !in.Whole {
			return in.Type.Shape[0]
		}
	}
	return 0
}

// datasetCall takes a step apart: its name and its bound arguments.
func (b *block) datasetCall(x syntax.Expr, params map[string][]string, what string) (*syntax.Name, []syntax.Arg, bool) {
	c, ok := x.(*syntax.Call)
	var n *syntax.Name
	if ok {
		n, ok = c.Fn.(*syntax.Name)
	}
	if !ok {
		b.errorf(diag.BadDataset, x.Range(), "a %s is a call", what)
		return nil, nil, false
	}
	names, ok := params[n.Text]
	if !ok {
		d := diag.Errorf(diag.BadDataset, n.At, "unknown dataset %s %q", what, n.Text)
		if d.Repair = diag.DidYouMean(n.Text, sortedKeys(params)); d.Repair == "" {
			d.Repair = "there are " + strings.Join(sortedKeys(params), ", ")
		}
		b.fail(d)
		return nil, nil, false
	}
	out := make([]syntax.Arg, len(names))
	for i, a := range c.Args {
		place := i
		if a.Name.Text != "" {
			place = slices.Index(names, a.Name.Text)
		}
		if place < 0 || place >= len(names) || out[place].Value != nil {
			b.fail(diag.Errorf(diag.UnknownArgument, a.Value.Range(), "the dataset %s %s takes the arguments %s", what, n.Text, strings.Join(names, ", ")))
			return nil, nil, false
		}
		out[place] = a
	}
	return n, out, true
}

// source reads mnist(path, split) or npz(path, columns).
func (b *block) source(x syntax.Expr, d *plan.Dataset, inputs []*input) ([]column, bool) {
	n, args, ok := b.datasetCall(x, map[string][]string{"mnist": {"path", "split"}, "npz": {"path", "columns"}}, "source")
	if !ok {
		return nil, false
	}
	if args[0].Value == nil {
		b.errorf(diag.MissingArgument, x.Range(), "the dataset source %s needs a path", n.Text)
		return nil, false
	}
	if !b.datasetPath(args[0].Value, d) {
		return nil, false
	}
	d.Source = n.Text
	if n.Text == "mnist" {
		d.Split = "train"
		if args[1].Value != nil {
			s, ok := args[1].Value.(*syntax.String)
			if !ok || s.Value != "train" && s.Value != "test" {
				b.errorf(diag.BadDataset, args[1].Value.Range(), `the split of mnist is "train" or "test"`)
				return nil, false
			}
			d.Split = s.Value
		}
		d.Columns = []string{"image", "label"}
		return []column{{"image", true, ir.Tensor(ir.U8, 28, 28, 1)}, {"label", true, ir.Tensor(ir.U8)}}, true
	}
	if args[1].Value != nil {
		items, ok := sequence(b.eval(args[1].Value))
		for _, item := range items {
			s, isText := item.(text)
			ok = ok && isText
			d.Columns = append(d.Columns, string(s))
		}
		if !ok {
			b.errorf(diag.BadDataset, args[1].Value.Range(), "columns is a sequence of strings")
			return nil, false
		}
	} else {
		for _, in := range inputs {
			d.Columns = append(d.Columns, in.Name)
		}
	}
	columns := make([]column, len(d.Columns))
	for i, name := range d.Columns {
		columns[i].name = name
	}
	return columns, true
}

// datasetPath reads a path or env(name, default). A relative path is relative
// to the folder of the source file.
func (b *block) datasetPath(x syntax.Expr, d *plan.Dataset) bool {
	join := func(p string) string {
		if path.IsAbs(p) {
			return p
		}
		return path.Join(path.Dir(b.main.name), p)
	}
	switch x := x.(type) {
	case *syntax.String:
		d.Path = join(x.Value)
		return true
	case *syntax.Call:
		if n, ok := x.Fn.(*syntax.Name); ok && n.Text == "env" && len(x.Args) == 2 {
			name, ok1 := x.Args[0].Value.(*syntax.String)
			standard, ok2 := x.Args[1].Value.(*syntax.String)
			if ok1 && ok2 && name.Value != "" {
				d.Env, d.Path = name.Value, join(standard.Value)
				return true
			}
		}
		b.fail(diag.Errorf(diag.BadDataset, x.At, "env takes the name of a variable and the path to use without it").WithRepair(`env("DATA_PATH", "data")`))
		return false
	}
	if s, ok := b.eval(x).(text); ok {
		d.Path = join(string(s))
		return true
	}
	b.errorf(diag.BadDataset, x.Range(), "the path of a dataset is a string or env(name, default)")
	return false
}

// datasetStep adds one step and follows the type of its column. It returns the
// rows of a batch step.
func (b *block) datasetStep(x syntax.Expr, d *plan.Dataset, columns []column) (rows int, ok bool) {
	n, args, ok := b.datasetCall(x, datasetSteps, "step")
	if !ok {
		return 0, false
	}
	names := datasetSteps[n.Text]
	step := plan.Step{Name: n.Text}
	column := &columns[0]
	for i, name := range names {
		if name == "on" {
			if args[i].Value == nil {
				continue
			}
			s, ok := args[i].Value.(*syntax.String)
			if ok {
				step.On = s.Value
				ok = false
				for j := range columns {
					if columns[j].name == s.Value {
						column, ok = &columns[j], true
					}
				}
			}
			if !ok {
				d := diag.Errorf(diag.BadDataset, args[i].Value.Range(), "`on` names a column of the source")
				if s != nil {
					d.Repair = diag.DidYouMean(s.Value, columnNames(columns))
				}
				b.fail(d)
				return 0, false
			}
			continue
		}
		if args[i].Value == nil {
			b.errorf(diag.MissingArgument, x.Range(), "the dataset step %s needs its argument `%s`", n.Text, name)
			return 0, false
		}
		v := b.eval(args[i].Value)
		switch v := v.(type) {
		case number:
			if name == "dtype" {
				break
			}
			step.Args = append(step.Args, v.float())
			continue
		case dtype:
			if name == "dtype" {
				step.Text = ir.DType(v).String()
				continue
			}
		case poison:
			return 0, false
		}
		b.errorf(diag.WrongType, args[i].Value.Range(), "`%s` of the dataset step %s is not %s", name, n.Text, v.kind())
		return 0, false
	}
	if n.Text == "batch" {
		if rows, ok = b.whole(args[0].Value, "a batch"); ok && rows < 1 {
			b.errorf(diag.BadDataset, args[0].Value.Range(), "a batch has at least one row")
			ok = false
		}
	} else if column.known {
		err := column.apply(step)
		if err != nil {
			b.errorf(diag.BadDataset, x.Range(), "%v", err)
			return 0, false
		}
	}
	d.Steps = append(d.Steps, step)
	return rows, ok
}

func columnNames(columns []column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return names
}

// apply changes the type of a column as a step does.
func (c *column) apply(s plan.Step) error {
	switch s.Name {
	case "rescale":
		c.typ = ir.Tensor(ir.F32, c.typ.Shape...)
	case "normalize":
		if !c.typ.DType.IsFloat() {
			return fmt.Errorf("normalize wants floats, but the column %q is %s; rescale or cast it first", c.name, c.typ)
		}
	case "hwc2chw":
		if c.typ.Rank() != 3 {
			return fmt.Errorf("hwc2chw wants rows with three axes, but those of %q are %s", c.name, c.typ)
		}
		s := c.typ.Shape
		c.typ = ir.Tensor(c.typ.DType, s[2], s[0], s[1])
	case "cast":
		d, _ := ir.ParseDType(s.Text)
		if d != ir.F32 && (d != ir.I32 || c.typ.DType.IsFloat()) {
			return fmt.Errorf("the column %q of %s cannot be cast to %s", c.name, c.typ.DType, d)
		}
		c.typ = ir.Tensor(d, c.typ.Shape...)
	}
	return nil
}

// checkColumns compares the columns with the inputs: shapes may differ by axes
// of length 1, integers convert to other integers, floats stay floats.
func (b *block) checkColumns(at diag.Range, columns []column, inputs []*input, rows int) {
	if len(columns) != len(inputs) {
		b.errorf(diag.BadDataset, at, "the dataset has %d columns (%s) for %d inputs", len(columns), strings.Join(columnNames(columns), ", "), len(inputs))
		return
	}
	for i, in := range inputs {
		if in.Whole {
			b.errorf(diag.BadDataset, in.decl.At, "a dataset cannot feed an input marked @whole")
			continue
		}
		if in.Type.Shape[0] != rows {
			b.fail(diag.Errorf(diag.BadDataset, at, "batch(%d) differs from the %d rows of the input `%s`", rows, in.Type.Shape[0], in.Name).
				WithNote(in.decl.Name.At, "the input"))
			continue
		}
		c := columns[i]
		if !c.known {
			continue
		}
		want := in.Type.Shape[1:]
		if !slices.Equal(withoutOnes(c.typ.Shape), withoutOnes(want)) {
			b.fail(diag.Errorf(diag.BadDataset, at, "the column %q has rows %s, the input `%s` wants %s", c.name,
				ir.ShapeString(c.typ.Shape), in.Name, ir.ShapeString(want)).WithNote(in.decl.Name.At, "the input"))
		}
		if c.typ.DType.IsFloat() != in.Type.DType.IsFloat() {
			d := diag.Errorf(diag.BadDataset, at, "the column %q is %s, the input `%s` is %s", c.name, c.typ.DType, in.Name, in.Type.DType).
				WithNote(in.decl.Name.At, "the input")
			if in.Type.DType.IsFloat() {
				d = d.WithRepair("add a step: rescale(1/255), or cast(f32)")
			}
			b.fail(d)
		}
	}
}

func withoutOnes(shape []int) []int {
	return slices.DeleteFunc(slices.Clone(shape), func(n int) bool { return n == 1 })
}
