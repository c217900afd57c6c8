package resume

import (
	"errors"
	"fmt"
	"io"
)

// ErrShort says that nothing more can be read before more has come from the socket.
var ErrShort = errors.New("resume: more bytes of the socket are needed")

// In is what comes from the peer.
type In struct {
	buf   []byte
	r, w  int    // what lies in buf
	left  int    // bytes of the record under way that have not been read
	count uint64 // bytes that have been read
	peer  uint64 // how much the peer has received
	over  bool   // the farewell has come
}

// NewIn makes one with a buffer of so many bytes, at least those of a header.
func NewIn(buffer int) *In { return &In{buf: make([]byte, max(buffer, HeaderSize))} }

// Count is how many bytes have been read: what the peer need not keep.
func (in *In) Count() uint64 { return in.count }

// Peer is how many bytes the peer said that it has received.
func (in *In) Peer() uint64 { return in.peer }

// Room is where the socket's next bytes go; [In.Received] says how many came.
func (in *In) Room() []byte {
	if in.r == in.w {
		in.r, in.w = 0, 0
	} else if len(in.buf)-in.w < HeaderSize {
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	return in.buf[in.w:]
}

// Received notes that n bytes of the socket lie in the room.
func (in *In) Received(n int) { in.w += n }

// Ready says whether something may be read without the socket.
func (in *In) Ready() bool { return in.over || in.w-in.r >= HeaderSize || in.left > 0 && in.w > in.r }

// Direct is how many of the socket's next bytes are the stream's: they may go to where they are wanted without a stay
// in the buffer, and [In.Took] counts them.
func (in *In) Direct() int {
	if in.r < in.w {
		return 0
	}
	return in.left
}

// Took notes that n bytes, of the number that [In.Direct] gave, went where they were wanted.
func (in *In) Took(n int) { in.left, in.count = in.left-n, in.count+uint64(n) }

// Read reads what lies in the buffer, of one record at most. It gives [ErrShort] where the socket has to bring more,
// [io.EOF] behind a farewell, and [ErrProtocol] for what is no record. A record that only says how much the peer has
// received is noticed on the way ([In.Peer]); such records may come behind a farewell, too.
func (in *In) Read(b []byte) (int, error) {
	for in.left == 0 {
		if in.w-in.r < HeaderSize {
			if in.over {
				return 0, io.EOF
			}
			return 0, ErrShort
		}
		h, err := ParseHeader(in.buf[in.r:in.w])
		if err != nil {
			return 0, err
		}
		if in.over && h.Kind != Received {
			return 0, fmt.Errorf("%w: a record of kind %d behind the farewell", ErrProtocol, h.Kind)
		}
		in.r += HeaderSize
		in.left, in.over, in.peer = h.Len, in.over || h.Kind == Farewell, max(in.peer, h.Received)
	}
	n := copy(b[:min(len(b), in.left)], in.buf[in.r:in.w])
	if n == 0 && len(b) > 0 {
		return 0, ErrShort
	}
	in.r += n
	in.Took(n)
	return n, nil
}

// Resume goes on at another socket. What lies in the buffer is forgotten: the peer sends it again, as it was not
// counted.
func (in *In) Resume() { in.r, in.w, in.left, in.over = 0, 0, 0, false }
