package session

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/rdma"
)

const uploadPatience = 10 * time.Millisecond

// States of the bulk connections.
const (
	bulkUnopened int32 = iota
	bulkOpening
	bulkReady
	bulkGone // never there, or broken: copies use the main connection
)

// transfers are the session's bulk transfers: a big copy's bytes go over several connections at once, or by RDMA. The
// connections are opened, in the background, when the program makes its first big copy.
//
// Locks: mu guards conns and ended, and is held while connections or the link begin or end. A connection's busy is held
// while bytes come into the program's memory. out and arrivals have locks of their own, which are taken under these.
type transfers struct {
	state    atomic.Int32
	out      bulk.Outbound  // uploads
	arrivals *bulk.Arrivals // of downloads

	mu    sync.Mutex
	conns []*bulkConn
	ended bool // no connection is taken any more

	link atomic.Pointer[rdma.Link[bulk.Piece]]
	pins rdma.Pins

	most       int // connections that may be opened
	threads    func(n int) bool
	path       pathConfig // RDMA's
	dialer     *dialer
	shared     shared
	log        *slog.Logger
	registered *registrations // have the memory of downloads
	traffic    *traffic
	heart      *heart
	owner      owner
}

// bulkConn is a bulk connection, and what arrives on it.
type bulkConn struct {
	t    *transfers
	tcp  bulk.TCP
	busy mutex // held while bytes come into the program's memory
	over bool  // none may come any more
	dst  []byte
}

var (
	_ bulk.Receiver = (*bulkConn)(nil)
	_ bulk.Buffer   = (*bulkConn)(nil)
)

// upload is a copy to the device whose bytes are being sent.
type upload struct {
	bulk.Transfer
	over uint32 // futex
}

// Sent says that the program's memory is its own again.
func (u *upload) Sent() {
	atomic.StoreUint32(&u.over, 1)
	futexWake(&u.over)
}

// want opens the bulk connections for a copy of this size.
func (b *transfers) want(bytes int) {
	if bytes >= bulk.MinTransfer && b.state.Load() == bulkUnopened &&
		b.state.CompareAndSwap(bulkUnopened, bulkOpening) {
		b.owner.start(func() { _ = b.open() })
	}
}

// open opens the bulk connections, and then the RDMA link. Without them everything works as well.
func (b *transfers) open() error {
	if err := b.openConns(); err != nil {
		return err
	}
	err := b.openLink()
	if err != nil {
		b.log.Debug("no RDMA", "error", err)
	}
	return err
}

// openConns opens the connections.
func (b *transfers) openConns() error {
	n := min(b.most, b.dialer.welcome.Bulk, transport.MaxBulkConns)
	hello := b.dialer.hello(transport.KindBulk)
	if b.threads != nil && !b.threads(2*n) {
		n = 0
		b.log.Warn("no bulk connections, as no threads can be started; big copies go over the main connection")
	}
	hello.Count = n
	lines, err := b.dialer.lines(hello)
	none := func() {
		for _, line := range lines {
			line.Shutdown() // the server does not wait for it to come back
			_ = line.Close()
		}
		b.state.Store(bulkGone)
		b.arrivals.End()
	}
	if err != nil {
		b.log.Warn("no bulk connections; big copies go over the main connection", "error", err)
		none()
		return err
	}
	var conns []*bulkConn
	for _, line := range lines {
		sent := func(n, _ int) { b.traffic.sent.Add(uint64(n)) }
		conns = append(conns, &bulkConn{t: b, tcp: bulk.TCP{Line: line, Sent: sent, Awaited: true}})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n == 0 || b.ended {
		none()
		return errors.Join(errors.New("there are no bulk connections"), b.out.Err())
	}
	b.conns = conns
	for _, c := range conns {
		b.dialer.opened(c.tcp.Line.FD())
		b.out.Fallback()
	}
	for _, c := range conns {
		b.owner.start(func() { b.lineEnded(b.out.Feed(&c.tcp)) })
		b.owner.start(func() { b.lineEnded(b.receive(c)) })
	}
	b.state.Store(bulkReady)
	return nil
}

// lineEnded ends the use of the bulk connections, and the session if bytes may have been lost with them.
func (b *transfers) lineEnded(err error) {
	if b.shut(err) {
		b.owner.fail(fmt.Errorf("a bulk connection broke during a copy: %w", err))
	}
}

// shut ends the connections. Nobody sends from the program's memory once it and those who hold a connection's busy
// lock are through.
func (b *transfers) shut(err error) (lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	lost = b.out.Fail(err)
	b.state.Store(bulkGone)
	for _, c := range b.conns {
		c.tcp.Line.Shutdown() // the descriptor stays: its number is on the list of those that a forked child closes
	}
	b.arrivals.End()
	return lost
}

func (b *transfers) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.tcp.Line.Close()
	}
}

