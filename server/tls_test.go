package server

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

// forTLS is how a test server's clients meet it; nil: without TLS.
type forTLS struct{ tls *tls.Config }

func (s *testServer) target() transport.Target {
	return transport.Target{Address: s.addr, Token: s.token, TLS: s.tls}
}

// serveTLS starts a server that takes nothing but TLS, whose clients know it.
func serveTLS(t *testing.T, change func(*Config)) *testServer {
	t.Helper()
	cert, err := certificate.Keep(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *Config) {
		c.TLS, c.TLSAlways = &tls.Config{Certificates: []tls.Certificate{cert}}, true
		if change != nil {
			change(c)
		}
	})
	s.tls = certificate.Pinned(certificate.Fingerprint(cert.Leaf))
	return s
}

func TestTLS(t *testing.T) {
	s := serveTLS(t, nil)
	a := s.open(transport.KindCUDA)
	a.use(1 << 20)
	if w := a.welcome; w.RDMA || !strings.Contains(w.NoRDMA, "--rdma-fabric trusted") || w.Tenant != tenant.Anyone {
		t.Errorf("%v, %q, %q", w.RDMA, w.NoRDMA, w.Tenant)
	}
	for _, kind := range []string{transport.KindCallback, transport.KindBulk} {
		h := hello(kind)
		h.Session, h.Secret, h.Purpose, h.Count = a.welcome.Session, a.welcome.Secret, kind, 2
		l, err := s.dial(h)
		if err != nil {
			t.Fatal(err)
		}
		if kind == transport.KindBulk {
			continue
		}
		if _, err := l.conn.Write(firstPing(9)); err != nil {
			t.Fatal(err)
		}
		if m, _, err := l.message(); err != nil || m.Type != transport.MsgPong || m.Seq != 9 {
			t.Fatalf("%v, %v", m, err)
		}
	}
	if !a.alive() {
		t.Error("the session is gone")
	}
	a.leave()
	s.logged("session closed")

	l := s.open(transport.KindInfo)
	if _, err := l.conn.Write(transport.MessageHeader{Type: transport.MsgPing, Seq: 5}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if m, _, err := l.message(); err != nil || m.Type != transport.MsgPong {
		t.Errorf("%v, %v", m, err)
	}
}

// Nobody joins a session with TLS by a connection without, and no tenant another's.
func TestJoinsOfOthers(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(folder+"/tenants", []byte("alice token=alice-token\nbob token=bobs-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, err := certificate.Keep(folder)
	if err != nil {
		t.Fatal(err)
	}
	tenants, err := tenant.Read(tenant.Files{Tenants: folder + "/tenants", Key: folder + "/" + certificate.KeyFile,
		Certificate: folder + "/" + certificate.ServerFile})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, func(c *Config) { c.Tenants = tenants })
	known := certificate.Pinned(certificate.Fingerprint(cert.Leaf))
	s.tls, s.token = known, []byte("alice-token")
	session := s.open(transport.KindCUDA).welcome
	for name, c := range map[string]struct {
		token string
		tls   *tls.Config
		want  error
	}{
		"bob":         {"bobs-token", known, transport.ErrSession},
		"without TLS": {"alice-token", nil, transport.ErrSession},
		"alice":       {"alice-token", known, nil},
	} {
		s.tls, s.token = c.tls, []byte(c.token)
		h := hello(transport.KindCallback)
		h.Session, h.Secret, h.Purpose = session.Session, session.Secret, h.Kind
		if _, err := s.dial(h); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.logged("tenant=alice")
}

// An NVML client says its first words with the greeting; they reach the worker though the supervisor has opened the
// record that they came in.
func TestNVMLWithTLS(t *testing.T) {
	s := serveTLS(t, nil)
	first := command(nvml.OpNvmlInitWithFlags, 0, make([]byte, 8))
	c, w, err := transport.DialNetFirst(t.Context(), transport.Target{Address: s.addr, TLS: s.tls},
		hello(transport.KindNVML), first)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{t: t, conn: c, welcome: w, seq: uint64(len(first) - transport.FrameHeaderSize)}
	defer c.Close()
	if h, _, err := l.message(); err != nil || h.Type != transport.MsgReply || h.Result != 0 {
		t.Fatalf("nvmlInit: %+v, %v", h, err)
	}
	r, b, err := l.call(nvml.OpNvmlDeviceGetCount_v2, 0, binary.LittleEndian.AppendUint64(nil, 1))
	if r != 0 || err != nil || len(b) != 16 || binary.LittleEndian.Uint32(b[8:]) != 1 {
		t.Fatalf("nvmlDeviceGetCount_v2: %d %x %v", r, b, err)
	}
}

func TestTLSRefusals(t *testing.T) {
	s := serveTLS(t, func(c *Config) { c.Token = []byte("correct horse") })
	known := s.tls
	for name, c := range map[string]struct {
		tls  *tls.Config
		want error
		says string
	}{
		"plain":       {nil, transport.ErrTLS, "wants TLS"},
		"wrong token": {known, transport.ErrToken, "SCUDA_TOKEN"},
		"old TLS":     {&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, nil, ""},
	} {
		s.tls = c.tls
		if s.tls != nil && s.tls.MaxVersion != 0 {
			conn, err := tls.Dial("tcp", s.addr, s.tls)
			if err == nil {
				conn.Close()
				t.Errorf("%s: the server shakes hands", name)
			}
			continue
		}
		_, err := s.dial(hello(transport.KindInfo))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte{22, 3, 1, 0, 5, 1, 2, 3, 4, 5}); err != nil {
		t.Fatal(err)
	}
	s.logged("no TLS handshake")

	s.tls, s.token = known, []byte("correct horse")
	s.open(transport.KindCUDA).use(1 << 20)
}

// What a client said opens nothing a second time. Without TLS it does, which shows that this test would see it.
func TestRecordedOpening(t *testing.T) {
	for name, c := range map[string]struct {
		serve    func(*testing.T, func(*Config)) *testServer
		sessions int
	}{"TLS": {serveTLS, 1}, "no TLS": {serve, 2}} {
		t.Run(name, func(t *testing.T) {
			s := c.serve(t, nil)
			said := s.record(func() *link {
				l := s.open(transport.KindCUDA)
				l.use(1 << 20)
				return l
			})
			again, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if _, err := again.Write(said); err != nil {
				t.Fatal(err)
			}
			_ = again.(*net.TCPConn).CloseWrite()
			if _, err := io.Copy(io.Discard, again); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatal(err)
			}
			if n := strings.Count(s.log.String(), "session opened"); n != c.sessions {
				t.Errorf("%d sessions, want %d", n, c.sessions)
			}
		})
	}
}

// record gives what is said on the connection that open makes.
func (s *testServer) record(open func() *link) []byte {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	server := s.addr
	var said bytes.Buffer
	var group sync.WaitGroup
	group.Go(func() {
		client, err := l.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		up, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		defer up.Close()
		group.Go(func() { _, _ = io.Copy(client, up) })
		_, _ = io.Copy(io.MultiWriter(up, &said), client)
	})
	defer func() { s.addr = server }()
	s.addr = l.Addr().String()
	open().conn.Close()
	group.Wait()
	return said.Bytes()
}

// Over loopback a server that has TLS goes on without it, where nothing else was said.
func TestWantsTLS(t *testing.T) {
	near, far := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	for _, c := range []struct {
		cfg       Config
		near, far bool
	}{
		{Config{}, false, false},
		{Config{TLS: &tls.Config{}}, false, true},
		{Config{TLS: &tls.Config{}, TLSAlways: true}, true, true},
		{Config{TLS: &tls.Config{}, Insecure: true}, false, false},
		{Config{TLS: &tls.Config{}, Insecure: true, TLSAlways: true}, true, true},
	} {
		s := supervisor{cfg: c.cfg.withDefaults()}
		if s.wantsTLS(near) != c.near || s.wantsTLS(far) != c.far {
			t.Errorf("%+v: %v %v", c, s.wantsTLS(near), s.wantsTLS(far))
		}
	}
}
