//go:build scuda_guest

// Package runtime is the poller of the Go runtime in libscuda-core.so, in the place of its own netpoll_epoll.go
// (overlay.sh).
//
// A guest must have no descriptors of its own. Programs close all that they do not know, daemons first of all, or
// have reached their limit, and Go's own poller ends the process when its epoll descriptor is gone. Here goroutines
// that wait for a socket are found by asking for all such sockets together, without waiting (ppoll), and the thread
// that looks sleeps on a futex in between: for a twentieth of a millisecond at first, later longer. That is enough for
// a guest. It waits so only while it connects, and where it serves metrics; threads wait for the sockets of a session
// and for RDMA devices.
// A socket that somebody has closed is ready, and its owner sees the error.
package runtime

import (
	"internal/goarch"
	"internal/runtime/atomic"
	"internal/runtime/syscall/linux"
	"unsafe"
)

const (
	sysPpoll      = 271*goarch.IsAmd64 + 73*goarch.IsArm64
	sysGetsockopt = 55*goarch.IsAmd64 + 209*goarch.IsArm64

	pollIn, pollOut   = 0x1, 0x4
	pollErr, pollHup  = 0x8, 0x10
	pollNval, pollEnd = 0x20, 0x2000

	polledMost = 32 // sockets at once
	napLeast   = 50e3
	napSoon    = 1e6  // the longest in the first second behind the last new socket
	napLate    = 20e6 // and later
	soon       = 1e9
)

type polledFD struct {
	fd              int32
	events, revents int16
}

var (
	polledLock  mutex
	polled      [polledMost]*pollDesc // guarded by polledLock
	polledCount atomic.Int32
	polledSince atomic.Int64 // when the last one was opened
	polledTurn  uint32       // futex: changes when somebody who sleeps has to look
)

func netpollinit() {}

func netpollIsPollDescriptor(uintptr) bool { return false }

func netpollopen(fd uintptr, pd *pollDesc) uintptr {
	var kind, size uint32
	size = 4
	const socket, typeOf = 1, 3 // SOL_SOCKET, SO_TYPE
	_, _, errno := linux.Syscall6(sysGetsockopt, fd, socket, typeOf, uintptr(noescape(unsafe.Pointer(&kind))),
		uintptr(noescape(unsafe.Pointer(&size))), 0)
	if errno != 0 {
		return 1 // EPERM, as with epoll: a file is read without waiting for it
	}
	lock(&polledLock)
	for i := range polled {
		if polled[i] == nil {
			polled[i] = pd
			unlock(&polledLock)
			polledCount.Add(1)
			polledSince.Store(nanotime())
			netpollBreak()
			return 0
		}
	}
	unlock(&polledLock)
	return 28 // ENOSPC
}

func netpollclose(fd uintptr) uintptr {
	lock(&polledLock)
	for i := range polled {
		if polled[i] != nil && polled[i].fd == fd {
			polled[i] = nil
			polledCount.Add(-1)
			break
		}
	}
	unlock(&polledLock)
	return 0
}

func netpollarm(*pollDesc, int) { throw("runtime: unused") }

func netpollBreak() {
	atomic.Xadd(&polledTurn, 1)
	futexwakeup(&polledTurn, 1)
}

// waits says whether a goroutine waits.
func waits(g *atomic.Uintptr) bool { return g.Load() > pdReady }

// netpollLook looks at all sockets for which somebody waits.
func netpollLook(toRun *gList) (delta int32) {
	var fds [polledMost]polledFD
	var of [polledMost]int
	lock(&polledLock)
	n := 0
	for i := range polled {
		pd := polled[i]
		if pd == nil {
			continue
		}
		events := int16(0)
		if waits(&pd.rg) {
			events |= pollIn | pollEnd
		}
		if waits(&pd.wg) {
			events |= pollOut
		}
		if events != 0 {
			fds[n], of[n] = polledFD{fd: int32(pd.fd), events: events}, i
			n++
		}
	}
	var at [2]int64 // do not wait
	if n > 0 {
		linux.Syscall6(sysPpoll, uintptr(noescape(unsafe.Pointer(&fds))), uintptr(n),
			uintptr(noescape(unsafe.Pointer(&at))), 0, 0, 0)
	}
	for i := range n {
		pd, got, mode := polled[of[i]], fds[i].revents, int32(0)
		if got&(pollIn|pollEnd|pollHup|pollErr|pollNval) != 0 {
			mode += 'r'
		}
		if got&(pollOut|pollHup|pollErr|pollNval) != 0 {
			mode += 'w'
		}
		if mode != 0 {
			pd.setEventErr(got == pollErr, pd.fdseq.Load())
			delta += netpollready(toRun, pd, mode)
		}
	}
	unlock(&polledLock)
	return delta
}

// netpoll gives goroutines that can go on. delay < 0: it waits for some, 0: it does not wait, > 0: for so many
// nanoseconds at most. It also returns when netpollBreak was called.
func netpoll(delay int64) (gList, int32) {
	var toRun gList
	turn := atomic.Load(&polledTurn)
	began := nanotime()
	for nap := int64(napLeast); ; nap *= 2 {
		if polledCount.Load() > 0 {
			if delta := netpollLook(&toRun); !toRun.empty() {
				return toRun, delta
			}
		}
		if delay == 0 || atomic.Load(&polledTurn) != turn {
			return gList{}, 0
		}
		now, left := nanotime(), int64(-1)
		if delay > 0 {
			if left = delay - (now - began); left <= 0 {
				return gList{}, 0
			}
		}
		if polledCount.Load() > 0 {
			most := int64(napLate)
			if now-polledSince.Load() < soon {
				most = napSoon
			}
			nap = min(nap, most)
			if left < 0 || left > nap {
				left = nap
			}
		}
		futexsleep(&polledTurn, turn, left)
	}
}
