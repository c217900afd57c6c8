package bulk

import (
	"sync"
	"sync/atomic"
)

// Arrivals counts the bytes of numbered transfers that have arrived in memory of their own.
type Arrivals struct {
	mu     sync.Mutex
	more   *sync.Cond
	bytes  map[uint32]uint64
	ended  bool
	chunks atomic.Uint32
}

// NewArrivals makes an account.
func NewArrivals() *Arrivals {
	a := &Arrivals{bytes: make(map[uint32]uint64)}
	a.more = sync.NewCond(&a.mu)
	return a
}

// Add notes a chunk.
func (a *Arrivals) Add(c Chunk) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes[c.ID] += uint64(c.Bytes)
	a.chunks.Add(1)
	a.more.Broadcast()
}

// Chunks counts the calls of [Arrivals.Add], for those who look instead of waiting.
func (a *Arrivals) Chunks() uint32 { return a.chunks.Load() }

// Have says whether so many bytes of a transfer have come, or it is of no use to wait for them.
func (a *Arrivals) Have(id uint32, bytes uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended || a.bytes[id] >= bytes
}

// Await waits until so many bytes of a transfer have come, and forgets it. It says no where they will not come any
// more.
func (a *Arrivals) Await(id uint32, bytes uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.ended && a.bytes[id] < bytes {
		a.more.Wait()
	}
	all := a.bytes[id] >= bytes
	delete(a.bytes, id)
	return all
}

// End says that nothing will come any more.
func (a *Arrivals) End() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.more.Broadcast()
}
