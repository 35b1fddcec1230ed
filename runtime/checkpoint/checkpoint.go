// Package checkpoint keeps the state of a training between two steps in a folder, and finds it again.
//
// A checkpoint is a folder step-N: index.json and one safetensors file per writer. Tensors are whole and row-major under the
// names of the model, so that neither the cut nor the device nor the number of ranks shows: NAME for a parameter,
// optimizer.STATE.NAME for a state of its optimizer, buffer.NAME for a buffer of a cell. The folder is written under a
// temporary name, brought to the disk and renamed; one that has the name step-N and whose hashes agree is complete.
package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ppc-lang/ppc/data"
	"github.com/ppc-lang/ppc/diag"
)

// Version of the format; reading refuses another one.
const Version = 1

const (
	format    = "ppc checkpoint"
	indexName = "index.json"
	maxIndex  = 64 << 20 // bytes
)

// Index is index.json: all that is no tensor, and where each tensor is.
type Index struct {
	Format     string     `json:"format"`
	Version    int        `json:"version"`
	Model      string     `json:"model"`
	Step       int        `json:"step"` // steps done, which is the number of the next one
	Data       Position   `json:"data"`
	Seed       uint32     `json:"seed"`    // random numbers follow from it and the step
	Updates    int        `json:"updates"` // steps that were not skipped
	LossScale  *LossScale `json:"loss_scale,omitempty"`
	Optimizer  Optimizer  `json:"optimizer"`
	Files      []File     `json:"files"`
	Parameters []Entry    `json:"parameters"`
	Buffers    []Entry    `json:"buffers"`
}

// Position is where the next step reads: rows Row to Row+Batch-1 of the epoch, counted from 0.
type Position struct {
	Epoch int `json:"epoch"`
	Row   int `json:"row"`
	Batch int `json:"batch"`
	Rows  int `json:"rows"` // of the data set
}

// LossScale is the scale of the next step, and how many steps without overflow precede it.
type LossScale struct {
	Scale     float64 `json:"scale"`
	GoodSteps int     `json:"good_steps"`
}

// Optimizer is its name and those of its states.
type Optimizer struct {
	Name   string   `json:"name"`
	States []string `json:"states"`
}

// File is a file of the folder.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // in hexadecimal
}

// Entry is a parameter or a buffer.
type Entry struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	File  string `json:"file"`
	// Trained says that the file has the states of the optimizer for it too.
	Trained bool `json:"trained,omitempty"`
}

// StateName and BufferName are the names of tensors that are no parameters.
func StateName(state, parameter string) string { return "optimizer." + state + "." + parameter }

// BufferName: see StateName.
func BufferName(buffer string) string { return "buffer." + buffer }

// Checkpoint is a complete checkpoint, open for reading.
type Checkpoint struct {
	Path string
	Index
	files map[string]*data.Safetensors
	where map[string]string // file by tensor
}

// damaged is the diagnostic for a folder that cannot be used.
func damaged(path, form string, args ...any) error {
	return diag.Errorf(diag.BadCheckpoint, diag.At(diag.Pos{File: path}), form, args...)
}

func cannotRead(path string, err error) error {
	return diag.Errorf(diag.CannotRead, diag.At(diag.Pos{File: path}), "cannot read: %v", reason(err))
}

// reason is the part of a file error that does not repeat the path.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if p, ok := errors.AsType[*os.LinkError](err); ok {
		return p.Err
	}
	return err
}

// Steps lists the checkpoints of a folder by number, the highest first, complete or not. A folder that is not there has none.
func Steps(dir string) ([]int, error) {
	steps, _, err := numbered(dir)
	if err != nil {
		return nil, cannotRead(dir, err)
	}
	return steps, nil
}

// numbered lists the numbers of what is named step-N in a folder, the highest first: folders, and what is none and so no checkpoint.
func numbered(dir string) (folders, others []int, err error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, e := range list {
		text, ok := strings.CutPrefix(e.Name(), "step-")
		n, err := strconv.Atoi(text)
		if !ok || err != nil || n < 0 || strconv.Itoa(n) != text {
			continue
		}
		if st, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && !st.IsDir() { // a link may lead to a folder
			others = append(others, n)
		} else {
			folders = append(folders, n)
		}
	}
	for _, list := range [][]int{folders, others} {
		slices.Sort(list)
		slices.Reverse(list)
	}
	return folders, others, nil
}

