package wire

import "unsafe"

// View gives the structure at the start of b and what follows it; false when b is too short. b must be 8-byte aligned,
// as payloads are; T is one of this package's structures.
func View[T any](b []byte) (*T, []byte, bool) {
	n := int(unsafe.Sizeof(*new(T)))
	if len(b) < n {
		return nil, nil, false
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%8 != 0 {
		v := new(T)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(v)), n), b)
		return v, b[n:], true
	}
	return (*T)(p), b[n:], true
}

// Bytes is the structure as it lies on the wire.
func Bytes[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}
