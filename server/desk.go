package server

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/transport"
)

// maxSaid is how much is kept of what a client says of itself, in bytes.
const maxSaid = 256

// fresh is how long a session that did something counts as busy.
const fresh = time.Second

// openAdmin makes the admin interface, and opens the socket for it that the configuration wants. A place that the
// server chose itself is no reason not to serve.
func (s *supervisor) openAdmin(ctx context.Context) error {
	s.desk = admin.New(desk{s}, admin.Options{Worker: s.isWorker, Count: s.metrics.AdminRequest, Log: s.log})
	path := s.cfg.Admin
	if path == "" || path == admin.None {
		return nil
	}
	if path == admin.Auto {
		if path = admin.PathOf(s.cfg.Listener.Addr().(*net.TCPAddr).Port); path == "" {
			s.log.Info("no admin interface: there is no folder for its socket; --admin SOCKET names one")
			return nil
		}
	}
	err := s.desk.Open(ctx, path)
	if err != nil && s.cfg.Admin == admin.Auto {
		s.log.Warn("there is no admin interface", "error", err)
		return nil
	}
	if err == nil {
		s.log.Info("admin interface", "socket", path)
	}
	return err
}

// serveAdmin lets a client ask on a connection that nobody else can read, or that comes from this machine.
func (s *supervisor) serveAdmin(c arrival, visit *door.Visit) error {
	if err := private(isTLS(c), c.RemoteAddr()); err != nil {
		return err
	}
	who, err := s.asks(c.who)
	if err != nil {
		return err
	}
	leave, err := s.desk.Enter(who)
	if err != nil {
		return refusef(transport.StatusBusy, "%w", err)
	}
	defer leave()
	visit.Leave()
	if err := sendWelcome(c, greeting(c.Hello)); err != nil {
		return nil // the client is gone: there is nobody to tell
	}
	_ = c.SetDeadline(time.Time{})
	now := func() (admin.Who, error) { return s.asks(c.who) }
	s.desk.Serve(c.peer, admin.Caller{Address: c.RemoteAddr().String(), Now: now})
	return nil
}

// private refuses a connection on which others could read credentials, and change what is asked. As for sessions, this
// machine's own network is none of others.
func private(secure bool, from net.Addr) error {
	if secure || isLoopback(from) {
		return nil
	}
	return refusef(transport.StatusTLS, "the admin interface is not offered without TLS; start the server without "+
		"--insecure")
}

// asks says what somebody may do now who was admitted; the error, why nothing any more.
func (s *supervisor) asks(b bearer) (admin.Who, error) { return s.role(b), s.refused(b) }

// role says what somebody may do now. A lease's bearer is no administrator, whoever its tenant is.
func (s *supervisor) role(b bearer) admin.Who {
	return admin.Who{Tenant: b.Name, Lease: b.lease, Admin: b.lease == "" && s.cfg.Tenants.Administers(b.Identity),
		Credential: b.Key(), Until: b.Until()}
}

// isWorker says whether a process serves a session.
func (s *supervisor) isWorker(pid int) bool {
	return slices.ContainsFunc(s.sessions.all(), func(x *session) bool { return x.proc.pid() == pid })
}

// closed says why no new session is taken; nil: they are.
func (s *supervisor) closed() error {
	switch {
	case s.draining.Load():
		return refusef(transport.StatusDraining, "the server is shutting down")
	case s.held.Load():
		return refusef(transport.StatusDraining, "an administrator drains the server; use another one, or try again later")
	}
	return nil
}

// desk is the supervisor as the admin interface sees it.
type desk struct{ *supervisor }

// mays says whether something of somebody's is for whoever asks.
func mays(who admin.Who, of bearer) bool { return who.May(of.Name, of.lease) }

func (s desk) Status(who admin.Who) admin.Status {
	st := admin.Status{
		Version: release.Version(), Address: s.cfg.Listener.Addr().String(), Started: s.started,
		Uptime: time.Since(s.started).Seconds(), Draining: s.closed() != nil,
		Waiting: s.waiting.count(func(w *waiter) bool { return mays(who, w.who) }), Fingerprint: s.cfg.Tenants.Fingerprint(),
		GPUs: []admin.GPU{},
	}
	if facts := s.facts.Load(); facts != nil { // a worker has opened the driver
		st.Driver = facts.Driver
		st.CUDAVersion = fmt.Sprintf("%d.%d", facts.DriverVersion/1000, facts.DriverVersion%1000/10)
		st.GPUs = s.gpusOf(who, facts.Devices)
	}
	st.Away = len(s.sessions.away(func(x *session) bool { return mays(who, x.who) }))
	if who.Role() == admin.RoleAdmin {
		st.PID = os.Getpid()
		for kind, to := range map[sessionKind]*admin.Places{cudaSession: &st.CUDA, nvmlSession: &st.NVML} {
			to.Taken, to.Limit, _ = s.sessions.places(kind, "")
		}
		return st
	}
	for _, x := range s.sessions.all() {
		switch {
		case !mays(who, x.who):
		case x.nvml:
			st.NVML.Taken++
		default:
			st.CUDA.Taken++
		}
	}
	limits := s.cfg.Tenants.Limits(who.Tenant, *s.cfg.Limits)
	st.CUDA.Limit, st.NVML.Limit = int(limits.Sessions), int(limits.NVML)
	if l, err := s.leases.Get(who.Lease); err == nil && l.Sessions > 0 {
		st.CUDA.Limit = int(l.Sessions)
	}
	return st
}

