package bulktest

import (
	"errors"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
)

// PathConfig says what a path is like.
type PathConfig struct {
	To         bulk.Receiver
	From       *bulk.Outbound
	Chunk      int // largest chunk
	Depth      int // unfinished pieces
	Slots      int // of the receiver, each of Chunk bytes; 0: pieces go to the memory of their transfer
	Window     func(c bulk.Chunk) []byte
	Read       func(addr uint64, n int) []byte // memory that the processor cannot read
	Registers  func(data []byte) bool          // nil: everything can be registered
	Regions    atomic.Int32                    // that are registered
	delivering sync.Mutex
}

// Path writes to slots or windows of the receiver, as a network card does. It begins without a path; [Path.Heal] makes
// one and [Path.Break] ends it.
type Path struct {
	cfg   *PathConfig
	state atomic.Int32

	mu     sync.Mutex
	moved  *sync.Cond
	near   *ring.Peer[bulk.Piece]
	far    *ring.Peer[struct{}]
	slots  []*Slot
	wire   []sent
	epoch  uint64
	closed bool
	fate   []fate // of pieces, to be told without locks
}

var _ bulk.Sender = (*Path)(nil)

type sent struct {
	position uint64
	slot     uint32
	piece    bulk.Piece
}

type fate struct {
	piece   bulk.Piece
	arrived bool
}

// Slot is memory of the receiver that the path writes to.
type Slot struct {
	mem   []byte
	index uint32
	path  *Path
}

// Bytes is its memory.
func (s *Slot) Bytes() []byte { return s.mem }

// Release grants the slot again.
func (s *Slot) Release() { s.path.release(s.index) }

// NewPath makes the two ends of a path.
func NewPath(cfg *PathConfig) *Path {
	p := &Path{cfg: cfg}
	p.near, p.far = ring.NewPeer[bulk.Piece](cfg.Depth, cfg.Slots, 0), ring.NewPeer[struct{}](1, 0, cfg.Slots)
	p.moved = sync.NewCond(&p.mu)
	for i := range cfg.Slots {
		p.slots = append(p.slots, &Slot{make([]byte, cfg.Chunk), uint32(i), p})
	}
	return p
}

// State says whether there is a path.
func (p *Path) State() bulk.State { return bulk.State(p.state.Load()) }

// ChunkBytes is the configured size.
func (p *Path) ChunkBytes() int { return p.cfg.Chunk }

type region struct {
	p     *Path
	epoch uint64
}

func (r region) Release() { r.p.cfg.Regions.Add(-1) }

// Register fails where there is no path, as with a card.
func (p *Path) Register(data []byte) (bulk.Region, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.State() != bulk.Up || p.cfg.Registers != nil && !p.cfg.Registers(data) {
		return nil, errors.New("this memory cannot be registered")
	}
	p.cfg.Regions.Add(1)
	return region{p, p.epoch}, nil
}

// Send sends a piece into a slot, for which it waits, or into its transfer's memory, where it does not.
func (p *Path) Send(piece bulk.Piece, from bulk.Region) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	slotted := p.cfg.Slots > 0
	there := func() bool {
		r, ok := from.(region)
		return p.State() == bulk.Up && (!slotted || ok && r.epoch == p.epoch)
	}
	for slotted && there() && (p.near.Room() == 0 || p.near.Credits() == 0) {
		p.moved.Wait()
	}
	if !there() {
		return bulk.ErrDown
	}
	position, slot, ok := p.near.Send(piece, slotted)
	if !ok {
		return bulk.ErrDown
	}
	p.wire = append(p.wire, sent{position, slot, piece})
	p.moved.Broadcast()
	return nil
}

