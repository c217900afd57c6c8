package transport

import (
	"encoding/binary"
	"fmt"
)

// Chain ties the messages of a connection to each other: every message carries a number that follows
// from its own header and from the headers of all messages before it. So one that is dropped, doubled, exchanged,
// inserted or changed is noticed no later than at the next one. It is no protection against somebody who means harm;
// TLS is. The zero value is the beginning of a connection.
type Chain struct{ sum uint64 }

// Next gives the number of the next message.
func (c *Chain) Next(h *MessageHeader) uint16 {
	const odd = 0x9e3779b97f4a7c15 // of a multiplication that spreads bits upwards
	s := c.sum + 1
	s = (s ^ uint64(h.Len) ^ uint64(h.Type)<<32) * odd
	s ^= s >> 29
	s = (s ^ uint64(h.ID) ^ uint64(uint32(h.Result))<<32) * odd
	s ^= s >> 29
	s = (s ^ h.Seq) * odd
	s ^= s >> 29
	s = (s ^ h.Aux) * odd
	c.sum = s ^ s>>32
	return uint16(s >> 48)
}

// Check says whether a message that has come is the next one.
func (c *Chain) Check(h *MessageHeader) error {
	if n := c.Next(h); n != h.Flags {
		return &MalformedError{Detail: fmt.Sprintf(
			"%v number %#x, not %#x: something before it is missing or has changed", h.Type, h.Flags, n)}
	}
	return nil
}

// Send numbers a message and sends it.
func (c *Chain) Send(l *Line, h MessageHeader, payload []byte) error {
	h.Len = uint32(len(payload))
	h.Flags = c.Next(&h)
	return l.Send(h, payload)
}

// Number gives the messages in b, whole ones in a row, their numbers where they lie: for those who play a client or a
// server. It stops at what is no message.
func (c *Chain) Number(b []byte) {
	for len(b) >= MessageHeaderSize {
		h, n, err := ParseMessage(b)
		if err != nil {
			return
		}
		binary.LittleEndian.PutUint16(b[6:], c.Next(&h))
		b = b[min(len(b), n+Pad(int(h.Len))):]
	}
}
