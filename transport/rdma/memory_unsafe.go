package rdma

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// address is where memory lies. It is taken of memory only that does not move: mapped memory, or the program's.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// mapMemory maps n bytes outside of Go's heap.
func mapMemory(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }
