package commons

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"
)

// Bound says how much the tenant's sessions may have together, and how much those of this session's lease; 0: any
// number. It gives the lower of both, which is the limit for [Seat.Book].
func (s *Seat) Bound(tenant, lease uint64) (limit uint64) {
	s.ofTenant, s.ofLease = tenant, lease
	return s.limit()
}

func (s *Seat) limit() uint64 {
	if s.ofTenant == 0 || s.ofLease == 0 {
		return max(s.ofTenant, s.ofLease)
	}
	return min(s.ofTenant, s.ofLease)
}

// Book says that the session has so many bytes of the GPUs' memory and wants more, which are booked if all sessions of
// the tenant, and of the lease, then stay within their limits. others is as of [Seat.Others].
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

// Others is how much others take away from the limit: what the tenant's other sessions have, and where its lease leaves
// the session less than its tenant does, as much more.
func (s *Seat) Others() uint64 {
	others := s.all.sum(s.n)
	if s.ofLease == 0 {
		return others
	}
	left := less(s.ofLease, s.all.under(s.all.places[s.n].lease.Load(), s.n))
	if s.ofTenant > 0 {
		left = min(left, less(s.ofTenant, others))
	}
	return less(s.limit(), left)
}

// less is a without b, and 0 where that is more.
func less(a, b uint64) uint64 { return a - min(a, b) }

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

// under is how much all sessions of a lease have but one.
func (b *board) under(lease uint64, but int) (n uint64) {
	places := b.taken()
	for i := range places {
		if i != but && places[i].lease.Load() == lease {
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
