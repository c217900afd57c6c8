package ring

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

const (
	testDepth = 9
	testSlots = 17 // several are granted at once
)

// message is one that a side wants the other to have.
type message struct {
	id   int
	slot bool // it goes through a slot
}

// sent is a message on the path.
type sent struct {
	position uint64
	slot     uint32
	id       int
	epoch    uint64
}

// control is a message of the connection beside the path.
type control struct {
	epoch    uint64
	ack      uint64
	slots    []uint32
	farewell *Farewell
}

// end is one peer in the model, with the network's part that belongs to it.
type end struct {
	*Peer[message]
	name       string
	wanted     []message // to be sent over the path
	detour     []int     // what the other way carries
	path       []sent    // sent, not yet in the other's memory; in order
	pending    []uint64  // positions whose completions have not been given; in any order
	control    []control // to the other side; in order
	memory     [testSlots]int
	full       map[uint32]int // arrived, not yet consumed: slot and message
	got        map[int]int    // how often a message came
	order      []int          // ids in the order of their arrival on the path, this epoch
	grantedYet bool
	soon       bool // an acknowledgement was put off
}

func newEnd(name string) *end {
	return &end{
		Peer: NewPeer[message](testDepth, testSlots, testSlots), name: name, full: map[uint32]int{}, got: map[int]int{},
	}
}

// model is two ends and the network between them: the path delays without bound, gives completions in any order, and
// dies at any time with whatever is on it, wholly or in part delivered.
type model struct {
	t        *rapid.T
	ends     [2]*end
	epoch    uint64
	pathUp   bool // it carries messages
	finished map[int]bool
}

func (m *model) fatal(err error) {
	if err != nil {
		m.t.Fatal(err)
	}
}

// settled are what the account calls when a message's fate is known.
func (m *model) settled(s *end) (finished, lost func(message)) {
	return func(x message) { m.finish(s, x) }, func(x message) { s.detour = append(s.detour, x.id) }
}

func (m *model) finish(s *end, x message) {
	if m.finished[x.id] {
		m.t.Fatalf("message %d is finished twice", x.id)
	}
	if m.other(s).got[x.id] != 1 {
		m.t.Fatalf("message %d is finished and has arrived %d times", x.id, m.other(s).got[x.id])
	}
	m.finished[x.id] = true
}

func (m *model) other(s *end) *end {
	if s == m.ends[0] {
		return m.ends[1]
	}
	return m.ends[0]
}

// moves are what may happen next.
func (m *model) moves() []func() {
	var list []func()
	add := func(f func()) { list = append(list, f) }
	down := true
	for _, s := range m.ends {
		o := m.other(s)
		down = down && s.State() == Down && len(s.control) == 0
		if s.State() == Up && len(s.wanted) > 0 && s.Room() > 0 && (!s.wanted[0].slot || s.Credits() > 0) {
			add(func() { m.send(s) })
		}
		if s.State() == Down && len(s.wanted) > 0 && !m.pathUp { // nothing but the detour is left
			add(func() { s.detour = append(s.detour, s.wanted[0].id); s.wanted = s.wanted[1:] })
		}
		if m.pathUp && len(s.path) > 0 && o.State() == Up && o.Epoch() == s.path[0].epoch {
			add(func() { m.deliver(s, o) })
		}
		for i := range s.pending {
			add(func() { m.complete(s, i) })
		}
		if len(s.control) > 0 {
			add(func() { m.hear(s, o) })
		}
		for slot := range uint32(testSlots) {
			if _, ok := s.full[slot]; ok {
				add(func() { m.consume(s, slot) })
			}
		}
		if len(s.detour) > 0 {
			add(func() { m.detour(s, o) })
		}
		if s.State() == Up && (!m.pathUp || s.MustEnd()) {
			add(func() { m.end(s) })
		}
		if s.State() == Up && !s.grantedYet {
			add(func() { s.grantedYet = true; m.grant(s) })
		}
		if s.State() == Up && s.soon {
			add(func() { m.credit(s, true) })
		}
	}
	if down && !m.pathUp && m.epoch < 6 {
		add(m.begin)
	}
	return list
}

func (m *model) begin() {
	m.epoch++
	m.pathUp = true
	for _, s := range m.ends {
		m.fatal(s.Begin(m.epoch))
		s.path, s.pending, s.order, s.grantedYet, s.soon = nil, nil, nil, false, false
	}
}

func (m *model) send(s *end) {
	x := s.wanted[0]
	p, slot, ok := s.Send(x, x.slot)
	if !ok {
		m.t.Fatalf("%s may send and cannot", s.name)
	}
	s.wanted = s.wanted[1:]
	s.path = append(s.path, sent{p, slot, x.id, s.Epoch()})
}

func (m *model) deliver(s, o *end) {
	f := s.path[0]
	s.path = s.path[1:]
	s.pending = append(s.pending, f.position)
	if f.slot != NoSlot {
		if id, ok := o.full[f.slot]; ok {
			m.t.Fatalf("message %d overruns message %d in slot %d", f.id, id, f.slot)
		}
		o.memory[f.slot] = f.id
	}
	m.fatal(o.Arrive(f.position, f.slot))
	o.got[f.id]++
	if n := len(o.order); n > 0 && o.order[n-1] > f.id {
		m.t.Fatalf("message %d arrived behind %d", f.id, o.order[n-1])
	}
	o.order = append(o.order, f.id)
	if f.slot != NoSlot {
		o.full[f.slot] = f.id
	}
	m.credit(o, len(s.wanted) == 0)
}

// credit acknowledges and grants as a link does.
func (m *model) credit(s *end, waits bool) {
	now, soon := s.Due(waits)
	if s.soon = soon; now {
		m.grant(s)
	}
}

