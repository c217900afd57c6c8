package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/certificate"
)

// doorLimit is longer than a server waits for what a connection says first.
const doorLimit = 3 * time.Minute

// tryDoor opens connections as no client of ours does.
func (f *fuzzer) tryDoor(ctx context.Context, c *trial) {
	ways := []func(context.Context, *trial){f.spoiledPreface, f.spoiledPreface, f.spoiledHello, f.spoiledHello,
		f.spoiledTLS, f.plainAtTLS, f.wrongToken, f.tickets, f.tickets, f.joined}
	ways[c.rnd.IntN(len(ways))](ctx, c)
}

// hello is a right one, of a kind.
func (c *trial) hello(kind string) transport.Hello {
	h := c.of(kind == transport.KindNVML)[0].Hello
	h.Kind, h.Program, h.PID = kind, c.name(), 0
	return h
}

func (c *trial) someKind() string {
	return []string{
		transport.KindCUDA, transport.KindNVML, transport.KindInfo, transport.KindAdmin, transport.KindCallback,
		transport.KindBulk, transport.KindRDMA,
	}[c.rnd.IntN(7)]
}

// dial connects to a server, with TLS where it wants that.
func (c *trial) dial(ctx context.Context, s *server) net.Conn {
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		c.fault("the server is gone: %v", err)
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(doorLimit))
	if s.token == "" {
		return conn
	}
	t := tls.Client(conn, certificate.Pinned(s.fingerprint))
	if err := t.HandshakeContext(ctx); err != nil {
		conn.Close()
		if !isTimeout(err) && ctx.Err() == nil && !errors.Is(err, io.EOF) {
			c.fault("no TLS: %v", err)
		}
		return nil
	}
	return t
}

// anyServer is one of the two, and the token that it wants.
func (c *trial) anyServer() (*server, []byte) {
	s := c.servers()[c.rnd.IntN(2)]
	return s, []byte(s.token)
}

// say sends bytes and reads what comes, to the end; the first answer is looked at.
func (c *trial) say(conn net.Conn, b []byte) *transport.Welcome {
	go send(conn, b)
	var got bytes.Buffer
	_, err := io.Copy(&got, conn)
	if isTimeout(err) {
		c.fault("a connection that said %d bytes does not end within %v", len(b), doorLimit)
		return nil
	}
	w, err := transport.ReadWelcome(&got)
	if err != nil || w.Status != transport.StatusOK {
		c.told(refused)
		return nil
	}
	c.told(carried)
	return w
}

// spoiledPreface is a right preface with wrong bytes, and something behind it.
func (f *fuzzer) spoiledPreface(ctx context.Context, c *trial) {
	s, token := c.anyServer()
	h := c.hello(c.someKind())
	b, err := transport.AppendPreface(nil, token, &h)
	if err != nil {
		c.fault("%v", err)
		return
	}
	for range c.rnd.IntN(4) {
		if c.rnd.IntN(2) == 0 {
			spoil(b[:len(transport.Magic)+8+len(token)+4], c.rnd)
		} else {
			spoil(b, c.rnd)
		}
	}
	if c.rnd.IntN(3) == 0 {
		b = b[:c.rnd.IntN(len(b))]
	}
	b = append(b, garbage(c.rnd, 4096)...)
	c.says(b, "a spoiled preface")
	if conn := c.dial(ctx, s); conn != nil {
		defer conn.Close()
		c.say(conn, b)
	}
}

