package sim

import (
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

// Managed memory: the simulated GPU's memory lies in this process, so the CPU and kernels use it at one address and no page ever moves. What
// programs advise and where they ask it to be fetched is kept per allocation, for cuMemRangeGetAttribute.

const (
	deviceCPU     = cuda.CUdevice(-1)
	deviceInvalid = cuda.CUdevice(-2)
	managedAlign  = 64 << 10 // a managed variable or allocation shares no page with other memory
)

// advice is what cuMemAdvise and cuMemPrefetchAsync said last.
type advice struct {
	readMostly            bool
	preferred, prefetched cuda.CUdevice
	accessedBy            map[cuda.CUdevice]bool
}

// allocateManaged is allocate for managed memory, all zero. g.mu is held.
func (g *GPU) allocateManaged(c *cudaContext, kind regionKind, n uint64) (*region, cuda.CUresult) {
	size := roundUp(n, managedAlign)
	if n == 0 {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	if size < n || size > c.dev.total-c.dev.used || g.faulty(kind) {
		return nil, cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	base, found := c.dev.arena.alloc(size, managedAlign)
	if !found {
		return nil, cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	r := &region{base: base, size: size, asked: n, kind: kind, dev: c.dev, ctx: c, id: g.nextID(), managed: &advice{preferred: deviceInvalid, prefetched: deviceInvalid}}
	if err := g.mem.insert(r); err != nil {
		g.log.Error("sim: device memory table", "error", err)
		return nil, cuda.CUDA_ERROR_UNKNOWN
	}
	g.take(c.dev, size)
	clear(bytesAt(base, size))
	return r, ok
}

func (g *GPU) CuMemAllocManaged(dptr *cuda.CUdeviceptr, n uint64, flags uint32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if dptr == nil || flags != uint32(cuda.CU_MEM_ATTACH_GLOBAL) && flags != uint32(cuda.CU_MEM_ATTACH_HOST) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	reg, r := g.allocateManaged(c, regionManaged, n)
	if r != ok {
		return r
	}
	*dptr = cuda.CUdeviceptr(reg.base)
	return ok
}

func (g *GPU) CuLibraryGetManaged(dptr *cuda.CUdeviceptr, size *uint64, h cuda.CUlibrary, name unsafe.Pointer) cuda.CUresult {
	return g.libraryModule(h, false, func(m *module) cuda.CUresult {
		if s, found := cString(name, maxName); found && m.prog.Global(s) != nil && !m.prog.Global(s).Managed {
			return cuda.CUDA_ERROR_NOT_FOUND
		}
		return m.global(dptr, size, name)
	})
}

// managedRange finds the managed memory that holds a whole range. g.mu is held.
func (g *GPU) managedRange(p cuda.CUdeviceptr, n uint64) (*region, cuda.CUresult) {
	reg := g.mem.find(uint64(p))
	if reg == nil || reg.managed == nil || n == 0 || n > reg.end()-uint64(p) {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return reg, ok
}

// located gives the device that a location names, deviceCPU for the host.
func (g *GPU) located(l cuda.CUmemLocation) (cuda.CUdevice, cuda.CUresult) {
	switch l.Type {
	case cuda.CU_MEM_LOCATION_TYPE_DEVICE:
		return g.known(cuda.CUdevice(l.Id))
	case cuda.CU_MEM_LOCATION_TYPE_HOST, cuda.CU_MEM_LOCATION_TYPE_HOST_NUMA, cuda.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return deviceCPU, ok
	}
	return 0, cuda.CUDA_ERROR_INVALID_VALUE
}

func (g *GPU) known(d cuda.CUdevice) (cuda.CUdevice, cuda.CUresult) {
	if d != deviceCPU && (d < 0 || int(d) >= len(g.devices)) {
		return 0, cuda.CUDA_ERROR_INVALID_DEVICE
	}
	return d, ok
}

func (g *GPU) prefetch(p cuda.CUdeviceptr, n uint64, to cuda.CUdevice, hs cuda.CUstream) cuda.CUresult {
	if _, r := g.enterStream(hs); r != ok {
		return r
	}
	defer g.mu.Unlock()
	to, r := g.known(to)
	if r != ok {
		return r
	}
	reg, r := g.managedRange(p, n)
	if r == ok {
		reg.managed.prefetched = to
	}
	return r
}

func (g *GPU) CuMemPrefetchAsync(p cuda.CUdeviceptr, n uint64, to cuda.CUdevice, s cuda.CUstream) cuda.CUresult {
	return g.prefetch(p, n, to, s)
}

func (g *GPU) CuMemPrefetchAsync_v2(p cuda.CUdeviceptr, n uint64, l cuda.CUmemLocation, flags uint32, s cuda.CUstream) cuda.CUresult {
	to, r := g.located(l)
	if r == ok && flags != 0 {
		r = cuda.CUDA_ERROR_INVALID_VALUE
	}
	if r != ok {
		return r
	}
	return g.prefetch(p, n, to, s)
}

func (g *GPU) CuMemAdvise(p cuda.CUdeviceptr, n uint64, what cuda.CUmem_advise, d cuda.CUdevice) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg, r := g.managedRange(p, n)
	if r != ok {
		return r
	}
	a := reg.managed
	switch what {
	case cuda.CU_MEM_ADVISE_SET_READ_MOSTLY, cuda.CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		a.readMostly = what == cuda.CU_MEM_ADVISE_SET_READ_MOSTLY
		return ok
	case cuda.CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		a.preferred = deviceInvalid
		return ok
	}
	if d, r = g.known(d); r != ok {
		return r
	}
	switch what {
	case cuda.CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		a.preferred = d
	case cuda.CU_MEM_ADVISE_SET_ACCESSED_BY:
		if a.accessedBy == nil {
			a.accessedBy = map[cuda.CUdevice]bool{}
		}
		a.accessedBy[d] = true
	case cuda.CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		delete(a.accessedBy, d)
	default:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

func (g *GPU) CuMemAdvise_v2(p cuda.CUdeviceptr, n uint64, what cuda.CUmem_advise, l cuda.CUmemLocation) cuda.CUresult {
	d := deviceCPU
	switch what {
	case cuda.CU_MEM_ADVISE_SET_READ_MOSTLY, cuda.CU_MEM_ADVISE_UNSET_READ_MOSTLY, cuda.CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: // no location
	default:
		var r cuda.CUresult
		if d, r = g.located(l); r != ok {
			return r
		}
	}
	return g.CuMemAdvise(p, n, what, d)
}

func (a *advice) attribute(data unsafe.Pointer, size uint64, what cuda.CUmem_range_attribute) cuda.CUresult {
	out := sliceOf((*cuda.CUdevice)(data), size/4)
	if what == cuda.CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY {
		for i := range out {
			out[i] = deviceInvalid
		}
		n := 0
		for d := deviceCPU; d < 64 && n < len(out); d++ {
			if a.accessedBy[d] {
				out[n] = d
				n++
			}
		}
		return ok
	}
	if size != 4 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	location := func(d cuda.CUdevice) (kind, id cuda.CUdevice) {
		switch d {
		case deviceInvalid:
			return cuda.CUdevice(cuda.CU_MEM_LOCATION_TYPE_INVALID), 0
		case deviceCPU:
			return cuda.CUdevice(cuda.CU_MEM_LOCATION_TYPE_HOST), 0
		}
		return cuda.CUdevice(cuda.CU_MEM_LOCATION_TYPE_DEVICE), d
	}
	switch what {
	case cuda.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		out[0] = 0
		if a.readMostly {
			out[0] = 1
		}
	case cuda.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		out[0] = a.preferred
	case cuda.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		out[0] = a.prefetched
	case cuda.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		out[0], _ = location(a.preferred)
	case cuda.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		_, out[0] = location(a.preferred)
	case cuda.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		out[0], _ = location(a.prefetched)
	case cuda.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		_, out[0] = location(a.prefetched)
	default:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

func (g *GPU) CuMemRangeGetAttribute(data unsafe.Pointer, size uint64, what cuda.CUmem_range_attribute, p cuda.CUdeviceptr, n uint64) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg, r := g.managedRange(p, n)
	if r != ok {
		return r
	}
	if data == nil || size == 0 || size%4 != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return reg.managed.attribute(data, size, what)
}

func (g *GPU) CuMemRangeGetAttributes(data unsafe.Pointer, sizes *uint64, what *cuda.CUmem_range_attribute, count uint64, p cuda.CUdeviceptr, n uint64) cuda.CUresult {
	if data == nil || sizes == nil || what == nil || count == 0 || count > 64 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	places, lengths, names := sliceOf((*unsafe.Pointer)(data), count), sliceOf(sizes, count), sliceOf(what, count)
	for i := range places {
		if r := g.CuMemRangeGetAttribute(places[i], lengths[i], names[i], p, n); r != ok {
			return r
		}
	}
	return ok
}

func (g *GPU) CuStreamAttachMemAsync(hs cuda.CUstream, p cuda.CUdeviceptr, n uint64, flags uint32) cuda.CUresult {
	if _, r := g.enterStream(hs); r != ok {
		return r
	}
	defer g.mu.Unlock()
	reg, r := g.managedRange(p, max(n, 1))
	if r != ok || uint64(p) != reg.base || n != 0 && n != reg.asked {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	switch int64(flags) {
	case int64(cuda.CU_MEM_ATTACH_GLOBAL), int64(cuda.CU_MEM_ATTACH_HOST):
		return ok
	case int64(cuda.CU_MEM_ATTACH_SINGLE):
		if hs != 0 {
			return ok
		}
	}
	return cuda.CUDA_ERROR_INVALID_VALUE
}
