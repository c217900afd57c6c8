package wire

import (
	"testing"
	"unsafe"
)

// aligned gives n bytes that are aligned to 8, as a payload is.
func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)[:n]
}

func TestView(t *testing.T) {
	in := Launch{Func: 1, Grid: [3]uint32{2, 3, 4}, ParamBytes: 5}
	payload := aligned(SizeLaunch + 8)
	copy(payload, Bytes(&in))
	payload[SizeLaunch] = 9
	for _, at := range []int{0, 4} { // a payload at an odd place is copied
		b := aligned(len(payload) + at)[at:]
		copy(b, payload)
		v, rest, ok := View[Launch](b)
		if !ok || *v != in || len(rest) != 8 || rest[0] != 9 {
			t.Errorf("%d: %+v %v %v", at, v, rest, ok)
		}
	}
	if _, _, ok := View[Launch](payload[:SizeLaunch-1]); ok {
		t.Error("too short a payload was accepted")
	}
}

func TestOpName(t *testing.T) {
	if OpName(OpCopyH2D) != "copy_h2d" || OpName(5) != "wire operation 5" {
		t.Error(OpName(OpCopyH2D), OpName(5))
	}
}
