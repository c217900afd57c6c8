package bulk

import "errors"

// State says whether a sender takes chunks now.
type State int32

// States of a sender.
const (
	Down     State = iota // it takes none; what was under way on it has been settled
	Up                    // it takes chunks
	Settling              // it takes none, and it is not known yet what arrived
)

func (s State) String() string { return [...]string{"down", "up", "settling"}[s] }

// ErrDown says that a chunk was not taken, because the sender is not up.
var ErrDown = errors.New("there is no path for a chunk")

// Sender takes chunks to the peer.
type Sender interface {
	State() State
	// ChunkBytes is the size of chunks that suits the sender best, at most transport.MaxChunk.
	ChunkBytes() int
	// Register makes memory known to the sender, from which pieces are sent until the region is released. An error
	// says that they cannot be.
	Register(data []byte) (Region, error)
	// Send takes a piece of registered memory, or of memory that needs no registration (nil). It may wait for the
	// peer's credit. [ErrDown] says that the piece was not taken; other errors, that the sender is broken and it is
	// not known what became of it.
	//
	// A sender whose pieces may be lost (see [Outbound.Prefer]) calls [Outbound.Settled] once for each that it took.
	// The others are through with a piece when Send returns.
	Send(p Piece, from Region) error
}

// Region is memory that is known to a sender.
type Region interface{ Release() }

// Receiver is what chunks arrive at.
type Receiver interface {
	// Room gives memory for a chunk that is about to be read from a stream of bytes. It may wait for the chunk's turn,
	// and for memory; the peer cannot send on meanwhile. Senders that write to memory of the peer by themselves have
	// got it before, as their credit.
	Room(c Chunk) (Buffer, error)
	// Arrived is told of a chunk that lies in memory. Where that is the transfer's own and [Receiver.Room] was not
	// asked, b is nil.
	Arrived(c Chunk, b Buffer)
	// Abandoned is told instead, when the stream broke before all of the chunk was there.
	Abandoned(b Buffer)
}

// Buffer is memory for one chunk.
type Buffer interface{ Bytes() []byte }

// Piece is a part of a transfer that one sender gets.
type Piece struct {
	Transfer *Transfer
	Off, N   int // of the transfer's bytes here
}

// Chunk describes the piece for the peer.
func (p Piece) Chunk() Chunk {
	t := p.Transfer
	more := t.More || p.Off+p.N < t.Bytes
	return Chunk{Seq: t.Seq, Offset: t.Offset + uint64(p.Off), ID: t.ID, Bytes: uint32(p.N), More: more}
}

// Data is the piece's memory, or nil where the processor cannot read that.
func (p Piece) Data() []byte {
	if p.Transfer.Data == nil {
		return nil
	}
	return p.Transfer.Data[p.Off : p.Off+p.N]
}

// Addr is the address of memory that the processor cannot read.
func (p Piece) Addr() uint64 { return p.Transfer.Addr + uint64(p.Off) }

// Transfer is memory whose bytes are to be sent: all of a numbered transfer, or a part of it that is ready. It belongs
// to [Outbound] from when it is added until its owner is told.
type Transfer struct {
	Seq    uint64
	ID     uint32
	Offset uint64 // of the first byte in the numbered transfer
	Data   []byte
	Addr   uint64 // in the place of Data: where memory lies that only the preferred sender can read
	Bytes  int
	More   bool  // another part of the numbered transfer follows
	Direct bool  // the preferred sender can read the memory as it is
	Owner  Owner // may be nil
	Err    error // why some of its bytes will never be sent; the owner may look when it is told

	chunk       int // bytes of a piece for a fallback
	next        int // what has been cut off
	left        int // bytes whose sending is not over
	outstanding int // bytes that the preferred sender has
	from        Region
	registered  bool
}

// Owner owns a transfer's memory.
type Owner interface {
	// Sent is told once, when nothing reads the memory any more: all has been sent, or never will be. It is called
	// under Outbound's lock and must not wait.
	Sent()
}
