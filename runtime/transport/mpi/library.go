// Package mpi is the transport of ranks that `mpirun` starts, on one host or several: MPI does the work. The library is loaded
// at run time; nothing needs it to build or to run without it.
package mpi

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Launched reports whether mpirun has started this process.
func Launched() bool { return os.Getenv("OMPI_COMM_WORLD_SIZE") != "" }

// libraries are the names of Open MPI's library: the ABI below is that of Open MPI 4 and 5, whose objects are symbols.
var libraries = []string{"libmpi.so.40", "libmpi.so"}

// ErrMissing is why MPI cannot be used: the library is not there, or is another MPI.
var ErrMissing = errors.New("no library of Open MPI is found")

// handle is a pointer to an object of the library.
type handle uintptr

// library is what the transport uses of MPI.
type library struct {
	world, bytes, returning handle

	initThread   func(argc, argv unsafe.Pointer, required int32, provided *int32) int32
	setHandler   func(comm, handler handle) int32
	commRank     func(comm handle, rank *int32) int32
	commSize     func(comm handle, size *int32) int32
	isend, irecv func(buffer unsafe.Pointer, count int32, datatype handle, peer, tag int32, comm handle, request *handle) int32
	test         func(request *handle, done *int32, status unsafe.Pointer) int32
	barrier      func(comm handle) int32
	abort        func(comm handle, code int32) int32
	finalize     func() int32
	errorString  func(code int32, text *byte, length *int32) int32
}

// status is what MPI_Test tells of a message: the layout is that of Open MPI.
type status struct {
	source, tag, code, cancelled int32
	bytes                        uint64
}

// threadSerialized: any thread may call, one at a time. A goroutine may move between threads.
const threadSerialized = 2

// load opens the library.
func load() (*library, error) {
	var lib uintptr
	var reasons []string
	for _, name := range libraries {
		var err error
		// Plugins of the library look for its symbols.
		if lib, err = purego.Dlopen(name, purego.RTLD_LAZY|purego.RTLD_GLOBAL); err == nil {
			break
		}
		reasons = append(reasons, err.Error())
	}
	if lib == 0 {
		return nil, fmt.Errorf("%w: %s", ErrMissing, strings.Join(reasons, "; "))
	}
	l := &library{}
	for _, o := range []struct {
		to   *handle
		name string
	}{{&l.world, "ompi_mpi_comm_world"}, {&l.bytes, "ompi_mpi_byte"}, {&l.returning, "ompi_mpi_errors_return"}} {
		at, err := purego.Dlsym(lib, o.name)
		if err != nil {
			return nil, fmt.Errorf("%w: the MPI library that is found is not Open MPI: %v", ErrMissing, err)
		}
		*o.to = handle(at)
	}
	for _, f := range []struct {
		to   any
		name string
	}{
		{&l.initThread, "MPI_Init_thread"}, {&l.setHandler, "MPI_Comm_set_errhandler"}, {&l.commRank, "MPI_Comm_rank"}, {&l.commSize, "MPI_Comm_size"},
		{&l.isend, "MPI_Isend"}, {&l.irecv, "MPI_Irecv"}, {&l.test, "MPI_Test"}, {&l.barrier, "MPI_Barrier"}, {&l.abort, "MPI_Abort"},
		{&l.finalize, "MPI_Finalize"}, {&l.errorString, "MPI_Error_string"},
	} {
		at, err := purego.Dlsym(lib, f.name)
		if err != nil {
			return nil, fmt.Errorf("%w: %v", ErrMissing, err)
		}
		purego.RegisterFunc(f.to, at)
	}
	return l, nil
}

// failed turns a code of a call into an error; nil for success.
func (l *library) failed(what string, code int32) error {
	if code == 0 {
		return nil
	}
	text := make([]byte, 512)
	length := int32(0)
	l.errorString(code, &text[0], &length)
	return fmt.Errorf("%s: %s", what, text[:min(max(length, 0), 511)])
}
