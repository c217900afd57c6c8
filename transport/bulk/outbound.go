package bulk

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/transport"
)

// Outbound has the transfers of one side of a session and chooses the sender of every piece. The zero value is ready.
type Outbound struct {
	mu        sync.Mutex
	work      transport.Bell // for the fallbacks; both are rung with mu held, where there is something to do
	first     transport.Bell // for the preferred sender
	err       error          // why nothing will be sent any more
	lost      bool           // a fallback broke within a piece
	preferred atomic.Pointer[preference]

	fresh       []*Transfer // what of them has not been cut off yet may go by any sender; in the order of the commands
	returned    []Piece     // what has to go by a fallback; in order, too
	fallbacks   int
	sending     int  // pieces that fallbacks are sending
	outstanding int  // bytes that the preferred sender has
	detours     bool // it waits until it has none
	pieces      atomic.Int32
	unsettled   map[*Transfer]struct{}
	stranded    []Piece // that came back and that no fallback can read
	least       int     // chunkBytes' least; 0: minChunk
}

type preference struct{ Sender }

// Prefer names the sender that is used while it is up. It is called once.
func (o *Outbound) Prefer(s Sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.preferred.Store(&preference{s})
	o.ring()
}

// State is that of the preferred sender; where there is none, [Down].
func (o *Outbound) State() State {
	if p := o.preferred.Load(); p != nil {
		return p.State()
	}
	return Down
}

// Pieces is how many pieces the preferred sender has.
func (o *Outbound) Pieces() int { return int(o.pieces.Load()) }

// Add takes a whole transfer, which is cut into pieces as senders are free. It says no where nothing is sent any more.
// Transfers come in the order of their commands.
func (o *Outbound) Add(t *Transfer) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return false
	}
	t.Bytes, t.left = len(t.Data), len(t.Data)
	least := o.least
	if least == 0 {
		least = minChunk
	}
	t.chunk = chunkBytes(t.Bytes, o.fallbacks, least)
	o.fresh = append(o.fresh, t)
	o.ring()
	return true
}

// Post takes a transfer that is one chunk. It goes by the preferred sender where that can read its memory and takes it
// (direct), else by a fallback. Not taken is one that lies in memory that fallbacks cannot read. Post must not be
// called by two for the same transfer, and it does not wait where the preferred sender does not.
func (o *Outbound) Post(t *Transfer) (direct, taken bool) {
	t.left, t.next = t.Bytes, t.Bytes
	p := Piece{t, 0, t.Bytes}
	if s := o.preferred.Load(); s != nil && t.Direct {
		o.handOver(p)
		if s.Send(p, nil) == nil {
			return true, true
		}
		o.mu.Lock()
		abandoned := t.outstanding == 0
		if !abandoned {
			o.takeBack(p)
		}
		o.mu.Unlock()
		if abandoned { // the owner has been told
			return false, true
		}
	}
	if t.Data == nil {
		return false, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.giveBack(p)
	return false, true
}

// handOver notes that the preferred sender gets a piece.
func (o *Outbound) handOver(p Piece) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.handOverLocked(p)
}

// handOverLocked is handOver with mu held.
func (o *Outbound) handOverLocked(p Piece) {
	o.outstanding += p.N
	o.pieces.Add(1)
	if p.Transfer.outstanding += p.N; o.unsettled == nil {
		o.unsettled = make(map[*Transfer]struct{})
	}
	o.unsettled[p.Transfer] = struct{}{}
}

// takeBack notes that the preferred sender has a piece no longer. mu is held.
func (o *Outbound) takeBack(p Piece) {
	o.outstanding -= p.N
	o.pieces.Add(-1)
	if p.Transfer.outstanding -= p.N; p.Transfer.outstanding == 0 {
		delete(o.unsettled, p.Transfer)
	}
}

// Settled is told by the preferred sender what became of a piece that it took: it has arrived, or certainly will not.
func (o *Outbound) Settled(p Piece, arrived bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settle(p, arrived)
}

// settle is Settled with mu held.
func (o *Outbound) settle(p Piece, arrived bool) {
	if p.Transfer.outstanding == 0 {
		return // see Abandon
	}
	if !arrived && o.err == nil && p.Transfer.Data == nil {
		o.stranded = append(o.stranded, p)
		return
	}
	o.takeBack(p)
	if arrived {
		o.sent(p.Transfer, p.N)
	} else {
		o.giveBack(p)
	}
	o.ring()
}

