package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/api/wire"
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
			s.leave(place{c.kind, c.of, ""})
			continue
		}
		err := s.admit(place{c.kind, c.of, ""}, 0)
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
			s.leave(place{k, p, ""})
		}
	}
	<-s.empty()
	if len(s.byClient) != 0 {
		t.Errorf("%d clients are left", len(s.byClient))
	}
	s.init(0, 0, 0)
	for range 10000 {
		if err := s.admit(place{nvmlSession, a, ""}, 0); err != nil {
			t.Fatal(err)
		}
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
		p := place{c.kind, from(i), c.tenant}
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
	s.logged("ended the session: the server shuts down")
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
