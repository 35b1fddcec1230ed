//go:build linux

package process

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Config is what all ranks of a run agree on, and which of them this process is.
type Config struct {
	Rank, Ranks int
	Dir         string   // folder of the sockets, which nobody else can enter
	Token       [32]byte // random, and known to the ranks of this run only
	Plan        [32]byte // hash of the program
	Version     string   // of the command
	Shared      bool     // messages go through shared memory
	Largest     int      // bytes of the largest message: what the shared memory is made for
	Deadline    time.Duration
}

// hello opens a connection, in both directions.
type hello struct {
	Magic    [8]byte
	Token    [32]byte
	Version  [32]byte // its first bytes
	Plan     [32]byte
	From, To uint32
	Ranks    uint32
	Ring     uint32 // bytes of a ring in shared memory; 0 without
}

var (
	helloMagic = [8]byte{'p', 'p', 'c', ' ', 'r', 'a', 'n', 'k'}
	helloSize  = binary.Size(hello{})
)

func (c *Config) hello(to int) hello {
	h := hello{Magic: helloMagic, Token: c.Token, Plan: c.Plan, From: uint32(c.Rank), To: uint32(to), Ranks: uint32(c.Ranks)}
	copy(h.Version[:], c.Version)
	if c.Shared {
		h.Ring = uint32(ringFor(c.Largest))
	}
	return h
}

// errStranger is a connection that is not one of this run: it is closed, and the run goes on without it.
var errStranger = errors.New("it has not the token of this run")

// check compares what a peer says with what it must say.
func (c *Config) check(h hello, from int) error {
	want := c.hello(0)
	switch {
	case h.Magic != helloMagic || subtle.ConstantTimeCompare(h.Token[:], c.Token[:]) != 1 || int(h.To) != c.Rank:
		return errStranger
	case h.Version != want.Version:
		return fmt.Errorf("rank %d has version %s of the command, and rank %d has version %s", h.From, bytes.TrimRight(h.Version[:], "\x00"), c.Rank, c.Version)
	case h.Plan != want.Plan:
		return fmt.Errorf("rank %d runs another program", h.From)
	case h.Ranks != want.Ranks || h.Ring != want.Ring:
		return fmt.Errorf("rank %d was started for another number of ranks or with another transport", h.From)
	case from >= 0 && int(h.From) != from, int(h.From) >= c.Ranks:
		return fmt.Errorf("rank %d is not who was asked for", h.From)
	}
	return nil
}

// Listener waits for the ranks above its own.
type Listener struct {
	config   Config
	listener *net.UnixListener
}

func (c *Config) path(rank int) string { return filepath.Join(c.Dir, strconv.Itoa(rank)) }

// longestPath is how long the name of a socket may be.
const longestPath = len(unix.RawSockaddrUnix{}.Path) - 1

