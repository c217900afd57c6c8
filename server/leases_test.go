package server

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport"
)

// inBook are leases that a server finds in its state folder.
func inBook(t *testing.T, c *Config, make func(*lease.Book)) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	c.Listener, c.StateDir = l, t.TempDir()
	b, err := openLeases(c)
	if err != nil {
		t.Fatal(err)
	}
	make(b)
}

// A lease's credential opens sessions of its tenant within its terms, and of nobody else.
func TestSessionsOfLeases(t *testing.T) {
	var credential, other, over string
	var l lease.Lease
	s := serve(t, func(c *Config) {
		c.Tenants = registry(t, "alice token=alice-token max-vram=32MiB\n")
		c.Metrics = "127.0.0.1:0"
		inBook(t, c, func(b *lease.Book) {
			terms := lease.Usual()
			terms.Memory, terms.Sessions = 8*config.MiB, 1
			var err, err2, err3 error
			l, credential, err = b.Grant(lease.Lease{Tenant: "alice", Label: "job 7", Terms: terms}, time.Hour)
			_, other, err2 = b.Grant(lease.Lease{Tenant: "bob", Terms: lease.Usual()}, time.Hour)
			ended, text, _ := b.Grant(lease.Lease{Tenant: "bob", Terms: lease.Usual()}, time.Hour)
			over = text
			_, err3 = b.Revoke(ended.ID, "the job is over")
			if err := errors.Join(err, err2, err3); err != nil {
				t.Fatal(err)
			}
		})
	})
	s.token = []byte(credential)
	x := s.open(transport.KindCUDA)
	if w := x.welcome; w.Tenant != "alice" || w.Devices[0].TotalMem != 8<<20 {
		t.Errorf("the client is told of %s with %d bytes", w.Tenant, w.Devices[0].TotalMem)
	}
	s.open(transport.KindNVML)
	if _, err := s.dial(hello(transport.KindCUDA)); !errors.Is(err, transport.ErrBusy) ||
		!strings.Contains(err.Error(), "lease "+l.ID+" has 1 CUDA sessions, which is what its --sessions allows") {
		t.Errorf("a second session: %v", err)
	}
	s.token = []byte("alice-token")
	if w := s.open(transport.KindCUDA).welcome; w.Tenant != "alice" || w.Devices[0].TotalMem != 32<<20 {
		t.Errorf("without a lease, the client is told of %s with %d bytes", w.Tenant, w.Devices[0].TotalMem)
	}
	s.token = []byte(other)
	if w := s.open(transport.KindCUDA).welcome; w.Tenant != "bob" || w.Devices[0].TotalMem != 64<<20 {
		t.Errorf("of another lease, the client is told of %s with %d bytes", w.Tenant, w.Devices[0].TotalMem)
	}
	s.token = []byte(over)
	_, err := s.dial(hello(transport.KindCUDA))
	if !errors.Is(err, transport.ErrToken) || !strings.Contains(err.Error(), "of tenant bob was revoked at ") ||
		!strings.HasSuffix(err.Error(), "the job is over; ask who gave it to you for another one (scuda lease create)") {
		t.Errorf("a lease that is over: %v", err)
	}
	for _, wrong := range []string{credential[:len(credential)-1], l.ID, "scuda-lease-"} {
		s.token = []byte(wrong)
		_, err := s.dial(hello(transport.KindInfo))
		if !errors.Is(err, transport.ErrToken) || strings.Contains(err.Error(), l.ID[:6]) ||
			!strings.Contains(err.Error(), ": wrong token; run scuda login ") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	s.shows(`scuda_tenant_sessions{tenant="alice"} 3`)
	s.shows(`scuda_leases{tenant="alice"} 1`)
	s.shows(`scuda_leases{tenant="bob"} 1`)
}

// Further connections of a session come with the credential of its lease.
func TestJoinsOfLeases(t *testing.T) {
	var credential string
	s := serve(t, func(c *Config) {
		c.Token = []byte("of the file")
		inBook(t, c, func(b *lease.Book) {
			var err error
			if _, credential, err = b.Grant(lease.Lease{Tenant: "default", Terms: lease.Usual()}, time.Hour); err != nil {
				t.Fatal(err)
			}
		})
	})
	s.token = []byte(credential)
	x := s.open(transport.KindCUDA)
	join := func(token string) error {
		s.token = []byte(token)
		h := hello(transport.KindCallback)
		h.Session, h.Secret, h.Purpose = x.welcome.Session, x.welcome.Secret, transport.KindCallback
		_, err := s.dial(h)
		return err
	}
	if err := join("of the file"); !errors.Is(err, transport.ErrSession) {
		t.Errorf("with the tenant's own token: %v", err)
	}
	if err := join(credential); err != nil {
		t.Errorf("with the lease's: %v", err)
	}
}

// A damaged book is no book: the server says where it is wrong, and does not serve.
func TestDamagedBook(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Listener: l, GPU: "sim", SimMemory: 64 << 20, CacheDir: "none", SameUser: true, StateDir: t.TempDir()}
	path := bookPath(&cfg)
	if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), cfg); !errors.Is(err, lease.ErrFile) || !strings.Contains(err.Error(), path+": ") {
		t.Errorf("%v", err)
	}
}
