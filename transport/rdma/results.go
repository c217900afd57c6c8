package rdma

import (
	"fmt"
	"sync"

	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
)

// results is what the handler is told after the link's lock is free.
type results[M any] struct {
	arrived []header
	sent    []result[M]
}

type result[M any] struct {
	m       M
	arrived bool
}

// outcomes collects what became of chunks, until the handler is told.
//
// Locks: telling is held while the handler is told, and taken before the link's, which guards now.
type outcomes[M any] struct {
	telling sync.Mutex
	now     results[M]
	spare   results[M] // the lists that were told last; telling guards them

	own *ownMemory // whose pieces are free again
}

// arrived notes a chunk that is here. The link's lock is held.
func (o *outcomes[M]) arrived(h header) { o.now.arrived = append(o.now.arrived, h) }

// finished notes a message that is with the peer. The link's lock is held.
func (o *outcomes[M]) finished(x message[M]) {
	o.own.freePart(x.part)
	o.now.sent = append(o.now.sent, result[M]{x.m, true})
}

// lost notes a message that has to be sent by other means. The link's lock is held.
func (o *outcomes[M]) lost(x message[M]) {
	o.own.freePart(x.part)
	o.giveBack(x.m)
}

// giveBack notes a chunk that was never sent. The link's lock is held.
func (o *outcomes[M]) giveBack(m M) { o.now.sent = append(o.now.sent, result[M]{m, false}) }

// take gives what was collected. Both locks are held.
func (o *outcomes[M]) take() results[M] {
	list := o.now
	o.now = results[M]{o.spare.arrived[:0], o.spare.sent[:0]}
	o.spare = results[M]{}
	return list
}

// told takes the lists back. telling is held.
func (o *outcomes[M]) told(list results[M]) {
	clear(list.sent)
	o.spare = list
}

// tell calls the handler with what has been collected, and changes the mode when a lost path is settled: after the
// owner was given back what was under way on it.
func (l *Link[M]) tell() {
	l.outcomes.telling.Lock()
	defer l.outcomes.telling.Unlock()
	l.mu.Lock()
	list := l.outcomes.take()
	l.mu.Unlock()
	for i := range list.arrived {
		switch h := &list.arrived[i]; {
		case h.slot == ring.NoSlot:
			l.cfg.Handler.Placed(h.chunk)
		case l.own.buffer != nil:
			l.deliver(h)
		default:
			l.cfg.Handler.Arrived(h.chunk, int(h.slot))
		}
	}
	for i := range list.sent {
		if !list.sent[i].arrived {
			l.cfg.Stats.ReturnedChunks.Add(1)
		}
		l.cfg.Handler.Sent(list.sent[i].m, list.sent[i].arrived)
	}
	l.outcomes.told(list)
	l.mu.Lock()
	settled := l.broken == nil && l.State() == bulk.Settling && l.conn == nil && l.peer.State() == ring.Down &&
		len(l.outcomes.now.sent) == 0
	if settled {
		l.setState(bulk.Down)
	}
	l.mu.Unlock()
	if settled {
		l.cfg.Handler.Changed()
	}
}

// deliver copies what has arrived in the buffer to where it belongs.
func (l *Link[M]) deliver(h *header) {
	slot := l.own.buffer[int(h.slot)*partBytes:][:h.chunk.Bytes]
	dst := l.cfg.Handler.Memory(h.chunk.ID, h.chunk.Offset+uint64(len(slot)))
	if h.chunk.Offset > uint64(len(dst)) || uint64(len(slot)) > uint64(len(dst))-h.chunk.Offset {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c := l.conn; c != nil {
			c.cancel(fmt.Errorf("%w: %d bytes at %d of transfer %d, which has %d", ring.ErrProtocol, len(slot), h.chunk.Offset,
				h.chunk.ID, len(dst)))
		}
		return
	}
	copy(dst[h.chunk.Offset:], slot)
	l.Release(h.slot)
	l.cfg.Handler.Placed(h.chunk)
}
