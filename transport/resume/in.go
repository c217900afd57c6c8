package resume

import (
	"errors"
	"fmt"
	"io"
)

// ErrShort says that nothing more can be read before more has come from the socket.
var ErrShort = errors.New("resume: more bytes of the socket are needed")

// In is what comes from the peer. Bytes of the stream wait in its buffer until they are read; what the peer says in the
// headers between them is noticed when it comes ([In.Peer], [In.Parting]), even if nobody reads.
type In struct {
	buf         []byte
	least, most int // bytes of buf
	r, w        int // what lies in buf
	next        int // where in buf the header stands, or will, that has not been looked at
	left        int // bytes of the record under way that have not been read
	count       uint64
	peer        uint64 // how much the peer has received
	over        bool   // the farewell has been read
	parting     bool   // it has come
	err         error  // what came is no record
}

// NewIn makes one with a buffer of so many bytes, at least those of a header. For a reader who falls behind it grows up
// to most, which is to be more than the peer's window: then every header is reached.
func NewIn(buffer, most int) *In {
	buffer = max(buffer, HeaderSize)
	return &In{buf: make([]byte, buffer), least: buffer, most: max(buffer, most)}
}

// Count is how many bytes have been read: what the peer need not keep.
func (in *In) Count() uint64 { return in.count }

// Peer is how many bytes the peer said that it has received.
func (in *In) Peer() uint64 { return in.peer }

// Parting says whether the farewell has come, perhaps behind bytes that have not been read.
func (in *In) Parting() bool { return in.parting }

// Room is where the socket's next bytes go; [In.Received] says how many came. It is empty where the buffer cannot grow.
func (in *In) Room() []byte {
	if in.r == in.w {
		in.next -= in.r
		in.r, in.w = 0, 0
		if len(in.buf) > in.least {
			in.buf = make([]byte, in.least)
		}
	} else if len(in.buf)-in.w < HeaderSize {
		in.makeRoom()
	}
	return in.buf[in.w:]
}

func (in *In) makeRoom() {
	to := in.buf
	if in.r < len(in.buf)/2 && len(in.buf) < in.most {
		to = make([]byte, min(2*len(in.buf), in.most))
	}
	in.next -= in.r
	in.w = copy(to, in.buf[in.r:in.w])
	in.buf, in.r = to, 0
}

// Received notes that n bytes of the socket lie in the room, and looks at the headers among them.
func (in *In) Received(n int) {
	in.w += n
	for in.err == nil && in.next+HeaderSize <= in.w {
		h, err := ParseHeader(in.buf[in.next:in.w])
		if err == nil && in.parting && h.Kind != Received {
			err = fmt.Errorf("%w: a record of kind %d behind the farewell", ErrProtocol, h.Kind)
		}
		in.err = err
		if err == nil {
			in.next += HeaderSize + h.Len
			in.parting, in.peer = in.parting || h.Kind == Farewell, max(in.peer, h.Received)
		}
	}
}

// Heard notes that the peer has received the bytes before a position, which it has said in another way.
func (in *In) Heard(position uint64) { in.peer = max(in.peer, position) }

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
func (in *In) Took(n int) {
	in.read(n)
	in.next -= n
}

func (in *In) read(n int) { in.left, in.count = in.left-n, in.count+uint64(n) }

// Read reads what lies in the buffer, of one record at most. It gives [ErrShort] where the socket has to bring more,
// [io.EOF] behind a farewell, and [ErrProtocol] for what is no record. Records that only say how much the peer has
// received may come behind a farewell, too.
func (in *In) Read(b []byte) (int, error) {
	for in.left == 0 {
		if in.err != nil && in.r == in.next {
			return 0, in.err
		}
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
		in.r += HeaderSize
		in.left, in.over = h.Len, in.over || h.Kind == Farewell
	}
	n := copy(b[:min(len(b), in.left)], in.buf[in.r:in.w])
	if n == 0 && len(b) > 0 {
		return 0, ErrShort
	}
	in.r += n
	in.read(n)
	return n, nil
}

// Resume goes on at another socket. What lies in the buffer is forgotten: the peer sends it again, as it was not
// counted.
func (in *In) Resume() {
	in.r, in.w, in.left, in.next, in.over, in.parting, in.err = 0, 0, 0, 0, false, false, nil
}
