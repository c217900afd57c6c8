package rdma

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/ring"
	"scuda.dev/scuda/verbs"
)

// Limits of a path, whatever the peer says.
const (
	MaxSlots = 4096
	maxDepth = 1024
	maxSetup = 16 << 10
)

// header stands in the receiver's ring of headers, at its position modulo the depth.
type header struct {
	position uint64
	slot     uint32 // ring.NoSlot: the bytes lie in the window of the transfer
	chunk    bulk.Chunk
}

// headerBytes is the distance of headers: a cache line. headerSize bytes of it are written.
const (
	headerBytes = 64
	headerSize  = 40
)

var le = binary.LittleEndian

func (h *header) put(b []byte) {
	le.PutUint64(b, h.position)
	le.PutUint64(b[8:], h.chunk.Seq)
	le.PutUint64(b[16:], h.chunk.Offset)
	le.PutUint32(b[24:], h.chunk.ID)
	le.PutUint32(b[28:], h.chunk.Bytes)
	le.PutUint32(b[32:], h.slot)
	flags := uint32(0)
	if h.chunk.More {
		flags = flagMore
	}
	le.PutUint32(b[36:], flags)
}

// flagMore is [bulk.Chunk.More] in a header.
const flagMore = 1

// parseHeader reads the header of the message at position; the immediate value must be the position's low half.
// slotBytes is the size of this side's slots.
func parseHeader(b []byte, position uint64, imm uint32, slotBytes int) (header, error) {
	h := header{position: le.Uint64(b), slot: le.Uint32(b[32:]),
		chunk: bulk.Chunk{
			Seq: le.Uint64(b[8:]), Offset: le.Uint64(b[16:]), ID: le.Uint32(b[24:]), Bytes: le.Uint32(b[28:]),
			More: le.Uint32(b[36:])&flagMore != 0,
		}}
	switch {
	case h.position != position || uint32(position) != imm:
		return h, fmt.Errorf("%w: message %d with immediate value %d where %d was expected", ring.ErrProtocol, h.position,
			imm, position)
	case h.chunk.Bytes == 0 || h.chunk.Bytes > transport.MaxChunk ||
		h.slot != ring.NoSlot && int(h.chunk.Bytes) > slotBytes:
		return h, fmt.Errorf("%w: a chunk of %d bytes in a slot of %d", ring.ErrProtocol, h.chunk.Bytes, slotBytes)
	}
	return h, nil
}

// setup is what a side tells the other about its end of a path.
type setup struct {
	Epoch     uint64
	Device    string
	Endpoint  verbs.Endpoint
	Depth     int
	Headers   memoryKey
	Slots     memoryKey
	SlotBytes int
	SlotCount int
}

// Numbers of queue pairs and packets have 24 bits; the first two queue pairs manage the device.
const (
	firstQPN  = 2
	maxNumber = 1<<24 - 1
)

type memoryKey struct {
	Addr uint64
	Key  uint32
}

func (s *setup) check() error {
	switch {
	case s.Depth < 1 || s.Depth > maxDepth:
		return fmt.Errorf("%w: a depth of %d", ring.ErrProtocol, s.Depth)
	case s.SlotCount < 0 || s.SlotCount > MaxSlots ||
		s.SlotCount > 0 && (s.SlotBytes < 4096 || s.SlotBytes > transport.MaxChunk):
		return fmt.Errorf("%w: %d slots of %d bytes", ring.ErrProtocol, s.SlotCount, s.SlotBytes)
	case s.Endpoint.QPN < firstQPN || s.Endpoint.QPN > maxNumber || s.Endpoint.PSN > maxNumber:
		return fmt.Errorf("%w: queue pair %d, first packet %d", ring.ErrProtocol, s.Endpoint.QPN, s.Endpoint.PSN)
	case s.Endpoint.MTU.Bytes() == 0:
		return fmt.Errorf("%w: MTU number %d", ring.ErrProtocol, s.Endpoint.MTU)
	}
	return nil
}

func parseSetup(b []byte) (*setup, error) {
	s := &setup{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%w: %w", ring.ErrProtocol, err)
	}
	return s, s.check()
}

// window is the payload of a granted window.
type window struct {
	epoch, addr, bytes uint64
	key                uint32
}

const windowBytes = 32

func (w *window) append(b []byte) []byte {
	b = le.AppendUint64(b, w.epoch)
	b = le.AppendUint64(b, w.addr)
	b = le.AppendUint64(b, w.bytes)
	b = le.AppendUint32(b, w.key)
	return le.AppendUint32(b, 0)
}

func parseWindow(b []byte) (window, error) {
	if len(b) != windowBytes {
		return window{}, fmt.Errorf("%w: a window of %d bytes", ring.ErrProtocol, len(b))
	}
	return window{le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint32(b[24:])}, nil
}

func appendSlots(b []byte, slots []uint32) []byte {
	for _, s := range slots {
		b = le.AppendUint32(b, s)
	}
	return b
}

func parseSlots(list []uint32, b []byte) ([]uint32, error) {
	if len(b)%4 != 0 || len(b) > 4*MaxSlots {
		return nil, fmt.Errorf("%w: %d bytes of credits", ring.ErrProtocol, len(b))
	}
	for ; len(b) > 0; b = b[4:] {
		list = append(list, le.Uint32(b))
	}
	return list, nil
}
