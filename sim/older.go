package sim

import "scuda.dev/scuda/api/cuda"

// The older names of calls that did not change, and one that did.

// CuCtxCreate is the form of times with 32 bits. The driver of an H200 checks its arguments and then says that there is
// no memory.
func (g *GPU) CuCtxCreate(pctx *cuda.CUcontext, flags uint32, dev cuda.CUdevice) cuda.CUresult {
	_, r := enterForContext(g, pctx, flags, dev)
	if r != ok {
		return r
	}
	g.mu.Unlock()
	return cuda.CUDA_ERROR_OUT_OF_MEMORY
}

func (g *GPU) CuCtxDestroy(h cuda.CUcontext) cuda.CUresult { return g.CuCtxDestroy_v2(h) }

func (g *GPU) CuCtxPushCurrent(h cuda.CUcontext) cuda.CUresult { return g.CuCtxPushCurrent_v2(h) }

func (g *GPU) CuCtxPopCurrent(pctx *cuda.CUcontext) cuda.CUresult { return g.CuCtxPopCurrent_v2(pctx) }

func (g *GPU) CuDevicePrimaryCtxRelease(dev cuda.CUdevice) cuda.CUresult {
	return g.CuDevicePrimaryCtxRelease_v2(dev)
}

func (g *GPU) CuDevicePrimaryCtxReset(dev cuda.CUdevice) cuda.CUresult {
	return g.CuDevicePrimaryCtxReset_v2(dev)
}

func (g *GPU) CuDevicePrimaryCtxSetFlags(dev cuda.CUdevice, flags uint32) cuda.CUresult {
	return g.CuDevicePrimaryCtxSetFlags_v2(dev, flags)
}

func (g *GPU) CuEventDestroy(h cuda.CUevent) cuda.CUresult { return g.CuEventDestroy_v2(h) }

func (g *GPU) CuStreamDestroy(h cuda.CUstream) cuda.CUresult { return g.CuStreamDestroy_v2(h) }

func (g *GPU) CuStreamBeginCapture(h cuda.CUstream) cuda.CUresult {
	return g.CuStreamBeginCapture_v2(h, cuda.CU_STREAM_CAPTURE_MODE_GLOBAL)
}

func (g *GPU) CuStreamWaitValue32(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint32,
	flags uint32) cuda.CUresult {
	return g.CuStreamWaitValue32_v2(s, addr, value, flags)
}

func (g *GPU) CuStreamWaitValue64(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint64,
	flags uint32) cuda.CUresult {
	return g.CuStreamWaitValue64_v2(s, addr, value, flags)
}

func (g *GPU) CuStreamWriteValue32(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint32,
	flags uint32) cuda.CUresult {
	return g.CuStreamWriteValue32_v2(s, addr, value, flags)
}

func (g *GPU) CuStreamWriteValue64(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint64,
	flags uint32) cuda.CUresult {
	return g.CuStreamWriteValue64_v2(s, addr, value, flags)
}

func (g *GPU) CuStreamBatchMemOp(s cuda.CUstream, count uint32, array *cuda.CUstreamBatchMemOpParams,
	flags uint32) cuda.CUresult {
	return g.CuStreamBatchMemOp_v2(s, count, array, flags)
}

// CuCtxAttach counts a use of the current context; primary contexts count none.
func (g *GPU) CuCtxAttach(pctx *cuda.CUcontext, flags uint32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if pctx == nil || flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	c.attached++
	*pctx = c.handle
	return ok
}

// CuCtxDetach ends a context with its last use.
func (g *GPU) CuCtxDetach(h cuda.CUcontext) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	switch {
	case c.handle != h:
		r = cuda.CUDA_ERROR_INVALID_CONTEXT
	case c.primary:
	case c.attached > 0:
		c.attached--
	default:
		g.mu.Unlock()
		return g.CuCtxDestroy_v2(h)
	}
	g.mu.Unlock()
	return r
}
