package wire

import (
	"testing"

	"scuda.dev/scuda/api/codec"
)

func TestView(t *testing.T) {
	in := Launch{Func: 1, Grid: [3]uint32{2, 3, 4}, ParamBytes: 5}
	payload := codec.Aligned(SizeLaunch + 8)
	copy(payload, Bytes(&in))
	payload[SizeLaunch] = 9
	for _, at := range []int{0, 4} { // a payload at an odd place is copied
		b := codec.Aligned(len(payload) + at)[at:]
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
