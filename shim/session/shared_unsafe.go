package session

import (
	"fmt"
	"unsafe"

	"scuda.dev/scuda/transport"
)

// ABI is the version of Shared's layout, SCUDA_CORE_ABI in shim/front/core.h.
const ABI = 3

// Shared is struct scuda_shared of shim/front/core.h, which explains it; the front owns the memory.
type Shared struct {
	ABI         uint32
	Hosting     uint32
	Ring        *byte // twice RingSize bytes of address space
	RingSize    uint64
	ClientBase  uint64
	ClientSlots uint64
	ServerBase  uint64
	ServerSlots uint64
	Tracks      *Track // one a slot

	Tail uint64
	_    [56]byte

	Head uint64
	_    [56]byte

	Asleep  uint32
	Starved uint32
	_       [56]byte

	Lost             uint32
	TransfersPending uint32
	News             uint64
	_                [48]byte
}

// Track is struct scuda_track.
type Track struct {
	_       uint64
	Done    uint64
	_       [2]uint64
	Refused uint64
	_       [3]uint64
}

const slotBytes = 64

// track is the track of a handle of the client's region, nil for anything else.
func (sh *Shared) track(handle uint64) *Track {
	i := handle - sh.ClientBase
	if sh.Tracks == nil || i >= sh.ClientSlots*slotBytes || i%slotBytes != 0 {
		return nil
	}
	return &unsafe.Slice(sh.Tracks, sh.ClientSlots)[i/slotBytes]
}

func (sh *Shared) regions(h *transport.Hello) {
	h.ClientBase, h.ClientSlots, h.ServerBase, h.ServerSlots = sh.ClientBase, sh.ClientSlots, sh.ServerBase, sh.ServerSlots
}

func (s *Session) takeRing() error {
	sh := s.shared
	if sh.ABI != ABI {
		return fmt.Errorf("the front speaks version %d of the core's interface, this core version %d; use libraries of one release", sh.ABI, ABI)
	}
	if sh.Ring == nil || sh.RingSize == 0 || sh.RingSize&(sh.RingSize-1) != 0 || sh.RingSize > 1<<32 {
		return fmt.Errorf("command ring of %d bytes", sh.RingSize)
	}
	s.ring = unsafe.Slice(sh.Ring, 2*sh.RingSize)
	s.mask = sh.RingSize - 1
	s.send.head = sh.Head
	return nil
}

// overlap says whether two ranges of memory share a byte.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	x, y := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}
