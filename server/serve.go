package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/commons"
	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/modcache"
	"scuda.dev/scuda/server/tenant"
	"scuda.dev/scuda/transport"
)

// supervisor is a running server.
type supervisor struct {
	cfg   Config
	log   *slog.Logger
	pools *pools
	// of workers for NVML, which hold nothing on a GPU
	nvmlPools *pools
	places    *places
	sessions  sessions
	waiting   waiting
	draining  atomic.Bool // the server shuts down
	held      atomic.Bool // an administrator wants no new sessions
	started   time.Time
	gpus      *gpuReader
	readGPUs  func() (gpuList, error) // what gpus has read a moment ago
	gpuTurn   chan struct{}           // held by the one administrator's question that asks NVML
	first     chan struct{}           // closed when facts is valid
	once      sync.Once
	facts     atomic.Pointer[readyInfo] // what the latest CUDA worker saw
	stop      context.Context           // ends when connections must be dropped
	handlers  sync.WaitGroup
	shares    *shelf
	images    *modcache.Cache // nil: none
	metrics   *metrics.Server
	board     *os.File // of the simulated machine
	metering  metering
	commons   commons.Tenants // what their sessions share
	workers   sync.WaitGroup  // those who follow a worker to its end
	door      *door.Door      // where connections wait that are not admitted yet
	lines     door.Lines      // that such connections may write into the log
	leases    *lease.Book
	desk      *admin.Port   // set before the first connection is accepted
	turns     *turns        // nil: sessions do not take turns
	mps       *daemons      // nil: workers run without MPS
	instances *instances    // nil: the GPUs are not split up
	made      chan struct{} // holds one element for each worker that is made for a session
	granting  sync.Mutex    // held while a tenant makes a lease
}

