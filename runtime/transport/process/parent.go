//go:build linux

package process

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// EndWithParent has the system kill this process when the thread that started it ends. A process that has been stopped does
// not notice by itself.
func EndWithParent() {
	set := make(chan struct{})
	go func() {
		runtime.LockOSThread() // it is this thread that the system keeps the wish for
		unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
		close(set)
		select {}
	}()
	<-set
}
