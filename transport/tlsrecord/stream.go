package tlsrecord

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

const (
	batch   = 4 // records that are sealed together, and that are received together
	inBytes = batch * MaxRecord
)

// Stream is an established connection's state. One goroutine may use In while another uses Out.
type Stream struct {
	In  Inbound
	Out Outbound
}

// State is what whoever goes on with a connection has to know. It holds the keys.
type State struct {
	Suite         uint16
	Send, Receive []byte // traffic secrets
	Sent          uint64 // records under these secrets
	Received      uint64
	Plain         []byte `json:",omitempty"` // data that nobody has read yet
	Sealed        []byte `json:",omitempty"` // received, not opened
}

// Resume goes on with a connection.
func Resume(s *State) (*Stream, error) {
	in, err := newHalf(s.Suite, s.Receive, s.Received)
	if err != nil {
		return nil, err
	}
	out, err := newHalf(s.Suite, s.Send, s.Sent)
	if err != nil {
		return nil, err
	}
	if len(s.Plain) > MaxPlaintext || len(s.Sealed) > inBytes {
		return nil, fmt.Errorf("%w: %d and %d bytes are left over", ErrState, len(s.Plain), len(s.Sealed))
	}
	c := new(Stream)
	c.In.opener.half, c.In.plain, c.In.renew = in, s.Plain, &c.Out.renew
	c.Out.sealer.half, c.Out.sealer.limit = out, keyLimit
	if len(s.Sealed) > 0 {
		c.In.buf = make([]byte, inBytes)
		c.In.w = copy(c.In.buf, s.Sealed)
	}
	c.In.look()
	return c, nil
}

// Export gives the state. What is pending must have been sent, and the stream is not used any more.
func (c *Stream) Export() (*State, error) {
	if len(c.Out.Pending()) > 0 || c.Out.renew.Load() || c.In.err != nil {
		return nil, errors.Join(fmt.Errorf("%w: it cannot be handed on now", ErrState), c.In.err)
	}
	return &State{
		Suite: c.Out.id, Send: c.Out.secret, Receive: c.In.secret, Sent: c.Out.seq, Received: c.In.seq,
		Plain: append([]byte(nil), c.In.plain...), Sealed: append([]byte(nil), c.In.buf[c.In.r:c.In.w]...),
	}, nil
}

// Outbound turns data into records.
type Outbound struct {
	sealer
	buf   []byte
	at    int         // buf[at:] has to be sent
	renew atomic.Bool // the peer wants other keys
}

// Fill seals data from the front of bufs, as much as is sent at once, and says how much that was. Nothing may be
// pending.
func (o *Outbound) Fill(bufs [][]byte) (n int, err error) {
	if o.buf == nil {
		o.buf = make([]byte, 0, HeaderSize+Overhead) // grows with what is sent
	}
	o.buf, o.at = o.buf[:0], 0
	if o.renew.Swap(false) {
		if o.buf, err = o.appendUpdate(o.buf, 0); err != nil {
			return 0, err
		}
	}
	i, from := 0, 0
	for range batch {
		if o.seq >= o.limit {
			if o.buf, err = o.appendUpdate(o.buf, 0); err != nil {
				return n, err
			}
		}
		at, room := len(o.buf), MaxPlaintext
		for ; room > 0 && i < len(bufs); i, from = i+1, 0 {
			if at == len(o.buf) && from < len(bufs[i]) {
				o.buf = begin(o.buf)
			}
			k := min(room, len(bufs[i])-from)
			o.buf = append(o.buf, bufs[i][from:from+k]...)
			n, room, from = n+k, room-k, from+k
			if from < len(bufs[i]) {
				break
			}
		}
		if room == MaxPlaintext {
			break
		}
		o.buf = o.seal(o.buf, at, TypeApplication)
	}
	return n, nil
}

// Close makes the farewell pending.
func (o *Outbound) Close() {
	o.buf = o.appendRecord(o.buf, TypeAlert, []byte{levelWarning, alertCloseNotify})
}

// RenewKeys makes a KeyUpdate pending, after which other keys are used, and asks the peer to renew its own.
func (o *Outbound) RenewKeys() (err error) {
	o.buf, err = o.appendUpdate(o.buf, updateRequested)
	return err
}

