package executor

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// skip encodes what the client's core says of bytes that are for other servers, as its command number own.
func (c *client) skip(own, bytes uint64) []byte {
	before := c.seq
	b := c.command(transport.CoreThread, wire.OpSkip, 0, wire.Bytes(&wire.Skip{Bytes: bytes}))
	binary.LittleEndian.PutUint64(b[8:], own)
	c.seq = before
	return b
}

// A server of several gets its own part of the client's commands. Where the rest was skipped nothing is missing; the
// skip may stand in the frame of what follows it.
func TestSkip(t *testing.T) {
	c := connect(t)
	for own, bytes := range []uint64{8, 1 << 40} {
		c.must(wire.OpPing, words(0))
		skip := c.skip(uint64(own)+1, bytes)
		c.seq += bytes
		c.write(frame(skip, c.command(0, wire.OpPing, 0, words(0))))
		c.must(wire.OpPing, words(0))
	}
}

func TestWrongSkips(t *testing.T) {
	for name, commands := range map[string]func(c *client) []byte{
		"nothing":    func(c *client) []byte { return c.skip(1, 0) },
		"odd":        func(c *client) []byte { return c.skip(1, 12) },
		"huge":       func(c *client) []byte { return c.skip(1, math.MaxUint64-7) },
		"twice much": func(c *client) []byte { return append(c.skip(1, 1<<62), c.skip(2, 1<<62)...) },
		"of a thread": func(c *client) []byte {
			return c.command(0, wire.OpSkip, 0, wire.Bytes(&wire.Skip{Bytes: 8}))
		},
		"without payload": func(c *client) []byte {
			b := c.command(transport.CoreThread, wire.OpSkip, 0, nil)
			binary.LittleEndian.PutUint64(b[8:], 1)
			return b
		},
		"less than there was": func(c *client) []byte {
			skip := c.skip(1, 8)
			c.seq += 16
			return append(skip, c.command(0, wire.OpPing, 0, words(0))...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			c.must(wire.OpPing, words(0))
			c.write(frame(commands(c)))
			if err := c.wait(); !errors.Is(err, ErrProtocol) {
				t.Fatalf("the session ended with %v", err)
			}
		})
	}
}
