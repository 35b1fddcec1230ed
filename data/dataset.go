package data

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
)

// Spec is a dataset pipeline: a source and the steps behind it.
type Spec struct {
	Source  string   // "mnist" or "npz"
	Path    string   // folder of mnist, file of npz
	Split   string   // mnist: "train" (also ""), "test"
	Columns []string // npz: the arrays to read, in order
	Steps   []Step
}

// Step changes one column, the first unless On names another:
//
//	rescale(f)          x * f
//	normalize(m, s)     (x - m) / s, after a step that made x a float
//	hwc2chw             rows [H, W, C] to [C, H, W]
//	cast                to the type named by Text: f32 or i32
//	batch(n)            rows of a batch; a property of the whole dataset
//
// Floats are f32: each operation is rounded once.
type Step struct {
	Name string
	Args []float64
	Text string
	On   string
}

// Dataset is an opened pipeline. It holds the files' content in memory as it
// was read; steps run when rows are taken. It is safe for concurrent use.
type Dataset struct {
	rows    int
	batch   int
	columns []column
}

// Column describes a column as Fill delivers it.
type Column struct {
	Name  string
	DType DType
	Shape []int // of one row
}

type column struct {
	Column
	source Array
	elems  int // of one row
	// steps are the operations on floats, in order. With a source of u8 they
	// are in table, by value.
	steps []func(float32) float32
	table *[256]float32
	// order gives for each element of a row its place in the source row; nil
	// where it is the same.
	order []int32
}

// Open reads the files of a pipeline and checks its steps.
func Open(spec Spec) (*Dataset, error) {
	var arrays []Array
	var err error
	switch spec.Source {
	case "mnist":
		arrays, err = readMNIST(spec.Path, spec.Split)
	case "npz":
		if len(spec.Columns) == 0 {
			return nil, diag.Errorf(diag.BadDataset, diag.Range{}, "the source npz needs the names of its columns")
		}
		arrays, err = ReadNPZ(spec.Path, spec.Columns...)
	default:
		err = diag.Errorf(diag.BadDataset, diag.Range{}, "unknown dataset source %q", spec.Source).WithRepair("use mnist or npz")
	}
	if err != nil {
		return nil, err
	}
	d := &Dataset{rows: -1}
	for _, a := range arrays {
		if len(a.Shape) == 0 {
			return nil, badFile(spec.Path, "column %q is a single number, want one row per sample", a.Name)
		}
		if d.rows >= 0 && a.Shape[0] != d.rows {
			return nil, badFile(spec.Path, "column %q has %d rows, column %q has %d", a.Name, a.Shape[0], arrays[0].Name, d.rows)
		}
		d.rows = a.Shape[0]
		c := column{Column: Column{Name: a.Name, DType: a.DType, Shape: slices.Clone(a.Shape[1:])}, source: a, elems: 1}
		for _, n := range c.Shape {
			c.elems *= n
		}
		d.columns = append(d.columns, c)
	}
	if d.rows == 0 {
		return nil, badFile(spec.Path, "holds no rows")
	}
	for _, s := range spec.Steps {
		if err := d.addStep(s); err != nil {
			return nil, diag.Errorf(diag.BadDataset, diag.Range{}, "dataset step `%s`: %v", s.Name, err)
		}
	}
	for i := range d.columns {
		c := &d.columns[i]
		if err := c.source.fitsFloat32(); err != nil && c.DType == F32 {
			return nil, diag.Errorf(diag.BadValueRange, diag.At(diag.Pos{File: spec.Path}), "column %q: %v", c.Name, err)
		}
		c.makeTable()
	}
	return d, nil
}

// Rows is the number of rows of every column.
func (d *Dataset) Rows() int { return d.rows }

// Batch is the argument of the batch step, 0 without one.
func (d *Dataset) Batch() int { return d.batch }

// Columns describes the columns in the order of the source.
func (d *Dataset) Columns() []Column {
	columns := make([]Column, len(d.columns))
	for i := range d.columns {
		columns[i] = d.columns[i].Column
	}
	return columns
}