// Stranded gives the pieces that came back and that no fallback can read, and forgets them. For each of them
// [Outbound.Rescued] has to be called.
func (o *Outbound) Stranded() []Piece {
	if o.pieces.Load() == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.stranded
	o.stranded = nil
	return list
}

// Rescued says that the bytes of such a piece are elsewhere.
func (o *Outbound) Rescued(p Piece) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.takeBack(p)
	o.sent(p.Transfer, p.N)
	o.ring()
}

// Changed is told by the preferred sender of a change of its state.
func (o *Outbound) Changed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ring()
}

// sent notes that the sending of n bytes is over. mu is held.
func (o *Outbound) sent(t *Transfer, n int) {
	if t.left -= n; t.left > 0 {
		return
	}
	if t.from != nil {
		t.from.Release()
		t.from = nil
	}
	if t.Owner != nil {
		t.Owner.Sent()
	}
}

// drop notes that n bytes will never be sent. mu is held.
func (o *Outbound) drop(t *Transfer, n int, why error) {
	t.Err = why
	o.sent(t, n)
}

// giveBack has a piece go by a fallback. mu is held.
func (o *Outbound) giveBack(p Piece) {
	if o.err != nil {
		o.drop(p.Transfer, p.N, o.err)
		return
	}
	i, _ := slices.BinarySearchFunc(o.returned, p, func(a, p Piece) int {
		t, u := a.Transfer, p.Transfer
		return cmp.Or(cmp.Compare(t.Seq, u.Seq), cmp.Compare(t.Offset+uint64(a.Off), u.Offset+uint64(p.Off)))
	})
	o.returned = slices.Insert(o.returned, i, p)
	o.ring()
}

// cut takes the next piece that no sender has had. mu is held.
func (o *Outbound) cut(chunk int) Piece {
	t := o.fresh[0]
	p := Piece{t, t.next, min(chunk, t.Bytes-t.next)}
	if t.next += p.N; t.next == t.Bytes {
		o.fresh = o.fresh[:copy(o.fresh, o.fresh[1:])]
	}
	return p
}

// await returns once something is so, or nothing is sent any more. mu is held, and let go meanwhile.
func (o *Outbound) await(b *transport.Bell, so func() bool) {
	for {
		seen := b.Now()
		if o.err != nil || so() {
			return
		}
		o.mu.Unlock()
		b.Await(seen)
		o.mu.Lock()
	}
}

// ring wakes those who have something to do after a change. Most changes are for one sender, and the others would wake
// for nothing with each chunk. mu is held.
func (o *Outbound) ring() {
	if o.err != nil || o.claimable() {
		o.work.Ring()
	}
	if o.err != nil || o.cuttable() || o.detours && o.outstanding == 0 {
		o.first.Ring()
	}
}

// cuttable says whether the preferred sender has something to send. mu is held.
func (o *Outbound) cuttable() bool { return len(o.fresh) > 0 && o.State() == Up }

// claimable says whether a fallback has something to send. What the preferred sender gave back goes first, so that on
// every fallback pieces stand in the order of their commands; and nothing goes that way before it is known what of
// earlier commands is given back: the receiver takes the pieces of one stream in turn, and would wait for ever. mu is
// held.
func (o *Outbound) claimable() bool {
	if len(o.returned) > 0 {
		return !o.awaitsEarlier(o.returned[0].Transfer)
	}
	return len(o.fresh) > 0 && o.outstanding == 0 && o.State() == Down
}

// awaitsEarlier says whether the preferred sender has pieces of a transfer before t. mu is held.
func (o *Outbound) awaitsEarlier(t *Transfer) bool {
	for other := range o.unsettled {
		if other.Seq < t.Seq {
			return true
		}
	}
	return false
}

// claim takes the next piece for a fallback. mu is held.
func (o *Outbound) claim() Piece {
	if len(o.returned) > 0 {
		p := o.returned[0]
		o.returned = slices.Delete(o.returned, 0, 1)
		return p
	}
	return o.cut(o.fresh[0].chunk)
}

// Fallback is called once for each sender that Feed will be called for, before.
func (o *Outbound) Fallback() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fallbacks++
}

// keeper is a sender that keeps pieces until the peer has received them.
type keeper interface {
	Keeps() bool
	Keep(p Piece, loan transport.Loan) error
	Copy() // gives memory of pieces back early, where that is worth it
	Abandon()
}

