package addresses

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What is taken is of no use to anybody, and costs no memory: neither pages nor tables of them.
const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// takeAt takes addresses if they are all free; else the error is EEXIST.
func takeAt(at, bytes uint64) error {
	got, err := mmap(at, bytes, flags|unix.MAP_FIXED_NOREPLACE)
	if err == nil && got != at { // Linux before 4.17 reads the address as a wish
		free(got, bytes)
		err = unix.EEXIST
	}
	return err
}

// takeAny takes addresses where the system puts what asks for no place.
func takeAny(bytes uint64) (at uint64, err error) { return mmap(0, bytes, flags) }

func mmap(at, bytes uint64, how uintptr) (uint64, error) {
	got, _, e := unix.Syscall6(unix.SYS_MMAP, uintptr(at), uintptr(bytes), unix.PROT_NONE, how, ^uintptr(0), 0)
	if e != 0 {
		return 0, e
	}
	return uint64(got), nil
}

// free gives back what was taken, which never fails.
func free(at, bytes uint64) { _, _, _ = unix.Syscall(unix.SYS_MUNMAP, uintptr(at), uintptr(bytes), 0) }

// heapAddress is an address in Go's heap, where what is large always lies.
func heapAddress() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(make([]byte, 128<<10)))))
}