// Serve serves until ctx is cancelled; then it accepts nothing more, tells the running sessions, waits for them as long
// as cfg.Drain allows, and returns nil.
func Serve(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	stop, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	house, err := openHouse(ctx, stop, &cfg)
	if err != nil {
		return err
	}
	defer house.close()
	s := &supervisor{
		cfg: cfg, log: cfg.Log, stop: stop, first: make(chan struct{}), shares: newShelf(),
		door: door.New(door.Places()), started: time.Now(), made: make(chan struct{}, maxHelpers),
		turns: newTurns(cfg.Turns), board: house.board,
	}
	s.gpus = &gpuReader{start: func() (*process, error) { return s.startProcess(s.stop, modeNVML, whose{}) }}
	s.readGPUs, s.gpuTurn = remember(s.gpus.read), make(chan struct{}, 1)
	s.sessions.init(cfg.MaxSessions, cfg.MaxNVML, cfg.MaxPerClient)
	s.sessions.memory = cfg.KeptVRAM
	if s.leases, err = openLeases(&s.cfg); err != nil {
		return err
	}
	if s.images = openImages(&s.cfg); s.images != nil {
		defer s.images.Close()
	}
	if err := s.openUsage(); err != nil {
		return err
	}
	defer s.metering.log.Close()
	if s.places, err = s.openPlaces(house.spawner); err != nil {
		return err
	}
	defer func() { _ = s.places.close() }()
	if s.mps, err = openMPS(s); err != nil {
		return err
	}
	if s.instances, err = openInstances(&s.cfg); err != nil {
		return err
	}
	defer s.gpus.close()
	port, err := s.openMetrics(ctx)
	if err != nil {
		return err
	}
	defer port.Close()
	s.waiting.sessions, s.waiting.metrics = &s.sessions, s.metrics
	warm, cool := context.WithCancel(ctx)
	defer cool()
	broken := make(chan error, 1)
	s.pools = newPools(warm, func(ctx context.Context, of whose) *pool {
		start := func(ctx context.Context) (*process, error) { return s.startCUDA(ctx, of) }
		return newPool(ctx, cfg.Warm, start, func(err error) {
			startFailed(s, of, err)
			select {
			case broken <- err:
			default:
			}
		})
	})
	s.nvmlPools = newPools(warm, func(ctx context.Context, of whose) *pool {
		start := func(ctx context.Context) (*process, error) { return s.startProcess(ctx, modeNVML, of) }
		var said atomic.Value // a machine without NVML has none for good
		return newPool(ctx, 1, start, func(err error) {
			if text := err.Error(); said.Swap(text) != text {
				s.log.Warn("a worker for NVML failed", "error", err)
			}
		})
	})
	defer s.workers.Wait()
	defer s.mps.close()
	defer s.nvmlPools.wait()
	defer s.pools.wait()
	defer cool()
	if s.instances != nil {
		all, err := s.instances.look(warm, s.startCUDA)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoWorker, err)
		}
		learn(s, all)
	} else if sole := cfg.Tenants.Sole(); sole != "" && len(cfg.Tenants.Terms(sole).GPUs) == 0 {
		terms, limits := cfg.Tenants.Terms(sole), cfg.Tenants.Limits(sole, *cfg.Limits)
		s.pools.keep(whoseOf(s, bearer{Identity: tenant.Identity{Name: sole}}, &terms, &limits))
		s.nvmlPools.keep(whose{tenant: sole})
	} else { // nobody knows who comes first: one worker says what this machine has
		p, err := s.startCUDA(warm, whose{})
		if err != nil {
			broken <- err
		} else {
			p.end()
		}
	}

	select {
	case <-s.first:
	case err = <-broken: // before it ever worked: the operator has to act
		return fmt.Errorf("%w: %w", ErrNoWorker, err)
	case <-ctx.Done():
		house.bye()
		return nil
	}
	s.dropOrphans()           // the tenants file may have changed while no server ran
	err = s.openAdmin(s.stop) // before anybody is told: who hears of the server may ask for a lease at once
	defer s.desk.Close()      // what it still does is done then
	if err != nil {
		return err
	}
	facts := s.facts.Load()
	s.say(facts.Isolation)
	s.log.Info("serving", "address", cfg.Listener.Addr().String(), "gpu", facts.GPU, "driver", facts.Driver, "devices",
		len(facts.Devices))
	if cfg.Ready != nil {
		cfg.Ready(Status{
			Addr: cfg.Listener.Addr(), GPU: facts.GPU, Driver: facts.Driver, Devices: facts.Devices, Metrics: port.Addr(),
			Fingerprint: cfg.Tenants.Fingerprint(),
		})
	}
	adopt(s, house.workers)
	house.workers = nil
	s.handlers.Go(func() { s.reload(s.stop) })
	s.handlers.Go(func() { s.turns.run(s.stop) })
	if s.cfg.Grace > 0 && s.cfg.MaxAway > 0 {
		s.handlers.Go(func() { boundAway(s.stop, s) })
	}
	s.handlers.Go(func() { s.leases.Watch(s.stop, s.leaseOver) })
	accepting := make(chan error, 1)
	go func() { accepting <- s.accept() }()
	select {
	case <-ctx.Done():
		s.draining.Store(true)
		s.metrics.Draining.Set(1)
		s.closedQueue()
		cfg.Listener.Close()
		<-accepting //nolint:errcheck // it says that the listener was closed
	case err = <-accepting:
	}
	s.drain()
	house.bye()
	kill()
	s.desk.Close()
	s.handlers.Wait()
	return err
}

func listenError(addr string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf(
			"cannot listen on %s: the port is in use; stop the other server or choose another port (0 "+
				"picks one): %w", addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("cannot listen on %s: no interface of this machine has the address: %w", addr, err)
	}
	return fmt.Errorf("cannot listen on %s: %w", addr, err)
}

// profile is what workers may do that are made for a tenant now.
func (s *supervisor) profile(mode, tenant string) isolation.Profile {
	if mode != modeCUDA {
		return isolation.Base
	}
	profile := s.cfg.Tenants.Profile(tenant, s.cfg.Profile)
	if s.cfg.noRDMA() == "" {
		profile |= isolation.RDMA
	}
	return profile
}

