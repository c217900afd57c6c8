package sim

import (
	"cmp"
	"maps"

	"scuda.dev/scuda/api/cuda"
)

// stream is a queue of tasks that a goroutine works off while there are any.
type stream struct {
	ctx       *cudaContext
	handle    cuda.CUstream
	id        uint64
	flags     uint32
	priority  int32
	attrs     map[cuda.CUstreamAttrID]cuda.CUstreamAttrValue
	destroyed bool

	queue   []*task
	last    *task
	running bool

	capture *capture
	capDeps []*node // what the next captured node depends on
}

const (
	leastPriority    = 0
	greatestPriority = -5

	streamLegacy    = cuda.CUstream(1)
	streamPerThread = cuda.CUstream(2)
)

func (s *stream) owner() *cudaContext { return s.ctx }

func (s *stream) legacy() bool { return s == s.ctx.legacy }

// blocking streams and the legacy stream wait for each other.
func (s *stream) blocking() bool {
	return !s.legacy() && s.flags&uint32(cuda.CU_STREAM_NON_BLOCKING) == 0
}

func (s *stream) idle() bool { return s.last == nil || s.last.finished() }

// newStream makes a stream of c. g.mu is held.
func (g *GPU) newStream(c *cudaContext, flags uint32, priority int32) *stream {
	s := &stream{ctx: c, id: g.nextID(), flags: flags, priority: min(max(priority, greatestPriority), leastPriority)}
	c.streams[s] = struct{}{}
	return s
}

// stream finds a stream by its handle, which may be one of the special ones. g.mu is held.
func (g *GPU) stream(c *cudaContext, h cuda.CUstream) (*stream, cuda.CUresult) {
	switch h {
	case 0, streamLegacy:
		return c.legacy, ok
	case streamPerThread:
		t := g.thread().id
		s := c.perThread[t]
		if s == nil {
			s = g.newStream(c, 0, 0)
			c.perThread[t] = s
		}
		return s, ok
	}
	s, r := find[*stream](g, h)
	if r != ok {
		return nil, r
	}
	return s, s.ctx.usable()
}

// enterStream is enter for calls that give a stream work.
func (g *GPU) enterStream(h cuda.CUstream) (*stream, cuda.CUresult) {
	c, r := g.enter()
	if r != ok {
		return nil, r
	}
	s, r := g.stream(c, h)
	if r != ok {
		g.mu.Unlock()
		return nil, r
	}
	return s, ok
}

// enterWaited is enter for calls that wait for a stream or look at it: for one with a handle of its own no context need
// be current.
func (g *GPU) enterWaited(h cuda.CUstream) (*stream, cuda.CUresult) {
	if h <= streamPerThread {
		return g.enterStream(h)
	}
	if r := g.ready(); r != ok {
		return nil, r
	}
	s, r := g.stream(nil, h)
	if r != ok {
		g.mu.Unlock()
		return nil, r
	}
	return s, ok
}

func (g *GPU) CuStreamCreate(ph *cuda.CUstream, flags uint32) cuda.CUresult {
	return g.CuStreamCreateWithPriority(ph, flags, 0)
}

func (g *GPU) CuStreamCreateWithPriority(ph *cuda.CUstream, flags uint32, priority int32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if ph == nil || flags&^uint32(cuda.CU_STREAM_NON_BLOCKING) != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	s := g.newStream(c, flags, priority)
	s.handle = cuda.CUstream(g.objects.add(s))
	*ph = s.handle
	return ok
}

func (g *GPU) CuStreamDestroy_v2(h cuda.CUstream) cuda.CUresult {
	if h <= streamPerThread {
		return cuda.CUDA_ERROR_INVALID_HANDLE
	}
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if s.capture != nil {
		s.capture.invalidate()
		if s.capture.origin == s {
			cap := s.capture // as on an H200: nobody can end it any more, and nothing is forbidden for its sake
			g.endCapture(cap)
			if !cap.given {
				g.graphs.drop(cap.graph)
			}
		} else {
			s.capture.leave(s)
		}
	}
	g.objects.drop(uint64(h))
	s.destroyed = true
	if !s.running {
		delete(s.ctx.streams, s)
	}
	return ok
}

