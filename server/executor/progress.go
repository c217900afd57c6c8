package executor

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
)

// watch is a promise to tell the client, by PROGRESS, when an event or the work of a stream so far is complete.
// Watches of one stream fire in their order, so only the first of each is looked at.
type watch struct {
	handle uint64 // the client's, of the event or stream
	at     uint64 // position up to which the client may then take it as complete
	event  cuda.CUevent
	own    bool // the event is the executor's
	dead   bool // the event has another meaning by now
}

// watched says whether PROGRESS may name the handle.
func (ws *waits) watched(h uint64) bool {
	return h-ws.clientBase < ws.clientBytes
}

// refuseWatch tells the client that it will hear nothing of the handle up to a position, so that its next question
// comes to the server.
func (ws *waits) refuseWatch(h, at uint64) {
	if ws.watched(h) {
		ws.sendProgress(h, at, int32(cuda.CUDA_ERROR_NOT_READY))
	}
}

// sendProgress tells the client how far a handle's work is known to be complete, or to ask by itself.
func (ws *waits) sendProgress(h, at uint64, result int32) {
	if result == 0 {
		ws.printf.sendText(cuda.CUDA_SUCCESS) // the client may not ask any more
	}
	ws.out.message(transport.MessageHeader{Type: transport.MsgProgress, Result: result, Seq: at, Aux: h}, nil, nil)
}

// end is the position behind the command.
func (c *command) end() uint64 { return c.Seq + uint64(c.Size) }

// addWatch lets the client know when event e, on stream st or (nil) on one that is not known, is complete. A handle
// is watched once: what is asked later counts.
func (ws *waits) addWatch(st *stream, w *watch) {
	ws.dropWatch(w.handle)
	if st == nil {
		st = &ws.loose
	}
	if len(st.watches) == 0 && st != &ws.loose {
		ws.watching = append(ws.watching, st)
	}
	st.watches = append(st.watches, w)
	ws.watches[w.handle] = w
}

// dropWatch forgets the watch of a handle that gets another meaning.
func (ws *waits) dropWatch(h uint64) {
	if w := ws.watches[h]; w != nil {
		w.dead = true
		delete(ws.watches, h)
	}
}

func (ws *waits) tellWatch(f *fired) {
	if f.result != cuda.CUDA_SUCCESS || ws.asyncErr != cuda.CUDA_SUCCESS {
		ws.refuseWatch(f.handle, f.at) // the client has to ask, and gets the error
		return
	}
	ws.sendProgress(f.handle, f.at, 0)
}

// pollWatches collects the watches that have come to their ends.
func (ws *waits) pollWatches() {
	if len(ws.watches) == 0 {
		return
	}
	ws.enterAny()
	kept := ws.watching[:0]
	for _, st := range ws.watching {
		n := 0
		for n < len(st.watches) && ws.watchEnded(st, st.watches[n]) {
			n++
		}
		if left := copy(st.watches, st.watches[n:]); n > 0 {
			clear(st.watches[left:])
			st.watches = st.watches[:left]
		}
		if len(st.watches) > 0 {
			kept = append(kept, st)
		}
	}
	clear(ws.watching[len(kept):])
	ws.watching = kept
	loose := ws.loose.watches[:0]
	for _, w := range ws.loose.watches {
		if !ws.watchEnded(&ws.loose, w) {
			loose = append(loose, w)
		}
	}
	clear(ws.loose.watches[len(loose):])
	ws.loose.watches = loose
}

// fired is a watch that has come to its end.
type fired struct {
	handle, at uint64
	result     cuda.CUresult
}

// watchEnded says whether a watch is over.
func (ws *waits) watchEnded(st *stream, w *watch) bool {
	if w.dead && !w.own {
		return true
	}
	r := ws.gpu.CuEventQuery(w.event)
	if r == cuda.CUDA_ERROR_NOT_READY {
		return false
	}
	if r == cuda.CUDA_SUCCESS {
		r = ws.printf.syncFiredEvent(w.event)
	}
	if w.own {
		st.ctx.events = append(st.ctx.events, w.event)
	}
	if !w.dead {
		ws.fired = append(ws.fired, fired{w.handle, w.at, r})
		delete(ws.watches, w.handle)
	}
	return true
}

