package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ppc-lang/ppc/diag"
)

// lockName is the file that the run holds which writes to a folder. One that was killed leaves the file, and nothing holds it.
const lockName = ".lock"

// Lock keeps other runs from writing to a folder, until it is closed or the process ends, in whatever way.
type Lock struct{ file *os.File }

// errHeld says that another process has the lock; errors.ErrUnsupported, that the file system has none.
var errHeld = errors.New("held by another process")

// Lock takes the lock of the folder, which must be there. Where the file system has no locks it tells notice so, and the lock is nil.
func (s *Store) Lock(notice func(string)) (*Lock, error) {
	path := filepath.Join(s.Dir, lockName)
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			return nil, cannotWrite(path, err)
		}
		switch err = lockFile(f); {
		case err == nil:
		case errors.Is(err, errHeld):
			return nil, s.held(f)
		default:
			f.Close()
			os.Remove(path)
			if notice != nil {
				notice(fmt.Sprintf("%s: the file system has no locks: see to it that no other run writes there", s.Dir))
			}
			return nil, nil
		}
		// The one before removes the file when it is done: a lock on a file without a name keeps nobody out.
		mine, err := f.Stat()
		named, missing := os.Stat(path)
		if err != nil || missing != nil || !os.SameFile(mine, named) {
			f.Close()
			continue
		}
		host, _ := os.Hostname()
		f.Truncate(0)
		fmt.Fprintf(f, "process %d on %s\n", os.Getpid(), host) // for people
		return &Lock{f}, nil
	}
}

// held says who has the lock.
func (s *Store) held(f *os.File) error {
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, 200))
	who := strings.TrimSpace(string(text))
	if who != "" {
		who = ", " + who
	}
	return diag.Errorf(diag.BadCheckpoint, diag.At(diag.Pos{File: s.Dir}), "another run writes checkpoints to this folder%s", who).
		WithRepair("wait until it has ended, or give another folder")
}

// Close gives the lock back. That of nil is none.
func (l *Lock) Close() {
	if l != nil {
		os.Remove(l.file.Name()) // still locked: nobody else has just taken it
		l.file.Close()
	}
}
