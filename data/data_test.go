package data

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const sample = "../examples/mnist/data"

// idx makes an IDX file of the dimensions and content.
func idx(dimensions []uint32, content []byte) []byte {
	b := []byte{0, 0, 8, byte(len(dimensions))}
	for _, n := range dimensions {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return append(b, content...)
}

func zipped(content []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(content)
	w.Close()
	return b.Bytes()
}

func TestIDX(t *testing.T) {
	good := idx([]uint32{2, 3}, []byte{1, 2, 3, 4, 5, 6})
	corrupt := zipped(good)
	corrupt[len(corrupt)-6] ^= 1 // the checksum
	tests := []struct {
		name    string
		content []byte
		wrong   string // part of the error, "" for none
	}{
		{"plain", good, ""},
		{"gzip", zipped(good), ""},
		{"empty", nil, "no magic number"},
		{"wrong magic", []byte("\x00\x00\x09\x01\x00\x00\x00\x00"), "magic number is 0x00000901"},
		{"too many dimensions", []byte{0, 0, 8, 5, 0}, "magic number"},
		{"short header", good[:7], "within its 2 dimensions"},
		{"short data", good[:len(good)-1], "holds 5 bytes of data, want 6"},
		{"long data", append(slices.Clone(good), 0), "more than the 6 bytes"},
		{"long zipped data", zipped(append(slices.Clone(good), 0)), "more than the 6 bytes"},
		{"false count", idx([]uint32{1 << 31}, []byte{1}), "more than a file of 9 bytes can hold"},
		{"overflowing count", idx([]uint32{1 << 31, 1 << 31, 1 << 31}, nil), "more than the 4294967296 bytes"},
		{"false zipped count", zipped(idx([]uint32{1 << 31}, []byte{1})), "can hold"},
		{"truncated gzip", zipped(good)[:20], "unexpected EOF"},
		{"corrupt gzip", corrupt, "corrupt"},
	}
	for _, test := range tests {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := ReadIDX(path)
		if test.wrong == "" {
			if err != nil || !slices.Equal(a.Shape, []int{2, 3}) || !bytes.Equal(a.Data, []byte{1, 2, 3, 4, 5, 6}) {
				t.Errorf("%s: got %v %v, error %v", test.name, a.Shape, a.Data, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.wrong) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %q, want one with the path and %q", test.name, err, test.wrong)
		}
	}
}

func TestNPYHeader(t *testing.T) {
	tests := []struct {
		header string
		shape  []int
		dtype  DType
		wrong  string
	}{
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }", []int{3, 4}, F32, ""},
		{"{'shape': (7,), 'fortran_order': False, 'descr': '|u1'}   \n", []int{7}, U8, ""},
		{`{"descr":"<i8","fortran_order":False,"shape":()}`, []int{}, I64, ""},
		{"{'descr': '>f4', 'fortran_order': False, 'shape': (3, 4), }", nil, 0, `element type ">f4"`},
		{"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }", nil, 0, "Fortran order"},
		{"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3, 4), }", nil, 0, "records"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (3, -4), }", nil, 0, `dimension "-4"`},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4 }", nil, 0, "malformed"},
		{"{'descr': '<f4', 'fortran_order': False}", nil, 0, "malformed"},
		{"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", nil, 0, "malformed"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (1" + strings.Repeat(",1", 40) + ")}", nil, 0, "more than 32 dimensions"},
		{"", nil, 0, "malformed"},
	}
	for _, test := range tests {
		a, err := parseNPYHeader(test.header)
		if test.wrong == "" {
			if err != nil || !slices.Equal(a.Shape, test.shape) || a.DType != test.dtype {
				t.Errorf("%s: got %v %v, error %v", test.header, a.DType, a.Shape, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: error %v, want one with %q", test.header, err, test.wrong)
		}
	}
}

func drawArray(t *rapid.T, name string) Array {
	a := Array{Name: name, DType: rapid.SampledFrom([]DType{F32, F64, I32, I64, U8}).Draw(t, "dtype")}
	a.Shape = rapid.SliceOfN(rapid.IntRange(0, 4), 0, 4).Draw(t, "shape")
	size, err := byteSize(a.Shape, a.DType.Size())
	if err != nil {
		t.Fatal(err)
	}
	a.Data = rapid.SliceOfN(rapid.Byte(), int(size), int(size)).Draw(t, "data")
	return a
}

func TestNPZRoundTrip(t *testing.T) {
	folder := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z][a-z.0-9]{0,9}`), 1, 4, rapid.ID).Draw(t, "names")
		var arrays []Array
		for _, name := range names {
			arrays = append(arrays, drawArray(t, name))
		}
		first, second := filepath.Join(folder, "a.npz"), filepath.Join(folder, "b.npz")
		if err := WriteNPZ(first, arrays); err != nil {
			t.Fatal(err)
		}
		got, err := ReadNPZ(first)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(arrays, got, cmp.Transformer("empty", func(b []byte) string { return string(b) })); d != "" {
			t.Fatalf("read differs from written:\n%s", d)
		}
		if err := WriteNPZ(second, got); err != nil {
			t.Fatal(err)
		}
		a, _ := os.ReadFile(first)
		b, _ := os.ReadFile(second)
		if !bytes.Equal(a, b) {
			t.Fatal("the same arrays give different bytes")
		}
		path := filepath.Join(folder, "c.npy")
		if err := WriteNPY(t.Context(), path, arrays[0]); err != nil {
			t.Fatal(err)
		}
		one, err := ReadNPY(path)
		if err != nil || !bytes.Equal(one.Data, arrays[0].Data) || !slices.Equal(one.Shape, arrays[0].Shape) {
			t.Fatalf("npy: got %v, error %v", one, err)
		}
	})
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 3 {
		t.Fatalf("the folder holds %v (%v), want the three files", left, err)
	}
}

func TestNPZErrors(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a.npz")
	if err := WriteNPZ(path, []Array{NewFloat32("w", []int{2}, []float32{1, 2})}); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadNPZ(path, "v"); err == nil || !strings.Contains(err.Error(), `no array "v", only "w"`) {
		t.Errorf("error %v does not name the arrays", err)
	}
	none := filepath.Join(t.TempDir(), "none.npz")
	if err := WriteNPZ(none, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadNPZ(none, "v"); err == nil || !strings.HasSuffix(err.Error(), `no array "v", nor any other`) {
		t.Errorf("error %v for a file without arrays", err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{0, 10, len(content) / 2, len(content) - 1} {
		if _, err := readNPZ(bytes.NewReader(content[:length]), int64(length), nil); err == nil {
			t.Errorf("no error for a file cut to %d of %d bytes", length, len(content))
		}
	}
	damaged := slices.Clone(content)
	damaged[bytes.Index(damaged, []byte("\x00\x00\x80\x3f"))] ^= 1
	if _, err := readNPZ(bytes.NewReader(damaged), int64(len(damaged)), nil); err == nil {
		t.Error("no error for damaged data")
	}
	if err := WriteNPZ(filepath.Join(folder, "missing", "a.npz"), nil); err == nil || !strings.Contains(err.Error(), "cannot write") {
		t.Errorf("error %v for a folder that does not exist", err)
	}
	twice := []Array{NewFloat32("w", []int{1}, []float32{1}), NewFloat32("w", []int{1}, []float32{1})}
	if err := WriteNPZ(path, twice); err == nil {
		t.Error("no error for two arrays of one name")
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(after, content) {
		t.Error("a failed write changed the file")
	}
	if left, _ := os.ReadDir(folder); len(left) != 1 {
		t.Errorf("a failed write left %v", left)
	}
}

func TestMNISTPipeline(t *testing.T) {
	steps := []Step{
		{Name: "rescale", Args: []float64{1.0 / 255}},
		{Name: "normalize", Args: []float64{0.1307, 0.3081}},
		{Name: "hwc2chw"},
		{Name: "cast", Text: "i32", On: "label"},
		{Name: "batch", Args: []float64{32}},
	}
	raw, err := ReadIDX(filepath.Join(sample, "train-images-idx3-ubyte.gz"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(Spec{Source: "mnist", Path: sample, Split: "train", Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	want := []Column{{"image", F32, []int{1, 28, 28}}, {"label", I32, []int{}}}
	if diff := cmp.Diff(want, d.Columns()); diff != "" || d.Rows() != 2048 || d.Batch() != 32 {
		t.Fatalf("%d rows, batch %d, columns %s", d.Rows(), d.Batch(), diff)
	}
	images, labels := make([]float32, 8*784), make([]int32, 8)
	if err := d.FillFloat32(16, 8, 0, images); err != nil {
		t.Fatal(err)
	}
	for i, x := range images {
		want := (float64(raw.Data[16*784+i])/255 - 0.1307) / 0.3081
		if math.Abs(float64(x)-want) > 5e-7 {
			t.Fatalf("pixel %d is %g, want %g", i, x, want)
		}
	}
	if err := d.FillInt32(0, 8, 1, labels); err != nil || !slices.Equal(labels, []int32{5, 0, 4, 1, 9, 2, 1, 3}) {
		t.Fatalf("the first labels are %v (error %v)", labels, err)
	}
	allocations := testing.AllocsPerRun(10, func() {
		d.FillFloat32(24, 8, 0, images)
		d.FillInt32(24, 8, 1, labels)
	})
	if allocations != 0 {
		t.Errorf("%g allocations a batch", allocations)
	}
	if err := d.FillFloat32(2044, 8, 0, images); err == nil {
		t.Error("no error for rows past the end")
	}
	if err := d.FillFloat32(0, 8, 1, images[:8]); err == nil {
		t.Error("no error for integers into floats")
	}
	test, err := Open(Spec{Source: "mnist", Path: sample, Split: "test"})
	if err != nil || test.Rows() != 2080 {
		t.Fatalf("test split: %v rows, error %v", test, err)
	}
	_, err = Open(Spec{Source: "mnist", Path: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "t10k-labels-idx1-ubyte") {
		t.Errorf("error %v does not name the files of MNIST", err)
	}
}

func TestNPZPipeline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.npz")
	ints := Array{Name: "y", DType: I64, Shape: []int{3}}
	for _, v := range []int64{-1, 7, 1 << 40} {
		ints.Data = binary.LittleEndian.AppendUint64(ints.Data, uint64(v))
	}
	arrays := []Array{
		NewFloat32("x", []int{3, 1, 2, 3}, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}),
		ints,
		NewFloat32("short", []int{2}, []float32{1, 2}),
	}
	if err := WriteNPZ(path, arrays); err != nil {
		t.Fatal(err)
	}
	d, err := Open(Spec{Source: "npz", Path: path, Columns: []string{"y", "x"}, Steps: []Step{
		{Name: "hwc2chw", On: "x"}, {Name: "rescale", Args: []float64{2}, On: "x"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, 6)
	if err := d.FillFloat32(1, 1, 1, x); err != nil || !slices.Equal(x, []float32{12, 18, 14, 20, 16, 22}) {
		t.Errorf("got %v, error %v", x, err)
	}
	y := make([]int32, 2)
	if err := d.FillInt32(0, 2, 0, y); err != nil || !slices.Equal(y, []int32{-1, 7}) {
		t.Errorf("got %v, error %v", y, err)
	}
	if err := d.FillInt32(1, 2, 0, y); err == nil || !strings.Contains(err.Error(), "1099511627776 in row 2") {
		t.Errorf("error %v for a value outside of i32", err)
	}
	wrong := []struct {
		spec Spec
		part string
	}{
		{Spec{Source: "npz", Path: path, Columns: []string{"x", "short"}}, `"short" has 2 rows`},
		{Spec{Source: "npz", Path: path}, "names of its columns"},
		{Spec{Source: "csv"}, "unknown dataset source"},
		{Spec{Source: "npz", Path: path, Columns: []string{"y"}, Steps: []Step{{Name: "normalize", Args: []float64{0, 1}}}}, "put rescale or cast"},
		{Spec{Source: "npz", Path: path, Columns: []string{"y"}, Steps: []Step{{Name: "rescale"}}}, "has 0 numbers, want 1"},
		{Spec{Source: "npz", Path: path, Columns: []string{"y"}, Steps: []Step{{Name: "hwc2chw"}}}, "three axes"},
		{Spec{Source: "npz", Path: path, Columns: []string{"x"}, Steps: []Step{{Name: "cast", Text: "i32"}}}, "cannot be cast"},
		{Spec{Source: "npz", Path: path, Columns: []string{"x"}, Steps: []Step{{Name: "batch", Args: []float64{0}}}}, "above 0"},
		{Spec{Source: "npz", Path: path, Columns: []string{"x"}, Steps: []Step{{Name: "shuffle"}}}, "no such step"},
		{Spec{Source: "npz", Path: path, Columns: []string{"x"}, Steps: []Step{{Name: "cast", Text: "f32", On: "z"}}}, `no column "z", only "x"`},
	}
	for _, test := range wrong {
		if _, err := Open(test.spec); err == nil || !strings.Contains(err.Error(), test.part) {
			t.Errorf("error %v, want one with %q", err, test.part)
		}
	}
}

// bounded runs a reader and fails if it allocated more than the input can
// justify.
func bounded(t *testing.T, size int, read func()) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	read()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(4*maxExpansion*size)+1<<20 {
		t.Errorf("%d bytes of input made the reader allocate %d", size, grown)
	}
}

func FuzzIDX(f *testing.F) {
	good := idx([]uint32{2, 3}, []byte{1, 2, 3, 4, 5, 6})
	f.Add(good)
	f.Add(zipped(good))
	f.Add(idx([]uint32{1 << 31}, nil))
	f.Fuzz(func(t *testing.T, content []byte) {
		bounded(t, len(content), func() {
			a, err := readIDX(bytes.NewReader(content), int64(len(content)))
			if size, _ := byteSize(a.Shape, 1); err == nil && size != int64(len(a.Data)) {
				t.Errorf("shape %v with %d bytes", a.Shape, len(a.Data))
			}
		})
	})
}

func FuzzNPY(f *testing.F) {
	a := NewFloat32("", []int{1, 2}, []float32{1, 2})
	f.Add(append(npyHeader(&a), a.Data...))
	f.Fuzz(func(t *testing.T, content []byte) {
		bounded(t, len(content), func() {
			a, err := readNPY(bytes.NewReader(content), int64(len(content)))
			if err != nil {
				return
			}
			again, err := readNPY(io.MultiReader(bytes.NewReader(npyHeader(&a)), bytes.NewReader(a.Data)), int64(len(content)))
			if err != nil || !slices.Equal(a.Shape, again.Shape) || a.DType != again.DType {
				t.Errorf("%v %v is read again as %v %v, error %v", a.DType, a.Shape, again.DType, again.Shape, err)
			}
		})
	})
}

func FuzzNPZ(f *testing.F) {
	path := filepath.Join(f.TempDir(), "a.npz")
	if err := WriteNPZ(path, []Array{NewFloat32("w", []int{2}, []float32{1, 2}), NewFloat32("b", []int{}, []float32{3})}); err != nil {
		f.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Fuzz(func(t *testing.T, content []byte) {
		bounded(t, len(content), func() {
			arrays, err := readNPZ(bytes.NewReader(content), int64(len(content)), nil)
			if err == nil && len(arrays) > len(content) {
				t.Errorf("%d arrays in %d bytes", len(arrays), len(content))
			}
		})
	})
}

// What is no file, and would have the reader wait for a writer, is refused.
func TestNoFiles(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := exec.Command("mkfifo", pipe).Run(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir(), filepath.Join(t.TempDir(), "nothing")} {
		_, err1 := ReadNPZ(path)
		_, err2 := OpenNPZ(path)
		_, err3 := OpenSafetensors(path)
		_, err4 := ReadNPY(path)
		_, err5 := ReadIDX(path)
		for i, err := range []error{err1, err2, err3, err4, err5} {
			if err == nil || !strings.Contains(err.Error(), "cannot read: ") {
				t.Errorf("%s, reader %d: %v", path, i, err)
			}
		}
	}
}