// endWatches refuses the watches of a stream that ends.
func (ws *waits) endWatches(st *stream) {
	for _, w := range st.watches {
		if w.own {
			st.ctx.events = append(st.ctx.events, w.event)
		}
		if !w.dead {
			delete(ws.watches, w.handle)
			ws.refuseWatch(w.handle, w.at)
		}
	}
	st.watches = nil
	for i, a := range ws.watching {
		if a == st {
			ws.watching = append(ws.watching[:i], ws.watching[i+1:]...)
			break
		}
	}
}

// queryEvent: cuEventQuery(hEvent). Who learns that an event is not complete is told when it is.
func (ws *waits) queryEvent(c *command) (cuda.CUresult, error) {
	h := ws.args(c).U64()
	r, err := ws.loop.general(c)
	real, ok := ws.table.Real(cuda.KindEvent, h)
	// A query gives nothing back to pools and prints nothing.
	if err == nil && ok && r == cuda.CUDA_SUCCESS && ws.printf.mayAssert() {
		r = ws.printf.syncFiredEvent(cuda.CUevent(real))
	}
	if err != nil || r != cuda.CUDA_ERROR_NOT_READY {
		return r, err
	}
	switch {
	case !ok, !ws.watched(h), ws.asyncErr != cuda.CUDA_SUCCESS:
		ws.refuseWatch(h, c.end())
	case ws.watches[h] != nil && !ws.watches[h].own: // recorded with a watch already
		ws.watches[h].at = c.end()
	default:
		ws.addWatch(nil, &watch{handle: h, at: c.end(), event: cuda.CUevent(real)})
	}
	return r, nil
}

// recordEventOfClient: cuEventRecord and cuEventRecordWithFlags.
func (ws *waits) recordEventOfClient(c *command) (cuda.CUresult, error) {
	a := ws.args(c)
	h, on := a.U64(), a.U64()
	if len(ws.list) > 0 {
		ws.freeEvent(h)
	}
	ws.dropWatch(h)
	r, err := ws.loop.general(c)
	if err != nil || c.Flags&transport.FlagWatch == 0 {
		return r, err
	}
	real, ok := ws.table.Real(cuda.KindEvent, h)
	st, rs := ws.stream(on)
	if r != cuda.CUDA_SUCCESS || rs != cuda.CUDA_SUCCESS || !ok || !ws.watched(h) || ws.isCapturing(st) {
		ws.refuseWatch(h, c.end())
		return r, nil
	}
	ws.addWatch(st, &watch{handle: h, at: c.end(), event: cuda.CUevent(real)})
	return r, nil
}

// queryStream: cuStreamQuery(hStream).
func (ws *waits) queryStream(c *command) (cuda.CUresult, error) {
	a := ws.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := ws.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	r = ws.inThreadMode(func() cuda.CUresult { return ws.gpu.CuStreamQuery(st.real) })
	if r == cuda.CUDA_SUCCESS && ws.printf.mayAssert() {
		r = ws.printf.syncIdleStream(st)
	}
	if r != cuda.CUDA_ERROR_NOT_READY || st.handle == 0 {
		return r, nil
	}
	if ws.asyncErr == cuda.CUDA_SUCCESS && ws.watched(h) {
		if e, re := ws.recordEvent(st); re == cuda.CUDA_SUCCESS {
			ws.addWatch(st, &watch{handle: h, at: c.end(), event: e, own: true})
			return r, nil
		}
	}
	ws.refuseWatch(h, c.end())
	return r, nil
}

// destroyEvent: cuEventDestroy.
func (ws *waits) destroyEvent(c *command) (cuda.CUresult, error) {
	h := ws.args(c).U64()
	if len(ws.list) > 0 {
		ws.freeEvent(h)
	}
	ws.dropWatch(h)
	return ws.loop.general(c)
}
