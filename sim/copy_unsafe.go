package sim

import (
	"runtime"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

func onHost(p unsafe.Pointer) place { return place{addr: addressOf(p)} }

func (g *GPU) CuMemcpyHtoD_v2(dst cuda.CUdeviceptr, src unsafe.Pointer, n uint64) cuda.CUresult {
	defer runtime.KeepAlive(src)
	return g.copySync(line(onDevice(dst), onHost(src), n))
}

func (g *GPU) CuMemcpyHtoDAsync_v2(dst cuda.CUdeviceptr, src unsafe.Pointer, n uint64, s cuda.CUstream) cuda.CUresult {
	defer runtime.KeepAlive(src)
	return g.copyAsync(line(onDevice(dst), onHost(src), n), s)
}

func (g *GPU) CuMemcpyDtoH_v2(dst unsafe.Pointer, src cuda.CUdeviceptr, n uint64) cuda.CUresult {
	defer runtime.KeepAlive(dst)
	return g.copySync(line(onHost(dst), onDevice(src), n))
}

func (g *GPU) CuMemcpyDtoHAsync_v2(dst unsafe.Pointer, src cuda.CUdeviceptr, n uint64, s cuda.CUstream) cuda.CUresult {
	defer runtime.KeepAlive(dst)
	return g.copyAsync(line(onHost(dst), onDevice(src), n), s)
}
