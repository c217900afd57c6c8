package server

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/commons"
	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/queue"
	"scuda.dev/scuda/server/usage"
	"scuda.dev/scuda/transport"
)

// session is a client that a worker serves.
type session struct {
	id, secret string
	nvml       bool
	secure     bool // it has TLS
	client     client
	who        bearer
	terms      lease.Terms
	tickets    bool               // further connections need one
	used       map[string]bool    // tickets; guarded by sessions.mu
	introduced introductions      // guarded by sessions.mu
	meeting    atomic.Int32       // how many introductions are under way
	peers      map[uint32]peerUse // of connections of the client's other servers; guarded by sessions.mu
	grace      time.Duration      // how long it outlives its connections; 0: not at all
	epochs     map[uint32]uint64  // sockets that its connections have had; guarded by sessions.mu
	proc       *process           // set before the session can be found
	opened     time.Time
	visit      *commons.Visit // nil: of NVML
	spent      spent
	meter      *usage.Meter // nil: of NVML
	record     *record      // for the next supervisor; nil: it gets nothing
	quota      uint64       // bytes of GPU memory, 0: none
	ending     atomic.Pointer[ending]
	gone       chan struct{} // closed when the session is over and cannot be found any more
}

// sessions are those that have a worker, and the places taken by those that wait for one.
type sessions struct {
	limits    [kinds]int // 0: none
	perClient int        // limit of one client's sessions of a kind, 0: none
	memory    uint64     // of the GPUs', that may be kept for CUDA sessions in all; 0: any

	mu       sync.Mutex
	byID     map[string]*session
	past     []past // that have ended, the latest last
	taken    [kinds]int
	kept     uint64                       // of that memory
	byClient map[netip.Prefix]*[kinds]int // places taken
	byTenant map[string]*[kinds]int       // the same by tenant
	byLease  map[string]uint32            // those of CUDA under each lease
	idle     chan struct{}                // closed while there is no session
	closed   bool                         // idle is closed
}

// sessionKind is what has limits of its own.
type sessionKind int

const (
	cudaSession sessionKind = iota
	nvmlSession
	kinds
)

func kindOf(nvml bool) sessionKind {
	if nvml {
		return nvmlSession
	}
	return cudaSession
}

func (k sessionKind) String() string { return [kinds]string{"CUDA", "NVML"}[k] }

func (s *sessions) init(cuda, nvml, client int) {
	s.limits, s.perClient = [kinds]int{max(cuda, 0), max(nvml, 0)}, max(client, 0)
	s.byID, s.byClient = make(map[string]*session), make(map[netip.Prefix]*[kinds]int)
	s.byTenant, s.byLease = make(map[string]*[kinds]int), make(map[string]uint32)
	s.idle, s.closed = make(chan struct{}), true
	close(s.idle)
}

// place is one that a session takes.
type place struct {
	kind   sessionKind
	client netip.Prefix
	tenant string
	lease  string // "": none
	most   uint32 // CUDA sessions of the lease; 0: any number
	memory uint64 // of the GPUs', that is kept for it; 0: none
}

// shareOfNVML is the part of the places for NVML that one of several tenants gets unless its limit says more.
const shareOfNVML = 4

// perTenant is how many sessions of a kind a tenant may have; 0: any number.
func (s *sessions) perTenant(k sessionKind, l *config.Limits, sole bool) uint64 {
	switch {
	case k == cudaSession:
		return l.Sessions
	case l.NVML > 0 || sole || s.limits[k] == 0:
		return l.NVML
	}
	return uint64(max(s.limits[k]/shareOfNVML, 1))
}

// admit takes a place for a session of a client, whose tenant may have so many (0: any number).
func (s *sessions) admit(p place, perTenant uint64) error {
	_, err := s.try(p, perTenant)
	return err
}