// Find opens a folder step-N, or the highest complete one of a folder. Those above it that are incomplete or damaged are told
// to notice; without a complete one below, they are the error.
func Find(dir string, notice func(string)) (*Checkpoint, error) {
	if _, err := os.Stat(filepath.Join(dir, indexName)); err == nil {
		return Open(dir)
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, cannotRead(dir, err)
	}
	steps, err := Steps(dir)
	if err != nil {
		return nil, err
	}
	if len(steps) == 0 {
		return nil, diag.Errorf(diag.CannotRead, diag.At(diag.Pos{File: dir}), "there is no checkpoint in this folder: no %s and no step-N", indexName).
			WithRepair("give the folder of -checkpoint, or a folder step-N in it")
	}
	var skipped []diag.Diagnostic
	for _, n := range steps {
		c, err := Open(filepath.Join(dir, folder(n)))
		if d, ok := errors.AsType[diag.Diagnostic](err); ok && d.Code != diag.CannotRead {
			skipped = append(skipped, d)
			continue
		}
		if err != nil {
			return nil, err // it may be whole
		}
		for _, d := range skipped {
			if notice != nil {
				notice(fmt.Sprintf("%s is skipped: %s", d.Range.File, d.Message))
			}
		}
		return c, nil
	}
	return nil, skipped[0]
}

func folder(step int) string { return "step-" + strconv.Itoa(step) }

// Open opens a folder step-N and checks all of it: hashes, and that each tensor is where the index says.
func Open(path string) (c *Checkpoint, err error) {
	c = &Checkpoint{Path: path, files: map[string]*data.Safetensors{}, where: map[string]string{}}
	defer func() {
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	if err := c.readIndex(); err != nil {
		return c, err
	}
	left := map[string]data.Tensor{} // by file and name
	for _, f := range c.Files {
		name := filepath.Join(path, f.Name)
		if f.Name != filepath.Base(f.Name) || f.Name == ".." || c.files[f.Name] != nil {
			return c, damaged(path, "its index names the file %.80q", f.Name)
		}
		if err := f.check(name); err != nil {
			return c, err
		}
		if c.files[f.Name], err = data.OpenSafetensors(name); err != nil {
			delete(c.files, f.Name)
			return c, err
		}
		for _, t := range c.files[f.Name].Tensors {
			left[f.Name+"/"+t.Name] = t
		}
	}
	take := func(e Entry, name string) error {
		t, ok := left[e.File+"/"+name]
		switch _, twice := c.where[name]; {
		case twice:
			return damaged(path, "it has %q twice", name)
		case !ok:
			return damaged(path, "%q has no tensor %q", e.File, name)
		case t.DType.String() != e.DType || !slices.Equal(t.Shape, e.Shape):
			return damaged(path, "%q is %s%v in %q, its index says %.20s%v", name, t.DType, t.Shape, e.File, e.DType, e.Shape)
		}
		c.where[name] = e.File
		delete(left, e.File+"/"+name)
		return nil
	}
	for _, e := range c.Parameters {
		if err := take(e, e.Name); err != nil {
			return c, err
		}
		for _, s := range c.Optimizer.States {
			if e.Trained {
				if err := take(e, StateName(s, e.Name)); err != nil {
					return c, err
				}
			}
		}
	}
	for _, e := range c.Buffers {
		if err := take(e, BufferName(e.Name)); err != nil {
			return c, err
		}
	}
	if len(left) > 0 {
		return c, damaged(path, "its files have %d tensors that its index does not name", len(left))
	}
	return c, nil
}

func (c *Checkpoint) readIndex() error {
	name := filepath.Join(c.Path, indexName)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return damaged(c.Path, "it is incomplete: it has no %s", indexName)
	}
	if err != nil {
		return cannotRead(name, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIndex+1))
	if err != nil {
		return cannotRead(name, err)
	}
	if len(text) > maxIndex || json.Unmarshal(text, &c.Index) != nil || c.Format != format {
		return damaged(name, "this is no index of a checkpoint")
	}
	if c.Version != Version {
		return damaged(name, "the checkpoint has the version %d of the format; this program reads version %d", c.Version, Version)
	}
	if c.Step < 0 || c.Updates < 0 || c.Updates > c.Step {
		return damaged(name, "it counts %d updates in %d steps", c.Updates, c.Step)
	}
	return nil
}

// check compares a file with its hash.
func (f *File) check(path string) error {
	r, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return damaged(path, "the file is missing")
	}
	if err != nil {
		return cannotRead(path, err)
	}
	defer r.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(r, f.Bytes+1))
	if err != nil {
		return cannotRead(path, err)
	}
	if n != f.Bytes {
		return damaged(path, "the file does not have the %d bytes of its index", f.Bytes)
	}
	if hex.EncodeToString(h.Sum(nil)) != f.SHA256 {
		return damaged(path, "the content of the file is not that of its index: the hashes differ")
	}
	return nil
}

// Digest tells checkpoints apart, by the index, which has the hashes of all files.
func (c *Checkpoint) Digest() (uint32, error) {
	text, err := json.Marshal(&c.Index)
	return data.Digest(data.Array{Data: text}), err
}

// Read returns a tensor of the checkpoint.
func (c *Checkpoint) Read(name string) (data.Array, error) {
	f := c.files[c.where[name]]
	if f == nil {
		return data.Array{}, damaged(c.Path, "it has no tensor %q", name)
	}
	return f.Read(name)
}

// Close closes the files.
func (c *Checkpoint) Close() error {
	var err error
	for _, f := range c.Files {
		if s := c.files[f.Name]; s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}
