package sim

import (
	"context"
	"time"

	"scuda.dev/scuda/api/cuda"
)

// event is a place in a stream: the task that its last record put there, or the nodes that a captured record stands
// behind.
type event struct {
	ctx      *cudaContext
	handle   cuda.CUevent
	flags    uint32
	recorded *task
	capture  *capture
	capDeps  []*node
	stale    bool         // last recorded in a capture that is over: only another record makes it usable
	shared   *sharedState // with other processes
	fd       int          // its memory file, -1 in the process that opened the handle
}

func (e *event) owner() *cudaContext { return e.ctx }

func (e *event) timing() bool { return e.flags&uint32(cuda.CU_EVENT_DISABLE_TIMING) == 0 }

func (g *GPU) enterEvent(h cuda.CUevent) (*event, cuda.CUresult) {
	if r := g.ready(); r != ok { // which context is current does not matter
		return nil, r
	}
	e, r := find[*event](g, h)
	if r == ok {
		r = e.ctx.usable()
	}
	if r != ok {
		g.mu.Unlock()
		return nil, r
	}
	return e, ok
}

// enterStreamEvent is ready for calls about an event and a stream.
func (g *GPU) enterStreamEvent(hs cuda.CUstream, h cuda.CUevent) (*stream, *event, cuda.CUresult) {
	s, r := g.enterStream(hs)
	if r != ok {
		return nil, nil, r
	}
	e, r := find[*event](g, h)
	if r != ok {
		g.mu.Unlock()
		return nil, nil, r
	}
	return s, e, ok
}

// record forgets what e stood for, and lets it stand for t.
func (e *event) record(t *task) {
	e.capture, e.capDeps, e.stale, e.recorded = nil, nil, false, t
}