// logLevel is the lowest level that a log takes.
func logLevel(log *slog.Logger) slog.Level {
	level := slog.LevelError
	for _, l := range []slog.Level{slog.LevelWarn, slog.LevelInfo, slog.LevelDebug} {
		if log.Enabled(context.Background(), l) {
			level = l
		}
	}
	return level
}

func (s *supervisor) workerConfig(mode string, of whose) workerConfig {
	return workerConfig{Mode: mode, Isolation: s.cfg.Isolation, Profile: s.profile(mode, of.tenant), Visible: of.gpus,
		Window: of.window,
		Fabric: s.cfg.Fabric, NCCL: s.cfg.NCCL, GPU: s.cfg.GPU, Library: s.cfg.Library, SimMemory: s.cfg.SimMemory,
		SimDevices: s.cfg.SimDevices, Sim: s.cfg.Sim,
		Images: s.images != nil, Staging: s.cfg.Staging, RDMASlots: s.cfg.rdmaSlots(),
		RDMADevice: s.cfg.RDMADevice, GPUDirect: s.cfg.GPUDirect, Settings: s.cfg.NVMLSettings,
		LogLevel: int(logLevel(s.log)), LogFormat: s.cfg.LogFormat,
		board: s.board}
}

func (s *supervisor) startCUDA(ctx context.Context, of whose) (*process, error) {
	began := time.Now()
	p, err := s.startProcess(ctx, modeCUDA, of)
	if err == nil {
		s.metrics.WorkerStarts.Observe(time.Since(began).Seconds())
		s.metrics.Driver(p.ready.Driver, p.ready.DriverVersion, p.ready.GPU)
		s.countWorker(p)
		if of.gpus == "" { // it sees all that there is
			learn(s, &p.ready)
		}
	}
	return p, err
}

// startFailed tells the operator of a worker that did not get ready.
func startFailed(s *supervisor, of whose, err error) {
	s.metrics.WorkerFailures.Inc()
	s.log.Error("a worker failed", "error", err)
	s.mps.refused(of.tenant, err)
}

// learn takes over what somebody saw of the whole machine.
func learn(s *supervisor, facts *readyInfo) {
	s.facts.Store(facts)
	s.once.Do(func() { close(s.first) })
}

func (s *supervisor) accept() error {
	for {
		c, err := s.cfg.Listener.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) && s.draining.Load() {
				return nil
			}
			var sys syscall.Errno
			if errors.As(err, &sys) && (sys == unix.EMFILE || sys == unix.ENFILE || sys == unix.ECONNABORTED ||
				sys == unix.ENOBUFS || sys == unix.ENOMEM) {
				s.warn(s.log, "cannot accept a connection for now", "error", err)
				if s.door.Shed() {
					continue
				}
				select {
				case <-time.After(50 * time.Millisecond):
				case <-s.stop.Done():
				}
				continue
			}
			return fmt.Errorf("accept: %w", err)
		}
		visit := s.door.Enter(c, c.RemoteAddr())
		s.handlers.Go(func() { s.handle(c, visit) })
	}
}

