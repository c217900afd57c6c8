package server

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/server/usage"
)

// A supervisor that is killed leaves its CUDA sessions to the next one, where the spawner is a service of its own and
// keeps what belongs to them. A worker notices nothing before the next supervisor speaks to it:
//
//	supervisor  adopt    ▶  what was asked before is void; what the session shares, once more
//	◀  share …           worker
//	◀  adopted           worker, which asks nothing more
//	supervisor  go       ▶  when it knows what all workers share: the worker asks again what it waits for

// Messages of that.
const (
	msgAdopt   = "adopt"
	msgAdopted = "adopted"
	msgGo      = "go"
)

// adoptLimit is how long a worker may take to answer, and adoptPatience for how long of that all others wait for it.
const (
	adoptLimit    = time.Minute
	adoptPatience = 5 * time.Second
)

// placeRecord is a place as it is noted.
type placeRecord struct {
	Client netip.Prefix
	Most   uint32
	Memory uint64
}

// heir is a session of the supervisor before this one, on its way to be this one's.
type heir struct {
	*session
	p             *process
	place         place
	leaveInstance func()
	shares        int   // that its worker has told of
	reason        error // why it ends
	ready         func()
}

// keepSession has the spawner keep a session, if it does such things.
func keepSession(s *supervisor, x *session, mine place) error {
	p := x.proc
	if x.nvml || !p.Keeps() || p.mps != nil {
		return nil
	}
	info := sessionRecord{Contract: contract, ID: x.id, Secret: x.secret, Host: x.client.host, Address: x.client.address,
		PID: x.client.pid, Command: x.client.command, User: x.client.user, Tenant: x.who.Name, Credential: x.who.Key(),
		Lease: x.who.lease, Place: placeRecord{mine.client, mine.most, mine.memory}, Terms: x.terms, Quota: x.quota,
		Secure: x.secure, Tickets: x.tickets, Grace: x.grace, Opened: x.opened.Round(0), Seat: x.visit.Place,
		Profile: uint(p.profile), Ready: p.ready}
	var err error
	if x.record, err = newRecord(&info, changing{Meter: x.meter.State()}); err != nil {
		return err
	}
	line, err := p.line.File()
	if err != nil {
		return err
	}
	defer line.Close()
	files := []*os.File{line, p.says}
	for _, fd := range []int{p.page.FD, x.visit.FD(), x.record.fd} {
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "kept")
		defer f.Close()
		files = append(files, f)
	}
	if err := p.Keep(files); err != nil && !errors.Is(err, unix.EPIPE) { // the spawner may just be restarted
		return fmt.Errorf("have the spawner keep a session: %w", err)
	}
	return nil
}

// adopt takes over the sessions of the supervisor before this one. It returns when all of them go on, but for those
// whose workers are late: they hold nobody up, and what they share is there when they have answered.
func adopt(s *supervisor, workers []spawner.Kept) {
	var heirs []*heir
	for i := range workers {
		h, err := inherit(s, &workers[i])
		if err != nil {
			s.log.Error("a session of the server before cannot be taken over, and ends", "worker", workers[i].PID,
				"error", err)
			workers[i].Close()
			continue
		}
		h.enter(s)
		heirs = append(heirs, h)
	}
	var all sync.WaitGroup // nobody asks for what is shared before all of it is there
	all.Add(len(heirs))
	for _, h := range heirs {
		h.ready = sync.OnceFunc(all.Done)
		late := time.AfterFunc(adoptPatience, func() {
			s.log.Warn("a session's worker is slow to answer its new server; the others go on", "session", h.id,
				"worker", h.p.pid())
			h.ready()
		})
		s.handlers.Go(func() {
			h.reason = h.greet(s)
			late.Stop()
			h.ready()
			all.Wait()
			succeed(s, h)
		})
	}
	all.Wait()
	if len(heirs) > 0 {
		s.log.Info("took over the sessions of the server before", "sessions", len(heirs))
	}
}

// errUnknown is a session of which its client has not heard. It opens another one.
var errUnknown = errors.New("its client has not heard of it")

