package executor

import (
	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/metrics"
)

// wait is a synchronising call that waits for events, or for a download.
type wait struct {
	thread uint32
	seq    uint64
	events []pendingEvent
	result cuda.CUresult // first failure seen
	first  [1]pendingEvent
	after  *transfer
	ctx    *context // the one that the call was made in
	class  class.Class
	began  int64 // by metrics.Now
}

type pendingEvent struct {
	event cuda.CUevent
	ctx   *context // gets the event back; nil when it is the client's own
}

// pending says whether anything has to be looked at between commands.
func (s *Session) pending() bool {
	return len(s.waits) > 0 || s.transfers > 0 || len(s.path.busy) > 0 || len(s.watches) > 0 || len(s.endings) > 0 || s.path.out.Load() > 0 && s.path.gpu != nil || s.side.flush.Load() != s.late.flushed.Load()
}

// poll looks at everything pending, once. It says whether something was completed.
func (s *Session) poll() bool {
	s.launchAll()
	s.enterAny()
	progress := false
	ready := 0
	asked := s.side.flush.Load() // before the look at the downloads
	for i := range s.waits {
		w := s.waits[i]
		if w.after == nil && s.over(w) {
			s.waits[i], s.waits[ready] = s.waits[ready], w
			ready++
		}
	}
	if s.pollProgress() {
		progress = true
	}
	for i := ready; i < len(s.waits); i++ {
		w := s.waits[i]
		if w.after != nil && w.after.over {
			w.result = w.after.result
			s.waits[i], s.waits[ready] = s.waits[ready], w
			ready++
		}
	}
	if s.pollPath() {
		progress = true
	}
	if asked > s.late.flushed.Load() {
		s.late.mu.Lock()
		s.sayFlushed(asked)
		s.late.mu.Unlock()
		progress = true
	}
	if ready == 0 {
		return progress
	}
	// The downloads that these waits cover were enqueued before them, so the look at the downloads just now has seen them finished.
	for _, w := range s.waits[:ready] {
		s.answerWait(w)
	}
	left := copy(s.waits, s.waits[ready:])
	clear(s.waits[left:])
	s.waits = s.waits[:left]
	return true
}

// enterAny makes some context current where none is: the driver answers no query without one.
func (b *base) enterAny() {
	if b.entered != nil {
		return
	}
	for h := range b.contexts {
		b.enter(h)
		break
	}
}

// over says whether all events of w have.
func (s *Session) over(w *wait) bool {
	for n := len(w.events); n > 0; n-- {
		e := w.events[n-1]
		r := s.gpu.CuEventQuery(e.event)
		if r == cuda.CUDA_ERROR_NOT_READY {
			return false
		}
		if settled := s.printf.syncFiredEvent(e.event); r == cuda.CUDA_SUCCESS {
			r = settled
		}
		if r != cuda.CUDA_SUCCESS && w.result == cuda.CUDA_SUCCESS {
			w.result = r
		}
		if e.ctx != nil {
			e.ctx.events = append(e.ctx.events, e.event)
		}
		w.events = w.events[:n-1]
	}
	return true
}

func (s *Session) answerWait(w *wait) {
	s.printf.syncIdleContext(w.ctx)
	s.countError(w.result)
	s.metrics.Observe(metrics.Histogram(w.class), metrics.Now()-w.began)
	s.reply(w.thread, w.seq, s.withAsyncError(w.result), nil)
}

// abandon answers what waits for a context that ends. Its events are gone with it.
func (s *Session) abandon(ctx *context) {
	s.abandonPath(ctx)
	for _, st := range append([]*stream{&ctx.legacy}, ctx.streams...) {
		s.failDownloads(st, cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED)
		s.endWatches(st)
	}
	for _, w := range s.loose.watches {
		if !w.dead && s.table.Parent(w.handle) == ctx.handle {
			s.refuseWatch(w.handle, w.at)
			s.dropWatch(w.handle)
		}
	}
	kept := s.waits[:0]
	for _, w := range s.waits {
		hit := w.after != nil && w.ctx == ctx
		for _, e := range w.events {
			hit = hit || e.ctx == ctx
		}
		if !hit {
			kept = append(kept, w)
			continue
		}
		for _, e := range w.events {
			if e.ctx != nil && e.ctx != ctx {
				e.ctx.events = append(e.ctx.events, e.event)
			}
		}
		w.result, w.ctx = cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED, nil
		s.answerWait(w)
	}
	clear(s.waits[len(kept):])
	s.waits = kept
}

func (s *Session) newWait(c *command) *wait {
	w := &wait{thread: c.Thread, seq: c.Seq, ctx: s.entered, class: class.Of(c.Op), began: c.began}
	w.events = w.first[:0]
	c.later = true
	s.waits = append(s.waits, w)
	return w
}

// streamSynchronize: cuStreamSynchronize(hStream).
func (s *Session) streamSynchronize(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := s.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	return s.waitStream(c, st), nil
}