// handle carries out the opening of a connection; docs/protocol.md.
func (s *supervisor) handle(c *net.TCPConn, visit *door.Visit) {
	defer visit.Leave()
	defer c.Close()
	unhook := context.AfterFunc(s.stop, func() { c.Close() })
	defer unhook()
	log := s.log.With("peer", c.RemoteAddr().String())
	if err := transport.Tune(c); err != nil {
		s.warn(log, "cannot set up a connection", "error", err)
		return
	}
	_ = c.SetDeadline(time.Now().Add(transport.PrefaceTimeout))
	p, err := s.meet(c)
	if err == nil {
		err = check(p.Hello, s.cfg.offered())
	}
	if err != nil {
		s.refuseAtDoor(p, visit, log, err)
		return
	}
	hello := p.Hello
	log = log.With("kind", door.Clip(hello.Kind, maxName), "host", door.Clip(hello.Host, maxName), "program",
		door.Clip(hello.Program, maxName), "pid", hello.PID, "tenant", p.who.Name)
	switch hello.Kind {
	case transport.KindCUDA:
		_ = c.SetDeadline(time.Time{})
		visit.Leave()
		err = s.openSession(p, log)
	case transport.KindNVML:
		_ = c.SetDeadline(time.Time{})
		visit.Leave()
		err = s.openNVML(p, log)
	case transport.KindCallback, transport.KindBulk, transport.KindRDMA, transport.KindResume:
		err = s.join(p)
	case transport.KindIntroduce:
		err = introduce(s, p)
	case transport.KindPeer:
		err = joinPeer(s, p)
	case transport.KindInfo:
		err = s.serveInfo(p)
	case transport.KindAdmin:
		err = s.serveAdmin(p, visit)
	default:
		err = refusef(transport.StatusMalformed, "unknown kind of connection %.40q", hello.Kind)
	}
	if err != nil {
		s.refuse(p, log, err)
	}
}

// refuseAtDoor refuses a peer that has shown no right to be here. Who guesses tokens gets each answer later.
func (s *supervisor) refuseAtDoor(c arrival, visit *door.Visit, log *slog.Logger, err error) {
	select {
	case <-visit.Dropped(): // it said nothing, and others needed its place
		s.metrics.Refused.WithLabelValues("dropped").Inc()
		return
	default:
	}
	if errors.Is(err, transport.ErrToken) {
		if delay := visit.Wrong(); delay > 0 {
			t := time.NewTimer(delay)
			defer t.Stop()
			select {
			case <-t.C:
			case <-visit.Dropped():
			case <-s.stop.Done():
			}
			_ = c.SetDeadline(time.Now().Add(time.Second))
		}
	}
	s.refuse(c, log, err)
}

// warn writes a line about peers that were not admitted; there is a bound for such lines.
func (s *supervisor) warn(log *slog.Logger, text string, args ...any) {
	missed, ok := s.lines.Allow()
	if !ok {
		return
	}
	if missed > 0 {
		args = append(args, "lines_left_out", missed)
	}
	log.Warn(text, args...)
}

// refusal is an answer to a preface other than welcome.
type refusal struct {
	status transport.Status
	text   string
	err    error
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.err }

func refusef(status transport.Status, format string, args ...any) error {
	e := fmt.Errorf(format, args...)
	return &refusal{status, e.Error(), e}
}

// refuse tells the peer why it is not served. A peer that has sent nothing sensible gets the reason as well: it may be
// a client of another version.
func (s *supervisor) refuse(c peer, log *slog.Logger, err error) {
	if e := (*transport.VersionError)(nil); errors.As(err, &e) {
		e.ServerRelease = release.Version()
	}
	w := transport.Welcome{
		Status: transport.StatusOf(err), Version: release.Version(), Error: err.Error(), MinVersion: transport.Spoken.Min,
		MaxVersion: transport.Spoken.Max,
	}
	if r := (*refusal)(nil); errors.As(err, &r) {
		w.Status = r.status
	}
	if e := (*transport.SessionEnded)(nil); errors.As(err, &e) {
		w.Ended = e.Reason
	}
	if w.Status == transport.StatusFailed { // what failed may name paths, users and processes of this machine
		w.Error = "look into the server's log"
	}
	if errors.Is(err, net.ErrClosed) || s.stop.Err() != nil {
		return
	}
	if errors.Is(err, errShake) {
		w.Status = transport.StatusTLS
	}
	s.metrics.Refused.WithLabelValues(w.Status.String()).Inc()
	s.warn(log, "refused a connection", "status", uint32(w.Status), "error", door.Clip(err.Error(), maxReason))
	if errors.Is(err, errShake) {
		return // TLS has said it
	}
	_ = sendWelcome(c, &w)
	// Closing with unread bytes would reset the connection and could take the answer with it.
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	var sink [4096]byte
	for range 64 {
		if _, err := c.Read(sink[:]); err != nil {
			return
		}
	}
}

