package session

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// peer is the test's server: it shakes hands and gives each command to a function.
type peer struct {
	t        testing.TB
	listener *net.TCPListener
	welcome  transport.Welcome
	command  func(p *peer, h transport.CommandHeader, payload, bulk []byte) // called in order
	opened   func(p *peer)                                                  // called when the main connection is open
	flush    func(transport.MessageHeader)                                  // called by ask for a FLUSH

	mu       sync.Mutex
	chain    transport.Chain // of the main connection
	asked    transport.Chain // of what is sent on the callback connection
	answered transport.Chain // and of what comes there
	conns    []net.Conn
	main     net.Conn
	callback chan net.Conn
	joining  func(hello *transport.Hello) // told of bulk connections before they are welcomed
	bulk     chan net.Conn
	ended    chan struct{}
	done     sync.WaitGroup
	hello    transport.Hello
	ops      []uint16
	seqs     []uint64
	drop     bool // reads commands without looking at them
	beat     time.Duration
	deaf     atomic.Bool // answers no ping
	// between the peer and the client: what becomes of a message
	change func(h transport.MessageHeader) []transport.MessageHeader
	bye    atomic.Bool
	refuse func() bool // whether to break a callback connection off
	// whether the server connects to another one; nil: it is not asked
	connects func(*transport.Introduction) bool
}

const deadline = 2 * time.Minute

func newPeer(t testing.TB) *peer {
	t.Helper()
	l, err := transport.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{
		t: t, listener: l, callback: make(chan net.Conn, 1), bulk: make(chan net.Conn, transport.MaxBulkConns),
		ended: make(chan struct{}), welcome: transport.Welcome{Session: "s1", Secret: "x", DriverVersion: 13000, GPU: "sim"},
	}
	p.done.Go(p.accept)
	t.Cleanup(p.kill)
	return p
}

// kill is the server's sudden death.
func (p *peer) kill() {
	p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	p.mu.Unlock()
	p.done.Wait()
}

func (p *peer) accept() {
	for {
		c, err := p.listener.AcceptTCP()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.conns = append(p.conns, c)
		p.mu.Unlock()
		p.done.Go(func() { p.serve(c) })
	}
}

func (p *peer) serve(c *net.TCPConn) {
	hello, err := transport.ReadPreface(c, nil)
	if err != nil {
		return
	}
	b, err := transport.AppendWelcome(nil, &p.welcome)
	if err != nil {
		p.t.Error(err)
	}
	if hello.Kind == transport.KindIntroduce {
		if p.connects(hello.Introduction) {
			_, _ = c.Write(b)
		}
		c.Close()
		return
	}
	if hello.Kind == transport.KindBulk {
		if p.joining != nil {
			p.joining(hello)
		}
		if _, err := c.Write(b); err == nil {
			p.bulk <- c
		}
		return
	}
	if hello.Kind == transport.KindCallback && p.refuse != nil && p.refuse() {
		c.Close()
		return
	}
	if hello.Kind != transport.KindCallback { // once the client has its welcome, the test may use the connection
		p.mu.Lock()
		p.main, p.hello = c, *hello
		p.mu.Unlock()
	}
	if _, err := c.Write(b); err != nil {
		return
	}
	if hello.Kind == transport.KindCallback {
		if hello.Session != p.welcome.Session || hello.Secret != p.welcome.Secret {
			p.t.Errorf("callback connection names session %q, secret %q", hello.Session, hello.Secret)
		}
		p.callback <- c
		return
	}
	if p.opened != nil {
		p.opened(p)
	}
	if p.drop {
		_, _ = io.Copy(io.Discard, c)
		return
	}
	p.commands(bufio.NewReaderSize(c, 1<<16))
}

// commands reads frames until the connection ends.
func (p *peer) commands(r io.Reader) {
	for {
		b := make([]byte, transport.FrameHeaderSize)
		if _, err := io.ReadFull(r, b); err != nil {
			if err == io.EOF {
				close(p.ended)
			}
			return
		}
		f, _, err := transport.ParseFrame(b)
		if err != nil {
			p.t.Error(err)
			return
		}
		b = make([]byte, f.Len)
		if _, err := io.ReadFull(r, b); err != nil {
			return
		}
		for len(b) > 0 {
			h, payload, err := transport.ParseCommand(b)
			if err != nil {
				p.t.Error(err)
				return
			}
			b = b[h.Size:]
			var bulk []byte
			if h.Flags&transport.FlagBulk != 0 {
				n := h.BulkBytes(payload)
				if len(b) != 0 {
					p.t.Errorf("%d bytes follow a bulk command in its frame", len(b))
				}
				bulk = make([]byte, transport.Pad(n))
				if _, err := io.ReadFull(r, bulk); err != nil {
					return
				}
				bulk = bulk[:n]
			}
			if h.Op == wire.OpBye {
				p.bye.Store(true)
				continue
			}
			if h.Op == wire.OpPing && h.Thread == transport.CoreThread {
				if !p.deaf.Load() {
					p.say(transport.MessageHeader{Type: transport.MsgAlive, Seq: h.Seq}, nil)
				}
				continue
			}
			p.mu.Lock()
			p.ops, p.seqs = append(p.ops, h.Op), append(p.seqs, h.Seq)
			p.mu.Unlock()
			if p.command != nil {
				p.command(p, h, payload, bulk)
			}
		}
	}
}

