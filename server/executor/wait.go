package executor

import (
	"slices"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/handle"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// waits is the engine of synchronising calls, which become waits for events, and of watches: promises to tell the
// client when work is complete.
//
// No locks: it belongs to the executor's thread alone.
type waits struct {
	*base
	loop   waitsLoop
	out    *output
	printf *printf

	list     []*wait
	watches  map[uint64]*watch // by the client's handle
	watching []*stream         // streams with watches
	loose    stream            // holds the watches of events whose streams are not known
	fired    []fired

	clientBase, clientBytes uint64 // the client's region of handles
}

// waitsLoop is what it asks of the loop.
type waitsLoop interface {
	general(*command) (cuda.CUresult, error)
	reply(thread uint32, seq uint64, r cuda.CUresult, payload []byte)
	// downloadJustBefore is the download that the command before this one enqueued on the stream, where it is under way.
	downloadJustBefore(*stream) *transfer
}

func newWaits(s *Session, h transport.Hello) waits {
	return waits{
		base: &s.base, loop: s, out: &s.out, printf: &s.printf,
		watches:     make(map[uint64]*watch),
		clientBase:  h.ClientBase,
		clientBytes: h.ClientSlots * handle.SlotBytes,
	}
}

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

// haveFired says whether all events of w have.
func (ws *waits) haveFired(w *wait) bool {
	for n := len(w.events); n > 0; n-- {
		e := w.events[n-1]
		r := ws.gpu.CuEventQuery(e.event)
		if r == cuda.CUDA_ERROR_NOT_READY {
			return false
		}
		if settled := ws.printf.syncFiredEvent(e.event); r == cuda.CUDA_SUCCESS {
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

func (ws *waits) answerWait(w *wait) {
	ws.printf.syncIdleContext(w.ctx)
	ws.countError(w.result)
	ws.metrics.Observe(metrics.Histogram(w.class), metrics.Now()-w.began)
	ws.loop.reply(w.thread, w.seq, ws.withAsyncError(w.result), nil)
}

// gatherFired puts the waits whose events have all fired to the front of the list, and says how many they are.
func (ws *waits) gatherFired() (ready int) {
	for i := range ws.list {
		w := ws.list[i]
		if w.after == nil && ws.haveFired(w) {
			ws.list[i], ws.list[ready] = ws.list[ready], w
			ready++
		}
	}
	return ready
}

// gatherDownloaded puts the waits whose downloads have been told behind the first ready ones, and says how many there
// are now.
func (ws *waits) gatherDownloaded(ready int) int {
	for i := ready; i < len(ws.list); i++ {
		w := ws.list[i]
		if w.after != nil && w.after.over {
			w.result = w.after.result
			ws.list[i], ws.list[ready] = ws.list[ready], w
			ready++
		}
	}
	return ready
}

// answerFirst answers the first so many waits.
func (ws *waits) answerFirst(ready int) {
	for _, w := range ws.list[:ready] {
		ws.answerWait(w)
	}
	left := copy(ws.list, ws.list[ready:])
	clear(ws.list[left:])
	ws.list = ws.list[:left]
}

// abandon answers what waits for a context that ends. Its events are gone with it.
func (ws *waits) abandon(ctx *context) {
	for _, w := range ws.loose.watches {
		if !w.dead && ws.table.Parent(w.handle) == ctx.handle {
			ws.refuseWatch(w.handle, w.at)
			ws.dropWatch(w.handle)
		}
	}
	kept := ws.list[:0]
	for _, w := range ws.list {
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
		ws.answerWait(w)
	}
	clear(ws.list[len(kept):])
	ws.list = kept
}

func (ws *waits) newWait(c *command) *wait {
	w := &wait{thread: c.Thread, seq: c.Seq, ctx: ws.entered, class: class.Of(c.Op), began: c.began}
	w.events = w.first[:0]
	c.later = true
	ws.list = append(ws.list, w)
	return w
}

// synchronizeStream: cuStreamSynchronize(hStream).
func (ws *waits) synchronizeStream(c *command) (cuda.CUresult, error) {
	a := ws.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := ws.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	return ws.waitStream(c, st), nil
}

// waitStream answers now where it can: the stream is idle, in error, or captured (the driver's error).
func (ws *waits) waitStream(c *command, st *stream) cuda.CUresult {
	if st.ctx == ws.entered && len(ws.captures) == 0 {
		// Where nothing came in between, the stream's work ends with that download, and is seen to end by the
		// download's own event.
		if t := ws.loop.downloadJustBefore(st); t != nil {
			t.awaited = true
			ws.newWait(c).after = t
			return cuda.CUDA_SUCCESS
		}
	}
	r := ws.inThreadMode(func() cuda.CUresult { return ws.gpu.CuStreamQuery(st.real) })
	if r == cuda.CUDA_SUCCESS {
		st.used = st.legacy
		r = ws.printf.syncIdleStream(st)
		ws.printf.syncIdleContext(st.ctx)
		return r
	}
	if r != cuda.CUDA_ERROR_NOT_READY {
		return r
	}
	e, r := ws.recordEvent(st)
	if r != cuda.CUDA_SUCCESS {
		return r
	}
	w := ws.newWait(c)
	w.events = append(w.events, pendingEvent{e, st.ctx})
	return cuda.CUDA_SUCCESS
}

// synchronizeContext: cuCtxSynchronize() and cuCtxSynchronize_v2(ctx).
func (ws *waits) synchronizeContext(c *command) (cuda.CUresult, error) {
	a := ws.args(c)
	if err := a.end(); err != nil {
		return 0, err
	}
	return ws.waitContext(c, ws.entered), nil
}

func (ws *waits) synchronizeContextV2(c *command) (cuda.CUresult, error) {
	a := ws.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	ctx := ws.entered
	if h != 0 {
		if ctx = ws.contexts[h]; ctx == nil {
			return cuda.CUDA_ERROR_INVALID_CONTEXT, nil
		}
	}
	return ws.waitContext(c, ctx), nil
}

// waitContext waits for all streams of a context.
func (ws *waits) waitContext(c *command, ctx *context) cuda.CUresult {
	if ctx == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	if len(ws.captures) > 0 {
		// It is an error if the context is captured. That is for the driver to say, and to wait for where it is none.
		return ws.inThreadMode(func() cuda.CUresult { return ws.within(ctx, ws.gpu.CuCtxSynchronize) })
	}
	events, r := ws.unfinishedEvents(ctx)
	if r != cuda.CUDA_SUCCESS || len(events) == 0 {
		if r == cuda.CUDA_SUCCESS {
			ws.printf.syncIdleContext(ctx)
		}
		return r
	}
	ws.newWait(c).events = events
	return cuda.CUDA_SUCCESS
}

// unfinishedEvents gives events that are complete once a context's work so far is: none where it is.
func (ws *waits) unfinishedEvents(ctx *context) ([]pendingEvent, cuda.CUresult) {
	var events []pendingEvent
	r := ws.within(ctx, func() cuda.CUresult {
		for i := -1; i < len(ctx.streams); i++ {
			st := &ctx.legacy
			if i >= 0 {
				st = ctx.streams[i]
			}
			if !st.used {
				continue
			}
			r := ws.gpu.CuStreamQuery(st.real)
			if r == cuda.CUDA_SUCCESS {
				if r = ws.printf.syncIdleStream(st); r != cuda.CUDA_SUCCESS {
					return r
				}
				st.used = st.legacy
				continue
			}
			if r != cuda.CUDA_ERROR_NOT_READY {
				return r
			}
			e, r := ws.recordEvent(st)
			if r != cuda.CUDA_SUCCESS {
				return r
			}
			events = append(events, pendingEvent{e, ctx})
		}
		ws.reclaimLeft(ctx)
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

// synchronizeEvent: cuEventSynchronize(hEvent).
func (ws *waits) synchronizeEvent(c *command) (cuda.CUresult, error) {
	a := ws.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	real, ok := ws.table.Real(cuda.KindEvent, h)
	if !ok {
		return cuda.CUDA_ERROR_INVALID_HANDLE, nil
	}
	e := cuda.CUevent(real)
	r := ws.inThreadMode(func() cuda.CUresult { return ws.gpu.CuEventQuery(e) })
	if r == cuda.CUDA_ERROR_NOT_READY {
		w := ws.newWait(c)
		w.events = append(w.events, pendingEvent{event: e})
		return cuda.CUDA_SUCCESS, nil
	}
	if settled := ws.printf.syncFiredEvent(e); r == cuda.CUDA_SUCCESS {
		r = settled
	}
	return r, nil
}

// freeEvent goes before a call that gives an event another meaning or ends it: whoever waits for the event waits from
// now on for one of the executor's that stands for its present meaning.
func (ws *waits) freeEvent(h uint64) {
	real, ok := ws.table.Real(cuda.KindEvent, h)
	if !ok {
		return
	}
	for _, w := range ws.list {
		for i := range w.events {
			if e := &w.events[i]; e.ctx == nil && e.event == cuda.CUevent(real) {
				ws.substituteEvent(w, e)
			}
		}
	}
}

func (ws *waits) substituteEvent(w *wait, e *pendingEvent) {
	ctx := ws.entered
	if ctx == nil {
		return
	}
	helper, r := ws.helperOf(ctx)
	if r != cuda.CUDA_SUCCESS || ws.gpu.CuStreamWaitEvent(helper, e.event, 0) != cuda.CUDA_SUCCESS {
		return
	}
	own, r := ws.recordEvent(&stream{real: helper, ctx: ctx})
	if r == cuda.CUDA_SUCCESS {
		e.event, e.ctx = own, ctx
	}
}

// leaveWork goes before the end of a stream. What is enqueued is still carried out, and whoever waits for the context
// waits for it as well.
func (ws *waits) leaveWork(st *stream) {
	if !st.used || len(ws.captures) > 0 {
		return
	}
	ws.within(st.ctx, func() cuda.CUresult {
		ws.reclaimLeft(st.ctx)
		if r := ws.gpu.CuStreamQuery(st.real); r != cuda.CUDA_ERROR_NOT_READY {
			return r
		}
		e, r := ws.recordEvent(st)
		if r == cuda.CUDA_SUCCESS {
			st.ctx.left = append(st.ctx.left, e)
		}
		return r
	})
}

// reclaimLeft forgets the work of destroyed streams that is over. While anybody waits, he may do so for one of these
// events.
func (ws *waits) reclaimLeft(ctx *context) {
	if len(ws.list) > 0 {
		return
	}
	ctx.left = slices.DeleteFunc(ctx.left, func(e cuda.CUevent) bool {
		over := ws.gpu.CuEventQuery(e) == cuda.CUDA_SUCCESS
		if over {
			ctx.events = append(ctx.events, e)
		}
		return over
	})
}
