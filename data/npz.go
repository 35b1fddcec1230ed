package data

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// NPZ is an npz file of which arrays are read one by one.
type NPZ struct {
	// Tensors are in the order of the file.
	Tensors []Tensor

	path  string
	size  int64
	close func() error
	files map[string]*zip.File
}

// OpenNPZ reads what the entries of a file say of their arrays.
func OpenNPZ(path string) (*NPZ, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	z, err := newNPZ(f, size)
	if err == nil {
		err = z.headers()
	}
	if err != nil {
		f.Close()
		return nil, badFile(path, "not a usable npz file: %v", err)
	}
	z.path, z.close = path, f.Close
	return z, nil
}

// Close closes the file.
func (z *NPZ) Close() error { return z.close() }

// Read returns an array.
func (z *NPZ) Read(name string) (Array, error) {
	a, err := z.read(name)
	if err != nil {
		return Array{}, badFile(z.path, "not a usable npz file: %v", err)
	}
	return a, nil
}

// ReadNPZ reads the named arrays of an npz file in the order of the names, or all in the order of the file when no name is
// given.
func ReadNPZ(path string, names ...string) ([]Array, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	arrays, err := readNPZ(f, size, names)
	if err != nil {
		return nil, badFile(path, "not a usable npz file: %v", err)
	}
	return arrays, nil
}

func newNPZ(r io.ReaderAt, size int64) (*NPZ, error) {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return nil, err
	}
	z := &NPZ{size: size, files: map[string]*zip.File{}}
	for _, f := range archive.File {
		name, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok || name == "" {
			return nil, fmt.Errorf("entry %.80q is not an npy file", f.Name)
		}
		if z.files[name] != nil {
			return nil, fmt.Errorf("array %.80q is there twice", name)
		}
		z.files[name] = f
		z.Tensors = append(z.Tensors, Tensor{Name: name})
	}
	return z, nil
}

func (z *NPZ) names() (names []string) {
	for _, t := range z.Tensors {
		names = append(names, t.Name)
	}
	return names
}

// headers reads types and shapes of all arrays.
func (z *NPZ) headers() error {
	for i := range z.Tensors {
		t := &z.Tensors[i]
		r, err := z.files[t.Name].Open()
		if err != nil {
			return fmt.Errorf("array %.80q: %w", t.Name, err)
		}
		a, _, err := readNPYHeader(r, z.size*maxExpansion)
		r.Close()
		if err != nil {
			return fmt.Errorf("array %.80q: %w", t.Name, err)
		}
		t.DType, t.Shape = a.DType, a.Shape
	}
	return nil
}

func (z *NPZ) read(name string) (Array, error) {
	f := z.files[name]
	if f == nil {
		return Array{}, fmt.Errorf("has no array %q%s", name, only(z.names()))
	}
	r, err := f.Open()
	if err != nil {
		return Array{}, fmt.Errorf("array %.80q: %w", name, err)
	}
	defer r.Close()
	a, err := readNPY(r, z.size*maxExpansion)
	if err != nil {
		return Array{}, fmt.Errorf("array %.80q: %w", name, err)
	}
	a.Name = name
	return a, nil
}

func readNPZ(r io.ReaderAt, size int64, names []string) ([]Array, error) {
	z, err := newNPZ(r, size)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		names = z.names()
	}
	var arrays []Array
	total := int64(0)
	for _, name := range names {
		a, err := z.read(name)
		if err != nil {
			return nil, err
		}
		// Entries may overlap in a hostile file, so the sum needs a bound too.
		if total += int64(len(a.Data)); total > maxBytes || total > size*maxExpansion {
			return nil, errors.New("its arrays together are too large")
		}
		arrays = append(arrays, a)
	}
	return arrays, nil
}

// only ends a message about a name that is not there.
func only(names []string) string {
	if len(names) == 0 {
		return ", nor any other"
	}
	return ", only " + shorten(names)
}

// shorten lists names, but not too many.
func shorten(names []string) string {
	const most = 12
	quoted := make([]string, 0, most)
	for _, n := range names[:min(most, len(names))] {
		quoted = append(quoted, fmt.Sprintf("%.80q", n))
	}
	list := strings.Join(quoted, ", ")
	if len(names) > most {
		list += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return list
}

// WriteNPZ writes arrays under their names, uncompressed, whole or not at all.
// Same arrays, same bytes.
func WriteNPZ(path string, arrays []Array) error {
	return ReplaceFile(context.Background(), path, func(w io.Writer) error {
		return EncodeNPZ(w, tensorsOf(arrays), func(i int) ([]byte, error) { return arrays[i].Data, nil })
	})
}

func tensorsOf(arrays []Array) (tensors []Tensor) {
	for i := range arrays {
		tensors = append(tensors, Tensor{arrays[i].Name, arrays[i].DType, arrays[i].Shape})
	}
	return tensors
}

// EncodeNPZ writes tensors, uncompressed, whose elements it asks for one by one, in the order of the tensors. elements returns
// them row-major and little endian; they are no longer used when it is called again.
func EncodeNPZ(w io.Writer, tensors []Tensor, elements func(i int) ([]byte, error)) error {
	archive := zip.NewWriter(w)
	names := map[string]bool{}
	for i, t := range tensors {
		if names[t.Name] {
			return fmt.Errorf("array %q is there twice", t.Name)
		}
		names[t.Name] = true
		entry, err := archive.CreateHeader(&zip.FileHeader{Name: t.Name + ".npy", Method: zip.Store})
		if err != nil {
			return err
		}
		b, err := elements(i)
		if err != nil {
			return err
		}
		if err := writeNPY(entry, &Array{t.Name, t.DType, t.Shape, b}); err != nil {
			return err
		}
	}
	return archive.Close()
}
