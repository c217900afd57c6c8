package executor

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport"
)

// pulse speaks for the executor while that is in the driver, and notices a client's machine that is gone while bytes
// are under way to it, or another server's. It belongs to no thread of the driver's. Where nothing goes on it sleeps.
type pulse struct {
	s       *Session
	turns   atomic.Uint64 // of the executor: odd while it carries commands out
	resting atomic.Bool   // nobody looks until the executor says that there is something
	roused  chan struct{}
	gone    atomic.Bool // the client's machine does not answer any more
	expects atomic.Bool // the executor waits for bytes of the client's
	done    sync.WaitGroup
}

// begin and end stand around what the executor does with what it received.
func (p *pulse) begin() {
	p.turns.Add(1)
	p.rouse()
}

// rouse has somebody look again, from the next beat on.
func (p *pulse) rouse() {
	if p.resting.Load() && p.resting.CompareAndSwap(true, false) {
		p.roused <- struct{}{}
	}
}

func (p *pulse) end() { p.turns.Add(1) }

func (p *pulse) start(s *Session, beat time.Duration) {
	p.s, p.roused = s, make(chan struct{}, 1)
	p.done.Go(func() { p.run(time.NewTicker(beat)) })
}

func (p *pulse) run(t *time.Ticker) {
	defer t.Stop()
	last, owing := uint64(0), transport.Debtors{}
	for {
		select {
		case <-t.C:
		case <-p.s.stopped:
			return
		}
		turn := p.turns.Load()
		fds := p.s.sockets()
		if gone := owing.Look(fds, transport.TrafficOf); !p.s.lose(gone) {
			p.gone.Store(true)
			p.s.log.Error("session ends: the client's machine, or the way to it, does not answer any more")
			p.s.Stop()
			return
		}
		p.s.callback.beat()
		switch {
		case turn != last:
			last = turn
		case turn%2 != 0: // the same turn as a beat ago
			if !p.expects.Load() { // else what was lost on the way would be waited for without end
				p.speak()
			}
		case len(owing) == 0 && !underWay(fds) && !p.s.callback.awaits() && !p.s.peers.active.Load() && !p.rest(turn):
			return
		}
	}
}

// speak gives the client a sign of life if it has asked for something that nobody has read yet.
func (p *pulse) speak() {
	if transport.Unread(p.s.conn.FD()) == 0 || p.s.out.pending() != 0 {
		return
	}
	p.s.out.message(transport.MessageHeader{Type: transport.MsgAlive}, nil, nil)
	_, _ = p.s.out.flush() // a failure is the executor's as well
}

// expect says whether it is the client's turn to send bytes.
func (s *Session) expect(bytes bool) {
	if s.pulse.expects.Load() != bytes {
		s.pulse.expects.Store(bytes)
	}
}

// rest sleeps until the executor turns to something, or the client is asked for something. It says no at the session's
// end.
func (p *pulse) rest(turn uint64) bool {
	p.resting.Store(true)
	if (p.turns.Load() != turn || p.s.callback.awaits()) && p.resting.CompareAndSwap(true, false) {
		return true
	}
	select {
	case <-p.roused:
		return true
	case <-p.s.stopped:
		return false
	}
}

// underWay says whether bytes have not arrived yet.
func underWay(fds []int) bool {
	for _, fd := range fds {
		if transport.Unsent(fd) > 0 {
			return true
		}
	}
	return false
}

// lose gives up sockets that do not answer any more, and says whether the session goes on without them.
func (s *Session) lose(fds []int) bool {
	if len(fds) == 0 {
		return true
	}
	goesOn := true
	lost := func(fd int, lose func(error) bool) {
		if slices.Contains(fds, fd) {
			goesOn = lose(unix.ETIMEDOUT) && goesOn
		}
	}
	main, ok := s.conn.(*transport.Resumable)
	lost(s.conn.FD(), func(why error) bool {
		if ok {
			main.Lose(why)
		}
		return ok
	})
	for _, l := range s.lines() {
		lost(l.FD(), l.Lose)
	}
	s.peers.lose(fds)
	return goesOn
}

// sockets are those of the session.
func (s *Session) sockets() []int {
	fds := []int{s.conn.FD()}
	for _, l := range s.lines() {
		fds = append(fds, l.FD())
	}
	return append(fds, s.peers.sockets()...)
}

// lines are the connections beside the main one.
func (s *Session) lines() (all []*transport.Line) {
	s.callback.mu.Lock()
	if s.callback.line != nil {
		all = append(all, s.callback.line)
	}
	s.callback.mu.Unlock()
	if l := s.copies.path.control.Load(); l != nil {
		all = append(all, l)
	}
	t := s.copies.bulk
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.conns {
		all = append(all, c.Line)
	}
	return all
}
