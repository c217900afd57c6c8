package server

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

// Connections that say nothing keep nobody out, however many there are, even of their own address.
func TestSilentSockets(t *testing.T) {
	const silent = 1000 // both ends are this process's
	s := serve(t, func(c *Config) { c.Token = []byte("correct horse") })
	s.token = []byte("correct horse")
	for range silent {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for _, kind := range []string{transport.KindInfo, transport.KindCUDA, transport.KindNVML} {
		began := time.Now()
		s.open(kind)
		if took := time.Since(began); took > transport.PrefaceTimeout/2 {
			t.Errorf("an opening of kind %s took %v beside %d silent sockets", kind, took, silent)
		}
	}
}

// Who presents wrong tokens is answered later each time, and fills no log. Who has the token is not held up.
func TestWrongTokens(t *testing.T) {
	const guesses = 60
	s := serve(t, func(c *Config) { c.Token = []byte("correct horse") })
	began, answers := time.Now(), make(chan error, guesses)
	for range guesses {
		go func() {
			_, err := (&testServer{t: t, addr: s.addr, token: []byte("guess")}).dial(hello(transport.KindCUDA))
			answers <- err
		}()
	}
	s.logged("refused a connection")
	s.token = []byte("correct horse")
	s.open(transport.KindInfo)
	for range guesses {
		if err := <-answers; !errors.Is(err, transport.ErrToken) {
			t.Error(err)
		}
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("%d guesses took %v", guesses, took)
	}
	if n := strings.Count(s.log.String(), "refused a connection"); n > guesses/2 {
		t.Errorf("%d lines for %d guesses", n, guesses)
	}
}

// What a client calls itself cannot fill the log.
func TestLongNames(t *testing.T) {
	s := serve(t, nil)
	h := hello(transport.KindCUDA)
	h.Program, h.Host = strings.Repeat("p", 5000), strings.Repeat("h", 5000)
	l, err := s.dial(h)
	if err != nil {
		t.Fatal(err)
	}
	l.leave()
	s.logged("session closed")
	for line := range strings.Lines(s.log.String()) {
		if len(line) > 500 {
			t.Errorf("a line of %d bytes: %.100s", len(line), line)
		}
	}
}

// A worker that does nothing any more, not even read what the supervisor tells it, holds up nobody else.
func TestStuckWorker(t *testing.T) {
	s := serve(t, nil)
	l := s.open(transport.KindCUDA)
	pid := s.workerOf(l)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h := hello(transport.KindCallback)
	h.Session, h.Secret = l.welcome.Session, l.welcome.Secret
	for range 400 { // until its line is full
		c, _, err := transport.DialNet(t.Context(), s.target(), h)
		if err != nil {
			break // the supervisor has had enough of the worker
		}
		c.Close()
	}
	if !s.open(transport.KindCUDA).alive() {
		t.Error("another session does not work")
	}
	s.stop()
	if err := s.wait(); err != nil {
		t.Error(err)
	}
}
