package tunnel

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of a connection that many streams share.
var (
	ErrEnded  = errors.New("the connection has ended")
	ErrSilent = errors.New("the other side has been silent for 15 seconds")
)

// Times of the signs of life.
const (
	beat   = 5 * time.Second
	silent = 15 * time.Second
)

// conn is a connection that a stream carries: a [*net.TCPConn].
type conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// mux carries connections over one stream of bytes each way.
type mux struct {
	in   *bufio.Reader
	out  io.Writer
	dial func(context.Context) (conn, error) // for streams that the other side opens; nil: it may not
	note func([]byte) error                  // takes notes, in the goroutine that reads

	writing sync.Mutex // who writes to out
	heard   atomic.Int64
	began   time.Time

	mu      sync.Mutex // guards the following
	streams map[uint32]*stream
	next    uint32
	err     error // set once it has ended
	carried sync.WaitGroup
}

func newMux(in io.Reader, out io.Writer) *mux {
	return &mux{in: bufio.NewReaderSize(in, 2*maxData), out: out, streams: make(map[uint32]*stream), began: time.Now()}
}

// stream is a connection on its way.
type stream struct {
	id      uint32
	arrived *queue
	mu      sync.Mutex // guards credit
	credit  int        // bytes that may be sent
	granted chan struct{}
	gone    chan struct{} // closed when it is to end at once
	leave   sync.Once
}

func (s *stream) end() { s.leave.Do(func() { close(s.gone) }) }

// run reads frames until the connection ends, and gives the reason, [ErrEnded] where the other side has closed it.
func (m *mux) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.read(ctx) }()
	go m.sendBeats(ctx)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case err = <-ended:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-tick.C:
			if time.Since(m.began)-time.Duration(m.heard.Load()) > silent {
				err = ErrSilent
			}
		}
	}
	m.mu.Lock()
	m.err = err
	for _, s := range m.streams {
		s.end()
	}
	m.mu.Unlock()
	return err
}

// wait waits until no connection is carried any more; run has returned.
func (m *mux) wait() { m.carried.Wait() }

func (m *mux) sendBeats(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if m.send(0, KindPing, nil) != nil {
				return // who reads learns it, too
			}
		}
	}
}

// send sends a frame whose payload is small.
func (m *mux) send(id uint32, kind Kind, payload []byte) error {
	b := Header{id, kind, len(payload)}.Append(make([]byte, 0, headerSize+len(payload)))
	return m.write(append(b, payload...))
}

func (m *mux) write(frame []byte) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	_, err := m.out.Write(frame)
	return err
}

func (m *mux) read(ctx context.Context) error {
	var head [headerSize]byte
	for {
		if _, err := io.ReadFull(m.in, head[:]); err != nil {
			return ended(err)
		}
		m.heard.Store(int64(time.Since(m.began)))
		h, err := ParseHeader(head[:])
		if err == nil {
			err = m.frame(ctx, h)
		}
		if err != nil {
			return err
		}
	}
}

func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrEnded
	}
	return fmt.Errorf("%w: %w", ErrEnded, err)
}

// frame takes a frame, whose payload has not been read yet.
func (m *mux) frame(ctx context.Context, h Header) error {
	m.mu.Lock()
	s, count := m.streams[h.Stream], len(m.streams)
	m.mu.Unlock()
	switch h.Kind {
	case KindPing:
		return nil
	case KindNote:
		b := make([]byte, h.Len)
		if _, err := io.ReadFull(m.in, b); err != nil {
			return ended(err)
		}
		if m.note == nil {
			return fmt.Errorf("%w: a note", ErrFrame)
		}
		return m.note(b)
	case KindOpen:
		if m.dial == nil || s != nil || count >= maxStreams {
			return fmt.Errorf("%w: stream %d is opened, of %d", ErrFrame, h.Stream, count)
		}
		s = m.add(h.Stream)
		m.carried.Go(func() {
			c, err := m.dial(ctx)
			if err != nil {
				m.drop(s, false)
				return
			}
			m.carry(s, c)
		})
		return nil
	case KindData:
		return m.data(s, h.Len)
	case KindCredit:
		var b [4]byte
		if _, err := io.ReadFull(m.in, b[:]); err != nil {
			return ended(err)
		}
		if s != nil {
			return s.grant(binary.LittleEndian.Uint32(b[:]))
		}
	case KindEnd:
		if s != nil {
			s.arrived.end()
		}
	case KindReset:
		if s != nil {
			s.end()
		}
	}
	return nil // a stream that is not there any more: the two sides' frames have crossed
}

