package executor

import (
	"slices"
	"sync/atomic"
	"time"

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
	rows         *rows      // of a 3-D copy: where its rows lie; nil: without gaps
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

// downloads bring bytes to the client.
type downloads struct {
	*base
	loop    copiesLoop
	out     *output
	graphs  *graphs
	hostmem *hostmem
	printf  *printf
	staging *staging
	bulk    *transfers
	path    *path

	late     lateDownloads
	latest   latest
	underWay int         // chunks that the executor has not seen arrive
	active   []*stream   // streams with such chunks
	endings  []*transfer // downloads whose data have been sent, but not yet their ends
}

// latest is the download that was enqueued last.
type latest struct {
	t       *transfer
	st      *stream
	command uint64 // by base.commands
}

// copyD2H: every download.
func (d *downloads) copyD2H(c *command) (cuda.CUresult, error) {
	c.async = true
	p, rest, err := view[wire.CopyD2H](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 || p.Bytes > 1<<50 {
		return 0, protocolError("download of %d bytes", p.Bytes)
	}
	if d.metrics.Add(metrics.CopiedToHost, int(p.Bytes)); p.Flags&flagManaged != 0 {
		d.metrics.Add(metrics.MigratedToHost, int(p.Bytes))
		d.hostmem.countFetch(p.Flags)
		d.hostmem.forgetSent(p.Src, p.Bytes)
	}
	t := &transfer{
		id: p.Transfer, thread: c.Thread, seq: c.Seq, began: c.began, reply: c.Flags&transport.FlagAnswer != 0,
		done: p.Flags&flagDone != 0,
	}
	st, r := d.stream(p.Stream)
	if r == cuda.CUDA_SUCCESS && len(d.captures) > 0 {
		switch capturing := d.isCapturing(st); {
		case capturing && p.Flags&flagSync != 0:
			return cuda.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, nil
		case capturing:
			return d.graphs.captureD2H(p, st), nil
		case p.Flags&flagSync != 0 && d.prohibited(c.Thread):
			probe := d.arena.bytes(8)
			r = d.inThreadMode(func() cuda.CUresult {
				return d.gpu.CuMemcpyDtoH_v2(pointerTo(probe), cuda.CUdeviceptr(p.Src), min(p.Bytes, 8))
			})
		}
	}
	if r == cuda.CUDA_SUCCESS && p.Bytes > 0 {
		t.beside = p.Bytes >= bulk.MinTransfer && d.bulk.ready.Load()
		if t.beside && d.bulk.out.State() == bulk.Up {
			t.link = d.path.link().Want(t.id, t.seq, p.Bytes)
		}
		d.expect(t)
		r, err = d.download(st, t, cuda.CUdeviceptr(p.Src), p.Bytes)
		if err != nil {
			return 0, err
		}
		d.failed(t, r)
		if t.left > 0 { // it ends with the last chunk that was enqueued
			c.later = true
			d.latest = latest{t, st, d.commands}
			return r, nil
		}
	}
	if t.posted > 0 || t.done {
		c.later = true
		d.failed(t, r)
		d.endTransfer(t)
		return r, nil
	}
	return r, nil
}

// start enqueues a download whose end answers its command.
func (d *downloads) start(st *stream, t *transfer, src cuda.CUdeviceptr, bytes uint64) (cuda.CUresult, error) {
	t.beside = bytes >= bulk.MinTransfer && d.bulk.ready.Load()
	r, err := d.download(st, t, src, bytes)
	if err != nil {
		return 0, err
	}
	if r != cuda.CUDA_SUCCESS {
		t.result = r
	}
	if t.left == 0 {
		d.endTransfer(t)
	}
	return r, nil
}

// download enqueues the chunks of a download. On a failure some may have been enqueued.
func (d *downloads) download(st *stream, t *transfer, src cuda.CUdeviceptr, bytes uint64) (cuda.CUresult, error) {
	return d.downloadBy(st, t, bytes, func(off uint64, sl *slot, n uint64) cuda.CUresult {
		if sl.gpu != 0 {
			return d.gpu.CuMemcpyDtoDAsync_v2(sl.gpu, src+cuda.CUdeviceptr(off), n, st.real)
		}
		return d.gpu.CuMemcpyDtoHAsync_v2(pointerTo(sl.mem), src+cuda.CUdeviceptr(off), n, st.real)
	})
}

// downloadBy does it with a function that enqueues the copy of a chunk.
func (d *downloads) downloadBy(
	st *stream, t *transfer, bytes uint64, enqueue func(off uint64, sl *slot, n uint64) cuda.CUresult,
) (cuda.CUresult, error) {
	pool := st.ctx.poolFor(bytes)
	t.left++ // for this function, so that the transfer does not end while chunks are added
	var result cuda.CUresult
	for off := uint64(0); off < bytes; {
		var sl *slot
		var r cuda.CUresult
		var err error
		n := min(uint64(pool.size), bytes-off)
		if t.link {
			if sl, err = d.downloadSlot(st, t); sl != nil {
				n = min(n, uint64(d.path.link().ChunkBytes()))
			}
		}
		if sl == nil && err == nil {
			sl, r, err = d.staging.take(st.ctx, pool)
		}
		if err != nil {
			return 0, err
		}
		if r == cuda.CUDA_SUCCESS {
			r = enqueue(off, sl, n)
			var e cuda.CUevent
			if r == cuda.CUDA_SUCCESS {
				e, r = d.recordEvent(st)
			}
			if r == cuda.CUDA_SUCCESS {
				t.left++
				d.addChunk(st, &chunk{t: t, slot: sl, bytes: int(n), off: off, event: e})
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
		d.sign(st, t)
	}
	t.left--
	if t.left == 0 && result == cuda.CUDA_SUCCESS {
		result = t.result // all chunks were sent while this one waited for slots
	}
	return result, nil
}

func (d *downloads) addChunk(st *stream, c *chunk) {
	if len(st.downloads) == 0 {
		d.active = append(d.active, st)
	}
	c.kernels = st.kernels
	st.downloads = append(st.downloads, c)
	d.underWay++
	if c.t.late {
		d.late.mu.Lock()
		c.t.unsent = append(c.t.unsent, c)
		d.late.mu.Unlock()
	}
}

// poll queues the data of all chunks that have arrived.
func (d *downloads) poll() bool {
	d.enterAny()
	progress := false
	kept := d.active[:0]
	for _, st := range d.active {
		sent := 0
		for _, c := range st.downloads {
			r := d.gpu.CuEventQuery(c.event)
			if r == cuda.CUDA_ERROR_NOT_READY {
				break
			}
			if r == cuda.CUDA_SUCCESS {
				d.moveIn(c)
			}
			d.arrived(st, c, r)
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
	clear(d.active[len(kept):])
	d.active = kept
	return progress
}

func (d *downloads) arrived(st *stream, c *chunk, r cuda.CUresult) {
	t := c.t
	d.underWay--
	st.ctx.events = append(st.ctx.events, c.event)
	if (t.reply || t.awaited) && r == cuda.CUDA_SUCCESS {
		r = d.printf.syncChunk(st, c)
	}
	if c.more = t.left > 1; t.late {
		d.late.mu.Lock()
		d.arrivedLate(c, r)
		d.late.mu.Unlock()
	} else if r != cuda.CUDA_SUCCESS {
		c.slot.free.Store(true)
	} else if !d.send(c) {
		d.sendFetched(c)
	}
	d.failed(t, r)
	if t.left--; t.left == 0 {
		d.endTransfer(t)
	}
}

// sendFetched sends a chunk of the GPU's memory that RDMA does not take.
func (d *downloads) sendFetched(c *chunk) {
	t, sl := c.t, c.slot
	d.path.fetch(bulk.Chunk{Seq: t.seq, ID: t.id, Offset: c.off, Bytes: uint32(c.bytes)}, sl.gpu)
	sl.free.Store(true)
	t.posted += uint64(c.bytes)
}

// failed notes a download's first failure.
func (d *downloads) failed(t *transfer, r cuda.CUresult) {
	if r == cuda.CUDA_SUCCESS {
		return
	}
	if t.late {
		d.late.mu.Lock()
		defer d.late.mu.Unlock()
	}
	if t.result == cuda.CUDA_SUCCESS {
		t.result = r
	}
}

// endTransfer notes that a download's data have been queued; [Session.pollProgress] ends it.
func (d *downloads) endTransfer(t *transfer) {
	if t.link {
		d.path.link().Forget(t.id, t.seq)
	}
	d.endings = append(d.endings, t)
}

func (d *downloads) tellEnd(t *transfer) {
	t.over = true
	if t.began != 0 {
		d.metrics.Observe(metrics.Histogram(class.Copy), metrics.Now()-t.began)
	}
	d.countError(t.result)
	var payload []byte
	if t.of != nil {
		if t.result != cuda.CUDA_SUCCESS {
			t.of.forgetSent(t.from, t.bytes)
		}
		payload = wire.Bytes(&t.Changes)
	}
	switch {
	case t.late:
		d.endLate(t)
	case t.done:
		d.sayDone(t)
	}
	switch {
	case t.reply:
		r := d.withAsyncError(t.result)
		d.printf.sendText(r)
		d.out.message(transport.MessageHeader{
			Type: transport.MsgReply, ID: t.thread, Result: int32(r), Seq: t.seq, Aux: t.posted,
		}, payload, nil)
	case t.result != cuda.CUDA_SUCCESS:
		d.keepAsyncError(t.result)
	}
}

// justBefore is the download that the command before this one enqueued on the stream, where it is under way.
func (d *downloads) justBefore(st *stream) *transfer {
	if l := d.latest; l.st == st && l.command+1 == d.commands && l.t.left > 0 {
		return l.t
	}
	return nil
}

// finish waits for the downloads of a stream that is about to end.
func (d *downloads) finish(st *stream) {
	for began := time.Now(); len(st.downloads) > 0; {
		if d.loop.napAfter(time.Since(began)) != nil {
			d.fail(st, cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED)
			return
		}
	}
}

// fail ends the downloads of a stream whose events are gone.
func (d *downloads) fail(st *stream, r cuda.CUresult) {
	for _, c := range st.downloads {
		d.arrived(st, c, r)
	}
	st.downloads = nil
	kept := d.active[:0]
	for _, a := range d.active {
		if a != st {
			kept = append(kept, a)
		}
	}
	clear(d.active[len(kept):])
	d.active = kept
}

// sendChunk sends a chunk of a download that lies in a slot. It says no where a fallback cannot read the slot and the
// path does not take the chunk.
func (d *downloads) sendChunk(t *transfer, c *chunk) bool {
	sl := c.slot
	sl.out = bulk.Transfer{Seq: t.seq, ID: t.id, Offset: c.off, Bytes: c.bytes, More: c.more, Direct: sl.path, Owner: sl}
	if sl.gpu == 0 {
		sl.out.Data = sl.mem[:c.bytes]
	} else {
		sl.out.Addr = uint64(sl.gpu)
	}
	direct, taken := d.bulk.out.Post(&sl.out)
	if !direct {
		t.refused.Store(true)
	}
	return taken
}

// downloadSlot gives a slot from which a chunk of a download can leave by RDMA. It waits for the link, which is done
// with its chunks or gives them up soon, and for the GPU where that is at this download already, or takes in one
// uploaded chunk after the other before it. Where all slots wait for other work, it gives nil, as the commands behind
// must not wait as well.
func (d *downloads) downloadSlot(st *stream, t *transfer) (*slot, error) {
	p := d.path
	for began := time.Now(); ; {
		if p.direct != nil && d.bulk.out.State() != bulk.Up { // a chunk there would have to be fetched
			return nil, nil
		}
		if sl := p.takeDown(); sl != nil {
			p.lock(st.ctx)
			return sl, nil
		}
		switch {
		case d.bulk.out.State() != bulk.Up:
			return nil, nil
		case d.bulk.out.Pieces() > 0, t.posted > 0 && st.holdsPathSlot(t):
			p.last = time.Now()
		case time.Since(p.last) > stalled:
			return nil, nil
		}
		if err := d.loop.napAfter(time.Since(began)); err != nil {
			return nil, err
		}
	}
}

// holdsPathSlot says whether a chunk of a download is on its way from the GPU into a slot of the path.
func (st *stream) holdsPathSlot(t *transfer) bool {
	return slices.ContainsFunc(st.downloads, func(c *chunk) bool { return c.t == t && c.slot.path })
}

// moveIn copies a chunk that had to go into an ordinary slot into a free one of the path, so that it leaves by RDMA as
// well. It does not wait for one: what waits for the stream is answered when the chunk's event is complete, and has to
// come behind the download's end.
func (d *downloads) moveIn(c *chunk) {
	p := d.path
	if c.slot.path || !c.t.link || c.t.refused.Load() || d.bulk.out.State() != bulk.Up {
		return
	}
	sl := p.takeDown()
	if sl == nil {
		return
	}
	if sl.gpu == 0 {
		copy(sl.mem, c.slot.mem[:c.bytes])
	} else if r := d.copyAside(func(st cuda.CUstream) cuda.CUresult {
		return d.gpu.CuMemcpyHtoDAsync_v2(sl.gpu, pointerTo(c.slot.mem), uint64(c.bytes), st)
	}); r != cuda.CUDA_SUCCESS {
		sl.free.Store(true)
		return
	}
	d.late.mu.Lock()
	defer d.late.mu.Unlock()
	if c.t.late && !slices.Contains(c.t.unsent, c) { // it was sent meanwhile
		sl.free.Store(true)
		return
	}
	c.slot.free.Store(true)
	c.slot = sl
}
