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
//   - the callback connection's reader, and the runner of host functions,
//   - the heart, which notices a server that does not answer.
//
// The command ring is the program's, and so is its [sender], which writes to the main connection of each session (its
// [outlet]). A session's other parts have its state, and say what their locks guard: the [reader] reads from the main
// connection, the [calls] are those whose replies are due, the [registrations] what the server may ask for; the
// [callback] connection and the bulk [transfers] have connections of their own, which the [dialer] opens.
//
// Locks, in the order in which they may be taken: the sender's (who may write to the main connections), the reader's
// place (who may read from it), reader.busy, a bulk connection's busy, then one of calls', registrations' and
// transfers.mu, and last those of packages bulk and rdma.
package session

import (
	"cmp"
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
	maxEarlyReplies  = 64 << 20 // of all threads together
	maxNotices       = 64       // that are written into the log
	maxFrameFromRing = 1 << 20
)

// Config is what a session needs to know.
type Config struct {
	Server  transport.Target
	Hello   transport.Hello // Kind and the regions are filled in
	Log     *slog.Logger
	Print   func(stream uint32, text []byte) // writes what kernels printed to standard output (1) or error (2)
	HostRun func(HostFunction, int32)        // calls a host function of the program; status is for stream callbacks
	// Mapped asks the front for the next upload of pinned memory that kernels use (struct scuda_shared); nil: there is
	// none. The first session's is the program's.
	Mapped func(*Shared, *MappedUpload) bool
	Bulk   int  // bulk connections that it may open
	Resume bool // the session outlives its connections, where the server lets it

	Transport  config.Transport // of big copies
	RDMADevice string           // which RDMA device, see [rdma.Choose]; empty: the one that fits
	// bytes of registered memory for copies of memory that cannot be registered; 0: none, they go over TCP
	RDMAMemory int
	Opening    func()       // told before the callback connection is opened, so that a fork can wait for it; may be nil
	Opened     func(fd int) // told of each socket, which a forked child has to close; may be nil

	// Threads says whether so many more threads can be started; nil: yes
	Threads func(n int) bool

	beat time.Duration // 0: [transport.Beat]
}

// owner is the session as its parts see it.
type owner interface {
	start(f func())   // starts a goroutine that ends with the session
	fail(err error)   // ends the session
	broken(err error) // ends it after what the server may have said on the main connection
}

var _ owner = (*Session)(nil)

// Session is an open session: its parts, and its end. What changes while it is open belongs to the parts.
type Session struct {
	cfg     Config
	log     *slog.Logger
	shared  shared
	conn    transport.Conn // the main connection
	dialer  dialer
	cancel  context.CancelFunc
	closing atomic.Bool
	failed  sync.Once
	done    sync.WaitGroup

	send       *sender // the program's
	out        outlet
	reader     reader
	calls      calls
	registered registrations
	callback   callback
	heart      heart
	bulk       transfers
	returns    *returns // nil: the session ends with its connections
	images     images
	traffic    traffic

	introductions atomic.Int32 // to other servers of the program

	RDMA rdma.Stats // what the session's link did
}

// Mapped sends what the program changed of pinned memory that kernels use, for a context, ahead of what is in the ring;
// of that only flags, if so asked. It gives the result of every call once the session has ended, else 0.
func (s *Session) Mapped(context uint64, onlyFlags bool) int32 {
	s.send.sendMapped(&s.out, context, onlyFlags)
	return s.lost()
}

// Open connects to the server and starts the engine. Errors are those of [transport.Dial].
func Open(sh *Shared, cfg Config) (*Session, error) {
	all, err := OpenAll(sh, cfg)
	if err != nil {
		return nil, err
	}
	return all.Of(0), nil
}

