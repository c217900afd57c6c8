package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/queue"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
)

// queued is a client that waits for a place.
type queued struct {
	*link
	err    error
	heard  chan transport.Queued
	done   chan struct{} // closed when link and err are valid
	giveUp context.CancelFunc
}

// queue lets a client wait for a place, and returns when it does so.
func (s *testServer) queue(token string, patience time.Duration) *queued {
	s.t.Helper()
	q := s.ask(token, patience)
	s.until("a client waits", func() bool { return s.waiting(q) })
	return q
}

func (s *testServer) ask(token string, patience time.Duration) *queued {
	s.t.Helper()
	q := &queued{heard: make(chan transport.Queued, 100), done: make(chan struct{})}
	h := hello(transport.KindCUDA)
	h.Program = "p" + strings.Map(onlyLetters, s.t.Name()) + time.Now().Format("150405.000000000")
	h.Wait, h.Waiting = patience, func(p transport.Queued) { q.heard <- p }
	var ctx context.Context
	ctx, q.giveUp = context.WithCancel(context.Background())
	to := s.target()
	if token != "" {
		to.Token = []byte(token)
	}
	q.link = &link{t: s.t, notices: []string{h.Program}}
	go func() {
		defer close(q.done)
		q.conn, q.welcome, q.err = transport.DialNet(ctx, to, h)
	}()
	s.t.Cleanup(func() {
		q.giveUp()
		if <-q.done; q.conn != nil {
			q.conn.Close()
		}
	})
	return q
}

func onlyLetters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return -1
}

// waiting says whether the log has it that a client waits.
func (s *testServer) waiting(q *queued) bool {
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "a client waits for a place") && strings.Contains(line, q.notices[0]) {
			return true
		}
	}
	select {
	case <-q.done:
		s.t.Fatalf("it does not wait: %v", q.err)
	default:
	}
	return false
}

func (q *queued) answer(t *testing.T) error {
	t.Helper()
	select {
	case <-q.done:
		return q.err
	case <-time.After(patience):
		t.Fatal("a client in the queue gets no answer")
		return nil
	}
}

// load is what the server says of its sessions and its queue.
func (s *testServer) load() transport.Load {
	s.t.Helper()
	l, err := s.dial(hello(transport.KindInfo))
	if err != nil {
		s.t.Fatal(err)
	}
	l.conn.Close()
	return *l.welcome.Load
}

// Who comes when all places are taken waits, hears where it stands, and has a place when one comes free.
func TestClientsWait(t *testing.T) {
	for name, serve := range map[string]func(*testing.T, func(*Config)) *testServer{"in clear": serve, "TLS": serveTLS} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(c *Config) { c.MaxSessions = 1 })
			first := s.open(transport.KindCUDA)
			second := s.queue("", time.Hour)
			third := s.queue("", time.Hour)
			if h := <-second.heard; h.Place != 1 || h.Of < 1 || !strings.Contains(h.Reason, "1 of 1 CUDA sessions are taken") {
				t.Errorf("%+v", h)
			}
			if h := <-third.heard; h.Place != 2 || h.Of != 2 {
				t.Errorf("%+v", h)
			}
			if l := s.load(); l.Waiting != 2 || l.Sessions != 1 {
				t.Errorf("%+v", l)
			}
			first.leave()
			if err := second.answer(t); err != nil {
				t.Fatal(err)
			}
			second.use(1 << 20)
			if h := <-third.heard; h.Place != 1 || h.Wait == 0 {
				t.Errorf("%+v after one has gone", h)
			}
			second.leave()
			if err := third.answer(t); err != nil || !third.alive() {
				t.Error(err)
			}
			third.leave()
			s.until("all places are free", func() bool { l := s.load(); return l.Sessions == 0 && l.Waiting == 0 })
		})
	}
}