func sendWelcome(c peer, w *transport.Welcome) error {
	b, err := transport.AppendWelcome(nil, w)
	if err != nil {
		return err
	}
	_ = c.SetWriteDeadline(time.Now().Add(transport.PrefaceTimeout))
	if _, err := c.Write(b); err != nil {
		return err
	}
	return c.SetWriteDeadline(time.Time{})
}

// serveInfo answers with what is known of the server, then echoes pings for measuring the round trip, as long as the
// client's credential is good.
func (s *supervisor) serveInfo(c arrival) error {
	const idle, most = 30 * time.Second, 4096
	terms, err := s.terms(c.who)
	if err != nil {
		return err
	}
	w, limits := s.welcome(c, s.facts.Load()), s.limits(c.who, &terms)
	w.Devices = devicesWithin(seen(w.Devices, terms.GPUs), uint64(limits.MostVRAM()))
	w.Load = &transport.Load{Uptime: time.Since(s.started).Seconds(), Draining: s.closed() != nil}
	w.Load.Waiting, w.Load.Away = s.waiting.length(), len(s.sessions.away(func(*session) bool { return true }))
	w.Load.Sessions, w.Load.Places, w.Load.Mine = s.sessions.places(cudaSession, c.who.Name)
	if err := sendWelcome(c, w); err != nil {
		return nil // the peer is gone: there is nobody to tell
	}
	buf := make([]byte, transport.MessageHeaderSize, transport.MessageHeaderSize+most)
	for {
		_ = c.SetReadDeadline(time.Now().Add(idle))
		buf = buf[:transport.MessageHeaderSize]
		if !readFull(c, buf) || s.withdrawn(c.who) != nil {
			return nil
		}
		h, _, err := transport.ParseMessage(buf)
		if err != nil || h.Type != transport.MsgPing || h.Len > most {
			return nil
		}
		h.Type = transport.MsgPong
		out := h.Append(buf[:0])[:transport.MessageHeaderSize+transport.Pad(int(h.Len))]
		if !readFull(c, out[transport.MessageHeaderSize:]) {
			return nil
		}
		if _, err := c.Write(out); err != nil {
			return nil
		}
	}
}

func (s *supervisor) welcome(c arrival, r *readyInfo) *transport.Welcome {
	no := s.noRDMA(c)
	w := greeting(c.Hello)
	w.Tenant, w.Profile = c.who.Name, s.profile(modeCUDA, c.who.Name).String()
	w.Admin = s.role(c.who).Role() == admin.RoleAdmin
	w.Driver, w.DriverVersion, w.GPU, w.Devices = r.Driver, r.DriverVersion, r.GPU, r.Devices
	w.Bulk, w.RDMA, w.NoRDMA = transport.MaxBulkConns, no == "", no
	return w
}

// drain waits for the running sessions, then ends those that are left.
func (s *supervisor) drain() {
	left := s.sessions.each(func(x *session) { // a worker may be slow to listen, and its neighbours are not to wait
		s.handlers.Go(func() {
			_ = x.proc.line.Send(msgNotice,
				noticeInfo{Text: "the server shuts down soon; this session may go on for a little while"}, -1)
		})
	})
	if left > 0 {
		s.log.Info("draining", "sessions", left, "at_most", s.cfg.Drain.String())
	}
	if s.cfg.Drain > 0 {
		t := time.NewTimer(s.cfg.Drain)
		defer t.Stop()
		select {
		case <-s.sessions.empty():
			return
		case <-t.C:
		}
	}
	if left := s.sessions.each((*session).kill); left > 0 {
		s.log.Warn("ended the sessions that were still running", "sessions", left)
	}
	<-s.sessions.empty()
}