// open connects to the server of that number, whose commands the sender will take from the ring.
func open(cfg Config, send *sender, number, servers int) (*Session, error) {
	sh := send.shared
	s := &Session{cfg: cfg, log: cfg.Log, shared: shared{sh, &sh.Lost}, send: send}
	hello := cfg.Hello
	hello.Kind = transport.KindCUDA
	if servers > 1 {
		s.shared.last = &sh.LostOf[number]
		hello.Requires = append(hello.Requires, transport.CapSkip)
		hello.Window, hello.Windows = number, servers
	}
	sh.regions(&hello, number, servers)
	if cfg.Resume {
		hello.Capabilities = transport.Resuming()
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	conn, welcome, err := dialMain(ctx, &cfg, &hello)
	if err != nil {
		s.cancel()
		return nil, err
	}
	transport.Unhurried(conn.FD())
	s.dialer = dialer{ctx: ctx, server: cfg.Server, first: cfg.Hello, welcome: welcome, told: cfg.Opened}
	if cfg.Resume && slices.Contains(welcome.Capabilities, transport.CapResume) && welcome.Grace > 0 {
		s.returns = newReturns(s)
		s.dialer.returns = s.returns
		if conn, err = s.returns.main(conn); err != nil {
			s.cancel()
			return nil, err
		}
	}
	s.conn = conn
	s.connect()
	s.log.Debug("session opened", "server", conn.Remote(), "session", welcome.Session, "driver", welcome.DriverVersion,
		"gpu", welcome.GPU, "devices", len(welcome.Devices))
	s.dialer.opened(conn.FD())
	return s, nil
}

// begin starts what the session has of its own.
func (s *Session) begin() {
	s.start(s.reader.runBackground)
	s.start(s.callback.serve)
	s.start(s.callback.runHosts)
	s.start(func() { beats(s) })
}

// connect tells the parts of each other.
func (s *Session) connect() {
	w := &s.out
	w.conn, w.shared, w.reader, w.bulk, w.traffic, w.owner = s.conn, s.shared, &s.reader, &s.bulk, &s.traffic, s

	rd := &s.reader
	rd.conn, rd.shared, rd.log, rd.print = s.conn, s.shared, s.log, s.cfg.Print
	rd.calls, rd.registered, rd.bulk, rd.traffic, rd.owner = &s.calls, &s.registered, &s.bulk, &s.traffic, s
	rd.rx.buf = make([]byte, receiveBuffer)

	s.heart.every = cmp.Or(s.cfg.beat, transport.Beat)
	w.heart, rd.heart, s.bulk.heart = &s.heart, &s.heart, &s.heart

	s.calls.shared = s.shared
	s.registered.init(s.shared, &s.calls)

	d := &s.callback
	d.wanted, d.needed, d.reserve = make(chan struct{}), make(chan struct{}), transport.NewReserve()
	d.dialer, d.shared, d.log, d.opening, d.runHost = &s.dialer, s.shared, s.log, s.cfg.Opening, s.cfg.HostRun
	d.registered, d.reader, d.heart, d.owner = &s.registered, &s.reader, &s.heart, s

	b := &s.bulk
	b.arrivals = bulk.NewArrivals()
	b.most, b.threads = s.cfg.Bulk, s.cfg.Threads
	b.path = pathConfig{s.cfg.Transport, s.cfg.RDMADevice, s.cfg.RDMAMemory, &s.RDMA}
	b.dialer, b.shared, b.log = &s.dialer, s.shared, s.log
	b.registered, b.traffic, b.owner = &s.registered, &s.traffic, s
}

func (s *Session) start(f func()) { s.done.Go(f) }

// Welcome is what the server said when the session was opened.
func (s *Session) Welcome() *transport.Welcome { return s.dialer.welcome }

// Server is the server's address as the session knows it.
func (s *Session) Server() string { return s.conn.Remote() }

// lost is the result of every call once the session has ended, else 0.
func (s *Session) lost() int32 { return s.shared.lost() }

// fail ends the session: every call under way and every later one fails. Only the first call says why; the others
// return behind its line.
func (s *Session) fail(err error) {
	if s.closing.Load() {
		s.end(Deinitialized)
		return
	}
	n := s.reader.notice.Load()
	if n == nil {
		n = &notice{}
	}
	last := cmp.Or(n.result, Unavailable)
	s.shared.end(last)
	s.failed.Do(func() { sayWhy(s, n.text, last, err) }) // before it ends: a program may end as soon as its call returns
	s.end(last)
}

// notice is what the server said, and what calls answer when it has ended the session; 0: Unavailable.
type notice struct {
	text   string
	result int32
}

// sayWhy tells the program's user why the session is lost.
func sayWhy(s *Session, notice string, last int32, err error) {
	why := reason(err)
	if notice != "" {
		why += fmt.Sprintf("; the server's last words: %q", notice)
	}
	s.log.Error("the session with the scuda server "+s.conn.Remote()+" is lost: "+why+
		". All further CUDA calls of this process fail with "+lastName(last)+". Look into the server's log, then start the "+
		"program again.",
		"session", s.dialer.welcome.Session)
}

func lastName(result int32) string {
	if result == Unavailable {
		return "CUDA_ERROR_DEVICE_UNAVAILABLE (46)"
	}
	return fmt.Sprintf("the error %d", result)
}

// broken ends the session after a failed write, or where another connection broke: the server may have said why before
// it closed.
func (s *Session) broken(err error) {
	s.reader.lastWords()
	s.fail(err)
}

func reason(err error) string {
	var away *awayError
	var gone *goneError
	var over *transport.SessionEnded
	switch { // the first three without what whoever noticed it put in front
	case errors.As(err, &away):
		return away.Error()
	case errors.As(err, &gone):
		return gone.Error()
	case errors.As(err, &over):
		return "the server has ended it meanwhile: " + over.Error()
	case errors.Is(err, io.EOF):
		return "the server closed the connection (it, or the worker that served this process, has ended)"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the server broke the connection off (it, or the worker that served this process, has ended)"
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH):
		return "the server's machine does not answer any more (" + err.Error() + ")"
	case errors.Is(err, transport.ErrMalformed):
		return "the server sent something that is not the protocol (" + err.Error() + ")"
	case errors.Is(err, transport.ErrTaken), errors.Is(err, syscall.EBADF), errors.Is(err, syscall.ENOTSOCK):
		return "the program has closed the descriptor of a connection, or put something of its own in that place (programs " +
			"do that which close all descriptors that they do not know)"
	case errors.Is(err, net.ErrClosed):
		return "the connection was closed"
	case errors.Is(err, errSilent):
		return errSilent.Error()
	}
	return err.Error()
}