// Pending is what has to be sent.
func (o *Outbound) Pending() []byte { return o.buf[o.at:] }

// Sent says how much of it has been.
func (o *Outbound) Sent(n int) { o.at += n }

// Inbound turns records into data.
type Inbound struct {
	opener
	buf    []byte
	r, w   int    // buf[r:w] is sealed
	plain  []byte // opened; in buf before r, or memory of its own
	unused int    // records without data, one after the other
	err    error
	ready  atomic.Bool
	renew  *atomic.Bool // of the other half: the peer wants it
}

// Ready says whether Read would give something (data, or an error) without anything being received. Everybody may ask.
func (in *Inbound) Ready() bool { return in.ready.Load() }

func (in *Inbound) look() {
	_, err := size(in.buf[in.r:in.w])
	in.ready.Store(len(in.plain) > 0 || in.err != nil || !errors.Is(err, ErrShort))
}

// Room is where to receive. Nothing may be ready.
func (in *Inbound) Room() []byte {
	if in.buf == nil {
		in.buf = make([]byte, inBytes)
	}
	if in.r > 0 {
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	return in.buf[in.w:]
}

// Received says how many bytes came there.
func (in *Inbound) Received(n int) {
	in.w += n
	in.look()
}

// Buffered is how many bytes are there that no record was made of.
func (in *Inbound) Buffered() int { return in.w - in.r }

// Missing is how many bytes have to be received, at least, before n more bytes of data can be read, and before the
// record at hand is whole.
func (in *Inbound) Missing(n int) int {
	records := (n + MaxPlaintext - 1) / MaxPlaintext
	least := n + records*Overhead
	if b := in.buf[in.r:in.w]; len(b) >= HeaderSize {
		least = max(least, HeaderSize+int(binary.BigEndian.Uint16(b[3:])))
	} else {
		least = max(least, HeaderSize+1)
	}
	return max(1, least-in.Buffered())
}

// Read gives data. [ErrShort] says that more has to be received, [io.EOF] that the peer took its leave.
func (in *Inbound) Read(b []byte) (n int, err error) {
	for n < len(b) {
		if len(in.plain) > 0 {
			k := copy(b[n:], in.plain)
			in.plain, n = in.plain[k:], n+k
			continue
		}
		if in.err != nil {
			err = in.err
			break
		}
		data, direct, e := in.open(b[n:])
		if e != nil {
			err = e
			break
		}
		if direct {
			n += len(data)
		} else {
			in.plain = data
		}
	}
	if err != nil && !errors.Is(err, ErrShort) {
		in.err = err
	}
	in.look()
	if n > 0 {
		err = nil // it comes again
	}
	return n, err
}

// open opens one record, into b where that has room for it.
func (in *Inbound) open(b []byte) (data []byte, direct bool, err error) {
	t, data, n, err := in.parse(in.buf[in.r:in.w], b)
	if err != nil {
		return nil, false, err
	}
	in.r += n
	if t == TypeApplication && len(data) > 0 {
		in.unused = 0
		return data, len(b) > 0 && &data[0] == &b[0], nil
	}
	if in.unused++; in.unused > maxUnused {
		return nil, false, errTooManyUnused
	}
	switch t {
	case TypeApplication:
	case TypeAlert:
		if len(data) != 2 {
			return nil, false, fmt.Errorf("%w: an alert of %d bytes", ErrMalformed, len(data))
		}
		if data[1] == alertCloseNotify {
			return nil, false, io.EOF
		}
		return nil, false, AlertError(data[1])
	case TypeHandshake:
		return nil, false, in.message(data)
	default:
		return nil, false, fmt.Errorf("%w: content type %d", ErrMalformed, t)
	}
	return nil, false, nil
}

// message acts on a handshake message, of which there is one kind behind the handshake.
func (in *Inbound) message(m []byte) error {
	if len(m) != 5 || m[0] != messageKeyUpdate || m[1] != 0 || m[2] != 0 || m[3] != 1 || m[4] > updateRequested {
		return fmt.Errorf("%w: an unexpected handshake message of %d bytes", ErrMalformed, len(m))
	}
	if m[4] == updateRequested {
		in.renew.Store(true)
	}
	return in.update()
}
