package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport/resume"
)

// Resumable is a [Conn] whose stream outlives the sockets that carry it: where one breaks, its owner, who is told of
// it, brings another ([Resumable.Detach], [Resumable.Attach]), and those who send and receive notice nothing but that
// it takes a while. Package resume has the account. The number of the descriptor stays the same.
//
// What is sent is kept in a window until the peer has received it. As on a connection with TLS, whoever is told
// [ErrAgain] offers the same bytes again before others.
//
// Locks: sending guards out and what is written to the socket, receiving guards in and what is read from it; the first
// is taken before the second. Both are held for moments, but receiving while a line's thread waits in the kernel for
// the rest of a big record, until the socket brings it or is shut down. The socket changes under both, and under
// replacing, which is taken last. What else changes is atomic.
type Resumable struct {
	fd     int // of the socket at present, as long as the process has not given the number to something else
	remote string
	peerTo int // bytes of the peer's that are received before it is told so
	lost   func(error)
	blocks bool // those who receive wait in the kernel

	sending  sync.Mutex
	out      *resume.Out
	accepted int // bytes that are kept, and that whoever sends has not been told of
	timed    timed

	receiving sync.Mutex
	in        *resume.In
	bufs      [maxVec][]byte

	replacing sync.Mutex // held while a socket is given up or replaced; taken last
	socket    atomic.Pointer[socket]
	state     atomic.Int32
	changed   Bell                  // rung with the state, and where a full window is full no longer
	ended     chan struct{}         // closed in the state resumeEnded
	why       atomic.Pointer[error] // of that state; set before it

	counted, told atomic.Uint64 // bytes: received; those that the peer was told of
	peer, taken   atomic.Uint64 // bytes that the peer has received; those of which the window knows it
	needs         atomic.Uint64 // the window is full until the peer has received so much
	say           atomic.Bool   // the peer has to be told how much was received
	owes          atomic.Bool   // ... and the socket has no room for it
	ready         atomic.Bool   // bytes wait in the buffer
	dry           atomic.Bool   // a broken socket has brought all
	lends         atomic.Bool   // bytes are lent, so that news of the peer gives some back
	readers       atomic.Int32  // who wait for bytes
	pollers       atomic.Int32  // who ask the kernel about the descriptor
	replayed      atomic.Uint64 // bytes that were sent again
}

var _ interface {
	Conn
	Timed
} = (*Resumable)(nil)

// States of a Resumable.
const (
	resumeAttached int32 = iota
	resumeLost           // the socket is broken; what it brought may still be read
	resumeDetached       // nobody uses it
	resumeEnded
)

// Sizes of a Resumable. A peer may send a window ahead of what is read; small records take more room than their bytes.
const (
	resumeBuffer = 16 << 10
	overhead     = 2
	stuckNap     = 5 * time.Millisecond
	// bytes for which it is worth to wait in one system call
	leastBlocking = 32 << 10
	pollerNap     = 100 * time.Microsecond
)

// socket carries a stream at present.
type socket struct {
	dialled
	ends [2]net.Addr // here and there
}

// Windows are how many bytes of a stream are kept at most, by who sends them.
type Windows struct{ Own, Peer int }

// Windows of a session's connections.
var (
	// More than bulk.MinTransfer, so that a copy that goes over the main connection need not wait for the peer's word.
	MainWindows = Windows{Own: 4 << 20, Peer: 4 << 20} // as the client sees them
	LineWindows = Windows{Own: 4 << 20, Peer: 4 << 20}
)

// Reversed are the windows as the peer sees them.
func (w Windows) Reversed() Windows { return Windows{Own: w.Peer, Peer: w.Own} }

// Errors of connections that may come back.
var (
	// ErrReplaced says that the peer has come with another socket before this side lost the present one.
	ErrReplaced = errors.New("the connection was replaced by another one")
	// ErrOver says that a stream has ended, so that it cannot get another socket.
	ErrOver = errors.New("the stream has ended")
)

// NewResumable makes one of a connection that it owns from then on: a Conn of [Dial] or [NewTLSConn]. lost is told of
// each socket that breaks, by a thread that must not wait, nor use the connection.
func NewResumable(c Conn, w Windows, lost func(error)) (*Resumable, error) {
	d, ok := c.(dialled)
	if !ok {
		return nil, fmt.Errorf("a connection of type %T cannot be resumed", c)
	}
	r := &Resumable{
		fd: c.FD(), remote: c.Remote(), peerTo: w.Peer / 4, lost: lost, ended: make(chan struct{}),
		out: resume.NewOut(w.Own), in: resume.NewIn(resumeBuffer, resumeBuffer+overhead*w.Peer),
	}
	r.socket.Store(&socket{d, endsOf(d.FD())})
	return r, nil
}

