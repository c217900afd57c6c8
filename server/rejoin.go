package server

import (
	"slices"
	"time"

	"scuda.dev/scuda/transport"
)

// offered are the capabilities of a server.
func (c *Config) offered() []string {
	if c.Grace > 0 {
		return transport.Resuming()
	}
	return transport.Offered()
}

// allowReturn lets a session outlive its connections, if its client can make use of that.
func (x *session) allowReturn(grace time.Duration, h *transport.Hello, w *transport.Welcome) {
	if grace <= 0 || !x.tickets || !slices.Contains(h.Capabilities, transport.CapResume) {
		return
	}
	x.grace, x.epochs = grace, make(map[uint32]uint64)
	w.Capabilities, w.Grace = append(w.Capabilities, transport.CapResume), x.grace
	if slices.Contains(h.Capabilities, transport.CapResumeRDMA) {
		w.Capabilities = append(w.Capabilities, transport.CapResumeRDMA)
	}
}

// follows says whether another socket may take the place of a connection's: each comes once, and none that was made
// before the present one. sessions.mu is held.
func (x *session) follows(h *transport.Hello, ticket int) bool {
	if x.grace == 0 || !transport.IsLine(h.Line) || h.Epoch <= x.epochs[h.Line] ||
		ticket != transport.ResumeNumber(h.Line, h.Epoch) {
		return false
	}
	x.epochs[h.Line] = h.Epoch
	return true
}

// lineOf is which of a session's connections is being opened, or gets another socket. It is 0 for RDMA's control
// connection where that ends with its socket, as with clients of before.
func (x *session) lineOf(h *transport.Hello) uint32 {
	switch h.Kind {
	case transport.KindCallback:
		return transport.LineCallback
	case transport.KindRDMA:
		if x.grace > 0 && slices.Contains(h.Capabilities, transport.CapResumeRDMA) {
			return transport.LineRDMA
		}
	case transport.KindBulk:
		n, _ := transport.TicketNumber(h.Ticket)
		return transport.LineBulk + uint32(n)
	}
	return h.Line // of another socket for one
}
