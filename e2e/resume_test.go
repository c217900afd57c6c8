package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/transport/chaos"
)

// through gives a proxy in front of the server.
func (s *server) through(t *testing.T, cfg chaos.Config) *chaos.Proxy {
	t.Helper()
	p, err := chaos.Listen("127.0.0.1:0", s.addr, cfg)
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

// With TLS a changed byte costs a socket, and not the session.
func TestResumeTLS(t *testing.T) {
	s, fingerprint := serveTLS(t)
	for _, kind := range []chaos.Kind{chaos.Cut, chaos.Corrupt} {
		for _, name := range []string{"copies", "callbacks"} {
			t.Run(fmt.Sprint(name, " ", kind), func(t *testing.T) {
				beside(t)
				p := s.through(t, chaos.Config{Harm: chaos.Sometimes(kind, func() int { return 6000 + rand.IntN(300_000) })})
				env := clientEnv(p.Address(), "SCUDA_FINGERPRINT="+fingerprint)
				c := start(t, env, program(name), kernels)
				c.stdin.Close()
				if code := c.wait(patience); code != 0 {
					t.Errorf("exit status %d behind %d breaks\n%s%s", code, p.Cuts(), c.out, c.err)
				}
			})
		}
	}
}

// The command that breaks connections gives the exit status of its program.
func TestChaos(t *testing.T) {
	s := serve(t)
	p := start(t, s.env(), scuda, "chaos", "--every", "200ms", "--", program("progress"), kernels)
	if code := p.wait(patience); code != 0 {
		t.Errorf("exit status %d\n%s%s", code, p.out, p.err)
	}
	if m := p.await(p.err, `^scuda: (\d+) connections were cut$`); m[1] == "0" {
		t.Error("none was cut")
	}
	p = start(t, s.env(), scuda, "chaos", "--every", "0", "-q", "--", "sh", "-c", "exit 7")
	if code := p.wait(patience); code != 7 || strings.Contains(p.err.String(), "cut") {
		t.Errorf("exit status %d\n%s", code, p.err)
	}
	p = start(t, s.env(), scuda, "chaos")
	if code := p.wait(patience); code != 2 {
		t.Errorf("exit status %d\n%s", code, p.err)
	}
}

// A program waits while its server cannot be reached, says so once, and goes on.
func TestResumeAway(t *testing.T) {
	s := serve(t)
	p := s.through(t, chaos.Config{})
	c := start(t, clientEnv(p.Address()), program("hold"), kernels, "16", "loop")
	c.await(c.out, "^ready$")
	p.Reach(false)
	p.Cut()
	c.await(c.err, "is lost; trying again for 1m0s")
	p.Reach(true)
	c.await(c.err, `back at the scuda server \S+ after \d+ s`)
	c.signal(syscall.SIGTERM)
	c.wait(patience)
	if n := strings.Count(c.err.String(), "trying again"); n != 1 {
		t.Errorf("it was said %d times:\n%s", n, c.err)
	}
}

// A client that does not come back loses its session when the grace is over, and one whose session is gone learns it at
// once.
func TestResumeGivesUp(t *testing.T) {
	s := serve(t, "--grace", "2s")
	p := s.through(t, chaos.Config{})
	c := start(t, clientEnv(p.Address()), program("hold"), kernels, "16", "loop")
	c.await(c.out, "^ready$")
	p.Reach(false)
	p.Cut()
	eventually(t, patience, "the session is over", func() bool { return s.closed() == 1 })
	c.await(c.err, "could not be made again within 2s")
	c.wait(patience) // it ends by itself

	p.Reach(true)
	began := time.Now()
	c = start(t, clientEnv(p.Address()), program("hold"), kernels, "16", "loop")
	c.await(c.out, "^ready$")
	for _, pid := range s.workers(t) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	c.await(c.err, "is lost: the server (closed|broke)")
	if took := time.Since(began); took > patience/2 {
		t.Errorf("it took %v", took)
	}
}
