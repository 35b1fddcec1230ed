//go:build unix

package emulator

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// mapArena maps a new file that has no name any more, so that nothing is left
// behind whatever way the processes end.
func mapArena(bytes int) (*os.File, []byte, error) {
	file, err := os.CreateTemp("", "ppc-arena-*")
	if err != nil {
		return nil, nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	if err := file.Truncate(int64(bytes)); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	arena, err := unix.Mmap(int(file.Fd()), 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, arena, nil
}

func unmapArena(arena []byte) error { return unix.Munmap(arena) }
