package liveness

import (
	"crypto/subtle"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"scuda.dev/scuda/api/nccl"
)

// Hub is what the ranks of one id are connected to.
type Hub struct {
	listener net.Listener
	proof    [secretSize]byte
	group    sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn // of all ranks
	lost   []int32    // for those that come later
	closed bool
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
	h := &Hub{listener: l, proof: proof(secret)}
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
	h.conns = append(h.conns, c)
	return true
}

func (h *Hub) leave(c net.Conn) {
	c.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = slices.DeleteFunc(h.conns, func(x net.Conn) bool { return x == c })
}

// serve watches a rank.
func (h *Hub) serve(c net.Conn) {
	defer h.leave(c)
	var join [joinSize]byte
	_ = c.SetDeadline(time.Now().Add(joinTime))
	if _, err := io.ReadFull(c, join[:]); err != nil || subtle.ConstantTimeCompare(join[:secretSize], h.proof[:]) != 1 {
		return // a stranger
	}
	rank := int32(binary.LittleEndian.Uint32(join[secretSize:]))
	_ = c.SetDeadline(time.Time{})
	_ = c.(*net.TCPConn).SetKeepAliveConfig(keepAlive)
	h.mu.Lock()
	for _, x := range h.lost {
		h.say(c, said(saysLost, x))
	}
	h.mu.Unlock()
	letter, _, err := read(c)
	if err == nil && letter == saysDone {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.lost = append(h.lost, rank)
	for _, x := range h.conns {
		h.say(x, said(saysLost, rank))
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
	for _, c := range h.conns {
		if tells {
			h.say(c, said(saysEnd, 0))
		}
		c.Close()
	}
	h.mu.Unlock()
	h.group.Wait()
}
