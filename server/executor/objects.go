package executor

import (
	"slices"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// objects is the engine of contexts and streams: it makes and ends them, and what the session has in them ends with
// them.
//
// No locks: it belongs to the executor's thread alone.
type objects struct {
	*base
	loop  objectsLoop
	waits *waits
	peers *peers

	primaries map[cuda.CUdevice]*primaryContext
}

// objectsLoop is what it asks of the loop.
type objectsLoop interface {
	poll() bool              // looks at everything that is under way
	abandonContext(*context) // ends what is under way in a context that ends
	finishDownloads(*stream) // waits for the downloads of a stream that is about to end
	usesGPU(cuda.CUdevice)   // the session has a context there, or is about to
}

// newObjects begins with the primary contexts that the worker holds.
func newObjects(s *Session, primary []cuda.CUdevice) objects {
	ob := objects{base: &s.base, loop: s, waits: &s.waits, peers: &s.peers,
		primaries: make(map[cuda.CUdevice]*primaryContext)}
	for _, d := range primary {
		ob.primaries[d] = &primaryContext{retained: 1}
	}
	return ob
}

// inCollective answers the end of what a call of NCCL uses that has not returned. Natively the call would go on with
// what is not there any more.
const inCollective = cuda.CUDA_ERROR_NOT_PERMITTED

// Verbs of wire.Primary.
const (
	primaryRetain   = wire.PrimaryRetain
	primaryRelease  = wire.PrimaryRelease
	primaryReset    = wire.PrimaryReset
	primarySetFlags = wire.PrimarySetFlags
)

// primaryContext is a device's primary context.
type primaryContext struct {
	retained int // references that this process holds, the worker's own included
	handle   uint64
}

// callPrimary: cuDevicePrimaryCtx…. The client counts its references itself and sends the first retain and the last
// release.
func (ob *objects) callPrimary(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.Primary](c)
	if err != nil {
		return 0, err
	}
	dev := cuda.CUdevice(p.Device)
	k := ob.primaries[dev]
	if k == nil {
		k = &primaryContext{} // kept once the driver knows the device
	}
	ends := p.Verb == primaryRelease || p.Verb == primaryReset
	if ctx := ob.contexts[k.handle]; ends && ctx != nil && ctx.collectives > 0 {
		return inCollective, nil
	}
	switch p.Verb {
	case primaryRetain:
		return ob.retainPrimary(k, dev, p.Context)
	case primaryRelease:
		r := cuda.CUDA_SUCCESS
		ob.leavePrimary(k)
		for ; k.retained > 0 && r == cuda.CUDA_SUCCESS; k.retained-- {
			r = ob.gpu.CuDevicePrimaryCtxRelease_v2(dev)
		}
		return r, nil
	case primaryReset:
		ob.leavePrimary(k)
		return ob.gpu.CuDevicePrimaryCtxReset_v2(dev), nil
	case primarySetFlags:
		return ob.gpu.CuDevicePrimaryCtxSetFlags_v2(dev, p.Flags), nil
	}
	return 0, protocolError("primary context verb %d", p.Verb)
}

func (ob *objects) retainPrimary(k *primaryContext, dev cuda.CUdevice, h uint64) (cuda.CUresult, error) {
	ctx := alloc[cuda.CUcontext](&ob.arena)
	r := ob.gpu.CuDevicePrimaryCtxRetain(ctx, dev)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	ob.lastDevice.Store(int32(dev))
	ob.loop.usesGPU(dev)
	k.retained++
	ob.primaries[dev] = k
	if old := ob.contexts[h]; old != nil && old.real == *ctx {
		return r, nil
	}
	k.handle = h
	return r, ob.addContext(h, *ctx)
}

// leavePrimary forgets what the session has in a primary context that is about to end.
func (ob *objects) leavePrimary(k *primaryContext) {
	if ctx := ob.contexts[k.handle]; k.handle != 0 && ctx != nil {
		ob.dropContext(ctx)
	}
	k.handle = 0
	ob.gpu.CuCtxSetCurrent(0)
	ob.entered, ob.enteredOK = nil, true
}

// createContext: cuCtxCreate(*ctx, flags, device) and its second form. The driver's answer to the first one, which no
// header has named for long, is its own.
func (ob *objects) createContext(c *command) (cuda.CUresult, error) {
	a := ob.args(c)
	h, flags, dev := a.U64(), uint32(a.U64()), cuda.CUdevice(a.U64())
	if err := a.end(); err != nil {
		return 0, err
	}
	return ob.makeContext(h, dev, func(out *cuda.CUcontext) cuda.CUresult {
		if c.Op == cuda.OpCuCtxCreate {
			return ob.gpu.CuCtxCreate(out, flags, dev)
		}
		return ob.gpu.CuCtxCreate_v2(out, flags, dev)
	})
}

// createContextV3: cuCtxCreate_v3(*ctx, affinity[n], n, flags, device).
func (ob *objects) createContextV3(c *command) (cuda.CUresult, error) {
	a := ob.args(c)
	h := a.U64()
	params, n := a.In(affinityBytes)
	count, flags, dev := int32(a.U64()), uint32(a.U64()), cuda.CUdevice(a.U64())
	if count < 0 || uint64(count) > n {
		a.Fail("array shorter than its count")
	}
	if err := a.end(); err != nil {
		return 0, err
	}
	return ob.makeContext(h, dev, func(out *cuda.CUcontext) cuda.CUresult {
		return ob.gpu.CuCtxCreate_v3(out, (*cuda.CUexecAffinityParam)(params), count, flags, dev)
	})
}

