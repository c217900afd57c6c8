package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"scuda.dev/scuda/transport/certificate"
	"scuda.dev/scuda/transport/tlsrecord"
)

// forServer is a server's configuration, forClient that of a client that knows it.
func configs(t testing.TB) (forServer, forClient *tls.Config) {
	t.Helper()
	cert, err := certificate.Keep(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}, certificate.Pinned(certificate.Fingerprint(cert.Leaf))
}

// welcomeTLS is a server that shakes hands and goes on with f.
func welcomeTLS(t *testing.T, cfg *tls.Config, f func(c *TLSConn)) func(*net.TCPConn) {
	return func(tcp *net.TCPConn) {
		c, err := ServeTLS(context.Background(), tcp, cfg, nil)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := ReadPreface(c, nil); err != nil {
			t.Error(err)
		}
		b, err := AppendWelcome(nil, &Welcome{})
		if err != nil {
			t.Error(err)
		}
		if _, err := c.Write(b); err != nil {
			t.Error(err)
		}
		f(c)
	}
}

// hand gives a connection on as a supervisor does: its state as JSON, its descriptor.
func hand(t *testing.T, c *TLSConn) (int, *tlsrecord.State) {
	t.Helper()
	s, err := Export(c)
	if err != nil {
		t.Error(err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Error(err)
	}
	s = new(tlsrecord.State)
	if err := json.Unmarshal(text, s); err != nil {
		t.Error(err)
	}
	fd, err := Detach(Socket(c))
	if err != nil {
		t.Error(err)
	}
	return fd, s
}

// The main connection: both ends never block, in one process after a hand-over; more bytes than the sockets hold.
func TestConnWithTLS(t *testing.T) {
	forServer, forClient := configs(t)
	const much = 20 << 20
	data := make([]byte, much)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	address := serve(t, welcomeTLS(t, forServer, func(c *TLSConn) {
		fd, state := hand(t, c)
		conn, err := NewTLSConn(fd, "client", state)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		echoAll(t, conn, much)
	}))
	conn, _, err := Dial(t.Context(), Target{Address: address, TLS: forClient}, &Hello{Kind: KindCUDA})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var both sync.WaitGroup
	both.Go(func() { sendAll(t, conn, data) })
	got := make([]byte, 0, much)
	part := [][]byte{make([]byte, 20), make([]byte, 30<<10)}
	for len(got) < much {
		n, err := conn.Recv(part)
		if errors.Is(err, ErrAgain) {
			if _, err = conn.Wait(Readable, 10*time.Second); err == nil {
				continue
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, part[0][:min(n, 20)]...)
		got = append(got, part[1][:max(0, n-20)]...)
	}
	both.Wait()
	if !bytes.Equal(got, data) {
		t.Error("the bytes came changed")
	}
	if ev, err := conn.Wait(Readable, 10*time.Second); ev != Readable || err != nil {
		t.Fatal(ev, err)
	}
	if _, err := conn.Recv(part); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func sendAll(t *testing.T, c Conn, data []byte) {
	for k := 1; len(data) > 0; {
		k = min(k*2, 1<<20, len(data))
		n, err := c.Send([][]byte{data[:k/3], data[k/3 : k]})
		if errors.Is(err, ErrAgain) {
			_, err = c.Wait(Writable, 10*time.Second)
		}
		if err != nil {
			t.Error(err)
			return
		}
		data = data[n:]
	}
}

func echoAll(t *testing.T, c Conn, n int) {
	b := make([]byte, 256<<10)
	for n > 0 {
		k, err := c.Recv([][]byte{b})
		if errors.Is(err, ErrAgain) {
			_, err = c.Wait(Readable, 10*time.Second)
		}
		if err != nil {
			t.Error(err)
			return
		}
		sendAll(t, c, b[:k])
		n -= k
	}
}

// What was received and does not fit does not wait for the socket.
func TestReadyWithTLS(t *testing.T) {
	forServer, forClient := configs(t)
	address := serve(t, welcomeTLS(t, forServer, func(c *TLSConn) {
		if _, err := c.Write(make([]byte, 50<<10)); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, c)
	}))
	conn, _, err := Dial(t.Context(), Target{Address: address, TLS: forClient}, &Hello{Kind: KindCUDA})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for got := 0; got < 50<<10; {
		if ev, err := conn.Wait(Readable, 10*time.Second); ev != Readable || err != nil {
			t.Fatal(ev, err, got)
		}
		n, err := conn.Recv([][]byte{make([]byte, 1000)})
		if err != nil && !errors.Is(err, ErrAgain) {
			t.Fatal(err)
		}
		got += n
	}
}

// A line, from a connection of this process and from one that another made.
func TestLineWithTLS(t *testing.T) {
	forServer, forClient := configs(t)
	data := bytes.Repeat([]byte("0123456789"), 300_001)
	address := serve(t, welcomeTLS(t, forServer, func(c *TLSConn) {
		fd, state := hand(t, c)
		f := os.NewFile(uintptr(fd), "handed over")
		plain, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Error(err)
			return
		}
		resumed, err := ResumeTLS(plain, state)
		if err != nil {
			t.Error(err)
			return
		}
		line, err := NewLine(resumed)
		if err != nil {
			t.Error(err)
			return
		}
		defer line.Close()
		b := make([]byte, len(data))
		for _, part := range [][]byte{b[:1], b[1:40000], b[40000:]} {
			if err := line.ReadFull(part); err != nil {
				t.Error(err)
				return
			}
		}
		if err := line.Send(MessageHeader{Type: MsgChunk}, b); err != nil {
			t.Error(err)
		}
	}))
	c, _, err := DialNet(t.Context(), Target{Address: address, TLS: forClient}, &Hello{Kind: KindBulk})
	if err != nil {
		t.Fatal(err)
	}
	line, err := NewLine(c)
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	if err := line.write([][]byte{bytes.Clone(data[:7]), nil, bytes.Clone(data[7:])}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, MessageHeaderSize+Pad(len(data)))
	if err := line.ReadFull(got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[MessageHeaderSize:][:len(data)], data) {
		t.Error("the bytes came changed")
	}
	if err := line.ReadFull(got[:1]); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// What is said after the hand-over by who kept the socket comes before what the other says.
func TestSealedWelcome(t *testing.T) {
	forServer, forClient := configs(t)
	address := serve(t, func(tcp *net.TCPConn) {
		c, err := ServeTLS(context.Background(), tcp, forServer, nil)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := ReadPreface(c, nil); err != nil {
			t.Error(err)
		}
		b, _ := AppendWelcome(nil, &Welcome{Session: strings.Repeat("x", 200<<10)})
		sealed, err := c.Seal(b)
		if err != nil {
			t.Error(err)
		}
		state, err := Export(c)
		if err != nil {
			t.Error(err)
		}
		other, err := ResumeTLS(tcp, state)
		if err != nil {
			t.Error(err)
		}
		if _, err := tcp.Write(sealed); err != nil {
			t.Error(err)
		}
		if _, err := other.Write([]byte("hello")); err != nil {
			t.Error(err)
		}
		if err := other.(*TLSConn).CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	c, w, err := DialNet(t.Context(), Target{Address: address, TLS: forClient}, &Hello{Kind: KindInfo})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello" || len(w.Session) != 200<<10 {
		t.Errorf("%q, %v, %d", got, err, len(w.Session))
	}
}

func TestTLSErrors(t *testing.T) {
	forServer, _ := configs(t)
	_, another := configs(t)
	secured := func(c *net.TCPConn) { _, _ = ServeTLS(context.Background(), c, forServer, nil) }
	for _, c := range []struct {
		name    string
		address string
		tls     *tls.Config
		kind    error
		says    string
	}{
		{"unknown", serve(t, secured), certificate.Pinned(""), ErrUntrusted, "SCUDA_FINGERPRINT"},
		{"no authority's", serve(t, secured), &tls.Config{ServerName: "x"}, ErrUntrusted, "SCUDA_CA"},
		{"another key", serve(t, secured), another, ErrUntrusted, "another one"},
		{"no TLS", serve(t, func(c *net.TCPConn) {
			_, _ = ReadPreface(c, nil)
			_, _ = c.Write([]byte(Magic))
		}), another, ErrTLS, "does not answer to TLS"},
		{"silent", serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }), another, ErrTimeout, "does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			limit := 30 * time.Second
			if errors.Is(c.kind, ErrTimeout) {
				limit = time.Second // of which connecting takes a part
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, _, err := Dial(ctx, Target{Address: c.address, TLS: c.tls}, &Hello{Kind: KindInfo})
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) ||
				strings.Contains(err.Error(), "SCUDA_INSECURE") {
				t.Errorf("%v", err)
			}
		})
	}
}
