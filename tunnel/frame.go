package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits of frames.
const (
	headerSize = 8
	maxData    = 64 << 10 // bytes of a frame's payload
	window     = 2 << 20  // bytes of a stream that may be under way; ssh has as many for all together
	maxStreams = 1024     // at once
)

// ErrFrame is a peer that sends what is no frame.
var ErrFrame = errors.New("the other side of the connection sends nonsense")

// Kind says what a frame is.
type Kind uint8

// Kinds of frames. A note and a ping are of no stream.
const (
	KindOpen   Kind = iota + 1 // the near side's: there is a connection
	KindData                   // bytes of it
	KindCredit                 // u32: so many bytes more may be sent
	KindEnd                    // no more data come this way
	KindReset                  // the connection is gone, both ways
	KindPing                   // a sign of life
	KindNote                   // what the sides tell each other beside, as JSON
)

// Header is that of a frame: u32 stream, u8 kind, u24 bytes of payload, little endian.
type Header struct {
	Stream uint32
	Kind   Kind
	Len    int
}

// Append appends the header.
func (h Header) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.Stream)
	return binary.LittleEndian.AppendUint32(b, uint32(h.Kind)|uint32(h.Len)<<8)
}

// ParseHeader reads the first bytes of a frame.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) < headerSize {
		return h, fmt.Errorf("%w: %d bytes of a header", ErrFrame, len(b))
	}
	word := binary.LittleEndian.Uint32(b[4:])
	h = Header{Stream: binary.LittleEndian.Uint32(b), Kind: Kind(word), Len: int(word >> 8)}
	least, most, ofStream := 0, 0, true
	switch h.Kind {
	case KindOpen, KindEnd, KindReset:
	case KindData:
		least, most = 1, maxData
	case KindCredit:
		least, most = 4, 4
	case KindPing:
		ofStream = false
	case KindNote:
		least, most, ofStream = 1, maxData, false
	default:
		return h, fmt.Errorf("%w: kind %d", ErrFrame, h.Kind)
	}
	if h.Len < least || h.Len > most || (h.Stream != 0) != ofStream {
		return h, fmt.Errorf("%w: kind %d of stream %d with %d bytes", ErrFrame, h.Kind, h.Stream, h.Len)
	}
	return h, nil
}
