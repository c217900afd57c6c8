package rdma

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
)

// Handler is what a link calls. M is what its owner wants to know of a chunk that it sent. The methods are called
// without locks of the link, from its goroutines, and must not wait for the link.
type Handler[M any] interface {
	// Arrived is told of a chunk in a slot, which stays the owner's until [Link.Release].
	Arrived(c bulk.Chunk, slot int)
	// Placed is told of a chunk that lies in a transfer's window.
	Placed(c bulk.Chunk)
	// Sent is told once for every message that was taken, when its memory is free again: it has arrived, or has to be sent
	// by other means.
	Sent(m M, arrived bool)
	// Memory gives the destination of a download of so many bytes, or nil.
	Memory(id uint32, bytes uint64) []byte
	// Changed is told of every change of the state, after it.
	Changed()
	// Broken is told of the end of the control connection, and with it of the link. Where messages were under way, it is
	// not known what became of them.
	Broken(err error, underWay bool)
}

// Config says what a link needs.
type Config[M any] struct {
	Control *transport.Line // owned by the link
	Dial    bool            // this side opens the paths
	Device  string          // the wish of [Choose]
	Depth   int             // unfinished messages at most; 0: 64

	Slots     Memory // for arriving chunks, whole slots; may be empty
	SlotBytes int    // at most transport.MaxChunk
	Source    Memory // where chunks for windows lie; may be empty
	Pins      *Pins  // ranges whose registrations are kept; may be nil
	// bytes of registered memory of the link's own, in the place of Slots and Source, for what cannot be registered
	// itself; less than two slots: none
	Buffer int

	Handler Handler[M]
	Stats   *Stats
	Log     *slog.Logger
}

const defaultDepth = 64

// Link is one side of a session's RDMA.
//
// Locks: mu, "the link's lock", guards what stands below it, and of the path in use (conn) what its fields say; state
// and chunk are atomic. It is free while a driver posts, a chunk is copied, or the handler is told. Taken before it:
// outcomes.telling, opener.mu. Taken under it: the control connection's, for as long as a write takes, and that of a
// path's registry.
type Link[M any] struct {
	cfg     Config[M]
	log     *slog.Logger
	ctx     context.Context
	cancel  context.CancelFunc
	state   atomic.Int32
	chunk   atomic.Int64
	workers sync.WaitGroup

	control controlConn
	opener  opener
	own     ownMemory

	mu         sync.Mutex
	moved      *sync.Cond // room, credits, the state of paths
	peer       *ring.Peer[message[M]]
	peerSlots  int
	depth      int
	conn       *conn
	closing    bool // the peer's link ends: there will be no other path
	placements placements[M]
	outcomes   outcomes[M]
	watchdog   watchdog
	late       *time.Timer // until messages are acknowledged
	slots      []uint32    // of the last acknowledgement, and its payload, for the next one
	payload    []byte
	granting   []uint32 // what the peer grants; of the goroutine that reads the control connection
	broken     error
	limit      int // chunks under way that measuring found to be enough
	window     int // pieces of them that the device has at most
}

// message is what is noted of a chunk under way.
type message[M any] struct {
	m    M
	part uint32 // of the buffer, from which it is sent; ring.NoSlot: of none
}

// New starts a link. It begins in [bulk.Down].
func New[M any](cfg Config[M]) *Link[M] {
	if cfg.Depth == 0 {
		cfg.Depth = defaultDepth
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Stats == nil {
		cfg.Stats = &Stats{}
	}
	l := &Link[M]{cfg: cfg, log: cfg.Log}
	l.moved = sync.NewCond(&l.mu)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.chunk.Store(transport.MaxChunk)
	if err := l.control.init(cfg.Control); err != nil {
		l.log.Warn("sends of RDMA's control connection have no limit", "error", err)
	}
	l.placements.targets = make(map[uint32]*target[M])
	l.outcomes.own = &l.own
	l.watchdog.init(l.checkStall)
	l.late = time.AfterFunc(time.Hour, l.creditLate)
	l.late.Stop()
	l.own.mu, l.own.moved, l.own.log = &l.mu, l.moved, l.log
	l.own.slots, l.own.slotBytes, l.own.source = cfg.Slots, cfg.SlotBytes, cfg.Source
	if err := l.own.makeBuffer(cfg.Buffer); err != nil {
		l.log.Warn("no memory for RDMA's buffer", "bytes", cfg.Buffer, "error", err)
	}
	l.opener.init(l.ctx, l, &l.control, &l.own, openerConfig{
		dial: cfg.Dial, device: cfg.Device, depth: cfg.Depth, stats: cfg.Stats, log: l.log,
	})
	if cfg.Pins != nil {
		cfg.Pins.tell(l.forget)
	}
	l.workers.Go(func() { l.ended(l.control.read(l.message)) })
	if cfg.Dial {
		l.workers.Go(l.opener.run)
	}
	return l
}

// AddressOf is the IP address of an end of a TCP connection, and not valid for others.
func AddressOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// State says whether there is a path.
func (l *Link[M]) State() bulk.State { return bulk.State(l.state.Load()) }

// ChunkBytes is the size of chunks that suits the path.
func (l *Link[M]) ChunkBytes() int { return int(l.chunk.Load()) }

// AwaitFirst waits for the first path. It gives the reason why there is none where that will not change by itself, or
// after some attempts.
func (l *Link[M]) AwaitFirst(ctx context.Context) error { return l.opener.awaitFirst(ctx) }

// Describe says over what chunks travel, for people; it is empty without a path.
func (l *Link[M]) Describe() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || !l.conn.usable {
		return ""
	}
	return l.conn.describeText()
}

