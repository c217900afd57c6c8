package sim

import (
	"context"
	"maps"
	"sync/atomic"

	"scuda.dev/scuda/api/cuda"
)

// cudaContext is a CUcontext: streams, modules and memory that live and fail together.
type cudaContext struct {
	gpu        *GPU
	dev        *device
	handle     cuda.CUcontext
	id         uint64
	primary    bool
	flags      uint32
	apiVersion uint32
	limits     map[cuda.CUlimit]uint64
	cache      cuda.CUfunc_cache
	sharedCfg  cuda.CUsharedconfig
	attached   int // uses beyond the first, of one that is not primary

	live      bool
	legacy    *stream
	streams   map[*stream]struct{} // all but legacy, also destroyed ones that still have work
	perThread map[int]*stream
	behind    *task // what all work waits for that is still to come, or nil
	modules   map[*module]struct{}
	peers     map[*cudaContext]bool

	failure atomic.Int32    // CUresult that every further call returns, once something has gone wrong
	run     context.Context // ends when the context fails or is destroyed
	cancel  context.CancelFunc
}

func (g *GPU) newContext(d *device, flags uint32, primary bool) *cudaContext {
	c := &cudaContext{gpu: g, dev: d, primary: primary, flags: flags, apiVersion: contextAPIVersion}
	c.handle = cuda.CUcontext(g.objects.add(c))
	return c
}

const contextAPIVersion = 3020

// start makes c usable. g.mu is held.
func (g *GPU) start(c *cudaContext) {
	c.live = true
	c.id = g.nextID()
	c.failure.Store(int32(ok))
	c.run, c.cancel = context.WithCancel(context.Background())
	c.streams, c.behind = map[*stream]struct{}{}, nil
	c.perThread = map[int]*stream{}
	c.modules = map[*module]struct{}{}
	c.peers = map[*cudaContext]bool{}
	c.limits = map[cuda.CUlimit]uint64{}
	maps.Copy(c.limits, defaultLimits)
	c.limits[cuda.CU_LIMIT_SHMEM_SIZE] = uint64(g.capability.sharedPerBlock)
	c.legacy = g.newStream(c, 0, 0)
	delete(c.streams, c.legacy)
	g.contexts[c] = struct{}{}
	g.countContexts(c.dev)
}

// stop makes every further call and all pending work of c fail with r.
func (c *cudaContext) stop(r cuda.CUresult) {
	if c.failure.CompareAndSwap(int32(ok), int32(r)) {
		c.cancel()
	}
}

func (c *cudaContext) failed() cuda.CUresult { return cuda.CUresult(c.failure.Load()) }

// usable says what a call in c answers before it does anything.
func (c *cudaContext) usable() cuda.CUresult {
	if !c.live {
		return cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED
	}
	return c.failed()
}

// freeContext frees everything that c owns; its work has ended. g.mu is held.
func (g *GPU) freeContext(c *cudaContext) {
	c.live = false
	c.cancel()
	for m := range c.modules {
		g.freeModule(m)
	}
	for _, r := range g.mem.all() {
		if r.ctx == c && r.kind != regionMapped {
			g.freeOwned(r)
		}
	}
	for h, o := range g.objects.live {
		if x, owned := o.(interface{ owner() *cudaContext }); owned && x.owner() == c {
			if e, isEvent := o.(*event); isEvent {
				e.closeShared(&g.lent)
			}
			g.objects.drop(h)
			g.arrays.Delete(cuda.CUarray(h))
			g.textures.Delete(h)
		}
	}
	for cap := range g.captures {
		if cap.origin.ctx == c {
			delete(g.captures, cap)
		}
	}
	delete(g.contexts, c)
	g.countContexts(c.dev)
}

// destroy stops c's work and frees it. g.mu is held, and given up while work ends.
func (g *GPU) destroy(c *cudaContext) {
	c.live = false
	if c.primary {
		c.dev.primaryFlags = 0
	}
	if c.failed() == ok {
		g.work.waitContext(c)
	}
	c.stop(cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED)
	g.work.waitContext(c)
	g.freeContext(c)
}