// try is admit that says for whom there is no place.
func (s *sessions) try(p place, perTenant uint64) (queue.Verdict, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, of := p.kind, p.client
	mine, tenants := s.byClient[of], s.byTenant[p.tenant]
	switch {
	case s.limits[k] > 0 && s.taken[k] >= s.limits[k]:
		return queue.Full, refusef(transport.StatusBusy, "%d of %d %v sessions are taken (%s)", s.taken[k], s.limits[k], k,
			[kinds]string{"--max-sessions", "--max-nvml-sessions"}[k])
	case mine != nil && s.perClient > 0 && mine[k] >= s.perClient:
		return queue.Own, refusef(transport.StatusBusy,
			"clients of %v have %d %v sessions, which is what --max-sessions-per-client allows", of, mine[k], k)
	case tenants != nil && perTenant > 0 && uint64(tenants[k]) >= perTenant:
		return queue.Own, refusef(transport.StatusBusy, "tenant %s has %d %v sessions, which is what its %s allows",
			p.tenant, tenants[k], k, [kinds]string{"max-sessions-per-tenant", "max-nvml-sessions-per-tenant"}[k])
	case k == cudaSession && p.lease != "" && p.most > 0 && s.byLease[p.lease] >= p.most:
		return queue.Own, refusef(transport.StatusBusy,
			"lease %s has %d CUDA sessions, which is what its --sessions allows", p.lease, s.byLease[p.lease])
	case s.memory > 0 && s.kept+min(p.memory, s.memory) > s.memory:
		return queue.Memory, refusef(transport.StatusBusy, "%v of GPU memory are kept for sessions, %v more are more than "+
			"the %v of --max-vram-kept", config.Size(s.kept), config.Size(p.memory), config.Size(s.memory))
	}
	s.take(p)
	return queue.Admitted, nil
}

// take takes a place, free or not. s.mu is held.
func (s *sessions) take(p place) {
	mine, tenants := s.byClient[p.client], s.byTenant[p.tenant]
	if mine == nil {
		mine = new([kinds]int)
		s.byClient[p.client] = mine
	}
	if tenants == nil {
		tenants = new([kinds]int)
		s.byTenant[p.tenant] = tenants
	}
	mine[p.kind]++
	tenants[p.kind]++
	if p.kind == cudaSession && p.lease != "" {
		s.byLease[p.lease]++
	}
	s.kept += min(p.memory, s.memory)
	s.count(p, 1)
}

// leave gives a place back.
func (s *sessions) leave(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.byClient[p.client]
	if mine[p.kind]--; *mine == [kinds]int{} {
		delete(s.byClient, p.client)
	}
	tenants := s.byTenant[p.tenant]
	if tenants[p.kind]--; *tenants == [kinds]int{} {
		delete(s.byTenant, p.tenant)
	}
	if p.kind == cudaSession && p.lease != "" {
		if s.byLease[p.lease]--; s.byLease[p.lease] == 0 {
			delete(s.byLease, p.lease)
		}
	}
	s.kept -= min(p.memory, s.memory)
	s.count(p, -1)
}

// count adds to the places taken. s.mu is held.
func (s *sessions) count(p place, by int) {
	s.taken[p.kind] += by
	switch n := s.taken[cudaSession] + s.taken[nvmlSession]; {
	case n > 0 && s.closed:
		s.idle, s.closed = make(chan struct{}), false
	case n == 0 && !s.closed:
		close(s.idle)
		s.closed = true
	}
}

func (s *sessions) add(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[x.id] = x
}

func (s *sessions) remove(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, x.id)
}

// find looks a session up for a further connection, and uses its ticket up. Whoever has none gets the same answer as
// who names no session.
func (s *sessions) find(c arrival) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := c.Hello
	x, ok := s.byID[h.Session]
	if !ok || !x.admits(c) {
		return nil
	}
	x.permitted()
	return x
}

// admits says whether a further connection is the session's client's. sessions.mu is held.
func (x *session) admits(c arrival) bool {
	return !x.nvml && x.who.Name == c.who.Name && x.who.lease == c.who.lease && x.secure == isTLS(c) && x.permits(c)
}

// tickets is how many further connections a session may have for a purpose.
var tickets = map[string]int{
	transport.KindCallback: 1, transport.KindRDMA: 1, transport.KindBulk: transport.MaxBulkConns,
	transport.KindResume: math.MaxInt, transport.KindIntroduce: math.MaxInt,
}

// permits says whether a connection may join. A client of before there were tickets presents the secret; it knows no
// introductions, which are counted by their tickets.
func (x *session) permits(c arrival) bool {
	h := c.Hello
	if !x.tickets {
		return h.Ticket == "" && h.Kind != transport.KindIntroduce &&
			subtle.ConstantTimeCompare([]byte(x.secret), []byte(h.Secret)) == 1
	}
	n, ok := transport.TicketNumber(h.Ticket)
	if !ok || n >= tickets[h.Kind] || h.Purpose != h.Kind || h.Secret != "" {
		return false
	}
	want, err := transport.Ticket(x.secret, x.id, h.Purpose, n, c.peer)
	if err != nil || !transport.SameTicket(want, h.Ticket) {
		return false
	}
	if h.Kind == transport.KindResume {
		return x.follows(h, n)
	}
	if h.Kind == transport.KindIntroduce {
		return x.introduced.take(n)
	}
	use := h.Purpose + " " + strconv.Itoa(n)
	if x.used[use] {
		return false
	}
	x.used[use] = true
	return true
}

