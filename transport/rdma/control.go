package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
)

// controlTimeout bounds writes of control messages; a peer that reads none of them for so long is gone.
const controlTimeout = 10 * time.Second

// controlConn is the connection on which two links talk about their paths. One goroutine reads it; the lock guards
// writes and their buffer, and is the last that is taken.
type controlConn struct {
	line *transport.Line

	mu     sync.Mutex
	closed bool
}

func (c *controlConn) init(line *transport.Line) error {
	c.line = line
	return line.LimitSends(controlTimeout)
}

// say writes a message. A failure shows on the reading side. It does not wait for a connection that is to come back:
// whoever has something to say may have others to serve.
func (c *controlConn) say(h transport.MessageHeader, payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.line.Post(h, payload) != nil {
		c.line.Shutdown()
	}
}

// read gives messages to handle until the connection ends, or handle fails.
func (c *controlConn) read(handle func(transport.MessageHeader, []byte) error) error {
	head := make([]byte, transport.MessageHeaderSize)
	payload := make([]byte, maxSetup)
	for {
		if err := c.line.ReadFull(head); err != nil {
			return err
		}
		h, _, err := transport.ParseMessage(head)
		if err != nil {
			return err
		}
		if h.Len > maxSetup {
			return fmt.Errorf("%w: %v of %d bytes", ring.ErrProtocol, h.Type, h.Len)
		}
		b := payload[:transport.Pad(int(h.Len))]
		if err := c.line.ReadFull(b); err != nil {
			return err
		}
		if err := handle(h, b[:h.Len]); err != nil {
			return err
		}
	}
}

// close gives the descriptor back. Nobody reads any more.
func (c *controlConn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	_ = c.line.Close()
}

// message handles a message of the peer.
func (l *Link[M]) message(h transport.MessageHeader, payload []byte) error {
	switch h.Type {
	case transport.MsgPathOffer:
		return l.opener.offered(payload)
	case transport.MsgPathAnswer:
		return l.opener.answered(h, payload)
	case transport.MsgPathReady:
		return l.ready(h)
	case transport.MsgPathCredit:
		slots, err := parseSlots(l.granting[:0], payload)
		if err != nil {
			return err
		}
		l.granting = slots
		return l.credited(h, slots)
	case transport.MsgPathEnd:
		return l.farewell(h, string(payload))
	case transport.MsgWindowWant:
		l.wanted(h)
		return nil
	case transport.MsgWindow:
		return l.granted(h, payload)
	}
	return fmt.Errorf("%w: %v on the control connection", ring.ErrProtocol, h.Type)
}

// account makes the account at the first path; later ones have to agree with it. mu is held.
func (l *Link[M]) account(peer *setup) error {
	if l.peer == nil {
		l.depth = min(l.cfg.Depth, peer.Depth)
		l.limit, l.window = l.depth, l.depth
		l.peer = ring.NewPeer[message[M]](l.depth, peer.SlotCount, l.own.slotCount())
		l.peerSlots = peer.SlotCount
		return nil
	}
	if peer.SlotCount != l.peerSlots || min(l.cfg.Depth, peer.Depth) != l.depth {
		return fmt.Errorf("%w: another path with %d slots and depth %d", ring.ErrProtocol, peer.SlotCount, peer.Depth)
	}
	return nil
}

// begin starts the use of a path: its epoch, and the goroutines that follow it.
func (l *Link[M]) begin(c *conn, peer *setup) error {
	l.mu.Lock()
	err := l.account(peer)
	if err == nil {
		err = l.peer.Begin(c.epoch)
	}
	if err != nil {
		l.mu.Unlock()
		return err
	}
	c.began, c.known, c.toPost = true, l.cfg.Dial, sync.NewCond(&l.mu)
	l.conn = c
	l.mu.Unlock()
	return nil
}

func (l *Link[M]) follow(c *conn) {
	c.watches.Go(c.watch)
	c.watches.Go(c.lookOut)
	c.watches.Go(func() { l.post(c) })
	l.workers.Go(func() { l.run(c) })
}

// credited takes acknowledgements and credits.
func (l *Link[M]) credited(h transport.MessageHeader, slots []uint32) error {
	l.mu.Lock()
	if l.conn == nil || l.conn.epoch != h.Seq || l.peer.State() != ring.Up {
		l.mu.Unlock()
		return nil
	}
	err := errors.Join(l.peer.Ack(h.Aux), l.peer.Grant(slots))
	if err == nil {
		l.watchdog.moved()
		l.advance()
	}
	l.mu.Unlock()
	l.tell()
	return err
}

