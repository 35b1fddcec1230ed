package data

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// descriptors has a link to each open file of this process.
const descriptors = "/proc/self/fd"

// createUnnamed makes a file in a folder in which nobody sees it, so that nothing is left of it if this process is killed. Not every
// file system can.
func createUnnamed(dir string) (*os.File, error) {
	if _, err := os.Stat(descriptors); err != nil {
		return nil, err // it could be given no name
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// giveName gives an unnamed file a name that no other file has.
func giveName(f *os.File, path string) error {
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("%s/%d", descriptors, f.Fd()), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
}