// named gives the session with an id, nil: there is none.
func (s *sessions) named(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// all are those that have a worker.
func (s *sessions) all() (list []*session) {
	s.each(func(x *session) { list = append(list, x) })
	return list
}

// places says how many of a kind are taken, and how many of them by a tenant.
func (s *sessions) places(k sessionKind, tenant string) (taken, limit, mine int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.byTenant[tenant]; of != nil {
		mine = of[k]
	}
	return s.taken[k], s.limits[k], mine
}

func (s *sessions) each(f func(*session)) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.byID {
		f(x)
	}
	return len(s.byID)
}

func (s *sessions) empty() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// openSession admits a CUDA client and gives it a worker; it returns when the session is over. An error is one that the
// client has to be told.
func (s *supervisor) openSession(c arrival, log *slog.Logger) error {
	return s.serveSession(c, log, false, func(ctx context.Context, of whose) (*process, error) {
		take := s.pools.take
		if c.Windows > 1 {
			of.window = portion{c.Window, c.Windows}
			take = func(ctx context.Context, of whose) (*process, error) { return makeWorker(ctx, s, of) }
		}
		for {
			p, err := take(ctx, of)
			if err == nil && p.profile != s.profile(modeCUDA, c.who.Name) {
				p.end() // it was made before the tenants file was read again
				continue
			}
			if err == nil {
				close(p.took)
			}
			return p, err
		}
	})
}

// openNVML does the same for an NVML client.
func (s *supervisor) openNVML(c arrival, log *slog.Logger) error {
	return s.serveSession(c, log, true, func(ctx context.Context, _ whose) (*process, error) {
		return s.nvmlPools.take(ctx, whose{tenant: c.who.Name})
	})
}

// devicesWithin are devices with no more memory than a quota; 0: none. The client answers cuDeviceTotalMem by this.
func devicesWithin(devices []transport.Device, quota uint64) []transport.Device {
	if quota == 0 {
		return devices
	}
	devices = slices.Clone(devices)
	for i := range devices {
		devices[i].TotalMem = min(devices[i].TotalMem, quota)
	}
	return devices
}

