package rdma

import (
	"context"
	"errors"
	"fmt"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
	"scuda.dev/scuda/verbs"
)

// run polls a path until it ends, and then ends its use. It is the only goroutine that takes completions.
func (l *Link[M]) run(c *conn) {
	var err error
	for err == nil {
		var n int
		if n, err = c.cq.WaitPoll(c.ctx, c.done[:]); err == nil {
			err = l.completions(c, c.done[:n])
		}
	}
	c.cancel(err) // without effect where something else was the cause
	l.finish(c, context.Cause(c.ctx))
}

// completions handles what was polled. An error ends the path.
func (l *Link[M]) completions(c *conn, list []verbs.Completion) error {
	var first error
	l.mu.Lock()
	recvs, parts, more := 0, 0, false
	for i := range list {
		d := &list[i]
		err := d.Err()
		switch {
		case kindOf(d.ID) == workRecv:
			c.recvs--
			if err == nil {
				if more, err = l.arrive(c, d); err == nil {
					recvs++
				}
			}
		case kindOf(d.ID) == workPart, kindOf(d.ID) == workData:
			c.inDevice--
			c.sends--
			l.watchdog.moved()
			if kindOf(d.ID) == workPart {
				parts++
			} else if err == nil {
				err = l.peer.Completed(numberOf(d.ID))
			}
		case err != nil:
		case kindOf(d.ID) == workBind:
			var o *opening
			if o, err = c.bound(numberOf(d.ID)); o != nil {
				c.nowBound = append(c.nowBound, o)
			}
		case kindOf(d.ID) == workInvalidate:
			c.unbound(numberOf(d.ID))
		case kindOf(d.ID) == workProbe:
			c.probed++
			l.watchdog.moved()
			l.moved.Broadcast()
		}
		if first == nil {
			first = err
		}
	}
	if first == nil && parts == len(list) { // nobody else has to know
		l.flush(c)
		l.mu.Unlock()
		return nil
	}
	if first == nil && recvs > 0 && c.ctx.Err() == nil {
		for c.recvs < l.depth && first == nil {
			first = c.postRecvs(min(l.depth-c.recvs, len(c.reposts)))
		}
		l.credit(!more) // after the requests are there again: what is acknowledged may be followed by as many
	}
	l.advance()
	for _, o := range c.nowBound {
		l.sayWindow(c, o)
	}
	clear(c.nowBound)
	c.nowBound = c.nowBound[:0]
	l.flush(c)
	l.mu.Unlock()
	l.tell()
	return first
}

// advance looks at what is finished, and goes on. mu is held.
func (l *Link[M]) advance() {
	l.peer.Finish(l.outcomes.finished)
	l.pump()
	l.moved.Broadcast()
}

// arrive takes a message that the peer has written, and says whether more follow. mu is held.
func (l *Link[M]) arrive(c *conn, d *verbs.Completion) (more bool, err error) {
	position := l.peer.Received()
	at := int(position%uint64(l.depth)) * headerBytes
	h, err := parseHeader(c.headers[at:at+headerSize], position, d.Imm, l.own.slotBytes)
	if err != nil {
		return false, err
	}
	if err := l.peer.Arrive(position, h.slot); err != nil {
		return false, err
	}
	if h.slot == ring.NoSlot {
		if o := c.windows.open[h.chunk.ID]; o == nil || h.chunk.Offset > o.bytes ||
			uint64(h.chunk.Bytes) > o.bytes-h.chunk.Offset {
			return false, fmt.Errorf("%w: %d bytes at %d of transfer %d, which has no such window", ring.ErrProtocol,
				h.chunk.Bytes, h.chunk.Offset, h.chunk.ID)
		}
	}
	l.cfg.Stats.ReceivedChunks.Add(1)
	l.cfg.Stats.ReceivedBytes.Add(uint64(h.chunk.Bytes))
	l.outcomes.arrived(h)
	return h.chunk.More, nil
}

