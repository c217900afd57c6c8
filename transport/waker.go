package transport

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Waker ends the wait of one thread for a connection ([Conn.WaitOr]), so that it looks at something else that others
// have done. That thread says before it looks that it does; what comes after is not missed. Ring costs a system call
// only where the thread sleeps.
type Waker struct {
	fd     int
	rung   atomic.Uint32
	asleep atomic.Bool
	seen   uint32 // of the thread that waits
}

// NewWaker makes one.
func NewWaker() (*Waker, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("a descriptor that wakes a thread: %w", err)
	}
	return &Waker{fd: fd}, nil
}

// Close gives the descriptor back. Nobody rings, or waits, any more.
func (w *Waker) Close() error { return unix.Close(w.fd) }

// Ring ends the wait, or the next one. Any thread may call it, also for nil.
func (w *Waker) Ring() {
	if w == nil {
		return
	}
	w.rung.Add(1)
	if w.asleep.Load() && w.asleep.CompareAndSwap(true, false) {
		_, _ = unix.Write(w.fd, one[:])
	}
}

// one is what is added to the number that the descriptor stands for.
var one = [8]byte{1} // and, on machines of the other byte order, more

// Look says that the thread looks now at what others have done.
func (w *Waker) Look() { w.seen = w.rung.Load() }

// isRung says whether others have done something since the last look.
func (w *Waker) isRung() bool { return w != nil && w.rung.Load() != w.seen }

// sleeps says that the thread is about to sleep. It must not where that says no.
func (w *Waker) sleeps() bool {
	w.asleep.Store(true)
	return !w.isRung()
}

// take takes what was rung for a thread that slept. What comes too late for that ends the next wait.
func (w *Waker) take() {
	var b [8]byte
	_, _ = unix.Read(w.fd, b[:])
}
