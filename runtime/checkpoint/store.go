package checkpoint

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
)

// Store is a folder that checkpoints are written to.
type Store struct {
	Dir  string
	Keep int // checkpoints that stay, the last ones; 0: all
}

func cannotWrite(path string, err error) error {
	return diag.Errorf(diag.CannotWrite, diag.At(diag.Pos{File: path}), "cannot write the checkpoint: %v", reason(err))
}

// Names that begin with a dot are never taken for checkpoints: what is being written, and what is being removed.
const (
	partSuffix = ".part"
	oldSuffix  = ".old"
)

// Path is the folder of the checkpoint after that many steps.
func (s *Store) Path(step int) string { return filepath.Join(s.Dir, folder(step)) }

func (s *Store) part(step int) string { return filepath.Join(s.Dir, "."+folder(step)+partSuffix) }

// Prepare makes the folder if need be, and finds out whether checkpoints can be written.
func (s *Store) Prepare() error {
	if err := os.MkdirAll(s.Dir, 0o777); err != nil {
		return cannotWrite(s.Dir, err)
	}
	probe, err := os.MkdirTemp(s.Dir, ".step-*"+partSuffix)
	if err == nil {
		err = os.Remove(probe)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) { // another process of the run may clean up
		return cannotWrite(s.Dir, err)
	}
	_, others, err := numbered(s.Dir)
	switch {
	case err != nil:
		return cannotWrite(s.Dir, err)
	case len(others) > 0:
		return cannotWrite(s.Path(others[0]), errors.New("it is no folder, but has the name of one"))
	}
	return nil
}

// Clean removes what a run that was killed or has failed left half-written or half-removed. Nobody may be writing.
func (s *Store) Clean() error {
	list, err := os.ReadDir(s.Dir)
	if err != nil {
		return cannotWrite(s.Dir, err)
	}
	for _, e := range list {
		n := e.Name()
		if !strings.HasPrefix(n, ".step-") || !strings.HasSuffix(n, partSuffix) && !strings.HasSuffix(n, oldSuffix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.Dir, n)); err != nil {
			return cannotWrite(s.Dir, err)
		}
	}
	return nil
}

// Write writes a file of the checkpoint of a step; see data.EncodeSafetensors. Writers of one step may run at the same time,
// also in several processes. The file is on the disk when Write returns, but belongs to no checkpoint before Commit.
func (s *Store) Write(step int, name string, tensors []data.Tensor, elements func(i int) ([]byte, error)) (File, error) {
	dir := s.part(step)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return File{}, cannotWrite(dir, err)
	}
	path := filepath.Join(dir, name)
	h := sha256.New()
	size := int64(0)
	err := writeFile(path, func(w io.Writer) error {
		counted := &counter{w: io.MultiWriter(w, h)}
		err := data.EncodeSafetensors(counted, map[string]string{"format": format}, tensors, elements)
		size = counted.n
		return err
	})
	return File{name, size, hex.EncodeToString(h.Sum(nil))}, err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// failedWrite marks the errors of a file among those of who fills it.
type failedWrite struct{ err error }

func (f failedWrite) Error() string { return f.err.Error() }

type marked struct{ w io.Writer }

func (m marked) Write(b []byte) (int, error) {
	n, err := m.w.Write(b)
	if err != nil {
		err = failedWrite{err}
	}
	return n, err
}

// writeFile writes a file and brings it to the disk. Errors that are not the file's come back as they are.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return cannotWrite(path, err)
	}
	w := bufio.NewWriterSize(marked{f}, 1<<16)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	failed, isWrite := errors.AsType[failedWrite](err)
	switch {
	case isWrite:
		err = cannotWrite(path, failed.err)
	case err == nil:
		if err = f.Sync(); err != nil {
			err = cannotWrite(path, err)
		}
	}
	if e := f.Close(); err == nil && e != nil {
		err = cannotWrite(path, e)
	}
	return err
}

// Commit makes a checkpoint of the files that all writers have written: it adds the index, renames the folder, and removes
// the checkpoints that are not to stay. Until the folder has its name the checkpoints before are as they were.
func (s *Store) Commit(x *Index) error {
	x.Format, x.Version = format, Version
	text, err := json.MarshalIndent(x, "", " ")
	if err != nil {
		return err
	}
	part, path := s.part(x.Step), s.Path(x.Step)
	if err := writeFile(filepath.Join(part, indexName), func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	}); err != nil {
		return err
	}
	if err := syncFolder(part); err != nil {
		return err
	}
	// Only a damaged one can have the name: a run goes on from the highest complete one.
	if err := s.remove(x.Step); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return cannotWrite(path, err)
	}
	if err := syncFolder(s.Dir); err != nil {
		return err
	}
	if s.Keep == 0 {
		return nil
	}
	steps, _, err := numbered(s.Dir)
	if err != nil {
		return cannotWrite(s.Dir, err)
	}
	kept := 0
	for _, n := range steps {
		if n > x.Step {
			continue
		}
		if kept++; kept > s.Keep {
			if err := s.remove(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes a checkpoint, if it is there, so that no part of it is ever seen under its name.
func (s *Store) remove(step int) error {
	path := s.Path(step)
	old := filepath.Join(s.Dir, "."+folder(step)+oldSuffix)
	err := os.Rename(path, old)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.RemoveAll(old)
	}
	if err != nil {
		return cannotWrite(path, err)
	}
	return nil
}

// syncFolder brings the names in a folder to the disk.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return cannotWrite(path, err)
	}
	return nil
}