// Transport is the socket's.
func (r *Resumable) Transport() string { return r.socket.Load().Transport() }

// KeepTimes has the present socket do it.
func (r *Resumable) KeepTimes() { r.socket.Load().KeepTimes() }

// Since is what the present socket says.
func (r *Resumable) Since() time.Duration { return r.socket.Load().Since() }

// Remote is the peer of the first socket.
func (r *Resumable) Remote() string { return r.remote }

// FD is the descriptor, whatever socket it stands for.
func (r *Resumable) FD() int { return r.fd }

// Ended is closed when the stream has ended for good, on this side.
func (r *Resumable) Ended() <-chan struct{} { return r.ended }

// IsOver says whether it has.
func (r *Resumable) IsOver() bool { return r.state.Load() == resumeEnded }

// Received is how many bytes of the stream have come.
func (r *Resumable) Received() uint64 { return r.counted.Load() }

// Attached says whether the stream has a socket that works, as far as is known.
func (r *Resumable) Attached() bool { return r.state.Load() == resumeAttached }

// Send takes bytes over, and says that they were sent when the socket has them.
func (r *Resumable) Send(bufs [][]byte) (n int, err error) {
	r.sending.Lock()
	defer r.sent()
	return r.send(bufs)
}

// sent gives the lock of those who send back, and tells the peer what somebody else wanted it to be told meanwhile.
func (r *Resumable) sent() {
	r.sending.Unlock()
	if r.say.Load() || r.owes.Load() {
		r.tell()
	}
	r.giveBack()
}

func (r *Resumable) send(bufs [][]byte) (int, error) {
	if r.state.Load() == resumeEnded {
		return 0, fmt.Errorf("send to %s: %w", r.remote, r.reason())
	}
	if r.accepted == 0 {
		if err := r.makeRoom(1); err != nil {
			return 0, err
		}
		if r.accepted = r.out.Write(bufs); r.accepted == 0 {
			for _, b := range bufs {
				if len(b) > 0 {
					r.needs.Store(r.out.Full(1))
					return 0, ErrAgain
				}
			}
			return 0, nil
		}
		r.needs.Store(0)
	}
	if !r.pump(false) {
		return 0, ErrAgain
	}
	n := r.accepted
	r.accepted = 0
	return n, nil
}

// makeRoom forgets what the peer has received. Where there is no room for n bytes the socket is asked for news: whoever
// reads may be far behind. sending is held.
func (r *Resumable) makeRoom(n int) error {
	err := r.settle()
	if err == nil && r.out.Room() < n && r.state.Load() == resumeAttached {
		r.readAhead()
		err = r.settle()
	}
	if err != nil {
		r.end(err)
	}
	return err
}

func (r *Resumable) settle() error {
	peer := r.peer.Load()
	r.taken.Store(peer)
	r.timed.note(peer)
	return r.out.Acknowledged(peer)
}

// pump writes what is pending, and says whether that is all. sending is held.
func (r *Resumable) pump(say bool) bool {
	for {
		pending := r.out.Pending(r.counted.Load(), say)
		if pending == nil {
			r.told.Store(r.out.Told())
			return true
		}
		if r.state.Load() != resumeAttached {
			return false
		}
		n, err := r.socket.Load().Send(pending)
		r.out.Sent(n)
		if err != nil {
			if !errors.Is(err, ErrAgain) {
				r.lose(err)
			}
			return false
		}
	}
}

// tell tells the peer how much was received. Where somebody is sending, that one does it.
func (r *Resumable) tell() {
	r.say.Store(true)
	for r.say.Load() && r.sending.TryLock() {
		r.say.Store(false)
		if r.state.Load() == resumeAttached {
			r.owes.Store(!r.pump(true))
		}
		r.sending.Unlock()
	}
}

// Recv gives bytes of the stream, and [io.EOF] behind the peer's farewell.
func (r *Resumable) Recv(bufs [][]byte) (int, error) {
	r.receiving.Lock()
	defer r.received()
	return r.receive(bufs)
}

// received gives the lock of those who receive back, and does what follows from what came: the peer is told how much
// that was, and what it has received is given back.
func (r *Resumable) received() {
	r.noteLocked()
	r.receiving.Unlock()
	if r.counted.Load()-r.told.Load() >= uint64(r.peerTo) {
		r.tell()
	}
	r.giveBack()
}

