package delay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is a listener that hands out the far ends of in-memory connections.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// start gives both ends of a connection through a proxy, and what stops it.
func start(oneWay time.Duration) (client, server net.Conn, stop func() error) {
	l := newPipes()
	far := make(chan net.Conn, 1)
	p := &Proxy{listener: l, oneWay: oneWay, rest: time.Sleep, dial: func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		far <- b
		return a, nil
	}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx) }()
	client, theirs := net.Pipe()
	l.conns <- theirs
	return client, <-far, func() error {
		cancel()
		return <-ended
	}
}

func TestRoundTrip(t *testing.T) {
	for _, oneWay := range []time.Duration{0, 500 * time.Microsecond, 5 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			client, server, stop := start(oneWay)
			go func() { _, _ = io.Copy(server, server) }()
			for range 3 {
				began := time.Now()
				if _, err := client.Write([]byte("ping")); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 4)
				if _, err := io.ReadFull(client, b); err != nil || string(b) != "ping" {
					t.Fatalf("%q, %v", b, err)
				}
				if took := time.Since(began); took != 2*oneWay {
					t.Errorf("a round trip took %v, not %v", took, 2*oneWay)
				}
			}
			client.Close()
			server.Close()
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Many bytes at once take as long as one: the link is longer, not narrower.
func TestBandwidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const oneWay = 5 * time.Millisecond
		client, server, stop := start(oneWay)
		sent := make([]byte, 16<<20)
		for i := range sent {
			sent[i] = byte(i * i >> 8)
		}
		began := time.Now()
		go func() {
			for b := sent; len(b) > 0; b = b[min(len(b), 100_000):] {
				_, _ = client.Write(b[:min(len(b), 100_000)])
			}
			client.Close()
		}()
		got, err := io.ReadAll(server)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came, %d were sent, or they differ: %v", len(got), len(sent), err)
		}
		if took := time.Since(began); took != oneWay {
			t.Errorf("took %v, not %v", took, oneWay)
		}
		server.Close()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server, stop := start(time.Millisecond)
		server.Close()
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the client reads %v after the server's end", err)
		}
		if err := stop(); err != nil { // with the client's end still open
			t.Error(err)
		}
	})
}

// TestSockets is the proxy as it is used, its half-closed connections included.
func TestSockets(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		c, err := echo.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	p, err := Listen("127.0.0.1:0", echo.Addr().String(), 3*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx) }()
	c, err := net.Dial("tcp", p.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	if _, err := c.Write([]byte("there and back")); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if took := time.Since(began); err != nil || string(b) != "there and back" || took < 6*time.Millisecond {
		t.Errorf("%q, %v after %v", b, err, took)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNegative(t *testing.T) {
	if _, err := Listen("127.0.0.1:0", "127.0.0.1:1", -time.Second); err == nil {
		t.Error("a negative delay is accepted")
	}
}
