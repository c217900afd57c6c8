package executor

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/rdma"
)

// Memory of a session's RDMA: slots of largeBytes, those for uploads registered for the client, those for downloads
// only with this side's device.
const (
	DefaultRDMASlots = int(config.DefaultServerRDMAMemory / largeBytes)
	leastRDMASlots   = int(config.MinServerRDMAMemory / largeBytes)
	MaxRDMASlots     = int(config.MaxRDMAMemory / largeBytes)
	uploadShare      = 3 // one of so many slots is for downloads, the others are for uploads
	// with less than one of so many upload slots free, chunks that the GPU does not come to read are moved out of them
	scarce  = 4
	stalled = 20 * time.Millisecond
)

// unread is the time in which the GPU reads a chunk if it reads chunks at all. (A variable for tests.)
var unread = 2 * time.Millisecond

// pathLink is what the executor uses of an [rdma.Link]; measuring has one of its own.
type pathLink interface {
	bulk.Sender
	Want(id uint32, seq, bytes uint64) bool
	Forget(id uint32, seq uint64)
	Release(slots ...uint32)
	Close()
}

// path is a session's RDMA. All but the link is the executor's.
type path struct {
	openMu sync.Mutex
	opened chan struct{} // closed when what the client's control connection began is over; nil: there is none
	ended  bool          // none is taken any more

	there atomic.Bool // link, slots and memory are there
	l     pathLink
	slots []*slot // uploads arrive in them
	down  []*slot // downloads leave from them
	mem   []byte
	gpu   *directSlots // the slots lie in the GPU's memory, and mem is nil
	busy  []*slot      // upload slots from which the GPU copies
	// a download slot was last taken, or with the link, or the GPU had read all upload slots or one more
	last  time.Time
	owner *context // in which the driver has page-locked the memory
	freed []uint32
	stats rdma.Stats
	lost  atomic.Uint64 // of stats, as the server's metrics have it
}

// AttachRDMA gives the session the control connection of its RDMA. It does not wait: what follows makes calls of the driver, which may hold their caller for as
// long as the GPU works, and the caller has connections to attach for which that work may wait. The goroutine owns the connection until the link does, and
// the session's end waits for it.
func (s *Session) AttachRDMA(c net.Conn) error {
	p := &s.path
	if s.rdmaSlots < leastRDMASlots || !p.begin() {
		c.Close()
		return errors.New("an RDMA connection that the session does not expect")
	}
	go func() {
		defer close(p.opened)
		if err := s.openPath(c); err != nil {
			c.Close()
			s.log.Error("there is no RDMA", "error", err)
		}
	}()
	return nil
}

// begin says whether RDMA may be opened, which is so once, before the session's end.
func (p *path) begin() bool {
	p.openMu.Lock()
	defer p.openMu.Unlock()
	if p.opened != nil || p.ended {
		return false
	}
	p.opened = make(chan struct{})
	return true
}

// openPath chooses where the slots lie, makes them and begins to use the connection.
func (s *Session) openPath(c net.Conn) error {
	bytes := s.rdmaSlots * largeBytes
	direct, why := s.chooseDirect(c, bytes)
	if err := s.bulk.out.Err(); err != nil {
		return err
	}
	p := &s.path
	p.gpu = direct
	memory := func(from, n int) rdma.Memory { return direct.memory(from, n) }
	if direct == nil {
		s.log.Debug("RDMA goes through page-locked memory", "why", why)
		mem, err := mapMemory(bytes)
		if err != nil {
			return fmt.Errorf("%d MiB for its slots: %w", s.rdmaSlots, err)
		}
		p.mem = mem
		memory = func(from, n int) rdma.Memory { return rdma.Mapped(mem[from : from+n]) }
	}
	ups := s.layPath()
	s.usePath(rdma.Windows{Link: rdma.New(rdma.Config[bulk.Piece]{Control: c, Device: s.rdmaDevice, Depth: ups,
		Slots: memory(0, ups*largeBytes), SlotBytes: largeBytes, Source: memory(ups*largeBytes, bytes-ups*largeBytes),
		Handler: (*pathHandler)(s), Stats: &p.stats, Log: s.log})})
	return nil
}

// usePath begins to use a link whose slots have been laid out.
func (s *Session) usePath(l pathLink) {
	s.path.l = l
	s.path.there.Store(true)
	s.bulk.out.Prefer(l)
}

// awaitOpen waits until a link that has just been made is in use.
func (p *path) awaitOpen() {
	if !p.there.Load() {
		<-p.opened
	}
}

// layPath divides the memory into slots and says how many are for uploads.
func (s *Session) layPath() (ups int) {
	p := &s.path
	ups = s.rdmaSlots - s.rdmaSlots/uploadShare
	for i := range s.rdmaSlots {
		sl := &slot{path: true, index: uint32(i)}
		if p.gpu != nil {
			sl.gpu = cuda.CUdeviceptr(p.gpu.Addr) + cuda.CUdeviceptr(i*largeBytes)
		} else {
			sl.mem = p.mem[i*largeBytes : (i+1)*largeBytes : (i+1)*largeBytes]
		}
		if i < ups {
			p.slots = append(p.slots, sl)
		} else {
			sl.free.Store(true)
			p.down = append(p.down, sl)
		}
	}
	return ups
}

