package rdma

import (
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
)

// results collects, under the link's lock, what the handler is told after it.
type results[M any] struct {
	arrived []header
	sent    []result[M]
	windows []*opening
	slots   []uint32
	payload []byte
}

type result[M any] struct {
	m       M
	arrived bool
}

// tell calls the handler with what has been collected, and changes the mode when a lost path is settled: after the
// owner was given back what was under way on it.
func (l *Link[M]) tell() {
	l.telling.Lock()
	defer l.telling.Unlock()
	l.mu.Lock()
	arrived, sent := l.results.arrived, l.results.sent
	l.results.arrived, l.results.sent = l.spare.arrived[:0], l.spare.sent[:0]
	l.mu.Unlock()
	for i := range arrived {
		switch h := &arrived[i]; {
		case h.slot == ring.NoSlot:
			l.cfg.Handler.Placed(h.chunk)
		case l.buffer != nil:
			l.deliver(h)
		default:
			l.cfg.Handler.Arrived(h.chunk, int(h.slot))
		}
	}
	for i := range sent {
		if !sent[i].arrived {
			l.cfg.Stats.ReturnedChunks.Add(1)
		}
		l.cfg.Handler.Sent(sent[i].m, sent[i].arrived)
	}
	clear(sent)
	l.mu.Lock()
	l.spare.arrived, l.spare.sent = arrived, sent
	settled := l.broken == nil && l.State() == bulk.Settling && l.conn == nil && l.peer.State() == ring.Down &&
		len(l.results.sent) == 0
	if settled {
		l.setState(bulk.Down)
	}
	l.mu.Unlock()
	if settled {
		l.cfg.Handler.Changed()
	}
}

// collect notes the fate of messages whose path is settled. mu is held.
func (l *Link[M]) collect() (finished, lost func(message[M])) {
	return l.arrivedThere, func(x message[M]) {
		l.freePart(x.part)
		l.giveBack(x.m)
	}
}

func (l *Link[M]) arrivedThere(x message[M]) {
	l.freePart(x.part)
	l.results.sent = append(l.results.sent, result[M]{x.m, true})
}

func (l *Link[M]) giveBack(m M) { l.results.sent = append(l.results.sent, result[M]{m, false}) }
