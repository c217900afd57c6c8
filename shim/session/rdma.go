package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/rdma"
)

// Transport says over what big copies travel.
type Transport string

// Transports. Whatever it is, the rest of a session uses TCP, and big copies do while there is no RDMA.
const (
	TransportAuto Transport = "auto" // RDMA where both machines have it
	TransportRDMA Transport = "rdma" // a session without RDMA is not opened
	TransportTCP  Transport = "tcp"
)

// ParseTransport reads the name of a transport; none means auto.
func ParseTransport(s string) (Transport, error) {
	switch t := Transport(s); t {
	case "":
		return TransportAuto, nil
	case TransportAuto, TransportRDMA, TransportTCP:
		return t, nil
	}
	return "", fmt.Errorf("%q is no transport: SCUDA_TRANSPORT is auto, rdma or tcp", s)
}

// Memory for copies by RDMA of memory that cannot be registered, in bytes.
const (
	DefaultRDMAMemory = 16 << 20
	MaxRDMAMemory     = 256 << 20
)

// ParseRDMAMemory reads such a size; none means the default.
func ParseRDMAMemory(s string) (int, error) {
	if s == "" {
		return DefaultRDMAMemory, nil
	}
	number, _ := strings.CutSuffix(s, "MiB")
	if n, err := strconv.Atoi(number); s == "0" || number != s && err == nil && n >= 0 && n <= MaxRDMAMemory>>20 {
		return n << 20, nil
	}
	return 0, fmt.Errorf("%q is no size for RDMA's buffer: SCUDA_RDMA_MEMORY is 0MiB to %dMiB", s, MaxRDMAMemory>>20)
}

// pathTimeout is how long opening a session waits for RDMA where it is demanded: an attempt or two on a machine that is short of processors.
const pathTimeout = 90 * time.Second

// piece is a part of an upload that was handed to the link, or came back from it.
type piece struct {
	u      *upload
	off, n int
}

// openLink opens the session's link. The bulk connections are there already, since they carry what a path that is lost gives back.
func (s *Session) openLink() error {
	if s.cfg.Transport == TransportTCP {
		return nil
	}
	if !s.welcome.RDMA {
		s.log.Info("RDMA is not used; big copies go over TCP", "reason", "the server: "+s.welcome.NoRDMA)
		return fmt.Errorf("the server has none: %s", s.welcome.NoRDMA)
	}
	hello := s.cfg.Hello
	hello.Kind, hello.Session, hello.Secret = transport.KindRDMA, s.welcome.Session, s.welcome.Secret
	c, _, err := transport.DialNet(s.ctx, s.cfg.Server, s.cfg.Token, &hello)
	if err != nil {
		return fmt.Errorf("its control connection: %w", err)
	}
	if rc, err := c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { s.opened(int(fd)) })
	}
	b := &s.bulk
	b.mu.Lock()
	if b.err != nil {
		b.mu.Unlock()
		c.Close()
		return b.err
	}
	l := rdma.New(rdma.Config[piece]{Control: c, Dial: true, Device: s.cfg.RDMADevice, Pins: &s.pins, Buffer: s.cfg.RDMAMemory, Handler: (*linkHandler)(s), Stats: &s.RDMA, Log: s.log})
	b.link.Store(l)
	b.mu.Unlock()
	s.start(func() { s.feedLink(l) })
	return nil
}

// demandPath opens bulk connections and link and waits for the first path.
func (s *Session) demandPath() error {
	s.bulk.state.Store(bulkOpening)
	err := s.openStripes()
	l := s.bulk.link.Load()
	if err == nil && l != nil {
		ctx, cancel := context.WithTimeout(s.ctx, pathTimeout)
		defer cancel()
		err = l.AwaitFirst(ctx)
	}
	if err != nil {
		return fmt.Errorf("RDMA is demanded (SCUDA_TRANSPORT=rdma) and cannot be had: %w; 'scuda rdma doctor' looks into it, SCUDA_TRANSPORT=auto goes on without", err)
	}
	return nil
}

// Pin says that memory stays mapped until it is said (bytes 0) that it may not any longer; package rdma keeps its registration.
func (s *Session) Pin(addr, bytes uint64) {
	if bytes == 0 {
		s.pins.Remove(addr)
	} else {
		s.pins.Add(addr, bytes)
	}
}

// Path describes the path of big copies; it is empty while they travel by TCP.
func (s *Session) Path() string {
	if l := s.bulk.link.Load(); l != nil {
		return l.Describe()
	}
	return ""
}

// mode says how big copies travel.
func (b *stripes) mode() bulk.State {
	if l := b.link.Load(); l != nil {
		return l.State()
	}
	return bulk.Down
}

// claimable says whether a bulk connection has something to send. What a path gave back goes first, so that on every connection pieces stand in the order of
// their commands; and nothing new goes that way before it is known what the path gives back. mu is held.
func (b *stripes) claimable() bool {
	return len(b.returned) > 0 || len(b.queue) > 0 && b.flying == 0 && b.mode() == bulk.Down
}

