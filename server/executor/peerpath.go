package executor

import (
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/rdma"
)

// peerPath is RDMA between two servers of a program. Chunks go from slots into slots, which lie in the machines'
// memory: neither side gives the other a window.
type peerPath struct {
	p       *peer
	control *transport.Line // the link's, once there is one
	dial    bool            // this side opens paths
	pins    rdma.Pins       // what chunks leave from
	stats   rdma.Stats
	link    *rdma.Link[bulk.Piece] // nil: not yet; peers.mu guards it
}

// openPath begins to use the path, once there is memory for chunks.
func (p *peer) openPath() {
	ps := p.ps
	if p.via != nil || len(p.landing) == 0 {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	h := p.path
	if h == nil || p.out.Err() != nil {
		return
	}
	h.pins.Add(addressOf(p.down[0].mem), uint64(len(p.down)*largeBytes))
	first := len(p.up) + len(p.down)
	h.link = rdma.New(rdma.Config[bulk.Piece]{Control: h.control, Dial: h.dial, Device: ps.device,
		Slots:     rdma.Mapped(p.mem[first*largeBytes : (first+len(p.landing))*largeBytes]),
		SlotBytes: largeBytes, Pins: &h.pins, Handler: h, Stats: &h.stats, Log: ps.log})
	p.via = h.link
	p.out.Prefer(rdma.Slots{Link: h.link})
	p.users.Add(2) // until the link is closed, and nobody tells the slots' transfers of it any more
	ps.done.Go(func() {
		p.out.FeedPreferred()
		p.users.Add(-1)
	})
}

// end ends it, without waiting. peers.mu is held.
func (h *peerPath) end() {
	if h.link == nil {
		_ = h.control.Close()
		return
	}
	h.p.ps.done.Go(func() {
		h.link.Close()
		h.p.out.Abandon()
		h.p.users.Add(-1)
	})
}

// Arrived is told of a chunk in a slot.
func (h *peerPath) Arrived(c bulk.Chunk, index int) {
	h.p.ps.metrics.Add(metrics.ReceivedPeerRDMA, int(c.Bytes))
	h.p.in.Arrived(c, h.p.landing[index])
}

// Placed is never called: nobody grants windows.
func (h *peerPath) Placed(bulk.Chunk) {}

// Memory gives nothing: nobody grants windows.
func (h *peerPath) Memory(uint32, uint64) []byte { return nil }

// Sent tells what became of a piece.
func (h *peerPath) Sent(p bulk.Piece, arrived bool) {
	if arrived {
		h.p.ps.metrics.Add(metrics.SentPeerRDMA, p.N)
	}
	h.p.out.Settled(p, arrived)
}

// Changed is told of changes of the state.
func (h *peerPath) Changed() {
	h.p.out.Changed()
	h.p.ps.waker.Ring() // memory is lent, or not, to the other way
}

// Broken is told of the end of the control connection: everything goes by TCP then, if nothing is lost.
func (h *peerPath) Broken(err error, underWay bool) {
	if underWay {
		h.p.fail(err)
		return
	}
	h.Changed()
}
