package resume

import (
	"fmt"
	"slices"
)

// Out is what goes to the peer. Positions count the stream's bytes from 0:
//
//	taken ≤ sent ≤ written ≤ taken + window
//
// The peer has received those before taken; those from there to written are kept: as copies, or where they were lent.
type Out struct {
	ring                 []byte
	copied               uint64 // bytes that were ever copied; the next one lies at that, modulo the ring's length
	segments             []segment
	now                  int // the segment of position sent, or one before it
	taken, sent, written uint64
	lent                 int      // bytes of lenders that are kept
	spare                [][]byte // memory of copies that were received
	spares               int      // bytes of it
	told                 uint64   // what the peer was told last of how much was received
	replayed             uint64   // bytes that went to a socket and have to go to another one
	ends                 bool     // the farewell is wanted

	// the record under way
	head   [HeaderSize]byte
	left   []byte // of its header
	body   int    // of its bytes
	bye    bool   // it is the farewell
	parted bool   // the farewell is out
	bufs   [4][]byte
}

// Loan is who lends bytes to a stream, which does not copy them as long as there is no need.
type Loan interface {
	// Copied says that the bytes are the lender's again, before the peer has received them: there is a copy.
	Copied()
	// Settled is told once, at the end: the peer has received the bytes, or never will. They are the lender's again.
	Settled(received bool)
}

// segment is a run of bytes that are kept in one place.
type segment struct {
	at, end uint64 // positions
	lent    []byte // nil: they are in the ring
	copied  uint64 // where in the ring
	loan    Loan   // whose bytes lent is, or was
	own     bool   // lent is a copy
}

// NewOut makes one that keeps window bytes at most.
func NewOut(window int) *Out { return &Out{ring: make([]byte, window)} }

// Room is how many bytes can be written now.
func (o *Out) Room() int { return len(o.ring) - o.Kept() }

// Full is how many bytes the peer has to have received before there is room for n.
func (o *Out) Full(n int) uint64 { return o.written + uint64(n) - uint64(len(o.ring)) }

// Write takes copies of bytes, as many as there is room for, and says how many.
func (o *Out) Write(bufs [][]byte) (n int) {
	if len(o.segments) == 0 {
		o.copied = 0 // the memory at the beginning is there already, and in the caches
	}
	for _, b := range bufs {
		b = b[:min(len(b), o.Room())]
		if len(b) == 0 {
			continue
		}
		if k := len(o.segments); k == 0 || o.segments[k-1].lent != nil {
			o.segments = append(o.segments, segment{at: o.written, end: o.written, copied: o.copied})
		}
		for len(b) > 0 {
			k := copy(o.ring[o.copied%uint64(len(o.ring)):], b)
			b, n, o.copied, o.written = b[k:], n+k, o.copied+uint64(k), o.written+uint64(k)
		}
		o.segments[len(o.segments)-1].end = o.written
	}
	return n
}

// Lend takes bytes that do not change until they are given back: by [Out.Copy], when the peer has received them, or by
// [Out.Abandon]. There has to be room for them.
func (o *Out) Lend(b []byte, loan Loan) {
	at := o.written
	o.written += uint64(len(b))
	o.lent += len(b)
	o.segments = append(o.segments, segment{at: at, end: o.written, lent: b, loan: loan})
}

// Lent is how many bytes of lenders are kept.
func (o *Out) Lent() int { return o.lent }

// Copy gives all lent bytes back that were sent, and keeps copies of them in their place.
func (o *Out) Copy() {
	for i := range o.segments {
		s := &o.segments[i]
		if s.loan == nil || s.own || s.end > o.sent {
			continue
		}
		o.lent -= len(s.lent)
		s.lent, s.own = append(o.buffer(len(s.lent)), s.lent...), true
		s.loan.Copied()
	}
}

// buffer gives memory for a copy.
func (o *Out) buffer(n int) []byte {
	for i, b := range o.spare {
		if cap(b) >= n {
			o.spare = slices.Delete(o.spare, i, i+1)
			o.spares -= cap(b)
			return b[:0]
		}
	}
	o.spare, o.spares = nil, 0 // all too small
	return make([]byte, 0, n)
}

// recycle takes memory of a copy for the next ones, a window at most.
func (o *Out) recycle(b []byte) {
	if o.spares+cap(b) <= len(o.ring) {
		o.spare, o.spares = append(o.spare, b), o.spares+cap(b)
	}
}

// End ends the stream behind what was written.
func (o *Out) End() { o.ends = true }

