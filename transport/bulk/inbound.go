package bulk

import (
	"errors"
	"fmt"
	"sync"
)

// Inbound is the receiving side that takes transfers one after the other and lends memory for their chunks. On every
// stream of bytes the peer sends the chunks of one transfer behind those of the transfer before. So a chunk of a later
// transfer waits in its stream until its turn comes, and never holds memory that the present one needs.
type Inbound struct {
	mu       sync.Mutex
	news     *sync.Cond // for those who wait in Room
	err      error      // why no chunk will ever come again
	taking   bool       // a transfer is being received
	seq      uint64     // its command
	bytes    uint64
	have     cover
	free     []Buffer // lent, and not filled
	streams  int      // that bring chunks
	starving int      // chunks of this transfer that have come and find no memory
	got      []Arrival
	taken    []Arrival // those that the owner works on
	tell     func()    // see [Inbound.Tell]
}

var _ Receiver = (*Inbound)(nil)

// Arrival is a chunk that lies in a buffer.
type Arrival struct {
	Chunk
	Buffer Buffer
}

// ErrExcess says that a chunk has arrived that its transfer does not have.
var ErrExcess = fmt.Errorf("%w: a chunk beside its transfer", ErrProtocol)

// NewInbound makes one.
func NewInbound() *Inbound {
	in := &Inbound{}
	in.news = sync.NewCond(&in.mu)
	return in
}

// Tell has fn called whenever there is something to take, to lend memory for, or an error, from then on. It must not
// wait. It is called before the first chunk can come.
func (in *Inbound) Tell(fn func()) { in.tell = fn }

// told is called with mu held.
func (in *Inbound) told() {
	if in.tell != nil {
		in.tell()
	}
}

// Begin begins to take a transfer. Chunks that came before their turn are waited for no longer.
func (in *Inbound) Begin(seq, bytes uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.taking, in.seq, in.bytes = true, seq, bytes
	in.have.reset()
	in.news.Broadcast()
}

// Taking says whether a transfer is being received.
func (in *Inbound) Taking() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taking
}

// Lend gives memory for a chunk of the transfer.
func (in *Inbound) Lend(b Buffer) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.free = append(in.free, b)
	in.news.Broadcast()
}

// Stream is called once for each stream of bytes that brings chunks.
func (in *Inbound) Stream() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.streams++
}

// Wants says whether memory is to be lent, where so much is, filled or not: some for each stream before chunks come,
// but while the peer's preferred sender is up only for chunks that come by a stream all the same.
func (in *Inbound) Wants(lent int, preferred State) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return lent < 2*in.streams+2 && (preferred != Up || in.starving > len(in.free))
}

// Take gives the chunks of the transfer that have arrived since the last call, after which the list is not valid any
// more. An error says that no more will come, or is [ErrExcess] or [ErrTwice].
func (in *Inbound) Take() ([]Arrival, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.taken = in.taken[:0]
	kept := in.got[:0]
	for _, a := range in.got {
		switch {
		case a.Seq != in.seq:
			kept = append(kept, a) // of a later transfer, by a sender that needs no turn
		case !a.within(in.bytes):
			return nil, fmt.Errorf("%w of %d bytes", ErrExcess, in.bytes)
		case !in.have.add(a.Chunk):
			return nil, fmt.Errorf("%w: %d bytes at %d", ErrTwice, a.Bytes, a.Offset)
		default:
			in.taken = append(in.taken, a)
		}
	}
	clear(in.got[len(kept):])
	in.got = kept
	if len(in.taken) == 0 {
		return nil, in.err
	}
	return in.taken, nil
}

// End ends the transfer and gives what was lent and not used back.
func (in *Inbound) End(back func(Buffer)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.taking = false
	for _, b := range in.free {
		back(b)
	}
	clear(in.free)
	in.free = in.free[:0]
}

// Room waits for the turn of a chunk's transfer and for memory.
func (in *Inbound) Room(c Chunk) (Buffer, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.err == nil && !(in.taking && in.seq == c.Seq && len(in.free) > 0) {
		if in.taking && in.seq == c.Seq {
			in.starving++
			in.told()
			in.news.Wait()
			in.starving--
		} else {
			in.news.Wait()
		}
	}
	if in.err != nil {
		return nil, in.err
	}
	if !c.within(in.bytes) {
		const text = "%w: a chunk of %d bytes at %d of a transfer of %d"
		return nil, fmt.Errorf(text, ErrProtocol, c.Bytes, c.Offset, in.bytes)
	}
	last := len(in.free) - 1
	b := in.free[last]
	in.free = in.free[:last]
	return b, nil
}

// Arrived notes a chunk. Those of senders with memory of their own may be ahead of their turn.
func (in *Inbound) Arrived(c Chunk, b Buffer) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.got = append(in.got, Arrival{c, b})
	in.told()
}

// Abandoned takes memory back that Room gave.
func (in *Inbound) Abandoned(b Buffer) { in.Lend(b) }

// Fail says that no chunk will come any more, and whether one was expected.
func (in *Inbound) Fail(why error) (expected bool) {
	if why == nil {
		why = errors.New("the bulk transfers of the session have ended")
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil {
		return false
	}
	in.err = why
	in.news.Broadcast()
	in.told()
	return in.taking
}
