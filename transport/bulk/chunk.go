package bulk

import (
	"errors"
	"fmt"

	"scuda.dev/scuda/transport"
)

// MinTransfer is the size from which a copy's bytes go beside the main connection.
const MinTransfer = 2 << 20

// minChunk is the least size of chunks into which a transfer is cut so that all fallbacks have some.
const minChunk = 256 << 10

// Chunk says what a chunk's bytes are.
type Chunk struct {
	Seq    uint64 // the command's position in the client's command stream
	Offset uint64 // of the bytes in the transfer
	ID     uint32 // of the transfer, for downloads
	Bytes  uint32 // 1 to transport.MaxChunk
	More   bool   // another chunk follows at once; the peer need not acknowledge this one by itself
}

// within says whether a chunk lies within a transfer of so many bytes.
func (c *Chunk) within(bytes uint64) bool {
	return c.Offset <= bytes && uint64(c.Bytes) <= bytes-c.Offset
}

// In gives a chunk's part of the memory of its transfer, or nil where it lies beyond.
func (c *Chunk) In(mem []byte) []byte {
	if !c.within(uint64(len(mem))) {
		return nil
	}
	return mem[c.Offset : c.Offset+uint64(c.Bytes)]
}

// ErrProtocol is wrapped by errors of a peer that sends what it may not.
var ErrProtocol = errors.New("the peer broke the protocol of bulk transfers")

// ErrTwice says that bytes of a transfer have come that had come before. What is missing instead would be taken for
// there.
var ErrTwice = fmt.Errorf("%w: bytes of a transfer came twice", ErrProtocol)

// ChunkBytes is the size of chunks that suits a transfer of so many bytes over so many streams.
func ChunkBytes(bytes, streams int) int { return chunkBytes(bytes, streams, minChunk) }

// chunkBytes is the size of chunks for a transfer that goes over so many fallbacks: each gets two, so that all end at
// about the same time.
func chunkBytes(bytes, fallbacks, least int) int {
	chunk := bytes / (2 * max(fallbacks, 1)) &^ (4<<10 - 1)
	return min(max(chunk, least), transport.MaxChunk)
}
