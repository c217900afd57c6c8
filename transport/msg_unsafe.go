package transport

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const maxVec = 4

// fillVec makes I/O vectors of bufs; what does not fit waits for the next call.
func fillVec(vec *[maxVec]unix.Iovec, bufs [][]byte) int {
	n := 0
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if n == maxVec {
			break
		}
		vec[n].Base = unsafe.SliceData(b)
		vec[n].SetLen(len(b))
		n++
	}
	return n
}

// The raw form is used because neither call can block: telling the scheduler would cost more than the call.

func sendmsg(fd int, bufs [][]byte) (int, syscall.Errno) {
	var vec [maxVec]unix.Iovec
	n := fillVec(&vec, bufs)
	if n == 0 {
		return 0, 0
	}
	if n == 1 {
		r, _, e := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(vec[0].Base)),
			uintptr(vec[0].Len),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		return int(r), e
	}
	m := unix.Msghdr{Iov: &vec[0]}
	m.SetIovlen(n)
	r, _, e := syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return int(r), e
}

func recvmsg(fd int, bufs [][]byte) (int, syscall.Errno) {
	var vec [maxVec]unix.Iovec
	n := fillVec(&vec, bufs)
	if n == 1 {
		r, _, e := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(vec[0].Base)),
			uintptr(vec[0].Len),
			unix.MSG_DONTWAIT, 0, 0)
		return int(r), e
	}
	m := unix.Msghdr{Iov: &vec[0]}
	m.SetIovlen(n)
	r, _, e := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), unix.MSG_DONTWAIT)
	return int(r), e
}

// recvmsgTimed also says when the last of the bytes came to this machine, in ns since 1970; 0: the kernel does not say.
func recvmsgTimed(fd int, bufs [][]byte) (n int, came int64, err syscall.Errno) {
	var vec [maxVec]unix.Iovec
	var control struct {
		unix.Cmsghdr
		at   unix.Timespec
		more [4]uint64
	}
	m := unix.Msghdr{Iov: &vec[0], Control: (*byte)(unsafe.Pointer(&control))}
	m.SetIovlen(fillVec(&vec, bufs))
	m.SetControllen(int(unsafe.Sizeof(control)))
	r, _, err := syscall.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), unix.MSG_DONTWAIT)
	if err == 0 && int(m.Controllen) >= unix.CmsgLen(int(unsafe.Sizeof(control.at))) &&
		control.Level == unix.SOL_SOCKET && control.Type == unix.SCM_TIMESTAMPNS {
		came = control.at.Nano()
	}
	return int(r), came, err
}

// These two may block.

func sendmsgAll(fd int, bufs [][]byte) (int, syscall.Errno) {
	var vec [maxVec]unix.Iovec
	m := unix.Msghdr{Iov: &vec[0]}
	m.SetIovlen(fillVec(&vec, bufs))
	r, _, e := syscall.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), unix.MSG_NOSIGNAL)
	return int(r), e
}

func recvAll(fd int, b []byte) (int, syscall.Errno) {
	r, _, e := syscall.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_WAITALL, 0, 0)
	return int(r), e
}
