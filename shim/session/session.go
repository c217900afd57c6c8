// Package session is the client's engine: it carries a process's command stream to a server and the answers back. It
// knows no CUDA.
//
// The program's threads run in it themselves. A thread that needs an answer sends what is pending ([Session.Call]), and
// one of those that wait, the *leader*, reads the connection and hands the others (*followers*, asleep on a futex)
// their replies; when it has its own it passes the lead on. Nothing in a round trip crosses from one goroutine to
// another.
//
// Beside the program's threads there are
//   - the sender, which sends commands that nobody waits for,
//   - the background reader, awake only while asynchronous downloads are under way and nobody leads,
//   - the callback connection's reader, and the runner of host functions.
//
// Locks, in the order in which they may be taken: send (who may write to the main connection), reader (who may read
// from it), mu (tables).
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/rdma"
)

// Results that the engine itself gives; numbers of the driver API.
const (
	Success        int32 = 0
	InvalidValue   int32 = 1
	Deinitialized  int32 = 4
	Unavailable    int32 = 46 // the connection broke
	InvalidImage   int32 = 200
	NoBinary       int32 = 209
	NotFound       int32 = 500
	SystemNotReady int32 = 802 // the server never answered
	spin                 = 50 * time.Microsecond
	spinAwaited          = time.Millisecond // of the sender, while a thread waits
	// of the sender, before it sends: a thread that will wait for what comes next sends both together
	linger   = time.Microsecond
	spinCopy = 2 * time.Millisecond // of a thread that waits for the end of a big copy
	manyCPUs = 8
	// so many first answers are waited for asleep: short programs ask seldom, and each look at the connection is a system
	// call
	calm             = 64
	otherReaderPause = 10 * time.Millisecond
	closeTimeout     = time.Second
	lastWordsTimeout = 300 * time.Millisecond
	receiveBuffer    = 32 << 10
	directReceive    = 4 << 10 // payloads with at least this much to come are received in place
	maxNotice        = 4 << 10
	maxEarlyReply    = 2 << 20
	maxFrameFromRing = 1 << 20
)

// Config is what a session needs to know.
type Config struct {
	Server  transport.Target
	Hello   transport.Hello // Kind and the regions are filled in
	Shared  *Shared
	Log     *slog.Logger
	Print   func(stream uint32, text []byte) // writes what kernels printed to standard output (1) or error (2)
	HostRun func(HostFunction, int32)        // calls a host function of the program; status is for stream callbacks
	Bulk    int                              // bulk connections that it may open

	Transport  config.Transport // of big copies
	RDMADevice string           // which RDMA device, see [rdma.Choose]; empty: the one that fits
	// bytes of registered memory for copies of memory that cannot be registered; 0: none, they go over TCP
	RDMAMemory int
	Opening    func()       // told before the callback connection is opened, so that a fork can wait for it; may be nil
	Opened     func(fd int) // told of each socket, which a forked child has to close; may be nil
}

// Session is an open session.
type Session struct {
	cfg     Config
	log     *slog.Logger
	shared  *Shared
	ring    []byte // mapped twice in a row
	mask    uint64
	conn    transport.Conn
	welcome *transport.Welcome

	ctx     context.Context
	cancel  context.CancelFunc
	closing atomic.Bool
	failed  sync.Once
	done    sync.WaitGroup

	send struct {
		mutex
		head   uint64      // how much of the ring has been sent
		turn   uint32      // futex: counts finished bulk transfers
		again  atomic.Bool // the sender has to look at the ring though its tail has not moved
		header [transport.FrameHeaderSize]byte
		bufs   [3][]byte
	}
	reader struct {
		lock       uint32 // 1 while somebody reads
		sleepers   atomic.Int32
		led        int    // how often a thread has led
		background uint32 // futex: see background
		busy       mutex  // held while bytes are taken, so that end can wait until no thread's memory is written any more
		rx         receiver
	}
	mu struct {
		mutex
		waiting   *waiter // those whose replies are due
		transfers map[uint32]transfer
		nextID    uint32
		sources   map[uint32]source
		nextSrc   uint32
		hosts     map[uint64]registered
		nextHost  uint64
		order     uint64 // counts what was registered: downloads, sources, host functions
		flushed   uint64 // the last FLUSH that was answered
		notice    string
	}
	landed   *sync.Cond // of mu: a download has arrived, or the session has ended
	waiters  [transport.MaxThreads / waiterPage]atomic.Pointer[[waiterPage]waiter]
	received atomic.Uint64 // bytes of answers and downloads so far
	sent     atomic.Uint64 // bytes of commands and uploads so far
	hosts    atomic.Int64  // registered host functions that may still run
	kept     atomic.Int64  // captured downloads
	callback callback
	bulk     transfers
	images   images
	pins     rdma.Pins

	RDMA rdma.Stats // what the session's link did
}