// finish ends a path on this side and says farewell.
func (l *Link[M]) finish(c *conn, why error) {
	l.mu.Lock()
	was := c.usable
	c.usable = false
	if c.began {
		l.setState(bulk.Settling)
		l.flush(c) // nothing any more
	}
	l.mu.Unlock()
	if was {
		l.cfg.Stats.Paths.Add(-1)
		if l.ctx.Err() == nil && !errors.Is(why, errPeerCloses) {
			l.cfg.Stats.Lost.Add(1)
			l.log.Warn("the RDMA path is lost; big copies go over TCP", "device", c.place.Device, "error", why)
		}
		l.cfg.Handler.Changed()
	}
	gone := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.flushed(c)
		c.abandon()
	}
	c.quiesce(func(list []verbs.Completion) { _ = l.completions(c, list) }, gone)
	l.mu.Lock()
	l.flushed(c)
	l.conn, c.gone = nil, true
	c.toPost.Broadcast()
	l.placements.clear(l.outcomes.giveBack)
	if c.began {
		f, err := l.peer.End(l.outcomes.finished, l.outcomes.lost)
		if err == nil {
			h := transport.MessageHeader{Type: transport.MsgPathEnd, Seq: f.Epoch, Aux: f.Received}
			text := ""
			if l.ctx.Err() != nil {
				h.Result = endOfLink
			} else if why != nil && !errors.Is(why, errPeerEnded) {
				text = why.Error()
			}
			l.control.say(h, []byte(text[:min(len(text), maxReason)]))
		} else if l.ctx.Err() == nil {
			l.log.Error("the account of a lost path does not add up", "error", err)
		}
	}
	l.moved.Broadcast()
	l.mu.Unlock()
	l.tell()
	// Drivers may take seconds to free a queue pair whose packets are held up somewhere (rxe does); nobody waits for that.
	go func() {
		if err := c.close(); err != nil {
			l.log.Debug("a path was not freed wholly", "device", c.place.Device, "error", err)
		}
	}()
}

const maxReason = 1 << 10

// endOfLink is the result in a farewell to a path that ends only because its link does.
const endOfLink = 1

var (
	errPeerEnded  = errors.New("the peer has given up the path")
	errPeerCloses = fmt.Errorf("%w: it ends the session", errPeerEnded)
)

// sayWindow tells the peer of a window. mu is held.
func (l *Link[M]) sayWindow(c *conn, o *opening) {
	w := window{epoch: c.epoch, addr: o.addr, bytes: o.bytes}
	if w.key = o.r.mr.RKey; o.mw != nil {
		w.key = o.mw.RKey
	}
	l.cfg.Stats.Windows.Add(1)
	var b [windowBytes]byte
	l.control.say(transport.MessageHeader{Type: transport.MsgWindow, ID: o.id, Seq: o.seq}, w.append(b[:0]))
}

// wanted answers the peer's wish for a window.
func (l *Link[M]) wanted(h transport.MessageHeader) {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	var o *opening
	if c != nil {
		if mem := l.cfg.Handler.Memory(h.ID, h.Aux); mem != nil && uint64(len(mem)) >= h.Aux && h.Aux > 0 {
			if r, err := c.register(l.cfg.Pins, mem[:h.Aux], verbs.LocalWrite|verbs.RemoteWrite, l.cfg.Stats); err == nil {
				o = &opening{id: h.ID, seq: h.Seq, addr: address(mem), bytes: h.Aux, r: r}
			} else {
				l.own.refused(err)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if o != nil && l.conn == c {
		if old := c.windows.open[o.id]; old != nil {
			_ = c.revoke(old)
		}
		now, berr := c.bind(o)
		if now {
			l.sayWindow(c, o)
		}
		if berr == nil {
			return
		}
		o.r.release()
	} else if o != nil {
		o.r.release()
	}
	l.control.say(transport.MessageHeader{Type: transport.MsgWindow, ID: h.ID, Seq: h.Seq, Result: 1}, nil)
}

// granted takes the peer's answer to a wish for a window.
func (l *Link[M]) granted(h transport.MessageHeader, payload []byte) error {
	l.mu.Lock()
	defer l.tell()
	defer l.mu.Unlock()
	t := l.placements.asked(h.ID, h.Seq)
	if t == nil {
		return nil
	}
	if h.Result == 0 {
		w, err := parseWindow(payload)
		if err != nil {
			return err
		}
		if l.conn == nil || w.epoch != l.conn.epoch {
			return nil // of a path that is over
		}
		t.granted, t.w = true, w
	} else {
		t.refused = true
	}
	l.placements.settle(h.ID, t, l.peerSlotBytes(), l.outcomes.giveBack)
	l.pump()
	return nil
}
