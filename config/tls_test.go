package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

// shaker is a server that makes TLS handshakes, with a certificate of an authority's for 127.0.0.1.
func shaker(t *testing.T) (address, fingerprint, ca string) {
	t.Helper()
	folder := t.TempDir()
	if err := certificate.NewAuthority(folder); err != nil {
		t.Fatal(err)
	}
	authority, err := certificate.OpenAuthority(folder)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile, err := authority.Issue("127.0.0.1", true)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := certificate.Load(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	l, err := transport.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := certificate.Trusting(nil, "")
	cfg.Certificates = append(cfg.Certificates, cert)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			if s, err := transport.ServeTLS(context.Background(), c, cfg, nil); err == nil {
				if _, err := transport.ReadPreface(s, nil); err == nil {
					b, _ := transport.AppendWelcome(nil, &transport.Welcome{})
					_, _ = s.Write(b)
				}
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String(), certificate.Fingerprint(cert.Leaf), filepath.Join(folder, certificate.AuthorityFile)
}

func TestTLS(t *testing.T) {
	address, fingerprint, ca := shaker(t)
	_, another, otherCA := shaker(t)
	for name, c := range map[string]struct {
		address, known string
		env            []string // names and values
		plain          bool     // no TLS
		bad            bool     // unusable settings
		want           error    // of the handshake
	}{
		"loopback":         {address: address, plain: true},
		"loopback by name": {address: "localhost:1", plain: true},
		"loopback of IPv6": {address: "[::1]:1", plain: true},
		"elsewhere":        {address: "192.0.2.1:1"},
		"elsewhere, insecure": {address: "192.0.2.1:1",
			env: []string{"SCUDA_INSECURE", "1"}, plain: true},
		"elsewhere, said to be plain": {address: "192.0.2.1:1", known: "192.0.2.1:1 plain", plain: true},
		"fingerprint": {address: address,
			env: []string{"SCUDA_FINGERPRINT", " " + strings.ToUpper(fingerprint) + " "}},
		"another's fingerprint": {address: address,
			env: []string{"SCUDA_FINGERPRINT", another}, want: transport.ErrUntrusted},
		"fingerprints, one of each": {address: address,
			env: []string{"SCUDA_SERVER", "a:1," + address, "SCUDA_FINGERPRINT", another + "," + fingerprint}},
		"fingerprints in another order": {address: address,
			env:  []string{"SCUDA_SERVER", address + ",a:1", "SCUDA_FINGERPRINT", another + "," + fingerprint},
			want: transport.ErrUntrusted},
		"a fingerprint of the other alone": {address: address, known: address + " " + fingerprint,
			env: []string{"SCUDA_SERVER", address + ",a:1", "SCUDA_FINGERPRINT", "," + another}},
		"too many fingerprints": {address: address, bad: true,
			env: []string{"SCUDA_SERVER", address + ",a:1", "SCUDA_FINGERPRINT", another + "," + fingerprint + ","}},
		"no fingerprint": {address: address,
			env: []string{"SCUDA_FINGERPRINT", "sha256:12"}, bad: true},
		"known": {address: address,
			known: "# x\na:1 plain\n" + address + " " + fingerprint + " # y\n"},
		"known as another": {address: address, known: address + " " + another,
			want: transport.ErrUntrusted},
		"known, and insecure": {address: "192.0.2.1:1", known: "192.0.2.1:1 " + another,
			env: []string{"SCUDA_INSECURE", "1"}},
		"known by half":           {address: address, known: address, bad: true},
		"known as nonsense":       {address: address, known: address + " x", bad: true},
		"authority":               {address: address, env: []string{"SCUDA_CA", ca}},
		"authority, and insecure": {address: address, env: []string{"SCUDA_CA", ca, "SCUDA_INSECURE", "1"}},
		"another authority": {address: address,
			env: []string{"SCUDA_CA", otherCA}, want: transport.ErrUntrusted},
		"no authority": {address: address, env: []string{"SCUDA_CA", "/nowhere"}, bad: true},
		"certificate without a key": {address: address,
			env: []string{"SCUDA_CA", ca, "SCUDA_CERT", ca, "SCUDA_KEY", "/nowhere"}, bad: true},
		"insecure, but how": {address: "192.0.2.1:1",
			env: []string{"SCUDA_INSECURE", "maybe"}, bad: true},
		"the fingerprint goes before file": {address: address, known: address + " " + another,
			env: []string{"SCUDA_FINGERPRINT", fingerprint}},
	} {
		t.Run(name, func(t *testing.T) {
			folder := home(t)
			for i := 0; i < len(c.env); i += 2 {
				t.Setenv(c.env[i], c.env[i+1])
			}
			if err := os.WriteFile(filepath.Join(folder, "known_servers"), []byte(c.known), 0o600); err != nil {
				t.Fatal(err)
			}
			to, err := To(c.address, "")
			if (err != nil) != c.bad {
				t.Fatalf("settings: %v", err)
			}
			if c.bad {
				return
			}
			if (to.TLS == nil) != c.plain {
				t.Fatalf("TLS: %v", to.TLS != nil)
			}
			if c.plain || c.address != address {
				return
			}
			conn, _, err := transport.DialNet(t.Context(), to, &transport.Hello{Kind: transport.KindInfo})
			if err == nil {
				conn.Close()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestRemember(t *testing.T) {
	home(t)
	one, two := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	for _, c := range []struct {
		address, fingerprint, want string
		err                        error
	}{
		{"a:1", "", plain, nil},
		{"b:1", one, one, nil},
		{"b:2", two, two, nil},
		{"b:1", "", one, ErrKnown},
		{"b:1", two, two, nil},
		{"a:1", one, one, nil},
	} {
		if err := Remember(c.address, c.fingerprint); !errors.Is(err, c.err) {
			t.Errorf("%v: %v", c, err)
		}
		if got, err := Known(c.address); got != c.want || err != nil {
			t.Errorf("%v: %q, %v", c, got, err)
		}
	}
	if got, err := Known("b:2"); got != two || err != nil {
		t.Errorf("another's line: %q, %v", got, err)
	}
}

// A client shows the certificate of its folder.
func TestClientCertificate(t *testing.T) {
	folder := home(t)
	if c, err := clientCertificate(new(Saved)); c != nil || err != nil {
		t.Fatal(c, err)
	}
	if err := certificate.NewAuthority(folder); err != nil {
		t.Fatal(err)
	}
	a, err := certificate.OpenAuthority(folder)
	if err != nil {
		t.Fatal(err)
	}
	certFile, _, err := a.Issue("client", false)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := clientCertificate(new(Saved)); err != nil || c == nil || c.Leaf.Subject.CommonName != "client" {
		t.Fatal(c, err)
	}
	t.Setenv("SCUDA_CERT", certFile) // the key lies beside
	if c, err := clientCertificate(new(Saved)); err != nil || c == nil {
		t.Fatal(c, err)
	}
}
