//go:build linux

package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Corrupt changes what a rank sends and receives, with the rights that a debugger has: bytes come between its messages in sockets, or
// over them in shared memory, until the run ends or for two seconds.
func (r *Run) Corrupt(pid int) error {
	switch r.Form {
	case Socket:
		return onSockets(pid, func(fd int) { unix.Write(fd, []byte(strings.Repeat("\xff", 100))) })
	case Shared:
		return r.scribble(pid)
	}
	return fmt.Errorf("%s has no messages that can be changed from outside", r.Form)
}

// CutOff ends what a rank sends, as if it had ended.
func (r *Run) CutOff(pid int) error {
	return onSockets(pid, func(fd int) { unix.Shutdown(fd, unix.SHUT_WR) })
}

// onSockets does something to the sockets of a rank but for file 3, where launch is at the other end.
func onSockets(pid int, do func(fd int)) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(process)
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err
	}
	done := 0
	for _, f := range files {
		n, _ := strconv.Atoi(filepath.Base(f))
		if to, err := os.Readlink(f); err != nil || !strings.HasPrefix(to, "socket:") || n == 3 {
			continue
		}
		fd, err := unix.PidfdGetfd(process, n, 0)
		if err != nil {
			return err
		}
		do(fd)
		unix.Close(fd)
		done++
	}
	if done == 0 {
		return errors.New("the process has no sockets to other ranks")
	}
	return nil
}

var sharedMapping = regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) rw-s .*memfd:ppc`)

// scribble writes over the memory that a rank shares with others, but for the counters of the rings.
func (r *Run) scribble(pid int) error {
	m := sharedMapping.FindStringSubmatch(read(fmt.Sprintf("/proc/%d/maps", pid)))
	if m == nil {
		return errors.New("the process shares no memory")
	}
	from, _ := strconv.ParseInt(m[1], 16, 64)
	to, _ := strconv.ParseInt(m[2], 16, 64)
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	const page = 4096
	half := (to - from) / 2
	garbage := []byte(strings.Repeat("\xff", int(half-page)))
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until) && r.Running(); {
		for _, ring := range []int64{from, from + half} {
			if _, err := memory.WriteAt(garbage, ring+page); err != nil && r.Running() {
				return nil // it has ended meanwhile
			}
		}
	}
	return nil
}

// Running tells whether the command has not ended.
func (r *Run) Running() bool { return syscall.Kill(r.cmd.Process.Pid, 0) == nil }

// LimitFiles keeps a process from making files longer than that.
func LimitFiles(pid, bytes int) error {
	return unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}, nil)
}

// LimitOpen keeps a process from opening more files than standard input, output and error; those that it has open stay.
func LimitOpen(pid int) error {
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3}, nil)
}