// Close ends the link. Messages that are not finished are not told of any more.
func (l *Link[M]) Close() {
	l.cancel()
	l.cfg.Control.Shutdown()
	l.mu.Lock()
	l.moved.Broadcast()
	l.mu.Unlock()
	l.workers.Wait()
	l.control.close()
	l.watchdog.timer.Stop()
	l.late.Stop()
	if l.cfg.Pins != nil {
		l.cfg.Pins.tell(nil)
	}
	l.own.freeBuffer()
}

// Region is the program's memory, registered for chunks that are sent from it.
type Region struct {
	r      region
	copied bool // it cannot be registered; chunks go through the buffer
}

// Register registers memory from which chunks are sent, until [Region.Release]; it must stay mapped. It fails where
// there is no path, or the memory cannot be registered and there is no buffer.
func (l *Link[M]) Register(data []byte) (Region, error) {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c == nil || len(data) == 0 {
		return Region{}, errClosed
	}
	r, err := c.register(l.cfg.Pins, data, 0, l.cfg.Stats)
	if err == nil || errors.Is(err, errClosed) {
		return Region{r: r}, err
	}
	l.own.refused(err)
	if l.own.buffer == nil {
		return Region{}, err
	}
	return Region{region{c, c.sourceMR, true}, true}, nil
}

// Release ends the registration; nothing is being sent from it any more.
func (r Region) Release() { r.r.release() }

// Send sends a chunk from registered memory into a slot of the peer; it waits for a credit. False says that the chunk
// was not taken: there is no path, or it is not the one that the memory is registered for. Where a chunk says that more
// follow, the caller must send them, as long as there is this path.
func (l *Link[M]) Send(ch bulk.Chunk, data []byte, from Region, m M) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	there := func() bool { return l.State() == bulk.Up && l.conn == from.r.conn }
	part, at := ring.NoSlot, address(data)
	if from.copied {
		for there() && len(l.own.spareParts) == 0 {
			l.moved.Wait()
		}
		if !there() {
			return false
		}
		part, at = l.own.takePart(data)
	}
	for there() && (l.peer.Room() == 0 || l.peer.Credits() == 0 || l.peer.Unfinished() >= l.limit) {
		l.moved.Wait()
	}
	if !there() {
		l.own.freePart(part)
		return false
	}
	c := l.conn
	position, slot, _ := l.peer.Send(message[M]{m, part}, true)
	h := header{position: position, slot: slot, chunk: ch}
	l.posted(c, c.post(l.depth, &h, at, from.r.mr.LKey, c.peer.Slots.Addr+uint64(slot)*uint64(c.peer.SlotBytes),
		c.peer.Slots.Key), len(data))
	l.flush(c)
	return true
}

// watchdog counts the steps since anything moved on a path: short ones, because a process that does not run sees
// nothing move. The link's lock guards it.
type watchdog struct {
	idle  int
	timer *time.Timer
}

func (w *watchdog) init(step func()) {
	w.timer = time.AfterFunc(time.Hour, step)
	w.timer.Stop()
}

// start begins to count.
func (w *watchdog) start() {
	w.idle = 0
	w.goOn()
}

// goOn waits for another step.
func (w *watchdog) goOn() { w.timer.Reset(stallStep) }

// moved says that something has moved.
func (w *watchdog) moved() { w.idle = 0 }

// stalled counts a step, and says whether nothing has moved for long. If not, the next step comes.
func (w *watchdog) stalled() bool {
	if w.idle++; time.Duration(w.idle)*stallStep < stallTimeout {
		w.goOn()
		return false
	}
	return true
}

// checkStall fails a path on which nothing has moved for long.
func (l *Link[M]) checkStall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.conn
	if c == nil || !c.began || l.peer.Unfinished() == 0 && !c.probing {
		return
	}
	if !l.watchdog.stalled() {
		return
	}
	unacknowledged, pending := l.peer.Open()
	if pending == 0 && !c.probing { // everything is there; the peer is only slow to say so
		l.watchdog.goOn()
		return
	}
	c.cancel(fmt.Errorf("%w for %v: %d messages are unacknowledged, the device is not through with %d", errStalled,
		stallTimeout, unacknowledged, pending))
}

// errStalled is why such a path ends.
var errStalled = errors.New("the path has moved nothing")

// Want asks the peer for a window into the memory of a download. Chunks for it can be placed from then on. It says no
// where there is no path.
func (l *Link[M]) Want(id uint32, seq, bytes uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.State() != bulk.Up {
		return false
	}
	l.placements.want(id, seq)
	l.control.say(transport.MessageHeader{Type: transport.MsgWindowWant, ID: id, Seq: seq, Aux: bytes}, nil)
	return true
}

