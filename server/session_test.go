package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
)

func TestAdmit(t *testing.T) {
	a, b := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/64")
	var s sessions
	s.init(5, 3, 2)
	for i, c := range []struct {
		kind    sessionKind
		of      netip.Prefix
		leaves  bool
		refused string
	}{
		{cudaSession, a, false, ""},
		{cudaSession, a, false, ""},
		{cudaSession, a, false, "clients of 192.0.2.1/32 have 2 CUDA sessions"},
		{nvmlSession, a, false, ""}, // of the other kind
		{cudaSession, b, false, ""}, // of another client
		{cudaSession, a, true, ""},
		{cudaSession, a, false, ""},
		{nvmlSession, b, false, ""},
		{nvmlSession, b, false, ""},
		{nvmlSession, a, false, "3 of 3 NVML sessions are taken (--max-nvml-sessions)"},
	} {
		if c.leaves {
			s.leave(place{kind: c.kind, client: c.of})
			continue
		}
		err := s.admit(place{kind: c.kind, client: c.of}, 0)
		var r *refusal
		if c.refused == "" && err != nil || c.refused != "" && (!errors.As(err, &r) || r.status != transport.StatusBusy ||
			!strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%d: %v, not %q", i, err, c.refused)
		}
	}
	select {
	case <-s.empty():
		t.Error("there are sessions")
	default:
	}
	for k, of := range map[sessionKind][]netip.Prefix{cudaSession: {a, a, b}, nvmlSession: {a, b, b}} {
		for _, p := range of {
			s.leave(place{kind: k, client: p})
		}
	}
	<-s.empty()
	if len(s.byClient) != 0 {
		t.Errorf("%d clients are left", len(s.byClient))
	}
	s.init(0, 0, 0)
	for range 10000 {
		if err := s.admit(place{kind: nvmlSession, client: a}, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// A lease's CUDA sessions count, and those of NVML do not.
func TestAdmitLease(t *testing.T) {
	var s sessions
	s.init(0, 0, 0)
	of := func(k sessionKind, id string, most uint32) place {
		return place{kind: k, tenant: "a", lease: id, most: most}
	}
	for i, c := range []struct {
		p       place
		leaves  bool
		refused string
	}{
		{of(cudaSession, "one", 2), false, ""},
		{of(cudaSession, "one", 2), false, ""},
		{of(cudaSession, "one", 2), false, "lease one has 2 CUDA sessions, which is what its --sessions allows"},
		{of(nvmlSession, "one", 2), false, ""},
		{of(cudaSession, "two", 1), false, ""},
		{of(cudaSession, "two", 1), false, "lease two has 1 CUDA sessions"},
		{of(cudaSession, "any", 0), false, ""},
		{of(cudaSession, "any", 0), false, ""},
		{of(cudaSession, "", 0), false, ""},
		{of(cudaSession, "one", 2), true, ""},
		{of(cudaSession, "one", 2), false, ""},
	} {
		if c.leaves {
			s.leave(c.p)
			continue
		}
		err := s.admit(c.p, 0)
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%d: %v, not %q", i, err, c.refused)
		}
	}
	for id, n := range map[string]int{"one": 2, "two": 1, "any": 2, "": 1} {
		for range n {
			s.leave(of(cudaSession, id, 0))
		}
	}
	s.leave(of(nvmlSession, "one", 0))
	<-s.empty()
	if len(s.byLease) != 0 {
		t.Errorf("left are %v", s.byLease)
	}
}

// A tenant's CUDA sessions count wherever they come from.
func TestAdmitTenant(t *testing.T) {
	var s sessions
	s.init(0, 0, 0)
	from := func(i int) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32) }
	var taken []place
	for i, c := range []struct {
		tenant  string
		kind    sessionKind
		refused bool
	}{
		{"a", cudaSession, false}, {"a", cudaSession, false}, {"a", cudaSession, true}, {"a", nvmlSession, false},
		{"b", cudaSession, false}, {"a", cudaSession, true},
	} {
		p := place{kind: c.kind, client: from(i), tenant: c.tenant}
		err := s.admit(p, 2)
		if r := (*refusal)(nil); (err != nil) != c.refused || c.refused && (!errors.As(err, &r) ||
			r.status != transport.StatusBusy || !strings.Contains(err.Error(), "tenant a has 2 CUDA sessions")) {
			t.Errorf("%d: %v", i, err)
		}
		if err == nil {
			taken = append(taken, p)
		}
	}
	s.leave(taken[0])
	taken[0].client = from(9)
	if err := s.admit(taken[0], 2); err != nil {
		t.Error(err)
	}
	for _, p := range taken {
		s.leave(p)
	}
	if len(s.byTenant) != 0 || len(s.byClient) != 0 {
		t.Errorf("%v, %v are left", s.byTenant, s.byClient)
	}
}

