package commons

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
)

// Places is how many sessions a tenant may have at a time.
const Places = 4096

// board is the memory.
type board struct {
	seats  atomic.Uint64 // behind the last place that is taken; the supervisor writes it
	_      [7]uint64     // a cache line
	places [Places]Place
}

// taken are the places of which some are taken.
func (b *board) taken() []Place { return b.places[:min(b.seats.Load(), Places)] }

// Place is what one session says of itself.
type Place struct {
	memory   atomic.Uint64 // bytes of the GPUs' that it has, or is about to have
	id       atomic.Uint64 // by which others know it; 0: it shares no memory
	position atomic.Uint64 // in its client's stream: everything before was handed to the driver
	patience atomic.Int64  // others wait so many nanoseconds for the next step
	lease    atomic.Uint64 // of the session, 0: none; the supervisor writes it
	_        [3]uint64     // a cache line each
}

// Patience is how long others wait for a session that does not get on. A first launch that has its code loaded takes
// tenths of a second; only what waits for those others itself takes longer.
const Patience = time.Second

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

// clear makes the place that of nobody.
func (p *Place) clear() {
	p.id.Store(0)
	p.position.Store(0)
	p.memory.Store(0)
	p.lease.Store(0)
}

const boardBytes = int(unsafe.Sizeof(board{}))

// shared is a board in shared memory. fd is for other processes.
type shared struct {
	*board
	fd int
}

func newShared() (shared, error) {
	fd, err := memfd.New("scuda-commons", int64(boardBytes))
	if err != nil {
		return shared{}, err
	}
	return openShared(fd)
}

// openShared maps the board behind fd, which it takes over.
func openShared(fd int) (shared, error) {
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
		return shared{}, fmt.Errorf("memory of a tenant's sessions: %w", err)
	}
	return shared{(*board)(unsafe.Pointer(unsafe.SliceData(b))), fd}, nil
}

// close unmaps the board, which must not be used any more.
func (s *shared) close() {
	if s.board == nil {
		return
	}
	_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(s.board)), boardBytes))
	unix.Close(s.fd)
	*s = shared{fd: -1}
}
