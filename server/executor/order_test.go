package executor

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/commons"
	"scuda.dev/scuda/transport"
)

func (c *client) join() wire.OrderPlace {
	c.t.Helper()
	p, _, ok := wire.View[wire.OrderPlace](c.must(wire.OpOrderJoin, nil))
	if !ok {
		c.t.Fatal("no place")
	}
	return *p
}

// behind sends what a client does that has seen another one at a position.
func (c *client) behind(p wire.OrderPlace, position uint64) {
	c.t.Helper()
	c.send(wire.OpOrder, append(wire.Bytes(&wire.Order{Count: 1}),
		wire.Bytes(&wire.OrderAfter{ID: p.ID, Place: p.Place, Position: position})...))
}

// some lets so much time pass that an answer which waits for nobody has come.
func (c *client) some() {
	c.t.Helper()
	for range 100 {
		c.must(wire.OpPing, nil)
	}
}

func answered(ch <-chan message) bool {
	select {
	case m := <-ch:
		return m.Result == 0
	default:
		return false
	}
}

// sit gives a new session's seat among those of a tenant.
func sit(t *testing.T, all *commons.Tenants) (*commons.Seat, *commons.Visit) {
	t.Helper()
	v, err := all.Enter("tenant", 0)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(v.FD()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	s, err := commons.Open(fd, v.Place)
	if err != nil {
		t.Fatal(err)
	}
	return s, v
}

// three gives two sessions of a tenant, one of nobody's, and what the tenant's sessions see; leave ends the first one's
// stay.
func three(t *testing.T) (board *commons.Seat, leave func(), first, second, clock *client) {
	t.Helper()
	var all commons.Tenants
	gpu := openSim(t)
	a, visit := sit(t, &all)
	b, _ := sit(t, &all)
	t.Cleanup(a.Close) // after the sessions
	t.Cleanup(b.Close)
	on := func(s *commons.Seat) option { return func(c *Config) { c.Seat, c.GPU = s, gpu } }
	return b, visit.Leave, connect(t, on(a)), connect(t, on(b)), connect(t)
}

func TestOrderWaitsForTheOther(t *testing.T) {
	_, _, a, b, clock := three(t)
	at := a.join()
	b.join()
	d := a.alloc(64)
	b.behind(at, a.seq+32) // behind a command that a has not sent yet
	ch := b.start(0, wire.OpPing, 0, nil, nil)
	clock.some()
	if answered(ch) {
		t.Fatal("a command overtook what it had to come behind")
	}
	a.upload(d, make([]byte, 64), 0, 0) // not answered
	if m := b.await(ch); m.Result != 0 {
		t.Fatalf("ping: %d", m.Result)
	}
}

// A bulk command is carried out when its data have come.
func TestOrderWaitsForBulkData(t *testing.T) {
	_, _, a, b, clock := three(t)
	at := a.join()
	b.join()
	const n = 2 << 20
	d := a.alloc(n)
	m := wire.CopyH2D{Dst: d, Bytes: n}
	head := frame(a.command(0, wire.OpCopyH2D, transport.FlagBulk, append(bytes.Clone(wire.Bytes(&m)), words(n)...)))
	b.behind(at, a.seq)
	ch := b.start(0, wire.OpPing, 0, nil, nil)
	a.write(head)
	a.write(make([]byte, n-8))
	clock.some()
	if answered(ch) {
		t.Fatal("a command came before the end of the upload that it had to come behind")
	}
	a.write(make([]byte, 8))
	b.await(ch)
}

// Nobody waits for ever: for a session that does not get on, for one that is over, or for none.
func TestOrderEnds(t *testing.T) {
	board, leave, a, b, _ := three(t)
	at := a.join()
	own := b.join()
	p := board.Find(at.Place, at.ID)
	if p == nil || board.Find(at.Place, at.ID+2) != nil || board.Find(commons.Places, at.ID) != nil {
		t.Fatal("a is not where it says")
	}
	p.SetPatience(time.Millisecond)
	b.behind(at, 1<<40)
	b.must(wire.OpPing, nil)
	p.SetPatience(deadline)
	b.behind(at, 1<<41) // a has not moved since
	b.behind(own, 1<<40)
	b.behind(wire.OrderPlace{ID: at.ID, Place: 1 << 31}, 1<<40)
	b.behind(wire.OrderPlace{ID: at.ID + 2, Place: at.Place}, 1<<40)
	b.must(wire.OpPing, nil)
	a.must(wire.OpPing, nil) // now it has
	b.behind(at, 1<<40)
	ch := b.start(0, wire.OpPing, 0, nil, nil)
	leave()
	b.await(ch)
}

// A session whose GPU has as much work as it may have is not waited for: what it waits for may be the other's.
func TestOrderFull(t *testing.T) {
	board, _, a, b, clock := three(t)
	at := a.join()
	b.join()
	d, st, other := a.alloc(64), a.stream(1), a.stream(1)
	p := board.Find(at.Place, at.ID)
	a.must(cuda.OpCuMemsetD32Async, words(d, 0, 16, other))
	a.sync(other)
	a.send(cuda.OpCuStreamWaitValue32_v2, words(st, d, 1, 0))
	var sets [][]byte
	for range queueMost + 100 {
		sets = append(sets, a.command(0, cuda.OpCuMemsetD32Async, 0, words(d+32, 7, 1, st)))
	}
	a.write(frame(sets...))
	end := a.seq
	for p.Patience() != fullPatience {
		clock.must(wire.OpPing, nil)
	}
	b.behind(at, end)
	b.must(wire.OpPing, nil)
	if p.Position() >= end {
		t.Fatal("the stream has taken more than it has room for")
	}
	b.upload(d, []byte{1, 0, 0, 0}, 0, 1)
	a.sync(st)
	if p.Position() < end || p.Patience() != commons.Patience {
		t.Errorf("at %d of %d, patience %v", p.Position(), end, p.Patience())
	}
}

func TestOrderWithoutASeat(t *testing.T) {
	connect(t).expect(cuda.CUDA_ERROR_OPERATING_SYSTEM, wire.OpOrderJoin, nil)
}

func TestOrderMalformed(t *testing.T) {
	for name, send := range map[string]func(c *client){
		"without a place":    func(c *client) { c.send(wire.OpOrder, wire.Bytes(&wire.Order{})) },
		"short":              func(c *client) { c.join(); c.send(wire.OpOrder, nil) },
		"fewer than it says": func(c *client) { c.join(); c.send(wire.OpOrder, wire.Bytes(&wire.Order{Count: 1 << 31})) },
		"join with more":     func(c *client) { c.send(wire.OpOrderJoin, make([]byte, 8)) },
	} {
		t.Run(name, func(t *testing.T) {
			var all commons.Tenants
			seat, _ := sit(t, &all)
			t.Cleanup(seat.Close)
			c := connect(t, func(cfg *Config) { cfg.Seat = seat })
			send(c)
			if err := c.wait(); !errors.Is(err, ErrProtocol) {
				t.Errorf("the session ended with %v", err)
			}
		})
	}
}