// add queues an upload; nil when it has to go over the main connection. The send lock is held, so uploads are queued
// in the commands' order.
func (b *transfers) add(seq uint64, data []byte) *upload {
	if b.state.Load() != bulkReady {
		return nil
	}
	u := &upload{Transfer: bulk.Transfer{Seq: seq, Data: data}}
	u.Owner = u
	if !b.out.Add(&u.Transfer) {
		return nil
	}
	return u
}

// receive stores the chunks of downloads. A connection that ends within one ends the session.
func (b *transfers) receive(c *bulkConn) error {
	err := c.tcp.Receive(c)
	if errors.As(err, new(*bulk.BrokenError)) {
		if errors.Is(err, bulk.ErrProtocol) {
			err = protocol("%v", err)
		}
		b.owner.fail(err)
	}
	return err
}

// Room is the memory of a download, which is written to until the chunk has arrived or is abandoned.
func (c *bulkConn) Room(k bulk.Chunk) (bulk.Buffer, error) {
	b := c.t
	dst, ok := b.registered.destination(k.ID)
	at := k.In(dst)
	if !ok || at == nil {
		return nil, protocol("a chunk of %d bytes at %d of transfer %d, which has %d", k.Bytes, k.Offset, k.ID, len(dst))
	}
	b.shared.news()
	c.busy.Lock()
	if c.over || b.shared.lost() != 0 {
		c.busy.Unlock()
		return nil, errEnded
	}
	c.dst = at
	return c, nil
}

// Bytes is that memory.
func (c *bulkConn) Bytes() []byte { return c.dst }

// Arrived ends the writing.
func (c *bulkConn) Arrived(k bulk.Chunk, b bulk.Buffer) {
	c.Abandoned(b)
	c.t.traffic.received.Add(uint64(k.Bytes))
	c.t.arrived(k)
}

// arrived notes a chunk that lies in a download's memory.
func (b *transfers) arrived(k bulk.Chunk) {
	if err := b.arrivals.Add(k); err != nil {
		// Not from here: the end of the session waits for those who receive.
		go b.owner.fail(protocol("%v", err))
	}
}

// Abandoned ends the writing as well.
func (c *bulkConn) Abandoned(bulk.Buffer) {
	c.dst = nil
	c.busy.Unlock()
}

// awaitChunks waits until n bytes of a download that ends have come as chunks. Until then nothing behind its end is
// read.
func (b *transfers) awaitChunks(id uint32, n uint64) error {
	b.heart.chunks.Store(true)
	defer b.heart.chunks.Store(false)
	b.watchChunks(id, n)
	all := b.arrivals.Await(id, n)
	b.endWindow(id)
	switch {
	case b.shared.lost() != 0:
		return errEnded
	case !all:
		return errors.New("a bulk connection broke during a download")
	}
	return nil
}

// watchChunks looks for a while whether n bytes have come, where there are processors for it: to be woken takes longer
// than what is missing by now.
func (b *transfers) watchChunks(id uint32, n uint64) {
	if transport.FewCPUs() {
		return
	}
	a := b.arrivals
	for began := time.Now(); time.Since(began) < spinCopy; {
		seen := a.Chunks()
		if a.Have(id, n) {
			return
		}
		for i := 0; a.Chunks() == seen && time.Since(began) < spinCopy; i++ {
			nap(i)
		}
	}
}

// quiesce waits until no connection writes to the program's memory any more; the connections have been shut.
func (b *transfers) quiesce() {
	b.mu.Lock()
	conns := b.conns
	b.mu.Unlock()
	for _, c := range conns {
		c.busy.Lock()
		c.over = true
		c.busy.Unlock()
	}
}
