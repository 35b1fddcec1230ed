//go:build linux

package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Corrupt changes what a rank sends or receives. Under MPI that is a byte of one message (see Setup.Messages). Else it takes the
// rights that a debugger has: bytes come between its messages in sockets, or over them in shared memory, until the run ends or for
// two seconds.
func (r *Run) Corrupt(pid int) error {
	switch r.Form {
	case Socket:
		return onSockets(pid, func(fd int) error { _, err := unix.Write(fd, []byte(strings.Repeat("\xff", 100))); return err })
	case Shared:
		return r.scribble(pid)
	case MPI:
		return r.damage(pid, "flip")
	}
	return r.none()
}

// CutOff ends what a rank sends, as if it had ended; under MPI, one message before its end.
func (r *Run) CutOff(pid int) error {
	if r.Form == MPI {
		return r.damage(pid, "cut")
	}
	return onSockets(pid, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}

// Repeat has one message of a rank sent twice.
func (r *Run) Repeat(pid int) error {
	if r.Form == MPI {
		return r.damage(pid, "repeat")
	}
	return r.none()
}

// Lose takes one message away, that a rank sends or is to receive.
func (r *Run) Lose(pid int) error {
	switch r.Form {
	case Socket:
		return steal(pid)
	case MPI:
		return r.damage(pid, "lose")
	}
	return r.none()
}

func (r *Run) none() error {
	return fmt.Errorf("%s has no messages to which this can be done from outside", r.Form)
}

// onSockets does something to the sockets of a rank but for file 3, where launch is at the other end.
func onSockets(pid int, do func(fd int) error) error {
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
		err = do(fd)
		unix.Close(fd)
		if err != nil {
			return err
		}
		done++
	}
	if done == 0 {
		return errors.New("the process has no sockets to other ranks")
	}
	return nil
}

// A message in a socket begins with these bytes, has its kind behind them, and its length there; see package process.
const (
	frameHead   = "ppc1\x01\x00\x00\x00"
	frameLength = 24
	frameBytes  = 36
)

// steal reads a message in the place of the rank that it is for. The rank must stand still for that, and not within a message.
func steal(pid int) error {
	for range 200 {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
		stolen := false
		err := onSockets(pid, func(fd int) error {
			b := make([]byte, 1<<20)
			for range 20 {
				n, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
				if err == nil && n >= frameBytes && strings.HasPrefix(string(b), frameHead) {
					if length := frameBytes + int(binary.LittleEndian.Uint32(b[frameLength:])); n >= length {
						_, _, err := unix.Recvfrom(fd, b[:length], unix.MSG_DONTWAIT)
						stolen = true
						return err
					}
				}
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		unix.Kill(pid, unix.SIGCONT)
		if err != nil || stolen {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("no message has come")
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

// CutCable ends what goes between the host of a process and the other one (see Setup.Hosts).
func CutCable(pid int) error {
	out, err := exec.Command("nsenter", "--target", strconv.Itoa(pid), "--net", "ip", "link", "set", "cable", "down").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
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
