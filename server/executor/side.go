package executor

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/transport"
)

// sideTimeout bounds how long a host function waits for the client to open the side connection.
const sideTimeout = 15 * time.Second

var (
	errSideClosed  = errors.New("the session's side connection is closed")
	errSideMissing = errors.New("the client did not open its side connection")
)

// side is the connection over which work on the GPU's streams asks the client for something and waits for it: a host function's run, or
// the bytes of a deferred upload. Each request blocks only the driver's thread that made it.
type side struct {
	mu      sync.Mutex
	conn    net.Conn
	seq     uint64
	waiting map[uint64]*request
	err     error
	there   chan struct{} // closed when conn is set
	closed  chan struct{} // closed when err is set
	readers sync.WaitGroup

	write sync.Mutex

	flush atomic.Uint64 // the latest FLUSH
}

type request struct {
	want transport.MessageType
	dst  []byte
	done chan struct{}
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
	case s.conn != nil:
		c.Close()
		return errors.New("the session has a side connection already")
	}
	s.conn = c
	close(s.there)
	s.readers.Go(func() { s.fail(s.read(c)) })
	return nil
}

// fail ends the side: everybody who waits is woken.
func (s *side) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	close(s.closed)
	if s.conn != nil {
		s.conn.Close()
	}
}

// close ends the side and waits for its goroutine.
func (s *side) close() {
	s.fail(errSideClosed)
	s.readers.Wait()
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
	r := &request{want: want, dst: dst, done: make(chan struct{})}
	s.waiting[h.Seq] = r
	s.mu.Unlock()
	if err := s.send(h, payload); err != nil {
		s.fail(err)
		return err
	}
	select {
	case <-r.done:
		return nil
	case <-s.closed:
		return s.err
	}
}

func (s *side) send(h transport.MessageHeader, payload []byte) error {
	h.Len = uint32(len(payload))
	b := h.Append(make([]byte, 0, transport.MessageHeaderSize+len(payload)+8))
	b = append(b, payload...)
	b = append(b, padding[:transport.Pad(len(payload))-len(payload)]...)
	s.write.Lock()
	defer s.write.Unlock()
	_, err := s.conn.Write(b)
	return err
}

func (s *side) read(c net.Conn) error {
	const pingLimit = 4096
	r := bufio.NewReaderSize(c, 64<<10)
	head := make([]byte, transport.MessageHeaderSize)
	for {
		if _, err := io.ReadFull(r, head); err != nil {
			return fmt.Errorf("%w: %w", errSideClosed, err)
		}
		h, _, err := transport.ParseMessage(head)
		if err != nil {
			return err
		}
		switch h.Type {
		case transport.MsgRan, transport.MsgPulled, transport.MsgPushed:
			s.mu.Lock()
			q, ok := s.waiting[h.Seq]
			delete(s.waiting, h.Seq)
			s.mu.Unlock()
			if !ok || q.want != h.Type || len(q.dst) != int(h.Len) {
				return fmt.Errorf("%w: answer %v of %d bytes to request %d, which is not open or has another length", ErrProtocol, h.Type, h.Len, h.Seq)
			}
			if _, err := io.ReadFull(r, q.dst); err != nil {
				return fmt.Errorf("%w: %w", errSideClosed, err)
			}
			if _, err := r.Discard(transport.Pad(len(q.dst)) - len(q.dst)); err != nil {
				return fmt.Errorf("%w: %w", errSideClosed, err)
			}
			close(q.done)
		case transport.MsgPing:
			if h.Len > pingLimit {
				return fmt.Errorf("%w: ping of %d bytes", ErrProtocol, h.Len)
			}
			payload := make([]byte, transport.Pad(int(h.Len)))
			if _, err := io.ReadFull(r, payload); err != nil {
				return fmt.Errorf("%w: %w", errSideClosed, err)
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
		case transport.MsgPong:
			if _, err := r.Discard(transport.Pad(int(h.Len))); err != nil {
				return fmt.Errorf("%w: %w", errSideClosed, err)
			}
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
	h := transport.MessageHeader{Type: transport.MsgPull, ID: source, Aux: uint64(len(dst)), Result: int32(offset / transport.PullUnit)}
	if last {
		h.Flags = 1
	}
	return s.call(h, nil, transport.MsgPulled, dst)
}

// push stores a piece of a captured download with the client and waits until it is there.
func (s *side) push(transfer uint32, offset uint64, data []byte) error {
	return s.call(transport.MessageHeader{Type: transport.MsgPush, ID: transfer, Aux: offset}, data, transport.MsgPushed, nil)
}
