package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

// mostIntroducing is how many of these at a time: a client has as many other servers, and asks once for each pair.
const mostIntroducing = transport.MaxServers - 1

// introduceTimeout bounds the opening of connections to another server.
const introduceTimeout = 10 * time.Second

// peerUse is which connections of an invitation have come. Those of earlier epochs are not taken any more.
type peerUse struct {
	Epoch uint32 `json:"e"`
	Come  uint32 `json:"c"` // one bit each
}

// inviting gives the session whose client has invited the server that shows this token, and uses the token up; nil:
// nobody has.
func (s *sessions) inviting(token []byte, c net.Conn) (*session, transport.Invitation, int) {
	v, ticket, ok := transport.ParseInvited(token)
	if !ok {
		return nil, v, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byID[v.Session]
	if x == nil || x.nvml || x.secure != isSecure(c) || v.Server >= transport.MaxServers {
		return nil, v, 0
	}
	v = transport.Invite(x.secret, x.id, v.Server, v.Epoch)
	n, ok := v.Admits(ticket, c)
	use := x.peers[v.Server]
	if !ok || use != (peerUse{}) && v.Epoch < use.Epoch || v.Epoch == use.Epoch && use.Come>>n&1 != 0 {
		return nil, v, 0
	}
	if v.Epoch > use.Epoch {
		use = peerUse{Epoch: v.Epoch}
	}
	use.Come |= 1 << n
	x.peers[v.Server] = use
	x.permitted()
	return x, v, n
}

// joinPeer hands a connection of another server to the worker of the session that invited it.
func joinPeer(s *supervisor, c arrival) error {
	if c.invited == nil {
		return refusef(transport.StatusToken, "nobody has invited this server")
	}
	info := executor.Peering{Server: c.invitation.Server, Epoch: c.invitation.Epoch, Count: c.Count,
		Path: c.number == transport.PeerPath}
	if no := s.noRDMA(c); info.Path && no != "" {
		return refusef(transport.StatusCapability, "this server has no RDMA for this one: %s", no)
	}
	if err := sendWelcome(c, greeting(c.Hello)); err != nil {
		return nil // the other server has given up
	}
	_ = c.SetDeadline(time.Time{})
	if err := passPeer(c, c.invited, info); err != nil {
		s.log.Warn("cannot pass on a connection", "kind", c.Kind, "session", c.invited.id, "error", err)
	}
	return nil
}

// passPeer hands a connection to a session's worker.
func passPeer(c arrival, x *session, what executor.Peering) error {
	state, err := transport.Export(c.peer)
	if err != nil {
		return err
	}
	return passOn(c, x.proc, msgPeer, peerInfo{what, state})
}

// introduce connects to another server of a client's, and hands the connections to the worker of its session.
func introduce(s *supervisor, c arrival) error {
	x := s.sessions.find(c)
	if x == nil {
		return s.sessions.endOf(c)
	}
	to := c.Introduction
	if to == nil || to.Count < 1 || to.Count > transport.MaxBulkConns || to.Server >= transport.MaxServers {
		return refusef(transport.StatusMalformed, "an introduction that says nothing of the other server")
	}
	at, err := mayConnect(s.cfg.Peers, to.Address)
	if err != nil {
		return err
	}
	target := transport.Target{Address: at.String()}
	if to.Fingerprint != "" {
		fingerprint, err := certificate.ParseFingerprint(to.Fingerprint)
		if err != nil {
			return refusef(transport.StatusMalformed, "%w", err)
		}
		target.TLS = certificate.Pinned(fingerprint)
	}
	if target.TLS == nil && s.wantsTLS(net.TCPAddrFromAddrPort(at)) {
		return refusef(transport.StatusCapability,
			"this server sends nothing without TLS to %v, as it takes nothing without TLS from there", at.Addr())
	}
	if !s.sessions.mayIntroduce(x) {
		return refusef(transport.StatusCapability, "this server has been asked for too many connections to others; "+
			"there may be %d more in a minute", introductionsPerMinute)
	}
	defer x.meeting.Add(-1)
	if x.meeting.Add(1) > mostIntroducing {
		return refusef(transport.StatusCapability, "this server makes connections to %d others at a time", mostIntroducing)
	}
	all, err := connectPeers(s, target, to)
	if errors.Is(err, transport.ErrNotScuda) { // what another service says is not for the client
		s.log.Debug("what a client calls another server is none", "peer", c.peer.RemoteAddr(), "error", err)
		err = transport.ErrNotScuda
	}
	if err != nil {
		return refusef(transport.StatusCapability, "this server cannot connect to the other one: %w", err)
	}
	for i, conn := range all {
		info := executor.Peering{Server: to.Server, Epoch: to.Epoch, Count: to.Count, Path: i == to.Count, Dial: true}
		if err == nil { // else the worker has ended
			err = passPeer(arrival{peer: conn.(peer)}, x, info)
		}
		conn.Close()
	}
	if err != nil {
		return refusef(transport.StatusFailed, "%w", err)
	}
	w := greeting(c.Hello)
	w.Session = x.id
	_ = sendWelcome(c, w) // without it the client does not use them
	return nil
}

// mayConnect says where another server is, if this one may connect to it, as it may in these networks.
func mayConnect(peers []netip.Prefix, address string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return at, refusef(transport.StatusMalformed, "the address of the other server: %w", err)
	}
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if !slices.ContainsFunc(peers, func(p netip.Prefix) bool { return p.Contains(at.Addr()) }) {
		return at, refusef(transport.StatusCapability,
			"this server does not connect to %v (scuda serve --peers says to which networks it may)", at.Addr())
	}
	return at, nil
}

// connectPeers opens all connections, or none; behind them the control connection of RDMA, where that can be had.
func connectPeers(s *supervisor, target transport.Target, to *transport.Introduction) ([]net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.stop, introduceTimeout)
	defer cancel()
	hello := transport.Hello{Kind: transport.KindPeer, Session: to.Invitation.Session, Count: to.Count,
		Invitation: &to.Invitation}
	all, errs := make([]net.Conn, to.Count+1), make([]error, to.Count)
	var wg sync.WaitGroup
	for i := range errs {
		one := hello
		one.Number = i
		wg.Go(func() { all[i], _, errs[i] = transport.DialNet(ctx, target, &one) })
	}
	if to.RDMA && s.cfg.noRDMA() == "" && (target.TLS == nil || s.cfg.TrustedFabric) {
		hello.Number = transport.PeerPath
		wg.Go(func() {
			c, _, err := transport.DialNet(ctx, target, &hello)
			if err != nil {
				s.log.Debug("no RDMA with another server", "error", err)
			}
			all[to.Count] = c
		})
	}
	wg.Wait()
	all = slices.DeleteFunc(all, func(c net.Conn) bool { return c == nil })
	err := cmp.Or(errs...)
	if err != nil {
		for _, c := range all {
			c.Close()
		}
	}
	return all, err
}