// claim takes the next piece for a bulk connection. mu is held.
func (b *stripes) claim() piece {
	if len(b.returned) > 0 {
		p := b.returned[0]
		b.returned = slices.Delete(b.returned, 0, 1)
		return p
	}
	return b.claimNew(b.queue[0].chunk)
}

// claimNew takes the next piece that was never sent. mu is held.
func (b *stripes) claimNew(chunk int) piece {
	u := b.queue[0]
	p := piece{u, u.next, min(chunk, len(u.data)-u.next)}
	if u.next += p.n; u.next == len(u.data) {
		b.queue = b.queue[1:]
	}
	return p
}

// giveBack lets a piece travel by the bulk connections. mu is held.
func (b *stripes) giveBack(p piece) {
	i, _ := slices.BinarySearchFunc(b.returned, p, func(a, p piece) int {
		switch {
		case a.u.seq < p.u.seq || a.u.seq == p.u.seq && a.off < p.off:
			return -1
		case a == p:
			return 0
		}
		return 1
	})
	b.returned = slices.Insert(b.returned, i, p)
	b.work.Ring()
}

// feedLink sends uploads over the link while that has a path.
func (s *Session) feedLink(l *rdma.Link[piece]) {
	b := &s.bulk
	for {
		b.mu.Lock()
		b.await(func() bool { return len(b.queue) > 0 && l.State() == bulk.Up })
		if b.err != nil {
			b.mu.Unlock()
			return
		}
		u := b.queue[0]
		if u.next == 0 || !u.registered {
			from, err := l.Register(u.data)
			if err != nil {
				s.detour(l, u)
				b.mu.Unlock()
				continue
			}
			u.from.Release()
			u.from, u.registered = from, true
		}
		p := b.claimNew(l.ChunkBytes())
		p.u.flying += p.n
		b.flying += p.n
		b.flyers[p.u] = struct{}{}
		from := u.from
		b.mu.Unlock()
		if !l.Send(bulk.Chunk{Seq: p.u.seq, Offset: uint64(p.off), Bytes: uint32(p.n), More: p.off+p.n < len(p.u.data)}, p.u.data[p.off:p.off+p.n], from, p) {
			b.mu.Lock()
			p.u.registered = false
			b.landedPiece(p, false)
			b.mu.Unlock()
		}
	}
}

// detour lets the rest of an upload whose memory cannot be registered travel by the bulk connections, when all that went over the link is through: what it
// might give back has to go first. mu is held.
func (s *Session) detour(l *rdma.Link[piece], u *upload) {
	b := &s.bulk
	b.await(func() bool { return b.flying == 0 })
	if b.err != nil || len(b.queue) == 0 || b.queue[0] != u || l.State() != bulk.Up {
		return
	}
	for len(b.queue) > 0 && b.queue[0] == u {
		b.giveBack(b.claimNew(u.chunk))
	}
}

// landedPiece notes the fate of a piece that was handed to the link. mu is held.
func (b *stripes) landedPiece(p piece, arrived bool) {
	b.flying -= p.n
	if p.u.flying -= p.n; p.u.flying == 0 {
		delete(b.flyers, p.u)
	}
	if arrived {
		b.sent(p.u, p.n)
	} else if b.err != nil {
		b.sent(p.u, p.n)
	} else {
		b.giveBack(p)
	}
	b.work.Ring()
}

// closeLink ends the link; the program's memory is no longer read or written by it.
func (b *stripes) closeLink() {
	l := b.link.Load()
	if l == nil {
		return
	}
	l.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for u := range b.flyers {
		n := u.flying
		u.flying = 0
		b.sent(u, n)
	}
	clear(b.flyers)
}

// endWindow takes back the memory of a download that is over.
func (s *Session) endWindow(id uint32) {
	if l := s.bulk.link.Load(); l != nil {
		l.EndWindow(id)
	}
}

// linkHandler is the session as its link sees it.
type linkHandler Session

func (h *linkHandler) session() *Session { return (*Session)(h) }

// Arrived is never called: a client's slots are the link's.
func (h *linkHandler) Arrived(bulk.Chunk, int) {}

func (h *linkHandler) Placed(c bulk.Chunk) {
	s := h.session()
	s.received.Add(uint64(c.Bytes))
	s.news()
	s.mu.Lock()
	s.mu.striped[c.ID] += uint64(c.Bytes)
	s.landed.Broadcast()
	s.mu.Unlock()
}

func (h *linkHandler) Sent(p piece, arrived bool) {
	b := &h.session().bulk
	b.mu.Lock()
	defer b.mu.Unlock()
	b.landedPiece(p, arrived)
}

func (h *linkHandler) Memory(id uint32, _ uint64) []byte {
	s := h.session()
	if s.lost() != 0 {
		return nil
	}
	dst, _ := s.destination(id)
	return dst
}

func (h *linkHandler) Changed() {
	b := &h.session().bulk
	b.mu.Lock()
	defer b.mu.Unlock()
	b.work.Ring()
}

func (h *linkHandler) Broken(err error, underWay bool) {
	s := h.session()
	if !underWay {
		h.Changed()
		return
	}
	// Not from here: the end of the session waits for the link.
	go s.fail(errors.Join(errors.New("RDMA's control connection broke during a copy"), err))
}
