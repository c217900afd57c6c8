package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFrames(t *testing.T) {
	for name, c := range map[string]struct {
		frame Header
		good  bool
	}{
		"open":              {Header{1, KindOpen, 0}, true},
		"data":              {Header{7, KindData, maxData}, true},
		"too long":          {Header{7, KindData, maxData + 1}, false},
		"no data":           {Header{7, KindData, 0}, false},
		"data of no stream": {Header{0, KindData, 1}, false},
		"credit":            {Header{7, KindCredit, 4}, true},
		"short credit":      {Header{7, KindCredit, 3}, false},
		"ping":              {Header{0, KindPing, 0}, true},
		"ping of a stream":  {Header{1, KindPing, 0}, false},
		"note":              {Header{0, KindNote, 2}, true},
		"empty note":        {Header{0, KindNote, 0}, false},
		"no kind":           {Header{1, 0, 0}, false},
		"unknown":           {Header{1, KindNote + 1, 0}, false},
	} {
		got, err := ParseHeader(c.frame.Append(nil))
		if got != c.frame || (err == nil) != c.good || err != nil && !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(Header{3, KindData, 9}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := ParseHeader(b); err == nil && !bytes.Equal(h.Append(nil), b[:headerSize]) {
			t.Errorf("%x became %+v", b, h)
		}
	})
}