// waitStream answers now where it can: the stream is idle, in error, or captured (the driver's error).
func (s *Session) waitStream(c *command, st *stream) cuda.CUresult {
	if l := s.latest; l.st == st && l.command+1 == s.commands && l.t.left > 0 && st.ctx == s.entered && len(s.captures) == 0 {
		l.t.awaited = true // nothing came in between, so the stream's work ends with that download, and is seen to end by the download's own event
		s.newWait(c).after = l.t
		return cuda.CUDA_SUCCESS
	}
	r := s.inThreadMode(func() cuda.CUresult { return s.gpu.CuStreamQuery(st.real) })
	if r == cuda.CUDA_SUCCESS {
		st.used = st.legacy
		r = s.printf.syncIdleStream(st)
		s.printf.syncIdleContext(st.ctx)
		return r
	}
	if r != cuda.CUDA_ERROR_NOT_READY {
		return r
	}
	e, r := s.recordEvent(st)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	w := s.newWait(c)
	w.events = append(w.events, pendingEvent{e, st.ctx})
	return cuda.CUDA_SUCCESS
}

// ctxSynchronize: cuCtxSynchronize() and cuCtxSynchronize_v2(ctx).
func (s *Session) ctxSynchronize(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	if err := a.end(); err != nil {
		return 0, err
	}
	return s.waitContext(c, s.entered), nil
}

func (s *Session) ctxSynchronizeV2(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	ctx := s.entered
	if h != 0 {
		if ctx = s.contexts[h]; ctx == nil {
			return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
		}
	}
	return s.waitContext(c, ctx), nil
}

// waitContext waits for all streams of a context.
func (s *Session) waitContext(c *command, ctx *context) cuda.CUresult {
	if ctx == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	if len(s.captures) > 0 {
		// It is an error if the context is captured. That is for the driver to say, and to wait for where it is none.
		return s.inThreadMode(func() cuda.CUresult { return s.within(ctx, s.gpu.CuCtxSynchronize) })
	}
	events, r := s.unfinished(ctx)
	if r != cuda.CUDA_SUCCESS || len(events) == 0 {
		if r == cuda.CUDA_SUCCESS {
			s.printf.syncIdleContext(ctx)
		}
		return r
	}
	s.newWait(c).events = events
	return cuda.CUDA_SUCCESS
}

// unfinished gives events that are complete once a context's work so far is: none where it is.
func (s *Session) unfinished(ctx *context) ([]pendingEvent, cuda.CUresult) {
	var events []pendingEvent
	r := s.within(ctx, func() cuda.CUresult {
		for i := -1; i < len(ctx.streams); i++ {
			st := &ctx.legacy
			if i >= 0 {
				st = ctx.streams[i]
			}
			if !st.used {
				continue
			}
			r := s.gpu.CuStreamQuery(st.real)
			if r == cuda.CUDA_SUCCESS {
				if r = s.printf.syncIdleStream(st); r != cuda.CUDA_SUCCESS {
					return r
				}
				st.used = st.legacy
				continue
			}
			if r != cuda.CUDA_ERROR_NOT_READY {
				return r
			}
			e, r := s.recordEvent(st)
			if r != cuda.CUDA_SUCCESS {
				return r
			}
			events = append(events, pendingEvent{e, ctx})
		}
		s.settleLeft(ctx)
		for _, e := range ctx.left {
			events = append(events, pendingEvent{event: e})
		}
		return cuda.CUDA_SUCCESS
	})
	if r == cuda.CUDA_SUCCESS {
		return events, r
	}
	for _, e := range events {
		if e.ctx != nil {
			ctx.events = append(ctx.events, e.event)
		}
	}
	return nil, r
}

// eventSynchronize: cuEventSynchronize(hEvent).
func (s *Session) eventSynchronize(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	real, ok := s.table.Real(cuda.KindEvent, h)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	e := cuda.CUevent(real)
	r := s.inThreadMode(func() cuda.CUresult { return s.gpu.CuEventQuery(e) })
	if r == cuda.CUDA_ERROR_NOT_READY {
		w := s.newWait(c)
		w.events = append(w.events, pendingEvent{event: e})
		return cuda.CUDA_SUCCESS, nil
	}
	if settled := s.printf.syncFiredEvent(e); r == cuda.CUDA_SUCCESS {
		r = settled
	}
	return r, nil
}

// releaseEvent goes before a call that gives an event another meaning or ends it: whoever waits for the event waits from now on for one of
// the executor's that stands for its present meaning.
func (s *Session) releaseEvent(h uint64) {
	real, ok := s.table.Real(cuda.KindEvent, h)
	if !ok {
		return
	}
	for _, w := range s.waits {
		for i := range w.events {
			if e := &w.events[i]; e.ctx == nil && e.event == cuda.CUevent(real) {
				s.substitute(w, e)
			}
		}
	}
}

// helperOf is a context's own stream, which waits for no other; the context is the present one.
func (b *base) helperOf(ctx *context) (cuda.CUstream, cuda.CUresult) {
	if ctx.helper == 0 {
		p := alloc[cuda.CUstream](&b.arena)
		if r := b.gpu.CuStreamCreate(p, uint32(cuda.CU_STREAM_NON_BLOCKING)); r != cuda.CUDA_SUCCESS {
			return 0, r
		}
		ctx.helper = *p
	}
	return ctx.helper, cuda.CUDA_SUCCESS
}

func (s *Session) substitute(w *wait, e *pendingEvent) {
	ctx := s.entered
	if ctx == nil {
		return
	}
	helper, r := s.helperOf(ctx)
	if r != cuda.CUDA_SUCCESS || s.gpu.CuStreamWaitEvent(helper, e.event, 0) != cuda.CUDA_SUCCESS {
		return
	}
	own, r := s.recordEvent(&stream{real: helper, ctx: ctx})
	if r == cuda.CUDA_SUCCESS {
		e.event, e.ctx = own, ctx
	}
}
