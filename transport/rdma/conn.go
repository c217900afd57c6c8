package rdma

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/verbs"
)

const (
	// A dead path is noticed after stallTimeout at the latest, a step late; then each side waits drainTimeout at most
	// before it says its farewell, one after the other. So chunks go on over TCP within 0.95 s and two ways of a message.
	stallTimeout = 600 * time.Millisecond // no completion for so long: the path is dead, whatever the device believes
	stallStep    = stallTimeout / 12
	drainTimeout = 150 * time.Millisecond // for what a failed queue pair gives back
	// Several attempts within stallTimeout, though some devices double the time: with 134 ms two lost packets of a chunk
	// can take longer.
	ackTimeout = 14
	ackTime    = 4096 * time.Nanosecond << ackTimeout // 67 ms
	ackRetries = 6                                    // 7 is "without end" to some implementations
	lookEvery  = 200 * time.Millisecond               // whether the device is still there
	pollBatch  = 64
	extraSends = 64 // requests beside messages: measuring, windows
	// A chunk is written in pieces, of so many bytes at most, each with a completion for the sender, while the peer hears
	// of the last one only. So the device gets work before it has used up what it has; one in software does part of its
	// work in the time of whoever posts, and all of the rest in that of the packets that arrive.
	pieceBytes = 256 << 10
	chunkSends = 1 + transport.MaxChunk/pieceBytes // a chunk's requests at most: its header and its pieces
)

// Kinds of work, in the upper byte of a request's identifier.
const (
	workHeader uint64 = iota << 56
	workPart          // a piece of a message, but for the last one
	workData
	workRecv
	workBind
	workInvalidate
	workProbe
	workKind = 0xff << 56
)

// conn is one path: everything on the device. It is made for one epoch and thrown away with it.
type conn struct {
	epoch   uint64
	place   *Place
	dev     *verbs.Device
	pd      *verbs.PD
	cq      *verbs.CQ
	qp      *verbs.QP
	ctx     context.Context
	cancel  context.CancelCauseFunc
	watches sync.WaitGroup

	headers    []byte // the peer writes them
	outHeaders []byte
	headersMR  *verbs.MR
	outMR      *verbs.MR
	slotsMR    *verbs.MR // this side's slots
	sourceMR   *verbs.MR // memory from which messages are taken, where it is always the same
	inline     verbs.SendFlags
	peer       *setup

	recvs   int  // receive requests that are posted
	sends   int  // pieces of messages that have not completed, well or badly
	probed  int  // writes that measured
	probing bool // such writes are under way
	began   bool
	known   bool // the peer has this side's answer, or made it: credits may follow
	usable  bool // messages may be sent
	piece   int  // bytes of a piece of one
	gone    bool // the queue pair is being freed, nothing may be posted any more; guarded by the link's lock
	windows windows

	registry   registry
	twoWindows bool // the device has memory windows of type 2

	// Of the goroutine that polls.
	done    [pollBatch]verbs.Completion
	reposts [pollBatch]verbs.RecvRequest

	// Guarded by the link's lock.
	pending  []verbs.SendRequest // messages that are to be posted
	posting  []verbs.SendRequest // those that are being posted, without the lock
	inDevice int                 // pieces that were posted and have not completed
	flushes  bool                // somebody posts
	nowBound []*opening          // windows that the peer is to be told of
	toPost   *sync.Cond          // for the goroutine that does so for the others
}

// errSlots is wrapped by errors of registering a side's own memory.
var errSlots = errors.New("RDMA's own memory cannot be registered")

// openConn opens the device and prepares this side's end of a path.
func openConn(
	parent context.Context, place *Place, epoch uint64, depth int, slots, source Memory,
) (c *conn, err error) {
	c = &conn{epoch: epoch, place: place, piece: pieceBytes}
	c.ctx, c.cancel = context.WithCancelCause(parent)
	defer func() {
		if err != nil {
			_ = c.close() // what it says is less than why
			c = nil
		}
	}()
	if c.dev, err = verbs.Open(place.Device); err != nil {
		return
	}
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return
	}
	sends := depth*chunkSends + extraSends
	if c.cq, err = c.dev.CreateCQ(sends + 2*depth + extraSends); err != nil {
		return
	}
	if c.headers, err = mapMemory(depth * headerBytes); err != nil {
		return
	}
	if c.headersMR, err = c.pd.Register(c.headers, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return
	}
	if c.outHeaders, err = mapMemory(depth * headerBytes); err != nil {
		return
	}
	if c.outMR, err = c.pd.Register(c.outHeaders, 0); err != nil {
		return
	}
	if c.slotsMR, err = slots.on(c.pd, verbs.LocalWrite|verbs.RemoteWrite); err == nil {
		c.sourceMR, err = source.on(c.pd, 0)
	}
	if err != nil {
		err = fmt.Errorf("%w (%d bytes): %w", errSlots, slots.Bytes+source.Bytes, err)
		return
	}
	want := verbs.QPConfig{SendCQ: c.cq, SendDepth: sends, RecvDepth: depth + 1, InlineBytes: headerSize}
	if c.qp, err = c.pd.CreateQP(want); err != nil {
		want.InlineBytes = 0
		if c.qp, err = c.pd.CreateQP(want); err != nil {
			return
		}
	}
	if c.qp.Config().InlineBytes >= headerSize {
		c.inline = verbs.Inline
	}
	var a *verbs.DeviceAttributes
	if a, err = c.dev.Attributes(); err != nil {
		return
	}
	c.twoWindows = a.WindowType2 && a.MaxMW > 0
	c.registry.kept, c.registry.others = make(map[pin]*verbs.MR), make(map[*verbs.MR]struct{})
	c.windows.open, c.windows.work = make(map[uint32]*opening), make(map[uint64]*opening)
	return
}

