package isolation

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs f on a thread that ends afterwards, whatever f has made of it. That is never the process's first
// thread, which cannot end, and by which the kernel judges the process.
func OnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			OnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}
