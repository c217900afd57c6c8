package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// awayEvery is how often the sessions are counted that wait for their clients.
const awayEvery = time.Second

// maxPast is of how many sessions the end is remembered, to tell it to clients that come back.
const maxPast = 256

// absent is a session that waits for its client, since a moment.
type absent struct {
	*session
	since time.Time
}

// away are those that wait for their clients and are not being ended, those that have waited longest first.
func (s *sessions) away(of func(*session) bool) (list []absent) {
	for _, x := range s.all() {
		if since := x.proc.glance().Lost; of(x) && !since.IsZero() && x.ending.Load() == nil {
			list = append(list, absent{x, since})
		}
	}
	slices.SortFunc(list, func(a, b absent) int { return a.since.Compare(b.since) })
	return list
}

// boundAway ends sessions that wait for their clients where they are more than may.
func boundAway(ctx context.Context, s *supervisor) {
	tick := time.NewTicker(awayEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			endAway(s, s.cfg.MaxAway)
		case <-ctx.Done():
			return
		}
	}
}

// endAway ends those that have waited longest, until so many are left.
func endAway(s *supervisor, most int) {
	list := s.sessions.away(func(*session) bool { return true })
	for _, x := range list[:max(0, len(list)-most)] {
		why := fmt.Sprintf("more than %d sessions waited for their clients (--max-away), and it had waited longest", most)
		s.end(x.session, &ending{reason: why, said: why, how: metrics.EndCrowded})
	}
}

// past is a session that has ended, and why.
type past struct {
	*session
	why string
}

// bury remembers why a session has ended whose client may come back. The caller removes it.
func (s *sessions) bury(x *session, why string) {
	if x.grace == 0 || why == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past = append(s.past, past{x, why})
	s.past = s.past[max(0, len(s.past)-maxPast):]
}

// endOf is why a session has ended that a further connection names, for whom the session was; else there is none such.
func (s *sessions) endOf(c arrival) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.past {
		if p := &s.past[i]; p.id == c.Session && p.admits(c) {
			return refusef(transport.StatusSession, "the session has ended: %w", &transport.SessionEnded{Reason: p.why})
		}
	}
	return refusef(transport.StatusSession, "no such session; it may have ended")
}
