package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/usage"
	"scuda.dev/scuda/transport"
)

// What CUDA sessions use is looked at every second, and written into the usage log when they end and once an hour.
const (
	meterEvery  = time.Second
	recordEvery = time.Hour
	memoryEvery = 30 * time.Second // the driver is asked for memory that nobody counts
)

// metering is what sessions used.
type metering struct {
	log    *usage.Log // nil: none
	totals usage.Totals
	// are held by who reads the log: one after the other
	ofAdmins, ofOthers sync.Mutex

	mu     sync.Mutex // guards what follows
	asked  time.Time
	memory map[int]uint64 // of the GPUs', by worker, as the driver says
}

// openUsage opens the log that the configuration wants. A place that the server chose itself is no reason not to serve.
func (s *supervisor) openUsage() error {
	path, chosen := s.cfg.UsageLog, false
	switch {
	case path == usage.None, path == "" && s.cfg.StateDir == "":
		return nil
	case path == "":
		chosen = true
		path = usage.FileOf(s.cfg.StateDir, s.cfg.Listener.Addr().(*net.TCPAddr).Port)
	}
	err := error(nil)
	if chosen {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		s.metering.log, err = usage.Open(path)
	}
	if err != nil && chosen {
		s.log.Warn("there is no usage log; --usage-log FILE names another place", "error", err)
		return nil
	}
	if err == nil {
		s.log.Info("usage log", "file", path)
	}
	return err
}

// meter follows a CUDA session to its end, which the function that it gives waits for and notes.
func (s *supervisor) meter(x *session) (over func(how string)) {
	m, done := x.meter, make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(meterEvery)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				s.sample(m, x, x.proc.glance(), now)
				if now.Sub(m.Since()) >= recordEvery {
					s.record(m, x, "")
				}
				all, _ := x.spent.look()
				x.record.update(func(c *changing) { c.Meter, c.Spent = m.State(), all })
			case <-x.proc.exited:
				return
			}
		}
	}()
	return func(how string) {
		<-done
		s.sample(m, x, x.proc.final, time.Now())
		s.record(m, x, how)
	}
}

// sample notes what a session's worker says.
func (s *supervisor) sample(m *usage.Meter, x *session, seen metrics.Glance, now time.Time) {
	got := s.turns.got(x.proc)
	used := m.Sample(now, usage.Sample{Busy: seen.Pending, Active: seen.Active, Memory: s.memoryOf(x, now),
		ToDevice: seen.ToDevice, ToHost: seen.ToHost, Calls: seen.Calls, Turn: got.GPU, Waited: got.Waited, Taken: got.Taken})
	x.spent.add(used)
	s.metering.totals.Add(x.who.Name, used)
}

// memoryOf is what a session has of the GPUs' memory: what is counted, else what the driver said lately, on a server
// with a metrics port. Without that nobody asks the driver.
func (s *supervisor) memoryOf(x *session, now time.Time) uint64 {
	if x.quota > 0 {
		return x.visit.Memory()
	}
	if s.cfg.Metrics == "" {
		return 0
	}
	m := &s.metering
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.asked) >= memoryEvery {
		m.asked, m.memory = now, make(map[int]uint64)
		for _, u := range s.gpusSoon().Users {
			m.memory[u.PID] += u.Bytes
		}
	}
	return m.memory[x.proc.pid()]
}

// record writes what a session used since the last time.
func (s *supervisor) record(m *usage.Meter, x *session, how string) {
	said := func(s string) string { return transport.Printable(door.Clip(s, maxSaid)) }
	from, to, used := m.Cut()
	err := s.metering.log.Write(&usage.Record{From: from.Round(0), To: to.Round(0), Session: x.id, Tenant: x.who.Name,
		Lease: x.who.lease, Label: s.leaseLabel(x.who.lease), User: said(x.client.user), Host: said(x.client.host),
		Program: said(filepath.Base(x.client.command)), End: how, Used: used})
	if err != nil {
		s.warn(s.log, "cannot write into the usage log", "error", fmt.Errorf("session %s: %w", x.id, err))
	}
}

// Usage is what sessions used, as the log says. Administrators and others do not wait for each other.
func (s desk) Usage(ctx context.Context, who admin.Who, since time.Time, by string) (*admin.Usage, error) {
	if s.metering.log == nil {
		return nil, admin.ErrNoUsage
	}
	one, all := &s.metering.ofOthers, who.Role() == admin.RoleAdmin
	if all {
		one = &s.metering.ofAdmins
	}
	one.Lock()
	defer one.Unlock()
	sums := usage.NewAdder(by)
	bad, err := s.metering.log.Records(ctx, since, func(r *usage.Record) {
		if who.May(r.Tenant, r.Lease) {
			sums.Add(r)
		}
	})
	if !all {
		bad = 0 // nobody knows whose those lines were
	}
	return &admin.Usage{Sums: sums.Sums(), Bad: bad}, err
}

// recentSamples is how many samples say what a session uses of late.
const recentSamples = 5

// spent is what a session has used so far, and of late.
type spent struct {
	mu     sync.Mutex // guards what follows
	all    usage.Used
	recent [recentSamples]usage.Used
	next   int
}

func (s *spent) add(u usage.Used) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Add(u)
	s.recent[s.next%recentSamples] = u
	s.next++
}

// look says what was used so far, and the part of the time of late in which GPUs were used.
func (s *spent) look() (all usage.Used, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var of usage.Used
	for _, u := range s.recent {
		of.Add(u)
	}
	if of.Seconds > 0 {
		share = of.GPU / of.Seconds
	}
	return s.all, share
}

// tenantUsage is what tenants have used, for metrics.
func (s *supervisor) tenantUsage() map[string]metrics.Usage {
	all := make(map[string]metrics.Usage)
	for name, u := range s.metering.totals.All() {
		all[name] = metrics.Usage{GPUSeconds: u.GPU, MemoryByteSeconds: u.Memory, ToDevice: u.ToDevice, ToHost: u.ToHost,
			TurnSeconds: u.Turn, TurnWait: u.Waited}
	}
	return all
}
