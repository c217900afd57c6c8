package sim

import (
	"bytes"
	"testing"

	"scuda.dev/scuda/api/cuda"
)

func TestArrays(t *testing.T) {
	m := open(t, Config{})
	var free, after, total uint64
	m.must(m.CuMemGetInfo_v2(&free, &total))
	for name, c := range map[string]struct {
		desc cuda.CUDA_ARRAY3D_DESCRIPTOR
		want cuda.CUresult
	}{
		"row": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 9, Format: cuda.CU_AD_FORMAT_FLOAT, NumChannels: 2}, ok},
		"solid": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 9, Height: 4, Depth: 3, Format: cuda.CU_AD_FORMAT_HALF,
			NumChannels: 4}, ok},
		"rows in layers": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 9, Depth: 3, Format: cuda.CU_AD_FORMAT_HALF, NumChannels: 1,
			Flags: arrayLayered}, ok},
		"cube": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 4, Height: 4, Depth: 6, Format: cuda.CU_AD_FORMAT_FLOAT,
			NumChannels: 1, Flags: arrayCubemap}, ok},
		"no width": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Height: 4, Format: cuda.CU_AD_FORMAT_FLOAT, NumChannels: 1},
			cuda.CUDA_ERROR_INVALID_VALUE},
		"three channels": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 4, Format: cuda.CU_AD_FORMAT_FLOAT, NumChannels: 3},
			cuda.CUDA_ERROR_INVALID_VALUE},
		"depth, no height": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 4, Depth: 2, Format: cuda.CU_AD_FORMAT_FLOAT,
			NumChannels: 1}, cuda.CUDA_ERROR_INVALID_VALUE},
		"half a cube": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 4, Height: 4, Depth: 3, Format: cuda.CU_AD_FORMAT_FLOAT,
			NumChannels: 1, Flags: arrayCubemap}, cuda.CUDA_ERROR_INVALID_VALUE},
		"compressed format": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 4, Height: 4, Format: cuda.CU_AD_FORMAT_BC1_UNORM,
			NumChannels: 4}, cuda.CUDA_ERROR_NOT_SUPPORTED},
		"sparse": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 4, Height: 4, Format: cuda.CU_AD_FORMAT_FLOAT,
			NumChannels: 1, Flags: 64}, cuda.CUDA_ERROR_NOT_SUPPORTED},
		"too large": {cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 16384, Height: 16384, Depth: 16384,
			Format: cuda.CU_AD_FORMAT_FLOAT, NumChannels: 4}, cuda.CUDA_ERROR_OUT_OF_MEMORY},
	} {
		var h cuda.CUarray
		if r := m.CuArray3DCreate_v2(&h, &c.desc); r != c.want {
			t.Errorf("%s: got %v, want %v", name, r, c.want)
		}
		if c.want != ok {
			continue
		}
		var d cuda.CUDA_ARRAY3D_DESCRIPTOR
		m.must(m.CuArray3DGetDescriptor_v2(&d, h))
		if d != c.desc {
			t.Errorf("%s: descriptor %+v", name, d)
		}
		m.must(m.CuArrayDestroy(h))
		m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuArrayDestroy(h))
	}
	m.must(m.CuMemGetInfo_v2(&after, &total))
	if after != free {
		t.Errorf("%d bytes were not given back", free-after)
	}
}