// end makes every present and future call return result.
func (s *Session) end(result int32) {
	s.shared.end(result)
	s.conn.Shutdown()
	s.cancel()
	s.bulk.shut(errEnded)
	s.bulk.closeLink()
	s.bulk.quiesce()
	s.releaseWaiters()
	s.callback.shut()
	s.send.release()
	s.reader.release()
	s.heart.end()
}

// releaseWaiters gives everybody who waits the session's last result. Nothing may be written to their memory from then
// on.
func (s *Session) releaseWaiters() {
	s.reader.busy.Lock()
	defer s.reader.busy.Unlock()
	s.calls.release()
	s.registered.release()
}

// Close sends what is pending, within a second, and ends the connection. Calls that come later fail with
// CUDA_ERROR_DEINITIALIZED.
func (s *Session) Close() { s.closeBy(time.Now().Add(closeTimeout)) }

// closeBy is Close with another deadline.
func (s *Session) closeBy(deadline time.Time) {
	if s.closing.Swap(true) {
		return
	}
	if s.lost() == 0 {
		s.send.sendRest(&s.out, deadline)
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

// Look sends what is pending and handles what has arrived, without waiting.
func (s *Session) Look() {
	s.heart.stir()
	if atomic.LoadUint64(&s.shared.Tail) != atomic.LoadUint64(&s.shared.Head) {
		s.send.flush(toTail)
	}
	s.reader.look()
}

// Bulk sends the ring up to end, where a bulk command ends, and then data. It returns when data may be reused.
func (s *Session) Bulk(end uint64, data []byte) int32 {
	s.bulk.want(len(data))
	if up := s.send.sendBulk(&s.out, end, data); up != nil {
		s.awaitUpload(up)
		if up.Err != nil { // whoever saw the connection break may not have come to say so yet
			s.fail(fmt.Errorf("a bulk connection broke during a copy: %w", up.Err))
		}
	}
	return s.lost()
}

// awaitUpload returns when the upload's memory may be reused.
func (s *Session) awaitUpload(u *upload) {
	if !transport.FewCPUs() {
		for began, i := time.Now(), 0; atomic.LoadUint32(&u.over) == 0 && time.Since(began) < spinCopy; i++ {
			nap(i)
		}
	}
	for atomic.LoadUint32(&u.over) == 0 {
		futexWait(&u.over, 0, uploadPatience)
		s.Look() // the server may be unable to go on before it has got rid of an answer
	}
}

// nap lets other threads run for a moment while this one spins.
func nap(i int) {
	if i%16 == 15 {
		schedYield()
	}
}