// Deliver carries pieces over until the path is closed. Its error is a fault of the account.
func (p *Path) Deliver() error {
	for {
		p.mu.Lock()
		for len(p.wire) == 0 && !p.closed {
			if p.State() == bulk.Up && p.far.Received() > 0 { // nothing follows: acknowledge all
				if err := p.acknowledge(); err != nil {
					p.mu.Unlock()
					return err
				}
				if len(p.fate) > 0 {
					p.mu.Unlock()
					p.tell()
					p.mu.Lock()
					continue
				}
			}
			p.moved.Wait()
		}
		if p.closed {
			p.mu.Unlock()
			return nil
		}
		if err := p.deliver(); err != nil {
			return err
		}
		p.tell()
	}
}

// deliver carries over the first piece. mu is held, and released.
func (p *Path) deliver() error {
	f := p.wire[0]
	p.wire = p.wire[1:]
	c := f.piece.Chunk()
	data := f.piece.Data()
	if data == nil {
		data = p.cfg.Read(f.piece.Addr(), f.piece.N)
	}
	var b bulk.Buffer
	if f.slot == ring.NoSlot {
		copy(p.cfg.Window(c), data)
	} else {
		b = p.slots[f.slot]
		copy(b.Bytes(), data)
	}
	err := errors.Join(p.far.Arrive(f.position, f.slot), p.near.Completed(f.position))
	if now, _ := p.far.Due(!c.More); err == nil && now {
		err = p.acknowledge()
	}
	p.mu.Unlock()
	if err == nil {
		p.cfg.To.Arrived(c, b)
	}
	return err
}

// acknowledge tells the sender what has arrived and which slots are free. mu is held.
func (p *Path) acknowledge() error {
	free := p.far.Offer(nil)
	err := errors.Join(p.near.Ack(p.far.Received()), p.near.Grant(free))
	p.near.Finish(func(piece bulk.Piece) { p.fate = append(p.fate, fate{piece, true}) })
	p.moved.Broadcast()
	return err
}

// tell settles pieces in the order of their fates.
func (p *Path) tell() {
	p.cfg.delivering.Lock()
	defer p.cfg.delivering.Unlock()
	p.mu.Lock()
	list := p.fate
	p.fate = nil
	p.mu.Unlock()
	for _, f := range list {
		p.cfg.From.Settled(f.piece, f.arrived)
	}
}

func (p *Path) release(slot uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.far.Release(slot); err != nil {
		panic(err)
	}
	if p.State() == bulk.Up {
		if err := p.acknowledge(); err != nil {
			panic(err)
		}
	}
}

// Heal makes a path where there is none.
func (p *Path) Heal() error {
	p.mu.Lock()
	if p.State() != bulk.Down || p.closed {
		p.mu.Unlock()
		return nil
	}
	p.epoch++
	err := errors.Join(p.near.Begin(p.epoch), p.far.Begin(p.epoch), p.near.Grant(p.far.Offer(nil)))
	p.state.Store(int32(bulk.Up))
	p.moved.Broadcast()
	p.mu.Unlock()
	p.cfg.From.Changed()
	return err
}

// Break ends the path with what is on it. It settles what was sent: what has not arrived is given back.
func (p *Path) Break() error {
	p.mu.Lock()
	if p.State() != bulk.Up {
		p.mu.Unlock()
		return nil
	}
	p.state.Store(int32(bulk.Settling))
	p.wire = nil
	p.moved.Broadcast()
	p.mu.Unlock()
	p.cfg.From.Changed()
	p.mu.Lock()
	arrived := func(piece bulk.Piece) { p.fate = append(p.fate, fate{piece, true}) }
	lost := func(piece bulk.Piece) { p.fate = append(p.fate, fate{piece, false}) }
	nothing := func(struct{}) {}
	mine, err := p.near.End(arrived, lost)
	err = errors.Join(err, p.far.Hear(mine, nothing, nothing))
	theirs, end := p.far.End(nothing, nothing)
	err = errors.Join(err, end, p.near.Hear(theirs, arrived, lost))
	p.mu.Unlock()
	p.tell()
	p.state.Store(int32(bulk.Down))
	p.cfg.From.Changed()
	return err
}

// Close ends the path; what is on it is not settled.
func (p *Path) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.wire = true, nil
	p.state.Store(int32(bulk.Down))
	p.moved.Broadcast()
}