// Copies stay inside of the array and hit the right rows of the right slice.
func TestArrayCopies(t *testing.T) {
	m := open(t, Config{})
	desc := cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 6, Height: 4, Depth: 3, Format: cuda.CU_AD_FORMAT_UNSIGNED_INT8,
		NumChannels: 2}
	var a cuda.CUarray
	m.must(m.CuArray3DCreate_v2(&a, &desc))
	src, dst := m.pageable(12*4*3), m.pageable(12*4*3)
	for i := range src {
		src[i] = byte(i + 1)
	}
	all := func(p *cuda.CUDA_MEMCPY3D) { p.WidthInBytes, p.Height, p.Depth = 12, 4, 3 }
	up := &cuda.CUDA_MEMCPY3D{SrcMemoryType: cuda.CU_MEMORYTYPE_HOST, SrcHost: uintptr(addressOf(pointerTo(src))),
		SrcPitch: 12, SrcHeight: 4, DstMemoryType: cuda.CU_MEMORYTYPE_ARRAY, DstArray: a}
	down := &cuda.CUDA_MEMCPY3D{SrcMemoryType: cuda.CU_MEMORYTYPE_ARRAY, SrcArray: a,
		DstMemoryType: cuda.CU_MEMORYTYPE_HOST, DstHost: uintptr(addressOf(pointerTo(dst))), DstPitch: 12, DstHeight: 4}
	all(up)
	all(down)
	m.must(m.CuMemcpy3D_v2(up))
	up.DstXInBytes, up.DstY, up.DstZ, up.WidthInBytes, up.Height, up.Depth = 4, 1, 2, 6, 2, 1
	m.must(m.CuMemcpy3D_v2(up))
	m.must(m.CuMemcpy3D_v2(down))
	want := bytes.Clone(src)
	for y := range 2 {
		copy(want[(2*4+1+y)*12+4:][:6], src[y*12:])
	}
	if !bytes.Equal(dst, want) {
		t.Errorf("got %v\nwant %v", dst, want)
	}
	for name, change := range map[string]func(p *cuda.CUDA_MEMCPY3D){
		"too wide":          func(p *cuda.CUDA_MEMCPY3D) { p.DstXInBytes = 2 },
		"too high":          func(p *cuda.CUDA_MEMCPY3D) { p.DstY = 1 },
		"too deep":          func(p *cuda.CUDA_MEMCPY3D) { p.DstZ = 1 },
		"half an element":   func(p *cuda.CUDA_MEMCPY3D) { p.WidthInBytes = 3 },
		"offset that wraps": func(p *cuda.CUDA_MEMCPY3D) { p.DstXInBytes = 1<<64 - 2 },
	} {
		p := *up
		p.DstXInBytes, p.DstY, p.DstZ = 0, 0, 0
		all(&p)
		change(&p)
		if r := m.CuMemcpy3D_v2(&p); r != cuda.CUDA_ERROR_INVALID_VALUE {
			t.Errorf("%s: %v", name, r)
		}
	}
	m.must(m.CuArrayDestroy(a))
	m.want(cuda.CUDA_ERROR_INVALID_HANDLE, m.CuMemcpy3D_v2(down))
}

func TestMipmaps(t *testing.T) {
	m := open(t, Config{})
	desc := cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 20, Height: 6, Format: cuda.CU_AD_FORMAT_FLOAT, NumChannels: 1}
	var h cuda.CUmipmappedArray
	m.must(m.CuMipmappedArrayCreate(&h, &desc, 100)) // as many as there can be
	for level, size := range [][2]uint64{{20, 6}, {10, 3}, {5, 1}, {2, 1}, {1, 1}} {
		var a cuda.CUarray
		var d cuda.CUDA_ARRAY3D_DESCRIPTOR
		m.must(m.CuMipmappedArrayGetLevel(&a, h, uint32(level)))
		m.must(m.CuArray3DGetDescriptor_v2(&d, a))
		if d.Width != size[0] || d.Height != size[1] {
			t.Errorf("level %d: %d × %d", level, d.Width, d.Height)
		}
		m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuArrayDestroy(a))
	}
	var a cuda.CUarray
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuMipmappedArrayGetLevel(&a, h, 5))
	m.must(m.CuMipmappedArrayDestroy(h))
}

// Any bytes may come as a handle of another process.
func FuzzForeignHandles(f *testing.F) {
	good := sharedPlace{Size: 4096, Kind: sharedMemory}.encode()
	f.Add(good[:])
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []uint32{sharedMemory, sharedEvent, sharedPool} {
			p, err := decodePlace(b, kind)
			if err == nil && (p.Size == 0 || p.Offset+p.Size < p.Offset || p.Kind != kind) {
				t.Errorf("%+v passed", p)
			}
		}
	})
}

func TestHandlesOfNobody(t *testing.T) {
	m := open(t, Config{})
	var d cuda.CUdeviceptr
	var h cuda.CUipcMemHandle
	var e cuda.CUipcEventHandle
	var event cuda.CUevent
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuIpcOpenMemHandle_v2(&d, h, 1))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuIpcOpenEventHandle(&event, e))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuIpcGetMemHandle(&h, 4096))
	m.must(m.CuMemAlloc_v2(&d, 4096))
	m.must(m.CuIpcGetMemHandle(&h, d))
	m.want(cuda.CUDA_ERROR_INVALID_CONTEXT, m.CuIpcOpenMemHandle_v2(&d, h, 1)) // in the process that made it
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuIpcCloseMemHandle(d))
}