// data reads a payload. That of a stream that is gone is dropped.
func (m *mux) data(s *stream, n int) error {
	if s == nil {
		_, err := m.in.Discard(n)
		if err != nil {
			return ended(err)
		}
		return nil
	}
	a, b := s.arrived.room(n)
	if len(a)+len(b) != n {
		return fmt.Errorf("%w: %d bytes too many of stream %d", ErrFrame, n, s.id)
	}
	for _, part := range [][]byte{a, b} {
		if _, err := io.ReadFull(m.in, part); err != nil {
			return ended(err)
		}
	}
	s.arrived.put(n)
	return nil
}

func (s *stream) grant(n uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint64(s.credit)+uint64(n) > window {
		return fmt.Errorf("%w: credit of %d bytes", ErrFrame, n)
	}
	s.credit += int(n)
	select {
	case s.granted <- struct{}{}:
	default:
	}
	return nil
}

// add makes a stream; nil where the mux has ended or is full.
func (m *mux) add(id uint32) *stream {
	s := &stream{id: id, arrived: newQueue(), credit: window, granted: make(chan struct{}, 1), gone: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		s.end()
	}
	m.streams[id] = s
	return s
}

// open carries a connection to the other side, and closes it.
func (m *mux) open(c conn) {
	m.mu.Lock()
	if m.err != nil || len(m.streams) >= maxStreams {
		m.mu.Unlock()
		c.Close()
		return
	}
	m.next++
	id := m.next
	m.mu.Unlock()
	s := m.add(id)
	if m.send(id, KindOpen, nil) != nil {
		s.end()
	}
	m.carry(s, c)
}

// drop forgets a stream, and tells the other side where that does not know: of one that ended in order, the last bytes
// may still lie there.
func (m *mux) drop(s *stream, inOrder bool) {
	m.mu.Lock()
	delete(m.streams, s.id)
	m.mu.Unlock()
	if !inOrder {
		_ = m.send(s.id, KindReset, nil) // where that fails, who reads learns it, too
	}
}

// carry carries a connection until both directions have ended, or one has failed.
func (m *mux) carry(s *stream, c conn) {
	defer c.Close()
	unhooked := make(chan struct{})
	defer close(unhooked)
	go func() {
		select {
		case <-s.gone:
			c.Close() // wakes those who wait for it
		case <-unhooked:
		}
	}()
	var sent error
	var both sync.WaitGroup
	both.Go(func() {
		if sent = m.sendAll(s, c); sent != nil {
			s.end()
		}
	})
	delivered := m.deliver(s, c)
	if delivered != nil {
		s.end()
	}
	both.Wait()
	m.drop(s, sent == nil && delivered == nil)
}

// sendAll sends what comes from a connection.
func (m *mux) sendAll(s *stream, c conn) error {
	frame := make([]byte, headerSize+maxData)
	for {
		room, err := s.allowed()
		if err != nil {
			return err
		}
		n, err := c.Read(frame[headerSize : headerSize+min(room, maxData)])
		if n > 0 {
			s.mu.Lock()
			s.credit -= n
			s.mu.Unlock()
			Header{s.id, KindData, n}.Append(frame[:0])
			if err := m.write(frame[:headerSize+n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return m.send(s.id, KindEnd, nil)
		case err != nil:
			return err
		}
	}
}

// errGone is a stream that the other side, or the other direction, has ended.
var errGone = errors.New("the stream is gone")

// allowed waits until something may be sent, and says how much.
func (s *stream) allowed() (int, error) {
	for {
		s.mu.Lock()
		n := s.credit
		s.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-s.granted:
		case <-s.gone:
			return 0, errGone
		}
	}
}

// deliver writes what has arrived to a connection.
func (m *mux) deliver(s *stream, c conn) error {
	owed := 0
	for {
		b, ok := s.arrived.take(s.gone)
		switch {
		case !ok:
			return errGone
		case len(b) == 0:
			return c.CloseWrite()
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
		s.arrived.taken(len(b))
		if owed += len(b); owed >= window/4 {
			if err := m.send(s.id, KindCredit, binary.LittleEndian.AppendUint32(nil, uint32(owed))); err != nil {
				return err
			}
			owed = 0
		}
	}
}
