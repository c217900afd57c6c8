package transport

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

// sleepWhile sleeps while *p is v; it may return early for no reason.
func sleepWhile(p *atomic.Uint32, v uint32) {
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), futexWaitPrivate, uintptr(v), 0, 0, 0)
}

// sleepWhileFor is sleepWhile for so long at most; negative: without limit.
func sleepWhileFor(p *atomic.Uint32, v uint32, most time.Duration) {
	if most < 0 {
		sleepWhile(p, v)
		return
	}
	ts := unix.NsecToTimespec(int64(most))
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), futexWaitPrivate, uintptr(v),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

func wakeAll(p *atomic.Uint32) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), futexWakePrivate, math.MaxInt32, 0, 0, 0)
}
