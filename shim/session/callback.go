package session

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/transport"
)

// HostFunction is a function of the program that runs in stream order.
type HostFunction struct {
	Func, User uintptr
	Stream     uint64
	Kind       uint32 // 0 host function, 1 stream callback
	Keep       bool   // captured: may run often
}

type registered struct {
	HostFunction
	order uint64
}

// callback is the connection over which the server asks the client for things in stream order, and what serves it. It
// is opened when the program first registers something that the server may ask for; most programs never do, or not
// before they have long begun.
type callback struct {
	once   sync.Once
	wanted chan struct{} // closed when it is to be opened, or never will be

	writing sync.Mutex // held while a message is written

	flushing sync.Mutex // guards flushes, and is held while FLUSH is sent, so that they go in their order
	flushes  uint64     // sent so far

	mu    sync.Mutex // guards what follows
	line  *transport.Line
	queue []transport.MessageHeader // host functions that are due
	ended bool

	due transport.Bell // rung when the queue grows, and at the end
}

func (d *callback) init() {
	d.wanted = make(chan struct{})
}

// wantCallback has the callback connection opened.
func (s *Session) wantCallback() {
	s.callback.once.Do(func() {
		if s.cfg.Opening != nil {
			s.cfg.Opening()
		}
		close(s.callback.wanted)
	})
}

func (d *callback) shut() {
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
	d.writing.Lock()
	defer d.writing.Unlock()
	return line.Send(h, payload)
}

// HostFunction registers a host function and gives its registration.
func (s *Session) HostFunction(f HostFunction) uint64 {
	s.wantCallback()
	s.hosts.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.nextHost++
	s.mu.order++
	s.mu.hosts[s.mu.nextHost] = registered{f, s.mu.order}
	if f.Keep {
		s.mu.hosts[s.mu.nextHost] = registered{f, always}
	}
	return s.mu.nextHost
}

// callbackLoop opens the callback connection when it is wanted, and serves it until it ends, and with it the session.
func (s *Session) callbackLoop() {
	<-s.callback.wanted
	if s.lost() != 0 {
		return
	}
	hello := further(s, transport.KindCallback)
	var line *transport.Line
	c, _, err := transport.DialNet(s.ctx, s.cfg.Server, &hello)
	if err == nil {
		line, err = transport.NewLine(c)
	}
	if err != nil {
		s.lastWords()
		s.fail(fmt.Errorf("no callback connection: %w", err))
		return
	}
	if !s.callback.set(line) {
		_ = line.Close()
		return
	}
	s.opened(line.FD())
	runtime.LockOSThread()
	for {
		if err := s.callbackMessage(line); err != nil {
			s.lastWords()
			s.fail(err)
			return
		}
	}
}

func (s *Session) callbackMessage(line *transport.Line) error {
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
	if h.Len != 0 && (h.Type != transport.MsgPush || h.Len > transport.MaxPush) {
		return protocol("a payload of %d bytes in %v", h.Len, h.Type)
	}
	switch h.Type {
	case transport.MsgRun:
		s.callback.mu.Lock()
		s.callback.queue = append(s.callback.queue, h)
		s.callback.mu.Unlock()
		s.callback.due.Ring()
		return nil
	case transport.MsgPull:
		if h.Result < 0 || h.Aux > transport.MaxMessage {
			return protocol("PULL of %d bytes at unit %d", h.Aux, h.Result)
		}
		return s.pull(h)
	case transport.MsgPush:
		data := make([]byte, transport.Pad(int(h.Len)))
		if err := line.ReadFull(data); err != nil {
			return err
		}
		if err := s.pushed(h.ID, h.Aux, data[:h.Len]); err != nil {
			return err
		}
		return s.callback.answer(transport.MessageHeader{Type: transport.MsgPushed, ID: h.ID, Seq: h.Seq}, nil)
	case transport.MsgPing:
		return s.callback.answer(transport.MessageHeader{Type: transport.MsgPong, ID: h.ID, Seq: h.Seq, Aux: h.Aux}, nil)
	case transport.MsgPong:
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

// hostLoop runs host functions one at a time on a thread of their own, as the driver does.
func (s *Session) hostLoop() {
	d := &s.callback
	<-d.wanted
	runtime.LockOSThread()
	for {
		h, ok := d.next()
		if !ok {
			return
		}
		answer := transport.MessageHeader{Type: transport.MsgRan, ID: h.ID, Seq: h.Seq, Aux: h.Aux}
		if !s.runHost(h.Aux, h.Result) {
			answer.Result = InvalidValue
		}
		if err := d.answer(answer, nil); err != nil {
			s.fail(err)
			return
		}
	}
}

func (s *Session) runHost(registration uint64, status int32) bool {
	s.mu.Lock()
	f, ok := s.mu.hosts[registration]
	s.mu.Unlock()
	if !ok {
		s.log.Error("the server asked for an unknown host function", "registration", registration)
		return false
	}
	s.awaitEarlier(f.order, nil)
	s.news()
	atomic.AddUint32(&s.shared.Hosting, 1)
	s.cfg.HostRun(f.HostFunction, status)
	atomic.AddUint32(&s.shared.Hosting, ^uint32(0))
	if !f.Keep {
		s.mu.Lock()
		delete(s.mu.hosts, registration)
		s.mu.Unlock()
		s.hosts.Add(-1)
	}
	return true
}

// lastWords reads what the server still said on the main connection before the callback connection broke, so that its
// reason is not lost.
func (s *Session) lastWords() {
	deadline := time.Now().Add(lastWordsTimeout)
	for s.lost() == 0 && time.Now().Before(deadline) {
		if _, err := s.conn.Wait(transport.Readable, time.Until(deadline)); err != nil {
			return
		}
		if !s.tryRead() {
			schedYield() // whoever reads will see the end itself
			continue
		}
		err := s.readAvailable()
		s.endRead()
		if err != nil {
			s.fail(err)
			return
		}
	}
}
