package data

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// maxSafetensorsHeader is the bound of the format's own reader.
const maxSafetensorsHeader = 100 << 20

// metadataName is the entry of a header that is no tensor.
const metadataName = "__metadata__"

// stored is how an element type of a safetensors file is read: its size there, and the type it becomes.
type stored struct {
	name string
	size int
	as   DType
}

var safetensorsTypes = []stored{
	{"F32", 4, F32}, {"F64", 8, F64}, {"F16", 2, F32}, {"BF16", 2, F32}, {"I32", 4, I32}, {"I64", 8, I64}, {"U8", 1, U8}, {"BOOL", 1, U8},
}

// Tensor describes an array without its elements.
type Tensor struct {
	Name  string
	DType DType
	Shape []int
}

// Safetensors is a file of which tensors are read one by one: 8 bytes with the length of the header, the header, a JSON
// object that gives for each name dtype, shape and data_offsets, then the elements, row-major and little endian. F16 and
// BF16 become f32, which holds each of their values; conditions become u8.
type Safetensors struct {
	// Metadata are the texts of the entry __metadata__; nil without.
	Metadata map[string]string
	// Tensors are in the order of their elements in the file.
	Tensors []Tensor

	path    string
	r       io.ReaderAt
	size    int64
	close   func() error
	entries map[string]safetensorsEntry
}

type safetensorsEntry struct {
	stored
	shape      []int
	begin, end int64 // in the file
}

// OpenSafetensors reads the header of a file. The tensors must fill the rest of it without gaps or overlaps.
func OpenSafetensors(path string) (*Safetensors, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	s, err := newSafetensors(f, size)
	if err != nil {
		f.Close()
		return nil, badFile(path, "not a usable safetensors file: %v", err)
	}
	s.path, s.close = path, f.Close
	return s, nil
}

// Close closes the file.
func (s *Safetensors) Close() error { return s.close() }

// Read returns a tensor.
func (s *Safetensors) Read(name string) (Array, error) {
	a, err := s.read(name)
	if err != nil {
		return Array{}, badFile(s.path, "not a usable safetensors file: tensor %.80q: %v", name, err)
	}
	return a, nil
}

// newSafetensors reads the header of a file of the given size.
func newSafetensors(r io.ReaderAt, size int64) (*Safetensors, error) {
	var start [8]byte
	if _, err := r.ReadAt(start[:], 0); err != nil {
		return nil, fmt.Errorf("no length of a header: %w", err)
	}
	length := binary.LittleEndian.Uint64(start[:])
	if length > maxSafetensorsHeader || length > uint64(size-8) {
		return nil, fmt.Errorf("announces a header of %d bytes, more than a file of %d bytes can hold", length, size)
	}
	text, err := readExactly(io.NewSectionReader(r, 8, int64(length)), int64(length))
	if err != nil {
		return nil, err
	}
	if len(text) == 0 || text[0] != '{' {
		return nil, errors.New("its header is no JSON object")
	}
	s := &Safetensors{r: r, size: size, entries: map[string]safetensorsEntry{}}
	if err := s.header(text, 8+int64(length), size); err != nil {
		return nil, err
	}
	return s, nil
}

