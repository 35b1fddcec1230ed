//go:build linux

package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stream moves bytes to and from one peer, as many as can be moved without waiting.
type stream interface {
	// read returns 0 and no error when nothing has arrived, io.EOF when nothing more will.
	read(p []byte) (int, error)
	// write returns how many bytes of the buffers it took.
	write(buffers [][]byte) (int, error)
	// sleep prepares for waiting on the socket and tells whether that is still wanted: false if something arrived, or there
	// is room for what wants to leave, meanwhile. awake is called afterwards.
	sleep(writing bool) bool
	awake(woken bool)
	// wants is what to wait for on the socket.
	wants(writing bool) unix.PollFd
	close()
}

// socket is a stream over a socket. Small reads come out of a buffer. System calls are made without telling Go's scheduler: none of
// them waits, and it would hand the processor on, to look after 20 us whether to take it back, which costs more than the message.
type socket struct {
	fd    int
	buf   []byte
	rest  []byte       // of buf: read and not taken
	dry   bool         // the last read took all that had arrived
	iovec []unix.Iovec // memory of write
}

// newSocket takes over the file. Its descriptor is another one, which Go's poller does not know: it would wake a thread for every
// message, beside the rank that polls.
func newSocket(f *os.File) (*socket, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20) // what the machine allows
	return &socket{fd: fd, buf: make([]byte, 64<<10)}, nil
}

func (s *socket) read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		dst := p
		if len(p) < len(s.buf) {
			dst = s.buf
		}
		if s.dry {
			s.dry = false
			return 0, nil
		}
		n, err := s.fetch(dst)
		if err != nil {
			return 0, err
		}
		if s.dry = 0 < n && n < len(dst); len(p) >= len(s.buf) {
			return n, nil
		}
		s.rest = s.buf[:n]
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *socket) fetch(p []byte) (int, error) {
	for {
		n, _, err := unix.RawSyscall(unix.SYS_READ, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, nil
		case err != 0:
			return 0, io.EOF // a reset: the peer is gone with unread messages
		case n == 0:
			return 0, io.EOF
		default:
			return int(n), nil
		}
	}
}

// mostBuffers is how many one system call takes.
const mostBuffers = 512

func (s *socket) write(buffers [][]byte) (int, error) {
	for {
		s.iovec = s.iovec[:0]
		for _, b := range buffers[:min(len(buffers), mostBuffers)] {
			s.iovec = append(s.iovec, unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))})
		}
		n, _, err := unix.RawSyscall(unix.SYS_WRITEV, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(s.iovec))), uintptr(len(s.iovec)))
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, nil
		case err == unix.EPIPE || err == unix.ECONNRESET:
			return 0, io.EOF
		case err != 0:
			return 0, err
		default:
			return int(n), nil
		}
	}
}

func (s *socket) sleep(bool) bool { return len(s.rest) == 0 }
func (s *socket) awake(bool)      {}
func (s *socket) close()          { unix.Close(s.fd) }

func (s *socket) wants(writing bool) unix.PollFd {
	fd := unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN}
	if writing {
		fd.Events |= unix.POLLOUT
	}
	return fd
}

// Shared memory has a ring for each direction: a page with counters on cache lines of their own, then the bytes. Small rings
// stay in a cache; one that a message does not fit into twice makes its sender come back for the rest.
const (
	smallestRing = 256 << 10
	largestRing  = 32 << 20
	ringPage     = 4 << 10
)

// ringFor is the size of rings for messages of that many bytes, a power of two.
func ringFor(bytes int) int {
	size := smallestRing
	for size < largestRing && size < 2*(bytes+headerSize) {
		size *= 2
	}
	return size
}

// sharedSize is that of the memory for two rings.
func sharedSize(ring int) int { return 2 * (ringPage + ring) }

// ring is one direction. The counters only grow; the peer may write anything into them, so what is read is checked.
type ring struct {
	written      *atomic.Uint64
	taken        *atomic.Uint64
	readerSleeps *atomic.Uint32
	writerSleeps *atomic.Uint32
	data         []byte
	size         uint64
	ownWritten   uint64 // of the writing side
	ownTaken     uint64 // of the reading side
	seen         uint64 // the last valid counter of the other side
}

