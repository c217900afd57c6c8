package rdma

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"scuda.dev/scuda/transport"
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

// openerLink is a link as its opener sees it.
type openerLink interface {
	hasPath() bool                             // or had one that is not settled
	hadPath() bool                             // with which later ones have to agree
	awaitNone(ctx context.Context) bool        // waits until another path may be opened; no at the link's end
	begin(c *conn, peer *setup) error          // begins a path's epoch
	confirm(c *conn, text []byte)              // accepts the peer's offer, and grants slots
	follow(c *conn)                            // starts the goroutines that use a path
	tryOut(ctx context.Context, c *conn) error // measures a path, and has the peer use it
	finish(c *conn, why error)                 // ends a path that has begun
}

// openerConfig is what an opener needs to know.
type openerConfig struct {
	dial   bool
	device string
	depth  int
	stats  *Stats
	log    *slog.Logger
}

// opener opens paths: it offers them to the peer whenever there is none, or answers the peer's offers.
//
// Locks: mu guards the offer that waits for its answer, also while an answer is taken: once the offer is given up, no
// path begins by it. The link's lock may be taken under it. attempt belongs to [opener.run], own to whoever opens a
// path: there is one at a time.
type opener struct {
	cfg     openerConfig
	ctx     context.Context // of the link
	link    openerLink
	control *controlConn
	own     *ownMemory

	attempt uint64
	noPath  sync.Once

	mu      sync.Mutex
	opening *conn // of the offer under way
	answers chan answer

	first chan struct{} // closed when there is a path, or none to be expected soon
	once  sync.Once
	why   error // there is none
}

// answer is the peer's to an offer.
type answer struct {
	s   *setup
	err error
}

func (o *opener) init(
	ctx context.Context, link openerLink, control *controlConn, own *ownMemory, cfg openerConfig,
) {
	o.cfg, o.ctx, o.link, o.control, o.own = cfg, ctx, link, control, own
	o.first = make(chan struct{})
}

