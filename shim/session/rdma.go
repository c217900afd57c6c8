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

// pathConfig says how RDMA is to be used.
type pathConfig struct {
	transport config.Transport // of big copies
	device    string           // which RDMA device, see [rdma.Choose]; empty: the one that fits
	memory    int              // bytes of registered memory for copies of memory that cannot be registered
	stats     *rdma.Stats
}

// openLink opens the session's link. The bulk connections are there already, since they carry what a path that is lost
// gives back.
func (b *transfers) openLink() error {
	if b.path.transport == config.TransportTCP {
		return nil
	}
	if !b.dialer.welcome.RDMA {
		b.log.Info("RDMA is not used; big copies go over TCP", "reason", "the server: "+b.dialer.welcome.NoRDMA)
		return fmt.Errorf("the server has none: %s", b.dialer.welcome.NoRDMA)
	}
	hello := b.dialer.hello(transport.KindRDMA)
	line, err := b.dialer.line(&hello)
	if err != nil {
		return fmt.Errorf("its control connection: %w", err)
	}
	b.dialer.opened(line.FD())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		line.Close()
		return b.out.Err()
	}
	l := rdma.New(rdma.Config[bulk.Piece]{
		Control: line, Dial: true, Device: b.path.device, Pins: &b.pins, Buffer: b.path.memory,
		Handler: (*linkHandler)(b), Stats: b.path.stats, Log: b.log,
	})
	b.link.Store(l)
	b.out.Prefer(rdma.Slots{Link: l})
	b.owner.start(b.out.FeedPreferred)
	return nil
}

// demandPath opens bulk connections and link and waits for the first path.
func (b *transfers) demandPath() error {
	b.state.Store(bulkOpening)
	err := b.open()
	l := b.link.Load()
	if err == nil && l != nil {
		ctx, cancel := context.WithTimeout(b.dialer.ctx, pathTimeout)
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
		s.bulk.pins.Remove(addr)
	} else {
		s.bulk.pins.Add(addr, bytes)
	}
}

// Path describes the path of big copies; it is empty while they travel by TCP.
func (s *Session) Path() string { return s.bulk.describe() }

// describe describes the path.
func (b *transfers) describe() string {
	if l := b.link.Load(); l != nil {
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
func (b *transfers) endWindow(id uint32) {
	if l := b.link.Load(); l != nil {
		l.EndWindow(id)
	}
}

// linkHandler is bulk transfers as their link sees them.
type linkHandler transfers

func (h *linkHandler) transfers() *transfers { return (*transfers)(h) }

// Arrived is never called: a client's slots are the link's.
func (h *linkHandler) Arrived(bulk.Chunk, int) {}

func (h *linkHandler) Placed(c bulk.Chunk) {
	b := h.transfers()
	b.traffic.received.Add(uint64(c.Bytes))
	b.shared.news()
	b.arrived(c)
}

func (h *linkHandler) Sent(p bulk.Piece, arrived bool) { h.transfers().out.Settled(p, arrived) }

func (h *linkHandler) Memory(id uint32, _ uint64) []byte {
	b := h.transfers()
	if b.shared.lost() != 0 {
		return nil
	}
	dst, _ := b.registered.destination(id)
	return dst
}

func (h *linkHandler) Changed() { h.transfers().out.Changed() }

func (h *linkHandler) Broken(err error, underWay bool) {
	b := h.transfers()
	if !underWay {
		h.Changed()
		return
	}
	// Not from here: the end of the session waits for the link.
	go b.owner.fail(errors.Join(errors.New("RDMA's control connection broke during a copy"), err))
}
