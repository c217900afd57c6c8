// Package order is memory of all workers of a server, in which each says how far it has carried its client's commands
// out. Sessions that share memory of the GPU go by it: what one program saw return before it told another stands before
// what the other asks for then.
package order

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Places is how many sessions of a server may share memory at a time.
const Places = 4096

// Board is the memory. The zero value serves the sessions of one process.
type Board struct{ places [Places]Place }

// Place is what one session says of itself.
type Place struct {
	id       atomic.Uint64 // of the session; 0: free
	position atomic.Uint64 // in its client's stream: everything before was handed to the driver
	patience atomic.Int64  // others wait so many nanoseconds for the next step
	owner    atomic.Int64  // the worker's process
	_        [4]uint64     // a cache line each
}

// Patience is how long others wait for a session that does not get on. A first launch that has its code loaded takes
// tenths of a second; only what waits for those others itself takes longer.
const Patience = time.Second

// Claim gives a session a place.
func (b *Board) Claim(id uint64, owner int) (n int, p *Place, ok bool) {
	for n := range b.places {
		p := &b.places[n]
		if p.owner.Load() != 0 || !p.owner.CompareAndSwap(0, int64(owner)) {
			continue
		}
		p.position.Store(0)
		p.SetPatience(Patience)
		p.id.Store(id)
		return n, p, true
	}
	return 0, nil, false
}

// Free gives the places of a worker that has ended back.
func (b *Board) Free(owner int) {
	for n := range b.places {
		if p := &b.places[n]; p.owner.Load() == int64(owner) {
			p.id.Store(0)
			p.owner.Store(0)
		}
	}
}

// Find gives the place of a session, nil if it has ended.
func (b *Board) Find(n uint32, id uint64) *Place {
	if n >= Places || id == 0 || b.places[n].id.Load() != id {
		return nil
	}
	return &b.places[n]
}

// Reach says that everything before position was handed to the driver.
func (p *Place) Reach(position uint64) { p.position.Store(position) }

// Position is how far the session has come.
func (p *Place) Position() uint64 { return p.position.Load() }

// Is says whether the place is still that of a session.
func (p *Place) Is(id uint64) bool { return p.id.Load() == id }

// SetPatience says how long others are to wait for the next step.
func (p *Place) SetPatience(d time.Duration) { p.patience.Store(int64(d)) }

// Patience is how long others are to wait for the next step.
func (p *Place) Patience() time.Duration { return time.Duration(p.patience.Load()) }

const boardBytes = int(unsafe.Sizeof(Board{}))

// Shared is a board in shared memory. FD is for other processes; Close gives the memory back, after which the board
// must not be used.
type Shared struct {
	*Board
	FD int
}

// New makes a board that other processes can open.
func New() (*Shared, error) {
	fd, err := unix.MemfdCreate("scuda-order", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory for the order of sessions: %w", err)
	}
	err = unix.Ftruncate(fd, int64(boardBytes))
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memory for the order of sessions: %w", err)
	}
	return Open(fd)
}

// Open maps the board behind fd, which it takes over.
func Open(fd int) (*Shared, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && st.Size != int64(boardBytes) {
		err = fmt.Errorf("%d bytes instead of %d", st.Size, boardBytes)
	}
	var b []byte
	if err == nil {
		b, err = unix.Mmap(fd, 0, boardBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memory for the order of sessions: %w", err)
	}
	return &Shared{(*Board)(unsafe.Pointer(unsafe.SliceData(b))), fd}, nil
}

// Close unmaps the board.
func (s *Shared) Close() {
	if s.Board == nil {
		return
	}
	_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(s.Board)), boardBytes))
	unix.Close(s.FD)
	s.Board, s.FD = nil, -1
}
