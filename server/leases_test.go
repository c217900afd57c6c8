package server

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/tenant"
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

// granted has a lease made by the admin interface.
func granted(t *testing.T, c *admin.Client, r admin.LeaseRequest) *admin.Granted {
	t.Helper()
	g, err := c.Grant(t.Context(), &r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A lease that is revoked ends its sessions, which are told why, and nobody else's.
func TestLeaseIsRevoked(t *testing.T) {
	s, c := administered(t, func(c *Config) { c.Tenants = registry(t, "alice token=alice-token share=7 class=low\n") })
	const hour = 3600
	a := granted(t, c, admin.LeaseRequest{Label: "job 7", Seconds: hour, Sessions: 4})
	b := granted(t, c, admin.LeaseRequest{Tenant: "bob", Seconds: hour, Share: 300, Class: "high", Memory: 8 * config.MiB})
	if a.Tenant != "alice" || a.Share != 7 || a.Class != lease.Low || a.Kept || b.Share != 300 || b.Class != lease.High {
		t.Errorf("%+v\n%+v", a, b)
	}
	s.token = []byte(a.Credential)
	one, looks := s.open(transport.KindCUDA), s.open(transport.KindNVML)
	s.token = []byte(b.Credential)
	other := s.open(transport.KindCUDA)
	all := list(t, c, 3)
	if x := all[0]; x.Lease != a.ID || x.Label != "job 7" || x.Share != 7 || x.Class != "low" || x.Tenant != "alice" {
		t.Errorf("%+v", x)
	}
	if x := all[2]; x.Lease != b.ID || x.Label != "" || x.Share != 300 || x.Class != "high" || x.Quota != 8<<20 {
		t.Errorf("%+v", x)
	}
	leases, err := c.Leases(t.Context())
	if err != nil || len(leases) != 2 || leases[0].ID != a.ID || leases[0].Open != 1 || leases[0].Left < hour/2 {
		t.Errorf("%+v, %v", leases, err)
	}
	if err := c.Revoke(t.Context(), a.ID, "the job was cancelled"); err != nil {
		t.Fatal(err)
	}
	const why = ": the job was cancelled; ask who gave it to you for another one (scuda lease create)"
	_, text, err := one.message()
	if want := "the session ends: lease " + a.ID + " (job 7) of tenant alice was revoked at "; err != nil ||
		!strings.HasPrefix(string(text), want) || !strings.HasSuffix(string(text), why) {
		t.Errorf("CUDA's client is told %q, %v", text, err)
	}
	for err == nil {
		_, _, err = looks.message()
	}
	if len(looks.notices) != 1 || !strings.HasSuffix(looks.notices[0], why) {
		t.Errorf("NVML's client is told %q", looks.notices)
	}
	if x := list(t, c, 1)[0]; x.Lease != b.ID || !other.alive() {
		t.Errorf("left is %+v", x)
	}
	if err := c.Revoke(t.Context(), a.ID, ""); !errors.Is(err, lease.ErrNone) {
		t.Errorf("once more: %v", err)
	}
	for says, r := range map[string]admin.LeaseRequest{
		"it lasts 1s to ": {}, "low, normal or high": {Class: "top", Seconds: hour},
		"a share of 10001": {Share: 10001, Seconds: hour},
		"bad name":         {Tenant: "a b", Seconds: hour}, "cannot be printed": {Label: "\x1b", Seconds: hour},
	} {
		if _, err := c.Grant(t.Context(), &r); !errors.Is(err, lease.ErrTerms) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// Leases outlive their server, and what ended before stays ended.
func TestLeasesOutliveTheServer(t *testing.T) {
	state := t.TempDir()
	var addr *net.TCPAddr
	begin := func() (*testServer, *admin.Client) {
		return administered(t, func(c *Config) {
			l, err := net.ListenTCP("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			addr = l.Addr().(*net.TCPAddr)
			c.Listener, c.StateDir, c.Tenants = l, state, registry(t, aliceAndBob)
		})
	}
	addr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	s, c := begin()
	if _, err := c.Grant(t.Context(), &admin.LeaseRequest{Seconds: 60}); !errors.Is(err, lease.ErrTerms) ||
		!strings.Contains(err.Error(), "has several (--tenant NAME)") {
		t.Errorf("nobody's: %v", err)
	}
	keeps := granted(t, c, admin.LeaseRequest{Tenant: "alice", Seconds: 3600, Memory: 16 * config.MiB})
	ends := granted(t, c, admin.LeaseRequest{Tenant: "alice", Seconds: 3600})
	if err := c.Revoke(t.Context(), ends.ID, ""); err != nil || !keeps.Kept {
		t.Fatal(err)
	}
	s.stop()
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	s, c = begin()
	s.token = []byte(keeps.Credential)
	if w := s.open(transport.KindCUDA).welcome; w.Tenant != "alice" || w.Devices[0].TotalMem != 16<<20 {
		t.Errorf("%s has %d bytes", w.Tenant, w.Devices[0].TotalMem)
	}
	s.token = []byte(ends.Credential)
	if _, err := s.dial(hello(transport.KindCUDA)); !errors.Is(err, transport.ErrToken) ||
		!strings.Contains(err.Error(), "was revoked at") {
		t.Errorf("of the other: %v", err)
	}
	if leases, err := c.Leases(t.Context()); err != nil || len(leases) != 1 || leases[0].Lease.ID != keeps.ID {
		t.Errorf("%+v, %v", leases, err)
	}
}

// A session ends with its lease's time, and its credential says so from then on. How long a session takes to open is
// the machine's: the time is found that suffices.
func TestLeaseExpires(t *testing.T) {
	s, c := administered(t, nil)
	for seconds := 2.0; ; seconds *= 2 {
		g := granted(t, c, admin.LeaseRequest{Tenant: "alice", Seconds: seconds})
		s.token = []byte(g.Credential)
		l, err := s.dial(hello(transport.KindCUDA))
		if errors.Is(err, transport.ErrToken) && seconds < 30 {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := l.message()
		if err != nil || !strings.Contains(string(text), "the session ends: lease "+g.ID+" of tenant alice has expired at ") {
			t.Errorf("the client is told %q, %v", text, err)
		}
		s.logged("a lease has expired")
		if _, err := s.dial(hello(transport.KindInfo)); !errors.Is(err, transport.ErrToken) ||
			!strings.Contains(err.Error(), "has expired at") {
			t.Errorf("afterwards: %v", err)
		}
		s.until("it is gone", func() bool { all, err := c.Sessions(t.Context()); return err == nil && len(all) == 0 })
		return
	}
}

// The sessions of a lease have its memory together, within what their tenant has.
func TestMemoryOfALease(t *testing.T) {
	s, c := administered(t, func(c *Config) {
		c.Tenants = registry(t, "alice token=alice-token max-vram-per-tenant=12MiB\n")
	})
	l := granted(t, c, admin.LeaseRequest{Memory: 8 * config.MiB, Seconds: 3600})
	alloc := func(l *link, mib uint64, want cuda.CUresult) {
		t.Helper()
		ask := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), mib<<20)
		if r, _, err := l.call(cuda.OpCuMemAlloc_v2, 1<<36, ask); r != int32(want) || err != nil {
			t.Errorf("%d MiB: %d, %v", mib, r, err)
		}
	}
	free := func(l *link, want uint64) {
		t.Helper()
		ask := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), 1)
		r, b, err := l.call(cuda.OpCuMemGetInfo_v2, 1<<36, ask)
		if r != 0 || err != nil || len(b) < 32 || binary.LittleEndian.Uint64(b[8:]) != want<<20 ||
			binary.LittleEndian.Uint64(b[24:]) != 8<<20 {
			t.Errorf("%d, %x, %v", r, b, err)
		}
	}
	s.token = []byte(l.Credential)
	one, two := s.open(transport.KindCUDA), s.open(transport.KindCUDA)
	one.use(1 << 20)
	two.use(1 << 20)
	alloc(one, 4, cuda.CUDA_SUCCESS)
	free(two, 2)
	alloc(two, 3, cuda.CUDA_ERROR_OUT_OF_MEMORY)
	s.logged("memory of the lease")
	s.token = []byte("alice-token")
	other := s.open(transport.KindCUDA)
	other.use(5 << 20) // of the tenant, 1 MiB is left
	free(two, 1)
	alloc(two, 2, cuda.CUDA_ERROR_OUT_OF_MEMORY)
	other.leave()
	s.until("the tenant has that again", func() bool {
		all, err := c.Sessions(t.Context())
		return err == nil && len(all) == 2
	})
	alloc(two, 2, cuda.CUDA_SUCCESS)
}

// uuids are those of the GPUs that a session was told of.
func uuids(l *link) (list []string) {
	for _, d := range l.welcome.Devices {
		list = append(list, d.UUIDText())
	}
	return list
}

// A lease of single GPUs shows these only, to CUDA and to NVML, and so does a line of the tenants file.
func TestLeaseOfGPUs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants")
	if err := os.WriteFile(path, []byte(aliceAndBob), 0o600); err != nil {
		t.Fatal(err)
	}
	tenants, err := tenant.Read(tenant.Files{Tenants: path})
	if err != nil {
		t.Fatal(err)
	}
	again := make(chan os.Signal, 1)
	s, c := administered(t, func(c *Config) { c.SimDevices, c.Tenants, c.Reload = 3, tenants, again })
	all := uuids(s.as("alice"))
	if len(all) != 3 {
		t.Fatalf("the server has %v", all)
	}
	nvmlCount := func() uint32 {
		l := s.open(transport.KindNVML)
		if r, _, err := l.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
			t.Fatal(r, err)
		}
		r, b, err := l.call(nvml.OpNvmlDeviceGetCount_v2, 0, binary.LittleEndian.AppendUint64(nil, 1))
		if r != 0 || err != nil || len(b) < 12 {
			t.Fatal(r, b, err)
		}
		return binary.LittleEndian.Uint32(b[8:])
	}
	sees := func(credential string, want ...string) {
		t.Helper()
		s.token = []byte(credential)
		x := s.open(transport.KindCUDA)
		x.use(1 << 20)
		if got := uuids(x); !slices.Equal(got, want) {
			t.Errorf("a program is told of %v, not %v", got, want)
		}
		if got := uuids(s.open(transport.KindInfo)); !slices.Equal(got, want) {
			t.Errorf("who asks about the server is told of %v, not %v", got, want)
		}
		if n := nvmlCount(); int(n) != len(want) {
			t.Errorf("NVML shows %d GPUs, not %d", n, len(want))
		}
	}
	const hour = 3600
	one := granted(t, c, admin.LeaseRequest{Tenant: "alice", GPUs: all[2], Seconds: hour})
	two := granted(t, c, admin.LeaseRequest{Tenant: "alice", GPUs: "2", Seconds: hour})
	if !slices.Equal(one.GPUs, all[2:]) || !slices.Equal(two.GPUs, all[:2]) {
		t.Errorf("%v, %v", one.GPUs, two.GPUs)
	}
	sees(one.Credential, all[2])
	sees(two.Credential, all[0], all[1])
	sees("alice-token", all...)
	if _, err := c.Grant(t.Context(), &admin.LeaseRequest{Tenant: "bob", GPUs: "B200", Seconds: hour}); err == nil ||
		!strings.Contains(err.Error(), `has 0 GPUs of the kind "B200", and 1 are wanted`) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(path, []byte("bob token=bob-token gpus="+all[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	again <- unix.SIGHUP
	s.logged("tenants and certificates were read again")
	sees("bob-token", all[1])
	if g := granted(t, c, admin.LeaseRequest{Tenant: "bob", Seconds: hour}); !slices.Equal(g.GPUs, all[1:2]) {
		t.Errorf("a lease of bob's has %v", g.GPUs)
	}
}

// A driver that shows other GPUs than those of the lease serves nobody.
func TestAllSeen(t *testing.T) {
	list := []transport.Device{{UUID: [16]byte{1}}, {UUID: [16]byte{2}}}
	one, two := lease.UUID(list[0].UUID), lease.UUID(list[1].UUID)
	for visible, ok := range map[string]bool{"": true, one + "," + two: true, two: false, two + "," + one: false} {
		if err := allSeen(list, visible); (err == nil) != ok {
			t.Errorf("%q: %v", visible, err)
		}
	}
	if err := allSeen(nil, one); err == nil {
		t.Error("a GPU is gone, and nobody says so")
	}
}
