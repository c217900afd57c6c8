package chaos

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that says what it hears.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func proxy(t *testing.T, cfg Config) *Proxy {
	t.Helper()
	p, err := Listen("127.0.0.1:0", echo(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// say sends text through the proxy and gives what comes back before the connection ends, or all of it.
func say(t *testing.T, p *Proxy, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", p.Address())
	if err != nil {
		return "" // it was cut at once
	}
	defer c.Close()
	_, _ = c.Write([]byte(text))
	b := make([]byte, len(text))
	n, _ := io.ReadFull(c, b)
	return string(b[:n])
}

func TestForward(t *testing.T) {
	p := proxy(t, Config{})
	if got := say(t, p, "hello"); got != "hello" || p.Cuts() != 0 {
		t.Errorf("%q came back, %d cuts", got, p.Cuts())
	}
}

func TestBytes(t *testing.T) {
	p := proxy(t, Config{Bytes: func() int { return 3 }})
	if got := say(t, p, "hello"); len(got) > 3 || p.Cuts() != 1 {
		t.Errorf("%q came back, %d cuts", got, p.Cuts())
	}
}

func TestCorrupt(t *testing.T) {
	p := proxy(t, Config{Bytes: func() int { return 3 }, Corrupt: true})
	if got := say(t, p, "hello"); len(got) != 5 || got == "hello" || p.Cuts() != 1 {
		t.Errorf("%q came back, %d changes", got, p.Cuts())
	}
}

func TestReach(t *testing.T) {
	p := proxy(t, Config{})
	p.Reach(false)
	if got := say(t, p, "hello"); got != "" {
		t.Errorf("%q came back", got)
	}
	p.Reach(true)
	if got := say(t, p, "hello"); got != "hello" {
		t.Errorf("%q came back", got)
	}
}

func TestHold(t *testing.T) {
	p := proxy(t, Config{})
	p.Hold(true)
	held := make(chan string)
	go func() { held <- say(t, p, "hello") }()
	select {
	case got := <-held:
		t.Errorf("%q came back", got)
	case <-time.After(20 * time.Millisecond):
	}
	p.Hold(false)
	if got := <-held; got != "hello" {
		t.Errorf("%q came back", got)
	}
}

func TestEvery(t *testing.T) {
	p := proxy(t, Config{Every: 5 * time.Millisecond, Away: time.Millisecond})
	c, err := net.Dial("tcp", p.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes (%v)", n, err)
	}
}
