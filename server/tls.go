package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"scuda.dev/scuda/transport"
)

// peer is a client's connection while the supervisor has it: a [*net.TCPConn] or a [*transport.TLSConn].
type peer interface {
	net.Conn
	CloseWrite() error
}

var (
	_ peer = (*net.TCPConn)(nil)
	_ peer = (*transport.TLSConn)(nil)
)

// errShake is a TLS handshake that failed. The peer has been told what TLS tells.
var errShake = errors.New("no TLS handshake")

// arrival is a connection that has opened as it should.
type arrival struct {
	peer
	*transport.Hello
	who bearer
	// of a connection of another server: the session whose client invited it, by which invitation, and which it is
	invited    *session
	invitation transport.Invitation
	number     int
}

// meet reads what a connection opens with: the handshake of TLS, if it is one with TLS, and the preface. The peer is
// the connection as it goes on, also where there is an error.
func (s *supervisor) meet(c *net.TCPConn) (a arrival, err error) {
	a.peer = c
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return a, err
	}
	cfg := s.cfg.Tenants.TLS()
	if !transport.OpensTLS(first[0]) {
		if s.wantsTLS(c.RemoteAddr()) {
			return a, refusef(transport.StatusTLS, "this server takes no connections without TLS")
		}
		a.Hello, err = s.admit(&a, io.MultiReader(bytes.NewReader(first[:]), c), nil)
		return a, err
	}
	if cfg == nil {
		return a, refusef(transport.StatusMalformed, "this server has no TLS")
	}
	t, err := transport.ServeTLS(s.stop, c, cfg, first[:])
	if err != nil {
		return a, errors.Join(errShake, err)
	}
	a.peer = t
	state := t.State()
	a.Hello, err = s.admit(&a, t, &state)
	return a, err
}

// admit reads the preface and says whose the connection is.
func (s *supervisor) admit(a *arrival, r io.Reader, state *tls.ConnectionState) (*transport.Hello, error) {
	var over error
	h, err := transport.ReadPrefaceOf(r, func(token []byte) (ok bool) {
		if a.invited, a.invitation, a.number = s.sessions.inviting(token, a.peer); a.invited != nil {
			a.who = a.invited.who
			return true
		}
		a.who, ok, over = s.recognise(token, state)
		return ok
	})
	if err == nil && a.invited != nil && h.Kind != transport.KindPeer {
		err = transport.ErrToken // else a server that a client invites could do whatever the client may
	}
	return h, cmp.Or(over, err)
}

// wantsTLS says whether a connection without TLS is refused to a client of that address, and none made to a server
// there.
func (s *supervisor) wantsTLS(from net.Addr) bool {
	if s.cfg.Tenants.TLS() == nil || s.cfg.Insecure && !s.cfg.TLSAlways {
		return false
	}
	return s.cfg.TLSAlways || !isLoopback(from)
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// sealed is what has to be sent on the socket for the peer to read b.
func sealed(c peer, b []byte) ([]byte, error) {
	if t, ok := c.(*transport.TLSConn); ok {
		return t.Seal(b)
	}
	return b, nil
}

func isTLS(c arrival) bool { return isSecure(c.peer) }

func isSecure(c net.Conn) bool {
	_, ok := c.(*transport.TLSConn)
	return ok
}

// noRDMA says why a client is not offered RDMA.
func (s *supervisor) noRDMA(c arrival) string {
	if isTLS(c) && !s.cfg.TrustedFabric {
		return "the connection has TLS, and RDMA would carry the bytes in clear; the server's --rdma-fabric trusted allows it"
	}
	return s.cfg.noRDMA()
}

// reload reads the tenants again whenever it is asked to, and ends the sessions of those who are none any more.
func (s *supervisor) reload(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cfg.Reload:
		}
		if err := s.cfg.Tenants.Reload(); err != nil {
			s.log.Error("cannot read tenants and certificates again", "error", err)
			continue
		}
		s.log.Info("tenants and certificates were read again")
		s.dropOrphans()
		s.sessions.each(func(x *session) {
			if e := s.withdrawn(x.who); e != nil {
				s.end(x, e)
			}
		})
		s.waiting.review(func(w *waiter) error { return s.refused(w.who) })
	}
}
