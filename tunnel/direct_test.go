package tunnel

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"scuda.dev/scuda/transport/certificate"
)

func TestAddresses(t *testing.T) {
	ip := func(text string) net.Addr { return &net.IPNet{IP: net.ParseIP(text)} }
	interfaces := []net.Addr{ip("127.0.0.1"), ip("192.0.2.7"), ip("fe80::1"), ip("2001:db8::7"), ip("192.0.2.7"),
		&net.UnixAddr{Name: "x"}}
	for ssh, want := range map[string]string{
		"":                                   "192.0.2.7:9 [2001:db8::7]:9",
		"198.51.100.1 1234 192.0.2.8 22":     "192.0.2.8:9 192.0.2.7:9 [2001:db8::7]:9",
		"2001:db8::1 1234 2001:db8::7 22":    "[2001:db8::7]:9 192.0.2.7:9",
		"127.0.0.1 1 127.0.0.2 22":           "127.0.0.2:9 192.0.2.7:9 [2001:db8::7]:9",
		"$(touch /tmp/x) 1 not-an-address 2": "192.0.2.7:9 [2001:db8::7]:9", "a b c": "192.0.2.7:9 [2001:db8::7]:9",
	} {
		if got := strings.Join(Addresses(9, ssh, interfaces), " "); got != want {
			t.Errorf("%q: %s, not %s", ssh, got, want)
		}
	}
	var many []net.Addr
	for i := range 100 {
		many = append(many, &net.IPNet{IP: net.IPv4(192, 0, 2, byte(i))})
	}
	if got := Addresses(9, "", many); len(got) != mostAddresses {
		t.Errorf("%d addresses", len(got))
	}
}

// The server is found behind addresses where nobody is, or somebody else; and nowhere, if it is at none.
func TestReach(t *testing.T) {
	serve := func(cert tls.Certificate) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var served sync.WaitGroup
		served.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				served.Go(func() {
					defer c.Close()
					s := tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}})
					_ = s.HandshakeContext(t.Context())
					_, _ = s.Read(make([]byte, 1))
				})
			}
		})
		t.Cleanup(func() { l.Close(); served.Wait() })
		return l.Addr().String()
	}
	var certs []tls.Certificate
	for range 2 {
		c, err := certificate.Temporary()
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, c)
	}
	ours, theirs := serve(certs[0]), serve(certs[1])
	nobody := "127.0.0.1:1"
	fingerprint := certificate.Fingerprint(certs[0].Leaf)
	again := serve(certs[0])
	for _, list := range [][]string{{ours}, {nobody, ours}, {theirs, nobody, ours}, {ours, again}, {theirs, ours, again}} {
		if at, err := reach(t.Context(), list, fingerprint); err != nil || at != ours {
			t.Errorf("%q: %s, %v", list, at, err)
		}
	}
	pin := new(certificate.PinError)
	if at, err := reach(t.Context(), []string{theirs}, fingerprint); !errors.Is(err, ErrDirect) || !errors.As(err, &pin) {
		t.Errorf("somebody else is there: %s, %v", at, err)
	}
	for _, list := range [][]string{nil, {nobody}, slices.Repeat([]string{nobody}, 100)} {
		if at, err := reach(t.Context(), list, fingerprint); !errors.Is(err, ErrDirect) {
			t.Errorf("%d: %s, %v", len(list), at, err)
		}
	}
	if at, err := reach(t.Context(), []string{ours}, ""); !errors.Is(err, ErrDirect) {
		t.Errorf("without a key: %s, %v", at, err)
	}
}