// Who does not wait is refused as ever, also where others wait; and so is who waits for too long.
func TestClientsWaitNoLongerThanTheyWill(t *testing.T) {
	s := serve(t, func(c *Config) { c.MaxSessions = 1 })
	s.open(transport.KindCUDA)
	s.queue("", time.Hour)
	if _, err := s.dial(hello(transport.KindCUDA)); !errors.Is(err, transport.ErrBusy) ||
		!strings.Contains(err.Error(), "1 of 1 CUDA sessions are taken") {
		t.Errorf("a client that does not wait: %v", err)
	}
	older := hello(transport.KindCUDA)
	older.Capabilities, older.Wait = []string{transport.CapTickets}, time.Hour
	if _, err := s.dial(older); !errors.Is(err, transport.ErrBusy) {
		t.Errorf("a client that has not heard of queues: %v", err)
	}
	short := s.ask("", 100*time.Millisecond)
	if err := short.answer(t); !errors.Is(err, transport.ErrBusy) ||
		!strings.Contains(err.Error(), "second in the queue, after 100ms") {
		t.Errorf("a client that waits for a short time: %v", err)
	}
	if l := s.load(); l.Waiting != 1 {
		t.Errorf("%d wait", l.Waiting)
	}
}

// A client that goes away is not in the queue any more, and its turn passes to the next.
func TestClientsLeaveTheQueue(t *testing.T) {
	s := serve(t, func(c *Config) { c.MaxSessions = 1 })
	first := s.open(transport.KindCUDA)
	second, third := s.queue("", time.Hour), s.queue("", time.Hour)
	second.giveUp()
	s.until("one waits", func() bool { return s.load().Waiting == 1 })
	s.logged("a client left the queue")
	if second.answer(t) == nil {
		t.Error("a client that went away got a place")
	}
	first.leave()
	if err := third.answer(t); err != nil || !third.alive() {
		t.Error(err)
	}
}

// A client in the queue has nothing to say.
func TestClientsAreSilentInTheQueue(t *testing.T) {
	s := serve(t, func(c *Config) { c.MaxSessions = 1 })
	s.open(transport.KindCUDA)
	h := hello(transport.KindCUDA)
	h.Wait = time.Hour
	_, _, err := transport.DialNetFirst(t.Context(), s.target(), h, []byte("x"))
	if !errors.Is(err, transport.ErrNotScuda) || !strings.Contains(err.Error(), "sends something") {
		t.Error(err)
	}
}

// Everybody in the queue learns that there will be no place.
func TestQueueIsAnswered(t *testing.T) {
	t.Run("shutdown", func(t *testing.T) {
		s := serve(t, func(c *Config) { c.MaxSessions = 1 })
		s.open(transport.KindCUDA)
		a, b := s.queue("", time.Hour), s.queue("", time.Hour)
		s.stop()
		for _, q := range []*queued{a, b} {
			if err := q.answer(t); !errors.Is(err, transport.ErrDraining) {
				t.Error(err)
			}
		}
	})
	t.Run("drain", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "s")
		s := serve(t, func(c *Config) { c.MaxSessions, c.Admin = 1, socket })
		s.open(transport.KindCUDA)
		q := s.queue("", time.Hour)
		desk, err := admin.Dial(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		defer desk.Close()
		if st, err := desk.Status(t.Context()); err != nil || st.Waiting != 1 {
			t.Errorf("%+v, %v", st, err)
		}
		if _, err := desk.Drain(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if err := q.answer(t); !errors.Is(err, transport.ErrDraining) ||
			!strings.Contains(err.Error(), "an administrator drains") {
			t.Error(err)
		}
		late := s.ask("", time.Hour)
		if err := late.answer(t); !errors.Is(err, transport.ErrDraining) {
			t.Errorf("one that comes later: %v", err)
		}
	})
	t.Run("credential", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "tenants")
		write := func(text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("alice token=alice-token max-sessions-per-tenant=1\nbob token=bob-token\n")
		tenants, err := tenant.Read(tenant.Files{Tenants: file})
		if err != nil {
			t.Fatal(err)
		}
		again := make(chan os.Signal, 1)
		s := serve(t, func(c *Config) { c.MaxSessions, c.Tenants, c.Reload = 2, tenants, again })
		s.token = []byte("alice-token")
		s.open(transport.KindCUDA)
		a := s.queue("alice-token", time.Hour)
		b := s.ask("bob-token", time.Hour) // whom alice's limit does not hold up
		if err := b.answer(t); err != nil {
			t.Fatal(err)
		}
		c := s.queue("bob-token", time.Hour)
		write("alice token=alice-token\n")
		again <- syscall.SIGHUP
		if err := c.answer(t); !errors.Is(err, transport.ErrToken) {
			t.Error(err)
		}
		if err := a.answer(t); err != nil { // bob's session has ended, and alice has no limit any more
			t.Error(err)
		}
	})
}