// Pending is what has to be sent on the socket now, in a row; it holds until the next call. received is how much the
// other direction has brought (see [In.Count]), which the next record says. With say a record goes out for that alone
// where there is no other.
func (o *Out) Pending(received uint64, say bool) [][]byte {
	if len(o.left)+o.body == 0 && !o.begin(received, say) {
		return nil
	}
	n := 0
	if len(o.left) > 0 {
		o.bufs[0] = o.left
		n++
	}
	for at, left := o.sent, o.body; left > 0 && n < len(o.bufs); n++ {
		b := o.from(at)
		b = b[:min(len(b), left)]
		o.bufs[n] = b
		at, left = at+uint64(len(b)), left-len(b)
	}
	return o.bufs[:n]
}

// from gives kept bytes from a position on, which is not before sent: as many as lie in a row.
func (o *Out) from(at uint64) []byte {
	for o.now > 0 && o.segments[o.now].at > o.sent {
		o.now--
	}
	for o.segments[o.now].end <= o.sent {
		o.now++
	}
	i := o.now
	for o.segments[i].end <= at {
		i++
	}
	s := &o.segments[i]
	if s.lent != nil {
		return s.lent[at-s.at:]
	}
	first := int((s.copied + at - s.at) % uint64(len(o.ring)))
	return o.ring[first:min(uint64(first)+s.end-at, uint64(len(o.ring)))]
}

// begin begins the next record, if one is due.
func (o *Out) begin(received uint64, say bool) bool {
	h := Header{Len: int(min(o.written-o.sent, MaxRecord)), Kind: Bytes, Received: received}
	switch {
	case h.Len > 0:
	case o.ends && !o.parted:
		h.Kind, o.bye = Farewell, true
	case say && received > o.told:
		h.Kind = Received
	default:
		return false
	}
	o.told = received
	o.left, o.body = AppendHeader(o.head[:0], h), h.Len
	return true
}

// Sent notes that the socket took n bytes of what was pending.
func (o *Out) Sent(n int) {
	k := min(n, len(o.left))
	o.left, n = o.left[k:], n-k
	o.body, o.sent = o.body-n, o.sent+uint64(n)
	if len(o.left) == 0 && o.bye {
		o.bye, o.parted = false, true
	}
}

// Replayed is how many bytes went to a socket in vain, so that they have to be sent again: of all sockets so far.
func (o *Out) Replayed() uint64 { return o.replayed }

// Written is how many bytes the stream has, sent or not.
func (o *Out) Written() uint64 { return o.written }

// Told is how much the peer was told last that was received.
func (o *Out) Told() uint64 { return o.told }

// Kept is how many bytes the peer has not said that it received.
func (o *Out) Kept() int { return int(o.written - o.taken) }

// Acknowledged notes that the peer has received the bytes before a position. One that it said earlier is no news.
func (o *Out) Acknowledged(position uint64) error {
	if position > o.sent {
		return fmt.Errorf("%w: the peer has received %d bytes of %d", ErrProtocol, position, o.sent)
	}
	if position <= o.taken {
		return nil
	}
	o.taken = position
	n := 0
	for n < len(o.segments) && o.segments[n].end <= o.taken {
		n++
	}
	o.forget(n, true)
	return nil
}

// forget gives the first segments back.
func (o *Out) forget(n int, received bool) {
	for i := range o.segments[:n] {
		s := &o.segments[i]
		switch {
		case s.own:
			o.recycle(s.lent)
		case s.loan != nil:
			o.lent -= len(s.lent)
		}
		if s.loan != nil {
			s.loan.Settled(received)
		}
	}
	rest := copy(o.segments, o.segments[n:])
	clear(o.segments[rest:])
	o.segments = o.segments[:rest]
	o.now = max(o.now-n, 0)
}

// Abandon gives all bytes back that were lent. The stream has ended: nothing is pending any more.
func (o *Out) Abandon() {
	o.forget(len(o.segments), false)
	o.taken, o.sent, o.left, o.body = o.written, o.written, nil, 0
}

// Resume goes on at another socket, whose peer has received the bytes before a position. The record under way is
// forgotten.
func (o *Out) Resume(position uint64) error {
	if position < o.taken {
		return fmt.Errorf("%w: the peer has received %d bytes, and had %d before", ErrProtocol, position, o.taken)
	}
	if err := o.Acknowledged(position); err != nil {
		return err
	}
	o.replayed += o.sent - position
	o.sent, o.left, o.body, o.bye, o.parted, o.told, o.now = position, nil, 0, false, false, 0, 0
	return nil
}
