package server

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

// Whoever is invited may connect to a session, without another credential: once by each number, and not any more when a
// later invitation was used.
func TestInvitations(t *testing.T) {
	tokens := serve(t, func(c *Config) { c.Token = []byte("a token of the client's") })
	tokens.token = []byte("a token of the client's")
	for name, s := range map[string]*testServer{"plain": tokens, "TLS": serveTLS(t, nil)} {
		t.Run(name, func(t *testing.T) {
			w, other := s.open(transport.KindCUDA).welcome, s.open(transport.KindCUDA).welcome
			join := func(what string, v transport.Invitation, number int, ok bool) {
				t.Helper()
				h := hello(transport.KindPeer)
				h.Session, h.Count, h.Number, h.Invitation = v.Session, 2, number, &v
				_, err := s.dial(h)
				if ok && err != nil || !ok && !errors.Is(err, transport.ErrToken) {
					t.Errorf("%s: %v", what, err)
				}
			}
			one := transport.Invite(w.Secret, w.Session, 1, 1)
			join("a made-up one", transport.Invite("secret", w.Session, 1, 1), 0, false)
			join("of another session", transport.Invite(other.Secret, w.Session, 1, 1), 0, false)
			join("to no session", transport.Invite(w.Secret, "none", 1, 1), 0, false)
			join("of too many servers", transport.Invite(w.Secret, w.Session, transport.MaxServers, 1), 0, false)
			join("the first", one, 0, true)
			join("the first again", one, 0, false)
			join("the second", one, 1, true)
			join("too many", one, transport.PeerPath+1, false)
			join("another server", transport.Invite(w.Secret, w.Session, 2, 1), 0, true)
			join("the other session's", transport.Invite(other.Secret, other.Session, 1, 1), 0, true)
			join("a later one", transport.Invite(w.Secret, w.Session, 1, 3), 0, true)
			join("one that is over", one, 2, false)
			join("one that is over, never used", transport.Invite(w.Secret, w.Session, 1, 2), 0, false)
			if name == "TLS" { // who is in between shows on a connection of his own what he has seen
				seen, err := one.Token(3, nil)
				if err != nil {
					t.Fatal(err)
				}
				h := hello(transport.KindPeer)
				h.Session, h.Count = w.Session, 2
				to := s.target()
				to.Token = seen
				if _, _, err := transport.DialNet(t.Context(), to, h); !errors.Is(err, transport.ErrToken) {
					t.Errorf("a token of no TLS connection: %v", err)
				}
			}
		})
	}
}

// An invitation is good for nothing but a connection of another server: the server that has it does not become the
// client.
func TestInvitationsAdmitServersAlone(t *testing.T) {
	s := serve(t, func(c *Config) { c.Token = []byte("a token of the client's") })
	s.token = []byte("a token of the client's")
	w := s.open(transport.KindCUDA).welcome
	for epoch, kind := range []string{transport.KindCUDA, transport.KindNVML, transport.KindAdmin, transport.KindBulk} {
		v := transport.Invite(w.Secret, w.Session, 1, uint32(epoch))
		h := hello(kind)
		h.Session, h.Count, h.Invitation = v.Session, 2, &v
		if _, err := s.dial(h); !errors.Is(err, transport.ErrToken) {
			t.Errorf("a connection of kind %s: %v", kind, err)
		}
	}
}