// inherit makes a session and a process of what was kept.
func inherit(s *supervisor, k *spawner.Kept) (*heir, error) {
	fds, err := copies(k.Files)
	if err != nil {
		return nil, err
	}
	closeAll := func(from int) {
		for _, fd := range fds[from:] {
			closeFD(fd)
		}
	}
	kept, info, err := openRecord(fds[keptRecord])
	switch {
	case errors.Is(err, errContract):
		x := remembered(kept, info)
		x.record = nil
		if !kept.now.Meter.From.IsZero() {
			s.record(x.meter, x, metrics.EndKilled)
		}
		s.sessions.bury(x, "the server was upgraded, and sessions of the release before cannot go on")
	case err == nil && !kept.now.Welcomed:
		err = errUnknown
	}
	if err != nil {
		closeAll(0)
		return nil, err
	}
	line, err := handoff.Inherit(os.NewFile(uintptr(fds[keptLine]), "line"))
	if err != nil {
		closeAll(keptLine + 1)
		return nil, err
	}
	page, err := s.metrics.Pages.Adopt(fds[keptPage])
	if err != nil {
		closeFD(fds[keptLog])
		closeAll(keptPage + 1)
		return nil, errors.Join(err, line.Close())
	}
	visit, err := s.commons.Return(info.Tenant, fds[keptCommons], info.Seat, leaseNumber(info.Lease))
	if err != nil {
		s.metrics.Pages.Remove(page)
		closeFD(fds[keptLog])
		closeFD(fds[keptRecord])
		return nil, errors.Join(err, line.Close())
	}
	for _, f := range k.Files {
		f.Close()
	}
	_ = unix.SetNonblock(fds[keptLog], true)
	p := newProcess(s, k.Worker, line, os.NewFile(uintptr(fds[keptLog]), "log"), page)
	p.tenant, p.profile, p.ready = info.Tenant, isolation.Profile(info.Profile), info.Ready
	close(p.took)
	mine := &grant{tenant: info.Tenant}
	if s.images != nil {
		mine.images = s.images.Holder(info.Tenant)
	}
	p.grant.Store(mine)
	x := remembered(kept, info)
	x.proc, x.visit = p, visit
	h := &heir{session: x, p: p, place: place{kind: cudaSession, client: info.Place.Client, tenant: info.Tenant,
		lease: info.Lease, most: info.Place.Most, memory: info.Place.Memory}}
	x.terms, h.leaveInstance = s.instances.take(info.Terms)
	return h, nil
}

// What is kept of a worker.
const (
	keptLine = iota
	keptLog
	keptPage
	keptCommons
	keptRecord
)

// copies gives descriptors that are the caller's, of files that stay open.
func copies(files []*os.File) (fds []int, err error) {
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				var own int
				if own, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3); err == nil {
					fds = append(fds, own)
				}
			})
		}
		if err != nil || len(fds) == 0 {
			for _, fd := range fds {
				closeFD(fd)
			}
			return nil, err
		}
	}
	return fds, nil
}

// remembered is a session as it was noted.
func remembered(kept *record, info *sessionRecord) *session {
	x := &session{id: info.ID, secret: info.Secret, secure: info.Secure,
		client: client{info.Host, info.Address, info.PID, info.Command, info.User},
		who:    bearer{tenant.Known(info.Tenant, info.Credential), info.Lease}, terms: info.Terms, tickets: info.Tickets,
		grace: info.Grace, opened: info.Opened, quota: info.Quota, gone: make(chan struct{}), record: kept,
		used: kept.now.Used, introduced: kept.now.Introduced, peers: kept.now.Peers, epochs: kept.now.Epochs,
		meter: usage.Resume(kept.now.Meter), spent: spent{all: kept.now.Spent}}
	if x.used == nil {
		x.used = make(map[string]bool)
	}
	if x.peers == nil {
		x.peers = make(map[uint32]peerUse)
	}
	if x.epochs == nil && x.grace > 0 {
		x.epochs = make(map[uint32]uint64)
	}
	return x
}

// greet tells a worker that it has another supervisor, and reads what the one before had not. What the worker shares is
// counted at once: nobody may have so much of it that others find no descriptors.
func (h *heir) greet(s *supervisor) error {
	sent := h.p.line.Send(msgAdopt, struct{}{}, -1) // one that has ended may have left word
	h.p.line.Within(adoptLimit)
	defer h.p.line.Within(0)
	for {
		m, err := h.p.line.Receive()
		if err != nil {
			return errors.Join(sent, err)
		}
		switch m.Type {
		case msgAdopted:
			closeFD(m.FD)
			return nil
		case msgShare: // those that it had asked for are void
			var info shareInfo
			if m.Decode(&info) == nil && info.Request == 0 && h.shares < maxShares+executor.MaxValues {
				h.shares++
				if err := s.shares.putAgain(h.p, m); err != nil {
					s.log.Warn("what a session shared is lost", "session", h.id, "error", err)
				}
				continue
			}
		case msgEnded:
			h.p.hearEnd(m)
		}
		closeFD(m.FD) // it will ask again
	}
}

// enter gives a session its place, and lets it be found.
func (h *heir) enter(s *supervisor) {
	s.waiting.takeOver(h.place)
	h.p.slot.Tell(0) // what the supervisor before has said holds no more
	who, rights := s.turnsOf(h.who, h.terms)
	s.turns.join(h.p, who, &rights)
	s.sessions.add(h.session)
}

// succeed lets a session go on, and returns when it is over.
func succeed(s *supervisor, h *heir) {
	x, p := h.session, h.p
	log := s.log.With("session", x.id, "worker", p.pid())
	if x.who.lease != "" {
		log = log.With("lease", x.who.lease)
	}
	began := time.Now()
	lost := h.reason != nil && !p.clean
	watch(s, p, func() {})
	leave := sync.OnceFunc(func() { s.waiting.ended(&waiter{place: h.place, who: x.who}, time.Since(began)) })
	defer h.leaveInstance()
	defer x.visit.Leave()
	defer x.record.close()
	if g := p.grant.Load(); g.images != nil {
		defer g.images.Close()
	}
	log.Info("session taken over", "profile", p.profile.String())
	attend(s, x, log, metrics.KindCUDA, leave, func() {
		if lost {
			log.Warn("a session's worker does not answer its new server, and ends", "error", h.reason)
			p.kill()
			return
		}
		_ = p.line.Send(msgGo, struct{}{}, -1) // one that has ended needs no answers
	})
}