func (c *conn) local() verbs.Local {
	return verbs.Local{Port: c.place.Port, GIDIndex: c.place.GID.Index}
}

// describe gives what the peer has to know.
func (c *conn) describe(depth, slotBytes, slotCount int) (*setup, error) {
	e, err := c.qp.Endpoint(c.local())
	if err != nil {
		return nil, err
	}
	s := &setup{
		Epoch: c.epoch, Device: c.place.Device, Endpoint: e, Depth: depth,
		Headers: memoryKey{c.headersMR.Addr, c.headersMR.RKey}, SlotBytes: slotBytes, SlotCount: slotCount,
	}
	if c.slotsMR != nil {
		s.Slots = memoryKey{c.slotsMR.Addr, c.slotsMR.RKey}
	}
	return s, nil
}

// connect joins the queue pairs.
func (c *conn) connect(peer *setup, depth int) error {
	c.peer = peer
	o := verbs.ConnectOptions{Access: verbs.RemoteWrite, Timeout: ackTimeout, Retries: ackRetries}
	if err := c.qp.Connect(c.local(), peer.Endpoint, o); err != nil {
		return err
	}
	for c.recvs < depth {
		n := min(depth-c.recvs, len(c.reposts))
		if err := c.postRecvs(n); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) postRecvs(n int) error {
	for i := range n {
		c.reposts[i] = verbs.RecvRequest{ID: workRecv}
	}
	k, err := c.qp.PostRecv(c.reposts[:n])
	c.recvs += k
	return err
}

// watch fails the path when the device reports that it, its port or the queue pair is down.
func (c *conn) watch() {
	for {
		e, err := c.dev.NextEvent(c.ctx)
		if err != nil {
			if c.ctx.Err() == nil {
				c.cancel(err)
			}
			return
		}
		switch {
		case e.Type == verbs.EventDeviceFatal, e.Type == verbs.EventQPFatal && e.Of(c.qp),
			e.Type == verbs.EventPortDown && e.Port == c.place.Port:
			c.cancel(fmt.Errorf("%s: %s", c.place.Device, e.Name))
			return
		}
	}
}

// lookOut fails the path when the device is being removed.
func (c *conn) lookOut() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
			if c.dev.Removed() {
				c.cancel(fmt.Errorf("%s: the device is being removed", c.place.Device))
				return
			}
		}
	}
}

// quiesce stops the path and calls handle for what still completes. When everything that was posted has come back,
// nothing can arrive any more and no memory is read; where that does not happen in time, the queue pair's end sees to
// it. gone is called before that end.
func (c *conn) quiesce(handle func([]verbs.Completion), gone func()) {
	if err := c.qp.Fail(); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		for c.recvs > 0 || c.sends > 0 {
			n, err := c.cq.WaitPoll(ctx, c.done[:])
			if err != nil {
				break
			}
			handle(c.done[:n])
		}
		if c.recvs == 0 && c.sends == 0 {
			return
		}
	}
	gone()
	_ = c.qp.Close()
	for {
		n, err := c.cq.Poll(c.done[:])
		if n == 0 || err != nil {
			return
		}
		handle(c.done[:n])
	}
}

// abandon ends what can be posted, and the windows, because the queue pair is about to be freed. The link's lock is
// held.
func (c *conn) abandon() {
	c.gone = true
	_ = c.windows.close() // again in close, where something is wrong
}

// close frees everything. Nobody uses the path any more.
func (c *conn) close() error {
	c.cancel(context.Canceled)
	c.watches.Wait()
	err := c.windows.close() // before the queue pair that they are bound on
	keep := func(e error) { err = errors.Join(err, e) }
	if c.qp != nil {
		keep(c.qp.Close())
	}
	keep(c.registry.close())
	for _, m := range []*verbs.MR{c.headersMR, c.outMR, c.slotsMR, c.sourceMR} {
		if m != nil {
			keep(m.Close())
		}
	}
	if c.cq != nil {
		keep(c.cq.Close())
	}
	if c.pd != nil {
		keep(c.pd.Close())
	}
	if c.dev != nil {
		keep(c.dev.Close())
	}
	for _, b := range [][]byte{c.headers, c.outHeaders} {
		if b != nil {
			keep(unmapMemory(b))
		}
	}
	return err
}
