package tlsrecord

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes of records.
const (
	HeaderSize   = 5
	MaxPlaintext = 1 << 14 // bytes of data in a record
	Overhead     = HeaderSize + 1 + tagBytes
	MaxRecord    = HeaderSize + MaxPlaintext + 256 // what the standard lets a peer send

	tagBytes  = 16
	keyLimit  = 1 << 23 // records under one key
	maxUnused = 32      // records that bring nothing, one after the other
)

// ContentType says what a record holds.
type ContentType uint8

// Content types of RFC 8446, section 5.1.
const (
	TypeAlert       ContentType = 21
	TypeHandshake   ContentType = 22
	TypeApplication ContentType = 23
)

// What goes wrong with records. None of them can be mended: the connection is over.
var (
	ErrShort         = errors.New("more bytes needed")
	ErrMalformed     = errors.New("malformed TLS record")
	ErrAuthenticity  = errors.New("a TLS record was changed on its way, or is not the peer's")
	ErrState         = errors.New("unusable state of a TLS connection")
	errTooManyUnused = fmt.Errorf("%w: %d of them bring nothing", ErrMalformed, maxUnused)
)

// AlertError is the peer's reason for ending the connection.
type AlertError uint8

func (e AlertError) Error() string {
	return fmt.Sprintf("the peer ended the TLS connection with alert %d", uint8(e))
}

const (
	alertCloseNotify = 0
	levelWarning     = 1

	messageKeyUpdate = 24
	updateRequested  = 1
)

// sealer protects records that are sent.
type sealer struct {
	half
	limit uint64 // records under one key
}

// begin appends room for a record's header, behind which the caller appends at most [MaxPlaintext] bytes of data.
func begin(b []byte) []byte { return append(b, byte(TypeApplication), 3, 3, 0, 0) }

// seal protects the record that begins at b[at:], whose data stand behind its header.
func (s *sealer) seal(b []byte, at int, t ContentType) []byte {
	b = append(b, byte(t))
	inner := b[at+HeaderSize:]
	binary.BigEndian.PutUint16(b[at+3:], uint16(len(inner)+tagBytes))
	header := b[at : at+HeaderSize]
	out := s.aead.Seal(b[:at+HeaderSize], s.number(), inner, header)
	return out
}

// appendRecord appends a record with data of any kind.
func (s *sealer) appendRecord(b []byte, t ContentType, data []byte) []byte {
	at := len(b)
	return s.seal(append(begin(b), data...), at, t)
}

// appendUpdate appends a KeyUpdate and goes on to the next keys.
func (s *sealer) appendUpdate(b []byte, request byte) ([]byte, error) {
	b = s.appendRecord(b, TypeHandshake, []byte{messageKeyUpdate, 0, 0, 1, request})
	return b, s.update()
}

// opener reads records that came.
type opener struct{ half }

// size gives the bytes of the record at the front of b, [ErrShort] where it is not there as a whole.
func size(b []byte) (int, error) {
	if len(b) < HeaderSize {
		return 0, ErrShort
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	switch {
	case ContentType(b[0]) != TypeApplication || b[1] != 3 || b[2] != 3:
		return 0, fmt.Errorf("%w: header %x", ErrMalformed, b[:HeaderSize])
	case n < 1+tagBytes || n > MaxRecord-HeaderSize:
		return 0, fmt.Errorf("%w: %d bytes", ErrMalformed, n)
	case len(b) < HeaderSize+n:
		return 0, ErrShort
	}
	return HeaderSize + n, nil
}

// parse opens the record at the front of b, which it overwrites; n is its size. The data lie in b. Where into has room
// for data, type and tag, they lie there.
func (o *opener) parse(b, into []byte) (t ContentType, data []byte, n int, err error) {
	if n, err = size(b); err != nil {
		return 0, nil, 0, err
	}
	sealed := b[HeaderSize:n]
	to := sealed[:0]
	if len(into) >= len(sealed)-tagBytes {
		to = into[:0]
	}
	inner, err := o.aead.Open(to, o.number(), sealed, b[:HeaderSize])
	if err != nil {
		return 0, nil, 0, ErrAuthenticity
	}
	last := len(inner) - 1
	for last >= 0 && inner[last] == 0 { // padding
		last--
	}
	switch {
	case last < 0:
		return 0, nil, 0, fmt.Errorf("%w: no content type", ErrMalformed)
	case last > MaxPlaintext:
		return 0, nil, 0, fmt.Errorf("%w: %d bytes of data", ErrMalformed, last)
	}
	return ContentType(inner[last]), inner[:last], n, nil
}
