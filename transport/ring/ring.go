package ring

import (
	"errors"
	"fmt"
)

// NoSlot stands where a message needs no slot.
const NoSlot = ^uint32(0)

// ErrProtocol is wrapped by the errors of a peer that broke the protocol. The account is no longer valid then.
var ErrProtocol = errors.New("the peer broke the ring protocol")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Sender is the account of the sending side. M is what the caller wants to know of a message when it is finished or
// lost.
type Sender[M any] struct {
	next     uint64 // position of the next message
	acked    uint64 // messages that the receiver has acknowledged
	finished uint64 // messages that are finished, in order
	entries  []entry[M]
	credits  []uint32 // granted slots; a queue
	granted  []bool   // by slot: it is in credits
}

type entry[M any] struct {
	message   M
	completed bool // by the path
}

// NewSender makes the account for at most depth unfinished messages and a receiver with so many slots.
func NewSender[M any](depth, slots int) *Sender[M] {
	return &Sender[M]{entries: make([]entry[M], depth), credits: make([]uint32, 0, slots), granted: make([]bool, slots)}
}

// Room is how many messages may be sent now that need no slot.
func (s *Sender[M]) Room() int { return len(s.entries) - int(s.next-s.finished) }

// Credits is how many slots the sender may fill.
func (s *Sender[M]) Credits() int { return len(s.credits) }

// Granted lists the slots that may be filled, in the order in which they will be; it is valid until the next call.
func (s *Sender[M]) Granted() []uint32 { return s.credits }

// Unfinished is how many messages are not finished.
func (s *Sender[M]) Unfinished() int { return int(s.next - s.finished) }

// Open says of the unfinished messages how many are not acknowledged, and with how many the path is not through.
func (s *Sender[M]) Open() (unacknowledged, pending int) {
	for p := s.finished; p < s.next; p++ {
		if !s.entries[p%uint64(len(s.entries))].completed {
			pending++
		}
	}
	return int(s.next - s.acked), pending
}

// Grant takes credits.
func (s *Sender[M]) Grant(slots []uint32) error {
	for _, slot := range slots {
		if int(slot) >= len(s.granted) || s.granted[slot] {
			return violation("slot %d of %d was granted (once more, or it does not exist)", slot, len(s.granted))
		}
		s.granted[slot] = true
		s.credits = append(s.credits, slot)
	}
	return nil
}

// Send gives the next message its position, and a slot if it needs one. It says no where depth or credits are used up.
func (s *Sender[M]) Send(m M, needsSlot bool) (position uint64, slot uint32, ok bool) {
	if s.Room() == 0 || needsSlot && len(s.credits) == 0 {
		return 0, NoSlot, false
	}
	slot = NoSlot
	if needsSlot {
		slot = s.credits[0]
		s.credits = s.credits[:copy(s.credits, s.credits[1:])]
		s.granted[slot] = false
	}
	position = s.next
	s.entries[position%uint64(len(s.entries))] = entry[M]{message: m}
	s.next++
	return position, slot, true
}

// Ack takes the receiver's count of received messages. An older count than the last one changes nothing.
func (s *Sender[M]) Ack(received uint64) error {
	if received > s.next {
		return violation("%d messages are acknowledged, %d were sent", received, s.next)
	}
	s.acked = max(s.acked, received)
	return nil
}

// Completed notes that the path is through with a message. Completions may come in any order.
func (s *Sender[M]) Completed(position uint64) error {
	if position < s.finished || position >= s.next {
		return fmt.Errorf("completion of message %d, unfinished are %d to %d", position, s.finished, s.next)
	}
	s.entries[position%uint64(len(s.entries))].completed = true
	return nil
}

// Finish calls f for every message that is finished, in order, once.
func (s *Sender[M]) Finish(f func(M)) {
	for s.finished < s.acked {
		e := &s.entries[s.finished%uint64(len(s.entries))]
		if !e.completed {
			return
		}
		m := e.message
		*e = entry[M]{}
		s.finished++
		f(m)
	}
}

// cut ends the epoch: the receiver had received so many messages. The others are lost.
func (s *Sender[M]) cut(received uint64, finished, lost func(M)) error {
	if received < s.acked || received > s.next {
		return violation("%d messages were received at last, %d acknowledged, %d sent", received, s.acked, s.next)
	}
	for p := s.finished; p < s.next; p++ {
		e := &s.entries[p%uint64(len(s.entries))]
		m := e.message
		*e = entry[M]{}
		if p < received {
			finished(m)
		} else {
			lost(m)
		}
	}
	s.next, s.acked, s.finished, s.credits = 0, 0, 0, s.credits[:0]
	clear(s.granted)
	return nil
}

// slotState says whose a slot is.
type slotState uint8

const (
	slotFree    slotState = iota // the receiver's, and may be granted
	slotGranted                  // the sender's
	slotFull                     // the receiver's until it is released
)

// Receiver is the account of the receiving side.
type Receiver struct {
	received uint64
	slots    []slotState
	free     []uint32 // a queue
	granted  int      // slots that are the sender's
	told     uint64   // of received, by the last offer
}

// NewReceiver makes the account for so many slots, all free.
func NewReceiver(slots int) *Receiver {
	r := &Receiver{slots: make([]slotState, slots), free: make([]uint32, 0, slots)}
	for i := range slots {
		r.free = append(r.free, uint32(i))
	}
	return r
}

