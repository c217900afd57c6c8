package executor

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// Verbs of wire.Primary.
const (
	primaryRetain   = wire.PrimaryRetain
	primaryRelease  = wire.PrimaryRelease
	primaryReset    = wire.PrimaryReset
	primarySetFlags = wire.PrimarySetFlags
)

// primary is a device's primary context.
type primary struct {
	retained int // references that this process holds, the worker's own included
	handle   uint64
}

// primaryContext: cuDevicePrimaryCtx…. The client counts its references itself and sends the first retain and the last release.
func (s *Session) primaryContext(c *command) (cuda.CUresult, error) {
	p, _, err := view[wire.Primary](c)
	if err != nil {
		return 0, err
	}
	dev := cuda.CUdevice(p.Device)
	k := s.primaries[dev]
	if k == nil {
		k = &primary{} // kept once the driver knows the device
	}
	switch p.Verb {
	case primaryRetain:
		return s.retainPrimary(k, dev, p.Context)
	case primaryRelease:
		r := cuda.CUDA_SUCCESS
		s.leavePrimary(k)
		for ; k.retained > 0 && r == cuda.CUDA_SUCCESS; k.retained-- {
			r = s.gpu.CuDevicePrimaryCtxRelease_v2(dev)
		}
		return r, nil
	case primaryReset:
		s.leavePrimary(k)
		return s.gpu.CuDevicePrimaryCtxReset_v2(dev), nil
	case primarySetFlags:
		return s.gpu.CuDevicePrimaryCtxSetFlags_v2(dev, p.Flags), nil
	}
	return 0, protocolError("primary context verb %d", p.Verb)
}

func (s *Session) retainPrimary(k *primary, dev cuda.CUdevice, h uint64) (cuda.CUresult, error) {
	ctx := alloc[cuda.CUcontext](&s.arena)
	r := s.gpu.CuDevicePrimaryCtxRetain(ctx, dev)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	s.lastDevice.Store(int32(dev))
	k.retained++
	s.primaries[dev] = k
	if old := s.contexts[h]; old != nil && old.real == *ctx {
		return r, nil
	}
	k.handle = h
	return r, s.addContext(h, *ctx)
}

// leavePrimary forgets what the session has in a primary context that is about to end.
func (s *Session) leavePrimary(k *primary) {
	if ctx := s.contexts[k.handle]; k.handle != 0 && ctx != nil {
		s.dropContext(ctx)
	}
	k.handle = 0
	s.gpu.CuCtxSetCurrent(0)
	s.entered, s.enteredOK = nil, true
}

// ctxCreate: cuCtxCreate(*ctx, flags, device) and its second form.
func (s *Session) ctxCreate(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h, flags, dev := a.U64(), uint32(a.U64()), cuda.CUdevice(a.U64())
	if err := a.end(); err != nil {
		return 0, err
	}
	return s.makeContext(h, dev, func(out *cuda.CUcontext) cuda.CUresult { return s.gpu.CuCtxCreate_v2(out, flags, dev) })
}

// ctxCreateV3: cuCtxCreate_v3(*ctx, affinity[n], n, flags, device).
func (s *Session) ctxCreateV3(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h := a.U64()
	params, n := a.In(affinityBytes)
	count, flags, dev := int32(a.U64()), uint32(a.U64()), cuda.CUdevice(a.U64())
	if count < 0 || uint64(count) > n {
		a.Fail("array shorter than its count")
	}
	if err := a.end(); err != nil {
		return 0, err
	}
	return s.makeContext(h, dev, func(out *cuda.CUcontext) cuda.CUresult {
		return s.gpu.CuCtxCreate_v3(out, (*cuda.CUexecAffinityParam)(params), count, flags, dev)
	})
}

// makeContext creates a context. The driver makes it current; which one is current is for the next command to say.
func (s *Session) makeContext(h uint64, dev cuda.CUdevice, create func(*cuda.CUcontext) cuda.CUresult) (cuda.CUresult, error) {
	if h == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	s.lastDevice.Store(int32(dev))
	out := alloc[cuda.CUcontext](&s.arena)
	r := s.inThreadMode(func() cuda.CUresult { return create(out) })
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	s.gpu.CuCtxPopCurrent_v2(alloc[cuda.CUcontext](&s.arena))
	s.entered, s.enteredOK = nil, false
	return r, s.addContext(h, *out)
}

// ctxDestroy: cuCtxDestroy(ctx) and its second form.
func (s *Session) ctxDestroy(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	ctx := s.contexts[h]
	if ctx == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
	}
	for _, k := range s.primaries {
		if k.handle == h {
			return cuda.CUDA_ERROR_INVALID_CONTEXT, nil // primary contexts are released, not destroyed
		}
	}
	s.dropContext(ctx)
	r := s.gpu.CuCtxDestroy_v2(ctx.real)
	s.entered, s.enteredOK = nil, false
	return r, nil
}

// streamCreate: cuStreamCreate(*stream, flags).
func (s *Session) streamCreate(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h, flags := a.U64(), uint32(a.U64())
	if err := a.end(); err != nil {
		return 0, err
	}
	return s.makeStream(h, flags, func(out *cuda.CUstream) cuda.CUresult { return s.gpu.CuStreamCreate(out, flags) })
}

// streamCreateWithPriority: cuStreamCreateWithPriority(*stream, flags, priority).
func (s *Session) streamCreateWithPriority(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h, flags, priority := a.U64(), uint32(a.U64()), int32(a.U64())
	if err := a.end(); err != nil {
		return 0, err
	}
	return s.makeStream(h, flags, func(out *cuda.CUstream) cuda.CUresult {
		return s.gpu.CuStreamCreateWithPriority(out, flags, priority)
	})
}

func (s *Session) makeStream(h uint64, flags uint32, create func(*cuda.CUstream) cuda.CUresult) (cuda.CUresult, error) {
	if h == 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE, nil
	}
	if s.entered == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
	}
	out := alloc[cuda.CUstream](&s.arena)
	r := s.inThreadMode(func() cuda.CUresult { return create(out) })
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	_, err := s.addStream(h, *out, flags)
	return r, err
}

// streamDestroy: cuStreamDestroy(stream) and its second form. What is enqueued is still carried out.
func (s *Session) streamDestroy(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	st := s.streams[h]
	if st == nil {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	s.waits.leaveWork(st)
	s.dropStream(st)
	return s.gpu.CuStreamDestroy_v2(st.real), nil
}