// header reads the entries; their elements lie from first on.
func (s *Safetensors) header(text []byte, first, size int64) error {
	d := json.NewDecoder(bytes.NewReader(text))
	malformed := func(err error) error { return fmt.Errorf("its header is malformed: %w", err) }
	if _, err := d.Token(); err != nil {
		return malformed(err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return malformed(err)
		}
		name := key.(string) // what stands in front of a value of an object is a string
		if name == metadataName {
			if s.Metadata != nil {
				return fmt.Errorf("entry %s is there twice", metadataName)
			}
			s.Metadata = map[string]string{}
			if err := d.Decode(&s.Metadata); err != nil {
				return fmt.Errorf("entry %s is no object of texts", metadataName)
			}
			continue
		}
		if _, ok := s.entries[name]; ok {
			return fmt.Errorf("tensor %.80q is there twice", name)
		}
		e, err := readSafetensorsEntry(d, first, size)
		if err != nil {
			return fmt.Errorf("tensor %.80q: %w", name, err)
		}
		s.entries[name] = e
		s.Tensors = append(s.Tensors, Tensor{name, e.as, e.shape})
	}
	if _, err := d.Token(); err != nil {
		return malformed(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("its header goes on behind its end")
	}
	slices.SortStableFunc(s.Tensors, func(a, b Tensor) int {
		x, y := s.entries[a.Name], s.entries[b.Name]
		return cmp.Or(cmp.Compare(x.begin, y.begin), cmp.Compare(x.end, y.end))
	})
	at := first
	for _, t := range s.Tensors {
		e := s.entries[t.Name]
		if e.begin != at {
			return fmt.Errorf("tensor %.80q begins at byte %d of the data, the one before ends at %d", t.Name, e.begin-first, at-first)
		}
		at = e.end
	}
	if at != size {
		return fmt.Errorf("its tensors fill %d bytes of data, the file has %d", at-first, size-first)
	}
	return nil
}

func readSafetensorsEntry(d *json.Decoder, first, size int64) (e safetensorsEntry, err error) {
	var doc struct {
		DType   string   `json:"dtype"`
		Shape   []uint64 `json:"shape"`
		Offsets []uint64 `json:"data_offsets"`
	}
	if err := d.Decode(&doc); err != nil || doc.Shape == nil {
		return e, errors.New("its entry is malformed")
	}
	at := slices.IndexFunc(safetensorsTypes, func(t stored) bool { return t.name == doc.DType })
	if at < 0 {
		var names []string
		for _, t := range safetensorsTypes {
			names = append(names, t.name)
		}
		return e, fmt.Errorf("has element type %.20q, want one of %s", doc.DType, strings.Join(names, ", "))
	}
	e.stored, e.shape = safetensorsTypes[at], []int{}
	if len(doc.Shape) > maxDimensions {
		return e, fmt.Errorf("has more than %d dimensions", maxDimensions)
	}
	for _, n := range doc.Shape {
		if n > math.MaxInt64 {
			return e, fmt.Errorf("has dimension %d", n)
		}
		e.shape = append(e.shape, int(n))
	}
	bytes, err := byteSize(e.shape, e.size)
	if err != nil {
		return e, err
	}
	if len(doc.Offsets) != 2 {
		return e, fmt.Errorf("has %d data_offsets, want 2", len(doc.Offsets))
	}
	begin, end := doc.Offsets[0], doc.Offsets[1]
	if begin > end || end > uint64(size-first) {
		return e, fmt.Errorf("lies from byte %d to %d of %d", begin, end, size-first)
	}
	if end-begin != uint64(bytes) {
		return e, fmt.Errorf("of shape %v has %d bytes, wants %d", e.shape, end-begin, bytes)
	}
	e.begin, e.end = first+int64(begin), first+int64(end)
	return e, nil
}

func (s *Safetensors) read(name string) (Array, error) {
	e, ok := s.entries[name]
	if !ok {
		return Array{}, errors.New("is not there")
	}
	content := make([]byte, e.end-e.begin) // which the file has: see header
	if n, err := io.ReadFull(io.NewSectionReader(s.r, e.begin, e.end-e.begin), content); err != nil {
		return Array{}, fmt.Errorf("data is corrupt after %d of %d bytes: %w", n, len(content), err)
	}
	a := Array{Name: name, DType: e.as, Shape: e.shape, Data: content}
	switch e.name {
	case "F16", "BF16":
		widen := halfToFloat
		if e.name == "BF16" {
			widen = func(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }
		}
		a.Data = make([]byte, 0, 2*len(content))
		for i := 0; i < len(content); i += 2 {
			a.Data = binary.LittleEndian.AppendUint32(a.Data, math.Float32bits(widen(binary.LittleEndian.Uint16(content[i:]))))
		}
	case "BOOL":
		if at := slices.IndexFunc(content, func(b byte) bool { return b > 1 }); at >= 0 {
			return a, fmt.Errorf("element %d is %d, which is no condition", at, content[at])
		}
	}
	return a, nil
}

// halfToFloat widens an IEEE 754 half: 1 bit sign, 5 exponent, 10 fraction. Every value fits exactly; a NaN keeps its
// fraction.
func halfToFloat(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exponent {
	case 0: // zero or fraction x 2^-24
		v := float32(fraction) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(v))
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

// WriteSafetensors writes arrays under their names, whole or not at all. Same arrays, same bytes.
func WriteSafetensors(path string, arrays []Array) error {
	return ReplaceFile(context.Background(), path, func(w io.Writer) error {
		return EncodeSafetensors(w, nil, tensorsOf(arrays), func(i int) ([]byte, error) { return arrays[i].Data, nil })
	})
}

// EncodeSafetensors writes tensors whose elements it asks for one by one, in the order of the tensors but those with larger
// elements first, so that every element is aligned. elements returns them row-major and little endian; they are no longer used
// when it is called again.
func EncodeSafetensors(w io.Writer, metadata map[string]string, tensors []Tensor, elements func(i int) ([]byte, error)) error {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return tensors[b].DType.Size() - tensors[a].DType.Size() })
	var header bytes.Buffer
	header.WriteByte('{')
	put := func(name string, v any) error {
		if header.Len() > 1 {
			header.WriteByte(',')
		}
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		value, err := json.Marshal(v)
		header.Write(append(append(key, ':'), value...))
		return err
	}
	if metadata != nil {
		if err := put(metadataName, metadata); err != nil {
			return err
		}
	}
	names := map[string]bool{metadataName: true}
	at := int64(0)
	for _, i := range order {
		t := tensors[i]
		if names[t.Name] {
			return fmt.Errorf("array %q is there twice", t.Name)
		}
		names[t.Name] = true
		size, err := byteSize(t.Shape, t.DType.Size())
		if err != nil {
			return fmt.Errorf("array %q: %w", t.Name, err)
		}
		name := safetensorsTypes[slices.IndexFunc(safetensorsTypes, func(s stored) bool { return s.as == t.DType })].name
		if err := put(t.Name, entry{name, append([]int{}, t.Shape...), [2]int64{at, at + size}}); err != nil {
			return err
		}
		at += size
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	if _, err := w.Write(binary.LittleEndian.AppendUint64(nil, uint64(header.Len()))); err != nil {
		return err
	}
	if _, err := w.Write(header.Bytes()); err != nil {
		return err
	}
	for _, i := range order {
		b, err := elements(i)
		if err != nil {
			return err
		}
		if want, _ := byteSize(tensors[i].Shape, tensors[i].DType.Size()); want != int64(len(b)) {
			return fmt.Errorf("array %q of shape %v holds %d bytes", tensors[i].Name, tensors[i].Shape, len(b))
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