// noteLocked tells those without the lock what is known. receiving is held.
func (r *Resumable) noteLocked() {
	r.counted.Store(r.in.Count())
	r.ready.Store(r.in.Ready())
	before := r.peer.Swap(r.in.Peer())
	if needs := r.needs.Load(); before < needs && !r.isFull() { // in this order, so that nobody misses it
		r.changed.Ring()
	}
}

func (r *Resumable) receive(bufs [][]byte) (int, error) {
	for {
		if n, err := r.drain(bufs); n > 0 || err != nil {
			return n, err
		}
		switch r.state.Load() {
		case resumeEnded:
			if errors.Is(r.reason(), io.EOF) {
				return 0, io.EOF
			}
			return 0, fmt.Errorf("receive from %s: %w", r.remote, r.reason())
		case resumeDetached:
			return 0, ErrAgain
		}
		vec, direct := r.vector(bufs)
		n, err := r.socket.Load().Recv(vec)
		clear(r.bufs[:])
		switch {
		case errors.Is(err, unix.EFAULT):
			return 0, err
		case err != nil:
			if !errors.Is(err, ErrAgain) {
				r.lose(err)
			}
			r.dry.Store(r.state.Load() == resumeLost)
			return 0, ErrAgain
		}
		took := min(n, direct)
		r.in.Took(took)
		r.in.Received(n - took)
		if took > 0 {
			return took, nil
		}
	}
}

// RecvFull is Recv for a thread that has nothing else to do: it waits until b is full, where the socket's next bytes
// belong there, and only so long for others. It gives [ErrAgain] where [Resumable.Wait] has to be called.
func (r *Resumable) RecvFull(b []byte) (n int, err error) {
	r.receiving.Lock()
	defer r.received()
	if plain, ok := r.socket.Load().dialled.(*tcpConn); ok && r.state.Load() == resumeAttached && !plain.early.Load() {
		if most := min(len(b), r.in.Direct()); most >= leastBlocking {
			n, err = r.block(plain, b[:most])
		}
	}
	if n == 0 && err == nil {
		n, err = r.receive([][]byte{b})
	}
	return n, err
}

// block receives all of b, or less where the socket breaks. It ends when the socket is shut down.
func (r *Resumable) block(c *tcpConn, b []byte) (int, error) {
	for {
		n, err := recvAll(c.fd, b)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EFAULT:
			return 0, err
		case err == unix.EAGAIN:
			return 0, ErrAgain
		case err != 0:
			r.lose(err)
			return 0, ErrAgain
		case n == 0:
			r.lose(io.EOF)
			return 0, ErrAgain
		}
		r.in.Took(n)
		return n, nil
	}
}

// drain reads what lies in the buffer. Where nothing does it gives nothing.
func (r *Resumable) drain(bufs [][]byte) (n int, err error) {
	for _, b := range bufs {
		for len(b) > 0 && err == nil {
			var k int
			k, err = r.in.Read(b)
			b, n = b[k:], n+k
		}
	}
	switch {
	case n > 0, errors.Is(err, resume.ErrShort):
		return n, nil
	case errors.Is(err, resume.ErrProtocol):
		r.end(err)
	}
	return n, err
}

// vector is where the socket's next bytes go: as many of them into bufs as are the stream's for certain.
func (r *Resumable) vector(bufs [][]byte) (vec [][]byte, direct int) {
	left, n := r.in.Direct(), 0
	for _, b := range bufs {
		if n == maxVec-1 || left == 0 {
			break
		}
		b = b[:min(len(b), left)]
		r.bufs[n] = b
		n, direct, left = n+1, direct+len(b), left-len(b)
	}
	if left == 0 || direct == 0 { // else what comes next belongs behind the rest of bufs
		r.bufs[n] = r.in.Room()
		n++
	}
	return r.bufs[:n], direct
}

// readAhead takes what the socket has into the buffer, so that what the peer says about its receiving is heard. It
// leaves that to whoever waits for bytes, and would not be woken by those in the buffer. sending is held.
func (r *Resumable) readAhead() {
	if !r.receiving.TryLock() {
		return // somebody reads
	}
	defer r.receiving.Unlock()
	if r.readers.Load() == 0 {
		r.readAheadLocked()
		r.noteLocked()
	}
}

func (r *Resumable) readAheadLocked() {
	for {
		r.bufs[0] = r.in.Room()
		if len(r.bufs[0]) == 0 {
			r.end(fmt.Errorf("%w: the peer sends more than its window", resume.ErrProtocol))
			return
		}
		n, err := r.socket.Load().Recv(r.bufs[:1])
		r.bufs[0] = nil
		if err != nil {
			if !errors.Is(err, ErrAgain) {
				r.lose(err)
			}
			return
		}
		r.in.Received(n)
	}
}