func (d *Dataset) addStep(s Step) error {
	arguments := map[string]int{"rescale": 1, "normalize": 2, "batch": 1, "hwc2chw": 0, "cast": 0}
	want, known := arguments[s.Name]
	if !known {
		return fmt.Errorf("there is no such step; want rescale, normalize, hwc2chw, cast or batch")
	}
	if len(s.Args) != want {
		return fmt.Errorf("has %d numbers, want %d", len(s.Args), want)
	}
	if s.Name == "batch" {
		n := int(s.Args[0])
		if float64(n) != s.Args[0] || n < 1 || s.On != "" {
			return fmt.Errorf("wants one whole number above 0")
		}
		d.batch = n
		return nil
	}
	at := 0
	if s.On != "" {
		at = slices.IndexFunc(d.columns, func(c column) bool { return c.Name == s.On })
		if at < 0 {
			var names []string
			for _, c := range d.columns {
				names = append(names, c.Name)
			}
			return fmt.Errorf("there is no column %q%s", s.On, only(names))
		}
	}
	return d.columns[at].add(s)
}

func (c *column) add(s Step) error {
	switch s.Name {
	case "rescale":
		factor := float32(s.Args[0])
		c.DType = F32
		c.steps = append(c.steps, func(x float32) float32 { return x * factor })
	case "normalize":
		mean, deviation := float32(s.Args[0]), float32(s.Args[1])
		if c.DType != F32 {
			return fmt.Errorf("column %q is %s; put rescale or cast to f32 in front", c.Name, c.DType)
		}
		if deviation == 0 {
			return fmt.Errorf("the deviation is 0")
		}
		c.steps = append(c.steps, func(x float32) float32 { return (x - mean) / deviation })
	case "cast":
		switch {
		case s.Text == "f32":
			c.DType = F32
		case s.Text == "i32" && !c.DType.IsFloat():
			c.DType = I32
		default:
			return fmt.Errorf("column %q is %s and cannot be cast to %q", c.Name, c.DType, s.Text)
		}
	case "hwc2chw":
		if len(c.Shape) != 3 {
			return fmt.Errorf("rows of column %q have shape %v, want three axes", c.Name, c.Shape)
		}
		c.transpose()
	}
	return nil
}

// transpose makes rows [H, W, C] to [C, H, W], on top of what order has.
func (c *column) transpose() {
	pixels, channels := c.Shape[0]*c.Shape[1], c.Shape[2]
	c.Shape = []int{channels, c.Shape[0], c.Shape[1]}
	if channels == 1 || c.elems == 0 {
		return
	}
	order := make([]int32, c.elems)
	for channel := range channels {
		for pixel := range pixels {
			from := int32(pixel*channels + channel)
			if c.order != nil {
				from = c.order[from]
			}
			order[channel*pixels+pixel] = from
		}
	}
	c.order = order
}

// makeTable runs the steps once for each value that a u8 can have.
func (c *column) makeTable() {
	if c.source.DType != U8 || c.DType != F32 {
		return
	}
	c.table = new([256]float32)
	for value := range c.table {
		c.table[value] = c.apply(float32(value))
	}
}

func (c *column) apply(x float32) float32 {
	for _, step := range c.steps {
		x = step(x)
	}
	return x
}

// FillFloat32 writes rows row to row+n-1 of a column, which must be f32 after
// its steps, to dst. It allocates nothing.
func (d *Dataset) FillFloat32(row, n, column int, dst []float32) error {
	c, first, err := d.take(row, n, column, len(dst))
	if err != nil {
		return err
	}
	if c.DType != F32 {
		return diag.Errorf(diag.BadDataset, diag.Range{}, "column %q is %s, the input wants f32", c.Name, c.DType).WithRepair("add a rescale or cast step")
	}
	if c.table != nil && c.order == nil {
		table := c.table
		for i, v := range c.source.Data[first:][:len(dst)] {
			dst[i] = table[v]
		}
		return nil
	}
	for r := range n {
		out := dst[r*c.elems:][:c.elems]
		base := first + r*c.elems
		for i := range out {
			from := base + i
			if c.order != nil {
				from = base + int(c.order[i])
			}
			if c.table != nil {
				out[i] = c.table[c.source.Data[from]]
			} else {
				out[i] = c.apply(c.source.float32At(from))
			}
		}
	}
	return nil
}

