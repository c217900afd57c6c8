package server

import (
	"errors"
	"testing"

	"scuda.dev/scuda/transport"
)

// A ticket is good once, for its purpose, its session and its connection; the secret of which it is made is good for
// nothing else, but for clients that know no tickets.
func TestTickets(t *testing.T) {
	for name, s := range map[string]*testServer{"plain": serve(t, nil), "TLS": serveTLS(t, nil)} {
		t.Run(name, func(t *testing.T) {
			one, two := s.open(transport.KindCUDA).welcome, s.open(transport.KindCUDA).welcome
			further := func(kind string, number int, w *transport.Welcome) *transport.Hello {
				h := hello(kind)
				h.Session, h.Secret, h.Purpose, h.Number, h.Count = w.Session, w.Secret, kind, number, 2
				return h
			}
			join := func(what string, h *transport.Hello, ok bool) {
				t.Helper()
				_, err := s.dial(h)
				if ok && err != nil || !ok && !errors.Is(err, transport.ErrSession) {
					t.Errorf("%s: %v", what, err)
				}
			}
			secret := further(transport.KindCallback, 0, one)
			secret.Purpose = ""
			join("the secret itself", secret, false)
			other := further(transport.KindCallback, 0, one)
			other.Purpose = transport.KindBulk
			join("another purpose", other, false)
			foreign := further(transport.KindCallback, 0, one)
			foreign.Session = two.Session
			join("another session", foreign, false)
			join("too many", further(transport.KindCallback, 1, one), false)
			join("number", further(transport.KindBulk, -1, one), false)

			// A ticket that somebody saw, and presents on a connection of his own.
			seen := further(transport.KindCallback, 0, one)
			seen.Ticket, _ = transport.Ticket(one.Secret, one.Session, seen.Purpose, 0, nil)
			seen.Secret = ""
			join("a ticket of no TLS connection", seen, s.tls == nil)
			join("callback", further(transport.KindCallback, 0, one), s.tls != nil)
			join("again", further(transport.KindCallback, 0, one), false)
			join("the other's", further(transport.KindCallback, 0, two), true)
			join("bulk", further(transport.KindBulk, 0, one), true)
			join("bulk again", further(transport.KindBulk, 0, one), false)
			join("the next", further(transport.KindBulk, 1, one), true)
		})
	}
}

// A client that says nothing of tickets presents the secret.
func TestClientWithoutTickets(t *testing.T) {
	s := serve(t, nil)
	h := hello(transport.KindCUDA)
	h.Capabilities = []string{transport.CapCorrelation}
	l, err := s.dial(h)
	if err != nil {
		t.Fatal(err)
	}
	h = hello(transport.KindCallback)
	h.Session, h.Secret = l.welcome.Session, l.welcome.Secret
	if _, err := s.dial(h); err != nil {
		t.Error(err)
	}
	h = hello(transport.KindBulk)
	h.Session, h.Secret, h.Purpose = l.welcome.Session, l.welcome.Secret, h.Kind
	if _, err := s.dial(h); !errors.Is(err, transport.ErrSession) {
		t.Errorf("with a ticket: %v", err)
	}
}
