package rdma

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// address is where memory lies. It is taken of memory only that does not move: mapped memory, or the program's.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// mapMemory maps n bytes outside of Go's heap. A child that the program forks does not get them: a copy of what devices
// know would be the wrong one of two.
func mapMemory(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		err = unix.Madvise(b, unix.MADV_DONTFORK)
	}
	return b, err
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }
