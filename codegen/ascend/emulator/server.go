package emulator

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strconv"
	"sync"
)

// Arg is one argument of a launch.
type Arg struct {
	scalar bool
	value  uint64 // offset in the arena, or the bits of a scalar
	length uint64
}

// BufferArg passes length bytes of the arena from offset on. The kernel may
// touch nothing beside them.
func BufferArg(offset, length int) Arg {
	return Arg{value: uint64(offset), length: uint64(length)}
}

// Float32Arg passes a float by value.
func Float32Arg(value float32) Arg {
	return Arg{scalar: true, value: uint64(math.Float32bits(value))}
}

// Int32Arg passes an integer by value.
func Int32Arg(value int32) Arg {
	return Arg{scalar: true, value: uint64(uint32(value))}
}

// Fault is a refusal of the emulator: what the chip would have refused or
// silently done wrong.
type Fault struct {
	Kernel  string
	Block   int
	Call    string
	Message string
}

func (f *Fault) Error() string {
	return fmt.Sprintf("kernel %s, block %d, %s: %s", f.Kernel, f.Block, f.Call, f.Message)
}

// Server is a running kernel server. Its methods may be called from several
// goroutines; launches run one after the other.
type Server struct {
	command *exec.Cmd
	cancel  context.CancelFunc
	arena   []byte
	stderr  *tail

	mutex    sync.Mutex
	requests io.WriteCloser
	answers  io.Reader
	failed   error // set once the child is unusable
}

const (
	requestMagic  = 0x7070632d6c61756e
	maxAnswerText = 1 << 16
	stderrKept    = 4 << 10
)

// Start runs the kernel server that Build made, with a shared arena of
// arenaBytes, zero at first. The child ends with ctx, at Close, or when this
// process ends.
func Start(ctx context.Context, exe string, arenaBytes int) (*Server, error) {
	if arenaBytes <= 0 {
		return nil, fmt.Errorf("an arena of %d bytes", arenaBytes)
	}
	file, arena, err := mapArena(arenaBytes)
	if err != nil {
		return nil, fmt.Errorf("the emulator's arena of %d bytes: %w", arenaBytes, err)
	}
	defer file.Close()
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{cancel: cancel, arena: arena, stderr: &tail{}}
	s.command = exec.CommandContext(ctx, exe, strconv.Itoa(arenaBytes))
	s.command.ExtraFiles = []*os.File{file}
	s.command.Stderr = s.stderr
	if s.requests, err = s.command.StdinPipe(); err == nil {
		s.answers, err = s.command.StdoutPipe()
	}
	if err == nil {
		err = s.command.Start()
	}
	if err != nil {
		cancel()
		return nil, errors.Join(fmt.Errorf("starting the kernel server: %w", err), unmapArena(arena))
	}
	return s, nil
}

// Arena returns the memory shared with the kernels. It must not be used after Close.
func (s *Server) Arena() []byte { return s.arena }

// Launch runs a kernel on blocks blocks and waits for its end. The error is a
// *Fault when the emulator refused something; the arena's contents are then
// undefined, but the server goes on.
func (s *Server) Launch(kernel, blocks int, args []Arg) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.failed != nil {
		return s.failed
	}
	request := make([]byte, 0, 32+24*len(args))
	for _, word := range []uint64{requestMagic, uint64(kernel), uint64(blocks), uint64(len(args))} {
		request = binary.NativeEndian.AppendUint64(request, word)
	}
	for _, arg := range args {
		kind := uint64(0)
		if arg.scalar {
			kind = 1
		}
		for _, word := range []uint64{kind, arg.value, arg.length} {
			request = binary.NativeEndian.AppendUint64(request, word)
		}
	}
	fault, err := s.exchange(request)
	if err != nil {
		return s.fail(kernel, err)
	}
	if fault != nil {
		return fault
	}
	return nil
}

func (s *Server) exchange(request []byte) (*Fault, error) {
	if _, err := s.requests.Write(request); err != nil {
		return nil, err
	}
	status, err := s.word()
	if err != nil || status == 0 {
		return nil, err
	}
	block, err := s.word()
	if err != nil {
		return nil, err
	}
	fault := &Fault{Block: int(block)}
	for _, field := range []*string{&fault.Kernel, &fault.Call, &fault.Message} {
		if *field, err = s.text(); err != nil {
			return nil, err
		}
	}
	return fault, nil
}

func (s *Server) word() (uint64, error) {
	var data [8]byte
	_, err := io.ReadFull(s.answers, data[:])
	return binary.NativeEndian.Uint64(data[:]), err
}

func (s *Server) text() (string, error) {
	length, err := s.word()
	if err != nil {
		return "", err
	}
	if length > maxAnswerText {
		return "", fmt.Errorf("an answer of %d bytes", length)
	}
	data := make([]byte, length)
	_, err = io.ReadFull(s.answers, data)
	return string(data), err
}

// fail records that the child ended or talks nonsense; the caller holds the mutex.
func (s *Server) fail(kernel int, cause error) error {
	s.cancel()
	state := s.command.Wait()
	s.failed = fmt.Errorf("the kernel server ended in kernel %d: %w", kernel, errors.Join(cause, state))
	if text := s.stderr.String(); text != "" {
		s.failed = fmt.Errorf("%w\n%s", s.failed, text)
	}
	return s.failed
}

// Close ends the child and unmaps the arena.
func (s *Server) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var err error
	if s.failed == nil {
		s.failed = errors.New("the kernel server is closed")
		s.requests.Close()
		err = s.command.Wait()
	}
	s.cancel()
	if s.arena != nil {
		err = errors.Join(err, unmapArena(s.arena))
		s.arena = nil
	}
	return err
}

// tail keeps the last bytes written to it.
type tail struct {
	mutex sync.Mutex
	data  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.data = append(t.data, p...)
	if len(t.data) > stderrKept {
		t.data = append([]byte(nil), t.data[len(t.data)-stderrKept:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return string(bytes.TrimSpace(t.data))
}
