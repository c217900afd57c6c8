package executor

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/codec"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nccl"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/commons"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/turn"
	"scuda.dev/scuda/transport"
)

// ErrProtocol is wrapped by the reason of a session that ended because the client broke the protocol.
var ErrProtocol = errors.New("the client broke the protocol")

// ErrGone is wrapped by the reason of a session whose connection ended.
var ErrGone = errors.New("the client went away")

// ErrEnded is wrapped by the reason of a session whose connection the client's machine ended in order, between two
// commands, though the program had not taken its leave.
var ErrEnded = errors.New("the program ended without taking its leave: it was killed, crashed, or called _exit or exec")

// errLeft ends the loop behind the program's farewell.
var errLeft = errors.New("the program has taken its leave")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Times of the loop. After its last work the executor spins for a while, since the next command of a busy program is
// only microseconds away; with work of its own outstanding it then looks at it in short intervals.
const (
	spinIdle   = 50 * time.Microsecond
	napPending = 30 * time.Microsecond
	napShare   = 256 // what has been outstanding for long is looked at less often: noticed by 1/256 of its time too late
	napMost    = 120 * time.Microsecond
	napLongest = 500 * time.Microsecond // while something else has the processor
	napStalled = 20 * time.Millisecond  // for what has been awaited for seconds: by 1/256 of its time too late
	pollEvery  = 8                      // commands between two looks at what is pending
	flushEvery = 16                     // commands after which an answer is not kept back any longer

	shortTurn = 100 * time.Microsecond // the least that there is

	defaultStaging = 8
	arenaBytes     = 2 << 20
	farewell       = 200 * time.Millisecond // for telling the client why its session ends

	// Where there are few processors. A worker that naps is 50 us late, so it spins for as long as a round trip takes.
	spinFew   = 200 * time.Microsecond
	looksEach = 16 // looks, behind which others have the processor
)

// spinPending is how long the executor spins with work of its own outstanding. Where there are few processors they are
// those of a simulated GPU, and of the program.
var few, spinPending = func() (bool, time.Duration) {
	if transport.FewCPUs() {
		return true, spinFew
	}
	return false, time.Millisecond
}()

// Config is what a session needs.
type Config struct {
	Conn    transport.Conn // main connection; the session closes it
	GPU     cuda.GPU
	Hello   transport.Hello
	Images  Images // nil: no image outlives the session
	Staging int    // staging slots of 1 MiB a context, default 8
	// RDMASlots are the slots of 1 MiB for RDMA, which a client gets that asks for it; default [DefaultRDMASlots],
	// negative: none.
	RDMASlots  int
	RDMADevice string // see [rdma.Choose]
	GPUDirect  GPUDirect
	Limits     config.Limits // of this session
	// Abort ends the process where a limit of time is over and the driver does not return.
	Abort   func(error)
	Log     *slog.Logger
	Metrics *metrics.Page // where the session counts; nil: for itself
	// Primary lists the devices whose primary context the worker holds; the session may have to give them up.
	Primary []cuda.CUdevice
	Sharer  Sharer // nil: memory cannot be shared with other sessions
	// Seat is where the sessions of a tenant see how far the others are; nil: there are none.
	Seat *commons.Seat
	// Turn says when the session may hand work to a GPU; nil: always.
	Turn *turn.Slot
	// Beat is how often it is looked for a client that is gone; 0: [transport.Beat].
	Beat time.Duration
	// Text is where the driver's prints arrive; nil when nobody collects them.
	Text Text
	// Recorder tells what the GPU does; nil: the GPU itself, if it can.
	Recorder cuda.Recorder
	// NCCL carries collectives out; nil: nobody does, and NoNCCL says why.
	NCCL   nccl.Library
	NoNCCL string
	// Room gives back addresses that were taken from the process; nil: none were.
	Room Room
	// abortAfter takes abortAfter's place, in tests.
	abortAfter time.Duration
}

