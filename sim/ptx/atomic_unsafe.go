package ptx

import (
	"sync/atomic"
	"unsafe"
)

// Memory that other blocks and the host use at the same time is changed through the processor's own atomic
// instructions. The slices come from warp.at, which has checked bounds and alignment.

// update replaces the n bytes of b by f of their value and returns the old value.
func update(b []byte, n int, x, y uint64, f func(old, x, y uint64) uint64) uint64 {
	p := unsafe.Pointer(&b[0])
	switch n {
	case 8:
		q := (*uint64)(p)
		for {
			old := atomic.LoadUint64(q)
			if atomic.CompareAndSwapUint64(q, old, f(old, x, y)) {
				return old
			}
		}
	case 4:
		q := (*uint32)(p)
		for {
			old := atomic.LoadUint32(q)
			if atomic.CompareAndSwapUint32(q, old, uint32(f(uint64(old), x, y))) {
				return uint64(old)
			}
		}
	}
	// Two bytes: the word that holds them. Regions are whole words, so it is inside.
	shift := uintptr(p) & 2
	q := (*uint32)(unsafe.Add(p, -int(shift)))
	for {
		word := atomic.LoadUint32(q)
		old := word >> (8 * shift) & 0xffff
		next := word&^(0xffff<<(8*shift)) | uint32(uint16(f(uint64(old), x, y)))<<(8*shift)
		if atomic.CompareAndSwapUint32(q, word, next) {
			return uint64(old)
		}
	}
}

// loadStrong and storeStrong are the accesses of relaxed, acquire, release and volatile instructions.
func loadStrong(b []byte, n int) uint64 {
	switch n {
	case 4:
		return uint64(atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[0]))))
	case 8:
		return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[0])))
	}
	return readInt(b, n)
}

func storeStrong(b []byte, n int, v uint64) {
	switch n {
	case 4:
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[0])), uint32(v))
	case 8:
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[0])), v)
	default:
		writeInt(b, n, v)
	}
}
