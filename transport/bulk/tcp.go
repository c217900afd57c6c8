package bulk

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"scuda.dev/scuda/transport"
)

// TCP is one of a session's bulk connections. One goroutine may send while another receives. Its chunks are tied to
// each other in each direction ([transport.Chain]), as the messages of the main connection are: one that something on
// the way drops, doubles or exchanges is not taken for another.
type TCP struct {
	Line *transport.Line
	// Sent and Received count what went over the connection: the bytes of a chunk, and those with header and padding.
	// They may be nil.
	Sent, Received func(bytes, all int)
	Awaited        bool // somebody waits until the memory of what is sent can be used again

	head [transport.MessageHeaderSize]byte // of the message that is being received
	pad  [8]byte

	out, in transport.Chain
	sending atomic.Bool
}

var _ Sender = (*TCP)(nil)

// State is [Up] always: what is the matter with a connection shows when it is used.
func (t *TCP) State() State { return Up }

// ChunkBytes is the largest size.
func (t *TCP) ChunkBytes() int { return transport.MaxChunk }

// Register is not needed.
func (t *TCP) Register([]byte) (Region, error) { return nil, nil }

// Sending says whether a piece is being written.
func (t *TCP) Sending() bool { return t.sending.Load() }

// Send writes a piece. When it returns, the kernel has it.
func (t *TCP) Send(p Piece, _ Region) error {
	data := p.Data()
	c := p.Chunk()
	h := transport.MessageHeader{Type: transport.MsgChunk, Len: uint32(len(data)), ID: c.ID, Seq: c.Seq, Aux: c.Offset}
	h.Flags = t.out.Next(&h)
	t.sending.Store(true)
	err := t.Line.Send(h, data)
	t.sending.Store(false)
	if t.Sent != nil {
		t.Sent(len(data), wireBytes(len(data)))
	}
	return err
}

// Keeps says whether the connection may get another socket, and keeps what it sends for that ([TCP.Keep]).
func (t *TCP) Keeps() bool { return t.Line.Keeps() }

// Keep writes a piece whose memory stays as it is until the loan is over. When Keep returns, the kernel has it.
func (t *TCP) Keep(p Piece, loan transport.Loan) error {
	data := p.Data()
	c := p.Chunk()
	h := transport.MessageHeader{Type: transport.MsgChunk, Len: uint32(len(data)), ID: c.ID, Seq: c.Seq, Aux: c.Offset}
	h.Flags = t.out.Next(&h)
	t.sending.Store(true)
	err := t.Line.Keep(h, data, loan)
	t.sending.Store(false)
	if t.Sent != nil {
		t.Sent(len(data), wireBytes(len(data)))
	}
	return err
}

// Copy gives the memory of what is kept back early, where its owner wants that and a copy is sooner there than the
// peer's word.
func (t *TCP) Copy() {
	if t.Awaited {
		t.Line.Copy()
	}
}

// Abandon settles all pieces: the connection has ended.
func (t *TCP) Abandon() { t.Line.Abandon() }

// wireBytes is the size of a chunk with all that belongs to it.
func wireBytes(n int) int { return transport.MessageHeaderSize + transport.Pad(n) }

// BrokenError says that a connection ended within a chunk, or brought something else than chunks.
type BrokenError struct{ Err error }

func (e *BrokenError) Error() string { return "a bulk connection broke: " + e.Err.Error() }
func (e *BrokenError) Unwrap() error { return e.Err }

// Receive reads chunks until the connection ends. The error is a [BrokenError] where that is not between two chunks.
func (t *TCP) Receive(r Receiver) error {
	for {
		if err := t.Line.ReadFull(t.head[:]); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = io.EOF
			}
			return err
		}
		h, _, err := transport.ParseMessage(t.head[:])
		if err == nil && (h.Type != transport.MsgChunk || h.Len == 0 || h.Len > transport.MaxChunk) {
			err = fmt.Errorf("%w: %v of %d bytes on a bulk connection", ErrProtocol, h.Type, h.Len)
		}
		if n := t.in.Next(&h); err == nil && n != h.Flags {
			err = fmt.Errorf("%w: a chunk numbered %#x, not %#x: something before it is missing or has changed", ErrProtocol,
				h.Flags, n)
		}
		if err == nil {
			err = t.receive(r, &h)
		}
		if err != nil {
			return &BrokenError{err}
		}
	}
}

func (t *TCP) receive(r Receiver, h *transport.MessageHeader) error {
	c := Chunk{Seq: h.Seq, Offset: h.Aux, ID: h.ID, Bytes: h.Len}
	b, err := r.Room(c)
	if err != nil {
		return err
	}
	n := int(h.Len)
	if err = t.Line.ReadFull(b.Bytes()[:n]); err == nil {
		err = t.Line.ReadFull(t.pad[:transport.Pad(n)-n])
	}
	if t.Received != nil {
		t.Received(n, wireBytes(n))
	}
	if err != nil {
		r.Abandoned(b)
		return err
	}
	r.Arrived(c, b)
	t.Line.Acknowledge() // whoever sends may wait for its memory
	return nil
}
