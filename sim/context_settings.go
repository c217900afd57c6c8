package sim

import "scuda.dev/scuda/api/cuda"

// CuCtxGetExecAffinity answers with all multiprocessors.
func (g *GPU) CuCtxGetExecAffinity(to *cuda.CUexecAffinityParam, kind cuda.CUexecAffinityType) cuda.CUresult {
	_, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	switch {
	case to == nil:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case kind != cuda.CU_EXEC_AFFINITY_TYPE_SM_COUNT:
		return cuda.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
	}
	*to = cuda.CUexecAffinityParam{Type: kind, Param: [1]uint32{uint32(g.sms())}}
	return ok
}

// askContext answers from the current context, which must not have failed.
func (g *GPU) askContext(null bool, read func(*cudaContext)) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if null {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	read(c)
	return ok
}

// readContext answers from a context that may have failed: the driver reports failures only from calls that need the
// GPU.
func (g *GPU) readContext(h cuda.CUcontext, null bool, read func(*cudaContext)) cuda.CUresult {
	dead := false
	if r := g.recallContext(h, false, func(c *cudaContext) {
		if dead = !c.live; !dead && !null {
			read(c)
		}
	}); r != ok || !dead && !null {
		return r
	}
	if dead {
		return cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED
	}
	return cuda.CUDA_ERROR_INVALID_VALUE
}

// recallContext answers from a context that may have failed or ended.
func (g *GPU) recallContext(h cuda.CUcontext, null bool, read func(*cudaContext)) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	var c *cudaContext
	var r cuda.CUresult
	if h == 0 {
		c, r = g.currentOf(g.thread())
	} else {
		c, r = g.contextOf(h)
	}
	switch {
	case r != ok:
		return r
	case null:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	read(c)
	return ok
}

func (g *GPU) CuCtxGetLimit(value *uint64, limit cuda.CUlimit) cuda.CUresult {
	r := cuda.CUDA_ERROR_UNSUPPORTED_LIMIT
	if limit < 0 || limit >= cuda.CU_LIMIT_MAX {
		r = cuda.CUDA_ERROR_INVALID_VALUE
	}
	if got := g.askContext(value == nil, func(c *cudaContext) {
		if v, known := c.limits[limit]; known {
			*value, r = v, ok
		}
	}); got != ok {
		return got
	}
	return r
}

func (g *GPU) CuCtxSetLimit(limit cuda.CUlimit, value uint64) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.unsafeInCapture(); r != ok {
		return r
	}
	if limit >= cuda.CU_LIMIT_MAX || value > 1<<40 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if _, known := c.limits[limit]; !known {
		return cuda.CUDA_ERROR_UNSUPPORTED_LIMIT
	}
	c.limits[limit] = value
	return ok
}

func (g *GPU) CuCtxGetCacheConfig(config *cuda.CUfunc_cache) cuda.CUresult {
	return g.readContext(0, config == nil, func(c *cudaContext) { *config = c.cache })
}

func (g *GPU) CuCtxSetCacheConfig(config cuda.CUfunc_cache) cuda.CUresult {
	return g.readContext(0, config < 0 || config > cuda.CU_FUNC_CACHE_PREFER_EQUAL,
		func(c *cudaContext) { c.cache = config })
}

func (g *GPU) CuCtxGetSharedMemConfig(config *cuda.CUsharedconfig) cuda.CUresult {
	return g.readContext(0, config == nil, func(c *cudaContext) { *config = c.sharedCfg })
}

func (g *GPU) CuCtxSetSharedMemConfig(config cuda.CUsharedconfig) cuda.CUresult {
	return g.readContext(0, config < 0 || config > 2, func(c *cudaContext) { c.sharedCfg = config })
}

func (g *GPU) CuCtxResetPersistingL2Cache() cuda.CUresult {
	return g.readContext(0, false, func(*cudaContext) {})
}