// Open connects to the server and starts the engine. Errors are those of [transport.Dial].
func Open(cfg Config) (*Session, error) {
	s := &Session{cfg: cfg, log: cfg.Log, shared: cfg.Shared}
	if err := s.takeRing(); err != nil {
		return nil, err
	}
	hello := cfg.Hello
	hello.Kind = transport.KindCUDA
	s.shared.regions(&hello)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	conn, welcome, err := transport.Dial(s.ctx, cfg.Server, &hello)
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.conn, s.welcome = conn, welcome
	s.mu.transfers = make(map[uint32]transfer)
	s.mu.nextID = transport.FirstTransfer
	s.mu.sources = make(map[uint32]source)
	s.bulk.arrivals = bulk.NewArrivals()
	s.mu.hosts = make(map[uint64]registered)
	s.reader.rx.buf = make([]byte, receiveBuffer)
	s.landed = sync.NewCond(&s.mu)
	s.callback.init()
	s.log.Debug("session opened", "server", conn.Remote(), "session", welcome.Session, "driver", welcome.DriverVersion,
		"gpu", welcome.GPU, "devices", len(welcome.Devices))
	s.opened(conn.FD())
	s.start(s.sender)
	s.start(s.background)
	s.start(s.callbackLoop)
	s.start(s.hostLoop)
	if cfg.Transport == config.TransportRDMA {
		if err := s.demandPath(); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// further is what a further connection says about itself: it presents a ticket, unless the server knows none.
func further(s *Session, kind string) transport.Hello {
	hello := s.cfg.Hello
	hello.Kind, hello.Session, hello.Secret = kind, s.welcome.Session, s.welcome.Secret
	if slices.Contains(s.welcome.Capabilities, transport.CapTickets) {
		hello.Purpose = kind
	}
	return hello
}

func (s *Session) start(f func()) { s.done.Go(f) }

func (s *Session) opened(fd int) {
	if s.cfg.Opened != nil {
		s.cfg.Opened(fd)
	}
}

// Welcome is what the server said when the session was opened.
func (s *Session) Welcome() *transport.Welcome { return s.welcome }

// Server is the server's address as the session knows it.
func (s *Session) Server() string { return s.conn.Remote() }

// lost is the result of every call once the session has ended, else 0.
func (s *Session) lost() int32 { return int32(atomic.LoadUint32(&s.shared.Lost)) }

// fail ends the session: every call under way and every later one fails. Only the first call says why; the others
// return behind its line.
func (s *Session) fail(err error) {
	if s.closing.Load() {
		s.end(Deinitialized)
		return
	}
	atomic.CompareAndSwapUint32(&s.shared.Lost, 0, uint32(Unavailable))
	s.failed.Do(func() { sayWhy(s, err) }) // before it ends: a program may end as soon as its call returns
	s.end(Unavailable)
}

// sayWhy tells the program's user why the session is lost.
func sayWhy(s *Session, err error) {
	s.mu.Lock()
	notice := s.mu.notice
	s.mu.Unlock()
	why := reason(err)
	if notice != "" {
		why += fmt.Sprintf("; the server's last words: %q", notice)
	}
	s.log.Error("the session with the scuda server "+s.conn.Remote()+" is lost: "+why+
		". All further CUDA calls of this process fail with CUDA_ERROR_DEVICE_UNAVAILABLE (46). Look into the server's "+
		"log, then start the program again.",
		"session", s.welcome.Session)
}

// broken ends the session after a failed write: the server may have said why before it closed.
func (s *Session) broken(err error) {
	s.lastWords()
	s.fail(err)
}

func reason(err error) string {
	switch {
	case errors.Is(err, io.EOF):
		return "the server closed the connection (it, or the worker that served this process, has ended)"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the server broke the connection off (it, or the worker that served this process, has ended)"
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH):
		return "the server's machine does not answer any more (" + err.Error() + ")"
	case errors.Is(err, transport.ErrMalformed):
		return "the server sent something that is not the protocol (" + err.Error() + ")"
	case errors.Is(err, net.ErrClosed):
		return "the connection was closed"
	}
	return err.Error()
}

// end makes every present and future call return result.
func (s *Session) end(result int32) {
	atomic.CompareAndSwapUint32(&s.shared.Lost, 0, uint32(result))
	s.conn.Shutdown()
	s.cancel()
	s.bulk.shut(errEnded)
	s.bulk.closeLink()
	s.bulk.quiesce()
	s.releaseWaiters()
	s.callback.shut()
	s.wakeAll()
}

// releaseWaiters gives everybody who waits the session's last result. Nothing may be written to their memory from then
// on.
func (s *Session) releaseWaiters() {
	s.reader.busy.Lock()
	defer s.reader.busy.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.mu.waiting != nil {
		s.complete(s.mu.waiting, s.lost(), 0)
	}
	s.landed.Broadcast()
}

// wakeAll wakes whoever sleeps for other reasons than a reply.
func (s *Session) wakeAll() {
	atomic.StoreUint32(&s.shared.Starved, 0)
	futexWake(&s.shared.Starved)
	atomic.StoreUint32(&s.shared.Asleep, 0)
	futexWake(&s.shared.Asleep)
	atomic.AddUint32(&s.send.turn, 1)
	futexWake(&s.send.turn)
	atomic.StoreUint32(&s.reader.background, backgroundAwake)
	futexWake(&s.reader.background)
}

// Close sends what is pending, within a second, and ends the connection. Calls that come later fail with
// CUDA_ERROR_DEINITIALIZED.
func (s *Session) Close() {
	if s.closing.Swap(true) {
		return
	}
	if s.lost() == 0 {
		s.sendRest(time.Now().Add(closeTimeout))
	}
	s.end(Deinitialized)
}

// Wait waits until the engine's goroutines have ended, and then releases the connection; only for tests, a program just
// exits.
func (s *Session) Wait() {
	s.done.Wait()
	_ = s.conn.Close()
	s.callback.close()
	s.bulk.close()
}

// nap lets other threads run for a moment while this one spins.
func nap(i int) {
	if i%16 == 15 {
		schedYield()
	}
}
