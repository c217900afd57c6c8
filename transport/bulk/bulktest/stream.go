package bulktest

import (
	"errors"
	"slices"
	"sync"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// ErrBroken is what using a broken stream gives.
var ErrBroken = errors.New("the stream is broken")

// Stream carries chunks in order, a few of them at a time.
type Stream struct {
	to     bulk.Receiver
	chunks chan sentChunk
	over   chan struct{}
	once   sync.Once
	fault  error // read behind over
}

var _ bulk.Sender = (*Stream)(nil)

type sentChunk struct {
	bulk.Chunk
	data []byte
}

// NewStream makes a stream that holds so many chunks.
func NewStream(to bulk.Receiver, holds int) *Stream {
	return &Stream{to: to, chunks: make(chan sentChunk, holds), over: make(chan struct{})}
}

// State is always [bulk.Up].
func (s *Stream) State() bulk.State { return bulk.Up }

// ChunkBytes is the largest size.
func (s *Stream) ChunkBytes() int { return transport.MaxChunk }

// Register is not needed.
func (s *Stream) Register([]byte) (bulk.Region, error) { return nil, nil }

// Send copies a piece.
func (s *Stream) Send(p bulk.Piece, _ bulk.Region) error {
	select {
	case s.chunks <- sentChunk{p.Chunk(), slices.Clone(p.Data())}:
		return nil
	case <-s.over:
		return s.fault
	}
}

// Receive delivers chunks until the stream breaks.
func (s *Stream) Receive() error {
	for {
		select {
		case c := <-s.chunks:
			b, err := s.to.Room(c.Chunk)
			if err != nil {
				s.Break(err)
				return err
			}
			copy(b.Bytes(), c.data)
			s.to.Arrived(c.Chunk, b)
		case <-s.over:
			return s.fault
		}
	}
}

// Break breaks the stream; nil means [ErrBroken].
func (s *Stream) Break(err error) {
	if err == nil {
		err = ErrBroken
	}
	s.once.Do(func() {
		s.fault = err
		close(s.over)
	})
}
