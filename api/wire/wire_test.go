package wire

import (
	"testing"
	"unsafe"

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

// Go lays the structures out as the description says.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		name       string
		have, want uintptr
	}{
		{"Launch", unsafe.Sizeof(Launch{}), SizeLaunch},
		{"CopyH2D", unsafe.Sizeof(CopyH2D{}), SizeCopyH2D},
		{"ModulePut", unsafe.Sizeof(ModulePut{}), SizeModulePut},
		{"FuncInfo", unsafe.Sizeof(FuncInfo{}), SizeFuncInfo},
		{"GetFunction", unsafe.Sizeof(GetFunction{}), SizeGetFunction},
		{"PointerAttributes", unsafe.Sizeof(PointerAttributes{}), SizePointerAttributes},
		{"CaptureInfo", unsafe.Sizeof(CaptureInfo{}), SizeCaptureInfo},
	} {
		if c.have != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.have, c.want)
		}
	}
	if off := unsafe.Offsetof(Launch{}.SharedBytes); off != 40 {
		t.Error("shared_bytes at", off)
	}
}

func TestOpName(t *testing.T) {
	if OpName(OpCopyH2D) != "copy_h2d" || OpName(5) != "wire operation 5" {
		t.Error(OpName(OpCopyH2D), OpName(5))
	}
}