// Place sends a chunk, which lies at an address of the link's Source, to the window of its transfer, or into a slot
// where the peer cannot give one. It does not wait. False says that the chunk was not taken: there is no path, or no
// place.
func (l *Link[M]) Place(ch bulk.Chunk, addr uint64, m M) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.State() != bulk.Up {
		return false
	}
	now, ok := l.placements.add(placement[M]{chunk: ch, addr: addr, m: m}, l.peerSlotBytes())
	if now {
		l.pump()
	}
	return ok
}

// Forget ends a transfer's window on this side; all its chunks have been placed.
func (l *Link[M]) Forget(id uint32, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.placements.forget(id, seq)
}

// peerSlotBytes is the size of the peer's slots, less than 0 where there are none. mu is held.
func (l *Link[M]) peerSlotBytes() int {
	if l.conn == nil || l.peerSlots == 0 {
		return -1
	}
	return l.conn.peer.SlotBytes
}

// pump posts placements while there is room. mu is held.
func (l *Link[M]) pump() {
	c := l.conn
	queue, n := l.placements.queue, 0
	for ; n < len(queue) && c != nil && c.usable && c.ctx.Err() == nil && l.peer.Room() > 0; n++ {
		p := &queue[n]
		position, slot, ok := l.peer.Send(message[M]{p.m, ring.NoSlot}, p.slot)
		if !ok {
			break
		}
		if p.slot {
			p.remote, p.key = c.peer.Slots.Addr+uint64(slot)*uint64(c.peer.SlotBytes), c.peer.Slots.Key
		}
		h := header{position: position, slot: slot, chunk: p.chunk}
		l.posted(c, c.post(l.depth, &h, p.addr, c.sourceMR.LKey, p.remote, p.key), int(p.chunk.Bytes))
	}
	if n > 0 {
		l.placements.posted(n)
		c.toPost.Signal()
	}
}

// Release gives slots back that [Handler.Arrived] told of.
func (l *Link[M]) Release(slots ...uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if err := l.peer.Release(s); err != nil {
			l.log.Error("a slot was released that is not in use", "slot", s, "error", err)
		}
	}
	l.credit(false)
}

const ackDelay = 2 * time.Millisecond

// credit acknowledges and grants where it is time to, see [ring.Receiver.Due]. mu is held.
func (l *Link[M]) credit(waits bool) {
	now, soon := l.peer.Due(waits)
	if now {
		l.sayCredit()
	} else if soon {
		l.late.Reset(ackDelay)
	}
}

// creditLate acknowledges what [Link.credit] has put off.
func (l *Link[M]) creditLate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peer != nil {
		l.credit(true)
	}
}

// sayCredit acknowledges and grants. mu is held.
func (l *Link[M]) sayCredit() {
	if l.conn == nil || !l.conn.known || l.peer.State() != ring.Up {
		return
	}
	l.late.Stop()
	l.slots = l.peer.Offer(l.slots[:0])
	l.payload = appendSlots(l.payload[:0], l.slots)
	l.control.say(transport.MessageHeader{Type: transport.MsgPathCredit, Seq: l.conn.epoch, Aux: l.peer.Received()},
		l.payload)
}

// EndWindow takes back the window of a download, whose memory may be freed after that as soon as the program likes.
func (l *Link[M]) EndWindow(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conn; c != nil {
		if o := c.windows.open[id]; o != nil {
			if err := c.revoke(o); err != nil {
				c.cancel(err)
			}
		}
	}
}

// forget ends the registration of a pinned range that is about to be unmapped.
func (l *Link[M]) forget(p pin) {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c == nil {
		return
	}
	for deadline := time.Now().Add(forgetTimeout); !c.forget(p); time.Sleep(forgetPause) {
		if time.Now().After(deadline) {
			c.cancel(errors.New("a registration cannot be ended"))
			return
		}
	}
}

func (l *Link[M]) setState(st bulk.State) {
	if bulk.State(l.state.Swap(int32(st))) != st {
		l.moved.Broadcast()
	}
}

// ended is called when the control connection has ended.
func (l *Link[M]) ended(err error) {
	closed := l.ctx.Err() != nil
	l.opener.firstOver(err)
	l.cancel() // and every path
	l.cfg.Control.Shutdown()
	l.mu.Lock()
	l.broken = err
	for l.conn != nil {
		l.moved.Wait()
	}
	underWay := l.peer != nil && l.peer.State() != ring.Down && l.peer.Unfinished() > 0
	if !underWay {
		l.setState(bulk.Down)
	}
	l.moved.Broadcast()
	l.mu.Unlock()
	if !closed {
		l.cfg.Handler.Broken(err, underWay)
	}
}

// wake wakes everybody who waits for a change.
func (l *Link[M]) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moved.Broadcast()
}

// kindOf and its like take a request's identifier apart.
func kindOf(id uint64) uint64 { return id & workKind }

func numberOf(id uint64) uint64 { return id &^ workKind }