// say sends a message on the main connection.
func (p *peer) say(h transport.MessageHeader, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.Len = uint32(len(payload))
	h.Flags = p.chain.Next(&h)
	if p.change == nil {
		sayOn(p.main, h, payload)
		return
	}
	for _, changed := range p.change(h) {
		b := append(changed.Append(nil), payload...)
		_, _ = p.main.Write(append(b, make([]byte, transport.Pad(len(payload))-len(payload))...))
	}
}

func sayOn(c net.Conn, h transport.MessageHeader, payload []byte) {
	h.Len = uint32(len(payload))
	b := append(h.Append(nil), payload...)
	b = append(b, make([]byte, transport.Pad(len(payload))-len(payload))...)
	_, _ = c.Write(b) // a client that has gone is what some tests are about
}

// sayBack sends a message on the callback connection.
func (p *peer) sayBack(h transport.MessageHeader, payload []byte) {
	c := p.callbackConn()
	p.mu.Lock()
	defer p.mu.Unlock()
	h.Len = uint32(len(payload))
	h.Flags = p.asked.Next(&h)
	sayOn(c, h, payload)
}

func (p *peer) reply(h transport.CommandHeader, result int32, payload []byte) {
	p.say(transport.MessageHeader{Type: transport.MsgReply, ID: h.Thread, Result: result, Seq: h.Seq}, payload)
}

// callbackConn waits for the callback connection.
func (p *peer) callbackConn() net.Conn {
	select {
	case c := <-p.callback:
		p.callback <- c
		return c
	case <-time.After(deadline):
		p.t.Fatal("no callback connection")
		return nil
	}
}

// ask sends a message on the callback connection and waits for the answer. What comes before it is handed to flush, or
// ignored.
func (p *peer) ask(h transport.MessageHeader, with ...byte) (transport.MessageHeader, []byte) {
	p.sayBack(h, with)
	for {
		h, payload := p.hear()
		if h.Type != transport.MsgFlush {
			return h, payload
		}
		if p.flush != nil {
			p.flush(h)
		}
	}
}

// hear receives a message on the callback connection. PING is answered.
func (p *peer) hear() (transport.MessageHeader, []byte) {
	for {
		h, payload := p.hearAny()
		if h.Type != transport.MsgPing {
			return h, payload
		}
		p.sayBack(transport.MessageHeader{Type: transport.MsgPong, Seq: h.Seq}, nil)
	}
}

func (p *peer) hearAny() (transport.MessageHeader, []byte) {
	c := p.callbackConn()
	b := make([]byte, transport.MessageHeaderSize)
	_ = c.SetReadDeadline(time.Now().Add(deadline))
	if _, err := io.ReadFull(c, b); err != nil {
		p.t.Error(err)
		return transport.MessageHeader{}, nil
	}
	h, _, err := transport.ParseMessage(b)
	if err != nil {
		p.t.Error(err)
	}
	if err := p.answered.Check(&h); err != nil {
		p.t.Error(err)
	}
	payload := make([]byte, transport.Pad(int(h.Len)))
	if _, err := io.ReadFull(c, payload); err != nil {
		p.t.Error(err)
	}
	return h, payload[:h.Len]
}

// logText collects the session's log.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// open opens a session of f with p, and closes it at the test's end.
func (p *peer) open(f *front, host func(HostFunction, int32)) (*Session, *logText) {
	p.t.Helper()
	return p.openWith(f, host, 0)
}

// openWith opens a session that may use bulk connections.
func (p *peer) openWith(f *front, host func(HostFunction, int32), bulk int) (*Session, *logText) {
	p.t.Helper()
	text := new(logText)
	cfg := p.config(text)
	cfg.HostRun, cfg.Bulk = host, bulk
	s, err := Open(f.shared, cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		s.Close()
		s.Wait()
	})
	return s, text
}

// config is that of a session with the peer, which is set up: the race detector does not know that the client's system
// calls come before the peer's.
func (p *peer) config(log io.Writer) Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Config{Server: transport.Target{Address: p.listener.Addr().String()},
		Log: slog.New(slog.NewTextHandler(log, nil)), beat: p.beat}
}

// within fails the test when f does not return in time; a deadlock would otherwise only show as the whole run's
// timeout.
func within(t testing.TB, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(deadline):
		stacks := make([]byte, 1<<20)
		t.Fatalf("still not done: deadlock?\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}
