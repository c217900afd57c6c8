package rdma

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
	"scuda.dev/scuda/verbs"
)

const (
	// of the whole opening, on a machine that is short of processors; what does not work at all fails within a second
	answerTimeout = 30 * time.Second
	firstAttempts = 4 // before a path that is demanded is given up
	firstPause    = 100 * time.Millisecond
	longestPause  = time.Second
)

// readControl reads the control connection until it ends.
func (l *Link[M]) readControl() error {
	head := make([]byte, transport.MessageHeaderSize)
	payload := make([]byte, maxSetup)
	control := bufio.NewReader(l.cfg.Control)
	var slots []uint32
	for {
		if _, err := io.ReadFull(control, head); err != nil {
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
		if _, err := io.ReadFull(control, b); err != nil {
			return err
		}
		b = b[:h.Len]
		switch h.Type {
		case transport.MsgPathOffer:
			err = l.offered(b)
		case transport.MsgPathAnswer:
			err = l.answered(h, b)
		case transport.MsgPathReady:
			err = l.ready(h)
		case transport.MsgPathCredit:
			if slots, err = parseSlots(slots[:0], b); err == nil {
				err = l.credited(h, slots)
			}
		case transport.MsgPathEnd:
			err = l.farewell(h, string(b))
		case transport.MsgWindowWant:
			l.wanted(h)
		case transport.MsgWindow:
			err = l.granted(h, b)
		default:
			err = fmt.Errorf("%w: %v on the control connection", ring.ErrProtocol, h.Type)
		}
		if err != nil {
			return err
		}
	}
}

// account makes the account at the first path; later ones have to agree with it. mu is held.
func (l *Link[M]) account(peer *setup) error {
	if l.peer == nil {
		l.depth = min(l.cfg.Depth, peer.Depth)
		l.limit, l.window = l.depth, l.depth
		l.peer = ring.NewPeer[message[M]](l.depth, peer.SlotCount, l.slotCount())
		l.peerSlots = peer.SlotCount
		return nil
	}
	if peer.SlotCount != l.peerSlots || min(l.cfg.Depth, peer.Depth) != l.depth {
		return fmt.Errorf("%w: another path with %d slots and depth %d", ring.ErrProtocol, peer.SlotCount, peer.Depth)
	}
	return nil
}

func (l *Link[M]) slotCount() int {
	if l.cfg.SlotBytes == 0 {
		return 0
	}
	return int(l.cfg.Slots.Bytes) / l.cfg.SlotBytes
}

// prepare opens this side's end of a path.
func (l *Link[M]) prepare(epoch uint64) (*conn, *setup, error) {
	place, err := Choose(l.cfg.Device, l.local, l.remote)
	if err != nil {
		return nil, nil, err
	}
	c, err := openConn(l.ctx, place, epoch, l.cfg.Depth, l.cfg.Slots, l.cfg.Source)
	for err != nil && errors.Is(err, errSlots) && l.halveBuffer(err) {
		c, err = openConn(l.ctx, place, epoch, l.cfg.Depth, l.cfg.Slots, l.cfg.Source)
	}
	if err != nil {
		return nil, nil, err
	}
	s, err := c.describe(l.cfg.Depth, l.cfg.SlotBytes, l.slotCount())
	if err != nil {
		return nil, nil, errors.Join(err, c.close())
	}
	return c, s, nil
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

// offered is the peer's offer of a path; this side accepts.
func (l *Link[M]) offered(payload []byte) error {
	if l.cfg.Dial {
		return fmt.Errorf("%w: an offer to the side that makes them", ring.ErrProtocol)
	}
	peer, err := parseSetup(payload)
	if err != nil {
		return err
	}
	l.mu.Lock()
	busy := l.conn != nil || l.peer != nil && l.peer.State() != ring.Down
	l.mu.Unlock()
	if busy {
		return fmt.Errorf("%w: an offer of a second path", ring.ErrProtocol)
	}
	c, mine, err := l.prepare(peer.Epoch)
	if err == nil {
		if err = belongs(c.place, l.local, l.remote, peer.Endpoint); err != nil {
			_ = c.close()
		}
	}
	if err == nil {
		if err = c.connect(peer, min(l.cfg.Depth, peer.Depth)); err != nil {
			_ = c.close()
		}
	}
	if err != nil {
		l.cfg.Stats.Refused.Add(1)
		l.complainOnce(err)
		text := err.Error()
		result := int32(refusedForNow)
		if errors.Is(err, verbs.ErrUnavailable) {
			result = refusedForGood
		}
		l.say(transport.MessageHeader{Type: transport.MsgPathAnswer, Seq: peer.Epoch, Result: result},
			[]byte(text[:min(len(text), maxReason)]))
		return nil
	}
	if err := l.begin(c, peer); err != nil {
		return errors.Join(err, c.close())
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.say(transport.MessageHeader{Type: transport.MsgPathAnswer, Seq: c.epoch}, text)
	c.known = true
	l.sayCredit()
	l.mu.Unlock()
	l.follow(c)
	return nil
}

// complainOnce logs the first failure to open a path; later ones are for those who look closely.
func (l *Link[M]) complainOnce(err error) {
	level := slog.LevelDebug
	l.noPath.Do(func() { level = slog.LevelInfo })
	l.log.Log(l.ctx, level, "no RDMA path; big copies go over TCP", "error", err)
}

const (
	refusedForNow  = 1
	refusedForGood = 2
)

// RefusedError is an offer that the peer did not accept.
type RefusedError struct {
	Reason  string
	ForGood bool
}

func (e *RefusedError) Error() string { return "the peer has no RDMA path for us: " + e.Reason }

// answered is the peer's answer to this side's offer. The epoch begins here, as messages about it may follow.
func (l *Link[M]) answered(h transport.MessageHeader, payload []byte) error {
	l.mu.Lock()
	c, answers := l.opening, l.answers
	l.mu.Unlock()
	if c == nil || h.Seq != c.epoch {
		return fmt.Errorf("%w: an answer to no offer", ring.ErrProtocol)
	}
	if h.Result != 0 {
		answers <- answer{err: &RefusedError{string(payload), h.Result == refusedForGood}}
		return nil
	}
	peer, err := parseSetup(payload)
	if err == nil {
		err = belongs(c.place, l.local, l.remote, peer.Endpoint)
	}
	if err == nil {
		err = l.begin(c, peer)
	}
	if err != nil {
		return err
	}
	answers <- answer{s: peer}
	return nil
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
		l.idle = 0
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
	finished, lost := l.collect()
	err := l.peer.Hear(ring.Farewell{Epoch: h.Seq, Received: h.Aux}, finished, lost)
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
	l.window = int(h.ID)
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
	l.log.Info("big copies go over RDMA", "path", c.describeText(), "chunk", chunk, "in_flight", l.limit)
}

func (c *conn) describeText() string {
	return fmt.Sprintf("%s port %d, GID %d (%s %s, %s) to %s of %s, MTU %d", c.place.Device, c.place.Port,
		c.place.GID.Index, c.place.GID.Type, c.place.GID.Addr, c.place.GID.NetDev,
		c.peer.Device, c.peer.Endpoint.GID, c.peer.Endpoint.MTU.Bytes())
}

// dial opens a path whenever there is none, until the link ends.
func (l *Link[M]) dial() {
	pause := firstPause
	for {
		began := time.Now()
		err := l.open()
		if err == nil || errors.Is(err, ErrNoPlace) || l.attempt >= firstAttempts {
			l.firstOver(err)
		}
		var refused *RefusedError
		if errors.Is(err, verbs.ErrUnavailable) || errors.As(err, &refused) && refused.ForGood {
			l.firstOver(err)
			l.log.Info("RDMA is not used; big copies go over TCP", "reason", err)
			return
		}
		if err != nil {
			l.cfg.Stats.Refused.Add(1)
			l.complainOnce(err)
		}
		l.mu.Lock()
		for l.ctx.Err() == nil && (l.closing || l.conn != nil || l.peer != nil && l.peer.State() != ring.Down) {
			l.moved.Wait()
		}
		l.mu.Unlock()
		if time.Since(began) > 4*longestPause {
			pause = firstPause
		}
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// open makes one attempt at a path.
func (l *Link[M]) open() error {
	ctx, cancel := context.WithTimeout(l.ctx, answerTimeout)
	defer cancel()
	l.attempt++
	c, mine, err := l.prepare(l.attempt)
	if err != nil {
		return err
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return errors.Join(err, c.close())
	}
	answers := make(chan answer, 1)
	l.mu.Lock()
	l.opening, l.answers = c, answers
	l.mu.Unlock()
	l.say(transport.MessageHeader{Type: transport.MsgPathOffer, Seq: c.epoch}, text)
	// The peer answers, or its end of the connection does; an answer must not find the attempt given up.
	var a answer
	select {
	case a = <-answers:
	case <-l.ctx.Done():
		a.err = l.ctx.Err()
	}
	l.mu.Lock()
	l.opening = nil
	l.mu.Unlock()
	if a.err != nil {
		if c.began {
			l.finish(c, a.err)
		} else {
			_ = c.close()
		}
		return a.err
	}
	if err := c.connect(a.s, l.depth); err != nil {
		c.cancel(err)
		l.finish(c, err)
		return err
	}
	l.follow(c)
	l.mu.Lock()
	if l.slotCount() > 0 {
		l.sayCredit()
	}
	l.mu.Unlock()
	chunk, limit, window, err := l.measure(ctx, c)
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
	l.limit, l.window = limit, window
	l.say(transport.MessageHeader{Type: transport.MsgPathReady, ID: uint32(window), Seq: c.epoch, Aux: uint64(chunk)}, nil)
	l.use(c, chunk)
	return nil
}
