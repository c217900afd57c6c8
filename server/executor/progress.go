package executor

import (
	"cmp"
	"slices"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/transport"
)

// watch is a promise to tell the client, by PROGRESS, when an event or the work of a stream so far is complete. Watches of one stream fire in
// their order, so only the first of each is looked at.
type watch struct {
	handle uint64 // the client's, of the event or stream
	at     uint64 // position up to which the client may then take it as complete
	event  cuda.CUevent
	own    bool // the event is the executor's
	dead   bool // the event has another meaning by now
}

// watched says whether PROGRESS may name the handle.
func (s *Session) watched(h uint64) bool {
	return h-s.clientBase < s.clientBytes
}

// refuseWatch tells the client that it will hear nothing of the handle up to a position, so that its next question comes to the server.
func (s *Session) refuseWatch(h, at uint64) {
	if s.watched(h) {
		s.progress(h, at, int32(cuda.CUDA_ERROR_NOT_READY))
	}
}

func (s *Session) progress(h, at uint64, result int32) {
	if result == 0 {
		s.printf.sendText(cuda.CUDA_SUCCESS) // the client may not ask any more
	}
	s.out.message(transport.MessageHeader{Type: transport.MsgProgress, Result: result, Seq: at, Aux: h}, nil, nil)
}

// end is the position behind the command.
func (c *command) end() uint64 { return c.Seq + uint64(c.Size) }

// addWatch lets the client know when event e, on stream st or (nil) on one that is not known, is complete. A handle is watched once: what
// is asked later counts.
func (s *Session) addWatch(st *stream, w *watch) {
	s.dropWatch(w.handle)
	if st == nil {
		st = &s.loose
	}
	if len(st.watches) == 0 && st != &s.loose {
		s.watching = append(s.watching, st)
	}
	st.watches = append(st.watches, w)
	s.watches[w.handle] = w
}

// dropWatch forgets the watch of a handle that gets another meaning.
func (s *Session) dropWatch(h uint64) {
	if w := s.watches[h]; w != nil {
		w.dead = true
		delete(s.watches, h)
	}
}

// pollProgress sends the data of downloads that have come down, and tells of downloads and watches that are complete. A client that learns of
// one has learned of all that lies before it: what is complete is collected until a look at everything finds no more, and told in the order of the
// commands. (What waits for other work has a later command than that.)
func (s *Session) pollProgress() bool {
	if s.transfers == 0 && len(s.watches) == 0 && len(s.endings) == 0 {
		return false
	}
	s.fired = s.fired[:0]
	progress := len(s.endings) > 0
	for more := true; more; {
		n := len(s.fired)
		s.pollWatches()
		more = s.transfers > 0 && s.pollDownloads()
		more = more || len(s.fired) > n
		progress = progress || more
	}
	if len(s.fired) > 1 {
		slices.SortFunc(s.fired, func(a, b fired) int { return cmp.Compare(a.at, b.at) })
	}
	if len(s.endings) > 1 {
		slices.SortFunc(s.endings, func(a, b *transfer) int { return cmp.Compare(a.seq, b.seq) })
	}
	ends, told := s.endings, s.fired
	for len(ends) > 0 || len(told) > 0 {
		if len(told) > 0 && (len(ends) == 0 || told[0].at <= ends[0].seq) {
			s.tell(&told[0])
			told = told[1:]
		} else {
			s.tellEnd(ends[0])
			ends = ends[1:]
		}
	}
	clear(s.endings)
	s.endings = s.endings[:0]
	return progress
}

func (s *Session) tell(f *fired) {
	if f.result != cuda.CUDA_SUCCESS || s.asyncErr != cuda.CUDA_SUCCESS {
		s.refuseWatch(f.handle, f.at) // the client has to ask, and gets the error
		return
	}
	s.progress(f.handle, f.at, 0)
}

