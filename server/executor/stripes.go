package executor

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

const (
	stripeLeast   = 2 << 20                // smaller copies stay on the main connection
	stripeSpin    = 100 * time.Microsecond // without a chunk, before the executor takes a nap: while one is on its way the next is not far
	stripeTimeout = 15 * time.Second
)

var errStripes = errors.New("a bulk connection broke during a copy")

// stripes are a session's bulk connections. A big copy's bytes travel over all of them at once, cut into chunks. Each connection has a goroutine
// that receives, straight into staging slots that the executor has lent, and one that sends.
//
// Uploads: the client sends the chunks of one command after those of the command before on every connection, and the executor carries commands
// out in the same order. So a chunk of a later command waits in its connection until its turn comes, and never holds a slot that the present
// one needs.
type stripes struct {
	metrics *metrics.Page

	mu     sync.Mutex
	news   *sync.Cond     // for the goroutines that receive
	posted transport.Bell // for those that send
	landed *sync.Cond     // for the executor
	conns  []*transport.Line
	ready  atomic.Bool // all are there and work
	err    error       // why no chunk will ever come or go again
	busy   bool        // an upload is being received
	seq    uint64      // its command
	bytes  uint64
	free   []*slot // lent to the receivers
	hungry int     // receivers that have a chunk of this upload and no slot
	got    []landing
	taken  []landing // those that the executor works on
	queue  []outgoing
	out    int // chunks that are being written
	done   sync.WaitGroup
}

type landing struct {
	slot *slot
	seq  uint64 // of the upload's command
	off  uint64
	n    int
}

type outgoing struct {
	h    transport.MessageHeader
	data []byte
	sent *atomic.Bool
	gpu  cuda.CUdeviceptr // where the bytes lie if not in data
}

func newStripes(m *metrics.Page) *stripes {
	t := &stripes{metrics: m}
	t.news, t.landed = sync.NewCond(&t.mu), sync.NewCond(&t.mu)
	return t
}

// AttachBulk gives the session one of its count bulk connections.
func (s *Session) AttachBulk(c net.Conn, count int) error {
	t := s.stripes
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil || count < 1 || count > transport.MaxBulkConns || len(t.conns) >= count {
		c.Close()
		return errors.Join(errors.New("a bulk connection that the session does not expect"), t.err)
	}
	line, err := transport.NewLine(c)
	if err != nil {
		return err
	}
	t.conns = append(t.conns, line)
	t.done.Go(func() { s.stripeFailed(t.receive(line)) })
	t.done.Go(func() { s.stripeFailed(t.send(line)) })
	if len(t.conns) == count {
		t.ready.Store(true)
	}
	t.landed.Broadcast()
	return nil
}

// stripeFailed ends the use of the bulk connections, and the session if something was under way on them.
func (s *Session) stripeFailed(err error) {
	if s.stripes.fail(err) {
		s.sideFailed("go on with a copy", fmt.Errorf("%w: %w", errStripes, err))
	}
}

func (t *stripes) fail(err error) (lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return false
	}
	t.err = err
	t.ready.Store(false)
	for _, c := range t.conns {
		c.Shutdown()
	}
	t.news.Broadcast()
	t.posted.Ring()
	t.landed.Broadcast()
	return t.busy || t.out > 0 || len(t.queue) > 0
}

// close ends the connections, once what is queued has been sent or cannot be.
func (t *stripes) close() {
	t.fail(errSideClosed)
	t.done.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.conns {
		_ = c.Close()
	}
}

