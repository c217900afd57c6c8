package sim

import "scuda.dev/scuda/api/cuda"

// PrimaryContext gives the handle of a device's primary context without retaining it.
func (g *GPU) PrimaryContext(dev cuda.CUdevice) (cuda.CUcontext, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return 0, r
	}
	defer g.mu.Unlock()
	d, r := g.device(dev)
	if r != ok {
		return 0, r
	}
	return d.primary.handle, ok
}

func (g *GPU) CuDevicePrimaryCtxRetain(pctx *cuda.CUcontext, dev cuda.CUdevice) cuda.CUresult {
	d, r := g.enterDevice(dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if pctx == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*pctx = d.primary.handle // also of one that cannot be had
	if !d.primary.live {
		if d.failure != ok {
			return d.failure
		}
		d.primary.flags = d.primaryFlags | uint32(cuda.CU_CTX_MAP_HOST)
		g.start(d.primary)
	}
	d.retained++
	return ok
}

func (g *GPU) CuDevicePrimaryCtxRelease_v2(dev cuda.CUdevice) cuda.CUresult {
	d, r := g.enterDevice(dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if d.retained == 0 {
		return cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	if d.retained--; d.retained == 0 && d.primary.live {
		g.destroy(d.primary)
	}
	return ok
}

// CuDevicePrimaryCtxReset_v2 is no way out of a failed context: its GPU has failed for this process.
func (g *GPU) CuDevicePrimaryCtxReset_v2(dev cuda.CUdevice) cuda.CUresult {
	d, r := g.enterDevice(dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	d.primaryFlags = 0
	if d.primary.live {
		g.destroy(d.primary)
	}
	return ok // the references stay
}

func (g *GPU) CuDevicePrimaryCtxSetFlags_v2(dev cuda.CUdevice, flags uint32) cuda.CUresult {
	d, r := g.enterDevice(dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if flags&^uint32(cuda.CU_CTX_FLAGS_MASK) != 0 || flags&uint32(cuda.CU_CTX_SCHED_MASK) == 3 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	d.primaryFlags, d.primary.flags = flags, flags|uint32(cuda.CU_CTX_MAP_HOST)
	return ok
}

func (g *GPU) CuDevicePrimaryCtxGetState(dev cuda.CUdevice, flags *uint32, active *int32) cuda.CUresult {
	d, r := g.enterDevice(dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if flags == nil || active == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	// which every context has, and an H200's driver does not tell here
	*flags, *active = d.primaryFlags&^uint32(cuda.CU_CTX_MAP_HOST), 0
	if d.primary.live {
		*active = 1
	}
	return ok
}
