package server

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
)

const fourTenants = threeTenants + "carol token=token-of-carol token=carols-next share=50 class=low " +
	"max-sessions-per-tenant=2 max-vram-per-tenant=64MiB\n"

// Who makes which leases: administrators all, tenants of their own within what they have, and nobody with a lease's
// credential.
func TestWhoMakesLeases(t *testing.T) {
	o := openOffice(t, func(c *Config) { c.StateDir = t.TempDir() })
	o.write(t, fourTenants)
	o.reload <- syscall.SIGHUP
	o.logged("were read again")
	ops, carol := o.administrator("token-of-ops"), o.administrator("token-of-carol")
	const hour = 3600
	whole := admin.LeaseRequest{Seconds: hour}
	first := granted(t, carol, whole)
	if first.Tenant != "carol" || !first.Own || first.Share != 50 || first.Class != lease.Low || !first.Kept {
		t.Errorf("%+v", first)
	}
	under := o.administrator(first.Credential)
	o.token = []byte("token-of-ops")
	gpu := lease.UUID(o.open(transport.KindCUDA).welcome.Devices[0].UUID)
	for _, c := range []struct {
		r    admin.LeaseRequest
		says string // to carol; "": she may
	}{
		{admin.LeaseRequest{Seconds: hour, Tenant: "carol", Label: "ada", Share: 50, Class: "low", Sessions: 2,
			Memory: 64 * config.MiB, GPUs: gpu}, ""},
		{admin.LeaseRequest{Seconds: hour, Share: 51}, "a share of 51; its own is 50"},
		{admin.LeaseRequest{Seconds: hour, Class: "normal"}, "class normal; its own is low"},
		{admin.LeaseRequest{Seconds: hour, Memory: 65 * config.MiB}, "65 MiB of GPU memory; it has 64 MiB"},
		{admin.LeaseRequest{Seconds: hour, Sessions: 3}, "3 sessions; it has 2"},
		{admin.LeaseRequest{Seconds: hour, Tenant: "alice"}, "leases of its own alone"},
		{admin.LeaseRequest{Seconds: hour, Tenant: "nobody"}, "leases of its own alone"},
	} {
		if _, err := under.Grant(t.Context(), &c.r); !errors.Is(err, admin.ErrForbidden) ||
			!strings.Contains(err.Error(), " of tenant carol may not make leases") {
			t.Errorf("with a lease %+v: %v", c.r, err)
		}
		switch _, err := carol.Grant(t.Context(), &c.r); {
		case c.says == "" && err != nil:
			t.Errorf("%+v: %v", c.r, err)
		case c.says != "" && (!errors.Is(err, admin.ErrForbidden) || !strings.Contains(err.Error(), c.says) ||
			!strings.Contains(err.Error(), "an administrator can make it")):
			t.Errorf("%+v: %v, not %q", c.r, err, c.says)
		}
		if c.r.Tenant == "" {
			c.r.Tenant = "carol"
		}
		if g := granted(t, ops, c.r); g.Own {
			t.Errorf("an administrator's: %+v", g)
		}
	}
	if all, err := o.administrator("token-of-bob").Leases(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("bob sees %+v, %v", all, err)
	}
	theirs := granted(t, ops, admin.LeaseRequest{Seconds: 60, Tenant: "carol"})
	if _, err := carol.Renew(t.Context(), theirs.ID, 2*time.Hour); !errors.Is(err, admin.ErrForbidden) ||
		!strings.Contains(err.Error(), "leases that it made with the same credential") {
		t.Errorf("carol prolongs what she did not make: %v", err)
	}
	for _, c := range []*admin.Client{o.administrator("token-of-bob"), under} {
		if _, err := c.Renew(t.Context(), first.ID, 2*time.Hour); err == nil {
			t.Error("others prolong it")
		}
	}
	for _, x := range []struct {
		by    *admin.Client
		id    string
		lasts time.Duration
	}{{carol, first.ID, 2 * time.Hour}, {ops, first.ID, 3 * time.Hour}, {ops, theirs.ID, time.Hour}} {
		l, err := x.by.Renew(t.Context(), x.id, x.lasts)
		if err != nil || l.ID != x.id || time.Until(l.Expires) < x.lasts-time.Minute {
			t.Errorf("%v: %+v, %v", x.lasts, l, err)
		}
	}
	if err := carol.Revoke(t.Context(), first.ID, "done"); err != nil {
		t.Error(err)
	}
}

// GPUs that a tenant does not have are no answer to what it wishes for.
func TestOwnLeasesHaveOwnGPUs(t *testing.T) {
	devices := []string{lease.UUID([16]byte{1}), lease.UUID([16]byte{2})}
	s, who := ownDesk(t, "a token=token-of-a gpus="+devices[0]+" \n")
	s.facts.Store(&readyInfo{Devices: []transport.Device{
		{UUID: [16]byte{1}, Name: "H200"}, {UUID: [16]byte{2}, Name: "H200"},
	}})
	g, err := s.Grant(who, admin.LeaseRequest{Seconds: 60})
	if err != nil || len(g.GPUs) != 1 || g.GPUs[0] != devices[0] {
		t.Errorf("%+v, %v", g, err)
	}
	if g, err = s.Grant(who, admin.LeaseRequest{Seconds: 60, GPUs: "H200"}); err != nil || g.GPUs[0] != devices[0] {
		t.Errorf("%+v, %v", g, err)
	}
	for _, wish := range []string{"2", devices[1], devices[0] + "," + devices[1]} {
		if g, err := s.Grant(who, admin.LeaseRequest{Seconds: 60, GPUs: wish}); !errors.Is(err, lease.ErrTerms) {
			t.Errorf("%s: %+v, %v", wish, g, err)
		}
	}
}

