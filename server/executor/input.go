package executor

import (
	"errors"

	"scuda.dev/scuda/transport"
)

const (
	inputBytes  = 8 << 20
	inputMargin = 2 * transport.MaxCommand // room that is made before the next receive
)

// input is the receive buffer of the main connection. A byte's place in it is congruent to its place in the stream
// modulo 8, so that payloads are aligned.
type input struct {
	mem   []byte
	r, w  int    // what has come and is not used up: mem[r:w]
	read  uint64 // stream offset of mem[r]
	frame int    // bytes of the current frame that are not used up
	at    uint64 // where the next command of a thread has to stand in the client's stream
	own   uint64 // the number of the last command of the client's core
	bufs  [1][]byte
}

// fill receives into direct, if that is not empty and nothing waits before it, and into the buffer. What goes into
// direct is the caller's.
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

// next reads the next whole command into c, or says false when more bytes are needed.
func (in *input) next(c *command) (ok bool, err error) {
	if in.frame == 0 {
		f, n, err := transport.ParseFrame(in.mem[in.r:in.w])
		if errors.Is(err, transport.ErrShort) {
			return false, nil
		}
		if err != nil {
			return false, protocolError("%v", err)
		}
		in.take(n)
		in.frame = int(f.Len)
	}
	b := in.mem[in.r:in.w]
	whole := len(b) >= in.frame
	if whole {
		b = b[:in.frame]
	}
	if c.payload, err = c.CommandHeader.Parse(b); err != nil {
		switch {
		case !errors.Is(err, transport.ErrShort):
			return false, protocolError("%v", err)
		case whole:
			return false, protocolError("a command goes beyond its frame")
		}
		return false, nil
	}
	size := int(c.Size)
	if size > in.frame {
		return false, protocolError("a command of %d bytes in a frame with %d left", size, in.frame)
	}
	if err := in.follows(&c.CommandHeader); err != nil {
		return false, err
	}
	in.take(size)
	in.frame -= size
	if c.Flags&transport.FlagBulk != 0 && in.frame != 0 {
		return false, protocolError("a bulk command is not the last of its frame")
	}
	c.reply, c.outs, c.async, c.later, c.fine, c.began = nil, false, false, false, false, 0
	return true, nil
}

// follows says whether a command is the next one of the client's. One that is missing or comes twice would leave the
// client with other results than it thinks.
func (in *input) follows(h *transport.CommandHeader) error {
	want := in.at
	if h.Thread == transport.CoreThread {
		want = in.own + 1
	}
	if h.Seq != want {
		return protocolError("command %d of thread %d where %d has to come: one is missing, doubled or changed", h.Seq,
			h.Thread, want)
	}
	if h.Thread == transport.CoreThread {
		in.own++
	} else {
		in.at += uint64(h.Size)
	}
	return nil
}