// TestPlacesForNVML: a tenant does not take the others' places for NVML by coming from several addresses. One that is
// alone may have all, and a limit that is said goes before the share.
func TestPlacesForNVML(t *testing.T) {
	from := func(i int) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32) }
	for name, c := range map[string]struct {
		places int
		limit  uint64
		sole   bool
		gets   int
	}{
		"a share":         {8, 0, false, 2},
		"of few places":   {3, 0, false, 1},
		"a limit":         {8, 5, false, 5},
		"alone":           {8, 0, true, 8},
		"alone, limited":  {8, 3, true, 3},
		"any number":      {0, 0, false, 100},
		"a limit of many": {0, 7, false, 7},
	} {
		t.Run(name, func(t *testing.T) {
			var s sessions
			s.init(0, c.places, 0)
			most := s.perTenant(nvmlSession, &config.Limits{Sessions: 1, NVML: c.limit}, c.sole)
			got := 0
			for i := range 100 {
				err := s.admit(place{kind: nvmlSession, client: from(i), tenant: "a"}, most)
				if err == nil {
					got++
				} else if r := (*refusal)(nil); !errors.As(err, &r) || r.status != transport.StatusBusy {
					t.Error(err)
				}
			}
			if got != c.gets {
				t.Errorf("%d places, not %d", got, c.gets)
			}
			if c.gets < c.places {
				if err := s.admit(place{kind: nvmlSession, client: from(0), tenant: "b"}, most); err != nil {
					t.Errorf("another tenant: %v", err)
				}
			}
		})
	}
}

// A client of a second address is told by which limit its tenant has no more places.
func TestShareOfNVML(t *testing.T) {
	s := serve(t, func(c *Config) {
		c.Tenants, c.MaxNVML = registry(t, "alice token=alice-token\nbob token=bob-token\n"), 4
	})
	s.token = []byte("alice-token")
	s.open(transport.KindNVML)
	if _, err := s.dial(hello(transport.KindNVML)); !errors.Is(err, transport.ErrBusy) ||
		!strings.Contains(err.Error(), "tenant alice has 1 NVML sessions, which is what its max-nvml-sessions-per-tenant") {
		t.Errorf("a second session: %v", err)
	}
	s.token = []byte("bob-token")
	s.open(transport.KindNVML)
}

// TestInfoEndsWithItsCredential: who may not come any more gets no answers on a connection from before.
func TestInfoEndsWithItsCredential(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tenants")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("alice token=alice-token\nbob token=bob-token\n")
	tenants, err := tenant.Read(tenant.Files{Tenants: file})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *Config) { c.Tenants = tenants })
	answers := func(l *link) bool {
		_, err := l.conn.Write(transport.MessageHeader{Type: transport.MsgPing, Seq: 5}.Append(nil))
		if err != nil {
			return false
		}
		m, _, err := l.message()
		return err == nil && m.Type == transport.MsgPong
	}
	s.token = []byte("alice-token")
	alice := s.open(transport.KindInfo)
	s.token = []byte("bob-token")
	bob := s.open(transport.KindInfo)
	if !answers(alice) || !answers(bob) {
		t.Error("no answers")
	}
	write("alice token=alice-token\n")
	if err := tenants.Reload(); err != nil {
		t.Fatal(err)
	}
	if !answers(alice) || answers(bob) {
		t.Error("alice has no answer, or bob has one")
	}
}

