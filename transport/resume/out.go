package resume

import "fmt"

// Out is what goes to the peer. Positions count the stream's bytes from 0:
//
//	taken ≤ sent ≤ written ≤ taken + window
//
// The peer has received those before taken; those from there to written are kept.
type Out struct {
	kept                 []byte // a ring: the byte at position p lies at p modulo its length
	taken, sent, written uint64
	told                 uint64 // what the peer was told last of how much was received
	ends                 bool   // the farewell is wanted

	// the record under way
	head   [HeaderSize]byte
	left   []byte // of its header
	body   int    // of its bytes
	bye    bool   // it is the farewell
	parted bool   // the farewell is out
	bufs   [3][]byte
}

// NewOut makes one that keeps window bytes at most.
func NewOut(window int) *Out { return &Out{kept: make([]byte, window)} }

// Room is how many bytes can be written now.
func (o *Out) Room() int { return len(o.kept) - int(o.written-o.taken) }

// Full is how many bytes the peer has to have received before there is room again, where there is none.
func (o *Out) Full() uint64 { return o.written - uint64(len(o.kept)) + 1 }

// Write takes bytes over, as many as there is room for, and says how many.
func (o *Out) Write(bufs [][]byte) (n int) {
	for _, b := range bufs {
		b = b[:min(len(b), o.Room())]
		for len(b) > 0 {
			k := copy(o.kept[o.written%uint64(len(o.kept)):], b)
			b, n, o.written = b[k:], n+k, o.written+uint64(k)
		}
	}
	return n
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
	at := int(o.sent % uint64(len(o.kept)))
	first := o.kept[at:min(at+o.body, len(o.kept))]
	o.bufs = [3][]byte{o.left, first, o.kept[:o.body-len(first)]}
	return o.bufs[:]
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

// Told is how much the peer was told last that was received.
func (o *Out) Told() uint64 { return o.told }

// Kept is how many bytes the peer has not said that it received.
func (o *Out) Kept() int { return int(o.written - o.taken) }

// Acknowledged notes that the peer has received the bytes before a position. One that it said earlier is no news.
func (o *Out) Acknowledged(position uint64) error {
	if position > o.sent {
		return fmt.Errorf("%w: the peer has received %d bytes of %d", ErrProtocol, position, o.sent)
	}
	o.taken = max(o.taken, position)
	return nil
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
	o.sent, o.left, o.body, o.bye, o.parted, o.told = position, nil, 0, false, false, 0
	return nil
}