// makeContext creates a context. The driver makes it current; which one is current is for the next command to say.
func (ob *objects) makeContext(
	h uint64, dev cuda.CUdevice, create func(*cuda.CUcontext) cuda.CUresult,
) (cuda.CUresult, error) {
	if h == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	ob.lastDevice.Store(int32(dev))
	ob.loop.usesGPU(dev)
	out := alloc[cuda.CUcontext](&ob.arena)
	r := ob.inThreadMode(func() cuda.CUresult { return create(out) })
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	ob.gpu.CuCtxPopCurrent_v2(alloc[cuda.CUcontext](&ob.arena))
	ob.entered, ob.enteredOK = nil, false
	return r, ob.addContext(h, *out)
}

// destroyContext: cuCtxDestroy(ctx) and its second form.
func (ob *objects) destroyContext(c *command) (cuda.CUresult, error) {
	a := ob.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	ctx := ob.contexts[h]
	if ctx == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
	}
	for _, k := range ob.primaries {
		if k.handle == h {
			return cuda.CUDA_ERROR_INVALID_CONTEXT, nil // primary contexts are released, not destroyed
		}
	}
	if ctx.collectives > 0 {
		return inCollective, nil
	}
	ob.dropContext(ctx)
	r := ob.gpu.CuCtxDestroy_v2(ctx.real)
	ob.entered, ob.enteredOK = nil, false
	return r, nil
}

// createStream: cuStreamCreate(*stream, flags).
func (ob *objects) createStream(c *command) (cuda.CUresult, error) {
	a := ob.args(c)
	h, flags := a.U64(), uint32(a.U64())
	if err := a.end(); err != nil {
		return 0, err
	}
	return ob.makeStream(h, flags, func(out *cuda.CUstream) cuda.CUresult { return ob.gpu.CuStreamCreate(out, flags) })
}

// createStreamWithPriority: cuStreamCreateWithPriority(*stream, flags, priority).
func (ob *objects) createStreamWithPriority(c *command) (cuda.CUresult, error) {
	a := ob.args(c)
	h, flags, priority := a.U64(), uint32(a.U64()), int32(a.U64())
	if err := a.end(); err != nil {
		return 0, err
	}
	return ob.makeStream(h, flags, func(out *cuda.CUstream) cuda.CUresult {
		return ob.gpu.CuStreamCreateWithPriority(out, flags, priority)
	})
}

func (ob *objects) makeStream(
	h uint64, flags uint32, create func(*cuda.CUstream) cuda.CUresult,
) (cuda.CUresult, error) {
	if h == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	if ob.entered == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
	}
	out := alloc[cuda.CUstream](&ob.arena)
	r := ob.inThreadMode(func() cuda.CUresult { return create(out) })
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	_, err := ob.addStream(h, *out, flags)
	return r, err
}

// destroyStream: cuStreamDestroy(stream) and its second form. What is enqueued is still carried out.
func (ob *objects) destroyStream(c *command) (cuda.CUresult, error) {
	a := ob.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	st := ob.streams[h]
	if st == nil {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	if st.collectives > 0 {
		return inCollective, nil
	}
	ob.waits.leaveWork(st)
	ob.dropStream(st)
	return ob.gpu.CuStreamDestroy_v2(st.real), nil
}

// dropContext forgets a context that is about to end. Answers that depend on it are given now.
func (ob *objects) dropContext(ctx *context) {
	ob.within(ctx, ob.gpu.CuCtxSynchronize)
	ob.loop.poll()
	ob.loop.abandonContext(ctx)
	for _, st := range ctx.streams {
		delete(ob.captures, st.real)
		if st.handle != 0 {
			delete(ob.streams, st.handle)
		}
	}
	for kind := range barrierKinds {
		if k := &ob.barriers.of[kind]; k.src != nil && k.src.ctx == ctx {
			k.src = nil
		}
	}
	delete(ob.contexts, ctx.handle)
	ob.pinned.give(ctx.pinned)
	ctx.pinned = 0
	ob.table.Delete(cuda.KindContext, ctx.handle)
	ob.entered, ob.enteredOK = nil, false
}

func (ob *objects) dropStream(st *stream) {
	st.dropMark()
	ob.peers.leave(func(other *stream) bool { return other == st }) // they would enqueue more there
	ctx := st.ctx
	if st.kernels != st.judged {
		ctx.legacy.kernels++ // its assertions are the context's
	}
	if i := slices.Index(ctx.streams, st); i >= 0 {
		ctx.streams = slices.Delete(ctx.streams, i, i+1)
	}
	ob.settleBarriers(st)
	ob.waits.endWatches(st)
	delete(ob.captures, st.real)
	if st.handle != 0 {
		delete(ob.streams, st.handle)
		ob.table.Delete(cuda.KindStream, st.handle)
	}
}

// dropThread gives the per-thread streams of an ended thread back.
func (ob *objects) dropThread(ordinal uint32) {
	for _, ctx := range ob.contexts {
		st := ctx.perThread[ordinal]
		if st == nil {
			continue
		}
		delete(ctx.perThread, ordinal)
		ob.loop.finishDownloads(st)
		ob.waits.leaveWork(st)
		ob.dropStream(st)
		ob.within(ctx, func() cuda.CUresult { return ob.gpu.CuStreamDestroy_v2(st.real) })
	}
	delete(ob.threads, ordinal)
}

// endThread: a thread of the client's ended.
func (ob *objects) endThread(c *command) (cuda.CUresult, error) {
	ob.dropThread(c.Thread)
	return cuda.CUDA_SUCCESS, nil
}