func (g *GPU) CuEventCreate(ph *cuda.CUevent, flags uint32) cuda.CUresult {
	c, r := g.enter()
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	const known = uint32(cuda.CU_EVENT_BLOCKING_SYNC | cuda.CU_EVENT_DISABLE_TIMING | cuda.CU_EVENT_INTERPROCESS)
	switch {
	case ph == nil || flags&^known != 0:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case flags&uint32(cuda.CU_EVENT_INTERPROCESS) != 0 && flags&uint32(cuda.CU_EVENT_DISABLE_TIMING) == 0:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	e := &event{ctx: c, flags: flags}
	if flags&uint32(cuda.CU_EVENT_INTERPROCESS) != 0 {
		var err error
		if e.fd, e.shared, err = newSharedEvent(); err != nil {
			g.log.Error("sim: event", "error", err)
			return cuda.CUDA_ERROR_OUT_OF_MEMORY
		}
		g.sharedEvents = append(g.sharedEvents, e.shared)
	}
	e.handle = cuda.CUevent(g.objects.add(e))
	*ph = e.handle
	return ok
}

func (g *GPU) CuEventDestroy_v2(h cuda.CUevent) cuda.CUresult {
	e, r := g.enterEvent(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	g.objects.drop(uint64(h))
	e.closeShared(&g.lent)
	return ok
}

func (g *GPU) CuEventRecord(h cuda.CUevent, hs cuda.CUstream) cuda.CUresult {
	return g.CuEventRecordWithFlags(h, hs, 0)
}

func (g *GPU) CuEventRecordWithFlags(h cuda.CUevent, hs cuda.CUstream, flags uint32) cuda.CUresult {
	s, e, r := g.enterStreamEvent(hs, h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	switch {
	case s.ctx != e.ctx:
		return cuda.CUDA_ERROR_INVALID_HANDLE
	case flags&^uint32(cuda.CU_EVENT_RECORD_EXTERNAL) != 0:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	external := flags&uint32(cuda.CU_EVENT_RECORD_EXTERNAL) != 0
	if cap := s.capture; cap != nil {
		if cap.invalid {
			return cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		}
		if external {
			_, r := cap.add(s, g.recordOp(e))
			return r
		}
		e.capture, e.capDeps, e.stale = cap, append([]*node(nil), s.capDeps...), false
		return ok
	}
	if external {
		return cuda.CUDA_ERROR_ILLEGAL_STATE
	}
	if r := g.implicitInCapture(s); r != ok {
		return r
	}
	var run func(context.Context) error
	if e.shared != nil {
		run = e.shared.record()
	}
	e.record(g.work.push(s, run))
	return ok
}

// recordOp records e when a graph gets there.
func (g *GPU) recordOp(e *event) op {
	return op{kind: cuda.CU_GRAPH_NODE_TYPE_EVENT_RECORD, params: e, run: func(context.Context) error {
		t := &task{done: make(chan struct{}), at: time.Now()}
		close(t.done)
		g.mu.Lock()
		defer g.mu.Unlock()
		e.record(t)
		return nil
	}}
}

// waitOp waits for e when a graph gets there.
func (g *GPU) waitOp(e *event) op {
	return op{kind: cuda.CU_GRAPH_NODE_TYPE_WAIT_EVENT, params: e, run: func(context.Context) error {
		g.mu.Lock()
		t := e.recorded
		g.mu.Unlock()
		if t != nil {
			<-t.done
		}
		return nil
	}}
}

// syncEventInCapture answers a query of, or a wait for, an event.
func (g *GPU) syncEventInCapture(e *event) cuda.CUresult {
	switch {
	case e.capture != nil:
		e.capture.invalidate()
		return cuda.CUDA_ERROR_CAPTURED_EVENT
	case e.stale:
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return g.unsafeInCapture()
}

func (g *GPU) CuEventQuery(h cuda.CUevent) cuda.CUresult {
	e, r := g.enterEvent(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.syncEventInCapture(e); r != ok {
		return r
	}
	switch {
	case e.recorded != nil && !e.recorded.finished(), e.shared != nil && !e.shared.done():
		return cuda.CUDA_ERROR_NOT_READY
	}
	return e.ctx.failed()
}

func (g *GPU) CuEventSynchronize(h cuda.CUevent) cuda.CUresult {
	e, r := g.enterEvent(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if r := g.syncEventInCapture(e); r != ok {
		return r
	}
	if e.recorded != nil {
		g.work.wait([]*task{e.recorded})
	}
	if e.shared != nil {
		wait, c := e.shared.wait(), e.ctx
		g.mu.Unlock()
		err := wait(c.run)
		g.mu.Lock()
		if err != nil {
			return c.failed()
		}
	}
	return e.ctx.failed()
}

func (g *GPU) CuEventElapsedTime(ms *float32, start, end cuda.CUevent) cuda.CUresult {
	return g.CuEventElapsedTime_v2(ms, start, end)
}

func (g *GPU) CuEventElapsedTime_v2(ms *float32, start, end cuda.CUevent) cuda.CUresult {
	a, r := g.enterEvent(start)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	b, r := find[*event](g, end)
	switch {
	case r != ok:
		return r
	case ms == nil || a.stale || b.stale:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case a.capture != nil || b.capture != nil:
		return cuda.CUDA_ERROR_CAPTURED_EVENT
	case a.ctx.dev != b.ctx.dev || !a.timing() || !b.timing() || a.recorded == nil || b.recorded == nil:
		return cuda.CUDA_ERROR_INVALID_HANDLE
	case !a.recorded.finished() || !b.recorded.finished():
		return cuda.CUDA_ERROR_NOT_READY
	}
	*ms = float32(b.recorded.at.Sub(a.recorded.at).Seconds() * 1e3)
	return ok
}

func (g *GPU) CuStreamWaitEvent(hs cuda.CUstream, h cuda.CUevent, flags uint32) cuda.CUresult {
	s, e, r := g.enterStreamEvent(hs, h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if flags&^uint32(cuda.CU_EVENT_WAIT_EXTERNAL) != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	external := flags&uint32(cuda.CU_EVENT_WAIT_EXTERNAL) != 0
	switch cap := s.capture; {
	case cap != nil && external:
		_, r := cap.add(s, g.waitOp(e))
		return r
	case cap != nil:
		return cap.join(s, e)
	case external:
		return cuda.CUDA_ERROR_ILLEGAL_STATE
	case e.stale:
		return cuda.CUDA_ERROR_INVALID_VALUE
	case e.capture != nil:
		if s.legacy() {
			e.capture.invalidate()
			return cuda.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
		}
		return e.capture.join(s, e)
	}
	if r := g.implicitInCapture(s); r != ok {
		return r
	}
	if e.recorded != nil && !e.recorded.finished() {
		g.work.push(s, nil, e.recorded)
	}
	if e.shared != nil && !e.shared.done() {
		g.work.push(s, e.shared.wait())
	}
	return ok
}

// capturing ends the captures of a context's streams, and says whether there were any.
func (g *GPU) capturing(c *cudaContext) bool {
	found := false
	for cap := range g.captures {
		for s := range cap.streams {
			if s.ctx == c {
				cap.invalidate()
				found = true
			}
		}
	}
	return found
}

// enterContextEvent is ready for calls about an event and all work of a context.
func (g *GPU) enterContextEvent(h cuda.CUcontext, he cuda.CUevent) (*cudaContext, *event, cuda.CUresult) {
	if h == 0 {
		return nil, nil, cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	c, r := g.enterContext(h)
	if r != ok {
		return nil, nil, r
	}
	e, r := find[*event](g, he)
	switch {
	case r != ok:
	case e.ctx.dev != c.dev:
		r = cuda.CUDA_ERROR_INVALID_HANDLE
	case g.capturing(c):
		r = cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	}
	if r != ok {
		g.mu.Unlock()
		return nil, nil, r
	}
	return c, e, ok
}

// CuCtxRecordEvent puts an event behind all work of a context.
func (g *GPU) CuCtxRecordEvent(h cuda.CUcontext, he cuda.CUevent) cuda.CUresult {
	c, e, r := g.enterContextEvent(h, he)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if e.ctx != c {
		return cuda.CUDA_ERROR_INVALID_HANDLE
	}
	tasks := c.pending()
	if c.behind != nil {
		tasks = append(tasks, c.behind)
	}
	var run func(context.Context) error
	if e.shared != nil {
		run = e.shared.record()
	}
	e.record(g.work.after(c, run, tasks...))
	return ok
}

// CuCtxWaitEvent lets all work of a context that comes from now on wait for an event.
func (g *GPU) CuCtxWaitEvent(h cuda.CUcontext, he cuda.CUevent) cuda.CUresult {
	c, e, r := g.enterContextEvent(h, he)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if e.stale {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if e.capture != nil {
		e.capture.invalidate()
		return cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	}
	var tasks []*task
	for _, t := range []*task{c.behind, e.recorded} {
		if t != nil && !t.finished() {
			tasks = append(tasks, t)
		}
	}
	var run func(context.Context) error
	if e.shared != nil && !e.shared.done() {
		run = e.shared.wait()
	}
	if len(tasks) > 0 || run != nil {
		c.behind = g.work.after(c, run, tasks...)
	}
	return ok
}