func (m *model) complete(s *end, i int) {
	p := s.pending[i]
	s.pending = append(s.pending[:i:i], s.pending[i+1:]...)
	if s.State() != Up { // the account is closed
		return
	}
	m.fatal(s.Completed(p))
	s.Finish(func(x message) { m.finish(s, x) })
}

func (m *model) consume(s *end, slot uint32) {
	if id := s.full[slot]; s.memory[slot] != id {
		m.t.Fatalf("slot %d holds %d, not %d", slot, s.memory[slot], id)
	}
	delete(s.full, slot)
	m.fatal(s.Release(slot))
	if s.State() == Up && s.grantedYet {
		m.credit(s, false)
	}
}

func (m *model) grant(s *end) {
	s.control = append(s.control, control{epoch: s.Epoch(), ack: s.Received(), slots: s.Offer(nil)})
}

func (m *model) end(s *end) {
	f, err := s.End(m.settled(s))
	m.fatal(err)
	s.control = append(s.control, control{epoch: f.Epoch, farewell: &f})
}

func (m *model) hear(s, o *end) {
	c := s.control[0]
	s.control = s.control[1:]
	finished, lost := m.settled(o)
	switch {
	case c.farewell != nil:
		m.fatal(o.Hear(*c.farewell, finished, lost))
	case o.State() == Up && c.epoch == o.Epoch():
		m.fatal(o.Ack(c.ack))
		m.fatal(o.Sender.Grant(c.slots))
		o.Finish(func(x message) { m.finish(o, x) })
	}
}

func (m *model) detour(s, o *end) {
	id := s.detour[0]
	s.detour = s.detour[1:]
	o.got[id]++
	m.finish(s, message{id: id})
}

// Whatever the path does, every message arrives once, those of a path in order, nothing overruns a slot, and nothing
// comes to a standstill.
func TestRandomNetworks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, ends: [2]*end{newEnd("a"), newEnd("b")}, finished: map[int]bool{}}
		id, total := 0, 0
		steps := rapid.IntRange(10, 250).Draw(t, "steps")
		for range steps {
			s := m.ends[rapid.IntRange(0, 1).Draw(t, "end")]
			switch rapid.IntRange(0, 19).Draw(t, "what") {
			case 0:
				m.pathUp = false // it dies
			case 1, 2, 3, 4, 5:
				s.wanted = append(s.wanted, message{id, rapid.Bool().Draw(t, "slot")})
				id++
				total++
			default:
				if list := m.moves(); len(list) > 0 {
					list[rapid.IntRange(0, len(list)-1).Draw(t, "move")]()
				}
			}
		}
		for n := 0; len(m.finished) < total; n++ {
			list := m.moves()
			if len(list) == 0 || n > 100*(total+10) {
				t.Fatalf("%d of %d messages are finished and nothing goes on: %s", len(m.finished), total, m.describe())
			}
			list[n%len(list)]()
		}
		for _, s := range m.ends {
			for id, n := range s.got {
				if n != 1 {
					t.Errorf("message %d came %d times", id, n)
				}
			}
		}
	})
}

func (m *model) describe() string {
	text := fmt.Sprintf("path %v, epoch %d", m.pathUp, m.epoch)
	for _, s := range m.ends {
		text += fmt.Sprintf("; %s: state %d, room %d, credits %d, wanted %d, path %d, pending %d, control %d, full %d",
			s.name, s.State(), s.Room(), s.Credits(), len(s.wanted),
			len(s.path), len(s.pending), len(s.control), len(s.full))
	}
	return text
}

// A peer that breaks the protocol is found out.
func TestViolations(t *testing.T) {
	for name, f := range map[string]func(p *Peer[int]) error{
		"slot granted twice":    func(p *Peer[int]) error { return p.Sender.Grant([]uint32{1, 1}) },
		"slot beyond the ring":  func(p *Peer[int]) error { return p.Sender.Grant([]uint32{9}) },
		"ack of unsent":         func(p *Peer[int]) error { return p.Ack(1) },
		"arrival out of order":  func(p *Peer[int]) error { return p.Arrive(1, NoSlot) },
		"arrival without grant": func(p *Peer[int]) error { return p.Arrive(0, 0) },
		"arrival beyond":        func(p *Peer[int]) error { return p.Arrive(0, 77) },
		"farewell to the future": func(p *Peer[int]) error {
			return p.Hear(Farewell{Epoch: 2}, func(int) {}, func(int) {})
		},
		"two farewells": func(p *Peer[int]) error {
			none := func(int) {}
			return errors.Join(p.Hear(Farewell{Epoch: 1}, none, none), p.Hear(Farewell{Epoch: 1}, none, none))
		},
		"received more than was sent": func(p *Peer[int]) error {
			none := func(int) {}
			_, err := p.End(none, none)
			return errors.Join(err, p.Hear(Farewell{Epoch: 1, Received: 5}, none, none))
		},
		"epoch begins twice": func(p *Peer[int]) error { return p.Begin(2) },
	} {
		p := NewPeer[int](4, 4, 4)
		if err := p.Begin(1); err != nil {
			t.Fatal(err)
		}
		if err := f(p); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	p := NewPeer[int](8, 8, 8)
	credits := make([]uint32, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		credits = p.Offer(credits[:0])
		_ = p.Sender.Grant(credits)
		for range 8 {
			pos, slot, _ := p.Send(1, true)
			_ = p.Arrive(pos, slot)
			_ = p.Completed(pos)
			_ = p.Release(slot)
		}
		_ = p.Ack(p.Received())
		p.Finish(func(int) {})
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}
