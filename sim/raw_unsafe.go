package sim

import "unsafe"

// This is the package's one file that imports unsafe: what callers' addresses point to is read and written through
// these helpers. Each caller vouches for the memory, as a driver's caller does, or has found it in the table of
// regions.

// pointer is an address that the driver interface takes or gives.
type pointer = unsafe.Pointer

// at makes a pointer of an address that is not Go memory.
func at(addr uint64) pointer { return *(*pointer)(pointer(&addr)) }

func addressOf(p pointer) uint64 { return uint64(uintptr(p)) }

// rawOf forgets what p points to, view says what stands at p, and reading that what p points to is something else: a
// member of a union.
func rawOf[T any](p *T) pointer { return pointer(p) }

func view[T any](p pointer) *T { return (*T)(p) }

func reading[T, F any](p *F) *T { return (*T)(pointer(p)) }

func sizeOf[T any]() uint64 {
	var zero T
	return uint64(unsafe.Sizeof(zero))
}

// offset is the address n bytes behind p.
func offset(p pointer, n uint64) pointer { return unsafe.Add(p, n) }

// bytesAt is the memory [addr, addr+n).
func bytesAt(addr uint64, n uint64) []byte { return bytesOf(at(addr), n) }

func bytesOf(p pointer, n uint64) []byte { return sliceOf(view[byte](p), n) }

// sliceOf is the array of n elements at p.
func sliceOf[T any](p *T, n uint64) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice(p, n)
}

// firstOf is the address of a slice's array.
func firstOf[T any](s []T) pointer { return pointer(unsafe.SliceData(s)) }

// cString reads a NUL-terminated string of at most limit bytes.
func cString(p pointer, limit uint64) (string, bool) {
	if p == nil {
		return "", false
	}
	for n := range limit {
		if *view[byte](offset(p, n)) == 0 {
			return string(bytesOf(p, n)), true
		}
	}
	return "", false
}
