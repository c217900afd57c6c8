package executor

import (
	"errors"

	"scuda.dev/scuda/transport"
)

const (
	inputBytes  = 8 << 20
	inputMargin = 2 * transport.MaxCommand // room that is made before the next receive
)

// input is the receive buffer of the main connection. A byte's place in it is congruent to its place in the stream modulo 8, so that
// payloads are aligned.
type input struct {
	mem   []byte
	r, w  int    // what has come and is not used up: mem[r:w]
	read  uint64 // stream offset of mem[r]
	frame int    // bytes of the current frame that are not used up
	bufs  [1][]byte
}

// fill receives into direct, if that is not empty and nothing waits before it, and into the buffer. What goes into direct is the caller's.
func (in *input) fill(c transport.Conn, direct *directTarget) (int, error) {
	if in.r == in.w {
		in.r = int(in.read & 7)
		in.w = in.r
	} else if len(in.mem)-in.w < inputMargin {
		to := in.r & 7
		in.w = to + copy(in.mem[to:], in.mem[in.r:in.w])
		in.r = to
	}
	if direct == nil || in.r != in.w {
		in.bufs[0] = in.mem[in.w:]
		n, err := c.Recv(in.bufs[:])
		in.w += n
		return n, err
	}
	in.bufs[0] = direct.room
	n, err := c.Recv(in.bufs[:])
	direct.got = n
	in.read += uint64(n)
	return n, err
}

// directTarget is where the next bytes of bulk data belong.
type directTarget struct {
	room []byte
	got  int
}

func (in *input) take(n int) []byte {
	b := in.mem[in.r : in.r+n : in.r+n]
	in.r += n
	in.read += uint64(n)
	return b
}

func (in *input) buffered() int { return in.w - in.r }

// next gives the next whole command, or false when more bytes are needed.
func (in *input) next() (h transport.CommandHeader, payload []byte, ok bool, err error) {
	if in.frame == 0 {
		f, n, err := transport.ParseFrame(in.mem[in.r:in.w])
		if errors.Is(err, transport.ErrShort) {
			return h, nil, false, nil
		}
		if err != nil {
			return h, nil, false, protocolError("%v", err)
		}
		in.take(n)
		in.frame = int(f.Len)
	}
	b := in.mem[in.r:in.w]
	whole := len(b) >= in.frame
	if whole {
		b = b[:in.frame]
	}
	h, payload, err = transport.ParseCommand(b)
	switch {
	case errors.Is(err, transport.ErrShort) && !whole:
		return h, nil, false, nil
	case errors.Is(err, transport.ErrShort):
		return h, nil, false, protocolError("a command goes beyond its frame")
	case err != nil:
		return h, nil, false, protocolError("%v", err)
	case int(h.Size) > in.frame:
		return h, nil, false, protocolError("a command of %d bytes in a frame with %d left", h.Size, in.frame)
	}
	in.take(int(h.Size))
	in.frame -= int(h.Size)
	if h.Flags&transport.FlagBulk != 0 && in.frame != 0 {
		return h, nil, false, protocolError("a bulk command is not the last of its frame")
	}
	return h, payload, true, nil
}
