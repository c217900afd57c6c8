package server

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"scuda.dev/scuda/server/metrics"
)

// attend follows a session that can be found to its end. begin is called once all is counted.
func attend(s *supervisor, x *session, log *slog.Logger, kind string, leave, begin func()) {
	p := x.proc
	defer close(x.gone)
	defer s.sessions.remove(x)
	if e := s.withdrawn(x.who); e != nil { // before it could be found
		s.end(x, e)
	}
	s.metrics.Sessions.WithLabelValues(kind).Inc()
	defer s.metrics.Sessions.WithLabelValues(kind).Dec()
	s.metrics.Tenants.WithLabelValues(x.who.Name).Inc()
	defer s.metrics.Tenants.WithLabelValues(x.who.Name).Dec()
	over := func(string) {}
	if !x.nvml {
		over = s.meter(x)
	}
	begin()
	select {
	case <-p.exited:
	case <-s.stop.Done():
		x.kill()
		<-p.exited
	}
	leave() // before anybody reads that the session is over
	lasted := slog.Duration("lasted", time.Since(x.opened).Round(time.Millisecond))
	how, why := metrics.EndCrashed, ""
	switch {
	case p.clean && p.ended.How == metrics.EndClosed:
		how = metrics.EndClosed
		log.Info("session closed", lasted, "calls", p.ended.Calls)
	case x.ending.Load() != nil:
		e := x.ending.Load()
		how, why = cmp.Or(e.how, metrics.EndKilled), e.said
		log.Warn("the server ended the session", lasted, "calls", p.final.Calls, "reason", e.reason)
	case p.clean:
		how = metrics.EndBroken
		switch p.ended.How {
		case metrics.EndLeft, metrics.EndTimeout, metrics.EndLimited, metrics.EndAway:
			how = p.ended.How
		}
		if how == metrics.EndAway {
			why = p.ended.Reason
		}
		level := slog.LevelWarn
		if how == metrics.EndLeft {
			level = slog.LevelInfo // some programs always end so
		}
		log.Log(context.Background(), level, "session ended", "how", how, lasted, "calls", p.ended.Calls,
			"reason", p.ended.Reason)
	default:
		log.Error("the session's worker crashed; other sessions are not affected", lasted, "error", exitReason(p))
	}
	s.sessions.bury(x, why) // before it cannot be found any more
	s.metrics.Ended.WithLabelValues(kind, how).Inc()
	over(how)
}