func (t *stripes) receive(c *transport.Line) error {
	head := make([]byte, transport.MessageHeaderSize)
	var pad [8]byte
	for {
		if err := c.ReadFull(head); err != nil {
			return err
		}
		h, _, err := transport.ParseMessage(head)
		if err != nil {
			return err
		}
		if h.Type != transport.MsgChunk || h.Len == 0 || h.Len > transport.MaxChunk {
			return fmt.Errorf("%w: %v of %d bytes on a bulk connection", ErrProtocol, h.Type, h.Len)
		}
		sl, err := t.slotFor(&h)
		if err != nil {
			return err
		}
		if err = c.ReadFull(sl.mem[:h.Len]); err == nil {
			err = c.ReadFull(pad[:transport.Pad(h.Len)-h.Len])
		}
		t.metrics.Add(metrics.ReceivedTCP, transport.MessageHeaderSize+transport.Pad(int(h.Len)))
		t.mu.Lock()
		if err != nil {
			t.free = append(t.free, sl)
		} else {
			t.got = append(t.got, landing{sl, h.Seq, h.Aux, int(h.Len)})
			t.landed.Signal()
		}
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// slotFor waits for the turn of a chunk's command and for a slot.
func (t *stripes) slotFor(h *transport.MessageHeader) (*slot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil && !(t.busy && t.seq == h.Seq && len(t.free) > 0) {
		if t.busy && t.seq == h.Seq {
			t.hungry++
			t.news.Wait()
			t.hungry--
		} else {
			t.news.Wait()
		}
	}
	if t.err != nil {
		return nil, t.err
	}
	if h.Aux > t.bytes || uint64(h.Len) > t.bytes-h.Aux {
		return nil, fmt.Errorf("%w: a chunk of %d bytes at %d of an upload of %d", ErrProtocol, h.Len, h.Aux, t.bytes)
	}
	sl := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	return sl, nil
}

func (t *stripes) send(c *transport.Line) error {
	for {
		t.mu.Lock()
		for t.err == nil && len(t.queue) == 0 {
			seen := t.posted.Now() // it is rung with mu held
			t.mu.Unlock()
			t.posted.Await(seen)
			t.mu.Lock()
		}
		if t.err != nil {
			t.mu.Unlock()
			return t.err
		}
		o := t.queue[0]
		t.queue = t.queue[1:]
		t.out++
		t.mu.Unlock()
		err := c.Send(o.h, o.data)
		t.metrics.Add(metrics.SentTCP, transport.MessageHeaderSize+transport.Pad(len(o.data)))
		if err != nil {
			return err
		}
		o.sent.Store(true)
		t.mu.Lock()
		t.out--
		t.mu.Unlock()
	}
}

// post queues a chunk of a download.
func (t *stripes) post(h transport.MessageHeader, data []byte, sent *atomic.Bool) {
	h.Type, h.Len = transport.MsgChunk, uint32(len(data))
	t.mu.Lock()
	t.queue = append(t.queue, outgoing{h: h, data: data, sent: sent})
	t.posted.Ring()
	t.mu.Unlock()
}

// stripedUpload receives an upload over the bulk connections and sends its chunks on their way as they land.
func (s *Session) stripedUpload(b *incoming) error {
	t := s.stripes
	t.mu.Lock()
	for deadline := time.Now().Add(stripeTimeout); !t.ready.Load(); {
		if t.err != nil || time.Now().After(deadline) {
			t.mu.Unlock()
			return fmt.Errorf("%w: %w", ErrGone, errors.Join(errStripes, t.err))
		}
		wake := time.AfterFunc(time.Second, t.landed.Broadcast)
		t.landed.Wait()
		wake.Stop()
	}
	t.busy, t.seq, t.bytes = true, b.cmd.Seq, b.left
	depth := 2*len(t.conns) + 2
	t.news.Broadcast() // chunks that came before their command are waited for now
	t.mu.Unlock()
	defer t.endUpload()
	var scratch []*slot
	last := time.Now() // when there was last a chunk
	for lent := 0; b.left > 0; {
		// Slots are lent to the receivers before chunks come; while chunks come by RDMA, only for those that come all the same.
		for lent < depth && (s.path.mode() != bulk.Up || t.isHungry()) { // lent: slots with the receivers, filled or not
			sl, err := s.stripeSlot(b, lent == 0, &scratch)
			if err != nil {
				return err
			}
			if sl == nil {
				break
			}
			t.lend(sl)
			lent++
		}
		got, err := t.take()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		s.pollPath()
		if len(got) == 0 {
			if quiet := time.Since(last); quiet < stripeSpin {
				yield()
			} else if err := s.napAfter(quiet); err != nil {
				return err
			}
			continue
		}
		last = time.Now()
		for _, l := range got {
			if !l.slot.path {
				lent--
			}
			if uint64(l.n) > b.left || l.off > t.bytes || uint64(l.n) > t.bytes-l.off {
				return protocolError("more chunks than an upload of %d bytes has", t.bytes)
			}
			b.left -= uint64(l.n)
			s.chunkLanded(b, l, &scratch)
		}
	}
	return nil
}

// stripeSlot gives a slot for the next chunk, or nil where there is none at the moment and none is needed. What nobody wants goes to scratch memory.
func (s *Session) stripeSlot(b *incoming, needed bool, scratch *[]*slot) (*slot, error) {
	if b.result == cuda.CUDA_SUCCESS {
		if r := s.enter(b.cmd.Context); r != cuda.CUDA_SUCCESS {
			b.result = r
		}
	}
	if b.result == cuda.CUDA_SUCCESS && b.st != nil {
		if !needed && !s.slotAtHand(b.ctx, &b.ctx.large) {
			return nil, nil
		}
		sl, r, err := s.takeSlot(b.ctx, &b.ctx.large)
		if err != nil || r == cuda.CUDA_SUCCESS {
			return sl, err
		}
		b.result = r
	}
	if n := len(*scratch); n > 0 {
		sl := (*scratch)[n-1]
		*scratch = (*scratch)[:n-1]
		return sl, nil
	}
	if !needed {
		return nil, nil
	}
	return &slot{mem: make([]byte, transport.MaxChunk)}, nil
}

// chunkLanded sends a chunk to the device.
func (s *Session) chunkLanded(b *incoming, l landing, scratch *[]*slot) {
	if l.slot.path {
		s.pathLanded(b, l)
		return
	}
	if b.result == cuda.CUDA_SUCCESS {
		r := s.enter(b.cmd.Context)
		if r == cuda.CUDA_SUCCESS {
			r = s.gpu.CuMemcpyHtoDAsync_v2(b.dst+cuda.CUdeviceptr(l.off), pointerTo(l.slot.mem), uint64(l.n), b.st.real)
		}
		if r == cuda.CUDA_SUCCESS {
			if r = s.occupied(l.slot, b.st); r == cuda.CUDA_SUCCESS {
				return
			}
		}
		b.result = r
	}
	if !l.slot.pooled {
		*scratch = append(*scratch, l.slot)
		return
	}
	l.slot.free.Store(true)
}

// yield lets others run for a moment without giving up this OS thread's goroutine, as runtime.Gosched would.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

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
		r = s.gpu.CuFlushGPUDirectRDMAWrites(cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, cuda.CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)
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

// moveOut copies a chunk into an ordinary staging slot, so that its own can be granted again while the stream is busy with something else. It gives nil where
// there is none.
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
	return &landing{slot: sl, seq: l.seq, off: l.off, n: l.n}
}

func (t *stripes) isHungry() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hungry > len(t.free)
}

func (t *stripes) lend(sl *slot) {
	t.mu.Lock()
	t.free = append(t.free, sl)
	t.news.Broadcast()
	t.mu.Unlock()
}

func (t *stripes) take() ([]landing, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = t.taken[:0]
	kept := t.got[:0]
	for _, l := range t.got {
		if l.seq == t.seq {
			t.taken = append(t.taken, l)
		} else {
			kept = append(kept, l) // of a later upload, by RDMA
		}
	}
	t.got = kept
	if len(t.taken) == 0 {
		return nil, t.err
	}
	return t.taken, nil
}

// endUpload takes back what was lent.
func (t *stripes) endUpload() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy = false
	for _, sl := range t.free {
		sl.free.Store(true)
	}
	t.free = t.free[:0]
}