// Received counts the messages of this epoch; it is what acknowledgements say.
func (r *Receiver) Received() uint64 { return r.received }

// Messages to the sender cost both sides more than they carry, so several acknowledgements and slots share one.
const (
	ackEvery  = 4 // messages, where the sender says that more follow
	grantPart = 8 // this part of the slots is granted at once
	needPart  = 4 // with less than this part of them the sender may run out
)

// Due says whether it is time to acknowledge and to grant: now, or within a moment at the latest. The sender waits if
// it has not said that more messages follow.
func (r *Receiver) Due(waits bool) (now, soon bool) {
	owed, free := r.received-r.told, len(r.free)
	now = waits && owed > 0 || owed >= ackEvery ||
		free > 0 && (free*grantPart >= len(r.slots) || r.granted*needPart < len(r.slots))
	return now, !now && owed > 0
}

// Offer appends free slots to b, which then are the sender's. The sender is told of them and of what was received.
func (r *Receiver) Offer(b []uint32) []uint32 {
	for _, slot := range r.free {
		r.slots[slot] = slotGranted
	}
	b = append(b, r.free...)
	r.granted += len(r.free)
	r.told = r.received
	r.free = r.free[:0]
	return b
}

// Arrive notes a message. It must be the next one and use a slot that was granted, or none.
func (r *Receiver) Arrive(position uint64, slot uint32) error {
	if position != r.received {
		return violation("message %d arrived, expected %d", position, r.received)
	}
	if slot != NoSlot {
		if int(slot) >= len(r.slots) || r.slots[slot] != slotGranted {
			return violation("message %d uses slot %d, which was not granted", position, slot)
		}
		r.slots[slot] = slotFull
		r.granted--
	}
	r.received++
	return nil
}

// Release makes a full slot free.
func (r *Receiver) Release(slot uint32) error {
	if int(slot) >= len(r.slots) || r.slots[slot] != slotFull {
		return fmt.Errorf("release of slot %d, which is not full", slot)
	}
	r.slots[slot] = slotFree
	r.free = append(r.free, slot)
	return nil
}

// cut ends the epoch: what the sender has not filled is free again.
func (r *Receiver) cut() {
	r.received, r.told, r.granted = 0, 0, 0
	for i, s := range r.slots {
		if s == slotGranted {
			r.slots[i] = slotFree
			r.free = append(r.free, uint32(i))
		}
	}
}

// State of the path between two peers.
type State uint8

// States of a path.
const (
	Down  State = iota // there is none; the account of the last one is settled
	Up                 // messages may be sent
	Ended              // it is no longer used; the peer has yet to say what it received
)

// Farewell is what a side says when it has stopped using a path.
type Farewell struct {
	Epoch    uint64
	Received uint64
}

// Peer is the account of both directions of one side.
type Peer[M any] struct {
	*Sender[M]
	*Receiver
	state State
	epoch uint64
	heard *Farewell // the peer's, for this epoch
}

// NewPeer makes an account: at most depth unfinished messages, so many slots of the peer and of this side.
func NewPeer[M any](depth, peerSlots, slots int) *Peer[M] {
	return &Peer[M]{Sender: NewSender[M](depth, peerSlots), Receiver: NewReceiver(slots)}
}

// State is the path's state.
func (p *Peer[M]) State() State { return p.state }

// Epoch is the number of the present or last path.
func (p *Peer[M]) Epoch() uint64 { return p.epoch }

// Begin starts an epoch on a new path; its number has to be larger than any before.
func (p *Peer[M]) Begin(epoch uint64) error {
	if p.state != Down || epoch <= p.epoch {
		return violation("epoch %d begins in state %d of epoch %d", epoch, p.state, p.epoch)
	}
	p.state, p.epoch, p.heard = Up, epoch, nil
	return nil
}

// End is called when this side has stopped using the path: nothing arrives any more, and the path reads no message's
// memory. What it returns has to be said to the peer. finished and lost get the unfinished messages if the peer has
// already said its farewell.
func (p *Peer[M]) End(finished, lost func(M)) (Farewell, error) {
	if p.state != Up {
		return Farewell{}, fmt.Errorf("the path ends in state %d", p.state)
	}
	p.state = Ended
	f := Farewell{p.epoch, p.received}
	return f, p.settle(finished, lost)
}

// Hear takes the peer's farewell. A side that still uses the path has to call [Peer.End] next (MustEnd says so).
func (p *Peer[M]) Hear(f Farewell, finished, lost func(M)) error {
	if f.Epoch < p.epoch || p.state == Down {
		return nil // an attempt that never came to anything here
	}
	if f.Epoch != p.epoch || p.heard != nil {
		return violation("a farewell to epoch %d in epoch %d", f.Epoch, p.epoch)
	}
	p.heard = &f
	return p.settle(finished, lost)
}

// MustEnd says that the peer has stopped using the path and this side has not.
func (p *Peer[M]) MustEnd() bool { return p.state == Up && p.heard != nil }

func (p *Peer[M]) settle(finished, lost func(M)) error {
	if p.state != Ended || p.heard == nil {
		return nil
	}
	p.state = Down
	p.Receiver.cut()
	return p.Sender.cut(p.heard.Received, finished, lost)
}