// A session has no more connections being made than those to all other servers that a program can have.
func TestIntroductionsAtOnce(t *testing.T) {
	s := serve(t, func(c *Config) { c.Peers = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	w := s.open(transport.KindCUDA).welcome
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ask := func(number int) error {
		h := hello(transport.KindIntroduce)
		h.Session, h.Secret, h.Purpose, h.Number = w.Session, w.Secret, transport.KindIntroduce, number
		h.Introduction = &transport.Introduction{Server: 1, Epoch: 1, Count: 1, Address: silent.Addr().String(),
			Invitation: transport.Invite("secret", "s1", 0, 1)}
		_, err := s.dial(h)
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	for number := range mostIntroducing {
		all.Go(func() {
			if err := ask(number); !errors.Is(err, transport.ErrCapability) || strings.Contains(err.Error(), "at a time") {
				t.Errorf("introduction %d: %v", number, err)
			}
		})
	}
	for range mostIntroducing {
		c, err := silent.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // before they are waited for
	}
	err = ask(mostIntroducing)
	if !errors.Is(err, transport.ErrCapability) || !strings.Contains(err.Error(), "at a time") {
		t.Errorf("one more: %v", err)
	}
}

// A server connects to another one where it may, as the client says, and tells the client why it does not.
func TestIntroduce(t *testing.T) {
	near := func(c *Config) { c.Peers = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }
	first, second := serve(t, near), serve(t, nil)
	secure := serveTLS(t, nil)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	free.Close()
	w := first.open(transport.KindCUDA).welcome
	number := 0
	ask := func(s *testServer, w *transport.Welcome, to *transport.Introduction) error {
		h := hello(transport.KindIntroduce)
		h.Session, h.Secret, h.Purpose, h.Number = w.Session, w.Secret, transport.KindIntroduce, number
		h.Introduction = to
		number++
		_, err := s.dial(h)
		return err
	}
	to := func(s *testServer, epoch uint32) *transport.Introduction {
		x := s.open(transport.KindCUDA).welcome
		return &transport.Introduction{Server: 1, Epoch: epoch, Count: 2, Address: s.addr,
			Invitation: transport.Invite(x.Secret, x.Session, 0, epoch)}
	}
	if err := ask(first, w, to(second, 1)); err != nil {
		t.Errorf("a server that may be connected to: %v", err)
	}
	pinned := to(secure, 2)
	state := secure.open(transport.KindCUDA).conn.(*transport.TLSConn).State()
	pinned.Fingerprint = certificate.Fingerprint(state.PeerCertificates[0])
	if err := ask(first, w, pinned); err != nil {
		t.Errorf("a server with TLS: %v", err)
	}
	strict := serveTLS(t, near)
	err = ask(strict, strict.open(transport.KindCUDA).welcome, to(second, 1))
	if !errors.Is(err, transport.ErrCapability) || !strings.Contains(err.Error(), "nothing without TLS to 127.0.0.1") {
		t.Errorf("a server without TLS, by one that is always to have it: %v", err)
	}
	for _, c := range []struct {
		what   string
		change func(*transport.Introduction)
		kind   error
		says   string
	}{
		{"an address that is forbidden", func(i *transport.Introduction) { i.Address = "192.0.2.1:14833" },
			transport.ErrCapability, "does not connect to 192.0.2.1 (scuda serve --peers"},
		{"one in the guise of IPv6", func(i *transport.Introduction) { i.Address = "[::ffff:192.0.2.1]:14833" },
			transport.ErrCapability, "does not connect to 192.0.2.1"},
		{"a name", func(i *transport.Introduction) { i.Address = "localhost:14833" }, transport.ErrNotScuda, "address"},
		{"an address at which nobody is", func(i *transport.Introduction) { i.Address = nobody },
			transport.ErrCapability, "cannot connect to the other one"},
		{"a server that is another one", func(i *transport.Introduction) {
			i.Fingerprint = "sha256:" + strings.Repeat("0", 64)
		}, transport.ErrCapability, "cannot connect to the other one"},
		{"no fingerprint", func(i *transport.Introduction) { i.Fingerprint = "none" }, transport.ErrNotScuda, "fingerprint"},
		{"an invitation that is none", func(i *transport.Introduction) { i.Invitation.Key = "key" },
			transport.ErrCapability, "cannot connect to the other one"},
		{"too many connections", func(i *transport.Introduction) { i.Count = transport.MaxBulkConns + 1 },
			transport.ErrNotScuda, "says nothing of the other server"},
		{"no connection", func(i *transport.Introduction) { i.Count = 0 }, transport.ErrNotScuda, "says nothing"},
		{"a server beyond all", func(i *transport.Introduction) { i.Server = transport.MaxServers },
			transport.ErrNotScuda, "says nothing"},
	} {
		i := to(second, 1)
		c.change(i)
		if err := ask(first, w, i); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("220 a banner of another service\r\n"))
			defer c.Close()
		}
	}()
	banner := to(second, 1)
	banner.Address = other.Addr().String()
	if err := ask(first, w, banner); !errors.Is(err, transport.ErrCapability) || strings.Contains(err.Error(), "220") ||
		!strings.Contains(err.Error(), "not a scuda server") {
		t.Errorf("another service: %v", err)
	}
	if err := ask(first, w, nil); err == nil || !strings.Contains(err.Error(), "says nothing of the other server") {
		t.Errorf("nothing: %v", err)
	}
	x := second.open(transport.KindCUDA).welcome
	if err := ask(second, x, to(first, 1)); !errors.Is(err, transport.ErrCapability) {
		t.Errorf("a server that connects to nobody: %v", err)
	}
	stolen := *w
	stolen.Secret = "secret"
	if err := ask(first, &stolen, to(second, 1)); !errors.Is(err, transport.ErrSession) {
		t.Errorf("somebody else's session: %v", err)
	}
	number = 0
	if err := ask(first, w, to(second, 9)); !errors.Is(err, transport.ErrSession) {
		t.Errorf("a ticket that was used: %v", err)
	}
	number = 10_000
	far := to(second, 9) // of a session that has had many
	if err := ask(first, w, far); err != nil {
		t.Errorf("much later: %v", err)
	}
	far.Address = nobody
	for err = nil; err == nil || strings.Contains(err.Error(), "cannot connect"); err = ask(first, w, far) {
		if number > 10_000+introductionsAtOnce {
			break
		}
	}
	if !errors.Is(err, transport.ErrCapability) || !strings.Contains(err.Error(), "too many connections to others") {
		t.Errorf("too often: %v", err)
	}
	old := hello(transport.KindCUDA)
	old.Capabilities = []string{} // of before there were tickets, which would be counted
	opened, err := first.dial(old)
	if err != nil {
		t.Fatal(err)
	}
	h := hello(transport.KindIntroduce)
	h.Session, h.Secret, h.Introduction = opened.welcome.Session, opened.welcome.Secret, to(second, 1)
	if _, err := first.dial(h); !errors.Is(err, transport.ErrSession) {
		t.Errorf("a client without tickets: %v", err)
	}
}