func FuzzParseHello(f *testing.F) {
	f.Add([]byte(`{"token":"0123456789012345678901234567890123456789","serve":["--gpu","sim"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHello(b)
		if err != nil {
			return
		}
		line, err := appendLine(nil, h)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseHello(bytes.TrimSuffix(line, []byte("\n"))); err != nil || !reflect.DeepEqual(h, again) {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

// pair is two muxes over pipes; the far one's streams lead to the address.
type pair struct {
	near, far *mux
	ends      []io.Closer
	done      sync.WaitGroup
	nearErr   error
}

func newPair(t *testing.T, address string) *pair {
	t.Helper()
	p := &pair{}
	r1, w1, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.ends = []io.Closer{w1, w2, r1, r2}
	p.near, p.far = newMux(r2, w1), newMux(r1, w2)
	p.far.dial = func(ctx context.Context) (conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return c.(*net.TCPConn), nil
	}
	p.done.Go(func() { p.nearErr = p.near.run(t.Context()) })
	p.done.Go(func() { _ = p.far.run(t.Context()) })
	t.Cleanup(p.close)
	return p
}

func (p *pair) close() {
	for _, e := range p.ends {
		e.Close()
	}
	p.done.Wait()
	p.near.wait()
	p.far.wait()
}

// listen gives the address of a server, which serves each connection with f.
func listen(t *testing.T, f func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				f(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	return l.Addr().String()
}

// connect makes a connection that the near side carries.
func (p *pair) connect(t *testing.T) *net.TCPConn {
	t.Helper()
	at := listen(t, func(c *net.TCPConn) { p.near.open(c) })
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func echo(c *net.TCPConn) {
	_, _ = io.Copy(c, c)
	_ = c.CloseWrite()
}

// More than a window goes both ways, over several connections at once, to the last byte.
func TestStreams(t *testing.T) {
	p := newPair(t, listen(t, echo))
	var all sync.WaitGroup
	for i := range 4 {
		c := p.connect(t)
		want := bytes.Repeat([]byte{byte(i), 1, 2, 3, 4, 5, 6}, window/3+i*1000)
		all.Go(func() {
			if _, err := c.Write(want); err != nil {
				t.Error(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
				t.Errorf("connection %d: %d bytes of %d, %v", i, len(got), len(want), err)
			}
		})
	}
	all.Wait()
}

// A connection that nobody reads stops no other.
func TestStalledStream(t *testing.T) {
	release := make(chan struct{})
	p := newPair(t, listen(t, func(c *net.TCPConn) {
		var which [1]byte // connections may come in another order
		if _, err := io.ReadFull(c, which[:]); err == nil && which[0] == 's' {
			<-release
			return
		}
		echo(c)
	}))
	t.Cleanup(func() { close(release) }) // before those of the servers
	full := p.connect(t)
	go func() {
		_, _ = full.Write(append([]byte("stalled"), make([]byte, 64<<20)...)) // until the test closes it
	}()
	quick := p.connect(t)
	if _, err := quick.Write([]byte("q")); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		b := []byte{byte(i)}
		if _, err := quick.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(quick, b); err != nil || b[0] != byte(i) {
			t.Fatalf("%v, %v", b, err)
		}
	}
}

// Where nobody listens on the other side, and where the program goes away, connections end on both sides.
func TestResets(t *testing.T) {
	p := newPair(t, "127.0.0.1:1")
	if n, err := p.connect(t).Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes from nobody", n)
	}

	seen := make(chan error, 1)
	p = newPair(t, listen(t, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		seen <- err
	}))
	c := p.connect(t)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-seen
}

// When the bytes between the sides end, so do all connections.
func TestEnd(t *testing.T) {
	p := newPair(t, listen(t, echo))
	c := p.connect(t)
	b := []byte("x")
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	p.close()
	if n, err := c.Read(b); err == nil {
		t.Errorf("%d bytes after the end", n)
	}
	if !errors.Is(p.nearErr, ErrEnded) {
		t.Errorf("got %v", p.nearErr)
	}
}

// What is no frame, or more than was allowed, ends the connection.
func TestNonsense(t *testing.T) {
	data := append(Header{1, KindData, maxData}.Append(nil), make([]byte, maxData)...)
	for name, text := range map[string][]byte{
		"text":          []byte("motd: welcome to this machine\n"),
		"a stream":      Header{1, KindOpen, 0}.Append(nil), // this side opens them
		"a note":        append(Header{0, KindNote, 2}.Append(nil), "{}"...),
		"over a window": bytes.Repeat(data, window/maxData+1),
		"credit":        append(Header{1, KindCredit, 4}.Append(nil), 255, 255, 255, 255),
	} {
		m := newMux(bytes.NewReader(text), io.Discard)
		m.add(1)
		if err := m.run(t.Context()); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A side that says nothing for 15 seconds is taken for gone; one that is alive says something.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		began := time.Now()
		m := newMux(r, io.Discard)
		if err := m.run(t.Context()); !errors.Is(err, ErrSilent) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(began); d < silent || d > silent+2*time.Second {
			t.Errorf("after %v", d)
		}
		w.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		r1, w1 := io.Pipe()
		r2, w2 := io.Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		errs := make(chan error, 2)
		for _, m := range []*mux{newMux(r1, w2), newMux(r2, w1)} {
			go func() { errs <- m.run(ctx) }()
		}
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w1.Close()
		w2.Close()
		<-errs
	})
}

func TestWays(t *testing.T) {
	for word, want := range map[string]string{
		"me@gpu1":            "-- me@gpu1 exec sh -c 'S'",
		"ssh://me@gpu1:2222": "-- ssh://me@gpu1:2222 exec sh -c 'S'",
		"docker://box":       "docker exec -i box sh -c S",
		"podman://box":       "podman exec -i box sh -c S",
		"kube://pod":         "kubectl exec -i pod -- sh -c S",
		"kube://ns/pod":      "kubectl exec -i -n ns pod -- sh -c S",
		"kube://ns/pod/main": "kubectl exec -i -n ns pod -c main -- sh -c S",
	} {
		w, err := ParseWay(word)
		got := ""
		if err == nil {
			got = strings.Join(append(w.Command[:1:1], w.arguments("S")...), " ")
		}
		if !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, %v", word, got, err)
		}
	}
	for _, word := range []string{
		"", "-oProxyCommand=x", "me@gpu1 -v", "ssh://", "docker://", "docker://-it", "docker://a/b", "kube://a/b/c/d",
		"kube://a/-c", "http://x", "a\nb",
	} {
		if w, err := ParseWay(word); !errors.Is(err, ErrWay) {
			t.Errorf("%q: %+v, %v", word, w, err)
		}
	}
}
