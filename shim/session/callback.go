package session

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/transport"
)

// HostFunction is a function of the program that runs in stream order.
type HostFunction struct {
	Func, User uintptr
	Stream     uint64
	Kind       uint32 // 0 host function, 1 stream callback
	Keep       bool   // captured: may run often
}

// callback is the connection over which the server asks the client for things in stream order, and what serves it. It
// is opened when the program first registers something that the server may ask for; most programs never do, or not
// before they have long begun. It is also opened for a program that has been busy for a while ([callback.foresee]).
//
// Locks: mu guards the connection and the queue. flushing is held while a FLUSH is numbered and sent, and writing,
// which is taken under it, while any message is. None is held while a host function runs, or while a download is
// awaited.
type callback struct {
	once   sync.Once
	wanted chan struct{} // closed when it is to be opened, or never will be
	needed chan struct{} // closed when the program cannot do without, or never will
	need   sync.Once

	writing sync.Mutex      // held while a message is numbered and written
	out     transport.Chain // of what is written
	in      transport.Chain // of what comes; serve's
	open    atomic.Int32    // what the server has asked for and still waits for

	heard atomic.Uint64 // messages that have come
	told  atomic.Uint64 // messages that were sent, without PING
	known atomic.Uint64 // so many of them the server has, as its answers to PING say
	pulse               // the heart's

	flushing sync.Mutex // guards flushes, and is held while FLUSH is sent, so that they go in their order
	flushes  uint64     // sent so far

	mu    sync.Mutex // guards what follows
	line  *transport.Line
	queue []transport.MessageHeader // host functions that are due
	ended bool

	due transport.Bell // rung when the queue grows, and at the end

	reserve    *transport.Reserve // for the connection
	dialer     *dialer
	shared     shared
	log        *slog.Logger
	opening    func() // told before it is opened; may be nil
	runHost    func(HostFunction, int32)
	registered *registrations
	reader     *reader
	heart      *heart
	owner      owner
}

// want has the callback connection opened, without which the session cannot go on.
func (d *callback) want() {
	d.need.Do(func() { close(d.needed) })
	d.foresee()
}

// foresee has it opened, though nobody needs it yet. A program that is killed in the middle of its calls leaves a reset
// connection behind, as a network does, if an answer had come that it had not read. This one, on which nothing comes,
// is closed in order then, and tells the server that the program has gone.
func (d *callback) foresee() {
	d.once.Do(func() {
		if d.opening != nil {
			d.opening()
		}
		close(d.wanted)
	})
}

func (d *callback) shut() {
	d.need.Do(func() { close(d.needed) })
	d.once.Do(func() { close(d.wanted) })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.due.Ring()
	if d.line != nil {
		d.line.Shutdown() // the descriptor stays: its number is on the list of those that a forked child closes
	}
}

func (d *callback) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.line != nil {
		_ = d.line.Close()
	}
}

func (d *callback) set(line *transport.Line) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false
	}
	d.line = line
	return true
}

// answer sends a message on the callback connection.
func (d *callback) answer(h transport.MessageHeader, payload []byte) error {
	d.mu.Lock()
	line := d.line
	d.mu.Unlock()
	if line == nil {
		return net.ErrClosed
	}
	d.told.Add(1)
	d.heart.stir() // somebody is to find out whether it arrives
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.out.Send(line, h, payload)
}

// serve opens the callback connection when it is wanted, and serves it until it ends, and with it the session.
func (d *callback) serve() {
	<-d.wanted
	d.reserve.Release()
	if d.shared.lost() != 0 {
		return
	}
	line, err := d.dial()
	if err != nil {
		d.log.Debug("no callback connection yet", "error", err)
		<-d.needed
		if line, err = d.dial(); err != nil {
			d.owner.broken(fmt.Errorf("no callback connection: %w", err))
			return
		}
	}
	if !d.set(line) {
		_ = line.Close()
		return
	}
	d.dialer.opened(line.FD())
	runtime.LockOSThread()
	for {
		if err := d.message(line); err != nil {
			d.owner.broken(err)
			return
		}
	}
}

func (d *callback) dial() (*transport.Line, error) {
	hello := d.dialer.hello(transport.KindCallback)
	return d.dialer.line(&hello)
}

var errCallbackSilent = errors.New("nothing comes through on the callback connection any more, though the server " +
	"answers on the main one: something on the way (a firewall, a proxy or a tunnel) holds up one of the connections " +
	"of a session")

// inUse says whether the server may have something to ask on the connection, or may not have what was sent on it. While
// that is so the heart goes on beating.
func (d *callback) inUse() bool {
	return d.registered.mayBeAsked() || d.told.Load() != d.known.Load()
}

// beat is the heart's look at the connection. The main connection shows that the server lives, not that what stream and
// program have to say to each other arrives: the server's question may be lost as well as the answer to it. So the
// client asks for signs of life here, too, while the connection is in use. It judges, and not the server, which cannot
// tell a program that is stopped from one whose answers are lost.
func (d *callback) beat() verdict {
	d.mu.Lock()
	line := d.line
	d.mu.Unlock()
	if line == nil { // the dialer has its own patience
		return fine
	}
	t := transport.TrafficOf(line.FD())
	now := signs{messages: d.heard.Load(), bytes: t.Received + t.Acknowledged}
	if !d.writing.TryLock() {
		now.unread = transport.Unsent(line.FD()) == 0
		return d.pulse.beat(now, d.inUse())
	}
	defer d.writing.Unlock()
	now.unread = transport.Unread(line.FD()) > 0
	v := d.pulse.beat(now, d.inUse())
	if v == ask && line.Ready() {
		_ = d.out.Send(line, transport.MessageHeader{Type: transport.MsgPing, Seq: d.told.Load()}, nil) // serve sees why
	}
	return v
}

