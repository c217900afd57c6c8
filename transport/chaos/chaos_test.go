package chaos

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
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
	return to(t, echo(t), cfg)
}

func to(t *testing.T, address string, cfg Config) *Proxy {
	t.Helper()
	p, err := Listen("127.0.0.1:0", address, cfg)
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

// hear sends text through the proxy and gives so many bytes of what comes back, or what came before the connection's
// end.
func hear(t *testing.T, p *Proxy, text string, n int) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp", p.Address())
	if err != nil {
		return "", nil // it was cut at once
	}
	defer c.Close()
	_, _ = c.Write([]byte(text))
	b := make([]byte, n)
	n, err = io.ReadFull(c, b)
	return string(b[:n]), err
}

func say(t *testing.T, p *Proxy, text string) string {
	t.Helper()
	got, _ := hear(t, p, text, len(text))
	return got
}

func TestForward(t *testing.T) {
	p := proxy(t, Config{})
	if got := say(t, p, "hello"); got != "hello" || p.Cuts() != 0 {
		t.Errorf("%q came back, %d cuts", got, p.Cuts())
	}
	if got := p.Carried(); !slices.Equal(got, []Traffic{{5, 5}}) {
		t.Errorf("it says that it has carried %v", got)
	}
}

// What comes back of five bytes where something happens behind three.
func TestHarm(t *testing.T) {
	for _, way := range []Way{Up, Down} {
		for kind, want := range map[Kind]string{Cut: "hel", Half: "hel", Swallow: "hel", Corrupt: "?????", Stall: "hello"} {
			t.Run(fmt.Sprint(kind, " ", way), func(t *testing.T) {
				p := proxy(t, Config{Harm: func(int) Harm {
					return Harm{Kind: kind, Way: way, Bytes: 3, For: time.Millisecond}
				}})
				most := len(want)
				if kind == Cut || kind == Half && way == Up {
					most = 5 // up to the end
				}
				got, err := hear(t, p, "hello", most)
				switch kind {
				case Corrupt:
					if len(got) != 5 || got == "hello" {
						t.Errorf("%q came back", got)
					}
				case Cut, Half: // a reset may overtake what was sent
					if !strings.HasPrefix(want, got) {
						t.Errorf("%q came back", got)
					}
				default:
					if got != want || err != nil {
						t.Errorf("%q came back (%v)", got, err)
					}
				}
				if p.Cuts() < 1 {
					t.Errorf("%d harms", p.Cuts())
				}
			})
		}
	}
}

// The end that sent is told, the other one is not; and none of those whose bytes vanish.
func TestSilence(t *testing.T) {
	for _, kind := range []Kind{Half, Swallow} {
		heard := make(chan error, 1)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p := to(t, l.Addr().String(), Config{})
		near, err := net.Dial("tcp", p.Address())
		if err != nil {
			t.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = far.Write([]byte("1"))
		if _, err := near.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		p.Break(kind, Up)
		go func() {
			_, err := far.Read(make([]byte, 1))
			heard <- err
		}()
		if kind == Half {
			if _, err := near.Read(make([]byte, 1)); err == nil {
				t.Error("the end that sent was not told")
			}
		}
		_, _ = near.Write([]byte("2"))
		near.Close()
		_, _ = far.Write([]byte("3"))
		select {
		case err := <-heard:
			t.Errorf("%v: the other end has heard something: %v", kind, err)
		case <-time.After(20 * time.Millisecond):
		}
		far.Close()
		<-heard
		l.Close()
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
	p.Hold(Down)
	held := make(chan string)
	go func() { held <- say(t, p, "hello") }()
	select {
	case got := <-held:
		t.Errorf("%q came back", got)
	case <-time.After(20 * time.Millisecond):
	}
	p.Hold(0)
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
