package sim

import (
	"fmt"
	"os"
	"slices"
	"sort"

	"scuda.dev/scuda/api/cuda"
)

// Managed memory: the simulated GPU's memory lies in this process, so the CPU and kernels use it at one address and no
// page ever moves. What programs advise and where they ask it to be fetched is kept per page, for
// cuMemRangeGetAttribute.

const (
	deviceCPU     = cuda.CUdevice(-1)
	deviceInvalid = cuda.CUdevice(-2)
	managedAlign  = 64 << 10 // a managed variable or allocation shares no page with other memory
)

// advice is what cuMemAdvise and cuMemPrefetchAsync said last of a page.
type advice struct {
	readMostly            bool
	preferred, prefetched cuda.CUmemLocation
	accessedBy            uint64 // a bit for each device, the highest for the CPU
}

// advised is a stretch of pages of which the same was said, up to the next one.
type advised struct {
	from uint64 // in the region
	is   advice
}

const advicePage = 4096

// say changes what was said of the pages that hold [from, to).
func (r *region) say(from, to uint64, change func(*advice)) {
	begin := func(at uint64) int {
		i := sort.Search(len(r.managed), func(i int) bool { return r.managed[i].from >= at })
		if i == len(r.managed) || r.managed[i].from != at {
			r.managed = slices.Insert(r.managed, i, advised{at, r.managed[i-1].is})
		}
		return i
	}
	first, end := begin(from/advicePage*advicePage), begin(roundUp(to, advicePage))
	for i := range r.managed[first:end] {
		change(&r.managed[first+i].is)
	}
	r.managed = slices.CompactFunc(r.managed, func(a, b advised) bool { return a.is == b.is })
}

// said is what all pages of [from, to) have in common; its places are given as devices, for which the host is one, too.
func (r *region) said(from, to uint64) (of advice, preferred, prefetched cuda.CUdevice) {
	common := func(a, b cuda.CUdevice) cuda.CUdevice {
		if a != b {
			return deviceInvalid
		}
		return a
	}
	for i, a := range r.managed {
		if a.from >= to || i+1 < len(r.managed) && r.managed[i+1].from <= from {
			continue
		}
		if a.from <= from {
			of, preferred, prefetched = a.is, deviceOf(a.is.preferred), deviceOf(a.is.prefetched)
		}
		preferred, prefetched = common(preferred, deviceOf(a.is.preferred)), common(prefetched, deviceOf(a.is.prefetched))
		if of.preferred != a.is.preferred {
			of.preferred = cuda.CUmemLocation{}
		}
		if of.prefetched != a.is.prefetched {
			of.prefetched = cuda.CUmemLocation{}
		}
		of.readMostly = of.readMostly && a.is.readMostly
		of.accessedBy &= a.is.accessedBy
	}
	return of, preferred, prefetched
}

