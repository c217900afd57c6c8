package commons

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"
)

// Book says that the session has so many bytes of the GPUs' memory and wants more, which are booked if all sessions of
// the tenant then stay within the limit. others is what the other sessions have.
func (s *Seat) Book(has, more, limit uint64) (others uint64, ok bool) {
	s.lock(unix.F_WRLCK)
	defer s.lock(unix.F_UNLCK)
	others = s.Others()
	ok = more <= limit && has <= limit-more && others <= limit-more-has
	if !ok {
		more = 0
	}
	s.Has(has + more)
	return others, ok
}

// Has says how much the session has. It is no more than was booked, so nobody is asked.
func (s *Seat) Has(bytes uint64) { s.all.places[s.n].memory.Store(bytes) }

// Others is how much the tenant's other sessions have.
func (s *Seat) Others() uint64 { return s.all.sum(s.n) }

// nobody is the number of no place.
const nobody = -1

// sum is how much all but one have. It is half of what a word holds at most: a worker may have written anything.
func (b *board) sum(but int) (n uint64) {
	places := b.taken()
	for i := range places {
		if i != but {
			n = min(n+min(places[i].memory.Load(), math.MaxInt64), math.MaxInt64)
		}
	}
	return n
}

// lock is a lock between processes, each of which has one seat and one thread at a time that asks.
func (s *Seat) lock(how int16) {
	l := unix.Flock_t{Type: how, Len: 1}
	for errors.Is(unix.FcntlFlock(uintptr(s.all.fd), unix.F_SETLKW, &l), unix.EINTR) {
	}
}

// Memory is what the sessions of each tenant say that they have.
func (t *Tenants) Memory() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	bytes := make(map[string]uint64, len(t.by))
	for name, h := range t.by {
		bytes[name] = h.sum(nobody)
	}
	return bytes
}
