package executor

import (
	"sync/atomic"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// transfer is a download under way.
type transfer struct {
	id           uint32
	thread       uint32
	seq          uint64
	began        int64       // the command's
	reply        bool        // a REPLY ends it
	done         bool        // a DONE ends it
	beside       bool        // its data go beside the main connection
	link         bool        // a window was asked for; they may go by RDMA
	refused      atomic.Bool // there is none
	posted       uint64      // bytes that did
	left         int         // chunks that the executor has not seen arrive
	over         bool        // its data and its end have been queued
	awaited      bool        // a wait ends with it
	result       cuda.CUresult
	rows         *rows      // of a box: where its rows lie; nil: without gaps
	of           *hostRange // of changes of a stretch of it only; nil: everything
	from, bytes  uint64     // that stretch
	managed      bool       // of unified memory
	wire.Changes            // of the changes, what was sent

	// Of an asynchronous download; with posted and result these belong to whoever holds late.mu.
	late bool // it is one; does not change
	// where the GPU writes number when all of it has come down; nil: not yet, or it cannot (unsigned)
	word     *atomic.Uint32
	number   uint32
	unsigned bool
	whole    bool     // all of its chunks have been enqueued
	unsent   []*chunk // those that have not been sent
	told     bool     // its end has been
}

// chunk is a piece of a download in a staging slot.
type chunk struct {
	t     *transfer
	slot  *slot
	bytes int
	off   uint64
	event cuda.CUevent

	more     bool   // others follow
	fetching bool   // it is being fetched out of the GPU's memory
	kernels  uint64 // of the stream before it
}

// latest is the download that was enqueued last.
type latest struct {
	t       *transfer
	st      *stream
	command uint64 // by Session.commands
}

// copyD2H: every download.
func (s *Session) copyD2H(c *command) (cuda.CUresult, error) {
	c.async = true
	p, rest, err := view[wire.CopyD2H](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 || p.Bytes > 1<<50 {
		return 0, protocolError("download of %d bytes", p.Bytes)
	}
	if s.metrics.Add(metrics.CopiedToHost, int(p.Bytes)); p.Flags&flagManaged != 0 {
		s.metrics.Add(metrics.MigratedToHost, int(p.Bytes))
		s.hostmem.countFetch(p.Flags)
		s.hostmem.forgetSent(p.Src, p.Bytes)
	}
	t := &transfer{
		id: p.Transfer, thread: c.Thread, seq: c.Seq, began: c.began, reply: c.Flags&transport.FlagAnswer != 0,
		done: p.Flags&flagDone != 0,
	}
	st, r := s.stream(p.Stream)
	if r == cuda.CUDA_SUCCESS && len(s.captures) > 0 {
		switch capturing := s.isCapturing(st); {
		case capturing && p.Flags&flagSync != 0:
			return cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, nil
		case capturing:
			return s.graphs.captureD2H(p, st), nil
		case p.Flags&flagSync != 0 && s.prohibited(c.Thread):
			probe := s.arena.bytes(8)
			r = s.inThreadMode(func() cuda.CUresult {
				return s.gpu.CuMemcpyDtoH_v2(pointerTo(probe), cuda.CUdeviceptr(p.Src), min(p.Bytes, 8))
			})
		}
	}
	if r == cuda.CUDA_SUCCESS && p.Bytes > 0 {
		t.beside = p.Bytes >= bulk.MinTransfer && s.bulk.ready.Load()
		if t.beside && s.bulk.out.State() == bulk.Up {
			t.link = s.path.link().Want(t.id, t.seq, p.Bytes)
		}
		s.expect(t)
		r, err = s.download(st, t, cuda.CUdeviceptr(p.Src), p.Bytes)
		if err != nil {
			return 0, err
		}
		s.failed(t, r)
		if t.left > 0 { // it ends with the last chunk that was enqueued
			c.later = true
			s.latest = latest{t, st, s.commands}
			return r, nil
		}
	}
	if t.posted > 0 || t.done {
		c.later = true
		s.failed(t, r)
		s.endTransfer(t)
		return r, nil
	}
	return r, nil
}

// download enqueues the chunks of a download. On a failure some may have been enqueued.
func (s *Session) download(st *stream, t *transfer, src cuda.CUdeviceptr, bytes uint64) (cuda.CUresult, error) {
	return s.downloadBy(st, t, bytes, func(off uint64, sl *slot, n uint64) cuda.CUresult {
		if sl.gpu != 0 {
			return s.gpu.CuMemcpyDtoDAsync_v2(sl.gpu, src+cuda.CUdeviceptr(off), n, st.real)
		}
		return s.gpu.CuMemcpyDtoHAsync_v2(pointerTo(sl.mem), src+cuda.CUdeviceptr(off), n, st.real)
	})
}

// downloadBy does it with a function that enqueues the copy of a chunk.
func (s *Session) downloadBy(
	st *stream, t *transfer, bytes uint64, enqueue func(off uint64, sl *slot, n uint64) cuda.CUresult,
) (cuda.CUresult, error) {
	pool := s.poolFor(st.ctx, bytes)
	t.left++ // for this function, so that the transfer does not end while chunks are added
	var result cuda.CUresult
	for off := uint64(0); off < bytes; {
		var sl *slot
		var r cuda.CUresult
		var err error
		n := min(uint64(pool.size), bytes-off)
		if t.link {
			if sl, err = s.downloadSlot(st, t); sl != nil {
				n = min(n, uint64(s.path.link().ChunkBytes()))
			}
		}
		if sl == nil && err == nil {
			sl, r, err = s.takeSlot(st.ctx, pool)
		}
		if err != nil {
			return 0, err
		}
		if r == cuda.CUDA_SUCCESS {
			r = enqueue(off, sl, n)
			var e cuda.CUevent
			if r == cuda.CUDA_SUCCESS {
				e, r = s.recordEvent(st)
			}
			if r == cuda.CUDA_SUCCESS {
				t.left++
				s.addChunk(st, &chunk{t: t, slot: sl, bytes: int(n), off: off, event: e})
			} else {
				sl.free.Store(true)
			}
		}
		if r != cuda.CUDA_SUCCESS {
			result = r
			break
		}
		off += n
	}
	if result == cuda.CUDA_SUCCESS {
		s.sign(st, t)
	}
	t.left--
	if t.left == 0 && result == cuda.CUDA_SUCCESS {
		result = t.result // all chunks were sent while this one waited for slots
	}
	return result, nil
}

func (s *Session) addChunk(st *stream, c *chunk) {
	if len(st.downloads) == 0 {
		s.active = append(s.active, st)
	}
	c.kernels = st.kernels
	st.downloads = append(st.downloads, c)
	s.transfers++
	if c.t.late {
		s.late.mu.Lock()
		c.t.unsent = append(c.t.unsent, c)
		s.late.mu.Unlock()
	}
}

// pollDownloads queues the data of all chunks that have arrived.
func (s *Session) pollDownloads() bool {
	s.enterAny()
	progress := false
	kept := s.active[:0]
	for _, st := range s.active {
		sent := 0
		for _, c := range st.downloads {
			r := s.gpu.CuEventQuery(c.event)
			if r == cuda.CUDA_ERROR_NOT_READY {
				break
			}
			if r == cuda.CUDA_SUCCESS {
				s.moveIn(c)
			}
			s.arrived(st, c, r)
			sent++
		}
		if sent > 0 {
			progress = true
			left := copy(st.downloads, st.downloads[sent:])
			clear(st.downloads[left:])
			st.downloads = st.downloads[:left]
		}
		if len(st.downloads) > 0 {
			kept = append(kept, st)
		}
	}
	clear(s.active[len(kept):])
	s.active = kept
	return progress
}

func (s *Session) arrived(st *stream, c *chunk, r cuda.CUresult) {
	t := c.t
	s.transfers--
	st.ctx.events = append(st.ctx.events, c.event)
	if (t.reply || t.awaited) && r == cuda.CUDA_SUCCESS {
		r = s.printf.syncChunk(st, c)
	}
	if c.more = t.left > 1; t.late {
		s.late.mu.Lock()
		s.arrivedLate(c, r)
		s.late.mu.Unlock()
	} else if r != cuda.CUDA_SUCCESS {
		c.slot.free.Store(true)
	} else if !s.send(c) {
		s.sendFetched(c)
	}
	s.failed(t, r)
	if t.left--; t.left == 0 {
		s.endTransfer(t)
	}
}

// sendFetched sends a chunk of the GPU's memory that RDMA does not take.
func (s *Session) sendFetched(c *chunk) {
	t, sl := c.t, c.slot
	s.fetch(bulk.Chunk{Seq: t.seq, ID: t.id, Offset: c.off, Bytes: uint32(c.bytes)}, sl.gpu)
	sl.free.Store(true)
	t.posted += uint64(c.bytes)
}

// failed notes a download's first failure.
func (s *Session) failed(t *transfer, r cuda.CUresult) {
	if r == cuda.CUDA_SUCCESS {
		return
	}
	if t.late {
		s.late.mu.Lock()
		defer s.late.mu.Unlock()
	}
	if t.result == cuda.CUDA_SUCCESS {
		t.result = r
	}
}

// endTransfer notes that a download's data have been queued; pollProgress ends it.
func (s *Session) endTransfer(t *transfer) {
	if t.link {
		s.path.link().Forget(t.id, t.seq)
	}
	s.endings = append(s.endings, t)
}

func (s *Session) tellEnd(t *transfer) {
	t.over = true
	if t.began != 0 {
		s.metrics.Observe(metrics.Histogram(class.Copy), metrics.Now()-t.began)
	}
	s.countError(t.result)
	var payload []byte
	if t.of != nil {
		if t.result != cuda.CUDA_SUCCESS {
			t.of.forgetSent(t.from, t.bytes)
		}
		payload = wire.Bytes(&t.Changes)
	}
	switch {
	case t.late:
		s.late.end(s, t)
	case t.done:
		s.sayDone(t)
	}
	switch {
	case t.reply:
		r := s.withAsyncError(t.result)
		s.printf.sendText(r)
		s.out.message(transport.MessageHeader{
			Type: transport.MsgReply, ID: t.thread, Result: int32(r), Seq: t.seq, Aux: t.posted,
		}, payload, nil)
	case t.result != cuda.CUDA_SUCCESS:
		s.keepAsyncError(t.result)
	}
}

// finishDownloads waits for the downloads of a stream that is about to end.
func (s *Session) finishDownloads(st *stream) {
	for len(st.downloads) > 0 {
		if s.nap() != nil {
			s.failDownloads(st, cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED)
			return
		}
	}
}

// failDownloads ends the downloads of a stream whose events are gone.
func (s *Session) failDownloads(st *stream, r cuda.CUresult) {
	for _, c := range st.downloads {
		s.arrived(st, c, r)
	}
	st.downloads = nil
	kept := s.active[:0]
	for _, a := range s.active {
		if a != st {
			kept = append(kept, a)
		}
	}
	clear(s.active[len(kept):])
	s.active = kept
}
