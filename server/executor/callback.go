package executor

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// callbackTimeout bounds how long a host function waits for the client to open the callback connection.
const callbackTimeout = 15 * time.Second

var (
	errCallbackClosed  = errors.New("the session's callback connection is closed")
	errCallbackMissing = errors.New("the client did not open its callback connection")
)

// callbackConn is the connection over which work on the GPU's streams asks the client for something and waits for it: a
// host function's run, or the bytes of a deferred upload. Each request blocks only the driver's thread that made it. A
// stream stands still meanwhile, so whoever waits for the other end looks for a moment before it sleeps.
type callbackConn struct {
	mu      sync.Mutex // guards what follows
	line    *transport.Line
	seq     uint64
	waiting map[uint64]*request
	err     error
	there   chan struct{} // closed when line is set
	closed  chan struct{} // closed when err is set
	reader  sync.WaitGroup

	write  sync.Mutex      // held while a message is numbered and sent; guards what follows
	out    transport.Chain // of what is sent
	pinged uint64          // so many PINGs were sent

	heard  atomic.Uint64   // messages that have come
	ponged atomic.Uint64   // answers to PING among them
	seen   uint64          // what had come at the last beat; the pulse's
	in     transport.Chain // of what comes; the reader's
	rouse  func()          // told of each request
	broken func(error)     // told that the client broke the protocol

	flush   atomic.Uint64 // the latest FLUSH
	flushed func(uint64)  // answers it
}

type request struct {
	want transport.MessageType
	dst  []byte
	err  error
	over transport.Bell // rung once
}

func newCallbackConn() *callbackConn {
	return &callbackConn{waiting: make(map[uint64]*request), there: make(chan struct{}), closed: make(chan struct{})}
}

// attach takes the connection. There is one only; a second is refused.
func (c *callbackConn) attach(line *transport.Line) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		_ = line.Close()
		return c.err
	case c.line != nil:
		_ = line.Close()
		return errors.New("the session has a callback connection already")
	}
	c.line = line
	close(c.there)
	c.reader.Go(func() {
		runtime.LockOSThread()
		err := c.read(line)
		if errors.Is(err, ErrProtocol) {
			c.broken(err)
		}
		c.fail(err)
		c.release()
	})
	return nil
}

// fail ends the connection: everybody who waits is woken, by the reader if there is one, which may be about to store an
// answer.
func (c *callbackConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	close(c.closed)
	if c.line != nil {
		c.line.Shutdown()
	}
}

// breach is the reason of a connection that ended because the client broke the protocol.
func (c *callbackConn) breach() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.err, ErrProtocol) {
		return c.err
	}
	return nil
}

// release tells those who wait that no answer will come.
func (c *callbackConn) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for seq, r := range c.waiting {
		delete(c.waiting, seq)
		r.err = c.err
		r.over.Ring()
	}
}

// close ends the connection and waits for its reader.
func (c *callbackConn) close() {
	c.fail(errCallbackClosed)
	c.reader.Wait()
	if c.line != nil {
		c.write.Lock()
		defer c.write.Unlock()
		_ = c.line.Close()
	}
}

// call sends a request and waits for its answer; a payload is stored in dst, which it must fill exactly.
func (c *callbackConn) call(h transport.MessageHeader, payload []byte, want transport.MessageType, dst []byte) error {
	select {
	case <-c.there:
	case <-c.closed:
	case <-time.After(callbackTimeout):
		return errCallbackMissing
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return c.err
	}
	c.seq++
	h.Seq = c.seq
	r := &request{want: want, dst: dst}
	c.waiting[h.Seq] = r
	c.mu.Unlock()
	c.rouse()
	if err := c.send(h, payload); err != nil {
		c.fail(err)
	}
	for r.over.Now() == 0 {
		r.over.Await(0)
	}
	return r.err
}

func (c *callbackConn) send(h transport.MessageHeader, payload []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	return c.out.Send(c.line, h, payload)
}

// awaits says whether something was asked for and has not been answered.
func (c *callbackConn) awaits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting) > 0 && c.err == nil
}

// beat asks the client for a sign of life where an answer is awaited and nothing has come since the last beat. PING and
// PONG have their places among the other messages, so each side sees by them whether the last one before is missing.
// It does not wait for a client that reads nothing, nor heap questions on it.
func (c *callbackConn) beat() {
	heard := c.heard.Load()
	quiet := heard == c.seen
	c.seen = heard
	if !quiet || !c.awaits() || !c.write.TryLock() {
		return
	}
	defer c.write.Unlock()
	if c.pinged-c.ponged.Load() < transport.SilentBeats && c.line.Ready() {
		c.pinged++
		_ = c.out.Send(c.line, transport.MessageHeader{Type: transport.MsgPing, Seq: c.pinged}, nil) // the reader sees why
	}
}

// pong answers a PING where that needs no patience. Whoever sends something else waits for a client that may itself
// wait until its answer is read; and what is being sent is a sign of life, too.
func (c *callbackConn) pong(h transport.MessageHeader, payload []byte) error {
	if !c.write.TryLock() {
		return nil
	}
	defer c.write.Unlock()
	if !c.line.Ready() {
		return nil
	}
	return c.out.Send(c.line, h, payload)
}