// deviceOf is the device of a location.
func deviceOf(l cuda.CUmemLocation) cuda.CUdevice {
	switch l.Type {
	case cuda.CU_MEM_LOCATION_TYPE_INVALID:
		return deviceInvalid
	case cuda.CU_MEM_LOCATION_TYPE_DEVICE:
		return cuda.CUdevice(l.Id)
	}
	return deviceCPU
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
	r := &region{base: base, size: size, asked: n, kind: kind, dev: c.dev, ctx: c, id: g.nextID(), managed: []advised{{}}}
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

func (g *GPU) CuLibraryGetManaged(dptr *cuda.CUdeviceptr, size *uint64, h cuda.CUlibrary, name pointer) cuda.CUresult {
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

// located checks a location, and says which it is.
func (g *GPU) located(l cuda.CUmemLocation) (cuda.CUmemLocation, cuda.CUresult) {
	switch l.Type {
	case cuda.CU_MEM_LOCATION_TYPE_DEVICE:
		_, r := g.known(cuda.CUdevice(l.Id))
		return l, r
	case cuda.CU_MEM_LOCATION_TYPE_HOST:
		return cuda.CUmemLocation{Type: l.Type}, ok
	case cuda.CU_MEM_LOCATION_TYPE_HOST_NUMA:
		if _, err := os.Stat(fmt.Sprintf("/sys/devices/system/node/node%d", l.Id)); err != nil && l.Id != 0 {
			return l, cuda.CUDA_ERROR_INVALID_VALUE
		}
		return l, ok
	case cuda.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return cuda.CUmemLocation{Type: cuda.CU_MEM_LOCATION_TYPE_HOST_NUMA}, ok
	}
	return l, cuda.CUDA_ERROR_INVALID_VALUE
}

// known checks a device, and gives its location.
func (g *GPU) known(d cuda.CUdevice) (cuda.CUmemLocation, cuda.CUresult) {
	switch {
	case d == deviceCPU:
		return cuda.CUmemLocation{Type: cuda.CU_MEM_LOCATION_TYPE_HOST}, ok
	case d < 0 || int(d) >= len(g.devices):
		return cuda.CUmemLocation{}, cuda.CUDA_ERROR_INVALID_DEVICE
	}
	return cuda.CUmemLocation{Type: cuda.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(d)}, ok
}

// say changes what is said of a range of managed memory. g.mu is held.
func (g *GPU) say(p cuda.CUdeviceptr, n uint64, change func(*advice)) cuda.CUresult {
	reg, r := g.managedRange(p, n)
	if r == ok {
		from := uint64(p) - reg.base
		reg.say(from, from+n, change)
	}
	return r
}

func (g *GPU) CuMemPrefetchAsync(p cuda.CUdeviceptr, n uint64, to cuda.CUdevice, hs cuda.CUstream) cuda.CUresult {
	if _, r := g.enterStream(hs); r != ok {
		return r
	}
	defer g.mu.Unlock()
	where, r := g.known(to)
	if r != ok {
		return r
	}
	return g.say(p, n, func(a *advice) { a.prefetched = where })
}

func (g *GPU) CuMemPrefetchAsync_v2(p cuda.CUdeviceptr, n uint64, l cuda.CUmemLocation, flags uint32,
	hs cuda.CUstream) cuda.CUresult {
	if _, r := g.enterStream(hs); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	where, r := g.located(l)
	if r != ok {
		return r
	}
	return g.say(p, n, func(a *advice) { a.prefetched = where })
}

// advise notes what is said of a range; where checks the location. g.mu is held.
func (g *GPU) advise(p cuda.CUdeviceptr, n uint64, what cuda.CUmem_advise,
	where func() (cuda.CUmemLocation, cuda.CUresult)) cuda.CUresult {
	switch what {
	case cuda.CU_MEM_ADVISE_SET_READ_MOSTLY, cuda.CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		return g.say(p, n, func(a *advice) { a.readMostly = what == cuda.CU_MEM_ADVISE_SET_READ_MOSTLY })
	case cuda.CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		return g.say(p, n, func(a *advice) { a.preferred = cuda.CUmemLocation{} })
	case cuda.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, cuda.CU_MEM_ADVISE_SET_ACCESSED_BY,
		cuda.CU_MEM_ADVISE_UNSET_ACCESSED_BY:
	default:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	l, r := where()
	if r != ok {
		return r
	}
	bit := uint64(1) << 63
	if l.Type == cuda.CU_MEM_LOCATION_TYPE_DEVICE {
		bit = 1 << l.Id
	}
	return g.say(p, n, func(a *advice) {
		switch what {
		case cuda.CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
			a.preferred = l
		case cuda.CU_MEM_ADVISE_SET_ACCESSED_BY:
			a.accessedBy |= bit
		default:
			a.accessedBy &^= bit
		}
	})
}

func (g *GPU) CuMemAdvise(p cuda.CUdeviceptr, n uint64, what cuda.CUmem_advise, d cuda.CUdevice) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	return g.advise(p, n, what, func() (cuda.CUmemLocation, cuda.CUresult) { return g.known(d) })
}

func (g *GPU) CuMemAdvise_v2(p cuda.CUdeviceptr, n uint64, what cuda.CUmem_advise, l cuda.CUmemLocation) cuda.CUresult {
	if _, r := g.enter(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	most := cuda.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
	if what == cuda.CU_MEM_ADVISE_SET_ACCESSED_BY || what == cuda.CU_MEM_ADVISE_UNSET_ACCESSED_BY {
		most = cuda.CU_MEM_LOCATION_TYPE_HOST
	}
	if l.Type < cuda.CU_MEM_LOCATION_TYPE_DEVICE || l.Type > most {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.advise(p, n, what, func() (cuda.CUmemLocation, cuda.CUresult) {
		l, r := g.located(l)
		if r != ok { // also for a device that there is not, as the driver says here
			r = cuda.CUDA_ERROR_INVALID_VALUE
		}
		return l, r
	})
}

func (g *GPU) CuMemRangeGetAttribute(data pointer, size uint64, what cuda.CUmem_range_attribute, p cuda.CUdeviceptr,
	n uint64) cuda.CUresult {
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
	from := uint64(p) - reg.base
	of, preferred, prefetched := reg.said(from, from+n)
	id := func(l cuda.CUmemLocation) int32 {
		if l.Type == cuda.CU_MEM_LOCATION_TYPE_INVALID {
			return int32(deviceInvalid)
		}
		return l.Id
	}
	out := sliceOf(view[int32](data), size/4)
	if what == cuda.CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY {
		for i := range out {
			out[i] = int32(deviceInvalid)
		}
		for d, n := 0, 0; d < 64 && n < len(out); d++ {
			if of.accessedBy>>d&1 != 0 {
				out[n] = int32(d)
				if d == 63 {
					out[n] = int32(deviceCPU)
				}
				n++
			}
		}
		return ok
	}
	if size != 4 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	switch what {
	case cuda.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		out[0] = 0
		if of.readMostly {
			out[0] = 1
		}
	case cuda.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		out[0] = int32(preferred)
	case cuda.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		out[0] = int32(of.preferred.Type)
	case cuda.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		out[0] = id(of.preferred)
	case cuda.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		out[0] = int32(prefetched)
	case cuda.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		out[0] = int32(of.prefetched.Type)
	case cuda.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		out[0] = id(of.prefetched)
	default:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

func (g *GPU) CuMemRangeGetAttributes(data pointer, sizes *uint64, what *cuda.CUmem_range_attribute, count uint64,
	p cuda.CUdeviceptr, n uint64) cuda.CUresult {
	if data == nil || sizes == nil || what == nil || count == 0 || count > 64 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	places, lengths, names := sliceOf(view[pointer](data), count), sliceOf(sizes, count), sliceOf(what, count)
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