// The queue is bounded, in all and for each of several tenants.
func TestQueueIsBounded(t *testing.T) {
	s := serve(t, func(c *Config) {
		c.Tenants = registry(t, "alice token=alice-token\nbob token=bob-token max-queue-per-tenant=2\n")
		c.MaxSessions, c.MaxQueue = 1, 3
	})
	s.token = []byte("alice-token")
	s.open(transport.KindCUDA)
	s.queue("alice-token", time.Hour)
	for token, says := range map[string]string{
		"alice-token": "the queue is full for tenant alice, of which 1 wait already",
		"bob-token":   "the queue is full for clients of 127.0.0.1/32, of which 1 wait already",
	} {
		q := s.ask(token, time.Hour)
		if err := q.answer(t); !errors.Is(err, transport.ErrBusy) || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), "1 of 1 CUDA sessions are taken") {
			t.Errorf("%s: %v", token, err)
		}
	}
}

func TestRoomFor(t *testing.T) {
	several := registry(t, "alice token=alice-token\nbob token=bob-token\n")
	for name, c := range map[string]struct {
		cfg    Config
		limits config.Limits
		want   queue.Limits
	}{
		"nobody":          {Config{MaxQueue: -1}, config.Limits{}, queue.Limits{Tenant: 1, Peer: 1}},
		"the usual":       {Config{}, config.Limits{}, queue.Limits{All: 256, Tenant: 64, Peer: 64}},
		"a limit":         {Config{MaxQueue: 8}, config.Limits{Queue: 7}, queue.Limits{All: 8, Tenant: 7, Peer: 2}},
		"any address":     {Config{MaxQueue: 8, MaxPerClient: -1}, config.Limits{}, queue.Limits{All: 8, Tenant: 2}},
		"any, one tenant": {Config{MaxQueue: 8, Token: []byte("t")}, config.Limits{}, queue.Limits{All: 8, Peer: 2}},
	} {
		if c.cfg.Token == nil {
			c.cfg.Tenants = several
		}
		s := &supervisor{cfg: c.cfg.withDefaults()}
		if got := s.roomFor(&c.limits); got != c.want {
			t.Errorf("%s: %+v, not %+v", name, got, c.want)
		}
	}
}

// Who needs more of the kept memory than is left waits, and who needs less passes.
func TestMemoryIsKept(t *testing.T) {
	s := serve(t, func(c *Config) {
		c.Tenants = registry(t, "big token=token-of-big max-vram=8MiB\nsmall token=token-of-small max-vram=1MiB\n"+
			"any token=token-of-any\nhuge token=token-of-huge max-vram=1TiB\n")
		c.KeptVRAM = 10 << 20
	})
	s.token = []byte("token-of-big")
	first := s.open(transport.KindCUDA)
	second := s.queue("token-of-big", time.Hour)
	if h := <-second.heard; !strings.Contains(h.Reason, "8 MiB of GPU memory are kept for sessions, 8 MiB more") {
		t.Errorf("%+v", h)
	}
	for _, token := range []string{"token-of-small", "token-of-any"} {
		q := s.ask(token, time.Hour)
		if err := q.answer(t); err != nil {
			t.Fatal(err)
		}
		q.leave()
	}
	first.leave()
	if err := second.answer(t); err != nil {
		t.Fatal(err)
	}
	second.leave()
	s.until("all is free", func() bool { return s.load().Sessions == 0 })
	huge := s.ask("token-of-huge", time.Hour) // more than there can be is all that there is
	if err := huge.answer(t); err != nil {
		t.Error(err)
	}
}

// A crowd gets its places one after the other, whatever the order in which it comes and goes.
func TestCrowdInTheQueue(t *testing.T) {
	s := serve(t, func(c *Config) { c.MaxSessions, c.Warm = 2, 2 })
	var all sync.WaitGroup
	for i := range 8 {
		q := s.ask("", time.Hour)
		all.Go(func() {
			if i == 5 {
				q.giveUp()
			}
			if <-q.done; q.err == nil {
				q.conn.Close()
			} else if i != 5 {
				t.Error(q.err)
			}
		})
	}
	all.Wait()
	s.until("all places are free", func() bool { l := s.load(); return l.Sessions == 0 && l.Waiting == 0 })
}
