package cpu

import (
	"fmt"
	"unsafe"

	"github.com/ppc-lang/ppc/ir"
	"github.com/ppc-lang/ppc/plan"
	"github.com/ppc-lang/ppc/runtime/device/cpu/kernel"
)

// alignment of arenas in bytes: a cache line, and the widest vector.
const alignment = 64

// largestArena bounds what one area may ask for, so that a damaged plan is an error and not a crash.
const largestArena = 1 << 40

// arena is the memory of an area: equal slots, one behind the other.
type arena struct {
	class     plan.Class
	slots     int
	slotBytes int
	data      []byte
}

// slot is the memory of one micro-batch.
func (a *arena) slot(micro int) []byte {
	at := micro % a.slots * a.slotBytes
	return a.data[at : at+a.slotBytes : at+a.slotBytes]
}

// allocate returns zeroed aligned memory. What alignment wastes is not counted: it depends on where the memory lies.
func allocate(bytes int) []byte {
	b := make([]byte, bytes+alignment-1)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (alignment - 1))
	return b[skip : skip+bytes : skip+bytes]
}

// place is a range of bytes in the current slot of an area.
type place struct{ area, offset, bytes int }

func (p place) overlaps(q place) bool {
	return p.area == q.area && p.offset < q.offset+q.bytes && q.offset < p.offset+p.bytes
}

// memory is what steps work on. Its areas are those of the stage, then the scratch and the workspace, then the operands
// of the optimizer's current block.
type memory struct {
	path *kernel.Path
	base [][]byte // by area: the current slot
	// What random numbers depend on beside key and element.
	seed, stepNumber, micro uint32
	replica                 int
	print                   func(kind ir.Kind, label string, t ir.Type, data []byte)
}

func (m *memory) bytes(p place) []byte {
	return m.base[p.area][p.offset : p.offset+p.bytes : p.offset+p.bytes]
}

func (m *memory) floats(p place) []float32 { return elements[float32](m.bytes(p)) }

// elements looks at bytes as numbers; every place is aligned to its element.
func elements[T float32 | int32 | uint32 | uint8](b []byte) []T {
	var one T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(one)))
}

// bytesOf looks at numbers as bytes.
func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// view is elements of a place.
func view[T float32 | int32 | uint32 | uint8](m *memory, p place) []T { return elements[T](m.bytes(p)) }

// supported reports whether the device computes with elements of that type.
func supported(t ir.DType) bool { return t == ir.F32 || t == ir.I32 || t == ir.Bool }

// within checks a place against the size of its area.
func within(p place, size int, what string) error {
	if p.offset < 0 || p.bytes < 0 || p.offset > size-p.bytes {
		return fmt.Errorf("cpu device: %s lies at bytes %d to %d of an area of %d", what, p.offset, p.offset+p.bytes, size)
	}
	return nil
}
