package session

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/rdma"
)

const (
	stripeLeast    = 2 << 20 // smaller copies stay on the main connection
	chunkLeast     = 256 << 10
	uploadPatience = 10 * time.Millisecond
)

// States of the bulk connections.
const (
	bulkUnopened int32 = iota
	bulkOpening
	bulkReady
	bulkGone // never there, or broken: copies use the main connection
)

// stripes are the bulk connections: a big copy's bytes travel over all of them at once. They are opened, in the background, when the program
// makes its first big copy. On every connection the chunks of an upload go behind those of the upload before, which the server relies on.
type stripes struct {
	state atomic.Int32
	mu    sync.Mutex
	work  transport.Bell // rung where there is something to send
	queue []*upload
	conns []*bulkConn
	err   error

	chunks atomic.Uint32 // that have landed

	// Where there is RDMA, uploads go over its link while that has a path.
	link     atomic.Pointer[rdma.Link[piece]]
	returned []piece // in the order of their commands: what has to go over the connections
	flying   int     // bytes that the link has
	flyers   map[*upload]struct{}
}

type bulkConn struct {
	line *transport.Line
	busy mutex // held while bytes come into the program's memory
	over bool  // none may come any more
}

// upload is a copy to the device whose bytes are being sent.
type upload struct {
	seq   uint64
	data  []byte
	chunk int
	next  int    // what has been claimed
	left  int    // bytes whose sending is not over
	over  uint32 // futex

	flying     int // bytes that the link has
	from       rdma.Region
	registered bool
}

// Bulk connections are wanted when a copy has this size.
func (s *Session) wantStripes(bytes int) {
	if bytes >= stripeLeast && s.bulk.state.Load() == bulkUnopened && s.bulk.state.CompareAndSwap(bulkUnopened, bulkOpening) {
		s.start(func() { _ = s.openStripes() })
	}
}

// openStripes opens the bulk connections, and then the RDMA link. Without them everything works as well.
func (s *Session) openStripes() error {
	if err := s.openConns(); err != nil {
		return err
	}
	err := s.openLink()
	if err != nil {
		s.log.Debug("no RDMA", "error", err)
	}
	return err
}

func (s *Session) openConns() error {
	b := &s.bulk
	n := min(s.cfg.Bulk, s.welcome.Bulk, transport.MaxBulkConns)
	hello := s.cfg.Hello
	hello.Kind, hello.Session, hello.Secret, hello.Count = transport.KindBulk, s.welcome.Session, s.welcome.Secret, n
	var conns []*bulkConn
	for range n {
		var line *transport.Line
		c, _, err := transport.DialNet(s.ctx, s.cfg.Server, s.cfg.Token, &hello)
		if err == nil {
			line, err = transport.NewLine(c)
		}
		if err != nil {
			s.log.Warn("no bulk connections; big copies go over the main connection", "error", err)
			for _, b := range conns {
				_ = b.line.Close()
			}
			b.state.Store(bulkGone)
			return err
		}
		conns = append(conns, &bulkConn{line: line})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n == 0 || b.err != nil {
		for _, b := range conns {
			_ = b.line.Close()
		}
		b.state.Store(bulkGone)
		return errors.Join(errors.New("there are no bulk connections"), b.err)
	}
	b.conns = conns
	for _, c := range conns {
		s.opened(c.line.FD())
		s.start(func() { s.stripeEnded(s.sendChunks(c)) })
		s.start(func() { s.stripeEnded(s.receiveChunks(c)) })
	}
	b.state.Store(bulkReady)
	return nil
}

// stripeEnded ends the use of the bulk connections, and the session if bytes may have been lost with them.
func (s *Session) stripeEnded(err error) {
	if s.bulk.shut(err) {
		s.fail(fmt.Errorf("a bulk connection broke during a copy: %w", err))
		return
	}
	s.mu.Lock()
	s.landed.Broadcast()
	s.mu.Unlock()
}

// shut ends the connections. Nobody sends from the program's memory once it and those who hold a connection's busy lock are through.
func (b *stripes) shut(err error) (lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return false
	}
	b.err = err
	b.state.Store(bulkGone)
	for _, c := range b.conns {
		c.line.Shutdown() // the descriptor stays: its number is on the list of those that a forked child closes
	}
	lost = len(b.queue) > 0 || len(b.returned) > 0 || b.flying > 0
	for _, p := range b.returned {
		b.sent(p.u, p.n)
	}
	b.returned = nil
	for _, u := range b.queue {
		b.sent(u, len(u.data)-u.next)
		u.next = len(u.data)
	}
	b.queue = nil
	b.work.Ring()
	return lost
}

func (b *stripes) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.line.Close()
	}
}

// sent notes that the sending of n bytes is over. mu is held.
func (b *stripes) sent(u *upload, n int) {
	if u.left -= n; u.left == 0 {
		u.from.Release()
		atomic.StoreUint32(&u.over, 1)
		futexWake(&u.over)
	}
}

// add queues an upload; nil when it has to go over the main connection. The send lock is held, so uploads are queued in the commands' order.
func (b *stripes) add(seq uint64, data []byte) *upload {
	if b.state.Load() != bulkReady {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil
	}
	chunk := len(data) / (2 * len(b.conns)) &^ (4<<10 - 1)
	u := &upload{seq: seq, data: data, chunk: min(max(chunk, chunkLeast), transport.MaxChunk), left: len(data)}
	b.queue = append(b.queue, u)
	b.work.Ring()
	return u
}