// Session is one client's session. New makes it, Run carries it out.
type Session struct {
	base

	objects  objects
	waits    waits
	graphs   graphs
	hostmem  hostmem
	printf   printf
	ordering ordering
	modules  modules
	copies   copies
	times    timelimit
	turns    turns
	profile  profile

	collectives collectives
	peers       peers

	conn  transport.Conn
	waker *transport.Waker // ends the executor's wait for it
	left  bool             // the program has taken its leave

	in       input
	out      output
	callback *callbackConn

	reader codec.Reader
	writer *codec.Writer
	outMem []byte

	sinceOut int // commands since an answer was queued
	looks    int // while it spins

	pulse pulse
	beat  time.Duration

	stopped   chan struct{}
	stopOnce  sync.Once
	noSupport map[uint16]bool // operations logged as not supported
}

// New prepares a session. Its error says what is wrong with the hello.
func New(cfg Config) (*Session, error) {
	table, err := newTable(cfg.Hello)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = new(metrics.Page)
	}
	if cfg.Staging <= 0 {
		cfg.Staging = defaultStaging
	}
	if cfg.Beat == 0 {
		cfg.Beat = transport.Beat
	}
	if cfg.RDMASlots == 0 {
		cfg.RDMASlots = DefaultRDMASlots
	}
	s := &Session{
		base:      newBase(cfg, table),
		conn:      cfg.Conn,
		callback:  newCallbackConn(),
		beat:      cfg.Beat,
		stopped:   make(chan struct{}),
		noSupport: make(map[uint16]bool),
	}
	if s.waker, err = transport.NewWaker(); err != nil {
		return nil, err
	}
	s.handles = &handles{Table: table, b: &s.base, tokens: tokens{sharer: cfg.Sharer}}
	s.callback.rouse, s.callback.broken = s.pulse.rouse, s.callbackBroken
	s.objects = newObjects(s, cfg.Primary)
	s.waits = newWaits(s, cfg.Hello)
	s.graphs = newGraphs(s)
	s.hostmem = newHostmem(s, &cfg)
	s.modules = newModules(s, cfg.Images)
	s.ordering = newOrdering(s, cfg.Seat)
	s.turns = newTurns(s, cfg.Turn)
	s.profile = newProfile(s, cfg)
	s.collectives = newCollectives(s, cfg)
	s.peers = newPeers(s, &cfg)
	s.copies.begin(s, cfg)
	s.times.begin(s, cfg.Limits, cfg.Abort)
	s.printf = printf{base: &s.base, loop: s, out: &s.out, text: cfg.Text}
	s.out.conn, s.out.metrics = cfg.Conn, cfg.Metrics
	if s.in.mem, err = mapMemory(inputBytes); err != nil {
		return nil, err
	}
	if s.arena.mem, err = mapMemory(arenaBytes); err != nil {
		return nil, err
	}
	if s.outMem, err = mapMemory(codec.MaxPayload); err != nil {
		return nil, err
	}
	if s.run, err = newRun(); err != nil {
		return nil, err
	}
	s.writer = codec.NewWriter(s.outMem)
	return s, nil
}

// AttachCallback gives the session its callback connection.
func (s *Session) AttachCallback(l *transport.Line) error { return s.callback.attach(l) }

// AttachBulk gives the session one of its count bulk connections.
func (s *Session) AttachBulk(l *transport.Line, count int) error {
	return s.copies.bulk.attach(l, count)
}

// AttachRDMA gives the session the control connection of its RDMA, which it opens in a goroutine of its own.
func (s *Session) AttachRDMA(l *transport.Line) error { return s.copies.path.attach(l) }

// Notice sends the client a line for its log.
func (s *Session) Notice(text string) { s.notice(text, cuda.CUDA_SUCCESS) }

// notice may say what the client's calls answer when the session has ended; 0: the usual.
func (s *Session) notice(text string, last cuda.CUresult) {
	s.out.message(transport.MessageHeader{Type: transport.MsgNotice, Result: int32(last)}, []byte(text), nil)
	_, _ = s.out.flush()
}

// Calls is the number of commands carried out so far.
func (s *Session) Calls() uint64 { return s.metrics.Calls() }

// Stop ends the session from another goroutine.
func (s *Session) Stop() {
	s.stopOnce.Do(func() { close(s.stopped) })
	s.conn.Shutdown()
	s.callback.fail(errCallbackClosed)
	s.copies.stop()
	s.peers.stop()
}