// maxOpen bounds what the server may wait for at a time. Each is a stream, or a branch of a graph, that stands still.
const maxOpen = 1 << 14

// ask takes note of something that is not answered at once, answered of its answer.
func (d *callback) ask(h transport.MessageHeader) error {
	if d.open.Add(1) > maxOpen {
		return protocol("%v while %d answers are due", h.Type, maxOpen)
	}
	return nil
}

func (d *callback) answered() { d.open.Add(-1) }

// message serves the next message of the server.
func (d *callback) message(line *transport.Line) error {
	var b [transport.MessageHeaderSize]byte
	if err := line.ReadFull(b[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return err
	}
	h, _, err := transport.ParseMessage(b[:])
	if err != nil {
		return err
	}
	if err := d.in.Check(&h); err != nil {
		return err
	}
	d.heard.Add(1)
	if h.Len != 0 && (h.Type != transport.MsgPush || h.Len > transport.MaxPush) {
		return protocol("a payload of %d bytes in %v", h.Len, h.Type)
	}
	switch h.Type {
	case transport.MsgRun:
		if err := d.ask(h); err != nil {
			return err
		}
		d.mu.Lock()
		d.queue = append(d.queue, h)
		d.mu.Unlock()
		d.due.Ring()
		return nil
	case transport.MsgPull:
		last := h.Aux&transport.LastPull != 0
		h.Aux &^= transport.LastPull
		if h.Result < 0 || h.Aux > transport.MaxMessage {
			return protocol("PULL of %d bytes at unit %d", h.Aux, h.Result)
		}
		return d.pull(h, last)
	case transport.MsgPush:
		data := make([]byte, transport.Pad(int(h.Len)))
		if err := line.ReadFull(data); err != nil {
			return err
		}
		if err := d.registered.pushed(h.ID, h.Aux, data[:h.Len]); err != nil {
			return err
		}
		return d.answer(transport.MessageHeader{Type: transport.MsgPushed, ID: h.ID, Seq: h.Seq}, nil)
	case transport.MsgPing:
		return d.answer(transport.MessageHeader{Type: transport.MsgPong, ID: h.ID, Seq: h.Seq, Aux: h.Aux}, nil)
	case transport.MsgPong:
		d.known.Store(h.Seq)
		return nil
	}
	return protocol("%v on the callback connection", h.Type)
}

// next waits for the next host function that is due; false at the end.
func (d *callback) next() (transport.MessageHeader, bool) {
	for {
		seen := d.due.Now()
		d.mu.Lock()
		if d.ended {
			d.mu.Unlock()
			return transport.MessageHeader{}, false
		}
		if len(d.queue) > 0 {
			h := d.queue[0]
			d.queue = d.queue[1:]
			d.mu.Unlock()
			return h, true
		}
		d.mu.Unlock()
		d.due.Await(seen)
	}
}

// runHosts runs host functions one at a time on a thread of their own, as the driver does.
func (d *callback) runHosts() {
	<-d.wanted
	runtime.LockOSThread()
	for {
		h, ok := d.next()
		if !ok {
			return
		}
		err := d.run(h.Aux, h.Result)
		if err == nil {
			err = d.answer(transport.MessageHeader{Type: transport.MsgRan, ID: h.ID, Seq: h.Seq, Aux: h.Aux}, nil)
		}
		if err != nil {
			d.owner.fail(err)
			return
		}
		d.answered()
	}
}

func (d *callback) run(registration uint64, status int32) error {
	f, ok := d.registered.hostOf(registration)
	if !ok {
		return protocol("RUN of the unknown host function %d", registration)
	}
	d.registered.awaitEarlier(f.order, nil, d.flushDownloads)
	d.shared.news()
	atomic.AddUint32(&d.shared.Hosting, 1)
	d.runHost(f.HostFunction, status)
	atomic.AddUint32(&d.shared.Hosting, ^uint32(0))
	if !f.Keep {
		d.registered.endHost(registration)
	}
	return nil
}

// pull answers the server's wish for a part of a source once its bytes are what they are to be. The last part ends the
// source.
func (d *callback) pull(h transport.MessageHeader, last bool) error {
	from, ok, late := d.registered.sourceOf(h.ID)
	offset := uint64(h.Result) * transport.PullUnit
	if !ok || offset > uint64(len(from.src)) || h.Aux > uint64(len(from.src))-offset {
		return protocol("PULL of %d bytes at %d of source %d, which has %d", h.Aux, offset, h.ID, len(from.src))
	}
	src := from.src[offset : offset+h.Aux]
	if !late {
		return d.sendPulled(h, src, last)
	}
	if err := d.ask(h); err != nil {
		return err
	}
	d.owner.start(func() { // the callback connection goes on meanwhile
		d.registered.awaitEarlier(from.order, from.src, d.flushDownloads)
		if err := d.sendPulled(h, src, last); err != nil {
			d.owner.fail(err)
		}
		d.answered()
	})
	return nil
}

// sendPulled sends it.
func (d *callback) sendPulled(h transport.MessageHeader, src []byte, last bool) error {
	err := d.answer(transport.MessageHeader{Type: transport.MsgPulled, ID: h.ID, Seq: h.Seq}, src)
	if last {
		d.registered.endSource(h.ID)
	}
	return err
}

// flushDownloads asks the server to send what downloads the GPU has finished, and gives the number that the answer has
// at least.
func (d *callback) flushDownloads() (uint64, error) {
	d.flushing.Lock()
	defer d.flushing.Unlock()
	d.flushes++
	n := d.flushes
	d.reader.kick()
	return n, d.answer(transport.MessageHeader{Type: transport.MsgFlush, Seq: n}, nil)
}