func (s *supervisor) serveSession(
	c arrival, log *slog.Logger, nvml bool, worker func(context.Context, whose) (*process, error),
) error {
	if err := s.closed(); err != nil {
		return err
	}
	terms, err := s.terms(c.who)
	if err != nil {
		return err
	}
	limits := s.limits(c.who, &terms)
	mine := place{
		kind: kindOf(nvml), client: door.Peer(c.RemoteAddr()), tenant: c.who.Name, lease: c.who.lease, most: terms.Sessions,
	}
	if !nvml {
		mine.memory = uint64(limits.MostVRAM())
	}
	leave, err := s.takePlace(c, log, mine, terms)
	if err != nil {
		return err
	}
	defer leave()
	began := time.Now()
	if err := s.closed(); err != nil { // somebody has begun to wait until the last place is free
		return err
	}
	if err := s.refused(c.who); err != nil { // it waited, and its credential was withdrawn meanwhile
		return err
	}
	ctx, attended := whilePeerStays(s.stop, transport.Socket(c.peer), false)
	if !nvml {
		var leaveInstance func()
		terms, leaveInstance = s.instances.take(terms)
		defer leaveInstance()
	}
	p, err := worker(ctx, whoseOf(s, c.who, &terms, &limits))
	attended()
	if err != nil {
		if errors.As(err, new(*refusal)) {
			return err
		}
		return refusef(transport.StatusFailed, "%w", err)
	}
	var visit *commons.Visit
	if !nvml {
		if visit, err = s.commons.Enter(c.who.Name, leaseNumber(c.who.lease)); err != nil {
			p.end()
			if errors.Is(err, commons.ErrFull) {
				return refusef(transport.StatusBusy, "%w", err)
			}
			return refusef(transport.StatusFailed, "%w", err)
		}
		defer visit.Leave() // once the worker has ended
	}
	defer func() {
		p.line.Close() // ends a worker that has no session
		<-p.exited
	}()
	x := &session{id: randomHex(8), secret: randomHex(16), nvml: nvml, client: clientOf(c.RemoteAddr(), c.Hello),
		who: c.who, terms: terms, proc: p, secure: isTLS(c), used: make(map[string]bool),
		peers: make(map[uint32]peerUse), visit: visit, gone: make(chan struct{}), opened: time.Now(),
		tickets: slices.Contains(c.Capabilities, transport.CapTickets)}
	if nvml {
		who := func() processList {
			return processList{s.sessions.processes(x.who.Name, x.client), s.sessions.memorySeen(x.who, x.client, &limits)}
		}
		p.who.Store(&who)
	} else {
		mine := &grant{tenant: c.who.Name}
		if s.images != nil {
			mine.images = s.images.Holder(c.who.Name)
			defer mine.images.Close()
		}
		p.grant.Store(mine)
	}
	log = log.With("session", x.id, "worker", p.pid())
	w := s.welcome(c, &p.ready)
	w.Session, w.Secret = x.id, x.secret
	if !nvml {
		x.quota, x.meter = uint64(limits.MostVRAM()), usage.NewMeter(x.opened)
		w.Devices = devicesWithin(w.Devices, x.quota)
		x.allowReturn(s.cfg.Grace, c.Hello, w)
	}
	info := sessionInfo{ID: x.id, Remote: c.RemoteAddr().String(), Hello: *c.Hello, Limits: limits,
		GPUs: s.instances.cards(s.facts.Load().Devices, terms.GPUs), Grace: x.grace}
	if nvml {
		w.DriverVersion = s.facts.Load().DriverVersion
	}
	welcome, err := transport.AppendWelcome(nil, w)
	if nvml { // its client sends commands with the greeting, and the worker sends this with the first answers
		info.Welcome = welcome
	} else if err == nil {
		welcome, err = sealed(c.peer, welcome) // with keys that are the worker's as soon as it has the connection
	}
	if err == nil {
		info.TLS, err = transport.Export(c.peer)
	}
	if err != nil {
		p.kill()
		return refusef(transport.StatusFailed, "%w", err)
	}
	// The worker gets the connection before anybody can name the session, so that a callback connection always finds it
	// there. A CUDA worker sends nothing until a command comes, and its client sends none before the welcome.
	if visit != nil {
		err = p.line.Send(msgCommons, commonsInfo{visit.Place}, visit.FD())
	}
	if err == nil {
		err = keepSession(s, x, mine)
		defer x.record.close()
	}
	if err == nil {
		err = passOn(c, p, msgSession, info)
	}
	if err != nil {
		p.kill()
		return refusef(transport.StatusFailed, "the worker did not take the session: %w", err)
	}
	if !nvml {
		who, rights := s.turnsOf(c.who, terms)
		s.turns.join(p, who, &rights)
	}
	s.sessions.add(x)
	s.metrics.Opening.Observe(time.Since(began).Seconds())
	kind := metrics.KindCUDA
	if nvml {
		kind = metrics.KindNVML
	}
	s.metrics.Opened.WithLabelValues(kind).Inc()
	if c.who.lease != "" {
		log = log.With("lease", c.who.lease)
	}
	log.Info("session opened", "profile", p.profile.String())
	attend(s, x, log, kind, leave, func() {
		if !nvml {
			x.record.update(func(c *changing) { c.Welcomed = true })
			_ = c.SetWriteDeadline(time.Now().Add(transport.PrefaceTimeout))
			if _, err := transport.Socket(c.peer).Write(welcome); err != nil {
				log.Info("the client went away during the handshake", "error", err)
			}
		}
		c.Close() // the worker holds the connection now
	})
	return nil
}

// join hands a further connection to the worker of its session, or another socket for one. Behind the welcome of that
// the worker says how much it has received.
func (s *supervisor) join(c arrival) error {
	hello := c.Hello
	if hello.Kind == transport.KindRDMA || hello.Line == transport.LineRDMA {
		if no := s.noRDMA(c); no != "" {
			return refusef(transport.StatusCapability, "this server has no RDMA for this client: %s", no)
		}
	}
	x := s.sessions.find(c)
	if x == nil {
		return s.sessions.endOf(c)
	}
	w := greeting(hello)
	w.Session = x.id
	if hello.Kind == transport.KindResume {
		w.Line, w.Epoch, w.Capabilities = hello.Line, hello.Epoch, s.cfg.offered()
	}
	if err := sendWelcome(c, w); err != nil {
		return nil // the client will ask again
	}
	_ = c.SetDeadline(time.Time{})
	state, err := transport.Export(c.peer)
	if err == nil {
		err = passOn(c, x.proc, hello.Kind, joinInfo{
			Count: hello.Count, Line: x.lineOf(hello), Epoch: hello.Epoch, Received: hello.Acknowledged, TLS: state,
		})
	}
	if err != nil {
		s.log.Warn("cannot pass on a connection", "kind", hello.Kind, "session", x.id, "error", err)
	}
	return nil
}

// passOn sends a connection's descriptor to a worker.
func passOn(c arrival, p *process, kind string, body any) error {
	raw, err := transport.Socket(c.peer).SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = p.line.Send(kind, body, int(fd)) })
	return errors.Join(err, sent)
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

func readFull(r io.Reader, b []byte) bool {
	_, err := io.ReadFull(r, b)
	return err == nil
}
