package commons

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Seat is a session's place, from which it sees the others'.
type Seat struct {
	all shared
	n   int
	// bounds of memory; 0: none
	ofTenant, ofLease uint64
}

// Open gives the seat of a place of the memory behind fd, which it takes over.
func Open(fd, place int) (*Seat, error) {
	if place < 0 || place >= Places {
		unix.Close(fd)
		return nil, fmt.Errorf("place %d of %d", place, Places)
	}
	all, err := openShared(fd)
	if err != nil {
		return nil, err
	}
	return &Seat{all: all, n: place}, nil
}

// Close gives the memory back, after which neither the seat nor a place must be used.
func (s *Seat) Close() { s.all.close() }

// Join says that the session's program shares memory with others, which know the session by the place's number and id.
func (s *Seat) Join(id uint64) (n int, p *Place) {
	p = &s.all.places[s.n]
	p.position.Store(0)
	p.SetPatience(Patience)
	p.id.Store(id)
	return s.n, p
}

// Find gives the place of a session that has joined, nil if it has ended.
func (s *Seat) Find(n uint32, id uint64) *Place {
	if n >= Places || id == 0 || !s.all.places[n].Is(id) {
		return nil
	}
	return &s.all.places[n]
}