// Feed sends pieces by a fallback until that breaks, or nothing is sent any more.
func (o *Outbound) Feed(s Sender) error {
	var p Piece // which is over
	var err error
	keeps, ok := s.(keeper)
	if ok = ok && keeps.Keeps(); ok {
		defer keeps.Abandon()
	}
	for {
		o.mu.Lock()
		if t := p.Transfer; t != nil {
			o.sending--
			if err != nil {
				o.lost, t.Err = true, err
			}
			o.sent(t, p.N)
		}
		if err == nil && ok && !o.claimable() {
			o.mu.Unlock()
			keeps.Copy()
			o.mu.Lock()
		}
		if err == nil {
			o.await(&o.work, o.claimable)
			err = o.err
		}
		if err != nil {
			o.mu.Unlock()
			return err
		}
		p = o.claim()
		o.sending++
		o.mu.Unlock()
		if ok {
			kept := &loan{o: o, p: p}
			p = Piece{}
			err = keeps.Keep(kept.p, kept)
			continue
		}
		err = s.Send(p, nil)
	}
}

var errNotArrived = errors.New("a bulk connection ended before the peer had received all")

// loan is a piece that a fallback keeps.
type loan struct {
	o      *Outbound
	p      Piece
	copied bool // the transfer's owner has the memory again; mu guards it
}

// Copied gives the memory back.
func (l *loan) Copied() {
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	l.copied = true
	l.o.sent(l.p.Transfer, l.p.N)
}

// Settled notes that the piece is kept no longer.
func (l *loan) Settled(arrived bool) {
	o, t := l.o, l.p.Transfer
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sending--
	if !arrived {
		o.lost = true
	}
	if l.copied {
		return
	}
	if !arrived {
		t.Err = cmp.Or(o.err, errNotArrived)
	}
	o.sent(t, l.p.N)
}

// FeedPreferred sends pieces of whole transfers by the preferred sender while that is up, until nothing is sent any
// more.
func (o *Outbound) FeedPreferred() {
	s := o.preferred.Load()
	var refused Piece
	for {
		o.mu.Lock()
		if t := refused.Transfer; t != nil {
			t.registered = false
			o.settle(refused, false)
			refused = Piece{}
		}
		o.await(&o.first, o.cuttable)
		if o.err != nil {
			o.mu.Unlock()
			return
		}
		t := o.fresh[0]
		if !t.registered {
			from, err := s.Register(t.Data)
			if err != nil {
				o.detour(t)
				o.mu.Unlock()
				continue
			}
			if t.from != nil {
				t.from.Release()
			}
			t.from, t.registered = from, true
		}
		p, from := o.cut(s.ChunkBytes()), t.from
		o.handOverLocked(p)
		o.mu.Unlock()
		if s.Send(p, from) != nil {
			refused = p
		}
	}
}

// detour has the rest of a transfer whose memory cannot be registered go by the fallbacks, when all that the preferred
// sender has is settled: what it might give back has to go first. mu is held, and let go meanwhile.
func (o *Outbound) detour(t *Transfer) {
	o.detours = true
	o.await(&o.first, func() bool { return o.outstanding == 0 })
	o.detours = false
	if o.err != nil || len(o.fresh) == 0 || o.fresh[0] != t || o.State() != Up {
		return
	}
	for len(o.fresh) > 0 && o.fresh[0] == t {
		o.giveBack(o.cut(t.chunk))
	}
}

// errNoReason stands where Fail was given none.
var errNoReason = errors.New("the bulk transfers of the session have ended")

// Fail ends all sending, for a reason. It says whether bytes are lost with that. What fallbacks are sending, and what
// the preferred sender has, stays theirs until they return, or until [Outbound.Abandon].
func (o *Outbound) Fail(why error) (lost bool) {
	if why == nil {
		why = errNoReason
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return false
	}
	o.err = why
	lost = o.lost || o.sending > 0 || len(o.returned) > 0 || len(o.fresh) > 0 || o.outstanding > 0
	for _, p := range o.returned {
		o.drop(p.Transfer, p.N, why)
	}
	for _, t := range o.fresh {
		n := t.Bytes - t.next
		t.next = t.Bytes
		o.drop(t, n, why)
	}
	o.returned, o.fresh = nil, nil
	o.ring()
	return lost
}

// Err is why nothing is sent any more, or nil.
func (o *Outbound) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Abandon is told that the preferred sender is closed: it reads no memory any more, and settles nothing.
func (o *Outbound) Abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for t := range o.unsettled {
		n := t.outstanding
		t.outstanding = 0
		o.drop(t, n, cmp.Or(o.err, errNoReason))
	}
	clear(o.unsettled)
	o.outstanding, o.stranded = 0, nil
	o.pieces.Store(0)
}
