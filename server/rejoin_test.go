package server

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport"
)

// Connections of a killed program are told from lost ones: the kernel closes all, and resets those with bytes that the
// program had not read.
func TestLinesClosed(t *testing.T) {
	reset := fmt.Errorf("receive: %w", unix.ECONNRESET)
	for name, c := range map[string]struct {
		lost   [3]error
		closed bool
	}{
		"in order":                 {[3]error{io.EOF, io.EOF, io.EOF}, true},
		"unread bytes":             {[3]error{reset, io.EOF, reset}, true},
		"sent to after its end":    {[3]error{io.EOF, io.EOF, unix.EPIPE}, true},
		"one lives":                {[3]error{io.EOF, io.EOF, nil}, false},
		"resets by something":      {[3]error{reset, reset, reset}, false},
		"one is replaced":          {[3]error{io.EOF, transport.ErrReplaced, io.EOF}, false},
		"one does not answer":      {[3]error{io.EOF, unix.ETIMEDOUT, io.EOF}, false},
		"the network is not there": {[3]error{unix.EHOSTUNREACH, unix.EHOSTUNREACH, unix.EHOSTUNREACH}, false},
	} {
		l := newLines(time.Minute, nil)
		for i, err := range c.lost {
			l.all[uint32(i)] = new(transport.Resumable)
			if err != nil {
				l.lost[uint32(i)] = err
			}
		}
		if got := l.closed(); got != c.closed {
			t.Errorf("%s: %v", name, got)
		}
	}
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
				h := hello(transport.KindCUDA)
				h.Capabilities = append(transport.Offered(), transport.CapResume)
				l, err := s.dial(h)
				if err != nil {
					t.Fatal(err)
				}
				if l.welcome.Grace != 40*time.Second {
					t.Errorf("the server keeps the session for %v", l.welcome.Grace)
				}
				return l.welcome
			}
			one, two, other := open(), open(), s.open(transport.KindCUDA).welcome
			if other.Grace != 0 {
				t.Errorf("a session that did not ask for it is kept for %v", other.Grace)
			}
			further := func(w *transport.Welcome, line uint32, epoch uint64) *transport.Hello {
				h := hello(transport.KindResume)
				h.Session, h.Secret, h.Purpose = w.Session, w.Secret, transport.KindResume
				h.Line, h.Epoch, h.Number = line, epoch, transport.ResumeNumber(line, epoch)
				return h
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