// Listen opens the socket of a rank.
func Listen(c Config) (*Listener, error) {
	path := c.path(c.Rank)
	if len(path) > longestPath {
		return nil, fmt.Errorf("rank %d cannot open its socket: the name %s has more than %d bytes; give TMPDIR a shorter one", c.Rank, path, longestPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("rank %d cannot open its socket %s: %w", c.Rank, path, cause(err))
	}
	return &Listener{c, l}, nil
}

// cause is an error of a socket without the names of calls and paths.
func cause(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

// Close gives up.
func (l *Listener) Close() { l.listener.Close() }

// Connect joins all ranks, which must listen by now. It ends with ctx, and after the deadline.
func (l *Listener) Connect(ctx context.Context) (r *Ranks, err error) {
	c := &l.config
	r = newRanks(c.Rank, c.Ranks)
	defer l.Close()
	defer func() {
		if err != nil {
			r.Close()
			r = nil
		}
	}()
	until := time.Now().Add(c.Deadline)
	l.listener.SetDeadline(until)
	defer context.AfterFunc(ctx, l.Close)()
	for rank := range c.Rank {
		s, err := c.dial(rank, until)
		if err != nil {
			return r, fmt.Errorf("rank %d: joining rank %d: %w", c.Rank, rank, err)
		}
		r.add(rank, s)
	}
	for len(r.others) < c.Ranks-1 {
		conn, err := l.listener.AcceptUnix()
		if err != nil {
			for rank := c.Rank + 1; rank < c.Ranks; rank++ {
				if r.peers[rank] == nil {
					return r, fmt.Errorf("rank %d: waiting for rank %d to join: %w", c.Rank, rank, cause(err))
				}
			}
		}
		rank, s, err := c.accept(conn, until)
		if err == errStranger {
			continue
		}
		if err == nil && (rank <= c.Rank || r.peers[rank] != nil) {
			s.close()
			err = fmt.Errorf("rank %d joins twice", rank)
		}
		if err != nil {
			return r, fmt.Errorf("rank %d: %w", c.Rank, err)
		}
		r.add(rank, s)
	}
	return r, nil
}

// dial connects to a rank below. The side that dials brings the shared memory.
func (c *Config) dial(rank int, until time.Time) (stream, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.path(rank), Net: "unix"})
	if err != nil {
		return nil, cause(err)
	}
	defer conn.Close()
	conn.SetDeadline(until)
	memory := -1
	var rights []byte
	if c.Shared {
		if memory, err = makeShared(ringFor(c.Largest)); err != nil {
			return nil, err
		}
		defer unix.Close(memory)
		rights = unix.UnixRights(memory)
	}
	if err := sameUser(conn); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, c.hello(rank))
	if _, _, err := conn.WriteMsgUnix(b.Bytes(), rights, nil); err != nil {
		return nil, cause(err)
	}
	h, _, err := readHello(conn)
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it has refused this rank")
	}
	if err == nil {
		err = c.check(h, rank)
	}
	if err != nil {
		return nil, err
	}
	return c.open(conn, memory, true)
}

// accept takes a connection of a rank above.
func (c *Config) accept(conn *net.UnixConn, until time.Time) (rank int, s stream, err error) {
	defer conn.Close()
	if soon := time.Now().Add(2 * time.Second); until.After(soon) {
		until = soon // one that says nothing must not keep others out
	}
	conn.SetDeadline(until)
	if sameUser(conn) != nil {
		return 0, nil, errStranger
	}
	h, memory, err := readHello(conn)
	if memory >= 0 {
		defer unix.Close(memory)
	}
	if err != nil {
		return 0, nil, errStranger
	}
	err = c.check(h, -1)
	if err == errStranger {
		return 0, nil, err
	}
	// One that knows the token learns what does not fit.
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, c.hello(int(h.From)))
	if _, e := conn.Write(b.Bytes()); err == nil {
		err = e
	}
	if err == nil && c.Shared {
		if memory < 0 {
			err = errShared
		} else {
			err = checkShared(memory, ringFor(c.Largest))
		}
	}
	if err != nil {
		return 0, nil, err
	}
	s, err = c.open(conn, memory, false)
	return int(h.From), s, err
}

// readHello reads a greeting and the memory that may come with it, -1 if none does.
func readHello(conn *net.UnixConn) (h hello, memory int, err error) {
	b, oob := make([]byte, helloSize), make([]byte, unix.CmsgSpace(4))
	memory = -1
	n, m, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return h, memory, err
	}
	if n == 0 {
		return h, memory, io.EOF
	}
	if messages, err := unix.ParseSocketControlMessage(oob[:m]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			memory = fds[0]
			unix.CloseOnExec(memory)
		}
	}
	if _, err := io.ReadFull(conn, b[n:]); err != nil {
		return h, memory, err
	}
	return h, memory, binary.Read(bytes.NewReader(b), binary.LittleEndian, &h)
}

// sameUser holds that the process at the other end belongs to the user of this one.
func sameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var e error
	if err := raw.Control(func(fd uintptr) { peer, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if e != nil {
		return e
	}
	if int(peer.Uid) != os.Getuid() {
		return errors.New("it belongs to another user")
	}
	return nil
}

// open makes the stream of a connection. memory is -1 without.
func (c *Config) open(conn *net.UnixConn, memory int, made bool) (stream, error) {
	f, err := conn.File() // of its own
	if err != nil {
		return nil, err
	}
	s, err := newSocket(f)
	if err == nil && memory >= 0 {
		var x *shared
		if x, err = newShared(s, memory, ringFor(c.Largest), made); err == nil {
			return x, nil
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}
