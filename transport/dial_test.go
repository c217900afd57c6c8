package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseAddress(t *testing.T) {
	for in, want := range map[string]string{
		"gpu7": "gpu7:14833", "gpu7:99": "gpu7:99", "10.0.0.1": "10.0.0.1:14833", "10.0.0.1:0": "10.0.0.1:0",
		":14833": ":14833",
		"[::1]":  "[::1]:14833", "[::1]:5": "[::1]:5", "fe80::1": "[fe80::1]:14833", "[fe80::1%eth0]:7": "[fe80::1%eth0]:7",
		"": "", "a b": "", "gpu7:": "", "gpu7:http": "", "gpu7:65536": "", "gpu7:-1": "", "gpu7:+5": "", "gpu7:05": "",
		"[::1": "", "[::1]x": "", "[::1]:": "", "a:b:c": "", "http://x": "",
		"x]:1": "", "[[::1]]": "",
	} {
		got, err := ParseAddress(in)
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %q, %v; expected %q", in, got, err, want)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add("[::1]:5")
	f.Add("host:1")
	f.Fuzz(func(t *testing.T, s string) {
		full, err := ParseAddress(s)
		if err != nil {
			return
		}
		if again, err := ParseAddress(full); err != nil || again != full {
			t.Errorf("%q gives %q, which gives %q, %v", s, full, again, err)
		}
		if _, _, err := net.SplitHostPort(full); err != nil {
			t.Error(err)
		}
	})
}

// serve accepts one connection and gives it to f.
func serve(t *testing.T, f func(c *net.TCPConn)) string {
	t.Helper()
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.AcceptTCP(); err == nil {
			defer c.Close()
			f(c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

func answer(t *testing.T, w *Welcome) func(c *net.TCPConn) {
	return func(c *net.TCPConn) {
		if _, err := ReadPreface(c, nil); err != nil {
			t.Error(err)
		}
		b, err := AppendWelcome(nil, w)
		if err != nil {
			t.Error(err)
		}
		_, _ = c.Write(b)
		_, _ = io.Copy(c, c) // then echo
	}
}

func TestDialErrors(t *testing.T) {
	wrongVersion, err := AppendWelcome(nil, &Welcome{Status: StatusVersion, Error: "no"})
	if err != nil {
		t.Fatal(err)
	}
	wrongVersion[len(Magic)] = 9
	write := func(s string) func(*net.TCPConn) {
		return func(c *net.TCPConn) {
			_, _ = c.Write([]byte(s))
			_, _ = io.Copy(io.Discard, c)
		}
	}
	for _, c := range []struct {
		name    string
		address string
		kind    error
		says    []string // cause and remedy
	}{
		{"bad address", "a b", ErrAddress, []string{`"a b"`, "HOST:PORT"}},
		{"unknown host", "no-such-host.invalid:1", ErrUnknownHost, []string{"no-such-host.invalid", "SCUDA_SERVER"}},
		{"refused", "127.0.0.1:1", ErrRefused, []string{"refused", "scuda serve"}},
		{"silent", serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }), ErrTimeout,
			[]string{"does not answer", "check that a scuda server"}},
		{"closes", serve(t, func(c *net.TCPConn) {}), ErrClosed, []string{"closed the connection", "log"}},
		{"half a welcome", serve(t, func(c *net.TCPConn) {
			_, _ = ReadPreface(c, nil)
			_, _ = c.Write([]byte(Magic))
		}), ErrClosed, []string{"closed the connection"}},
		{"garbage", serve(t, write("SSH-2.0-OpenSSH_9.2\r\n")), ErrNotScuda,
			[]string{"not a scuda server", "SSH-2.0", "check host and port"}},
		{"garbage that is short", serve(t, func(c *net.TCPConn) {
			_, _ = ReadPreface(c, nil)
			_, _ = c.Write([]byte("nope\n"))
		}), ErrNotScuda, []string{"not a scuda server"}},
		{"garbage behind the magic", serve(t, write(Magic+"\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff")), ErrNotScuda,
			[]string{"the limit is"}},
		{"version", serve(t, write(string(wrongVersion))), ErrVersion,
			[]string{"version 9", "version 1", "same scuda release"}},
		{"token", serve(t, answer(t, &Welcome{Status: StatusToken})), ErrToken,
			[]string{"refused the token of the environment", "scuda login", "SCUDA_TOKEN"}},
		{"digest", serve(t, answer(t, &Welcome{Status: StatusDigest, Error: "aa and bb"})), ErrDigest,
			[]string{"aa and bb", "same scuda release"}},
		{"remedy said once",
			serve(t, answer(t, &Welcome{Status: StatusDigest, Error: "install the same scuda release on both machines"})),
			ErrDigest, []string{"description: install"}},
		{"busy", serve(t, answer(t, &Welcome{Status: StatusBusy})), ErrBusy, []string{"no room", "--max-sessions"}},
		{"draining", serve(t, answer(t, &Welcome{Status: StatusDraining})), ErrDraining, []string{"shutting down"}},
		{"session", serve(t, answer(t, &Welcome{Status: StatusSession})), ErrSession, []string{"session"}},
		{"failed", serve(t, answer(t, &Welcome{Status: StatusFailed, Error: "no driver"})), ErrServer,
			[]string{"no driver", "log"}},
		{"status of the future", serve(t, answer(t, &Welcome{Status: 77, Error: "x"})), ErrServer, []string{"77"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			if errors.Is(c.kind, ErrTimeout) {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Second) // of which connecting takes a part
				defer cancel()
			}
			to := Target{Address: c.address, Token: []byte("tok"), TokenOf: "the environment"}
			conn, _, err := Dial(ctx, to, &Hello{Kind: KindInfo})
			var e *Error
			if conn != nil || !errors.Is(err, c.kind) || !errors.As(err, &e) {
				t.Fatalf("%v, expected %v", err, c.kind)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if strings.Count(err.Error(), "same scuda release") > 1 {
				t.Errorf("%q repeats itself", err)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q has more than one line", err)
			}
		})
	}
}

func TestDialCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	address := serve(t, func(c *net.TCPConn) {
		cancel()
		_, _ = io.Copy(io.Discard, c)
	})
	if _, _, err := Dial(ctx, Target{Address: address}, &Hello{}); err == nil {
		t.Error("a cancelled handshake succeeded")
	}
}

// cancelling is a connection to a server that says nothing, during whose first deadline the caller gives up.
type cancelling struct {
	net.Conn
	cancel context.CancelFunc
}

func (c *cancelling) SetDeadline(t time.Time) error {
	if c.cancel != nil {
		cancel := c.cancel
		c.cancel = nil
		cancel()
		synctest.Wait() // until all is done that this begins
	}
	return c.Conn.SetDeadline(t)
}

// A handshake ends whenever it is cancelled: what that sets is not undone.
func TestDialCancelledAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ours, theirs := net.Pipe()
		defer theirs.Close()
		defer ours.Close()
		began := time.Now()
		_, err := shake(ctx, &cancelling{ours, cancel}, Target{}, &Hello{}, []byte(Magic))
		if took := time.Since(began); err == nil || took != 0 {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestConn(t *testing.T) {
	address := serve(t, answer(t, &Welcome{Session: "s"}))
	conn, w, err := Dial(t.Context(), Target{Address: address}, &Hello{Kind: KindCUDA})
	if err != nil || w.Session != "s" || conn.Transport() != "tcp" || conn.Remote() != address {
		t.Fatalf("%+v, %v", w, err)
	}
	for opt, want := range map[[2]int]int{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY}: 1, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}: 1,
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}:  5,
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}: 3, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT}: 3,
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: 13000,
	} {
		if got, err := unix.GetsockoptInt(conn.FD(), opt[0], opt[1]); got != want || err != nil {
			t.Errorf("socket option %v is %d, expected %d; %v", opt, got, want, err)
		}
	}
	if flags, err := unix.FcntlInt(uintptr(conn.FD()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v", flags, err)
	}
	buf := make([]byte, 64)
	if _, err := conn.Recv([][]byte{buf}); !errors.Is(err, ErrAgain) {
		t.Errorf("nothing to receive: %v", err)
	}
	if ev, err := conn.Wait(Readable, time.Millisecond); ev != 0 || err != nil {
		t.Errorf("wait for nothing: %v, %v", ev, err)
	}
	if n, err := conn.Send([][]byte{[]byte("ab"), nil, []byte("cd"), []byte("ef")}); n != 6 || err != nil {
		t.Fatalf("sent %d, %v", n, err)
	}
	if n, err := conn.Send([][]byte{[]byte("gh")}); n != 2 || err != nil {
		t.Fatalf("sent %d, %v", n, err)
	}
	var got bytes.Buffer
	for got.Len() < 8 {
		if ev, err := conn.Wait(Readable, 10*time.Second); ev != Readable || err != nil {
			t.Fatalf("wait: %v, %v", ev, err)
		}
		a, b := make([]byte, 3), make([]byte, 64)
		n, err := conn.Recv([][]byte{a, b})
		if err != nil {
			t.Fatal(err)
		}
		got.Write(slices.Concat(a, b)[:n])
	}
	if got.String() != "abcdefgh" {
		t.Errorf("echo %q", got.String())
	}
	// Fill the connection: the echo stops as soon as nobody receives.
	block := make([]byte, 1<<20)
	for {
		if _, err := conn.Send([][]byte{block}); errors.Is(err, ErrAgain) {
			if ev, _ := conn.Wait(Writable, 20*time.Millisecond); ev == 0 {
				break
			}
		} else if err != nil {
			t.Fatal(err)
		}
	}
	woken := make(chan Events)
	go func() {
		ev, _ := conn.Wait(Writable, -1)
		woken <- ev
	}()
	conn.Shutdown()
	if ev := <-woken; ev == 0 {
		t.Error("Shutdown wakes nobody")
	}
	if _, err := conn.Send([][]byte{block}); err == nil || errors.Is(err, ErrAgain) {
		t.Errorf("send after the end: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := conn.Close(); err == nil {
		t.Error("closed twice")
	}
}

// What a server says right behind its welcome is not lost, in however small pieces it is taken.
func TestBehindTheWelcome(t *testing.T) {
	want := bytes.Repeat([]byte("as soon as it is open"), 2000)
	addr := serve(t, func(c *net.TCPConn) {
		if _, err := ReadPreface(c, nil); err != nil {
			t.Error(err)
		}
		b, err := AppendWelcome(nil, &Welcome{})
		if err != nil {
			t.Error(err)
		}
		_, _ = c.Write(append(b, want...))
	})
	conn, _, err := Dial(t.Context(), Target{Address: addr}, &Hello{Kind: KindCUDA})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var got []byte
	for {
		ev, err := conn.Wait(Readable, 10*time.Second)
		if err != nil || ev != Readable {
			t.Fatalf("%v, %v after %d bytes", ev, err, len(got))
		}
		b := make([]byte, 100)
		n, err := conn.Recv([][]byte{b[:33], b[33:]})
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b[:n]...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes, not the %d that were sent", len(got), len(want))
	}
}

func TestRecvEnd(t *testing.T) {
	address := serve(t, func(c *net.TCPConn) {
		if _, err := ReadPreface(c, nil); err != nil {
			t.Error(err)
		}
		b, _ := AppendWelcome(nil, &Welcome{})
		_, _ = c.Write(b)
	})
	conn, _, err := Dial(t.Context(), Target{Address: address}, &Hello{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Wait(Readable, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Recv([][]byte{make([]byte, 8)}); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// A server that wants a token says so to who has none, and not that it was wrong.
func TestNoToken(t *testing.T) {
	address := serve(t, answer(t, &Welcome{Status: StatusToken, Error: "wrong token"}))
	_, _, err := Dial(t.Context(), Target{Address: address}, &Hello{Kind: KindInfo})
	if !errors.Is(err, ErrToken) || !strings.Contains(err.Error(), "none was given; run scuda login "+address) ||
		strings.Contains(err.Error(), "wrong") {
		t.Error(err)
	}
}