func garbage(rnd *rand.Rand, most int) []byte {
	b := make([]byte, rnd.IntN(most))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

// spoiledHello is a hello whose JSON is well formed and says strange things.
func (f *fuzzer) spoiledHello(ctx context.Context, c *trial) {
	s, token := c.anyServer()
	h := c.hello(c.someKind())
	text, err := json.Marshal(&h)
	if err != nil {
		c.fault("%v", err)
		return
	}
	fields := map[string]any{}
	_ = json.Unmarshal(text, &fields)
	names := []string{"Kind", "Version", "Digest", "Host", "Program", "Command", "PID", "ClientBase", "ClientSlots",
		"ServerBase", "ServerSlots", "Session", "Secret", "Count", "MinVersion", "Capabilities", "Requires", "Line", "Epoch",
		"Acknowledged", "Ticket", "Purpose"}
	for range 1 + c.rnd.IntN(4) {
		var v any
		switch c.rnd.IntN(8) {
		case 0:
			v = odd(c.rnd)
		case 1:
			v = -int64(odd(c.rnd) >> 1)
		case 2:
			v = strings.Repeat("x\x00\"\n", c.rnd.IntN(8000))
		case 3:
			v = []string{"tickets", "resume", strings.Repeat("y", c.rnd.IntN(1000))}
		case 4:
			v = nil
		case 5:
			v = map[string]any{"a": []any{1, "b"}}
		case 6:
			v = c.someKind()
		case 7:
			v = 1.5e300
		}
		fields[names[c.rnd.IntN(len(names))]] = v
	}
	text, err = json.Marshal(fields)
	if err != nil {
		c.fault("%v", err)
		return
	}
	b := append([]byte(transport.Magic), 1, 0, 0, 0)
	b = le.AppendUint32(b, uint32(len(token)))
	b = append(b, token...)
	b = le.AppendUint32(b, uint32(len(text)))
	b = append(b, text...)
	b = append(b, garbage(c.rnd, 256)...)
	c.says(b, "a strange hello")
	if conn := c.dial(ctx, s); conn != nil {
		defer conn.Close()
		c.say(conn, b)
	}
}

// spoiler of a connection's bytes on their way out.
type spoiledConn struct {
	net.Conn
	rnd *rand.Rand
	at  int // from here on
}

func (s *spoiledConn) Write(b []byte) (int, error) {
	if n := len(b); s.at < n {
		out := slices.Clone(b)
		spoil(out[max(0, s.at):], s.rnd)
		s.at = n + s.rnd.IntN(2048)
		if s.rnd.IntN(8) == 0 {
			out = append(out, garbage(s.rnd, 512)...)
		}
		if _, err := s.Conn.Write(out); err != nil {
			return 0, err
		}
		return n, nil
	}
	s.at -= len(b)
	return s.Conn.Write(b)
}

// spoiledTLS is a handshake of TLS with wrong bytes, or records behind it that are.
func (f *fuzzer) spoiledTLS(ctx context.Context, c *trial) {
	at := c.rnd.IntN(2600)
	c.says(nil, "TLS with wrong bytes from %d on", at)
	conn, err := net.Dial("tcp", f.tls.addr)
	if err != nil {
		c.fault("the server is gone: %v", err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(doorLimit))
	t := tls.Client(&spoiledConn{Conn: conn, rnd: c.rnd, at: at}, certificate.Pinned(f.tls.fingerprint))
	if err := t.HandshakeContext(ctx); err != nil {
		if isTimeout(err) && ctx.Err() == nil {
			c.fault("the server does not end a handshake that goes wrong")
		}
		c.told(refused)
		return
	}
	h := c.hello(transport.KindCUDA)
	b, err := transport.AppendPreface(nil, []byte(f.tls.token), &h)
	if err != nil {
		c.fault("%v", err)
		return
	}
	r := c.of(false)[0]
	c.say(t, append(b, stream(r.Commands[:min(len(r.Commands), 100)])...))
}

// plainAtTLS opens without TLS where TLS is wanted, with the right token.
func (f *fuzzer) plainAtTLS(_ context.Context, c *trial) {
	h := c.hello(c.someKind())
	b, err := transport.AppendPreface(nil, []byte(f.tls.token), &h)
	if err != nil {
		c.fault("%v", err)
		return
	}
	c.says(b, "no TLS where it is wanted")
	conn, err := net.Dial("tcp", f.tls.addr)
	if err != nil {
		c.fault("the server is gone: %v", err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(doorLimit))
	if c.say(conn, b) != nil {
		c.fault("a client without TLS was admitted")
	}
}

// wrongToken presents a token that is almost right.
func (f *fuzzer) wrongToken(ctx context.Context, c *trial) {
	token := []byte(f.tls.token)
	switch c.rnd.IntN(5) {
	case 0:
		token = nil
	case 1:
		token = token[:c.rnd.IntN(len(token))]
	case 2:
		token = append(token, byte(c.rnd.Uint32()))
	case 3:
		token[c.rnd.IntN(len(token))] ^= 1 << c.rnd.IntN(8)
	case 4:
		token = append(garbage(c.rnd, transport.MaxToken-64), token...)
		token[0] ^= 1 // never the right one
	}
	h := c.hello(c.someKind())
	b, err := transport.AppendPreface(nil, token, &h)
	if err != nil {
		c.fault("%v", err)
		return
	}
	c.says(b, "a wrong token")
	if conn := c.dial(ctx, f.tls); conn != nil {
		defer conn.Close()
		if c.say(conn, b) != nil {
			c.fault("a client with a wrong token was admitted")
		}
	}
}

// session opens a CUDA session that says nothing.
func (c *trial) session(ctx context.Context, s *server) (net.Conn, *transport.Welcome) {
	h := c.hello(transport.KindCUDA)
	ctx, cancel := context.WithTimeout(ctx, doorLimit)
	defer cancel()
	conn, w, err := transport.DialNet(ctx, s.target(), &h)
	if err != nil {
		if errors.Is(err, transport.ErrToken) || errors.Is(err, transport.ErrUntrusted) {
			c.fault("no session: %v", err)
		}
		return nil, nil
	}
	_ = conn.SetDeadline(time.Now().Add(doorLimit))
	return conn, w
}

func (s *server) target() transport.Target {
	t := transport.Target{Address: s.addr}
	if s.token != "" {
		t.Token, t.TLS = []byte(s.token), certificate.Pinned(s.fingerprint)
	}
	return t
}

// tickets presents good tickets twice, and bad ones.
func (f *fuzzer) tickets(ctx context.Context, c *trial) {
	s, _ := c.anyServer()
	main, w := c.session(ctx, s)
	if main == nil {
		return
	}
	defer main.Close()
	other, foreign := c.session(ctx, s)
	if other == nil {
		return
	}
	defer other.Close()
	c.says(nil, "tickets")
	kind := []string{transport.KindCallback, transport.KindBulk}[c.rnd.IntN(2)]
	join := func(h transport.Hello) (net.Conn, error) {
		h.Program, h.Count = c.name(), 2
		conn, _, err := transport.DialNet(ctx, s.target(), &h)
		return conn, err
	}
	good := transport.Hello{Kind: kind, Session: w.Session, Secret: w.Secret, Purpose: kind}
	used := false
	for range 2 + c.rnd.IntN(4) {
		h, ok := good, !used
		what := "the good ticket"
		switch c.rnd.IntN(7) {
		case 0:
			h.Number, ok, what = int(int32(odd(c.rnd)))&^1+100, false, "a ticket with a number that is not given out"
		case 1:
			h.Secret, ok, what = foreign.Secret, false, "a ticket of another session's secret"
		case 2:
			h.Session, ok, what = foreign.Session, false, "another session's id with our secret"
		case 3:
			h.Purpose, ok, what = transport.KindRDMA, false, "a ticket for another purpose"
		case 4:
			h.Purpose, ok, what = "", false, "the secret itself"
		case 5:
			h.Secret, h.Ticket, ok, what = "", "0."+strings.Repeat("0", 64), false, "a made-up ticket"
		}
		conn, err := join(h)
		if err == nil {
			defer conn.Close()
		}
		switch {
		case err == nil && !ok:
			c.fault("a connection was admitted by %s (used before: %v)", what, used)
		case err != nil && ok && errors.Is(err, transport.ErrSession):
			c.fault("a connection was refused that had the good ticket: %v", err)
		case err == nil:
			used = true
			c.told(carried)
		default:
			c.told(refused)
		}
	}
}

// joined says nonsense on a connection that a session has taken.
func (f *fuzzer) joined(ctx context.Context, c *trial) {
	s, _ := c.anyServer()
	main, w := c.session(ctx, s)
	if main == nil {
		return
	}
	defer main.Close()
	kind := []string{transport.KindCallback, transport.KindBulk, transport.KindRDMA}[c.rnd.IntN(3)]
	c.says(nil, "nonsense on a connection for %s", kind)
	h := transport.Hello{Kind: kind, Session: w.Session, Secret: w.Secret, Purpose: kind, Program: c.name(), Count: 1}
	conn, _, err := transport.DialNet(ctx, s.target(), &h)
	if err != nil {
		c.told(refused)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second)) // while its session goes on it need not end
	var b []byte
	for range c.rnd.IntN(20) {
		m := transport.MessageHeader{Type: transport.MessageType(16 + c.rnd.IntN(40)), ID: uint32(c.rnd.IntN(4)),
			Seq: uint64(c.rnd.IntN(4)), Aux: uint64(c.rnd.IntN(4096)), Len: uint32(c.rnd.IntN(4096))}
		if c.rnd.IntN(2) == 0 {
			m.Seq, m.Aux = odd(c.rnd), odd(c.rnd)
		}
		text := garbage(c.rnd, int(transport.Pad(m.Len))+1)
		if kind == transport.KindRDMA && c.rnd.IntN(2) == 0 {
			text = []byte(`{"QPN":1,"LID":2,"GID":"AAAA","MTU":4096,"Depth":-1,"Slots":[{"Address":0,"Key":1}]}`)
		}
		m.Len = uint32(len(text))
		b = append(m.Append(b), append(text, make([]byte, int(transport.Pad(m.Len))-len(text))...)...)
	}
	if len(b) > 0 && c.rnd.IntN(2) == 0 {
		spoil(b, c.rnd)
	}
	c.says(b, "nonsense on a connection for %s", kind)
	go send(conn, b)
	_, _ = io.Copy(io.Discard, conn)
	c.told(carried)
}
