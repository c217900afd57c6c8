package sim

import (
	"unsafe"
)

// at makes a pointer of an address that is not Go memory.
func at(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// bytesAt is the memory [addr, addr+n), which the caller has found in the table of regions or vouches for.
func bytesAt(addr uint64, n uint64) []byte { return unsafe.Slice((*byte)(at(addr)), n) }

func bytesOf(p unsafe.Pointer, n uint64) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), n)
}

func addressOf(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }

// cString reads a NUL-terminated string of at most limit bytes.
func cString(p unsafe.Pointer, limit uint64) (string, bool) {
	if p == nil {
		return "", false
	}
	for n := uint64(0); n < limit; n++ {
		if *(*byte)(unsafe.Add(p, n)) == 0 {
			return string(bytesOf(p, n)), true
		}
	}
	return "", false
}

// sliceOf is the array of n elements at p.
func sliceOf[T any](p *T, n uint64) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice(p, n)
}