// Run carries the session out until it ends; the caller must have locked its OS thread.
// Objects of the driver are left to the end of the process.
func (s *Session) Run() error {
	s.gpu.ThreadInit()
	// Waits of a few microseconds are meant as such.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	takeShortTurns()
	s.setCaptureMode(cuda.CU_STREAM_CAPTURE_MODE_RELAXED)
	var watch sync.WaitGroup
	if s.times.work > 0 {
		watch.Go(func() { s.times.watch(s) })
	}
	transport.Unhurried(s.conn.FD())
	s.pulse.start(s, s.beat)
	err := s.loop()
	if p := &s.pulse; p.gone.Load() && errors.Is(err, ErrGone) {
		err = fmt.Errorf("%w: %w", ErrGone, unix.ETIMEDOUT)
	}
	if errors.Is(err, errLeft) || errors.Is(err, ErrGone) && s.hasLeft() {
		err = nil
	}
	if s.times.expired.Load() { // whatever the executor saw first
		err = s.times.over()
	}
	switch {
	case errors.Is(err, ErrProtocol):
		s.log.Error("session ends", "error", err)
		s.Notice(err.Error())
	case errors.Is(err, ErrTime):
		s.log.Warn("session ends", "reason", err)
		s.tell(err)
	case errors.Is(err, ErrGone) && s.callback.breach() != nil:
		err = s.callback.breach() // which has been told
	}
	s.profile.end()
	s.sendRest()
	s.Stop()
	s.pulse.done.Wait()
	s.callback.close()
	s.copies.close()
	s.peers.close()
	s.collectives.close(err == nil)
	s.out.pumps.Wait()
	watch.Wait()
	s.conn.Close()
	s.waker.Close()
	return err
}

// takeShortTurns lets this thread have the processor sooner where others want it too, though no more of it in all:
// the client waits for most of what it does. Linux has it since 6.12, and ignores it before.
func takeShortTurns() {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return
	}
	attr.Flags, attr.Runtime = 0, uint64(shortTurn.Nanoseconds())
	_ = unix.SchedSetAttr(0, attr, 0) // where it is refused things are as before
}

// Free unmaps what the session mapped. It is for tests: a worker process just exits.
func (s *Session) Free() {
	unmapMemory(s.in.mem)
	unmapMemory(s.arena.mem)
	unmapMemory(s.outMem)
	s.copies.free()
	s.peers.free()
	s.run.free()
	for _, i := range s.modules.images {
		i.Close()
	}
}

func (s *Session) loop() (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case errArena:
			err = errArena
		default:
			panic(p)
		}
	}()
	last := time.Now() // when there was last something to do
	for {
		n, err := s.receive()
		if err != nil {
			return err
		}
		progress := n > 0
		if progress {
			waited := s.profile.waited()
			s.came = metrics.Now() - waited // in this order: it may only seem later than it was
			s.metrics.Add(metrics.Received(s.conn.Transport()), n)
			s.metrics.Set(metrics.QueueBytes, s.in.buffered())
			s.pulse.begin()
			err := s.work()
			s.pulse.end()
			if err != nil {
				return err
			}
		}
		s.waker.Look()
		if s.pending() && s.poll() {
			progress = true
		}
		done, err := s.out.flush()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		s.sinceOut = 0
		if progress {
			if len(s.graphs.hostEnds) > 0 {
				s.graphs.freeEndedEnds()
			}
			s.gauges()
			last = time.Now()
			s.metrics.Active(last)
			if err := s.times.check(); err != nil {
				return err
			}
			continue
		}
		if err := s.idle(time.Since(last), done); err != nil {
			return err
		}
		if err := s.times.check(); err != nil {
			return err
		}
	}
}

// gauges tells what is left to do.
func (s *Session) gauges() {
	s.turns.publish()
	s.metrics.Set(metrics.QueueBytes, s.in.buffered())
	s.metrics.Set(metrics.PendingWaits, len(s.waits.list))
	s.metrics.Set(metrics.PendingDownloads, s.copies.downloads.underWay)
}