func (c *callbackConn) read(line *transport.Line) error {
	const pingLimit = 4096
	head, rest := make([]byte, transport.MessageHeaderSize), make([]byte, transport.Pad(pingLimit))
	read := func(b []byte) error {
		if err := line.ReadFull(b); err != nil {
			return fmt.Errorf("%w: %w", errCallbackClosed, err)
		}
		return nil
	}
	for {
		if err := read(head); err != nil {
			return err
		}
		h, _, err := transport.ParseMessage(head)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if err := c.in.Check(&h); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		c.heard.Add(1)
		switch h.Type {
		case transport.MsgRan, transport.MsgPulled, transport.MsgPushed:
			c.mu.Lock()
			q, ok := c.waiting[h.Seq]
			c.mu.Unlock()
			if !ok || q.want != h.Type || len(q.dst) != int(h.Len) {
				return fmt.Errorf("%w: answer %v of %d bytes to request %d, which is not open or has another length", ErrProtocol,
					h.Type, h.Len, h.Seq)
			}
			if err := read(q.dst); err != nil {
				return err
			}
			if err := read(rest[:transport.Pad(len(q.dst))-len(q.dst)]); err != nil {
				return err
			}
			c.mu.Lock()
			delete(c.waiting, h.Seq)
			c.mu.Unlock()
			q.over.Ring()
		case transport.MsgPing, transport.MsgPong:
			if h.Len > pingLimit {
				return fmt.Errorf("%w: %v of %d bytes", ErrProtocol, h.Type, h.Len)
			}
			payload := rest[:transport.Pad(int(h.Len))]
			if err := read(payload); err != nil {
				return err
			}
			if h.Type == transport.MsgPong {
				c.ponged.Add(1)
				continue
			}
			h.Type = transport.MsgPong
			if err := c.pong(h, payload[:h.Len]); err != nil {
				return err
			}
		case transport.MsgFlush:
			if h.Len != 0 || h.Seq <= c.flush.Load() {
				return fmt.Errorf("%w: FLUSH %d with %d bytes after FLUSH %d", ErrProtocol, h.Seq, h.Len, c.flush.Load())
			}
			c.flush.Store(h.Seq)
			c.flushed(h.Seq)
		default:
			return fmt.Errorf("%w: message %v on the callback connection", ErrProtocol, h.Type)
		}
	}
}

// run has the client run a host function.
func (c *callbackConn) run(registration uint64, callback bool, status int32) error {
	h := transport.MessageHeader{Type: transport.MsgRun, Aux: registration, Result: status}
	if callback {
		h.ID = 1
	}
	return c.call(h, nil, transport.MsgRan, nil)
}

// pull fetches len(dst) bytes of a registered source from an offset that is a multiple of [transport.PullUnit].
func (c *callbackConn) pull(source uint32, offset uint64, dst []byte, last bool) error {
	h := transport.MessageHeader{
		Type: transport.MsgPull, ID: source, Aux: uint64(len(dst)), Result: int32(offset / transport.PullUnit),
	}
	if last {
		h.Aux |= transport.LastPull
	}
	return c.call(h, nil, transport.MsgPulled, dst)
}

// push stores a piece of a captured download with the client and waits until it is there.
func (c *callbackConn) push(transfer uint32, offset uint64, data []byte) error {
	return c.call(transport.MessageHeader{Type: transport.MsgPush, ID: transfer, Aux: offset}, data, transport.MsgPushed,
		nil)
}

// clientFailed ends the session: what the stream needed from the client will never come.
func (s *Session) clientFailed(what string, err error) {
	select {
	case <-s.stopped: // the session is over anyway
	default:
		s.log.Error("session ends: cannot "+what, "error", err)
		s.Notice("cannot " + what + ": " + err.Error())
		s.Stop()
	}
}

// callbackBroken tells of a client that broke the protocol on the callback connection, and ends its session.
func (s *Session) callbackBroken(err error) {
	select {
	case <-s.stopped:
	default:
		s.log.Error("session ends", "error", err)
		s.Notice(err.Error())
		s.callback.fail(err)
		s.Stop()
	}
}

// hostFunc: a host function or stream callback of the client.
func (s *Session) hostFunc(c *command) (cuda.CUresult, error) {
	c.async = true
	p, rest, err := view[wire.HostFunc](c)
	if err != nil {
		return 0, err
	}
	if len(rest) != 0 || p.Kind > 1 {
		return 0, protocolError("host function of kind %d", p.Kind)
	}
	st, r := s.stream(p.Stream)
	if r != cuda.CUDA_SUCCESS {
		return r, nil
	}
	registration, callback := p.Registration, p.Kind == 1
	if s.isCapturing(st) && !callback {
		end := s.graphs.functionEnd(registration)
		if r = s.graphs.attachToCapture(st, end); r == cuda.CUDA_SUCCESS {
			r = s.gpu.LaunchNode(st.real, end.call)
		}
		return r, nil
	}
	return s.ask(st, func() {
		if err := s.callback.run(registration, callback, 0); err != nil {
			s.clientFailed("run a host function", err)
		}
	}), nil
}

// ask enqueues a function that asks the client for something over the callback connection. It runs on a thread of the
// driver's, and makes no call of the driver.
func (b *base) ask(st *stream, f func()) cuda.CUresult { return b.gpu.HostFunc(st.real, f) }
