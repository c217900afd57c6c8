package server

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/resume"
)

// resumable opens a session that outlives its connections.
func (s *testServer) resumable() *link {
	s.t.Helper()
	h := hello(transport.KindCUDA)
	h.Capabilities = append(transport.Offered(), transport.CapResume)
	l, err := s.dial(h)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// aged gives a session its callback connection, which it has soon after its beginning: while it has only one, nobody
// can tell a killed program from a lost network. The worker has it when it answers to the next one.
func (s *testServer) aged() *link {
	s.t.Helper()
	l := s.resumable()
	for _, line := range []uint32{transport.LineCallback, transport.LineBulk} {
		h := further(l.welcome, line, 1)
		h.Count = 1
		next, err := s.dial(h)
		if err == nil {
			_, err = transport.ReadResumes(next.conn)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	l.speak()
	return l
}

// further asks for another socket of a connection.
func further(w *transport.Welcome, line uint32, epoch uint64) *transport.Hello {
	h := hello(transport.KindResume)
	h.Session, h.Secret, h.Purpose = w.Session, w.Secret, transport.KindResume
	h.Line, h.Epoch, h.Number = line, epoch, transport.ResumeNumber(line, epoch)
	return h
}

// speak sends a first command in a record, and reads the one with the answer: a session of whose client nothing
// was heard is kept for a moment only. It gives how many bytes of the streams that were.
func (l *link) speak() (sent, answered uint64) {
	l.t.Helper()
	ping := l.next(wire.OpPing, 0, make([]byte, 8))
	b := resume.AppendHeader(nil, resume.Header{Kind: resume.Bytes, Len: len(ping)})
	if _, err := l.conn.Write(append(b, ping...)); err != nil {
		l.t.Fatal(err)
	}
	answer := make([]byte, resume.HeaderSize)
	if !readFull(l.conn, answer) {
		l.t.Fatal("the ping was not answered")
	}
	h, err := resume.ParseHeader(answer)
	if err != nil || h.Kind != resume.Bytes || h.Received != uint64(len(ping)) {
		l.t.Fatalf("the answer is %+v (%v)", h, err)
	}
	if !readFull(l.conn, make([]byte, h.Len)) { // a connection that is closed with unread bytes is reset
		l.t.Fatal("the answer is not whole")
	}
	return h.Received, uint64(h.Len)
}

// reset breaks a link's connection.
func (l *link) reset() {
	_ = l.conn.(*net.TCPConn).SetLinger(0)
	l.conn.Close()
}

// Another socket for a connection needs a ticket of the session, for just this connection and a socket that is later
// than those that came before. A session that did not ask for it gets none.
func TestRejoin(t *testing.T) {
	for name, s := range map[string]*testServer{
		"plain": serve(t, func(c *Config) { c.Grace = 40 * time.Second }),
		"TLS":   serveTLS(t, func(c *Config) { c.Grace = 40 * time.Second }),
	} {
		t.Run(name, func(t *testing.T) {
			open := func() *transport.Welcome {
				l := s.resumable()
				if l.welcome.Grace != 40*time.Second {
					t.Errorf("the server keeps the session for %v", l.welcome.Grace)
				}
				return l.welcome
			}
			one, two, other := open(), open(), s.open(transport.KindCUDA).welcome
			if other.Grace != 0 {
				t.Errorf("a session that did not ask for it is kept for %v", other.Grace)
			}
			join := func(what string, h *transport.Hello, ok bool) {
				t.Helper()
				l, err := s.dial(h)
				if ok && err != nil || !ok && !errors.Is(err, transport.ErrSession) {
					t.Errorf("%s: %v", what, err)
				}
				if ok && err == nil && (l.welcome.Line != h.Line || l.welcome.Epoch != h.Epoch) {
					t.Errorf("%s: the answer is about line %d, epoch %d", what, l.welcome.Line, l.welcome.Epoch)
				}
			}
			main := transport.LineMain
			join("no connection", further(one, 0, 1), false)
			join("a connection that no session has", further(one, transport.LineEnd, 1), false)
			join("a number between", further(one, transport.LineBulk-1, 1), false)
			join("the first socket", further(one, main, 0), false)
			wrong := further(one, main, 2)
			wrong.Number = transport.ResumeNumber(main, 1)
			join("the ticket of another socket", wrong, false)
			wrong = further(one, main, 1)
			wrong.Number = transport.ResumeNumber(transport.LineCallback, 1)
			join("the ticket of another connection", wrong, false)
			wrong = further(one, main, 1)
			wrong.Session = two.Session
			join("another session", wrong, false)
			wrong = further(one, main, 1)
			wrong.Purpose = transport.KindCallback
			join("another purpose", wrong, false)
			join("a session that ends with its connections", further(other, main, 1), false)
			join("right", further(one, main, 3), true)
			join("again", further(one, main, 3), false)
			join("an earlier one", further(one, main, 2), false)
			join("the next", further(one, main, 4), true)
			join("the other's", further(two, main, 1), true)
		})
	}
	s := serve(t, func(c *Config) { c.Grace = -1 })
	h := hello(transport.KindCUDA)
	h.Capabilities = append(transport.Offered(), transport.CapResume)
	if l, err := s.dial(h); err != nil || l.welcome.Grace != 0 {
		t.Errorf("a server without grace: %+v (%v)", l, err)
	}
	h.Line = transport.LineMain
	if _, err := s.dial(h); !errors.Is(err, transport.ErrCapability) {
		t.Errorf("a server without grace takes nobody back: %v", err)
	}
}

// What an outage was is counted: that the session waits for its client, how long that took, and what was sent again.
func TestOutagesAreCounted(t *testing.T) {
	s := serve(t, func(c *Config) { c.Grace, c.Metrics = time.Hour, "127.0.0.1:0" })
	l := s.resumable()
	s.shows("scuda_sessions_away 0")
	s.shows("scuda_outage_seconds_count 0")
	sent, got := l.speak()
	l.reset() // nothing of it has arrived
	s.shows("scuda_sessions_away 1")
	s.shows("scuda_outage_seconds_count 0")

	next, err := s.dial(further(l.welcome, transport.LineMain, 1))
	if err != nil {
		t.Fatal(err)
	}
	if received, err := transport.ReadResumes(next.conn); err != nil || received != sent {
		t.Errorf("the server has received %d bytes (%v)", received, err)
	}
	s.shows("scuda_sessions_away 0")
	s.shows("scuda_outage_seconds_count 1")
	s.shows(fmt.Sprintf("scuda_outage_replayed_bytes_total %d", got))
	s.stop()
}

// A session whose client does not come back ends as such; one whose program was killed does not wait for that.
func TestAway(t *testing.T) {
	s := serve(t, func(c *Config) { c.Grace, c.Metrics = 10*time.Millisecond, "127.0.0.1:0" })
	l := s.aged()
	l.reset()
	s.shows(`scuda_sessions_ended_total{how="away",kind="cuda"} 1`)
	s.logged("the client has not come back within 10ms")
	l = s.resumable()
	l.speak()
	l.conn.Close()
	s.shows(`scuda_sessions_ended_total{how="left",kind="cuda"} 1`)
	s.shows("scuda_sessions_away 0")
	s.shows("scuda_outage_seconds_count 2")
}

// RDMA's control connection outlives its sockets with clients that say so; with others it ends with the first. Who may
// not have RDMA does not get it as another socket either.
func TestRDMAMayReturn(t *testing.T) {
	s := serve(t, nil)
	for name, c := range map[string]struct {
		capabilities []string
		line         uint32
	}{
		"a client":           {transport.Resuming(), transport.LineRDMA},
		"one of before":      {append(transport.Offered(), transport.CapResume), 0},
		"one without return": {transport.Offered(), 0},
	} {
		h := hello(transport.KindCUDA)
		h.Capabilities = c.capabilities
		l, err := s.dial(h)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(l.welcome.Capabilities, transport.CapResumeRDMA); got != (c.line != 0) {
			t.Errorf("%s is told that it may return: %v", name, got)
		}
		x := &session{grace: l.welcome.Grace}
		if got := x.lineOf(&transport.Hello{Kind: transport.KindRDMA, Capabilities: c.capabilities}); got != c.line {
			t.Errorf("%s: connection %d, not %d", name, got, c.line)
		}
		if c.line != 0 {
			l.speak()
			if _, err := s.dial(further(l.welcome, c.line, 1)); !errors.Is(err, transport.ErrCapability) {
				t.Errorf("a server without RDMA gave a socket for it: %v", err)
			}
		}
	}
}