func (g *GPU) CuStreamQuery(h cuda.CUstream) cuda.CUresult {
	s, r := g.enterWaited(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.syncInCapture(s); r != ok {
		return r
	}
	if len(s.pending()) > 0 {
		return cuda.CUDA_ERROR_NOT_READY
	}
	return s.ctx.failed()
}

func (g *GPU) CuStreamSynchronize(h cuda.CUstream) cuda.CUresult {
	s, r := g.enterWaited(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.syncInCapture(s); r != ok {
		return r
	}
	g.work.wait(s.pending())
	return s.ctx.failed()
}

// readStream answers from a stream.
func (g *GPU) readStream(h cuda.CUstream, null bool, read func(*stream)) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if null {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	read(s)
	return ok
}

func (g *GPU) CuStreamGetPriority(h cuda.CUstream, priority *int32) cuda.CUresult {
	return g.readStream(h, priority == nil, func(s *stream) { *priority = s.priority })
}

func (g *GPU) CuStreamGetFlags(h cuda.CUstream, flags *uint32) cuda.CUresult {
	return g.readStream(h, flags == nil, func(s *stream) { *flags = s.flags })
}

// CuStreamGetId: on an H200 the question ends the capture of its stream.
func (g *GPU) CuStreamGetId(h cuda.CUstream, id *uint64) cuda.CUresult {
	r := ok
	read := g.readStream(h, id == nil, func(s *stream) {
		if r = s.askedInCapture(); r == ok {
			*id = s.id
		}
	})
	return cmp.Or(read, r)
}

func (g *GPU) CuStreamGetCtx(h cuda.CUstream, ctx *cuda.CUcontext) cuda.CUresult {
	return g.readStream(h, ctx == nil, func(s *stream) { *ctx = s.ctx.handle })
}

func (g *GPU) CuStreamGetCtx_v2(h cuda.CUstream, ctx *cuda.CUcontext, green *cuda.CUgreenCtx) cuda.CUresult {
	return g.readStream(h, ctx == nil, func(s *stream) {
		*ctx = s.ctx.handle
		if green != nil {
			*green = 0
		}
	})
}

func (g *GPU) CuStreamGetDevice(h cuda.CUstream, dev *cuda.CUdevice) cuda.CUresult {
	return g.readStream(h, dev == nil, func(s *stream) { *dev = cuda.CUdevice(s.ctx.dev.ordinal) })
}

// streamAttrs are hints about caches and waiting, kept but without effect here.
var streamAttrs = map[cuda.CUstreamAttrID]bool{
	cuda.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:   true,
	cuda.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: true,
	cuda.CU_LAUNCH_ATTRIBUTE_PRIORITY:               true,
	cuda.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:        true,
	cuda.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:    true,
}

func (g *GPU) CuStreamGetAttribute(h cuda.CUstream, id cuda.CUstreamAttrID,
	value *cuda.CUstreamAttrValue) cuda.CUresult {
	return g.readStream(h, value == nil || !streamAttrs[id], func(s *stream) { *value = s.attrs[id] })
}

func (g *GPU) CuStreamSetAttribute(h cuda.CUstream, id cuda.CUstreamAttrID,
	value *cuda.CUstreamAttrValue) cuda.CUresult {
	return g.readStream(h, value == nil || !streamAttrs[id], func(s *stream) {
		if s.attrs == nil {
			s.attrs = map[cuda.CUstreamAttrID]cuda.CUstreamAttrValue{}
		}
		s.attrs[id] = *value
	})
}

func (g *GPU) CuStreamCopyAttributes(dst, src cuda.CUstream) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	d, r := g.stream(c, dst)
	if r != ok {
		return r
	}
	s, r := g.stream(c, src)
	if r != ok {
		return r
	}
	d.attrs = map[cuda.CUstreamAttrID]cuda.CUstreamAttrValue{}
	maps.Copy(d.attrs, s.attrs)
	return ok
}
