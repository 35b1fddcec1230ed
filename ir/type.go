// Package ir is the intermediate representation of ppc: modules of single-assignment functions over typed
// tensors, with calls.
//
// A module owns parameters and functions. A function has arguments, operations in program order and results;
// every value is defined once, by an argument, a parameter read or an operation. One function stands for every
// equal cell; it is called with its parameters as arguments. The table in ops.go has a row per operation: type
// rule, cost, effect, aliasing and gradient rule. The text form (print.go, parse.go) reads back to the same module.
package ir

import (
	"fmt"
	"strconv"
	"strings"
)

// DType is an element type.
type DType uint8

// The element types.
const (
	Invalid DType = iota
	F32
	F64
	F16
	BF16
	I32
	I64
	U8
	Bool
)

var dtypeNames = [...]string{"invalid", "f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool"}
var dtypeSizes = [...]int{0, 4, 8, 2, 2, 4, 8, 1, 1}

func (d DType) String() string { return dtypeNames[d] }

// Size is the number of bytes of one element.
func (d DType) Size() int { return dtypeSizes[d] }

// IsFloat reports whether d is a floating-point type; only such values have gradients.
func (d DType) IsFloat() bool { return d == F32 || d == F64 || d == F16 || d == BF16 }

// ParseDType returns the element type of that name.
func ParseDType(s string) (DType, bool) {
	for i, n := range dtypeNames {
		if i > 0 && n == s {
			return DType(i), true
		}
	}
	return Invalid, false
}

// Type is the type of a tensor. A scalar has an empty shape. Shapes are never changed after construction.
type Type struct {
	DType DType
	Shape []int
}

// Tensor returns the type with that element type and shape.
func Tensor(d DType, shape ...int) Type { return Type{d, shape} }

// Elems is the number of elements.
func (t Type) Elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bytes is the size of the dense row-major form.
func (t Type) Bytes() int { return t.Elems() * t.DType.Size() }

// Rank is the number of axes.
func (t Type) Rank() int { return len(t.Shape) }

// Equal reports whether both types are the same.
func (t Type) Equal(u Type) bool { return t.DType == u.DType && equalInts(t.Shape, u.Shape) }

func (t Type) String() string {
	var b strings.Builder
	b.WriteString(t.DType.String())
	b.WriteByte('[')
	for i, d := range t.Shape {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(d))
	}
	b.WriteByte(']')
	return b.String()
}

// ShapeString prints a shape as users write it: [8, 512].
func ShapeString(s []int) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range s {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(d))
	}
	b.WriteByte(']')
	return b.String()
}

func equalInts(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Broadcast returns the shape that NumPy's rule gives for two operands.
func Broadcast(a, b []int) ([]int, error) {
	n := max(len(a), len(b))
	out := make([]int, n)
	for i := 1; i <= n; i++ {
		x, y := 1, 1
		if i <= len(a) {
			x = a[len(a)-i]
		}
		if i <= len(b) {
			y = b[len(b)-i]
		}
		switch {
		case x == y || y == 1:
			out[n-i] = x
		case x == 1:
			out[n-i] = y
		default:
			return nil, fmt.Errorf("shapes %s and %s do not broadcast: axis %d has %d against %d", ShapeString(a), ShapeString(b), n-i, x, y)
		}
	}
	return out, nil
}
