package executor

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
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
	*base
	loop    copiesLoop
	bulk    *transfers
	staging *staging
	count   int    // slots
	device  string // see [rdma.Choose]
	wish    GPUDirect

	openMu sync.Mutex
	opened chan struct{} // closed when what the client's control connection began is over; nil: there is none
	ended  bool          // none is taken any more

	control atomic.Pointer[transport.Line] // if it may get other sockets

	there  atomic.Bool // link, slots and memory are there
	l      pathLink
	slots  []*slot // uploads arrive in them
	down   []*slot // downloads leave from them
	mem    []byte
	direct *directSlots // the slots lie in the GPU's memory, and mem is nil
	busy   []*slot      // upload slots from which the GPU copies; without an event: which nobody needs
	// a download slot was last taken, or with the link, or the GPU had read all upload slots or one more
	last  time.Time
	owner *context // in which the driver has page-locked the memory
	freed []uint32
	stats rdma.Stats
	lost  atomic.Uint64 // of stats, as the server's metrics have it
}

// attach takes the control connection of the session's RDMA. It does not wait: what follows makes calls of the driver,
// which may hold their caller for as long as the GPU works, and the caller has connections to attach for which that
// work may wait. The goroutine owns the connection until the link does, and the session's end waits for it.
func (p *path) attach(line *transport.Line) error {
	if p.count < leastRDMASlots || !p.begin() {
		line.Shutdown() // the client need not come back to it
		line.Close()
		return errors.New("an RDMA connection that the session does not expect")
	}
	go func() {
		defer close(p.opened)
		if err := p.open(line); err != nil {
			line.Shutdown()
			line.Close()
			p.log.Error("there is no RDMA", "error", err)
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

// open chooses where the slots lie, makes them and begins to use the connection.
func (p *path) open(line *transport.Line) error {
	bytes := p.count * largeBytes
	direct, why := p.chooseDirect(rdma.AddressOf(line.LocalAddr()), rdma.AddressOf(line.RemoteAddr()), bytes)
	if err := p.bulk.out.Err(); err != nil {
		return err
	}
	p.direct = direct
	memory := func(from, n int) rdma.Memory { return direct.memory(from, n) }
	if direct == nil {
		p.log.Debug("RDMA goes through page-locked memory", "why", why)
		mem, err := mapMemory(bytes)
		if err != nil {
			return fmt.Errorf("%d MiB for its slots: %w", p.count, err)
		}
		p.mem = mem
		memory = func(from, n int) rdma.Memory { return rdma.Mapped(mem[from : from+n]) }
	}
	ups := p.lay()
	if line.Keeps() { // else it ends with its socket, and nobody but the link minds
		p.control.Store(line)
	}
	p.use(rdma.Windows{Link: rdma.New(rdma.Config[bulk.Piece]{Control: line, Device: p.device, Depth: ups,
		Slots: memory(0, ups*largeBytes), SlotBytes: largeBytes, Source: memory(ups*largeBytes, bytes-ups*largeBytes),
		Handler: (*pathHandler)(p), Stats: &p.stats, Log: p.log})})
	return nil
}

// use begins to use a link whose slots have been laid out.
func (p *path) use(l pathLink) {
	p.l = l
	p.there.Store(true)
	p.bulk.out.Prefer(l)
}

// awaitOpen waits until a link that has just been made is in use.
func (p *path) awaitOpen() {
	if !p.there.Load() {
		<-p.opened
	}
}

// lay divides the memory into slots and says how many are for uploads.
func (p *path) lay() (ups int) {
	ups = p.count - p.count/uploadShare
	for i := range p.count {
		sl := &slot{path: true, index: uint32(i)}
		if p.direct != nil {
			sl.gpu = cuda.CUdeviceptr(p.direct.Addr) + cuda.CUdeviceptr(i*largeBytes)
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
	p.control.Store(nil)
	if l := p.link(); l != nil {
		l.Close()
	}
}

// lock page-locks the memory for the driver. It lasts as long as the context; without it copies are only slower.
func (p *path) lock(ctx *context) {
	if p.mem == nil || p.owner != nil && p.contexts[p.owner.handle] == p.owner {
		return
	}
	p.owner = ctx
	r := p.within(ctx, func() cuda.CUresult {
		return p.gpu.CuMemHostRegister_v2(pointerTo(p.mem), uint64(len(p.mem)), hostPortable)
	})
	if r != cuda.CUDA_SUCCESS {
		p.log.Warn("the driver does not page-lock the memory of RDMA; copies are slower", "bytes", len(p.mem), "result",
			resultText(r))
	}
}

// drop has the next look give an upload slot back whose chunk nobody wants.
func (p *path) drop(sl *slot) { p.busy = append(p.busy, sl) }

// admit takes the upload slot of a chunk that goes to st, and gives the slot out of which the GPU is to copy: an
// ordinary one, which has the chunk's bytes now, where the GPU leaves too few of these. The event of the copy is the
// caller's to record in it. A slot of the path's without an event is given back.
func (p *path) admit(sl *slot, n uint64, st *stream) *slot {
	from := sl
	if p.crowded() {
		if other := p.moveOut(st.ctx, sl, n); other != nil {
			from = other
		}
	}
	if len(p.busy) == 0 {
		p.last = time.Now()
	}
	sl.st = st
	p.busy = append(p.busy, sl)
	return from
}

// poll gives slots back that the GPU has read.
func (p *path) poll() bool {
	if p.there.Load() && p.direct != nil {
		p.fetchStranded()
	}
	if len(p.busy) == 0 {
		return false
	}
	p.freed = p.freed[:0]
	kept := p.busy[:0]
	read := false
	var behind *stream // what comes later on it is not complete either
	for _, sl := range p.busy {
		if sl.event != 0 {
			if sl.st == behind || p.gpu.CuEventQuery(sl.event) == cuda.CUDA_ERROR_NOT_READY {
				behind = sl.st
				kept = append(kept, sl)
				continue
			}
			sl.st.ctx.events = append(sl.st.ctx.events, sl.event)
			read = true
		}
		sl.event, sl.st = 0, nil
		p.freed = append(p.freed, sl.index)
	}
	clear(p.busy[len(kept):])
	p.busy = kept
	if len(p.freed) == 0 {
		return false
	}
	if read {
		p.last = time.Now()
	}
	p.link().Release(p.freed...)
	return true
}

// fetchStranded sends chunks in the GPU's memory by fallbacks that a lost path has given back.
func (p *path) fetchStranded() {
	for _, piece := range p.bulk.out.Stranded() {
		p.fetch(piece.Chunk(), cuda.CUdeviceptr(piece.Addr()))
		p.bulk.out.Rescued(piece)
	}
}

// fetch sends a chunk of the GPU's memory by a fallback, by way of memory of its own: there are no more of them than a
// path had under way.
func (p *path) fetch(c bulk.Chunk, from cuda.CUdeviceptr) {
	mem := make([]byte, c.Bytes)
	p.enterAny()
	if r := p.copyAside(func(st cuda.CUstream) cuda.CUresult {
		return p.gpu.CuMemcpyDtoHAsync_v2(pointerTo(mem), from, uint64(len(mem)), st)
	}); r != cuda.CUDA_SUCCESS {
		p.bulk.failed(fmt.Errorf("a chunk cannot be taken out of the GPU's memory: %s", resultText(r)))
	}
	p.bulk.out.Post(&bulk.Transfer{Seq: c.Seq, ID: c.ID, Offset: c.Offset, Bytes: len(mem), Data: mem})
}

// crowded says whether the GPU leaves too few slots for what comes: most wait for it, and it has not read one for a
// while. Where it reads one after the other, the next is waited for.
func (p *path) crowded() bool {
	for len(p.busy) > len(p.slots)-len(p.slots)/scarce {
		if p.poll() {
			continue
		}
		if time.Since(p.last) > unread {
			return true
		}
		yield()
	}
	return false
}

// moveOut copies a chunk of n bytes into an ordinary staging slot, so that its own can be granted again while the
// stream is busy with something else. It gives nil where there is none.
func (p *path) moveOut(ctx *context, from *slot, n uint64) *slot {
	sl, r, err := p.staging.take(ctx, &ctx.large)
	if err != nil || r != cuda.CUDA_SUCCESS || sl == nil {
		return nil
	}
	if from.gpu == 0 {
		copy(sl.mem, from.mem[:n])
	} else if r := p.copyAside(func(st cuda.CUstream) cuda.CUresult {
		return p.gpu.CuMemcpyDtoHAsync_v2(pointerTo(sl.mem), from.gpu, n, st)
	}); r != cuda.CUDA_SUCCESS {
		sl.free.Store(true)
		return nil
	}
	return sl
}

// abandon gives back the slots of a context that ends; its work is over and its events are gone.
func (p *path) abandon(ctx *context) {
	kept := p.busy[:0]
	for _, sl := range p.busy {
		if sl.event != 0 && sl.st.ctx != ctx {
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
	sl := takeFree(p.down)
	if sl != nil {
		p.last = time.Now()
	}
	return sl
}
