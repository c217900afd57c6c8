package sim

import (
	"testing"

	"scuda.dev/scuda/api/cuda"
)

const textureKernel = `.version 8.0
.target sm_80
.address_size 64
.entry read(.param .u64 tex, .param .u64 surf, .param .u64 out) {
	.reg .b32 %r<8>; .reg .b64 %l<4>;
	ld.param.u64 %l0, [tex];
	ld.param.u64 %l1, [surf];
	ld.param.u64 %l2, [out];
	mov.u32 %r0, 3;
	tex.1d.v4.u32.s32 {%r1, %r2, %r3, %r4}, [%l0, {%r0}];
	st.global.u32 [%l2], %r1;
	mov.u32 %r0, 12;
	mov.u32 %r5, 0;
	suld.b.2d.b32.trap %r6, [%l1, {%r0, %r5}];
	st.global.u32 [%l2+4], %r6;
	ret;
}
`

// TestTexturesOfLaunches: launches that were made before the end of a texture or surface object can read it, also on
// other streams; launches after it cannot, and neither can calls.
func TestTexturesOfLaunches(t *testing.T) {
	m := open(t, Config{})
	var mod cuda.CUmodule
	m.must(m.CuModuleLoadData(&mod, m.image([]byte(textureKernel))))
	f := m.kernel(mod, "read")
	memory, out := m.alloc(64), m.alloc(16)
	words := make([]byte, 64)
	for i := range words {
		words[i] = byte(i)
	}
	m.upload(memory, words)
	var a cuda.CUarray
	m.must(m.CuArray3DCreate_v2(&a, &cuda.CUDA_ARRAY3D_DESCRIPTOR{Width: 16, Height: 1,
		Format: cuda.CU_AD_FORMAT_UNSIGNED_INT32, NumChannels: 1, Flags: arraySurface}))
	host := m.pageable(64)
	copy(host, words)
	m.must(m.CuMemcpyHtoA_v2(a, 0, pointerTo(host), 64))
	m.must(m.CuCtxSynchronize())

	texture := cuda.CUDA_RESOURCE_DESC{ResType: cuda.CU_RESOURCE_TYPE_LINEAR}
	texture.Res[0], texture.Res[1] = uint64(memory), uint64(cuda.CU_AD_FORMAT_UNSIGNED_INT32)|1<<32
	texture.Res[2] = 64
	surface := cuda.CUDA_RESOURCE_DESC{ResType: cuda.CU_RESOURCE_TYPE_ARRAY}
	surface.Res[0] = uint64(a)
	pair := func() (tex cuda.CUtexObject, surf cuda.CUsurfObject) {
		m.must(m.CuTexObjectCreate(&tex, &texture, &cuda.CUDA_TEXTURE_DESC{Flags: readAsInteger}, nil))
		m.must(m.CuSurfObjectCreate(&surf, &surface))
		return tex, surf
	}
	launch := func(s cuda.CUstream, tex cuda.CUtexObject, surf cuda.CUsurfObject) {
		m.must(m.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, m.arguments(int64(tex), int64(surf), out), nil))
	}
	s, other := m.stream(cuda.CU_STREAM_NON_BLOCKING), m.stream(cuda.CU_STREAM_NON_BLOCKING)
	for _, first := range []cuda.CUstream{s, other} {
		tex, surf := pair()
		openIt := m.gate(first)
		launch(s, tex, surf)
		m.must(m.CuTexObjectDestroy(tex))
		m.must(m.CuSurfObjectDestroy(surf))
		m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuTexObjectDestroy(tex))
		var back cuda.CUDA_RESOURCE_DESC
		m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuSurfObjectGetResourceDesc(&back, surf))
		openIt()
		m.must(m.CuStreamSynchronize(s))
		m.must(m.CuCtxSynchronize())
		if got := as[uint32](m.download(out, 8)); got[0] != 0x0f0e0d0c || got[1] != 0x0f0e0d0c {
			t.Errorf("%#x", got)
		}
	}
	tex, surf := pair()
	m.must(m.CuTexObjectDestroy(tex))
	launch(s, tex, surf)
	m.want(cuda.CUDA_ERROR_ILLEGAL_ADDRESS, m.CuStreamSynchronize(s))
}