// TestJoinsForRDMA: where there is none, nobody is welcomed for it.
func TestJoinsForRDMA(t *testing.T) {
	s := serve(t, nil)
	w := s.open(transport.KindCUDA).welcome
	h := hello(transport.KindRDMA)
	h.Session, h.Secret, h.Purpose = w.Session, w.Secret, h.Kind
	_, err := s.dial(h)
	if w.RDMA || !errors.Is(err, transport.ErrCapability) || !strings.Contains(err.Error(), "no RDMA") {
		t.Errorf("%v, %v", w.RDMA, err)
	}
}

// What the log and the metrics say of a session's end is what happened.
func TestHowSessionsEnd(t *testing.T) {
	s := serve(t, func(c *Config) { c.Metrics = "127.0.0.1:0" })
	ping := command(wire.OpPing, 0, make([]byte, 8))
	for _, c := range []struct {
		how  string
		ends int
		end  func(*link)
	}{
		{"closed", 1, (*link).leave},
		{"closed", 2, func(l *link) { // with answers on the way
			l.say(wire.OpPing)
			l.say(wire.OpBye)
			_ = l.conn.(*net.TCPConn).SetLinger(0)
			l.conn.Close()
		}},
		{"left", 1, func(l *link) { l.conn.Close() }},
		{"broken", 1, func(l *link) {
			_, _ = l.conn.Write(ping[:len(ping)-3])
			l.conn.Close()
		}},
		{"broken", 2, func(l *link) {
			_ = l.conn.(*net.TCPConn).SetLinger(0) // a reset
			l.conn.Close()
		}},
		{"broken", 3, func(l *link) { _, _ = l.conn.Write(make([]byte, 64)) }},
		{"crashed", 1, func(l *link) { _ = syscall.Kill(s.workerOf(l), syscall.SIGKILL) }},
	} {
		l := s.open(transport.KindCUDA)
		l.use(1 << 20)
		c.end(l)
		s.shows(fmt.Sprintf(`scuda_sessions_ended_total{how="%s",kind="cuda"} %d`, c.how, c.ends))
	}
	for _, c := range []struct {
		how  string
		ends int
		end  func(*link)
	}{
		{"closed", 1, func(l *link) { l.say(wire.OpBye) }},
		{"closed", 2, func(l *link) { // with an answer on the way
			_, _ = l.conn.Write(l.next(nvml.OpNvmlSystemGetCudaDriverVersion_v2, 0, make([]byte, 8)))
			l.say(wire.OpBye)
			_ = l.conn.(*net.TCPConn).SetLinger(0)
			l.conn.Close()
		}},
		{"left", 1, func(l *link) { l.conn.Close() }},
		{"broken", 1, func(l *link) {
			_, _ = l.conn.Write(ping[:len(ping)-3])
			l.conn.Close()
		}},
		{"broken", 2, func(l *link) {
			_ = l.conn.(*net.TCPConn).SetLinger(0) // a reset
			l.conn.Close()
		}},
		{"broken", 3, func(l *link) { _, _ = l.conn.Write(make([]byte, 64)) }},
		{"broken", 4, func(l *link) { // a command twice
			b := l.next(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8))
			_, _ = l.conn.Write(append(b, b...))
		}},
		{"crashed", 1, func(l *link) { _ = syscall.Kill(s.workerOf(l), syscall.SIGKILL) }},
	} {
		l := s.open(transport.KindNVML)
		if r, _, err := l.call(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8)); r != 0 || err != nil {
			t.Fatal(r, err)
		}
		c.end(l)
		s.shows(fmt.Sprintf(`scuda_sessions_ended_total{how="%s",kind="nvml"} %d`, c.how, c.ends))
	}
	s.open(transport.KindCUDA).use(1 << 20)
	s.stop()
	s.logged("the server shuts down")
	if n := strings.Count(s.log.String(), "worker crashed"); n != 2 {
		t.Errorf("%d crashes are logged", n)
	}
}

// An impossible hello costs no worker and is nobody's crash.
func TestImpossibleHello(t *testing.T) {
	s := serve(t, nil)
	h := hello(transport.KindCUDA)
	h.ServerBase = h.ClientBase
	if _, err := s.dial(h); !errors.Is(err, transport.ErrNotScuda) {
		t.Errorf("%v", err)
	}
	if strings.Contains(s.log.String(), "session opened") {
		t.Error("it got a session")
	}
}