func (g *GPU) contextOf(h cuda.CUcontext) (*cudaContext, cuda.CUresult) {
	c, found := lookup[*cudaContext](g, h)
	if !found || !c.live && !c.primary {
		return nil, cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	return c, ok
}

func (g *GPU) currentOf(t *thread) (*cudaContext, cuda.CUresult) {
	if len(t.stack) == 0 {
		return nil, cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	return t.stack[len(t.stack)-1], ok
}

// enterContext is enter for calls that name a context; 0 means the current one.
func (g *GPU) enterContext(h cuda.CUcontext) (*cudaContext, cuda.CUresult) {
	if h == 0 {
		return g.enter()
	}
	if r := g.ready(); r != ok {
		return nil, r
	}
	c, r := g.contextOf(h)
	if r == ok {
		r = c.usable()
	}
	if r != ok {
		g.mu.Unlock()
		return nil, r
	}
	return c, ok
}

// enterForContext checks what a context is asked for with, in the driver's order. g.mu is held where it succeeds.
func enterForContext(g *GPU, pctx *cuda.CUcontext, flags uint32, dev cuda.CUdevice) (*device, cuda.CUresult) {
	d, r := g.enterDevice(dev)
	if r != ok {
		return nil, r
	}
	switch {
	case pctx == nil, flags&^uint32(cuda.CU_CTX_FLAGS_MASK) != 0, flags&uint32(cuda.CU_CTX_SCHED_MASK) == 3:
		r = cuda.CUDA_ERROR_INVALID_VALUE
	default:
		r = d.failure
	}
	if r != ok {
		g.mu.Unlock()
		return nil, r
	}
	return d, ok
}

func (g *GPU) CuCtxCreate_v2(pctx *cuda.CUcontext, flags uint32, dev cuda.CUdevice) cuda.CUresult {
	d, r := enterForContext(g, pctx, flags, dev)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	c := g.newContext(d, flags, false)
	g.start(c)
	t := g.thread()
	t.stack = append(t.stack, c)
	*pctx = c.handle
	return ok
}

func (g *GPU) CuCtxCreate_v4(pctx *cuda.CUcontext, params *cuda.CUctxCreateParams, flags uint32,
	dev cuda.CUdevice) cuda.CUresult {
	if params != nil && (params.NumExecAffinityParams != 0 || params.CigParams != 0) {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.CuCtxCreate_v2(pctx, flags, dev)
}

func (g *GPU) CuCtxCreate_v3(pctx *cuda.CUcontext, _ *cuda.CUexecAffinityParam, n int32, flags uint32,
	dev cuda.CUdevice) cuda.CUresult {
	if n != 0 {
		return cuda.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
	}
	return g.CuCtxCreate_v2(pctx, flags, dev)
}

func (g *GPU) CuCtxDestroy_v2(h cuda.CUcontext) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if h == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	c, found := lookup[*cudaContext](g, h) // a destroyed one too
	if !found || c.primary {
		return cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	if !c.live {
		return cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED
	}
	t := g.thread()
	if n := len(t.stack); n > 0 && t.stack[n-1] == c {
		t.stack = t.stack[:n-1]
	}
	g.destroy(c)
	return ok
}

func (g *GPU) CuCtxPushCurrent_v2(h cuda.CUcontext) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	c, r := g.contextOf(h)
	if r != ok {
		return r
	}
	t := g.thread()
	t.stack = append(t.stack, c)
	return ok
}

func (g *GPU) CuCtxPopCurrent_v2(pctx *cuda.CUcontext) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	t := g.thread()
	c, r := g.currentOf(t)
	if r != ok {
		return r
	}
	t.stack = t.stack[:len(t.stack)-1]
	if pctx != nil {
		*pctx = c.handle
	}
	return ok
}

func (g *GPU) CuCtxSetCurrent(h cuda.CUcontext) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	t := g.thread()
	n := len(t.stack)
	if h == 0 {
		t.stack = t.stack[:max(n-1, 0)]
		return ok
	}
	c, r := g.contextOf(h)
	if r != ok {
		return r
	}
	t.stack = append(t.stack[:max(n-1, 0)], c)
	return ok
}

