package server

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

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
			s.leave(c.kind, c.of)
			continue
		}
		err := s.admit(c.kind, c.of)
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
			s.leave(k, p)
		}
	}
	<-s.empty()
	if len(s.byClient) != 0 {
		t.Errorf("%d clients are left", len(s.byClient))
	}
	s.init(0, 0, 0)
	for range 10000 {
		if err := s.admit(nvmlSession, a); err != nil {
			t.Fatal(err)
		}
	}
}