// link is the session's link, or nil.
func (p *path) link() pathLink {
	if p.there.Load() {
		return p.l
	}
	return nil
}

// close ends the link; the device writes to no slot any more.
func (p *path) close() {
	p.openMu.Lock()
	p.ended = true
	opened := p.opened
	p.openMu.Unlock()
	if opened != nil {
		<-opened
	}
	if l := p.link(); l != nil {
		l.Close()
	}
}

// lock page-locks the memory for the driver. It lasts as long as the context; without it copies are only slower.
func (s *Session) lockPath(ctx *context) {
	p := &s.path
	if p.gpu != nil || p.owner != nil && s.contexts[p.owner.handle] == p.owner {
		return
	}
	p.owner = ctx
	r := s.within(ctx, func() cuda.CUresult {
		return s.gpu.CuMemHostRegister_v2(pointerTo(p.mem), uint64(len(p.mem)), hostPortable)
	})
	if r != cuda.CUDA_SUCCESS {
		s.log.Warn("the driver does not page-lock the memory of RDMA; copies are slower", "bytes", len(p.mem), "result",
			resultText(r))
	}
}

// occupyPath follows an upload slot from which the GPU copies, or whose copy was not enqueued (r).
func (s *Session) occupyPath(sl *slot, st *stream, r cuda.CUresult) cuda.CUresult {
	p := &s.path
	if r == cuda.CUDA_SUCCESS {
		if sl.event, r = s.recordEvent(st); r == cuda.CUDA_SUCCESS {
			sl.st = st
			if len(p.busy) == 0 {
				p.last = time.Now()
			}
			p.busy = append(p.busy, sl)
			return r
		}
	}
	p.link().Release(sl.index)
	return r
}

// pollPath gives slots back that the GPU has read.
func (s *Session) pollPath() bool {
	p := &s.path
	if p.there.Load() && p.gpu != nil {
		s.fetchStranded()
	}
	if len(p.busy) == 0 {
		return false
	}
	p.freed = p.freed[:0]
	kept := p.busy[:0]
	var behind *stream // what comes later on it is not complete either
	for _, sl := range p.busy {
		if sl.st == behind || s.gpu.CuEventQuery(sl.event) == cuda.CUDA_ERROR_NOT_READY {
			behind = sl.st
			kept = append(kept, sl)
			continue
		}
		sl.st.ctx.events = append(sl.st.ctx.events, sl.event)
		sl.event, sl.st = 0, nil
		p.freed = append(p.freed, sl.index)
	}
	clear(p.busy[len(kept):])
	p.busy = kept
	if len(p.freed) == 0 {
		return false
	}
	p.last = time.Now()
	p.link().Release(p.freed...)
	return true
}

// fetchStranded sends chunks in the GPU's memory by fallbacks that a lost path has given back.
func (s *Session) fetchStranded() {
	for _, p := range s.bulk.out.Stranded() {
		s.fetch(p.Chunk(), cuda.CUdeviceptr(p.Addr()))
		s.bulk.out.Rescued(p)
	}
}

// fetch sends a chunk of the GPU's memory by a fallback, by way of memory of its own: there are no more of them than a
// path had under way.
func (s *Session) fetch(c bulk.Chunk, from cuda.CUdeviceptr) {
	mem := make([]byte, c.Bytes)
	s.enterAny()
	if r := s.copyAside(func(st cuda.CUstream) cuda.CUresult {
		return s.gpu.CuMemcpyDtoHAsync_v2(pointerTo(mem), from, uint64(len(mem)), st)
	}); r != cuda.CUDA_SUCCESS {
		s.bulkFailed(fmt.Errorf("a chunk cannot be taken out of the GPU's memory: %s", resultText(r)))
	}
	s.bulk.out.Post(&bulk.Transfer{Seq: c.Seq, ID: c.ID, Offset: c.Offset, Bytes: len(mem), Data: mem})
}

// crowded says whether the GPU leaves too few slots for what comes: most wait for it, and it has not read one for a while. Where it reads one after the other, the
// next is waited for.
func (s *Session) crowded() bool {
	p := &s.path
	for len(p.busy) > len(p.slots)-len(p.slots)/scarce {
		if s.pollPath() {
			continue
		}
		if time.Since(p.last) > unread {
			return true
		}
		yield()
	}
	return false
}

