package session

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

// Two servers that have lost each other are left alone, each time twice as long as the time before.
const (
	peerRest     = time.Second
	longPeerRest = 64 * time.Second
)

// peers has a program's servers connect to each other, so that copies between them need not come this way.
//
// Locks: mu guards which pairs there are, and a pair's own what is known of it. Neither is held while servers connect.
type peers struct {
	all *Sessions

	mu    sync.Mutex
	pairs map[[2]int]*pair
}

// pair are two servers. Their connections carry bytes both ways.
type pair struct {
	mu     sync.Mutex
	epoch  uint32        // how many times they were to connect
	up     bool          // they are connected
	never  bool          // they cannot be
	until  time.Time     // they are left alone
	rest   time.Duration // for how long, the last time; 0: they have not lost each other
	trying chan struct{} // they connect; closed when the outcome is known
}

// between gives the pair of two servers.
func (ps *peers) between(one, other int) *pair {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	key := [2]int{min(one, other), max(one, other)}
	p := ps.pairs[key]
	if p == nil {
		if ps.pairs == nil {
			ps.pairs = make(map[[2]int]*pair)
		}
		p = new(pair)
		ps.pairs[key] = p
	}
	return p
}

// Peer has two servers connect to each other, if they are not connected, and gives the epoch of their connections; 0:
// there are none. The first time it waits for the outcome. Later copies do not: whatever has parted the servers may
// have each try take its whole time.
func (ps *peers) Peer(from, to int) uint32 {
	p := ps.between(from, to)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.up && !p.never && p.trying == nil && time.Now().After(p.until) {
		p.trying = make(chan struct{})
		go ps.connect(p, from, to, p.epoch)
	}
	if wait := p.trying; wait != nil && p.rest == 0 {
		p.mu.Unlock()
		<-wait
		p.mu.Lock()
	}
	if !p.up {
		return 0
	}
	return p.epoch
}

// PeerLost says that a copy has not arrived over the connections of an epoch.
func (ps *peers) PeerLost(from, to int, epoch uint32) {
	p := ps.between(from, to)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.up || p.epoch != epoch {
		return
	}
	p.up = false
	p.leaveAlone()
	log := ps.all.Of(from).log
	log.Warn("two servers have lost their connection; copies between them come this way for a while", "from",
		ps.all.Of(from).conn.Remote(), "to", ps.all.Of(to).conn.Remote())
}

// leaveAlone has them not connect for a while. p.mu is held.
func (p *pair) leaveAlone() {
	p.rest = min(max(2*p.rest, peerRest), longPeerRest)
	p.until = time.Now().Add(p.rest)
}

// connect has either of two servers connect to the other, in epochs behind one.
func (ps *peers) connect(p *pair, from, to int, epoch uint32) {
	var errs []error
	for _, way := range [][2]int{{from, to}, {to, from}} {
		dials, listens := ps.all.Of(way[0]), ps.all.Of(way[1])
		epoch++
		err := dials.introduce(listens, way, epoch)
		if err == nil {
			dials.log.Debug("two servers are connected", "from", dials.conn.Remote(), "to", listens.conn.Remote())
			errs = nil
			break
		}
		errs = append(errs, fmt.Errorf("%s to %s: %w", dials.conn.Remote(), listens.conn.Remote(), err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch, p.up = epoch, errs == nil
	close(p.trying)
	p.trying = nil
	if p.up {
		return
	}
	if p.rest > 0 { // they were connected: what has parted them may still be there, and need not stay
		p.leaveAlone()
		ps.all.Of(from).log.Debug("two servers do not connect again yet", "error", errors.Join(errs...))
		return
	}
	p.never = true
	ps.all.Of(from).log.Info("copies between two servers come this way, as neither connects to the other", "error",
		errors.Join(errs...))
}

var errNoPeers = errors.New("it is of a release that does not, or big copies are to have no connections of their own")

// introduce has the session's server connect to that of another session. way are the numbers of the two.
func (s *Session) introduce(to *Session, way [2]int, epoch uint32) error {
	count := min(s.cfg.Bulk, s.dialer.welcome.Bulk, to.dialer.welcome.Bulk, transport.MaxBulkConns)
	for _, w := range []*transport.Welcome{s.dialer.welcome, to.dialer.welcome} {
		if count < 1 || !slices.Contains(w.Capabilities, transport.CapPeers) ||
			!slices.Contains(w.Capabilities, transport.CapTickets) {
			return errNoPeers
		}
	}
	hello := s.dialer.hello(transport.KindIntroduce)
	hello.Number = int(s.introductions.Add(1)) - 1
	hello.Introduction = &transport.Introduction{
		Server: uint32(way[1]), Epoch: epoch, Count: count,
		Address: to.dialer.welcome.Found.Address, Fingerprint: to.dialer.welcome.Found.Fingerprint,
		RDMA:       s.bulk.path.transport != config.TransportTCP && s.dialer.welcome.RDMA && to.dialer.welcome.RDMA,
		Invitation: transport.Invite(to.dialer.welcome.Secret, to.dialer.welcome.Session, uint32(way[0]), epoch),
	}
	c, err := s.dialer.dial(&hello)
	if err != nil {
		return err
	}
	return c.Close()
}
