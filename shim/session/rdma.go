package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/rdma"
)

// pathTimeout is how long opening a session waits for RDMA where it is demanded: an attempt or two on a machine that is
// short of processors.
const pathTimeout = 90 * time.Second

// openLink opens the session's link. The bulk connections are there already, since they carry what a path that is lost
// gives back.
func (s *Session) openLink() error {
	if s.cfg.Transport == config.TransportTCP {
		return nil
	}
	if !s.welcome.RDMA {
		s.log.Info("RDMA is not used; big copies go over TCP", "reason", "the server: "+s.welcome.NoRDMA)
		return fmt.Errorf("the server has none: %s", s.welcome.NoRDMA)
	}
	hello := further(s, transport.KindRDMA)
	c, _, err := transport.DialNet(s.ctx, s.cfg.Server, &hello)
	if err != nil {
		return fmt.Errorf("its control connection: %w", err)
	}
	if rc, err := transport.Socket(c).SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { s.opened(int(fd)) })
	}
	b := &s.bulk
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		c.Close()
		return b.out.Err()
	}
	l := rdma.New(rdma.Config[bulk.Piece]{Control: c, Dial: true, Device: s.cfg.RDMADevice, Pins: &s.pins,
		Buffer:  s.cfg.RDMAMemory,
		Handler: (*linkHandler)(s), Stats: &s.RDMA, Log: s.log})
	b.link.Store(l)
	b.out.Prefer(rdma.Slots{Link: l})
	s.start(b.out.FeedPreferred)
	return nil
}

// demandPath opens bulk connections and link and waits for the first path.
func (s *Session) demandPath() error {
	s.bulk.state.Store(bulkOpening)
	err := s.openBulk()
	l := s.bulk.link.Load()
	if err == nil && l != nil {
		ctx, cancel := context.WithTimeout(s.ctx, pathTimeout)
		defer cancel()
		err = l.AwaitFirst(ctx)
	}
	if err != nil {
		return fmt.Errorf(
			"RDMA is demanded (SCUDA_TRANSPORT=rdma) and cannot be had: %w; 'scuda rdma doctor' looks into it, "+
				"SCUDA_TRANSPORT=auto goes on without", err)
	}
	return nil
}

// Pin says that memory stays mapped until it is said (bytes 0) that it may not any longer; package rdma keeps its
// registration.
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

// closeLink ends the link; the program's memory is no longer read or written by it.
func (b *transfers) closeLink() {
	if l := b.link.Load(); l != nil {
		l.Close()
		b.out.Abandon()
	}
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
	s.bulk.arrivals.Add(c)
}

func (h *linkHandler) Sent(p bulk.Piece, arrived bool) { h.session().bulk.out.Settled(p, arrived) }

func (h *linkHandler) Memory(id uint32, _ uint64) []byte {
	s := h.session()
	if s.lost() != 0 {
		return nil
	}
	dst, _ := s.destination(id)
	return dst
}

func (h *linkHandler) Changed() { h.session().bulk.out.Changed() }

func (h *linkHandler) Broken(err error, underWay bool) {
	s := h.session()
	if !underWay {
		h.Changed()
		return
	}
	// Not from here: the end of the session waits for the link.
	go s.fail(errors.Join(errors.New("RDMA's control connection broke during a copy"), err))
}
