package bulktest

import (
	"net"

	"scuda.dev/scuda/transport"
)

// Chained is a bulk connection on which a test writes whole chunks, which get the numbers by which the other side
// knows that they follow each other.
type Chained struct {
	net.Conn
	chain transport.Chain
}

// Write numbers and writes chunks.
func (c *Chained) Write(b []byte) (int, error) {
	c.chain.Number(b)
	return c.Conn.Write(b)
}
