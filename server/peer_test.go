package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// tcpPair gives both ends of a connection.
func tcpPair(t *testing.T) (here, there *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if there, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)); err != nil {
		t.Fatal(err)
	}
	if here, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// A client that goes away while it waits ends the wait; one that stays keeps what it has sent.
func TestWhilePeerStays(t *testing.T) {
	here, there := tcpPair(t)
	ctx, attended := whilePeerStays(t.Context(), here, false)
	if _, err := io.WriteString(there, "early"); err != nil {
		t.Fatal(err)
	}
	attended()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that stays: %v", err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(here, b); err != nil || string(b) != "early" {
		t.Errorf("what the client has sent: %q, %v", b, err)
	}

	ctx, attended = whilePeerStays(t.Context(), here, true)
	if _, err := io.WriteString(there, "early"); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	attended()
	if err := context.Cause(ctx); !errors.Is(err, errPeerSpoke) {
		t.Errorf("a client that says something where it is not to: %v", err)
	}
	if _, err := io.ReadFull(here, b); err != nil {
		t.Fatal(err)
	}

	ctx, attended = whilePeerStays(t.Context(), here, false)
	defer attended()
	there.Close()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, errPeerGone) {
		t.Errorf("a client that is gone: %v", err)
	}
}

// What failed on the server's side stands in its log; the client learns no path and no user.
func TestRefusalsTellNothing(t *testing.T) {
	var log logBuffer
	s := &supervisor{log: slog.New(slog.NewTextHandler(&log, nil)), stop: t.Context(),
		metrics: metrics.NewServer(metrics.Build{}, nil)}
	for _, c := range []struct {
		err    error
		status transport.Status
		told   bool
	}{
		{refusef(transport.StatusFailed, "%w: /var/secret is of user 65534", ErrNoWorker), transport.StatusFailed, false},
		{errors.New("socket pair: /var/secret"), transport.StatusFailed, false},
		{refusef(transport.StatusBusy, "2 of 2 are taken: /var/secret"), transport.StatusBusy, true},
	} {
		here, there := tcpPair(t)
		done := make(chan struct{})
		go func() { defer close(done); s.refuse(here, s.log, c.err); here.Close() }()
		w, err := transport.ReadWelcome(there)
		if err != nil || w.Status != c.status || w.Error == "" || strings.Contains(w.Error, "secret") != c.told {
			t.Errorf("%v: %+v, %v", c.err, w, err)
		}
		there.Close()
		<-done
	}
	if n := strings.Count(log.String(), "/var/secret"); n != 3 {
		t.Errorf("%d reasons in the log:\n%s", n, &log)
	}
}
