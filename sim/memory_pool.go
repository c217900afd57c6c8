package sim

import (
	"context"
	"slices"

	"scuda.dev/scuda/api/cuda"
)

// pool is a CUmemoryPool. It keeps nothing in reserve: what is freed goes back to the device at once.
type pool struct {
	handle    cuda.CUmemoryPool
	dev       *device
	byDefault bool
	max       uint64
	used      uint64
	usedHigh  uint64
	threshold uint64
	exports   cuda.CUmemAllocationHandleType
	imported  bool
	reuse     [3]int32 // CU_MEMPOOL_ATTR_REUSE_*: without effect, as nothing is reused
}

// devicePools are a device's default pool and the one that cuMemAllocAsync uses.
type devicePools struct{ byDefault, current *pool }

func (g *GPU) newPool(d *device) *pool {
	p := &pool{dev: d, reuse: [3]int32{1, 1, 1}}
	p.handle = cuda.CUmemoryPool(g.objects.add(p))
	return p
}

func (g *GPU) newPools(d *device) {
	p := g.newPool(d)
	p.byDefault = true
	d.pools = devicePools{p, p}
}

func (g *GPU) pool(h cuda.CUmemoryPool) (*pool, cuda.CUresult) {
	p, found := lookup[*pool](g, h)
	if !found {
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return p, ok
}

func (g *GPU) CuDeviceGetDefaultMemPool(ph *cuda.CUmemoryPool, dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, ph == nil, func(d *device) { *ph = d.pools.byDefault.handle })
}

func (g *GPU) CuDeviceGetMemPool(ph *cuda.CUmemoryPool, dev cuda.CUdevice) cuda.CUresult {
	return g.readDevice(dev, ph == nil, func(d *device) { *ph = d.pools.current.handle })
}

