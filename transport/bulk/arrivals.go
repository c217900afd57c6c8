package bulk

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Arrivals keeps account of numbered transfers that arrive in memory of their own.
type Arrivals struct {
	mu     sync.Mutex
	more   *sync.Cond
	of     map[uint32]*cover
	ended  bool
	chunks atomic.Uint32
}

// NewArrivals makes an account.
func NewArrivals() *Arrivals {
	a := &Arrivals{of: make(map[uint32]*cover)}
	a.more = sync.NewCond(&a.mu)
	return a
}

// Add notes a chunk. The error [ErrTwice] says that some of its bytes had come before.
func (a *Arrivals) Add(c Chunk) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.of[c.ID]
	if v == nil {
		v = &cover{}
		a.of[c.ID] = v
	}
	if !v.add(c) {
		return fmt.Errorf("%w: %d bytes at %d of transfer %d", ErrTwice, c.Bytes, c.Offset, c.ID)
	}
	a.chunks.Add(1)
	a.more.Broadcast()
	return nil
}

// bytes is how many of a transfer have come. a.mu is held.
func (a *Arrivals) bytes(id uint32) uint64 {
	if v := a.of[id]; v != nil {
		return v.bytes
	}
	return 0
}

// Chunks counts the calls of [Arrivals.Add], for those who look instead of waiting.
func (a *Arrivals) Chunks() uint32 { return a.chunks.Load() }

// Have says whether so many bytes of a transfer have come, or it is of no use to wait for them.
func (a *Arrivals) Have(id uint32, bytes uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended || a.bytes(id) >= bytes
}

// Await waits until so many bytes of a transfer have come, and forgets it. It says no where they will not come any
// more.
func (a *Arrivals) Await(id uint32, bytes uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.ended && a.bytes(id) < bytes {
		a.more.Wait()
	}
	all := a.bytes(id) >= bytes
	delete(a.of, id)
	return all
}

// End says that nothing will come any more.
func (a *Arrivals) End() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.more.Broadcast()
}