// gpusOf are the GPUs that sessions of who see.
func (s desk) gpusOf(who admin.Who, devices []transport.Device) []admin.GPU {
	var only []string // none: all
	if who.Role() != admin.RoleAdmin {
		only = s.cfg.Tenants.Terms(who.Tenant).GPUs
		if l, err := s.leases.Get(who.Lease); err == nil {
			only = l.GPUs
		}
	}
	list := []admin.GPU{}
	for i := range devices {
		if g := gpuOf(&devices[i]); len(only) == 0 || slices.Contains(only, g.UUID) {
			list = append(list, g)
		}
	}
	return list
}

// gpuOf says what a GPU is.
func gpuOf(d *transport.Device) admin.GPU {
	return admin.GPU{UUID: d.UUIDText(), Name: d.Name, Memory: d.TotalMem, Capability: fmt.Sprintf("%d.%d",
		d.Attributes[cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
		d.Attributes[cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR])}
}

// gpusSoon is what NVML says, if it says it soon: an administrator is to see the sessions also where it hangs.
func (s *supervisor) gpusSoon() gpuList {
	late := time.NewTimer(gpuTimeout)
	defer late.Stop()
	select {
	case s.gpuTurn <- struct{}{}:
	case <-late.C:
		return gpuList{}
	}
	said := make(chan gpuList, 1)
	s.handlers.Go(func() {
		defer func() { <-s.gpuTurn }()
		list, err := s.readGPUs()
		if err != nil {
			s.log.Debug("an administrator does not see who uses the GPUs", "error", err)
		}
		said <- list
	})
	select {
	case list := <-said:
		return list
	case <-late.C:
		return gpuList{}
	}
}

func (s desk) Sessions(who admin.Who) []admin.Session {
	uses := map[int][]admin.Use{} // by worker
	gpus := s.gpusSoon()
	for _, u := range gpus.Users {
		if u.GPU < 0 || u.GPU >= len(gpus.GPUs) {
			continue
		}
		uses[u.PID] = append(uses[u.PID], admin.Use{Index: u.GPU, UUID: gpus.GPUs[u.GPU].UUID, Memory: u.Bytes})
	}
	now, list := time.Now(), []admin.Session{}
	for _, x := range s.sessions.all() {
		if !mays(who, x.who) {
			continue
		}
		a := x.describe(now, s.instances.uses(x, uses[x.proc.pid()]), s.turns.waits(x.proc))
		a.Label = s.leaseLabel(a.Lease)
		if who.Role() != admin.RoleAdmin {
			a.Worker = 0
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b admin.Session) int {
		return cmp.Or(a.Opened.Compare(b.Opened), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// describe says all that is known of a session. waits says whether it waits for its turn on a GPU.
func (x *session) describe(now time.Time, gpus []admin.Use, waits bool) admin.Session {
	said := func(s string) string { return transport.Printable(door.Clip(s, maxSaid)) }
	a := admin.Session{
		ID: x.id, Kind: admin.KindNVML, State: admin.StateOpen, Tenant: x.who.Name, User: said(x.client.user),
		Host: said(x.client.host), Address: x.client.address, TLS: x.secure, Program: said(filepath.Base(x.client.command)),
		PID: x.client.pid, Worker: x.proc.pid(), Profile: x.proc.profile.String(), Opened: x.opened,
		Age: now.Sub(x.opened).Seconds(), GPUs: gpus, Quota: x.quota,
		Lease: x.who.lease, Share: x.terms.Share, Class: x.terms.Class.String(),
	}
	if gpus == nil {
		a.GPUs = []admin.Use{}
	}
	seen := x.proc.glance()
	if !x.nvml {
		a.Kind, a.State, a.Calls = admin.KindCUDA, admin.StateIdle, &seen.Calls
		if seen.Active.Before(x.opened) {
			seen.Active = x.opened
		}
		a.Idle = max(0, now.Sub(seen.Active).Seconds())
		if seen.Pending || now.Sub(seen.Active) < fresh {
			a.State, a.Idle = admin.StateBusy, 0
		}
		if x.quota > 0 {
			a.Counted = new(x.visit.Memory())
		}
		all, share := x.spent.look()
		a.GPUSeconds, a.GPUShare, a.Turn, a.TurnWait = all.GPU, share, all.Turn, all.Waited
	}
	if waits {
		a.State = admin.StateTurn
	}
	if !seen.Lost.IsZero() {
		a.State = admin.StateAway
		a.Away = &admin.Away{Since: seen.Lost, Seconds: max(0, now.Sub(seen.Lost).Seconds()), Until: seen.Until}
	}
	if x.ending.Load() != nil {
		a.State = admin.StateEnding
	}
	return a
}

func (s desk) End(ctx context.Context, who admin.Who, id, reason string) error {
	x := s.sessions.named(id)
	if x == nil || !mays(who, x.who) {
		return admin.ErrNoSession
	}
	by := "an administrator"
	if who.Role() != admin.RoleAdmin {
		by = who.String()
	}
	why, said := by+" ended it", by+" ends this session"
	if reason = transport.Printable(reason); reason != "" {
		why, said = why+": "+reason, said+": "+reason
	}
	s.end(x, &ending{reason: why, said: said})
	select {
	case <-x.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s desk) Drain(on bool) error {
	if s.draining.Load() {
		return admin.ErrShutdown
	}
	if s.held.Swap(on) == on {
		return nil
	}
	value := 0.0
	if on {
		value = 1
		s.log.Info("an administrator drains the server: it takes no new sessions")
		s.closedQueue()
	} else {
		s.log.Info("the server takes new sessions again")
	}
	s.metrics.Draining.Set(value)
	return nil
}
