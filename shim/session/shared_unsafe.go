package session

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// ABI is the version of Shared's layout, SCUDA_CORE_ABI in shim/front/base/core.h.
const ABI = 12

// Shared is struct scuda_shared of shim/front/base/core.h, which explains it; the front owns the memory.
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
	Counts           *Counts              // nil: nothing is counted
	Outages          countOf              // of the core's
	LostOf           [MostSessions]uint32 // as Lost, of one of several servers
	Mapped           uintptr              // of the front, which [Config.Mapped] calls; 0: there is none
}

// MappedUpload is struct scuda_mapped_upload.
type MappedUpload struct {
	Position  uint64
	Context   uint64
	Server    uint32
	OnlyFlags uint32
	_         uint32 // whether it has begun, for the front alone
	Flags     uint32
	Dst       uint64
	Bytes     uint64
	Stream    uint64
	Source    *byte // not memory of Go's
}

func (u *MappedUpload) data() []byte { return unsafe.Slice(u.Source, u.Bytes) }

// Kinds of what [Counts] count.
const (
	CountSent   = iota // commands
	CountAnswer        // waits for answers
	CountData          // waits for the bytes of copies
	CountQueue         // waits for room in the command ring
	CountModule        // uploads of module images
	countKinds

	countCUDA   = 1024
	countWire   = 256
	firstWire   = wire.FirstOp
	countErrors = 1000
)

// Counts is struct scuda_counts: what the front counts, in memory that grows under the reader's eyes.
type Counts struct {
	of      [countKinds][countCUDA + countWire]countOf
	errors  [countErrors]uint64
	managed *[5]uint64
}

type countOf struct{ n, ns, most, bytes uint64 } // most is the longest, which only the report of a trace tells

// note counts one that is over. Only one thread may do so at a time, beside others that add bytes and read.
func (c *countOf) note(lasted time.Duration) {
	ns := uint64(max(lasted, 0))
	atomic.StoreUint64(&c.most, max(c.most, ns))
	atomic.AddUint64(&c.ns, ns)
	atomic.AddUint64(&c.n, 1)
}

func (c *countOf) add(bytes uint64) { atomic.AddUint64(&c.bytes, bytes) }

// Each calls f with every operation that has something to count of a kind: how often, for how many nanoseconds, how
// many bytes.
func (c *Counts) Each(kind int, f func(op uint16, n, ns, bytes uint64)) {
	for i := range c.of[kind] {
		x := &c.of[kind][i]
		n := atomic.LoadUint64(&x.n)
		if n == 0 {
			continue
		}
		op := i
		if i >= countCUDA {
			op = i - countCUDA + firstWire
		}
		f(uint16(op), n, atomic.LoadUint64(&x.ns), atomic.LoadUint64(&x.bytes))
	}
}

// Errors calls f with every CUresult that the program was given and that tells of a failure.
func (c *Counts) Errors(f func(result int32, n uint64)) {
	for r := range c.errors {
		if n := atomic.LoadUint64(&c.errors[r]); n > 0 {
			f(int32(r), n)
		}
	}
}

// Managed is what happened in unified memory.
type Managed struct {
	Faults           uint64
	ToHost, ToDevice uint64 // bytes that moved
	Pushed           uint64 // of those to the program, what came with waits for the GPU
	Pinned           uint64 // times that a thrashing block was pinned
}

// Managed gives the counts of unified memory.
func (c *Counts) Managed() Managed {
	if c.managed == nil {
		return Managed{}
	}
	at := func(i int) uint64 { return atomic.LoadUint64(&c.managed[i]) }
	return Managed{Faults: at(0), ToHost: at(1), ToDevice: at(2), Pushed: at(3), Pinned: at(4)}
}

// Figures are what a session has counted itself.
type Figures struct {
	Lost            bool
	Received, Sent  uint64 // bytes of the protocol over TCP
	PendingDownload uint32
	Ring            uint64 // bytes of commands that wait to be sent

	Away     bool          // a connection is lost, and the session tries to come back
	Outages  uint64        // times that it did so; they are over
	Out      time.Duration // that these took
	Replayed uint64        // bytes that were sent again
}

// traffic counts bytes of the protocol over TCP.
type traffic struct {
	received atomic.Uint64 // answers and downloads
	sent     atomic.Uint64 // commands and uploads
}

// Figures gives them as they are now.
func (s *Session) Figures() Figures {
	f := Figures{
		Lost: s.lost() != 0, Received: s.traffic.received.Load(), Sent: s.traffic.sent.Load(),
		PendingDownload: s.registered.pending.Load(), Away: s.returns.away(),
		Outages: atomic.LoadUint64(&s.shared.Outages.n), Out: time.Duration(atomic.LoadUint64(&s.shared.Outages.ns)),
		Replayed: atomic.LoadUint64(&s.shared.Outages.bytes),
	}
	if head, tail := atomic.LoadUint64(&s.shared.Head), atomic.LoadUint64(&s.shared.Tail); tail > head {
		f.Ring = tail - head
	}
	return f
}

// Counts is what the front counts, nil where it does not.
func (s *Session) Counts() *Counts { return s.shared.Counts }

// Track is struct scuda_track.
type Track struct {
	_       uint64
	Done    uint64
	_       [2]uint64
	Refused uint64
	_       [3]uint64
}

// shared is Shared as one session has it.
type shared struct {
	*Shared
	last *uint32 // the result of every call once the session has ended, else 0
}

// lost is the result of every call once the session has ended, else 0.
func (sh shared) lost() int32 { return int32(atomic.LoadUint32(sh.last)) }

// end says that from now on every call gives result, unless the session has ended.
func (sh shared) end(result int32) { atomic.CompareAndSwapUint32(sh.last, 0, uint32(result)) }

// news is called before the program learns of the GPU's progress past the main connection: what it knew from there is
// no longer the last word.
func (sh *Shared) news() { atomic.AddUint64(&sh.News, 1) }

const slotBytes = 64

// track is the track of a handle of the client's region, nil for anything else.
func (sh *Shared) track(handle uint64) *Track {
	i := handle - sh.ClientBase
	if sh.Tracks == nil || i >= sh.ClientSlots*slotBytes || i%slotBytes != 0 {
		return nil
	}
	return &unsafe.Slice(sh.Tracks, sh.ClientSlots)[i/slotBytes]
}

// regions says which handles a server knows. Each of several makes its own in a part of the server region, so that
// the address of a slot says whose it is. The front does so in the client region, but for libraries and their kernels,
// which all have under one handle.
func (sh *Shared) regions(h *transport.Hello, server, servers int) {
	theirs := sh.ServerSlots / uint64(servers)
	h.ClientBase, h.ClientSlots = sh.ClientBase, sh.ClientSlots
	h.ServerBase, h.ServerSlots = sh.ServerBase+uint64(server)*theirs*slotBytes, theirs
}

// takeRing takes the command ring over from the front.
func (s *sender) takeRing(sh *Shared) error {
	if sh.ABI != ABI {
		return fmt.Errorf(
			"the front speaks version %d of the core's interface, this core version %d; use libraries of one release", sh.ABI,
			ABI)
	}
	if sh.Ring == nil || sh.RingSize == 0 || sh.RingSize&(sh.RingSize-1) != 0 || sh.RingSize > 1<<32 {
		return fmt.Errorf("command ring of %d bytes", sh.RingSize)
	}
	s.shared = sh
	s.ring = unsafe.Slice(sh.Ring, 2*sh.RingSize)
	s.mask = sh.RingSize - 1
	s.head = sh.Head
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
