package queue

import (
	"math"
	"time"
)

// What a tenant has used is counted in seconds of sessions, of which those of half an hour ago count half.
const halfLife = 30 * time.Minute

// ahead is what a running session counts for before it has lasted: places that come free together go to different
// tenants.
const ahead = 30 // seconds

// forgotten is how much use makes no difference any more, in seconds.
const forgotten = 0.1

// use is what a tenant has used until a moment.
type use struct {
	seconds float64
	running int
	at      time.Time
}

// until brings the use to a later moment.
func (u *use) until(now time.Time) {
	d := now.Sub(u.at)
	if d <= 0 {
		return
	}
	left := math.Exp2(-float64(d) / float64(halfLife))
	u.seconds = u.seconds*left + float64(u.running)*halfLife.Seconds()/math.Ln2*(1-left)
	u.at = now
}

// uses are those of all tenants that have used something of late.
type uses map[string]*use

// of is what a tenant has used, with what its running sessions count for.
func (s uses) of(tenant string, now time.Time) float64 {
	u := s[tenant]
	if u == nil {
		return 0
	}
	u.until(now)
	return u.seconds + ahead*float64(u.running)
}

func (s *uses) begin(tenant string, now time.Time) {
	if *s == nil {
		*s = make(uses)
	}
	u := (*s)[tenant]
	if u == nil {
		s.forget(now)
		u = &use{at: now}
		(*s)[tenant] = u
	}
	u.until(now)
	u.running++
}

func (s uses) end(tenant string, now time.Time) {
	if u := s[tenant]; u != nil && u.running > 0 {
		u.until(now)
		u.running--
	}
}

// forget drops the tenants whose use makes no difference.
func (s uses) forget(now time.Time) {
	for t, u := range s {
		if u.until(now); u.running == 0 && u.seconds < forgotten {
			delete(s, t)
		}
	}
}

// lives is how long sessions last: a mean in which the latest one counts an eighth.
type lives struct {
	mean  float64 // seconds
	known bool
}

const latest = 1.0 / 8

func (l *lives) add(d time.Duration) {
	if !l.known {
		l.mean, l.known = d.Seconds(), true
		return
	}
	l.mean += latest * (d.Seconds() - l.mean)
}

// longest is the most that an estimate says.
const longest = 30 * 24 * time.Hour

// estimate is how long it may take until the waiter at a position (from 1) has a place of so many that are all taken;
// 0: nobody knows.
func (l *lives) estimate(position, places int) time.Duration {
	if !l.known || position < 1 || places < 1 {
		return 0
	}
	return time.Duration(min(l.mean*float64(position)/float64(places), longest.Seconds()) * float64(time.Second))
}
