package executor

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// sideTimeout bounds how long a host function waits for the client to open the side connection.
const sideTimeout = 15 * time.Second

var (
	errSideClosed  = errors.New("the session's side connection is closed")
	errSideMissing = errors.New("the client did not open its side connection")
)

// side is the connection over which work on the GPU's streams asks the client for something and waits for it: a host
// function's run, or the bytes of a deferred upload. Each request blocks only the driver's thread that made it. A
// stream stands still meanwhile, so whoever waits for the other end looks for a moment before it sleeps.
type side struct {
	mu      sync.Mutex // guards what follows
	line    *transport.Line
	seq     uint64
	waiting map[uint64]*request
	err     error
	there   chan struct{} // closed when line is set
	closed  chan struct{} // closed when err is set
	reader  sync.WaitGroup

	write sync.Mutex // held while a message is sent

	flush   atomic.Uint64 // the latest FLUSH
	flushed func(uint64)  // answers it
}

type request struct {
	want transport.MessageType
	dst  []byte
	err  error
	over transport.Bell // rung once
}

func newSide() *side {
	return &side{waiting: make(map[uint64]*request), there: make(chan struct{}), closed: make(chan struct{})}
}

// attach gives the side its connection. There is one only; a second is refused.
func (s *side) attach(c net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		c.Close()
		return s.err
	case s.line != nil:
		c.Close()
		return errors.New("the session has a side connection already")
	}
	line, err := transport.NewLine(c)
	if err != nil {
		return err
	}
	s.line = line
	close(s.there)
	s.reader.Go(func() {
		runtime.LockOSThread()
		s.fail(s.read(line))
		s.release()
	})
	return nil
}

// fail ends the side: everybody who waits is woken, by the reader if there is one, which may be about to store an
// answer.
func (s *side) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	close(s.closed)
	if s.line != nil {
		s.line.Shutdown()
	}
}

// release tells those who wait that no answer will come.
func (s *side) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq, r := range s.waiting {
		delete(s.waiting, seq)
		r.err = s.err
		r.over.Ring()
	}
}

// close ends the side and waits for its reader.
func (s *side) close() {
	s.fail(errSideClosed)
	s.reader.Wait()
	if s.line != nil {
		s.write.Lock()
		defer s.write.Unlock()
		_ = s.line.Close()
	}
}

// call sends a request and waits for its answer; a payload is stored in dst, which it must fill exactly.
func (s *side) call(h transport.MessageHeader, payload []byte, want transport.MessageType, dst []byte) error {
	select {
	case <-s.there:
	case <-s.closed:
	case <-time.After(sideTimeout):
		return errSideMissing
	}
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return s.err
	}
	s.seq++
	h.Seq = s.seq
	r := &request{want: want, dst: dst}
	s.waiting[h.Seq] = r
	s.mu.Unlock()
	if err := s.send(h, payload); err != nil {
		s.fail(err)
	}
	for r.over.Now() == 0 {
		r.over.Await(0)
	}
	return r.err
}

func (s *side) send(h transport.MessageHeader, payload []byte) error {
	s.write.Lock()
	defer s.write.Unlock()
	return s.line.Send(h, payload)
}

func (s *side) read(line *transport.Line) error {
	const pingLimit = 4096
	head, rest := make([]byte, transport.MessageHeaderSize), make([]byte, transport.Pad(pingLimit))
	read := func(b []byte) error {
		if err := line.ReadFull(b); err != nil {
			return fmt.Errorf("%w: %w", errSideClosed, err)
		}
		return nil
	}
	for {
		if err := read(head); err != nil {
			return err
		}
		h, _, err := transport.ParseMessage(head)
		if err != nil {
			return err
		}
		switch h.Type {
		case transport.MsgRan, transport.MsgPulled, transport.MsgPushed:
			s.mu.Lock()
			q, ok := s.waiting[h.Seq]
			s.mu.Unlock()
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
			s.mu.Lock()
			delete(s.waiting, h.Seq)
			s.mu.Unlock()
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
				continue
			}
			h.Type = transport.MsgPong
			if err := s.send(h, payload[:h.Len]); err != nil {
				return err
			}
		case transport.MsgFlush:
			if h.Len != 0 || h.Seq <= s.flush.Load() {
				return fmt.Errorf("%w: FLUSH %d with %d bytes after FLUSH %d", ErrProtocol, h.Seq, h.Len, s.flush.Load())
			}
			s.flush.Store(h.Seq)
			s.flushed(h.Seq)
		default:
			return fmt.Errorf("%w: message %v on the side connection", ErrProtocol, h.Type)
		}
	}
}

// run has the client run a host function.
func (s *side) run(registration uint64, callback bool, status int32) error {
	h := transport.MessageHeader{Type: transport.MsgRun, Aux: registration, Result: status}
	if callback {
		h.Flags = 1
	}
	return s.call(h, nil, transport.MsgRan, nil)
}

// pull fetches len(dst) bytes of a registered source from an offset that is a multiple of [transport.PullUnit].
func (s *side) pull(source uint32, offset uint64, dst []byte, last bool) error {
	h := transport.MessageHeader{
		Type: transport.MsgPull, ID: source, Aux: uint64(len(dst)), Result: int32(offset / transport.PullUnit),
	}
	if last {
		h.Flags = 1
	}
	return s.call(h, nil, transport.MsgPulled, dst)
}

// push stores a piece of a captured download with the client and waits until it is there.
func (s *side) push(transfer uint32, offset uint64, data []byte) error {
	return s.call(transport.MessageHeader{Type: transport.MsgPush, ID: transfer, Aux: offset}, data, transport.MsgPushed,
		nil)
}

// sideFailed ends the session: what the stream needed from the client will never come.
func (s *Session) sideFailed(what string, err error) {
	select {
	case <-s.stopped: // the session is over anyway
	default:
		s.log.Error("session ends: cannot "+what, "error", err)
		s.Notice("cannot " + what + ": " + err.Error())
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
		if err := s.side.run(registration, callback, 0); err != nil {
			s.sideFailed("run a host function", err)
		}
	}), nil
}

// ask enqueues a function that asks the client for something over the side connection. It runs on a thread of the
// driver's, and makes no call of the driver.
func (b *base) ask(st *stream, f func()) cuda.CUresult { return b.gpu.HostFunc(st.real, f) }
