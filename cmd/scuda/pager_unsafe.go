package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// userfaultfd's handshake (linux/userfaultfd.h): UFFDIO_API, the features that the client library needs (write
// protection faults, faults of missing and of unmapped pages of shared memory, its write protection: Linux 6.4), and
// the flag for those without the privilege.
const (
	uffdioAPI    = 0xc018aa3f
	uffdAPI      = 0xaa
	uffdNeeded   = 1<<0 | 1<<5 | 1<<10 | 1<<12
	uffdUserMode = 1
)

// canUffd says whether the kernel hands this process's faults to it.
func canUffd(flags uintptr) bool {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|flags, 0, 0)
	if errno != 0 {
		return false
	}
	defer unix.Close(int(fd))
	api := struct{ api, features, ioctls uint64 }{uffdAPI, uffdNeeded, 0}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&api)))
	return errno == 0
}

// pager says how the client library sees faults of unified memory on this machine, in this environment
// (docs/unified-memory.md).
func pager() string {
	wish := os.Getenv("SCUDA_PAGER")
	switch {
	case wish != "sigsegv" && wish != "uffd-user" && canUffd(0):
		return "seen by userfaultfd (uffd)"
	case wish != "sigsegv" && canUffd(uffdUserMode):
		return "seen by userfaultfd (uffd-user: system calls on memory that the GPU has work by the C library's functions)"
	}
	return "seen by SIGSEGV (sigsegv: system calls on memory that the GPU has work by the C library's functions)"
}