// FillInt32 writes rows row to row+n-1 of a column of integers to dst. A value
// that does not fit is an error. It allocates nothing.
func (d *Dataset) FillInt32(row, n, column int, dst []int32) error {
	return fillIntegers(d, row, n, column, dst, "i32")
}

// FillBool is FillInt32 for conditions: 0 is false, 1 is true, anything else an
// error.
func (d *Dataset) FillBool(row, n, column int, dst []byte) error {
	if err := fillIntegers(d, row, n, column, dst, "bool"); err != nil {
		return err
	}
	for i, v := range dst {
		if v > 1 {
			return diag.Errorf(diag.BadValueRange, diag.Range{}, "column %q holds %d in row %d, which is no bool", d.columns[column].Name, v, row+i/d.columns[column].elems)
		}
	}
	return nil
}

func fillIntegers[T int32 | byte](d *Dataset, row, n, column int, dst []T, want string) error {
	c, first, err := d.take(row, n, column, len(dst))
	if err != nil {
		return err
	}
	if c.DType.IsFloat() {
		return diag.Errorf(diag.BadDataset, diag.Range{}, "column %q is %s, the input wants %s", c.Name, c.DType, want)
	}
	for i := range dst {
		from := first + i
		if c.order != nil {
			from = first + i/c.elems*c.elems + int(c.order[i%c.elems])
		}
		v := c.source.intAt(from)
		if v != int64(T(v)) {
			return diag.Errorf(diag.BadValueRange, diag.Range{}, "column %q holds %d in row %d, which is no %s", c.Name, v, row+i/c.elems, want)
		}
		dst[i] = T(v)
	}
	return nil
}

// take checks a request and returns the column and its first element.
func (d *Dataset) take(row, n, index, length int) (*column, int, error) {
	if index < 0 || index >= len(d.columns) {
		return nil, 0, diag.Errorf(diag.BadDataset, diag.Range{}, "the dataset has %d columns, there is no column %d", len(d.columns), index)
	}
	c := &d.columns[index]
	if row < 0 || n < 0 || n > d.rows-row {
		return nil, 0, diag.Errorf(diag.BadDataset, diag.Range{}, "rows %d to %d of column %q, which has %d", row, row+n-1, c.Name, d.rows)
	}
	if length != n*c.elems {
		return nil, 0, diag.Errorf(diag.BadDataset, diag.Range{}, "a buffer of %d elements for %d rows of column %q with %d each", length, n, c.Name, c.elems)
	}
	return c, row * c.elems, nil
}

// readMNIST reads images as [rows, height, width, 1] and labels as [rows].
func readMNIST(folder, split string) ([]Array, error) {
	prefix := "train"
	switch split {
	case "", "train":
	case "test":
		prefix = "t10k"
	default:
		return nil, diag.Errorf(diag.BadDataset, diag.Range{}, "mnist has no split %q", split).WithRepair("use train or test")
	}
	images, err := readMNISTFile(folder, prefix+"-images-idx3-ubyte", 3)
	if err != nil {
		return nil, err
	}
	labels, err := readMNISTFile(folder, prefix+"-labels-idx1-ubyte", 1)
	if err != nil {
		return nil, err
	}
	images.Name, images.Shape = "image", append(images.Shape, 1)
	labels.Name = "label"
	return []Array{images, labels}, nil
}

func readMNISTFile(folder, name string, dimensions int) (Array, error) {
	for _, suffix := range []string{"", ".gz"} {
		path := filepath.Join(folder, name+suffix)
		if _, err := os.Stat(path); err != nil {
			if os.IsNotExist(err) {
				continue
			}
			return Array{}, cannotRead(path, err)
		}
		a, err := ReadIDX(path)
		if err == nil && len(a.Shape) != dimensions {
			err = badFile(path, "has shape %v, want %d dimensions", a.Shape, dimensions)
		}
		return a, err
	}
	files := make([]string, 0, 4)
	for _, f := range []string{"train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"} {
		files = append(files, f+"-ubyte")
	}
	return Array{}, diag.Errorf(diag.CannotRead, diag.At(diag.Pos{File: folder}), "there is no %s, plain or with .gz; a folder of MNIST holds %s", name, strings.Join(files, ", "))
}
