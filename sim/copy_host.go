package sim

import (
	"runtime"

	"scuda.dev/scuda/api/cuda"
)

func onHost(p pointer) place { return place{addr: addressOf(p)} }

func (g *GPU) CuMemcpyHtoD_v2(dst cuda.CUdeviceptr, src pointer, n uint64) cuda.CUresult {
	defer runtime.KeepAlive(src)
	return g.copySync(line(onDevice(dst), onHost(src), n))
}

func (g *GPU) CuMemcpyHtoDAsync_v2(dst cuda.CUdeviceptr, src pointer, n uint64, s cuda.CUstream) cuda.CUresult {
	defer runtime.KeepAlive(src)
	return g.copyAsync(line(onDevice(dst), onHost(src), n), s)
}

func (g *GPU) CuMemcpyDtoH_v2(dst pointer, src cuda.CUdeviceptr, n uint64) cuda.CUresult {
	defer runtime.KeepAlive(dst)
	return g.copySync(line(onHost(dst), onDevice(src), n))
}

func (g *GPU) CuMemcpyDtoHAsync_v2(dst pointer, src cuda.CUdeviceptr, n uint64, s cuda.CUstream) cuda.CUresult {
	defer runtime.KeepAlive(dst)
	return g.copyAsync(line(onHost(dst), onDevice(src), n), s)
}

func hostEnd(p pointer) copyEnd {
	return copyEnd{kind: cuda.CU_MEMORYTYPE_HOST, host: uintptr(p)}
}

func (g *GPU) CuMemcpyHtoA_v2(dst cuda.CUarray, off uint64, src pointer, n uint64) cuda.CUresult {
	defer runtime.KeepAlive(src)
	return g.copyRow(rowOf(dst, off), hostEnd(src), n)
}

func (g *GPU) CuMemcpyAtoH_v2(dst pointer, src cuda.CUarray, off, n uint64) cuda.CUresult {
	defer runtime.KeepAlive(dst)
	return g.copyRow(hostEnd(dst), rowOf(src, off), n)
}

func (g *GPU) CuMemcpyHtoAAsync_v2(dst cuda.CUarray, off uint64, src pointer, n uint64, s cuda.CUstream) cuda.CUresult {
	defer runtime.KeepAlive(src)
	b, r := g.copyBetween(rowOf(dst, off), hostEnd(src), n, 1, 1)
	if r != ok {
		return r
	}
	return g.copyAsync(b, s)
}

func (g *GPU) CuMemcpyAtoHAsync_v2(dst pointer, src cuda.CUarray, off, n uint64, s cuda.CUstream) cuda.CUresult {
	defer runtime.KeepAlive(dst)
	b, r := g.copyBetween(hostEnd(dst), rowOf(src, off), n, 1, 1)
	if r != ok {
		return r
	}
	return g.copyAsync(b, s)
}
