package server

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

const threeTenants = "ops token=token-of-ops role=admin\nalice token=token-of-alice max-sessions-per-tenant=3\n" +
	"bob token=token-of-bob\n"

// office is a server with TLS whose tenants file can change.
type office struct {
	*testServer
	file   string
	reload chan os.Signal
}

func openOffice(t *testing.T, change func(*Config)) *office {
	t.Helper()
	folder := t.TempDir()
	o := &office{file: filepath.Join(folder, "tenants"), reload: make(chan os.Signal)}
	o.write(t, threeTenants)
	cert, err := certificate.Keep(folder)
	if err != nil {
		t.Fatal(err)
	}
	tenants, err := tenant.Read(tenant.Files{Tenants: o.file, Key: filepath.Join(folder, certificate.KeyFile),
		Certificate: filepath.Join(folder, certificate.ServerFile)})
	if err != nil {
		t.Fatal(err)
	}
	o.testServer = serve(t, func(c *Config) {
		c.Tenants, c.TLSAlways, c.Reload = tenants, true, o.reload
		if change != nil {
			change(c)
		}
	})
	o.tls = certificate.Pinned(certificate.Fingerprint(cert.Leaf))
	return o
}

func (o *office) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(o.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// administrator gives a client of the admin interface that shows a token.
func (s *testServer) administrator(token string) *admin.Client {
	s.t.Helper()
	c, err := admin.Over(transport.Target{Address: s.addr, Token: []byte(token), TLS: s.tls}, "test")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// with opens a session that shows a token.
func (s *testServer) with(token string) *link {
	s.t.Helper()
	s.token = []byte(token)
	return s.open(transport.KindCUDA)
}

// Over the network tenants see and end what is theirs, leases what is of them, and administrators everything.
func TestAdminOverTLS(t *testing.T) {
	o := openOffice(t, func(c *Config) { c.Metrics, c.StateDir = "127.0.0.1:0", t.TempDir() })
	ops, alice, bob := o.administrator("token-of-ops"), o.administrator("token-of-alice"), o.administrator("token-of-bob")
	ctx := t.Context()
	g := granted(t, ops, admin.LeaseRequest{Tenant: "alice", Label: "job", Seconds: 3600, Sessions: 2})
	job := o.administrator(g.Credential)
	a, b, under := o.with("token-of-alice"), o.with("token-of-bob"), o.with(g.Credential)
	o.token = []byte("token-of-alice")
	o.open(transport.KindNVML)

	for _, c := range []struct {
		name, role   string
		who          *admin.Client
		ids          []*link
		nvml, leases int
		limit        int
	}{
		{"ops", admin.RoleAdmin, ops, []*link{a, b, under}, 1, 1, 0},
		{"alice", admin.RoleTenant, alice, []*link{a, under}, 1, 1, 3},
		{"bob", admin.RoleTenant, bob, []*link{b}, 0, 0, 0}, {"alice", admin.RoleLease, job, []*link{under}, 0, 1, 2},
	} {
		seen := map[string]bool{}
		for _, x := range list(t, c.who, len(c.ids)+c.nvml) {
			seen[x.ID] = true
			if !x.TLS || (x.Worker != 0) != (c.role == admin.RoleAdmin) {
				t.Errorf("%s as %s sees %+v", c.name, c.role, x)
			}
		}
		for _, l := range c.ids {
			if !seen[l.welcome.Session] {
				t.Errorf("%s as %s does not see %s", c.name, c.role, l.welcome.Session)
			}
		}
		st, err := c.who.Status(ctx)
		if err != nil || st.CUDA != (admin.Places{Taken: len(c.ids), Limit: c.limit}) || st.NVML.Taken != c.nvml ||
			st.Tenant != c.name || st.Role != c.role || (st.PID != 0) != (c.role == admin.RoleAdmin) || st.Waiting != 0 {
			t.Errorf("%s as %s: %+v, %v", c.name, c.role, st, err)
		}
		if all, err := c.who.Leases(ctx); err != nil || len(all) != c.leases {
			t.Errorf("%s as %s has the leases %+v, %v", c.name, c.role, all, err)
		}
	}

	for _, c := range []struct {
		who    *admin.Client
		of     *link
		exists bool
	}{{bob, a, false}, {job, a, false}, {bob, under, false}, {job, b, false}} {
		if err := c.who.End(ctx, c.of.welcome.Session, "mine"); !errors.Is(err, admin.ErrNoSession) {
			t.Errorf("the end of another's session: %v", err)
		}
		if !c.of.alive() {
			t.Error("another's session has ended")
		}
	}
	for _, who := range []*admin.Client{bob, alice, job} {
		if _, err := who.Drain(ctx, true); !errors.Is(err, admin.ErrForbidden) ||
			!strings.Contains(err.Error(), " may not drain") {
			t.Errorf("drain: %v", err)
		}
		if _, err := who.Grant(ctx, &admin.LeaseRequest{Tenant: "ops", Seconds: 60}); !errors.Is(err, admin.ErrForbidden) {
			t.Errorf("a lease: %v", err)
		}
	}
	for _, reason := range []string{"", "a reason that cannot be printed \a"} {
		own, none := bob.Revoke(ctx, g.ID, reason), bob.Revoke(ctx, "0123456789abcdef", reason)
		if !errors.Is(own, lease.ErrNone) || !errors.Is(none, lease.ErrNone) ||
			strings.ReplaceAll(own.Error(), g.ID, "0123456789abcdef") != none.Error() {
			t.Errorf("of another's lease: %v; of none: %v", own, none)
		}
	}

	if err := alice.End(ctx, a.welcome.Session, "enough"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.message(); err != nil || len(a.notices) != 1 ||
		a.notices[0] != "tenant alice ends this session: enough" {
		t.Errorf("it was told %q, %v", a.notices, err)
	}
	if err := job.End(ctx, under.welcome.Session, ""); err != nil {
		t.Fatal(err)
	}
	if err := ops.End(ctx, b.welcome.Session, ""); err != nil {
		t.Fatal(err)
	}
	o.logged(`msg="admin request" request="POST /v1/sessions/{id}/end" id=` + a.welcome.Session +
		` who="tenant alice" from=127.0.0.1:`)
	o.logged(`who="lease ` + g.ID + ` of tenant alice"`)
	o.shows(`scuda_admin_requests_total{code="200",request="POST /v1/sessions/{id}/end",role="lease"} 1`)

	for _, c := range []struct {
		who  *admin.Client
		keys string
	}{{ops, "alice bob"}, {alice, "alice"}, {bob, "bob"}} {
		u, err := c.who.Usage(ctx, time.Time{}, "tenant")
		got := []string{}
		for _, s := range u.Sums {
			got = append(got, s.Key)
		}
		if err != nil || len(got) != len(strings.Fields(c.keys)) || !strings.Contains(c.keys, got[0]) {
			t.Errorf("usage of %q instead of %s, %v", got, c.keys, err)
		}
	}
	u, err := job.Usage(ctx, time.Time{}, "session")
	if err != nil || len(u.Sums) != 1 || u.Sums[0].Key != under.welcome.Session {
		t.Errorf("the lease's usage is %+v, %v", u, err)
	}
	if err := alice.Revoke(ctx, g.ID, "done"); err != nil {
		t.Errorf("of the own lease: %v", err)
	}
	if _, err := job.Sessions(ctx); !errors.Is(err, admin.ErrForbidden) ||
		!strings.Contains(err.Error(), "was revoked at") {
		t.Errorf("with a lease that is over: %v", err)
	}
	if _, err := ops.Drain(ctx, true); err != nil {
		t.Error(err)
	}
}

// What changes in the tenants file counts for connections that are open.
func TestRolesAreReadAgain(t *testing.T) {
	o := openOffice(t, nil)
	ops, alice := o.administrator("token-of-ops"), o.administrator("token-of-alice")
	ctx := t.Context()
	drains := func(c *admin.Client) error {
		_, err := c.Drain(ctx, false)
		return err
	}
	if err := errors.Join(drains(ops)); err != nil || !errors.Is(drains(alice), admin.ErrForbidden) {
		t.Fatalf("before: %v", err)
	}
	o.write(t, "alice token=token-of-alice role=admin\nbob token=token-of-bob\n")
	o.reload <- os.Interrupt
	o.until("alice is an administrator", func() bool { return drains(alice) == nil })
	if _, err := ops.Sessions(ctx); !errors.Is(err, admin.ErrForbidden) && !errors.Is(err, transport.ErrToken) {
		t.Errorf("whose credential was withdrawn: %v", err)
	}
	o.write(t, "ops token=token-of-ops role=admin\nalice token=token-of-alice\n")
	o.reload <- os.Interrupt
	o.until("alice is none any more", func() bool { return errors.Is(drains(alice), admin.ErrForbidden) })
}

// Who has not shown a credential reaches nothing of HTTP, and bytes that are none cost an answer and the connection.
func TestHostileAdministrators(t *testing.T) {
	o := openOffice(t, nil)
	for name, text := range map[string]string{
		"HTTP without a preface": "GET /v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n",
		"HTTP/2":                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		for _, cfg := range []*tls.Config{o.tls, nil} {
			c, err := net.Dial("tcp", o.addr)
			if err != nil {
				t.Fatal(err)
			}
			if cfg != nil {
				c = tls.Client(c, cfg)
			}
			_, _ = io.WriteString(c, text)
			_ = c.SetReadDeadline(time.Now().Add(patience))
			got, _ := io.ReadAll(c)
			if strings.Contains(string(got), "HTTP/1") || strings.Contains(string(got), "sessions\":[") {
				t.Errorf("%s: %q", name, got)
			}
			c.Close()
		}
	}
	o.token = []byte("wrong")
	if _, err := o.dial(hello(transport.KindAdmin)); !errors.Is(err, transport.ErrToken) {
		t.Errorf("with a wrong token: %v", err)
	}
	known := o.tls
	o.tls, o.token = nil, []byte("token-of-ops")
	if _, err := o.dial(hello(transport.KindAdmin)); !errors.Is(err, transport.ErrTLS) {
		t.Errorf("without TLS, where it is asked for: %v", err)
	}
	o.tls, o.token = known, []byte("token-of-bob")
	const drain = "PUT /v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n{\"on\":true}"
	const server = "GET /v1/server HTTP/1.1\r\nHost: x\r\n"
	for name, c := range map[string]struct {
		text  string
		codes []int
	}{
		"noise":         {"\x00\x01\x02\r\n\r\n", []int{400}},
		"long headers":  {server + "A: " + strings.Repeat("b", 64<<10) + "\r\n\r\n", []int{431}},
		"HTTP/2":        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{400}},
		"two lengths":   {strings.Replace(drain, "\r\n", "\r\nContent-Length: 3\r\n", 1), []int{400}},
		"no host":       {"GET /v1/server HTTP/1.1\r\n\r\n", []int{400}},
		"an upgrade":    {server + "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", []int{200}},
		"a tunnel":      {"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n", []int{404}},
		"another place": {"GET http://192.0.2.1/ HTTP/1.1\r\nHost: x\r\n\r\n", []int{404}},
		"in a row":      {strings.Repeat(drain, 3) + server + "\r\n", []int{403, 403, 403, 200}},
		"a frame":       {string(command(1, 0, make([]byte, 8))) + "\r\n\r\n", []int{400}},
	} {
		l := o.open(transport.KindAdmin)
		_, _ = io.WriteString(l.conn, c.text)
		_ = l.conn.SetReadDeadline(time.Now().Add(patience))
		r := bufio.NewReader(l.conn)
		for _, code := range c.codes {
			got, err := http.ReadResponse(r, nil)
			if err != nil || got.StatusCode != code {
				t.Errorf("%s: %v, %v", name, got, err)
				break
			}
			_, _ = io.Copy(io.Discard, got.Body)
			got.Body.Close()
		}
		l.conn.Close()
	}
	if st, err := o.administrator("token-of-ops").Status(t.Context()); err != nil || st.Draining {
		t.Errorf("%+v, %v", st, err)
	}
}

// A tenant has so many connections; then it is told so, and administrators still come in.
func TestManyAdministrators(t *testing.T) {
	o := openOffice(t, nil)
	o.token = []byte("token-of-bob")
	var err error
	n := 0
	for ; n < 100 && err == nil; n++ {
		_, err = o.dial(hello(transport.KindAdmin))
	}
	if !errors.Is(err, transport.ErrBusy) || n > 20 {
		t.Errorf("connection %d: %v", n, err)
	}
	for _, token := range []string{"token-of-alice", "token-of-ops"} {
		if _, err := o.administrator(token).Sessions(t.Context()); err != nil {
			t.Errorf("%s: %v", token, err)
		}
	}
}

// Without TLS only this machine is answered.
func TestPrivate(t *testing.T) {
	for _, c := range []struct {
		secure bool
		from   string
		ok     bool
	}{
		{true, "192.0.2.1", true}, {false, "127.0.0.1", true}, {false, "::1", true}, {false, "192.0.2.1", false},
		{false, "10.0.0.1", false}, {false, "::ffff:192.0.2.1", false},
	} {
		err := private(c.secure, &net.TCPAddr{IP: net.ParseIP(c.from)})
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "without TLS") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// on loopback, whoever comes to a server that asks for nothing is anyone, and anyone is no administrator
	s := serve(t, nil)
	c := s.administrator("")
	s.open(transport.KindCUDA)
	list(t, c, 1)
	if _, err := c.Drain(t.Context(), true); !errors.Is(err, admin.ErrForbidden) {
		t.Errorf("drain: %v", err)
	}
	_, err := admin.Over(transport.Target{Address: "192.0.2.1"}, "")
	if !errors.Is(err, transport.ErrTLS) || !strings.Contains(err.Error(), "without --insecure") {
		t.Errorf("a client without TLS: %v", err)
	}
}

// A tenant that sees some of the GPUs is told of no others, nor is who has a lease of some.
func TestStatusHasOnesOwnGPUs(t *testing.T) {
	o := openOffice(t, func(c *Config) { c.SimDevices = 2 })
	gpus := func(token string) (uuids []string) {
		st, err := o.administrator(token).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range st.GPUs {
			uuids = append(uuids, g.UUID)
		}
		return uuids
	}
	all := gpus("token-of-ops")
	if len(all) != 2 {
		t.Fatal(all)
	}
	granted, err := o.administrator("token-of-ops").Grant(t.Context(), &admin.LeaseRequest{Tenant: "alice", GPUs: all[0],
		Seconds: 60})
	if err != nil {
		t.Fatal(err)
	}
	o.write(t, strings.Replace(threeTenants, "bob ", "bob gpus="+all[1]+" ", 1))
	o.reload <- os.Interrupt
	o.reload <- os.Interrupt // it has been read
	for token, want := range map[string][]string{
		"token-of-alice": all, "token-of-bob": all[1:], granted.Credential: all[:1],
	} {
		if got := gpus(token); !slices.Equal(got, want) {
			t.Errorf("%.14s is told of %v, not %v", token, got, want)
		}
	}
}