// supervising is a supervisor of these tenants and leases that has no workers.
func supervising(t *testing.T, tenants string, leases *lease.Book) *supervisor {
	t.Helper()
	s := &supervisor{cfg: Config{Tenants: registry(t, tenants), Limits: new(config.Limits)}, leases: leases,
		log: slog.New(slog.DiscardHandler)}
	s.facts.Store(&readyInfo{})
	s.waiting.sessions, s.waiting.metrics = &s.sessions, metrics.NewServer(metrics.Build{}, nil)
	s.sessions.init(0, 0, 0)
	return s
}

// ownDesk is a desk that is asked by the tenant a.
func ownDesk(t *testing.T, tenants string) (desk, admin.Who) {
	t.Helper()
	book, err := lease.Open("")
	if err != nil {
		t.Fatal(err)
	}
	s := supervising(t, tenants, book)
	id, ok := s.cfg.Tenants.Admit([]byte("token-of-a"), nil)
	if !ok {
		t.Fatal("a is nobody")
	}
	return desk{s}, s.role(bearer{Identity: id})
}

// A tenant's own leases are bounded in number, end before its certificate does, and do not make its part of a GPU
// larger; those that administrators make stand for themselves.
func TestOwnLeasesAreBounded(t *testing.T) {
	s, who := ownDesk(t, "a token=token-of-a share=70\n")
	var last *admin.Granted
	for range mostOwn {
		g, err := s.Grant(who, admin.LeaseRequest{Seconds: 60, Share: 30, Class: "low"})
		if err != nil {
			t.Fatal(err)
		}
		last = g
	}
	if _, err := s.Grant(who, admin.LeaseRequest{Seconds: 60}); !errors.Is(err, lease.ErrFull) {
		t.Errorf("one more: %v", err)
	}
	ops := admin.Who{Admin: true}
	theirs, err := s.Grant(ops, admin.LeaseRequest{Tenant: "a", Seconds: 60, Share: 500})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(t.Context(), who, last.ID, ""); err != nil {
		t.Fatal(err)
	}
	who.Until = time.Now().Add(time.Minute)
	if _, err := s.Grant(who, admin.LeaseRequest{Seconds: 61}); !errors.Is(err, admin.ErrBeyond) ||
		!strings.Contains(err.Error(), "longer than the certificate") {
		t.Errorf("beyond the certificate: %v", err)
	}
	own, err := s.Grant(who, admin.LeaseRequest{Seconds: 58, Share: 30, Class: "low"})
	if err != nil {
		t.Fatal(err)
	}
	id := tenant.Identity{Name: "a"}
	for _, c := range []struct {
		lease *admin.Granted
		in    string
		share uint32
	}{{own, "", 70}, {theirs, theirs.ID, 500}} {
		b, rights := s.turnsOf(bearer{id, c.lease.ID}, c.lease.Terms)
		if b.Name != "a" || b.lease != c.in || rights.Share != c.share || rights.Class != c.lease.Class {
			t.Errorf("it takes the turns of %+v with %+v", b, rights)
		}
	}
}

// A lease of a tenant's own making ends with the credential that it was made with, also where that was withdrawn while
// no server ran; those that administrators made go on.
func TestOwnLeasesEndWithTheCredential(t *testing.T) {
	state := t.TempDir()
	o := openOffice(t, func(c *Config) { c.StateDir = state })
	o.write(t, fourTenants)
	o.reload <- syscall.SIGHUP
	o.logged("were read again")
	hour := admin.LeaseRequest{Tenant: "carol", Seconds: 3600}
	own := granted(t, o.administrator("token-of-carol"), hour)
	next, theirs := granted(t, o.administrator("carols-next"), hour), granted(t, o.administrator("token-of-ops"), hour)
	running := o.with(own.Credential)
	o.write(t, strings.Replace(fourTenants, "token=token-of-carol", "", 1))
	o.reload <- syscall.SIGHUP
	_, text, err := running.message()
	if err != nil || !strings.Contains(string(text), "the credential with which it was made was withdrawn") {
		t.Errorf("its session is told %q, %v", text, err)
	}
	if _, err := o.administrator(own.Credential).Sessions(t.Context()); !errors.Is(err, transport.ErrToken) {
		t.Errorf("the lease: %v", err)
	}
	all, err := o.administrator("token-of-ops").Leases(t.Context())
	if err != nil || len(all) != 2 || all[0].ID != next.ID || !all[0].Own || all[1].ID != theirs.ID || all[1].Own {
		t.Errorf("left are %+v, %v", all, err)
	}
	o.stop()
	if err := o.wait(); err != nil {
		t.Fatal(err)
	}
	books, err := filepath.Glob(filepath.Join(state, "leases-*"))
	if err != nil || len(books) != 1 {
		t.Fatal(books, err)
	}
	book, err := lease.Open(books[0])
	if err != nil {
		t.Fatal(err)
	}
	s := supervising(t, threeTenants, book)
	s.dropOrphans()
	if all := book.Leases(); len(all) != 1 || all[0].ID != theirs.ID {
		t.Errorf("after a restart: %+v", all)
	}
}

// What is known of a credential holds as it does itself.
func TestKnownIdentity(t *testing.T) {
	r := registry(t, threeTenants)
	id, _ := r.Admit([]byte("token-of-bob"), nil)
	for _, c := range []struct {
		name, key string
		holds     bool
	}{{"bob", id.Key(), true}, {"alice", id.Key(), false}, {"bob", "", false}, {"bob", tenant.Anyone, false}} {
		if r.Holds(tenant.Known(c.name, c.key)) != c.holds {
			t.Errorf("%+v", c)
		}
	}
	if strings.Contains(id.Key(), "token-of-bob") || !id.Until().IsZero() {
		t.Errorf("%+v", id)
	}
}
