//go:build linux

// Package launch runs the ranks of a program as processes of this machine: a supervisor starts them, tells each what it is,
// watches over them and ends them; a worker is the other side of that, in the process of a rank.
//
// Supervisor and worker talk over a socket pair that the worker inherits, so that nobody else can; each notices the other's
// death by its end. The ranks talk to each other by package process.
package launch

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/ppc-lang/ppc/diag"
	"github.com/ppc-lang/ppc/runtime"
)

// message is what supervisor and worker tell each other.
type message struct {
	Kind    kind
	Job     *Job            `json:",omitempty"`
	Status  *runtime.Status `json:",omitempty"`
	Text    string          `json:",omitempty"`
	Failure *Failure        `json:",omitempty"`
}

type kind string

const (
	// From the supervisor.
	job     kind = "job"
	connect kind = "connect" // all workers listen
	start   kind = "start"   // all are joined
	leave   kind = "leave"   // all are done
	stop    kind = "stop"    // one has failed
	ask     kind = "ask"     // what do you do?
	save    kind = "save"    // save behind a step, and end
	// From the worker.
	alive     kind = "alive"
	listening kind = "listening"
	ready     kind = "ready" // joined to all others
	output    kind = "output"
	failed    kind = "failed"
	done      kind = "done"
)

// Job is what a worker has to know.
type Job struct {
	Rank, Ranks int
	Dir         string // of the sockets
	Token       []byte
	Shared      bool
	Deadline    time.Duration
}

// Failure is why a worker, or all of them, ended.
type Failure struct {
	Code   int // exit code of the command
	Faults []Fault
	Gone   int // 1 + the rank whose end was the reason
}

// Fault is a diagnostic with a place, which may be unknown.
type Fault struct {
	Code            diag.Code
	Message, Repair string
	File            string
	Line, Col       int
}

// NewFailure keeps of diagnostics what can travel.
func NewFailure(code int, list diag.List) *Failure {
	f := &Failure{Code: code}
	for _, d := range list.Sorted() {
		f.Faults = append(f.Faults, Fault{d.Code, d.Message, d.Repair, d.Range.File, d.Range.Line, d.Range.Col})
	}
	return f
}

// List gives the diagnostics back.
func (f *Failure) List() (list diag.List) {
	for _, x := range f.Faults {
		list.Add(diag.Diagnostic{Code: x.Code, Message: x.Message, Repair: x.Repair, Range: diag.At(diag.Pos{File: x.File, Line: x.Line, Col: x.Col})})
	}
	return list
}

func (f *Failure) Error() string { return f.List().Error() }

// mostMessage bounds what one message may make the reader allocate.
const mostMessage = 1 << 20

// channel carries messages, each behind its length. Sending is safe from several goroutines.
type channel struct {
	file *os.File
	mu   sync.Mutex
}

var errLong = errors.New("a message is too long")

func (c *channel) send(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > mostMessage {
		return errLong
	}
	b = append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.file.Write(b)
	return err
}

func (c *channel) receive() (m message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(c.file, head[:]); err != nil {
		return m, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > mostMessage {
		return m, errLong
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.file, b); err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("a message cannot be read: %w", err)
	}
	return m, nil
}
