package queue

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"scuda.dev/scuda/server/lease"
)

// Classes are those of waiters, the highest first.
func Classes() []lease.Class { return []lease.Class{lease.High, lease.Normal, lease.Low} }

// Standing is what a session's tenant or lease gives it here. The class goes before everything else: while somebody of
// a higher one can have a place, nobody of a lower one gets it.
type Standing struct {
	Class  lease.Class
	Weight float64 // a tenant with twice the weight is entitled to twice the use; 0 or less is 1
}

// Usual is the standing of whoever has no other.
var Usual = Standing{Class: lease.Normal, Weight: 1}

// Request is what somebody wants a place for.
type Request struct {
	Tenant string
	Peer   netip.Prefix // the address that the client comes from
	Standing
}

// Waiter is a request in the queue.
type Waiter struct {
	Request
	Since time.Time

	number  uint64    // grows with each arrival
	passed  time.Time // when somebody first went by who needs less memory; zero: nobody has
	verdict Verdict
}

// Limits bound a queue.
type Limits struct {
	All    int // who may wait
	Tenant int // of one tenant; 0: as many as in all
	Peer   int // of one address; 0: as many as in all
}

// ErrFull is a queue in which there is no room.
var ErrFull = errors.New("the queue is full")

// Verdict is what the places say to a request.
type Verdict int

// Verdicts.
const (
	Admitted Verdict = iota // it has a place
	Full                    // there is none for anybody
	Own                     // its tenant or its address has as many as it may
	Memory                  // there is not as much memory as it needs
)

// Patience is how long somebody who needs much memory may be passed by those who need less. Then memory is kept for it
// as it comes free.
const Patience = 5 * time.Minute

// Queue is who waits, and what the tenants have used. Its zero value can be used.
type Queue struct {
	waiting []*Waiter
	last    uint64
	tenants map[string]int
	peers   map[netip.Prefix]int
	uses    uses
	lives   lives
}

// Len is how many wait.
func (q *Queue) Len() int { return len(q.waiting) }

// Count is how many of a class wait.
func (q *Queue) Count(c lease.Class) (n int) {
	for _, w := range q.waiting {
		if clamp(w.Class) == c {
			n++
		}
	}
	return n
}

func clamp(c lease.Class) lease.Class { return max(lease.Low, min(c, lease.High)) }

// Room says why the limits do not allow one more to wait; nil: they do.
func (q *Queue) Room(r Request, l Limits) error {
	switch {
	case len(q.waiting) >= l.All:
		return fmt.Errorf("%w: %d wait already", ErrFull, len(q.waiting))
	case l.Tenant > 0 && q.tenants[r.Tenant] >= l.Tenant:
		return fmt.Errorf("%w for tenant %s, of which %d wait already", ErrFull, r.Tenant, q.tenants[r.Tenant])
	case l.Peer > 0 && q.peers[r.Peer] >= l.Peer:
		return fmt.Errorf("%w for clients of %v, of which %d wait already", ErrFull, r.Peer, q.peers[r.Peer])
	}
	return nil
}

// Enter puts a request into the queue. Whoever has come for a place that may be free has to enter as well, so that it
// overtakes nobody; if it does not get one at once and there was no [Queue.Room], it has to leave.
func (q *Queue) Enter(now time.Time, r Request) *Waiter {
	if q.tenants == nil {
		q.tenants, q.peers = make(map[string]int), make(map[netip.Prefix]int)
	}
	q.last++
	w := &Waiter{Request: r, Since: now, number: q.last}
	q.waiting = append(q.waiting, w)
	q.tenants[r.Tenant]++
	q.peers[r.Peer]++
	return w
}

// Leave takes a waiter out; false if it is not there any more.
func (q *Queue) Leave(w *Waiter) bool {
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if q.tenants[w.Tenant]--; q.tenants[w.Tenant] == 0 {
		delete(q.tenants, w.Tenant)
	}
	if q.peers[w.Peer]--; q.peers[w.Peer] == 0 {
		delete(q.peers, w.Peer)
	}
	return true
}

// Waiting are those who wait, the next one first.
func (q *Queue) Waiting(now time.Time) []*Waiter {
	q.sort(now)
	return slices.Clone(q.waiting)
}

// sort puts the next one first.
func (q *Queue) sort(now time.Time) {
	share := make(map[string]float64, len(q.tenants))
	for t := range q.tenants {
		share[t] = q.uses.of(t, now)
	}
	slices.SortFunc(q.waiting, func(a, b *Waiter) int {
		return cmp.Or(
			cmp.Compare(clamp(b.Class), clamp(a.Class)),
			cmp.Compare(share[a.Tenant]/weight(a.Weight), share[b.Tenant]/weight(b.Weight)),
			cmp.Compare(a.number, b.number),
		)
	})
}

func weight(w float64) float64 {
	if w > 0 {
		return w
	}
	return 1
}

// Admit gives places to those whose turn it is, and takes them out of the queue. try asks for a place for one of them;
// where the verdict is [Admitted] the place is taken. Each counts as running from then on, until [Queue.Ended].
func (q *Queue) Admit(now time.Time, try func(*Waiter) Verdict) (admitted []*Waiter) {
	for w := q.next(now, try); w != nil; w = q.next(now, try) {
		q.Leave(w)
		q.uses.begin(w.Tenant, now)
		admitted = append(admitted, w)
	}
	return admitted
}

// next gives the one who has just got a place; nil: nobody gets one now.
func (q *Queue) next(now time.Time, try func(*Waiter) Verdict) *Waiter {
	q.sort(now)
	var short []*Waiter // of memory
	for i, w := range q.waiting {
		switch w.verdict = try(w); w.verdict {
		case Admitted:
			for _, s := range short {
				if s.passed.IsZero() {
					s.passed = now
				}
			}
			return w
		case Full:
			q.behind(i)
			return nil
		case Memory:
			if !w.passed.IsZero() && now.Sub(w.passed) >= Patience {
				q.behind(i) // what comes free is kept for it
				return nil
			}
			short = append(short, w)
		}
	}
	return nil
}

// behind gives those behind one whom they must not pass its verdict.
func (q *Queue) behind(i int) {
	for _, w := range q.waiting[i+1:] {
		w.verdict = q.waiting[i].verdict
	}
}

// Began counts a session as running that had its place before there was this queue, until [Queue.Ended].
func (q *Queue) Began(now time.Time, tenant string) { q.uses.begin(tenant, now) }

// Ended says that a session of a tenant's, which began so long ago, is over; 0: it never was one.
func (q *Queue) Ended(now time.Time, tenant string, lasted time.Duration) {
	q.uses.end(tenant, now)
	if lasted > 0 {
		q.lives.add(lasted)
	}
}

// Position is how a waiter stands.
type Position struct {
	Place int           // from 1
	Of    int           // how many wait
	Wait  time.Duration // about; 0: not known
}

// Positions says of all who wait how they stand, where all places (so many) are taken.
func (q *Queue) Positions(now time.Time, places int) map[*Waiter]Position {
	q.sort(now)
	all := make(map[*Waiter]Position, len(q.waiting))
	for i, w := range q.waiting {
		p := Position{Place: i + 1, Of: len(q.waiting)}
		if w.verdict == Full {
			p.Wait = q.lives.estimate(p.Place, places)
		}
		all[w] = p
	}
	return all
}