// idle passes the time until there may be something to do.
func (s *Session) idle(quiet time.Duration, flushed bool) error {
	ev := transport.Readable
	if !flushed {
		ev |= transport.Writable
	}
	timeout := time.Duration(-1)
	switch {
	case s.pending():
		if quiet < spinPending && flushed {
			s.look()
			return nil
		}
		switch {
		case !flushed: // the client's reading ends it at once
			timeout = napTime(quiet)
		case mustLook(s):
			timeout = min(max(napPending, quiet/napShare), napMost)
		case s.peers.watches(): // other chunks are on their way meanwhile
			timeout = min(max(napPending, quiet/2), napLongest)
		default: // others wake it, unless it is for patience
			timeout = napStalled
		}
	case quiet < spinIdle && flushed:
		s.look()
		return nil
	}
	if timeout < 0 && s.quota != nil {
		s.quota.Look()
	}
	if timeout < 0 && s.copies.uploads.incoming == nil {
		var err error
		if timeout, err = s.times.rest(time.Now(), s.busy); err != nil {
			return err
		}
	}
	_, err := s.conn.WaitOr(ev, timeout, s.waker)
	return err
}

// look is called before each further look while the executor spins.
func (s *Session) look() {
	if s.looks++; few && s.looks%looksEach == 0 {
		yield()
	}
}

// receive takes what has come on the main connection, without waiting.
func (s *Session) receive() (int, error) {
	n, err := s.in.fill(s.conn, s.copies.uploads.bulkTarget())
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, transport.ErrAgain):
		return 0, nil
	case s.left: // whatever the connection's end looks like
		return 0, errLeft
	case errors.Is(err, io.EOF) && s.in.buffered() == 0 && s.copies.uploads.incoming == nil:
		return 0, fmt.Errorf("%w: %w", ErrGone, ErrEnded)
	case errors.Is(err, io.EOF): // in the middle of a command or its data
		err = io.ErrUnexpectedEOF
	}
	return 0, fmt.Errorf("%w: %w", ErrGone, err)
}

// hasLeft says, once the connection cannot be written to, whether the program took its leave before it ended.
func (s *Session) hasLeft() bool {
	for !s.left && s.copies.uploads.incoming == nil {
		ok, err := s.in.next(&s.cmd)
		if err == nil && !ok {
			var n int
			n, err = s.receive()
			ok = n > 0
		}
		if err != nil || !ok || s.cmd.Flags&transport.FlagBulk != 0 {
			break
		}
		s.left = s.cmd.Op == wire.OpBye
	}
	return s.left
}

// work carries out all commands that have arrived.
func (s *Session) work() error {
	defer s.launchAll()
	for n := 1; ; n++ {
		more, err := s.step()
		if err != nil {
			return err
		}
		if !more {
			return nil
		}
		if n%pollEvery == 0 && s.pending() {
			s.poll()
		}
		if s.sinceOut++; s.sinceOut >= flushEvery {
			if s.sinceOut = 0; s.out.pending() > 0 {
				if err := s.relieve(); err != nil {
					return err
				}
			}
		}
	}
}

// relieve writes queued answers, and waits where a client that does not read has let too many pile up.
func (s *Session) relieve() error {
	for began := time.Now(); ; {
		done, err := s.out.flush()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		if done || s.out.pending() < outputLimit {
			return nil
		}
		if err := s.napAfter(time.Since(began)); err != nil { // the client's reading ends it at once
			return err
		}
	}
}

// napAfter lets a moment pass while the executor waits for something other than a command: staging, or a client that
// reads. Downloads and waits go on meanwhile. What has been awaited for some time is noticed by an eighth of that too
// late at most, and what brings it has the processor.
func (s *Session) napAfter(quiet time.Duration) error {
	progress := s.poll()
	done, err := s.out.flush()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	if progress {
		return nil
	}
	if err := s.times.check(); err != nil {
		return err
	}
	select {
	case <-s.stopped:
		return ErrGone
	default:
	}
	var ev transport.Events
	if !done {
		ev = transport.Writable
	}
	got, err := s.conn.Wait(ev, napTime(quiet))
	if err == nil && got&^ev != 0 { // only a failed connection says more than it was asked
		err = ErrGone
	}
	return err
}

// sendRest gives the last messages a moment to leave.
func (s *Session) sendRest() {
	for deadline := time.Now().Add(farewell); time.Now().Before(deadline); {
		if done, err := s.out.flush(); done || err != nil {
			return
		}
		if _, err := s.conn.Wait(transport.Writable, napPending); err != nil {
			return
		}
	}
}

// napTime is how long what has been awaited for that long is left alone.
func napTime(quiet time.Duration) time.Duration {
	return max(min(max(napPending, quiet/8), napLongest), min(quiet/napShare, napStalled))
}
