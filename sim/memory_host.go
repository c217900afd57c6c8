package sim

import (
	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
)

// Flags of host memory; they are macros in C, so the facts do not have them.
const (
	hostPortable      = 1
	hostDeviceMap     = 2
	hostWriteCombined = 4 // of allocations
	hostReadOnly      = 8 // of registrations

	hostAllocFlags    = hostPortable | hostDeviceMap | hostWriteCombined
	hostRegisterFlags = hostPortable | hostDeviceMap | hostReadOnly
)

// CuMemHostAlloc gives memory that host and device reach at the same address.
func (g *GPU) CuMemHostAlloc(pp pointer, n uint64, flags uint32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	if pp == nil || flags&^hostAllocFlags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if n == 0 {
		*view[pointer](pp) = nil
		return ok
	}
	size := roundUp(n, 4096)
	if size < n || size > 1<<46 {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	base, err := reserve(0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	reg := &region{base: base, size: size, asked: n, kind: regionHost, dev: c.dev, ctx: c, id: g.nextID(),
		flags: flags | hostDeviceMap}
	if err := g.mem.insert(reg); err != nil {
		g.log.Error("sim: memory table", "error", err)
		return cuda.CUDA_ERROR_UNKNOWN
	}
	*view[pointer](pp) = at(base)
	return ok
}

func (g *GPU) CuMemAllocHost_v2(pp pointer, n uint64) cuda.CUresult {
	return g.CuMemHostAlloc(pp, n, hostPortable)
}

func (g *GPU) CuMemFreeHost(p pointer) cuda.CUresult {
	return g.dropHost(p, regionHost, cuda.CUDA_ERROR_INVALID_VALUE)
}

func (g *GPU) CuMemHostUnregister(p pointer) cuda.CUresult {
	return g.dropHost(p, regionRegistered, cuda.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
}

func (g *GPU) dropHost(p pointer, kind regionKind, unknown cuda.CUresult) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if p == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	reg := g.mem.find(addressOf(p))
	if reg == nil || reg.base != addressOf(p) || reg.kind != kind || reg.freeing {
		return unknown
	}
	reg.freeing = true
	g.waitAll() // work under way may use the memory
	if err := g.retire(reg); err != nil {
		g.log.Error("sim: free", "error", err)
		return cuda.CUDA_ERROR_UNKNOWN
	}
	return ok
}

func (g *GPU) CuMemHostRegister_v2(p pointer, n uint64, flags uint32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if p == nil || n == 0 || addressOf(p)+n < n || flags&^hostRegisterFlags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	reg := &region{
		base: addressOf(p), size: n, asked: n, kind: regionRegistered, dev: c.dev, ctx: c, id: g.nextID(),
		flags:    flags | hostDeviceMap,
		readOnly: flags&hostReadOnly != 0,
	}
	if err := g.mem.insert(reg); err != nil {
		return cuda.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
	}
	return ok
}

func (g *GPU) CuMemHostGetDevicePointer_v2(dptr *cuda.CUdeviceptr, p pointer, flags uint32) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg := g.mem.find(addressOf(p))
	if dptr == nil || flags != 0 || reg == nil || !reg.kind.host() {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*dptr = cuda.CUdeviceptr(addressOf(p))
	return ok
}

func (g *GPU) CuMemHostGetFlags(flags *uint32, p pointer) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg := g.mem.find(addressOf(p))
	if flags == nil || reg == nil || !reg.kind.host() {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*flags = reg.flags
	return ok
}

// CuMemRetainAllocationHandle gives the handle of what is mapped at an address.
func (g *GPU) CuMemRetainAllocationHandle(ph *cuda.CUmemGenericAllocationHandle, addr pointer) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	m := g.vmm.at(addressOf(addr))
	if m == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	p := m.phys
	if p.handles == 0 {
		p.handle = cuda.CUmemGenericAllocationHandle(g.objects.add(p))
	}
	p.handles++
	*ph = p.handle
	return ok
}
