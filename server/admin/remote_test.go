package admin

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/transport"
)

// answering is a server of which only the handshake is there, and what it says then to a request.
func answering(t *testing.T, w *transport.Welcome, then string) *Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if h, err := transport.ReadPreface(c, nil); err != nil || h.Kind != transport.KindAdmin {
				t.Errorf("%+v, %v", h, err)
			}
			b, err := transport.AppendWelcome(nil, w)
			if err == nil {
				_, err = c.Write(b)
			}
			if err == nil && then != "" {
				_, err = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, then)
			}
			if err != nil {
				t.Error(err)
			}
			c.Close()
		}
	}()
	c, err := Over(transport.Target{Address: l.Addr().String()}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		l.Close()
		<-done
	})
	return c
}

// What a server lacks, or says wrong, has a cause and a remedy.
func TestOver(t *testing.T) {
	able := transport.Welcome{Version: "9", Capabilities: transport.Offered()}
	for name, c := range map[string]struct {
		welcome transport.Welcome
		then    string
		want    error
		says    string
	}{
		"before there was this": {transport.Welcome{Version: "0.1", Capabilities: []string{transport.CapTickets}}, "",
			transport.ErrCapability, `"admin" (an admin interface over its port); install the same scuda release`},
		"which looks": {transport.Welcome{Status: transport.StatusCapability, Error: "this server (0.2) lacks it"}, "",
			transport.ErrCapability, "this server (0.2) lacks it"},
		"without TLS": {transport.Welcome{Status: transport.StatusTLS, Error: "not without TLS"}, "",
			transport.ErrTLS, "wants TLS: not without TLS; run scuda login"},
		"full": {transport.Welcome{Status: transport.StatusBusy, Error: "8 are open"}, "",
			transport.ErrBusy, "8 are open; close some of these connections"},
		"no HTTP":      {able, "what?\r\n\r\n", ErrNoServer, ""},
		"nothing":      {able, "\r\n", ErrNoServer, ""},
		"no object":    {able, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue", ErrUnexpected, ""},
		"no fault":     {able, "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}", ErrUnexpected, "500"},
		"cut off":      {able, "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{", ErrUnexpected, ""},
		"long headers": {able, "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 4*maxHeader) + "\r\n\r\n", ErrNoServer, ""},
	} {
		_, err := answering(t, &c.welcome, c.then).Status(t.Context())
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, address := range []string{"", "a b", "host:port"} {
		if _, err := Over(transport.Target{Address: address}, ""); !errors.Is(err, transport.ErrAddress) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// Whoever says nothing, or too slowly, has the connection for no longer than the bounds allow.
func TestSlowPeople(t *testing.T) {
	const question = "GET /v1/server HTTP/1.1\r\nHost: x\r\n\r\n"
	for text, most := range map[string]time.Duration{
		"": headerTime, "GET /v1/server HTTP/1.1\r\nHost:": headerTime, question: idleTime, question + "GET": idleTime,
		"PUT /v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n{": readTime,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			p := New(f, Options{Log: slog.New(slog.DiscardHandler)})
			defer p.Close()
			ours, theirs := net.Pipe()
			began, served := time.Now(), make(chan struct{})
			go func() {
				defer close(served)
				p.Serve(theirs, by(Who{Tenant: "ops", Admin: true}))
			}()
			go func() { _, _ = io.Copy(io.Discard, ours) }()
			if _, err := io.WriteString(ours, text); err != nil {
				t.Error(err)
			}
			<-served
			if passed := time.Since(began); passed > most+time.Second || f.draining {
				t.Errorf("%q: %v, drained %v", text, passed, f.draining)
			}
		})
	}
}

// Close ends connections that were handed over, and none is served afterwards.
func TestCloseOfHandedConnections(t *testing.T) {
	p := New(&fake{stuck: true}, Options{Log: slog.New(slog.DiscardHandler)})
	ours, theirs := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.Serve(theirs, by(Who{Tenant: "a"}))
	}()
	const end = "POST /v1/sessions/aa11/end HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
	if _, err := io.WriteString(ours, end); err != nil {
		t.Fatal(err)
	}
	p.Close()
	<-served
	late, other := net.Pipe()
	p.Serve(other, by(Who{Tenant: "a"}))
	for _, c := range []net.Conn{ours, late} {
		if _, err := io.ReadAll(c); err != nil {
			t.Error(err)
		}
	}
}
