package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/transport"
)

// Of sessions that wait for their clients those end that have waited longest, and whoever comes back is told why.
func TestMaxAway(t *testing.T) {
	s := serve(t, func(c *Config) { c.Grace, c.MaxAway, c.Metrics = time.Hour, 2, "127.0.0.1:0" })
	stays := s.resumable()
	var links []*link
	for i := range 3 {
		l := s.aged()
		links = append(links, l)
		l.reset()
		if i < 2 {
			s.shows(fmt.Sprintf("scuda_sessions_away %d", i+1))
		}
	}
	s.shows(`scuda_sessions_ended_total{how="crowded",kind="cuda"} 1`)
	s.shows("scuda_sessions_away 2")
	s.logged("more than 2 sessions waited for their clients (--max-away)")
	back := func(l *link, epoch uint64) (why string) {
		_, err := s.dial(further(l.welcome, transport.LineMain, epoch))
		if e := (*transport.SessionEnded)(nil); errors.As(err, &e) && errors.Is(err, transport.ErrSession) {
			return e.Reason
		} else if err != nil {
			return err.Error()
		}
		return ""
	}
	if why := back(links[0], 1); !strings.Contains(why, "it had waited longest") {
		t.Errorf("who waited longest is told %q", why)
	}
	wrong := *links[0].welcome
	wrong.Secret = strings.Repeat("0", len(wrong.Secret))
	if why := back(&link{welcome: &wrong}, 2); !strings.Contains(why, "no such session") {
		t.Errorf("somebody without the ticket is told %q", why)
	}
	for _, l := range append(links[1:], stays) {
		if why := back(l, 1); why != "" {
			t.Errorf("one of those that stay is told %q", why)
		}
	}
	s.shows("scuda_sessions_away 0")
}

// A client that comes back too late is told so.
func TestTooLate(t *testing.T) {
	s := serve(t, func(c *Config) { c.Grace, c.Metrics = 10*time.Millisecond, "127.0.0.1:0" })
	l := s.aged()
	l.reset()
	s.shows(`scuda_sessions_ended_total{how="away",kind="cuda"} 1`)
	_, err := s.dial(further(l.welcome, transport.LineMain, 1))
	e := (*transport.SessionEnded)(nil)
	if !errors.As(err, &e) || !strings.Contains(e.Reason, "not come back within 10ms") {
		t.Errorf("it is told %v", err)
	}
}