// pathLanded sends a chunk to the device that came by RDMA.
func (s *Session) pathLanded(b *incoming, l landing) {
	r := b.result
	if r == cuda.CUDA_SUCCESS && b.st == nil {
		r = cuda.CUDA_ERROR_INVALID_VALUE // nobody wants it
	}
	if r == cuda.CUDA_SUCCESS {
		r = s.enter(b.cmd.Context)
	}
	if r == cuda.CUDA_SUCCESS && l.slot.gpu != 0 && s.path.gpu.flush { // before anything reads what the card wrote
		r = s.gpu.CuFlushGPUDirectRDMAWrites(cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
			cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
	}
	if r == cuda.CUDA_SUCCESS && s.crowded() {
		if moved := s.moveOut(b, &l); moved != nil {
			s.path.link().Release(l.slot.index)
			s.chunkLanded(b, *moved, nil)
			return
		}
	}
	if dst := b.dst + cuda.CUdeviceptr(l.off); r == cuda.CUDA_SUCCESS && l.slot.gpu != 0 {
		r = s.gpu.CuMemcpyDtoDAsync_v2(dst, l.slot.gpu, uint64(l.n), b.st.real)
	} else if r == cuda.CUDA_SUCCESS {
		s.lockPath(b.ctx)
		r = s.gpu.CuMemcpyHtoDAsync_v2(dst, pointerTo(l.slot.mem), uint64(l.n), b.st.real)
	}
	if r = s.occupyPath(l.slot, b.st, r); b.result == cuda.CUDA_SUCCESS && b.st != nil {
		b.result = r
	}
}

// moveOut copies a chunk into an ordinary staging slot, so that its own can be granted again while the stream is busy
// with something else. It gives nil where there is none.
func (s *Session) moveOut(b *incoming, l *landing) *landing {
	sl, r, err := s.takeSlot(b.ctx, &b.ctx.large)
	if err != nil || r != cuda.CUDA_SUCCESS || sl == nil {
		return nil
	}
	if l.slot.gpu == 0 {
		copy(sl.mem, l.slot.mem[:l.n])
	} else if r := s.copyAside(func(st cuda.CUstream) cuda.CUresult {
		return s.gpu.CuMemcpyDtoHAsync_v2(pointerTo(sl.mem), l.slot.gpu, uint64(l.n), st)
	}); r != cuda.CUDA_SUCCESS {
		sl.free.Store(true)
		return nil
	}
	return &landing{slot: sl, off: l.off, n: l.n}
}

// abandonPath gives back the slots of a context that ends; its work is over and its events are gone.
func (s *Session) abandonPath(ctx *context) {
	p := &s.path
	kept := p.busy[:0]
	for _, sl := range p.busy {
		if sl.st.ctx != ctx {
			kept = append(kept, sl)
			continue
		}
		sl.event, sl.st = 0, nil
		p.link().Release(sl.index)
	}
	clear(p.busy[len(kept):])
	p.busy = kept
}

// takeDown gives a free download slot, or nil.
func (p *path) takeDown() *slot {
	for _, sl := range p.down {
		if sl.free.Load() {
			sl.free.Store(false)
			p.last = time.Now()
			return sl
		}
	}
	return nil
}

// downloadSlot gives a slot from which a chunk of a download can leave by RDMA. It waits for the link, which is done
// with its chunks or gives them up soon, and for the GPU where that is at this download already, or takes in one
// uploaded chunk after the other before it. Where all slots wait for other work, it gives nil, as the commands behind
// must not wait as well.
func (s *Session) downloadSlot(st *stream, t *transfer) (*slot, error) {
	p := &s.path
	for began := time.Now(); ; {
		if p.gpu != nil && s.bulk.out.State() != bulk.Up { // a chunk there would have to be fetched
			return nil, nil
		}
		if sl := p.takeDown(); sl != nil {
			s.lockPath(st.ctx)
			return sl, nil
		}
		switch {
		case s.bulk.out.State() != bulk.Up:
			return nil, nil
		case s.bulk.out.Pieces() > 0, t.posted > 0 && st.holdsPathSlot(t):
			p.last = time.Now()
		case time.Since(p.last) > stalled:
			return nil, nil
		}
		if err := s.napAfter(time.Since(began)); err != nil {
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
func (s *Session) moveIn(c *chunk) {
	p := &s.path
	if c.slot.path || !c.t.link || c.t.refused.Load() || s.bulk.out.State() != bulk.Up {
		return
	}
	sl := p.takeDown()
	if sl == nil {
		return
	}
	if sl.gpu == 0 {
		copy(sl.mem, c.slot.mem[:c.bytes])
	} else if r := s.copyAside(func(st cuda.CUstream) cuda.CUresult {
		return s.gpu.CuMemcpyHtoDAsync_v2(sl.gpu, pointerTo(c.slot.mem), uint64(c.bytes), st)
	}); r != cuda.CUDA_SUCCESS {
		sl.free.Store(true)
		return
	}
	s.late.mu.Lock()
	defer s.late.mu.Unlock()
	if c.t.late && !slices.Contains(c.t.unsent, c) { // it was sent meanwhile
		sl.free.Store(true)
		return
	}
	c.slot.free.Store(true)
	c.slot = sl
}

// copyAside enqueues a copy on a stream that waits for no other, in the present context, and waits for its end.
func (s *Session) copyAside(enqueue func(cuda.CUstream) cuda.CUresult) cuda.CUresult {
	if s.entered == nil {
		return cuda.CUDA_ERROR_INVALID_CONTEXT
	}
	st, r := s.helperOf(s.entered)
	if r == cuda.CUDA_SUCCESS {
		r = enqueue(st)
	}
	if r == cuda.CUDA_SUCCESS {
		r = s.gpu.CuStreamSynchronize(st)
	}
	return r
}
