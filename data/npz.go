package data

import (
	"archive/zip"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ppc-lang/ppc/diag"
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
	return ReplaceFile(path, func(w io.Writer) error {
		archive := zip.NewWriter(w)
		var names []string
		for i := range arrays {
			if slices.Contains(names, arrays[i].Name) {
				return fmt.Errorf("array %q is there twice", arrays[i].Name)
			}
			names = append(names, arrays[i].Name)
			entry, err := archive.CreateHeader(&zip.FileHeader{Name: arrays[i].Name + ".npy", Method: zip.Store})
			if err != nil {
				return err
			}
			if err := writeNPY(entry, &arrays[i]); err != nil {
				return err
			}
		}
		return archive.Close()
	})
}

// ReplaceFile writes a file beside its place and renames it, so that a reader
// never sees half of it. A link keeps pointing to its file; what is no regular
// file, such as a device or a pipe, is written to and never replaced. An
// existing file keeps its mode.
func ReplaceFile(path string, write func(io.Writer) error) error {
	err := replaceFile(path, write)
	if err != nil {
		return diag.Errorf(diag.CannotWrite, diag.At(diag.Pos{File: path}), "cannot write: %v", reason(err))
	}
	return nil
}

func replaceFile(path string, write func(io.Writer) error) (err error) {
	mode := fs.FileMode(0o644)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if st, err := os.Lstat(path); err == nil {
		if !st.Mode().IsRegular() {
			return writeThrough(path, write)
		}
		mode = st.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	buffered := bufio.NewWriter(f)
	if err = errors.Join(write(buffered), buffered.Flush(), f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func writeThrough(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(f)
	return errors.Join(write(buffered), buffered.Flush(), f.Close())
}
