package commons

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrFull says that a tenant has all the sessions that it may have.
var ErrFull = errors.New("no place for one more session of the tenant")

// Tenants is the supervisor's account of who has which place. Its zero value can be used, by many at once.
type Tenants struct {
	mu sync.Mutex
	by map[string]*hall
}

// hall is the memory of one tenant. It is there as long as there are sessions.
type hall struct {
	shared
	taken []bool // up to the highest place that is
}

// Visit is a session's stay.
type Visit struct {
	Place  int
	tenant string
	of     *Tenants
	hall   *hall
	left   bool // guarded by of.mu
}

// FD is the tenant's memory, for the session's worker. It is the visit's until that ends.
func (v *Visit) FD() int { return v.hall.fd }

// Memory is what the session says that it has; 0 once it has left.
func (v *Visit) Memory() uint64 {
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	if v.left {
		return 0
	}
	return v.hall.places[v.Place].memory.Load()
}

// Enter gives a session of a tenant, under a lease of this number (0: none), a place.
func (t *Tenants) Enter(tenant string, lease uint64) (*Visit, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.by[tenant]
	if h == nil {
		s, err := newShared()
		if err != nil {
			return nil, err
		}
		if t.by == nil {
			t.by = make(map[string]*hall)
		}
		h = &hall{shared: s}
		t.by[tenant] = h
	}
	n := slices.Index(h.taken, false)
	switch {
	case n >= 0:
		h.taken[n] = true
	case len(h.taken) == Places:
		return nil, fmt.Errorf("%w: %s has %d", ErrFull, tenant, Places)
	default:
		n = len(h.taken)
		h.taken = append(h.taken, true)
	}
	h.places[n].lease.Store(lease)
	h.seats.Store(uint64(len(h.taken)))
	return &Visit{Place: n, tenant: tenant, of: t, hall: h}, nil
}

// Return gives a session the place again that it has had from another supervisor, in the memory behind fd, which it
// takes over. All sessions of a tenant have the same memory.
func (t *Tenants) Return(tenant string, fd, place int, lease uint64) (*Visit, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := openShared(fd)
	if err != nil {
		return nil, err
	}
	h := t.by[tenant]
	switch {
	case h == nil:
		h = &hall{shared: s}
	case !h.same(fd):
		err = fmt.Errorf("the sessions of %s have two memories", tenant)
	}
	if err == nil && (place < 0 || place >= Places || place < len(h.taken) && h.taken[place]) {
		err = fmt.Errorf("place %d of %s is not this session's", place, tenant)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	if h.fd != s.fd {
		s.close()
	}
	if t.by == nil {
		t.by = make(map[string]*hall)
	}
	t.by[tenant] = h
	for len(h.taken) <= place {
		h.taken = append(h.taken, false)
	}
	h.taken[place] = true
	h.places[place].lease.Store(lease)
	h.seats.Store(uint64(len(h.taken)))
	return &Visit{Place: place, tenant: tenant, of: t, hall: h}, nil
}

// same says whether a descriptor is of the hall's memory.
func (h *hall) same(fd int) bool {
	var a, b unix.Stat_t
	return unix.Fstat(h.fd, &a) == nil && unix.Fstat(fd, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// Leave gives the place of a session back whose worker has ended.
func (v *Visit) Leave() {
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	h := v.hall
	v.left = true
	h.places[v.Place].clear()
	h.taken[v.Place] = false
	for n := len(h.taken); n > 0 && !h.taken[n-1]; n-- {
		h.taken = h.taken[:n-1]
	}
	h.seats.Store(uint64(len(h.taken)))
	if len(h.taken) == 0 {
		h.close()
		delete(v.of.by, v.tenant)
	}
}