// farewell is the peer's.
func (l *Link[M]) farewell(h transport.MessageHeader, why string) error {
	l.mu.Lock()
	if l.peer == nil {
		l.mu.Unlock()
		return fmt.Errorf("%w: a farewell to no path", ring.ErrProtocol)
	}
	err := l.peer.Hear(ring.Farewell{Epoch: h.Seq, Received: h.Aux}, l.outcomes.finished, l.outcomes.lost)
	over := h.Result == endOfLink
	l.closing = l.closing || over
	if c := l.conn; err == nil && c != nil && l.peer.MustEnd() {
		switch {
		case over:
			c.cancel(errPeerCloses)
		case why == "":
			c.cancel(errPeerEnded)
		default:
			c.cancel(fmt.Errorf("%w: %s", errPeerEnded, why))
		}
	}
	l.moved.Broadcast()
	l.mu.Unlock()
	l.tell()
	return err
}

// ready is the client's word that the path works; chunks may go both ways.
func (l *Link[M]) ready(h transport.MessageHeader) error {
	l.mu.Lock()
	c := l.conn
	if c == nil || c.epoch != h.Seq || c.ctx.Err() != nil {
		l.mu.Unlock()
		return nil
	}
	if h.Aux < 4096 || h.Aux > transport.MaxChunk {
		l.mu.Unlock()
		return fmt.Errorf("%w: chunks of %d bytes", ring.ErrProtocol, h.Aux)
	}
	if h.ID < 1 || int64(h.ID) > int64(l.depth) {
		l.mu.Unlock()
		return fmt.Errorf("%w: %d chunks at once", ring.ErrProtocol, h.ID)
	}
	if h.Result != 0 && (h.Result < 4096 || h.Result > pieceBytes) { // 0: of an older release
		l.mu.Unlock()
		return fmt.Errorf("%w: pieces of %d bytes", ring.ErrProtocol, h.Result)
	}
	l.window = int(h.ID)
	c.piece = cmp.Or(int(h.Result), pieceBytes)
	l.use(c, int(h.Aux))
	l.mu.Unlock()
	l.cfg.Handler.Changed()
	return nil
}

// use lets chunks go over a path. mu is held.
func (l *Link[M]) use(c *conn, chunk int) {
	c.usable = true
	l.chunk.Store(int64(chunk))
	l.cfg.Stats.Established.Add(1)
	l.cfg.Stats.Paths.Add(1)
	l.setState(bulk.Up)
	l.log.Info("big copies go over RDMA", "path", c.describeText(), "chunk", chunk, "piece", c.piece, "in_flight",
		l.limit)
}

func (c *conn) describeText() string {
	return fmt.Sprintf("%s port %d, GID %d (%s %s, %s) to %s of %s, MTU %d", c.place.Device, c.place.Port,
		c.place.GID.Index, c.place.GID.Type, c.place.GID.Addr, c.place.GID.NetDev,
		c.peer.Device, c.peer.Endpoint.GID, c.peer.Endpoint.MTU.Bytes())
}

// hasPath says whether a path is in use or not settled yet.
func (l *Link[M]) hasPath() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil || l.peer != nil && l.peer.State() != ring.Down
}

// hadPath says whether there was a path.
func (l *Link[M]) hadPath() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peer != nil
}

// awaitNone waits until another path may be opened. It says no at the end of the link.
func (l *Link[M]) awaitNone(ctx context.Context) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ctx.Err() == nil && (l.closing || l.conn != nil || l.peer != nil && l.peer.State() != ring.Down) {
		l.moved.Wait()
	}
	return ctx.Err() == nil
}

// confirm accepts the peer's offer of a path.
func (l *Link[M]) confirm(c *conn, text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.control.say(transport.MessageHeader{Type: transport.MsgPathAnswer, Seq: c.epoch}, text)
	c.known = true
	l.sayCredit()
}

// tryOut measures a path, and has the peer use it if it works.
func (l *Link[M]) tryOut(ctx context.Context, c *conn) error {
	l.mu.Lock()
	if l.own.slotCount() > 0 {
		l.sayCredit()
	}
	l.mu.Unlock()
	chunk := min(transport.MaxChunk, max(c.peer.SlotBytes, probeLeast))
	p, err := newTrial(ctx, l, c).run(chunk)
	if err != nil {
		c.cancel(err)
		return fmt.Errorf("the path does not work: %w", err)
	}
	l.mu.Lock()
	defer l.cfg.Handler.Changed()
	defer l.mu.Unlock()
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	l.limit, l.window, c.piece = p.limit, p.window, p.piece
	l.control.say(transport.MessageHeader{
		Type: transport.MsgPathReady, ID: uint32(p.window), Seq: c.epoch, Aux: uint64(chunk), Result: int32(p.piece),
	}, nil)
	l.use(c, chunk)
	return nil
}
