package liveness

import (
	"crypto/subtle"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"scuda.dev/scuda/api/nccl"
)

// Hub is what the ranks of one id are connected to, and those of its communicator's parts.
type Hub struct {
	listener net.Listener
	proof    [secretSize]byte
	group    sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]*seat // nil: it has not proved yet that it knows the secret
	lost   map[uint64][]int32 // by group, for those that come later
	losses int                // how many these are, mostJoin at most
	closed bool
}

// seat is what a connection is known by.
type seat struct {
	group uint64
	rank  int32
}

// Listen begins a hub for an id that NCCL has just made, and writes into the id where it is.
func Listen(id *nccl.ID) (*Hub, error) {
	at, err := address(id)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		return nil, err
	}
	secret := newSecret()
	h := &Hub{listener: l, proof: proof(secret), conns: map[net.Conn]*seat{}, lost: map[uint64][]int32{}}
	if err := seal(id, uint16(l.Addr().(*net.TCPAddr).Port), secret[:]); err != nil {
		l.Close()
		return nil, err
	}
	h.group.Go(h.accept)
	return h, nil
}

func (h *Hub) accept() {
	for {
		c, err := h.listener.Accept()
		if err != nil {
			return
		}
		if h.enter(c) {
			h.group.Go(func() { h.serve(c) })
		}
	}
}

// enter keeps a connection, so that Close ends it; false: there is no room, or the hub ends.
func (h *Hub) enter(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.conns) == mostJoin {
		c.Close()
		return false
	}
	h.conns[c] = nil
	return true
}

func (h *Hub) leave(c net.Conn) {
	c.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
}

// serve watches a rank.
func (h *Hub) serve(c net.Conn) {
	defer h.leave(c)
	var join [joinSize]byte
	_ = c.SetDeadline(time.Now().Add(joinTime))
	if _, err := io.ReadFull(c, join[:]); err != nil || subtle.ConstantTimeCompare(join[:secretSize], h.proof[:]) != 1 {
		return // a stranger
	}
	s := seat{binary.LittleEndian.Uint64(join[secretSize:]), int32(binary.LittleEndian.Uint32(join[secretSize+8:]))}
	_ = c.SetDeadline(time.Time{})
	_ = c.(*net.TCPConn).SetKeepAliveConfig(keepAlive)
	h.seat(c, s)
	if letter, _, err := read(c); err != nil || letter != saysDone {
		h.lose(c, s)
	}
}

// seat gives a connection its seat, and tells it who was lost before.
func (h *Hub) seat(c net.Conn, s seat) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.conns[c] = &s
	for _, rank := range h.lost[s.group] {
		h.say(c, said(saysLost, rank))
	}
}

// lose tells a group that one of its ranks was lost.
func (h *Hub) lose(c net.Conn, s seat) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if h.losses < mostJoin { // a rank could come and go for ever
		h.lost[s.group] = append(h.lost[s.group], s.rank)
		h.losses++
	}
	for x, other := range h.conns {
		if x != c && other != nil && other.group == s.group {
			h.say(x, said(saysLost, s.rank))
		}
	}
}

// say tells one rank something, with mu held. These are a few bytes, for which a socket has room, so the time is for a
// machine that has much else to do.
func (*Hub) say(c net.Conn, b []byte) {
	_ = c.SetWriteDeadline(time.Now().Add(joinTime))
	_, _ = c.Write(b)
}

// Close ends the hub as it should end: the ranks are told that nobody watches them any more.
func (h *Hub) Close() { h.end(true) }

// Drop ends the hub as a process that dies ends it: its rank is taken for lost.
func (h *Hub) Drop() { h.end(false) }

func (h *Hub) end(tells bool) {
	h.listener.Close()
	h.mu.Lock()
	h.closed = true
	for c := range h.conns {
		if tells {
			h.say(c, said(saysEnd, 0))
		}
		c.Close()
	}
	h.mu.Unlock()
	h.group.Wait()
}
