package session

import (
	"math"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWaitPrivate = 0 | 128
	futexWakePrivate = 1 | 128
)

// futexWait sleeps while *p is v, at most timeout (0: without limit). It may return early for no reason.
func futexWait(p *uint32, v uint32, timeout time.Duration) {
	var ts *unix.Timespec
	if timeout > 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), futexWaitPrivate, uintptr(v),
		uintptr(unsafe.Pointer(ts)), 0, 0)
}

// futexWake wakes everybody who sleeps on p.
func futexWake(p *uint32) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), futexWakePrivate, math.MaxInt32, 0, 0, 0)
}

func schedYield() { _, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// mutex is a lock for threads that must not be taken off their OS thread, as goroutines that wait for a sync.Mutex are.
type mutex struct {
	state uint32 // 0 free, 1 held, 2 held and somebody sleeps
}

// TryLock takes the lock if it is free.
func (m *mutex) TryLock() bool { return atomic.CompareAndSwapUint32(&m.state, 0, 1) }

// Lock takes the lock.
func (m *mutex) Lock() {
	for i := range 200 {
		if m.TryLock() {
			return
		}
		nap(i)
	}
	for atomic.SwapUint32(&m.state, 2) != 0 {
		futexWait(&m.state, 2, 0)
	}
}

// Unlock frees the lock.
func (m *mutex) Unlock() {
	if atomic.SwapUint32(&m.state, 0) == 2 {
		_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&m.state)), futexWakePrivate, 1, 0, 0, 0)
	}
}
