// Package data reads and writes the files that training needs: IDX (MNIST),
// npy and npz; and it runs the dataset pipelines of a .pp file over them.
//
// Files are not trusted: a reader checks every count against the size of the
// file before it allocates, and its memory grows only with what it has read.
// Errors are diagnostics that name the file, what was found and what was
// wanted.
package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/ppc-lang/ppc/diag"
)

// DType is the type of an element in a file.
type DType uint8

// The element types.
const (
	F32 DType = iota
	F64
	I32
	I64
	U8
)

var dtypes = [...]struct {
	name, descr string // here and in npy
	size        int
}{{"f32", "<f4", 4}, {"f64", "<f8", 8}, {"i32", "<i4", 4}, {"i64", "<i8", 8}, {"u8", "|u1", 1}}

// String is the name of the type in a .pp file.
func (d DType) String() string { return dtypes[d].name }

// Size is the number of bytes of one element.
func (d DType) Size() int { return dtypes[d].size }

// IsFloat reports whether d is a floating-point type.
func (d DType) IsFloat() bool { return d == F32 || d == F64 }

// Array is a tensor as it lies in a file: row-major, little endian.
type Array struct {
	Name  string
	DType DType
	Shape []int
	Data  []byte // product of Shape x DType.Size()
}

// NewFloat32 makes an array that holds a copy of values.
func NewFloat32(name string, shape []int, values []float32) Array {
	a := Array{Name: name, DType: F32, Shape: shape, Data: make([]byte, 0, 4*len(values))}
	for _, v := range values {
		a.Data = binary.LittleEndian.AppendUint32(a.Data, math.Float32bits(v))
	}
	return a
}

// Elems is the number of elements.
func (a *Array) Elems() int { return len(a.Data) / a.DType.Size() }

// Float32 writes the elements, rounded to float32, to dst, which must have
// Elems elements. A number that float32 cannot hold is an error: it would
// become infinite.
func (a *Array) Float32(dst []float32) error {
	dst = dst[:a.Elems()]
	for i := range dst {
		dst[i] = a.float32At(i)
	}
	return a.fitsFloat32()
}

// fitsFloat32 finds the first number that float32 cannot hold.
func (a *Array) fitsFloat32() error {
	for i := 0; a.DType == F64 && i < a.Elems(); i++ {
		v := math.Float64frombits(binary.LittleEndian.Uint64(a.Data[8*i:]))
		if math.IsInf(float64(float32(v)), 0) && !math.IsInf(v, 0) {
			return fmt.Errorf("element %d is %v, which is beyond f32", i, v)
		}
	}
	return nil
}

func (a *Array) float32At(i int) float32 {
	switch a.DType {
	case F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(a.Data[4*i:]))
	case F64:
		return float32(math.Float64frombits(binary.LittleEndian.Uint64(a.Data[8*i:])))
	default:
		return float32(a.intAt(i))
	}
}

// intAt is element i of an integer array.
func (a *Array) intAt(i int) int64 {
	switch a.DType {
	case I32:
		return int64(int32(binary.LittleEndian.Uint32(a.Data[4*i:])))
	case I64:
		return int64(binary.LittleEndian.Uint64(a.Data[8*i:]))
	default:
		return int64(a.Data[i])
	}
}

// maxBytes bounds one array. It is also what keeps products of dimensions
// from overflowing.
const maxBytes = 1 << 32

// maxExpansion bounds what a byte of a compressed file can become: deflate
// cannot do better than 1032.
const maxExpansion = 1032

// byteSize is the size of an array of the shape, or an error if it is above
// the limit.
func byteSize(shape []int, element int) (int64, error) {
	size := int64(element)
	for _, n := range shape {
		if n < 0 {
			return 0, fmt.Errorf("dimension %d is negative", n)
		}
		if int64(n) > maxBytes || n > 0 && size > maxBytes/int64(n) {
			return 0, fmt.Errorf("shape %v needs more than the %d bytes an array may have", shape, int64(maxBytes))
		}
		size *= int64(n)
	}
	return size, nil
}

// readExactly reads the last want bytes of r. What it allocates grows with
// what r delivers, so a false count costs nothing.
func readExactly(r io.Reader, want int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, want+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("data is corrupt after %d of %d bytes: %w", len(content), want, err)
	case int64(len(content)) < want:
		return nil, fmt.Errorf("holds %d bytes of data, want %d", len(content), want)
	case int64(len(content)) > want:
		return nil, fmt.Errorf("holds more than the %d bytes of data that its header announces", want)
	}
	return content, nil
}

// openFile opens a file that can be read at any place, and tells its size. A pipe, which has no size, would have it wait.
func openFile(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, 0, cannotRead(path, err)
	case info.IsDir():
		return nil, 0, cannotRead(path, errors.New("is a directory"))
	case !info.Mode().IsRegular():
		return nil, 0, cannotRead(path, errors.New("it is no regular file"))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, cannotRead(path, err)
	}
	return f, info.Size(), nil
}

// badFile is the diagnostic for content that cannot be used.
func badFile(path, format string, args ...any) error {
	return diag.Errorf(diag.BadDataFile, diag.At(diag.Pos{File: path}), format, args...)
}

// cannotRead is the diagnostic for a failed operation on a file.
func cannotRead(path string, err error) error {
	return diag.Errorf(diag.CannotRead, diag.At(diag.Pos{File: path}), "cannot read: %v", reason(err))
}
