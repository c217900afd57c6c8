package liveness

import (
	"encoding/binary"
	"net"
	"sync"
)

// Unknown is the rank of whom nobody knows which it is: the connection to the hub ended.
const Unknown int32 = -1

// Member is a rank that is watched.
type Member struct {
	conn net.Conn
	rank int32
	done sync.WaitGroup

	mu   sync.Mutex
	left bool
}

// Join has a rank be watched. When another one of that place is lost, lost is called with its rank, on a goroutine of
// the member's, once. It takes 5 s at most.
func Join(p Place, rank int32, lost func(rank int32)) (*Member, error) {
	d := net.Dialer{Timeout: joinTime, KeepAliveConfig: keepAlive}
	c, err := d.Dial("tcp", p.at.String())
	if err != nil {
		return nil, err
	}
	join := proof(p.secret)
	hello := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(join[:], p.group), uint32(rank))
	if _, err := c.Write(hello); err != nil {
		c.Close()
		return nil, err
	}
	m := &Member{conn: c, rank: rank}
	m.done.Go(func() { m.watch(lost) })
	return m, nil
}

func (m *Member) watch(lost func(int32)) {
	letter, rank, err := read(m.conn)
	m.mu.Lock()
	left := m.left
	m.mu.Unlock()
	switch {
	case left || err == nil && letter == saysEnd:
	case err != nil:
		lost(Unknown)
	case letter == saysLost:
		lost(rank)
	}
}

func (m *Member) end() (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, m.left = !m.left, true
	return first
}

// Leave says that the rank's communicator has ended as it should. It may be called from lost.
func (m *Member) Leave() {
	if m.end() {
		_, _ = m.conn.Write(said(saysDone, m.rank))
		m.conn.Close()
	}
}

// Drop ends the connection as a process that dies does.
func (m *Member) Drop() {
	if m.end() {
		m.conn.Close()
	}
}

// Wait waits until lost is not called any more, behind Leave or Drop.
func (m *Member) Wait() { m.done.Wait() }