// awaitFirst waits for the first path, or for the reason why there is none.
func (o *opener) awaitFirst(ctx context.Context) error {
	select {
	case <-o.first:
		return o.why
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *opener) firstOver(err error) {
	o.once.Do(func() {
		o.why = err
		close(o.first)
	})
}

// local and remote are the ends of the control connection at present, which may come back by another way.
func (o *opener) local() netip.Addr  { return AddressOf(o.control.line.LocalAddr()) }
func (o *opener) remote() netip.Addr { return AddressOf(o.control.line.RemoteAddr()) }

// prepare opens this side's end of a path.
func (o *opener) prepare(epoch uint64) (*conn, *setup, error) {
	place, err := Choose(o.cfg.device, o.local(), o.remote())
	if err != nil {
		return nil, nil, err
	}
	c, err := openConn(o.ctx, place, epoch, o.cfg.depth, o.own.slots, o.own.source)
	for err != nil && errors.Is(err, errSlots) && !o.link.hadPath() && o.own.halveBuffer(err) {
		c, err = openConn(o.ctx, place, epoch, o.cfg.depth, o.own.slots, o.own.source)
	}
	if err != nil {
		return nil, nil, err
	}
	s, err := c.describe(o.cfg.depth, o.own.slotBytes, o.own.slotCount())
	if err != nil {
		return nil, nil, errors.Join(err, c.close())
	}
	return c, s, nil
}

// offered is the peer's offer of a path; this side accepts.
func (o *opener) offered(payload []byte) error {
	if o.cfg.dial {
		return fmt.Errorf("%w: an offer to the side that makes them", ring.ErrProtocol)
	}
	peer, err := parseSetup(payload)
	if err != nil {
		return err
	}
	if o.link.hasPath() {
		return fmt.Errorf("%w: an offer of a second path", ring.ErrProtocol)
	}
	c, mine, err := o.prepare(peer.Epoch)
	if err == nil {
		if err = belongs(c.place, o.local(), o.remote(), peer.Endpoint); err != nil {
			_ = c.close()
		}
	}
	if err == nil {
		if err = c.connect(peer, min(o.cfg.depth, peer.Depth)); err != nil {
			_ = c.close()
		}
	}
	if err != nil {
		o.cfg.stats.Refused.Add(1)
		o.complainOnce(err)
		text := err.Error()
		result := int32(refusedForNow)
		if errors.Is(err, verbs.ErrUnavailable) {
			result = refusedForGood
		}
		o.control.say(transport.MessageHeader{Type: transport.MsgPathAnswer, Seq: peer.Epoch, Result: result},
			[]byte(text[:min(len(text), maxReason)]))
		return nil
	}
	if err := o.link.begin(c, peer); err != nil {
		return errors.Join(err, c.close())
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	o.link.confirm(c, text)
	o.link.follow(c)
	return nil
}

// complainOnce logs the first failure to open a path; later ones are for those who look closely.
func (o *opener) complainOnce(err error) {
	level := slog.LevelDebug
	o.noPath.Do(func() { level = slog.LevelInfo })
	o.cfg.log.Log(o.ctx, level, "no RDMA path; big copies go over TCP", "error", err)
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
func (o *opener) answered(h transport.MessageHeader, payload []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, answers := o.opening, o.answers
	if c == nil || h.Seq != c.epoch {
		return fmt.Errorf("%w: an answer to no offer", ring.ErrProtocol)
	}
	if h.Result != 0 {
		answers <- answer{err: &RefusedError{string(payload), h.Result == refusedForGood}}
		return nil
	}
	peer, err := parseSetup(payload)
	if err == nil {
		err = belongs(c.place, o.local(), o.remote(), peer.Endpoint)
	}
	if err == nil {
		err = o.link.begin(c, peer)
	}
	if err != nil {
		return err
	}
	answers <- answer{s: peer}
	return nil
}

// run opens a path whenever there is none, until the link ends.
func (o *opener) run() {
	pause := firstPause
	for {
		began := time.Now()
		err := o.open()
		if err == nil || errors.Is(err, ErrNoPlace) || o.attempt >= firstAttempts {
			o.firstOver(err)
		}
		var refused *RefusedError
		forGood := errors.Is(err, verbs.ErrUnavailable) || errors.As(err, &refused) && refused.ForGood
		if forGood && !o.link.hadPath() { // else a device is just being removed, and may come back
			o.firstOver(err)
			o.cfg.log.Info("RDMA is not used; big copies go over TCP", "reason", err)
			return
		}
		if err != nil {
			o.cfg.stats.Refused.Add(1)
			o.complainOnce(err)
		}
		if !o.link.awaitNone(o.ctx) {
			return
		}
		if time.Since(began) > 4*longestPause {
			pause = firstPause
		}
		select {
		case <-o.ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// open makes one attempt at a path.
func (o *opener) open() error {
	ctx, cancel := context.WithTimeout(o.ctx, answerTimeout)
	defer cancel()
	o.attempt++
	c, mine, err := o.prepare(o.attempt)
	if err != nil {
		return err
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return errors.Join(err, c.close())
	}
	answers := make(chan answer, 1)
	o.mu.Lock()
	o.opening, o.answers = c, answers
	o.mu.Unlock()
	o.control.say(transport.MessageHeader{Type: transport.MsgPathOffer, Seq: c.epoch}, text)
	// The peer answers, or its end of the connection does; an answer must not find the attempt given up.
	var a answer
	select {
	case a = <-answers:
	case <-o.ctx.Done():
		a.err = o.ctx.Err()
	}
	o.mu.Lock()
	o.opening = nil
	o.mu.Unlock()
	if a.err != nil {
		if c.began {
			o.link.finish(c, a.err)
		} else {
			_ = c.close()
		}
		return a.err
	}
	if err := c.connect(a.s, min(o.cfg.depth, a.s.Depth)); err != nil {
		c.cancel(err)
		o.link.finish(c, err)
		return err
	}
	o.link.follow(c)
	return o.link.tryOut(ctx, c)
}