func (g *GPU) CuCtxGetCurrent(pctx *cuda.CUcontext) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	if pctx == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*pctx = 0
	if c, r := g.currentOf(g.thread()); r == ok {
		*pctx = c.handle
	}
	return ok
}

func (g *GPU) CuCtxGetDevice(dev *cuda.CUdevice) cuda.CUresult { return g.CuCtxGetDevice_v2(dev, 0) }

func (g *GPU) CuCtxGetDevice_v2(dev *cuda.CUdevice, h cuda.CUcontext) cuda.CUresult {
	return g.recallContext(h, dev == nil, func(c *cudaContext) { *dev = cuda.CUdevice(c.dev.ordinal) })
}

func (g *GPU) CuCtxGetFlags(flags *uint32) cuda.CUresult {
	return g.recallContext(0, flags == nil, func(c *cudaContext) {
		if *flags = 0; c.live {
			*flags = c.flags
		}
	})
}

func (g *GPU) CuCtxSetFlags(flags uint32) cuda.CUresult {
	bad := flags&^uint32(cuda.CU_CTX_FLAGS_MASK) != 0 || flags&uint32(cuda.CU_CTX_SCHED_MASK) == 3
	return g.readContext(0, bad, func(c *cudaContext) {
		if c.flags = flags; c.primary {
			c.flags |= uint32(cuda.CU_CTX_MAP_HOST)
		}
	})
}

func (g *GPU) CuCtxGetId(h cuda.CUcontext, id *uint64) cuda.CUresult {
	r := g.readContext(h, id == nil, func(c *cudaContext) { *id = c.id })
	if r == cuda.CUDA_ERROR_INVALID_CONTEXT && h != 0 {
		return cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED // of any handle that it does not know
	}
	return r
}

func (g *GPU) CuCtxGetApiVersion(h cuda.CUcontext, version *uint32) cuda.CUresult {
	return g.readContext(h, version == nil, func(c *cudaContext) { *version = c.apiVersion })
}

func (g *GPU) CuCtxGetStreamPriorityRange(least, greatest *int32) cuda.CUresult {
	return g.askContext(false, func(*cudaContext) {
		if least != nil {
			*least = leastPriority
		}
		if greatest != nil {
			*greatest = greatestPriority
		}
	})
}

func (g *GPU) CuCtxSynchronize() cuda.CUresult { return g.CuCtxSynchronize_v2(0) }

func (g *GPU) CuCtxSynchronize_v2(h cuda.CUcontext) cuda.CUresult {
	c, r := g.enterContext(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	for cap := range g.captures {
		if cap.origin.ctx == c {
			cap.invalidate()
			return cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
		}
	}
	return g.work.waitContext(c)
}

func (g *GPU) CuCtxEnablePeerAccess(h cuda.CUcontext, flags uint32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	peer, r := g.contextOf(h)
	switch {
	case r != ok:
		return r
	case flags != 0:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case peer.dev == c.dev:
		return cuda.CUDA_ERROR_INVALID_DEVICE
	case c.peers[peer]:
		return cuda.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
	}
	c.peers[peer] = true
	return ok
}

func (g *GPU) CuCtxDisablePeerAccess(h cuda.CUcontext) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	peer, r := g.contextOf(h)
	switch {
	case r != ok:
		return r
	case !c.peers[peer]:
		return cuda.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
	}
	delete(c.peers, peer)
	return ok
}

// FP8 says that kernels on matrices of 8-bit floating point numbers run, as the H200's driver does.
func (g *GPU) FP8() (int32, cuda.CUresult) { return 1, ok }