func (g *GPU) CuDeviceSetMemPool(dev cuda.CUdevice, h cuda.CUmemoryPool) cuda.CUresult {
	d, r := g.enterDevice(dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, r := g.pool(h)
	if r != ok || p.dev != d {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	d.pools.current = p
	return ok
}

// poolPlace finds the device whose pools a call names by location and type.
func (g *GPU) poolPlace(location *cuda.CUmemLocation, kind cuda.CUmemAllocationType) (cuda.CUdevice, cuda.CUresult) {
	switch {
	case location == nil || kind != cuda.CU_MEM_ALLOCATION_TYPE_PINNED:
		return 0, cuda.CUDA_ERROR_INVALID_VALUE
	case location.Type != cuda.CU_MEM_LOCATION_TYPE_DEVICE:
		return 0, cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return cuda.CUdevice(location.Id), ok
}

func (g *GPU) CuMemGetDefaultMemPool(ph *cuda.CUmemoryPool, location *cuda.CUmemLocation,
	kind cuda.CUmemAllocationType) cuda.CUresult {
	dev, r := g.poolPlace(location, kind)
	if r != ok {
		return r
	}
	return g.CuDeviceGetDefaultMemPool(ph, dev)
}

func (g *GPU) CuMemGetMemPool(ph *cuda.CUmemoryPool, location *cuda.CUmemLocation,
	kind cuda.CUmemAllocationType) cuda.CUresult {
	dev, r := g.poolPlace(location, kind)
	if r != ok {
		return r
	}
	return g.CuDeviceGetMemPool(ph, dev)
}

func (g *GPU) CuMemSetMemPool(location *cuda.CUmemLocation, kind cuda.CUmemAllocationType,
	h cuda.CUmemoryPool) cuda.CUresult {
	dev, r := g.poolPlace(location, kind)
	if r != ok {
		return r
	}
	return g.CuDeviceSetMemPool(dev, h)
}

func (g *GPU) CuMemPoolCreate(ph *cuda.CUmemoryPool, props *cuda.CUmemPoolProps) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	switch {
	case ph == nil || props == nil || props.AllocType != cuda.CU_MEM_ALLOCATION_TYPE_PINNED:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case props.HandleTypes&^cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 ||
		props.Location.Type != cuda.CU_MEM_LOCATION_TYPE_DEVICE:
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	d, r := g.device(cuda.CUdevice(props.Location.Id))
	if r != ok {
		return r
	}
	p := g.newPool(d)
	p.max, p.exports = props.MaxSize, props.HandleTypes
	*ph = p.handle
	return ok
}

func (g *GPU) CuMemPoolDestroy(h cuda.CUmemoryPool) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, r := g.pool(h)
	if r != ok || p.byDefault {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	g.objects.drop(uint64(h))
	if p.dev.pools.current == p {
		p.dev.pools.current = p.dev.pools.byDefault
	}
	return ok
}

func (g *GPU) CuMemPoolTrimTo(h cuda.CUmemoryPool, _ uint64) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	_, r := g.pool(h)
	return r
}

// CuMemPoolSetAccess has nothing to do: all devices reach all memory.
func (g *GPU) CuMemPoolSetAccess(h cuda.CUmemoryPool, descs *cuda.CUmemAccessDesc, count uint64) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, r := g.pool(h)
	if r != ok || count > maxDevices || count > 0 && descs == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	for _, d := range sliceOf(descs, count) {
		if d.Location.Type != cuda.CU_MEM_LOCATION_TYPE_DEVICE {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		if _, r := g.device(cuda.CUdevice(d.Location.Id)); r != ok {
			return r
		}
		if int(d.Location.Id) == p.dev.ordinal && d.Flags == cuda.CU_MEM_ACCESS_FLAGS_PROT_NONE {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	return ok
}

func (g *GPU) CuMemPoolGetAccess(flags *cuda.CUmemAccess_flags, h cuda.CUmemoryPool,
	location *cuda.CUmemLocation) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if _, r := g.pool(h); r != ok || flags == nil || location == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*flags = cuda.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	return ok
}

func (g *GPU) CuMemAllocAsync(dptr *cuda.CUdeviceptr, n uint64, hs cuda.CUstream) cuda.CUresult {
	return g.allocAsync(dptr, n, hs, func(s *stream) (*pool, cuda.CUresult) { return s.ctx.dev.pools.current, ok })
}

func (g *GPU) CuMemAllocFromPoolAsync(dptr *cuda.CUdeviceptr, n uint64, h cuda.CUmemoryPool,
	hs cuda.CUstream) cuda.CUresult {
	return g.allocAsync(dptr, n, hs, func(*stream) (*pool, cuda.CUresult) { return g.pool(h) })
}

// allocAsync takes the memory at once, which is earlier than stream order asks for, and so always right.
func (g *GPU) allocAsync(dptr *cuda.CUdeviceptr, n uint64, hs cuda.CUstream,
	from func(*stream) (*pool, cuda.CUresult)) cuda.CUresult {
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, r := from(s)
	if r != ok {
		return r
	}
	if dptr == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if p.imported {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if n == 0 {
		*dptr = 0
		return ok
	}
	if p.max != 0 && n > p.max-min(p.used, p.max) {
		return cuda.CUDA_ERROR_OUT_OF_MEMORY
	}
	if s.capture == nil {
		if r := g.implicitInCapture(s); r != ok {
			return r
		}
		if r := g.unsafeInCapture(); r != ok {
			return r
		}
	}
	reg, r := g.allocateOrWait(s.ctx, regionPool, n)
	if r != ok {
		return r
	}
	if cap := s.capture; cap != nil {
		// The graph owns the memory: the address stays its own for as long as it can be launched.
		a := &allocation{region: reg}
		a.Bytesize, a.Dptr = n, cuda.CUdeviceptr(reg.base)
		a.PoolProps.AllocType = cuda.CU_MEM_ALLOCATION_TYPE_PINNED
		a.PoolProps.Location = cuda.CUmemLocation{Type: cuda.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(reg.dev.ordinal)}
		if _, r := cap.add(s, op{kind: cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC, params: a}); r != ok {
			g.freeOwned(reg)
			return r
		}
		g.ownRegion(cap.graph, reg)
	} else {
		reg.pool = p
		p.used += reg.size
		p.usedHigh = max(p.usedHigh, p.used)
	}
	*dptr = cuda.CUdeviceptr(reg.base)
	return ok
}

func (g *GPU) CuMemFreeAsync(dptr cuda.CUdeviceptr, hs cuda.CUstream) cuda.CUresult {
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if dptr == 0 {
		return ok
	}
	reg := g.mem.find(uint64(dptr))
	if reg == nil || reg.base != uint64(dptr) || reg.kind != regionPool && reg.kind != regionDevice &&
		(reg.kind != regionForeign || reg.pool == nil) || reg.freeing {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if cap := s.capture; cap != nil {
		if reg.graph != cap.graph {
			cap.invalidate()
			return cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		if !cap.invalid && cap.graph.frees(reg) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		_, r := cap.add(s, op{kind: cuda.CU_GRAPH_NODE_TYPE_MEM_FREE, params: reg})
		return r
	}
	if reg.graph != nil {
		if !reg.out {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		reg.out = false // the memory itself goes with its graph
		return ok
	}
	t, r := g.submit(s, op{run: func(context.Context) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.freeRegion(reg)
	}})
	if r != ok {
		return r
	}
	reg.freeing = true
	d := reg.dev
	d.frees = append(slices.DeleteFunc(d.frees, (*task).finished), t)
	return ok
}

// attr gives the memory that holds an attribute of p: 4 bytes for switches, 8 for sizes.
func (p *pool) attr(a cuda.CUmemPool_attribute) (word *uint64, flag *int32) {
	switch a {
	case cuda.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		return nil, &p.reuse[0]
	case cuda.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		return nil, &p.reuse[1]
	case cuda.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		return nil, &p.reuse[2]
	case cuda.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &p.threshold, nil
	case cuda.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, cuda.CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &p.used, nil
	case cuda.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, cuda.CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &p.usedHigh, nil
	}
	return nil, nil
}

func (g *GPU) withPoolAttr(h cuda.CUmemoryPool, a cuda.CUmemPool_attribute, value pointer,
	use func(p *pool, word *uint64, flag *int32) cuda.CUresult) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	p, r := g.pool(h)
	if r != ok {
		return r
	}
	word, flag := p.attr(a)
	if value == nil || word == nil && flag == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return use(p, word, flag)
}

func (g *GPU) CuMemPoolGetAttribute(h cuda.CUmemoryPool, a cuda.CUmemPool_attribute, value pointer) cuda.CUresult {
	return g.withPoolAttr(h, a, value, func(_ *pool, word *uint64, flag *int32) cuda.CUresult {
		if word != nil {
			*view[uint64](value) = *word
		} else {
			*view[int32](value) = *flag
		}
		return ok
	})
}

func (g *GPU) CuMemPoolSetAttribute(h cuda.CUmemoryPool, a cuda.CUmemPool_attribute, value pointer) cuda.CUresult {
	return g.withPoolAttr(h, a, value, func(p *pool, word *uint64, flag *int32) cuda.CUresult {
		switch {
		case flag != nil:
			*flag = *view[int32](value)
		case word == &p.threshold:
			*word = *view[uint64](value)
		case word == &p.usedHigh && *view[uint64](value) == 0: // starts the watermark anew
			*word = p.used
		default:
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		return ok
	})
}