// awaitUpload returns when the upload's memory may be reused.
func (s *Session) awaitUpload(u *upload) {
	if runtime.NumCPU() >= manyCPUs {
		for began, i := time.Now(), 0; atomic.LoadUint32(&u.over) == 0 && time.Since(began) < spinCopy; i++ {
			nap(i)
		}
	}
	for atomic.LoadUint32(&u.over) == 0 {
		futexWait(&u.over, 0, uploadPatience)
		s.Look() // the server may be unable to go on before it has got rid of an answer
	}
}

// await returns once something is so, or the connections have ended. mu is held.
func (b *stripes) await(so func() bool) {
	for {
		seen := b.work.Now()
		if b.err != nil || so() {
			return
		}
		b.mu.Unlock()
		b.work.Await(seen)
		b.mu.Lock()
	}
}

// sendChunks sends chunks as they come on a connection, until that ends.
func (s *Session) sendChunks(c *bulkConn) error {
	b := &s.bulk
	for {
		b.mu.Lock()
		b.await(b.claimable)
		if b.err != nil {
			b.mu.Unlock()
			return b.err
		}
		p := b.claim()
		b.mu.Unlock()
		u, off, n := p.u, p.off, p.n
		err := c.line.Send(transport.MessageHeader{Type: transport.MsgChunk, Seq: u.seq, Aux: uint64(off)}, u.data[off:off+n])
		s.sent.Add(uint64(n))
		b.mu.Lock()
		b.sent(u, n)
		b.mu.Unlock()
		if err != nil {
			s.fail(fmt.Errorf("a bulk connection broke during an upload: %w", err))
			return err
		}
	}
}

// receiveChunks stores the chunks of downloads.
func (s *Session) receiveChunks(c *bulkConn) error {
	head := make([]byte, transport.MessageHeaderSize)
	var pad [8]byte
	for {
		if err := c.line.ReadFull(head); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = io.EOF
			}
			return err
		}
		h, _, err := transport.ParseMessage(head)
		if err == nil && (h.Type != transport.MsgChunk || h.Len > transport.MaxChunk) {
			err = protocol("%v of %d bytes on a bulk connection", h.Type, h.Len)
		}
		if err == nil {
			err = s.receiveChunk(c, &h)
		}
		if err == nil {
			err = c.line.ReadFull(pad[:transport.Pad(h.Len)-h.Len])
		}
		if err != nil {
			s.fail(err)
			return err
		}
		s.received.Add(uint64(h.Len))
		s.mu.Lock()
		s.mu.striped[h.ID] += uint64(h.Len)
		s.landed.Broadcast()
		s.mu.Unlock()
		s.bulk.chunks.Add(1)
	}
}

func (s *Session) receiveChunk(c *bulkConn, h *transport.MessageHeader) error {
	dst, ok := s.destination(h.ID)
	if !ok || h.Aux > uint64(len(dst)) || uint64(h.Len) > uint64(len(dst))-h.Aux {
		return protocol("a chunk of %d bytes at %d of transfer %d, which has %d", h.Len, h.Aux, h.ID, len(dst))
	}
	s.news()
	c.busy.Lock()
	defer c.busy.Unlock()
	if c.over || s.lost() != 0 {
		return errEnded
	}
	return c.line.ReadFull(dst[h.Aux : h.Aux+uint64(h.Len)])
}

// awaitChunks waits until n bytes of a download that ends have come over the bulk connections. Until then nothing behind its end is read.
func (s *Session) awaitChunks(id uint32, n uint64) error {
	s.watchChunks(id, n)
	s.mu.Lock()
	for s.lost() == 0 && s.mu.striped[id] < n && s.bulk.state.Load() != bulkGone {
		s.landed.Wait()
	}
	short := s.mu.striped[id] < n
	delete(s.mu.striped, id)
	s.mu.Unlock()
	s.endWindow(id)
	switch {
	case s.lost() != 0:
		return errEnded
	case short:
		return errors.New("a bulk connection broke during a download")
	}
	return nil
}

// watchChunks looks for a while whether n bytes have come, where there are processors for it: to be woken takes longer than what is missing by now.
func (s *Session) watchChunks(id uint32, n uint64) {
	if runtime.NumCPU() < manyCPUs {
		return
	}
	began := time.Now()
	for s.lost() == 0 && s.bulk.state.Load() != bulkGone && time.Since(began) < spinCopy {
		seen := s.bulk.chunks.Load()
		s.mu.Lock()
		all := s.mu.striped[id] >= n
		s.mu.Unlock()
		if all {
			return
		}
		for i := 0; s.bulk.chunks.Load() == seen && time.Since(began) < spinCopy; i++ {
			nap(i)
		}
	}
}

// quiesce waits until no connection writes to the program's memory any more; the connections have been shut.
func (b *stripes) quiesce() {
	b.mu.Lock()
	conns := b.conns
	b.mu.Unlock()
	for _, c := range conns {
		c.busy.Lock()
		c.over = true
		c.busy.Unlock()
	}
}