// Wait waits for what [Conn] says. While the stream has no socket nothing happens.
func (r *Resumable) Wait(ev Events, timeout time.Duration) (Events, error) {
	return r.WaitOr(ev, timeout, nil)
}

// WaitOr waits for what [Conn] says. While the stream has no socket nobody is woken.
func (r *Resumable) WaitOr(ev Events, timeout time.Duration, w *Waker) (Events, error) {
	deadline := time.Time{}
	if timeout >= 0 {
		deadline = time.Now().Add(timeout)
	}
	if ev&Readable != 0 {
		r.readers.Add(1)
		defer r.readers.Add(-1)
		r.receiving.Lock()   // from here on nobody else takes what is waited for
		r.receiving.Unlock() //nolint:staticcheck // what was taken before is seen
	}
	left := func() time.Duration {
		if timeout < 0 {
			return -1
		}
		return max(0, time.Until(deadline))
	}
	for first := true; ; first = false {
		if !first && (timeout >= 0 && left() == 0 || w.isRung()) {
			return 0, nil
		}
		seen := r.changed.Now()
		if ev&Readable != 0 && r.ready.Load() {
			return Readable, nil
		}
		switch r.state.Load() {
		case resumeEnded:
			return Readable | Writable, nil
		case resumeLost, resumeDetached:
			if ev&Readable != 0 && r.state.Load() == resumeLost && !r.dry.Load() {
				return Readable, nil // what the socket has brought
			}
			r.changed.AwaitFor(seen, left())
			continue
		}
		got, err := r.look(ev, seen, left(), w)
		if got != 0 || err != nil {
			return got, err
		}
	}
}

// look waits for the socket, at most so long, and does what nobody else may do: a full window waits for news of the
// peer, and what the peer has to be told goes out.
func (r *Resumable) look(ev Events, seen uint32, most time.Duration, w *Waker) (Events, error) {
	want, full := ev, ev&Writable != 0 && r.isFull()
	if full {
		want = want&^Writable | Readable
		if most < 0 || most > stuckNap { // whoever reads may have heard it
			most = stuckNap
		}
		if ev&Readable == 0 && r.isRead() {
			r.changed.AwaitFor(seen, most)
			return 0, nil
		}
	}
	if r.owes.Load() {
		want |= Writable
	}
	got, err := r.poll(want, most, w)
	if err != nil {
		return 0, err
	}
	if got&Writable != 0 && r.owes.Load() {
		r.tell()
	}
	if full {
		if got&Readable != 0 {
			r.sending.Lock()
			r.readAhead()
			r.sent()
		}
		if got &^= Writable; !r.isFull() {
			got |= Writable
		}
	}
	if r.state.Load() == resumeEnded {
		return Readable | Writable, nil
	}
	return got & ev, nil
}

// poll waits for the socket, if there is one.
func (r *Resumable) poll(want Events, most time.Duration, w *Waker) (Events, error) {
	r.pollers.Add(1)
	defer r.pollers.Add(-1)
	if r.state.Load() != resumeAttached {
		return 0, nil
	}
	return r.socket.Load().WaitOr(want, most, w)
}

// awaitPollers returns when nobody asks the kernel about the descriptor any more. The socket has been shut down, which
// wakes them, and may not be replaced before: a poll that wakes looks at what the number stands for then, and goes on
// to sleep where the old socket was.
func (r *Resumable) awaitPollers() {
	for i := 0; r.pollers.Load() > 0; i++ {
		if i < 1000 {
			yield()
		} else {
			time.Sleep(pollerNap)
		}
	}
}

// isRead says whether somebody waits for bytes, or takes some: that one rings when there is news of the peer. A poll by
// whoever sends would return at once until that one had been given a processor.
func (r *Resumable) isRead() bool {
	if r.readers.Load() > 0 || !r.receiving.TryLock() {
		return true
	}
	r.receiving.Unlock()
	return false
}

func (r *Resumable) isFull() bool { return r.peer.Load() < r.needs.Load() }

// Dry says that a broken socket has brought all that it will.
func (r *Resumable) Dry() bool { return r.dry.Load() || r.state.Load() != resumeLost }

// Ready says whether a short message can be sent without waiting for the peer.
func (r *Resumable) Ready() bool {
	ev, err := r.Wait(Writable, 0)
	return err == nil && ev&Writable != 0 && r.state.Load() == resumeAttached
}
