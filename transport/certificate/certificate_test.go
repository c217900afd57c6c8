package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A server's certificate is made once, and nobody else reads its key.
func TestKeep(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "state")
	one, err := Keep(folder)
	if err != nil {
		t.Fatal(err)
	}
	two, err := Keep(folder)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := Fingerprint(one.Leaf), Fingerprint(two.Leaf); !Same(a, b) || len(a) != len(prefix)+64 {
		t.Errorf("%s, then %s", a, b)
	}
	for name, mode := range map[string]os.FileMode{".": 0o700, KeyFile: 0o600, ServerFile: 0o644} {
		if i, err := os.Stat(filepath.Join(folder, name)); err != nil || i.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, i.Mode(), err)
		}
	}
	if list, err := os.ReadDir(folder); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	if err := os.WriteFile(filepath.Join(folder, ServerFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Keep(folder); !errors.Is(err, ErrFile) {
		t.Errorf("a file that is none: %v", err)
	}
}

func TestParseFingerprint(t *testing.T) {
	good := prefix + strings.Repeat("0a", 32)
	for _, s := range []string{good, strings.ToUpper(good), strings.TrimPrefix(good, prefix)} {
		if got, err := ParseFingerprint(s); got != good || err != nil {
			t.Errorf("%s: %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", prefix, good + "00", good[:len(good)-1], "md5:" + strings.Repeat("0a", 32)} {
		if _, err := ParseFingerprint(s); !errors.Is(err, ErrFingerprint) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestAuthority(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "ca")
	if err := NewAuthority(folder); err != nil {
		t.Fatal(err)
	}
	if err := NewAuthority(folder); !IsExist(err) {
		t.Errorf("a second authority in the folder: %v", err)
	}
	a, err := OpenAuthority(folder)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := Pool(filepath.Join(folder, AuthorityFile))
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string, server bool) tls.Certificate {
		certFile, keyFile, err := a.Issue(name, server)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Load(certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	server, address, alice := issue("gpu1.example.org", true), issue("2001:db8::1", true), issue("alice", false)
	if _, _, err := a.Issue("alice", false); !IsExist(err) {
		t.Errorf("a second certificate of that name: %v", err)
	}
	for _, name := range []string{"", "a b", "../x", "a/b", "-x", "2001:db8::1", strings.Repeat("x", 65)} {
		if _, _, err := a.Issue(name, false); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		server tls.Certificate
		asked  string
		client tls.Certificate
		ok     bool
	}{
		"by name":         {server, "gpu1.example.org", alice, true},
		"by address":      {address, "2001:db8::1", alice, true},
		"another name":    {server, "gpu2.example.org", alice, false},
		"client's server": {alice, "alice", alice, false},
		"server's client": {server, "gpu1.example.org", server, false},
	} {
		near, far := net.Pipe()
		client := Trusting(pool, c.asked)
		client.Certificates = []tls.Certificate{c.client}
		done := make(chan error, 1)
		go func() {
			s := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{c.server}, ClientCAs: pool,
				ClientAuth: tls.RequireAndVerifyClientCert})
			err := s.HandshakeContext(context.Background())
			far.Close()
			done <- err
		}()
		err := tls.Client(near, client).HandshakeContext(t.Context())
		near.Close()
		if err = errors.Join(err, <-done); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Pool(filepath.Join(folder, AuthorityKeyFile)); !errors.Is(err, ErrFile) {
		t.Errorf("a key for an authority: %v", err)
	}
}

func TestPinned(t *testing.T) {
	c, err := Keep(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.Leaf}}
	if err := Pinned(Fingerprint(c.Leaf)).VerifyConnection(state); err != nil {
		t.Error(err)
	}
	for want, says := range map[string]string{"": "unknown", prefix + strings.Repeat("0", 64): "another one"} {
		err := Pinned(want).VerifyConnection(state)
		var e *PinError
		if !errors.As(err, &e) || e.Got != Fingerprint(c.Leaf) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
