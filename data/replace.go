package data

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ppc-lang/ppc/diag"
)

// ReplaceFile writes a file beside its place and renames it, so that a reader
// never sees half of it, and nothing of it if this process is killed, where
// the file system can do that. A link keeps pointing to its file; what is no regular
// file, such as a device or a pipe, is written to and never replaced: see
// Create. An existing file keeps its mode.
func ReplaceFile(ctx context.Context, path string, write func(io.Writer) error) error {
	err := replaceFile(ctx, path, write)
	if err != nil {
		return diag.Errorf(diag.CannotWrite, diag.At(diag.Pos{File: path}), "cannot write: %v", reason(err))
	}
	return nil
}

func replaceFile(ctx context.Context, path string, write func(io.Writer) error) (err error) {
	mode := fs.FileMode(0o644)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if st, err := os.Lstat(path); err == nil {
		if !st.Mode().IsRegular() {
			return writeThrough(ctx, path, write)
		}
		mode = st.Mode().Perm()
	}
	dir, hidden := filepath.Dir(path), "."+filepath.Base(path)+"."
	f, err := createUnnamed(dir)
	unnamed := err == nil
	if !unnamed {
		if f, err = os.CreateTemp(dir, hidden+"*"); err != nil {
			return err
		}
		hidden = f.Name()
	} else {
		hidden = filepath.Join(dir, hidden+rand.Text())
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(hidden)
		}
	}()
	buffered := bufio.NewWriter(f)
	if err = errors.Join(write(buffered), buffered.Flush(), f.Chmod(mode)); err != nil {
		return err
	}
	if unnamed {
		if err = giveName(f, hidden); err != nil {
			return err
		}
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(hidden, path)
}

func writeThrough(ctx context.Context, path string, write func(io.Writer) error) error {
	f, err := Create(ctx, path)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriter(f)
	err = errors.Join(write(buffered), buffered.Flush(), f.Close())
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errUnread
	}
	return err
}

var errUnread = errors.New("nobody reads this pipe")

// Create is os.Create, but for pipes: one that nobody reads, yet or any more, is waited for no longer than ctx lives, neither here
// nor when it is written to.
func Create(ctx context.Context, path string) (*os.File, error) {
	if st, err := os.Stat(path); err != nil || st.Mode()&fs.ModeNamedPipe == 0 {
		return os.Create(path)
	}
	for {
		f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })
			return f, nil
		}
		if !errors.Is(err, syscall.ENXIO) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, errUnread
		case <-time.After(20 * time.Millisecond):
		}
	}
}