// pollWatches collects the watches that have come to their ends.
func (s *Session) pollWatches() {
	if len(s.watches) == 0 {
		return
	}
	s.enterAny()
	kept := s.watching[:0]
	for _, st := range s.watching {
		n := 0
		for n < len(st.watches) && s.look(st, st.watches[n]) {
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
	clear(s.watching[len(kept):])
	s.watching = kept
	loose := s.loose.watches[:0]
	for _, w := range s.loose.watches {
		if !s.look(&s.loose, w) {
			loose = append(loose, w)
		}
	}
	clear(s.loose.watches[len(loose):])
	s.loose.watches = loose
}

// fired is a watch that has come to its end.
type fired struct {
	handle, at uint64
	result     cuda.CUresult
}

// look says whether a watch is over.
func (s *Session) look(st *stream, w *watch) bool {
	if w.dead && !w.own {
		return true
	}
	r := s.gpu.CuEventQuery(w.event)
	if r == cuda.CUDA_ERROR_NOT_READY {
		return false
	}
	if r == cuda.CUDA_SUCCESS {
		r = s.printf.syncFiredEvent(w.event)
	}
	if w.own {
		st.ctx.events = append(st.ctx.events, w.event)
	}
	if !w.dead {
		s.fired = append(s.fired, fired{w.handle, w.at, r})
		delete(s.watches, w.handle)
	}
	return true
}

// endWatches refuses the watches of a stream that ends.
func (s *Session) endWatches(st *stream) {
	for _, w := range st.watches {
		if w.own {
			st.ctx.events = append(st.ctx.events, w.event)
		}
		if !w.dead {
			delete(s.watches, w.handle)
			s.refuseWatch(w.handle, w.at)
		}
	}
	st.watches = nil
	for i, a := range s.watching {
		if a == st {
			s.watching = append(s.watching[:i], s.watching[i+1:]...)
			break
		}
	}
}

// eventQuery: cuEventQuery(hEvent). Who learns that an event is not complete is told when it is.
func (s *Session) eventQuery(c *command) (cuda.CUresult, error) {
	h := s.args(c).U64()
	r, err := s.general(c)
	real, ok := s.table.Real(cuda.KindEvent, h)
	if err == nil && ok && r == cuda.CUDA_SUCCESS && s.printf.mayAssert() { // a query gives nothing back and prints nothing
		r = s.printf.syncFiredEvent(cuda.CUevent(real))
	}
	if err != nil || r != cuda.CUDA_ERROR_NOT_READY {
		return r, err
	}
	switch {
	case !ok, !s.watched(h), s.asyncErr != cuda.CUDA_SUCCESS:
		s.refuseWatch(h, c.end())
	case s.watches[h] != nil && !s.watches[h].own: // recorded with a watch already
		s.watches[h].at = c.end()
	default:
		s.addWatch(nil, &watch{handle: h, at: c.end(), event: cuda.CUevent(real)})
	}
	return r, nil
}

// recordClientEvent: cuEventRecord and cuEventRecordWithFlags.
func (s *Session) recordClientEvent(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h, on := a.U64(), a.U64()
	if len(s.waits) > 0 {
		s.releaseEvent(h)
	}
	s.dropWatch(h)
	r, err := s.general(c)
	if err != nil || c.Flags&transport.FlagWatch == 0 {
		return r, err
	}
	real, ok := s.table.Real(cuda.KindEvent, h)
	st, rs := s.stream(on)
	if r != cuda.CUDA_SUCCESS || rs != cuda.CUDA_SUCCESS || !ok || !s.watched(h) || s.isCapturing(st) {
		s.refuseWatch(h, c.end())
		return r, nil
	}
	s.addWatch(st, &watch{handle: h, at: c.end(), event: cuda.CUevent(real)})
	return r, nil
}

// streamQuery: cuStreamQuery(hStream).
func (s *Session) streamQuery(c *command) (cuda.CUresult, error) {
	a := s.args(c)
	h := a.U64()
	if err := a.end(); err != nil {
		return 0, err
	}
	st, r := s.stream(h)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	r = s.inThreadMode(func() cuda.CUresult { return s.gpu.CuStreamQuery(st.real) })
	if r == cuda.CUDA_SUCCESS && s.printf.mayAssert() {
		r = s.printf.syncIdleStream(st)
	}
	if r != cuda.CUDA_ERROR_NOT_READY || st.handle == 0 {
		return r, nil
	}
	if s.asyncErr == cuda.CUDA_SUCCESS && s.watched(h) {
		if e, re := s.recordEvent(st); re == cuda.CUDA_SUCCESS {
			s.addWatch(st, &watch{handle: h, at: c.end(), event: e, own: true})
			return r, nil
		}
	}
	s.refuseWatch(h, c.end())
	return r, nil
}
