package resume

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// HeaderSize is how many bytes the header of a record has.
	HeaderSize = 16
	// MaxRecord bounds the bytes of the stream in one record.
	MaxRecord = 1 << 20
)

// Kind is what a record is.
type Kind uint32

// Kinds of records.
const (
	Bytes    Kind = 1 + iota // of the stream
	Received                 // how much was received, and nothing else
	Farewell                 // behind it there is nothing more
)

// Header opens a record: u32 the bytes that follow, u32 its kind, u64 how many bytes its sender has received; little
// endian.
type Header struct {
	Len      int
	Kind     Kind
	Received uint64
}

// ErrProtocol is a peer that does not keep to the account: the stream cannot go on.
var ErrProtocol = errors.New("resume: a violation of the protocol")

// AppendHeader adds h to b.
func AppendHeader(b []byte, h Header) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Len))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Kind))
	return binary.LittleEndian.AppendUint64(b, h.Received)
}

// ParseHeader reads the header at the beginning of b, which has at least [HeaderSize] bytes. Only records of [Bytes]
// may have some.
func ParseHeader(b []byte) (Header, error) {
	h := Header{
		Len: int(binary.LittleEndian.Uint32(b)), Kind: Kind(binary.LittleEndian.Uint32(b[4:])),
		Received: binary.LittleEndian.Uint64(b[8:]),
	}
	least, most := 0, 0
	switch h.Kind {
	case Bytes:
		least, most = 1, MaxRecord
	case Received, Farewell:
	default:
		return Header{}, fmt.Errorf("%w: a record of kind %d", ErrProtocol, h.Kind)
	}
	if h.Len < least || h.Len > most {
		return Header{}, fmt.Errorf("%w: a record of kind %d with %d bytes", ErrProtocol, h.Kind, h.Len)
	}
	return h, nil
}

// Epoch is the number of a stream's present socket; the first is 0.
type Epoch uint32

// Admit goes over to a later socket; one that is not later is refused.
func (e *Epoch) Admit(next Epoch) error {
	if next <= *e {
		return fmt.Errorf("%w: epoch %d comes after %d", ErrProtocol, next, *e)
	}
	*e = next
	return nil
}