func newRing(mem []byte) *ring {
	at := func(n int) unsafe.Pointer { return unsafe.Pointer(&mem[n]) }
	return &ring{
		written: (*atomic.Uint64)(at(0)), taken: (*atomic.Uint64)(at(64)),
		readerSleeps: (*atomic.Uint32)(at(128)), writerSleeps: (*atomic.Uint32)(at(192)),
		data: mem[ringPage:], size: uint64(len(mem) - ringPage),
	}
}

// errShared is what a peer that does not keep to the counters leaves.
var errShared = errors.New("the shared memory is damaged")

func (r *ring) read(p []byte) (int, error) {
	if r.seen == r.ownTaken {
		if r.seen = r.written.Load(); r.seen-r.ownTaken > r.size {
			return 0, errShared
		}
	}
	n := min(int(r.seen-r.ownTaken), len(p))
	at := int(r.ownTaken % r.size)
	m := copy(p[:n], r.data[at:])
	copy(p[m:n], r.data)
	r.ownTaken += uint64(n)
	return n, nil
}

func (r *ring) write(buffers [][]byte) (int, error) {
	total := 0
	for _, b := range buffers {
		if int(r.size-(r.ownWritten-r.seen)) < len(b) {
			if r.seen = r.taken.Load(); r.ownWritten-r.seen > r.size {
				return 0, errShared
			}
		}
		n := min(int(r.size-(r.ownWritten-r.seen)), len(b))
		at := int(r.ownWritten % r.size)
		m := copy(r.data[at:], b[:n])
		copy(r.data, b[m:n])
		r.ownWritten += uint64(n)
		total += n
		if n < len(b) {
			break
		}
	}
	return total, nil
}

// shared is a stream over shared memory.
type shared struct {
	*socket
	mem     []byte
	in, out *ring
	ended   bool
}

// newShared maps the memory. The side that made it writes into the first ring.
func newShared(s *socket, fd, ring int, made bool) (*shared, error) {
	mem, err := unix.Mmap(fd, 0, sharedSize(ring), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	half := ringPage + ring
	x := &shared{socket: s, mem: mem, out: newRing(mem[:half]), in: newRing(mem[half:])}
	if !made {
		x.in, x.out = x.out, x.in
	}
	return x, nil
}

// makeShared makes memory that cannot shrink under the one that maps it.
func makeShared(ring int) (fd int, err error) {
	fd, err = unix.MemfdCreate("ppc", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		if err = unix.Ftruncate(fd, int64(sharedSize(ring))); err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return -1, fmt.Errorf("shared memory: %w", err)
	}
	return fd, nil
}

// checkShared holds that memory from a peer is what makeShared makes.
func checkShared(fd, ring int) error {
	var st unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil || st.Size != int64(sharedSize(ring)) || seals&unix.F_SEAL_SHRINK == 0 {
		return errShared
	}
	return nil
}

func (x *shared) read(p []byte) (int, error) {
	n, err := x.in.read(p)
	if n == 0 && err == nil && x.ended {
		return 0, io.EOF
	}
	if n > 0 {
		x.in.taken.Store(x.in.ownTaken)
		x.wake(x.in.writerSleeps)
	}
	return n, err
}

func (x *shared) write(buffers [][]byte) (int, error) {
	if x.ended {
		return 0, io.EOF
	}
	n, err := x.out.write(buffers)
	if n > 0 {
		x.out.written.Store(x.out.ownWritten)
		x.wake(x.out.readerSleeps)
	}
	return n, err
}

// wake sends a byte over the socket to a peer that sleeps. One that cannot be sent is one of many that have been.
func (x *shared) wake(sleeps *atomic.Uint32) {
	if sleeps.Load() != 0 && sleeps.Swap(0) != 0 {
		unix.Write(x.fd, []byte{1})
	}
}

func (x *shared) sleep(writing bool) bool {
	x.in.readerSleeps.Store(1)
	if writing {
		x.out.writerSleeps.Store(1)
	}
	return x.in.written.Load() == x.in.ownTaken && (!writing || x.out.ownWritten-x.out.taken.Load() == x.out.size)
}

// awake takes the bytes that woke this side up, or finds that there is nobody left who could.
func (x *shared) awake(woken bool) {
	x.in.readerSleeps.Store(0)
	x.out.writerSleeps.Store(0)
	if woken {
		if _, err := x.fetch(x.buf); err != nil {
			x.ended = true
		}
	}
}

func (x *shared) wants(bool) unix.PollFd { return x.socket.wants(false) }

func (x *shared) close() {
	x.socket.close()
	unix.Munmap(x.mem)
}
