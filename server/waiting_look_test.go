package server

import (
	"testing"

	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/queue"
)

// Whoever looks how a client stands may do so when that has its place already, and has a reason to say otherwise.
func TestStandingBehindTheAnswer(t *testing.T) {
	var s supervisor
	s.waiting.sessions, s.waiting.metrics = &s.sessions, metrics.NewServer(metrics.Build{}, nil)
	s.sessions.init(1, 0, 0)
	enter := func() *waiter {
		w := &waiter{place: place{kind: cudaSession}, most: func() uint64 { return 0 }, may: make(chan error, 1)}
		room := queue.Limits{All: 2, Tenant: 2, Peer: 2}
		if _, err := s.waiting.enter(w, queue.Standing{Weight: 1}, room, true); err != nil {
			t.Fatal(err)
		}
		return w
	}
	first, second := enter(), enter()
	if p, reason, waits := s.waiting.look(second); reason == nil || !waits || p.Place != 1 {
		t.Errorf("it stands at %d, waits %v: %v", p.Place, waits, reason)
	}
	s.waiting.ended(first, 0)
	if _, reason, waits := s.waiting.look(second); reason == nil || waits {
		t.Errorf("waits %v with its answer there: %v", waits, reason)
	}
	if err := <-second.may; err != nil {
		t.Error(err)
	}
}
