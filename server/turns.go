package server

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/turn"
	"scuda.dev/scuda/transport"
)

// turns gives the workers of CUDA sessions their words. Where turns are taken, a thread looks at what all workers say
// every [turn.Rules.Tick]: workers need not call anybody, and one that lies can call nobody too often.
type turns struct {
	wake chan struct{} // somebody has joined

	mu    sync.Mutex // guards what follows, what processes got, and that workers' slots stay mapped
	turns *turn.Turns
	by    map[*process]*turned
	gpus  map[[16]byte]uint64 // a bit for each GPU of the machine
}

// turned is a worker whose session takes turns.
type turned struct {
	member *turn.Member
	bits   []uint64 // of its GPUs, by its numbers
	word   turn.Word
}

// newTurns is nil on a server where nobody takes turns.
func newTurns(on bool) *turns {
	if !on {
		return nil
	}
	return &turns{wake: make(chan struct{}, 1), turns: turn.New(turn.Usual), by: make(map[*process]*turned),
		gpus: make(map[[16]byte]uint64)}
}

// join has a worker's session take turns for whoever opened it.
func (t *turns) join(p *process, who bearer, terms *lease.Terms) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.slot == nil { // it has ended
		return
	}
	// no name of a tenant has a line's end in it
	party := turn.Party{Name: strings.Join([]string{who.Name, who.lease}, "\n"), Class: terms.Class, Share: terms.Share}
	t.by[p] = &turned{member: t.turns.Join(party), bits: t.bitsOf(p.ready.Devices)}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// bitsOf numbers the GPUs of a worker as this machine's. t.mu is held.
func (t *turns) bitsOf(devices []transport.Device) (list []uint64) {
	for i := range devices {
		id := devices[i].UUID
		if _, known := t.gpus[id]; !known && len(t.gpus) < turn.GPUs {
			t.gpus[id] = 1 << len(t.gpus)
		}
		list = append(list, t.gpus[id])
	}
	return list
}

// end forgets a worker, whose slot is about to be unmapped.
func (t *turns) end(p *process) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.by[p]; x != nil {
		p.got = x.member.Got()
		t.turns.Leave(x.member)
		delete(t.by, p)
	}
	p.slot = nil
}

// got is what has come of a worker's turns, also after its end.
func (t *turns) got(p *process) turn.Got {
	if t == nil {
		return turn.Got{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.by[p]; x != nil {
		return x.member.Got()
	}
	return p.got
}

// waits says whether a worker keeps work back until it has its turn.
func (t *turns) waits(p *process) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.by[p]
	return x != nil && x.word&turn.Wait != 0 && p.slot.Read().Doing&turn.Wants != 0
}

// counts is what has come of turns, for metrics.
func (t *turns) counts() (list []metrics.Turns) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.turns.Counts() {
		list = append(list, metrics.Turns{Class: c.Class.String(), Turns: c.Turns, Waited: c.Waited.Seconds()})
	}
	return list
}

// look gives everybody the word that is right now.
func (t *turns) look() (again time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p, x := range t.by {
		seen := p.slot.Read()
		gpus := uint64(0)
		for i, bit := range x.bits {
			if seen.GPUs&(1<<i) != 0 {
				gpus |= bit
			}
		}
		seen.GPUs = gpus
		x.member.See(seen)
	}
	again = t.turns.Look(time.Now())
	for p, x := range t.by {
		if w := x.member.Word(); w != x.word {
			x.word = w
			p.slot.Tell(w)
		}
	}
	return again
}

// run looks for as long as the server serves, and sleeps while nobody can take turns.
func (t *turns) run(ctx context.Context) {
	if t == nil {
		return
	}
	runtime.LockOSThread() // and the thread ends with the goroutine
	// Go's own timers round to milliseconds.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for ctx.Err() == nil {
		again := t.look()
		if again > 0 && again < time.Millisecond {
			pause := unix.NsecToTimespec(int64(again))
			_ = unix.Nanosleep(&pause, nil) // a signal ends it early, and that is all right
			continue
		}
		var late <-chan time.Time
		if again > 0 {
			late = time.After(again)
		}
		select {
		case <-t.wake:
		case <-late:
		case <-ctx.Done():
		}
	}
}
