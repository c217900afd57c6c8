package server

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
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
	ctx, attended := whilePeerStays(t.Context(), here)
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

	ctx, attended = whilePeerStays(t.Context(), here)
	defer attended()
	there.Close()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, errPeerGone) {
		t.Errorf("a client that is gone: %v", err)
	}
}
