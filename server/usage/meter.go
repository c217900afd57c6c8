package usage

import (
	"sync"
	"time"

	"scuda.dev/scuda/internal/clock"
)

// Sample is what is seen of a session at a moment. The counters are since its beginning.
type Sample struct {
	Busy     bool      // something waits to be done, or for the GPU
	Active   time.Time // when there was last something to do
	Memory   uint64    // bytes of GPU memory that it has
	ToDevice uint64
	ToHost   uint64
	Calls    uint64
	// what came of its turns: the time that it got, that it waited, and in which turns were taken
	Turn, Waited, Taken time.Duration
}

// Meter adds up what a session uses.
type Meter struct {
	from   time.Time // of the record that is being made
	last   time.Time // of the latest sample
	before Sample
	used   Used
}

// NewMeter begins with a session.
func NewMeter(now time.Time) *Meter {
	return &Meter{from: now, last: now, used: Used{Estimated: true}}
}

// State is what a meter has come to, for one that goes on in another process.
type State struct {
	From   time.Time
	Last   int64 // of package clock
	Before Sample
	Used   Used
}

// State gives what the meter has come to.
func (m *Meter) State() State { return State{m.from.Round(0), clock.Stamp(m.last), m.before, m.used} }

// Resume goes on where a meter had come to. Turns are counted anew.
func Resume(s State) *Meter {
	s.Before.Turn, s.Before.Waited, s.Before.Taken = 0, 0, 0
	return &Meter{from: s.From, last: clock.At(s.Last), before: s.Before, used: s.Used}
}

// Sample notes what is seen. The time since the sample before counts as GPU time up to when the session last had
// something to do; all of it if it has still. While turns were taken it is what the session got.
func (m *Meter) Sample(now time.Time, s Sample) (since Used) {
	since.Estimated = true
	if d := now.Sub(m.last); d > 0 {
		since.Seconds = d.Seconds()
		until := s.Active
		if s.Busy || until.After(now) {
			until = now
		}
		turn, taken := max(0, s.Turn-m.before.Turn), max(0, s.Taken-m.before.Taken)
		guess := max(0, until.Sub(m.last))
		since.GPU = min(d, turn+min(guess, max(0, d-taken))).Seconds()
		since.Turn = min(d, turn).Seconds()
		since.Waited = min(d, max(0, s.Waited-m.before.Waited)).Seconds()
		since.Memory = float64(m.before.Memory) * d.Seconds()
		m.last = now
	}
	// counters do not go back: there is nothing to be seen of a worker that ends, and one that was taken over may write
	// anything
	s.ToDevice, s.ToHost = max(s.ToDevice, m.before.ToDevice), max(s.ToHost, m.before.ToHost)
	s.Calls = max(s.Calls, m.before.Calls)
	s.Turn, s.Waited, s.Taken = max(s.Turn, m.before.Turn), max(s.Waited, m.before.Waited), max(s.Taken, m.before.Taken)
	since.ToDevice, since.ToHost = s.ToDevice-m.before.ToDevice, s.ToHost-m.before.ToHost
	since.Calls = s.Calls - m.before.Calls
	m.before = s
	m.used.Add(since)
	return since
}

// Cut gives what was used since the last cut, and begins anew.
func (m *Meter) Cut() (from, to time.Time, used Used) {
	from, used = m.from, m.used
	m.from, m.used = m.last, Used{Estimated: true}
	return from, m.last, used
}

// Since is when the record that is being made began.
func (m *Meter) Since() time.Time { return m.from }

// maxTenants bounds the tenants that are told apart in [Totals].
const maxTenants = 1000

// Others are all tenants beyond that bound.
const Others = "(others)"

// Totals are what tenants have used since the server was started. Its zero value can be used.
type Totals struct {
	mu sync.Mutex
	by map[string]*Used
}

// Add adds what a tenant used.
func (t *Totals) Add(tenant string, u Used) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = make(map[string]*Used)
	}
	of := t.by[tenant]
	if of == nil {
		if len(t.by) >= maxTenants {
			tenant = Others
		}
		if of = t.by[tenant]; of == nil {
			of = new(Used)
			t.by[tenant] = of
		}
	}
	of.Add(u)
}

// All are the tenants' totals.
func (t *Totals) All() map[string]Used {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]Used, len(t.by))
	for name, u := range t.by {
		all[name] = *u
	}
	return all
}
