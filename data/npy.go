package data

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const npyMagic = "\x93NUMPY"

// maxNPYHeader bounds the text that describes an array.
const maxNPYHeader = 1 << 16

// maxDimensions is what NumPy accepts.
const maxDimensions = 32

// ReadNPY reads an array of f32, f64, i32, i64 or u8, in C order and little
// endian.
func ReadNPY(path string) (Array, error) {
	f, size, err := openFile(path)
	if err != nil {
		return Array{}, err
	}
	defer f.Close()
	a, err := readNPY(f, size)
	if err != nil {
		return Array{}, badFile(path, "not a usable npy file: %v", err)
	}
	return a, nil
}

// readNPY reads an array from r, which can deliver at most limit bytes.
func readNPY(r io.Reader, limit int64) (Array, error) {
	a, bytes, err := readNPYHeader(r, limit)
	if err != nil {
		return Array{}, err
	}
	a.Data, err = readExactly(r, bytes)
	return a, err
}

// readNPYHeader reads what stands before the elements of an array, and tells how many bytes these are.
func readNPYHeader(r io.Reader, limit int64) (a Array, bytes int64, err error) {
	var start [8]byte
	if _, err := io.ReadFull(r, start[:]); err != nil {
		return Array{}, 0, fmt.Errorf("no npy header: %w", err)
	}
	if string(start[:6]) != npyMagic {
		return Array{}, 0, fmt.Errorf("begins with %q, want %q", start[:6], npyMagic)
	}
	lengthBytes := 4
	switch start[6] {
	case 1:
		lengthBytes = 2
	case 2, 3:
	default:
		return Array{}, 0, fmt.Errorf("has npy version %d.%d, want 1 to 3", start[6], start[7])
	}
	var length [4]byte
	if _, err := io.ReadFull(r, length[:lengthBytes]); err != nil {
		return Array{}, 0, fmt.Errorf("ends within its header: %w", err)
	}
	headerBytes := binary.LittleEndian.Uint32(length[:])
	if headerBytes > maxNPYHeader {
		return Array{}, 0, fmt.Errorf("header of %d bytes, want at most %d", headerBytes, maxNPYHeader)
	}
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(r, header); err != nil {
		return Array{}, 0, fmt.Errorf("ends within its header: %w", err)
	}
	a, err = parseNPYHeader(string(header))
	if err != nil {
		return Array{}, 0, err
	}
	if bytes, err = byteSize(a.Shape, a.DType.Size()); err != nil {
		return Array{}, 0, err
	}
	if bytes > limit {
		return Array{}, 0, fmt.Errorf("announces %d bytes of data, more than the file can hold", bytes)
	}
	return a, bytes, nil
}

// parseNPYHeader reads the dictionary of an array: descr, fortran_order and
// shape, in any order.
func parseNPYHeader(header string) (Array, error) {
	text := strings.TrimSpace(header)
	var a Array
	var haveType, haveOrder, haveShape bool
	cut := func(prefix string) bool {
		rest, ok := strings.CutPrefix(text, prefix)
		if ok {
			text = strings.TrimLeft(rest, " ")
		}
		return ok
	}
	word := func() (string, bool) {
		if !strings.HasPrefix(text, "'") && !strings.HasPrefix(text, `"`) {
			return "", false
		}
		quote := text[:1]
		w, rest, ok := strings.Cut(text[1:], quote)
		if ok {
			text = strings.TrimLeft(rest, " ")
		}
		return w, ok
	}
	malformed := fmt.Errorf("header %.80q is malformed", header)
	if !cut("{") {
		return a, malformed
	}
	for !cut("}") {
		key, ok := word()
		if !ok || !cut(":") {
			return a, malformed
		}
		switch {
		case key == "descr" && !haveType:
			descr, ok := word()
			if !ok {
				return a, errors.New("holds records, want plain numbers")
			}
			if a.DType, ok = dtypeOf(descr); !ok {
				return a, fmt.Errorf("has element type %q, want one of <f4, <f8, <i4, <i8, |u1, |b1", descr)
			}
			haveType = true
		case key == "fortran_order" && !haveOrder:
			if cut("True") {
				return a, errors.New("is in Fortran order, want C order")
			}
			if !cut("False") {
				return a, malformed
			}
			haveOrder = true
		case key == "shape" && !haveShape:
			body, rest, ok := strings.Cut(text, ")")
			if !ok || !strings.HasPrefix(body, "(") {
				return a, malformed
			}
			text = strings.TrimLeft(rest, " ")
			var err error
			if a.Shape, err = parseShape(body[1:]); err != nil {
				return a, err
			}
			haveShape = true
		default:
			return a, malformed
		}
		if !cut(",") && !strings.HasPrefix(text, "}") {
			return a, malformed
		}
	}
	if text != "" || !haveType || !haveOrder || !haveShape {
		return a, malformed
	}
	return a, nil
}

func dtypeOf(descr string) (DType, bool) {
	if descr == "|b1" {
		return U8, true // conditions are 0 and 1
	}
	for d := range dtypes {
		if dtypes[d].descr == descr {
			return DType(d), true
		}
	}
	return 0, false
}

func parseShape(text string) ([]int, error) {
	shape := []int{}
	for text = strings.TrimSpace(text); text != ""; {
		number, rest, _ := strings.Cut(text, ",")
		n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 62)
		if err != nil {
			return nil, fmt.Errorf("has dimension %.40q, want a whole number", number)
		}
		shape = append(shape, int(n))
		if len(shape) > maxDimensions {
			return nil, fmt.Errorf("has more than %d dimensions", maxDimensions)
		}
		text = strings.TrimSpace(rest)
	}
	return shape, nil
}

// npyHeader is the header of an array, padded so that the data begins at a
// multiple of 64 bytes.
func npyHeader(a *Array) []byte {
	var shape strings.Builder
	for i, n := range a.Shape {
		if i > 0 {
			shape.WriteString(", ")
		}
		fmt.Fprint(&shape, n)
	}
	if len(a.Shape) == 1 {
		shape.WriteString(",")
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", dtypes[a.DType].descr, shape.String())
	const before = len(npyMagic) + 4
	total := (before + len(text) + 1 + 63) / 64 * 64
	var b bytes.Buffer
	b.WriteString(npyMagic)
	b.Write([]byte{1, 0})
	b.Write(binary.LittleEndian.AppendUint16(nil, uint16(total-before)))
	b.WriteString(text)
	b.WriteString(strings.Repeat(" ", total-before-len(text)-1))
	b.WriteByte('\n')
	return b.Bytes()
}

// WriteNPY writes an array, whole or not at all. Same array, same bytes. See ReplaceFile.
func WriteNPY(ctx context.Context, path string, a Array) error {
	return ReplaceFile(ctx, path, func(w io.Writer) error { return writeNPY(w, &a) })
}

func writeNPY(w io.Writer, a *Array) error {
	if want, err := byteSize(a.Shape, a.DType.Size()); err != nil || want != int64(len(a.Data)) {
		return fmt.Errorf("array %q of shape %v holds %d bytes", a.Name, a.Shape, len(a.Data))
	}
	if _, err := w.Write(npyHeader(a)); err != nil {
		return err
	}
	_, err := w.Write(a.Data)
	return err
}
