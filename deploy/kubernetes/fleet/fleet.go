package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"scuda.dev/scuda/deploy/kubernetes/names"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
)

// Errors of what is asked of a fleet.
var (
	ErrUnknown = errors.New("no such server is configured")
	ErrSilent  = errors.New("the server does not answer")
)

// Options are what a fleet needs.
type Options struct {
	Cluster string // tells this cluster's leases from others'
	Every   time.Duration
	Graces  Graces
	Dial    func(*Server) Admin
	Log     *slog.Logger
	// Changed is called after a server was asked, whether it answered or not; it must not wait for the fleet.
	Changed func(server string)
}

// Held is a lease of this cluster.
type Held struct{ Server, ID string }

// Fleet are the servers. Its methods are called by several goroutines at once.
type Fleet struct {
	o Options

	mu      sync.Mutex // guards members
	members map[string]*member
	wait    sync.WaitGroup

	held index
}

type member struct {
	Server
	fleet  *Fleet
	ask    Admin
	cancel context.CancelFunc

	turn sync.Mutex // held while leases are asked for, made or revoked

	mu      sync.Mutex    // guards what follows
	status  *admin.Status // the last; nil: it has not answered yet
	devices []resourceapi.Device
	gone    time.Time // since when it has not answered; zero: it answers
	leases  map[types.UID][]string
	over    bool // another one has taken its place; what it still learns is not kept
	pool    published
}

// published is a pool with what it was made of. It is made anew where that has changed.
type published struct {
	resourceslice.Pool
	from []resourceapi.Device
	with []resourceapi.DeviceTaint
}

// New makes a fleet without servers.
func New(o Options) *Fleet {
	if o.Dial == nil {
		o.Dial = Dial
	}
	return &Fleet{o: o, members: map[string]*member{}, held: index{of: map[types.UID][]Held{}}}
}

// Apply makes the fleet one of these servers, and asks them until the context ends. Servers that are gone from the list
// are asked no more. seed has what was published of servers that have not answered yet.
func (f *Fleet) Apply(ctx context.Context, c *Config, seed Seeds) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := map[string]bool{}
	within := min(f.o.Every, time.Millisecond*time.Duration(1+len(c.Servers)))
	for _, s := range c.Servers {
		wanted[s.Name] = true
		have, known := f.members[s.Name]
		if known && reflect.DeepEqual(have.Server, s) {
			continue
		}
		m := &member{Server: s, fleet: f, ask: f.o.Dial(&s), devices: seed[s.Name], gone: time.Now()}
		if known {
			have.cancel()
			have.mu.Lock()
			m.devices, m.leases, have.over = have.devices, have.leases, true
			have.mu.Unlock()
		}
		f.members[s.Name] = m
		var own context.Context
		own, m.cancel = context.WithCancel(ctx)
		f.wait.Go(func() { m.watch(own, within) })
	}
	for name, m := range f.members {
		if !wanted[name] {
			m.cancel()
			m.mu.Lock()
			m.know(nil)
			m.over = true
			m.mu.Unlock()
			delete(f.members, name)
		}
	}
}

// Wait returns when the context of [Fleet.Apply] has ended, and nobody is asked any more.
func (f *Fleet) Wait() { f.wait.Wait() }

func (f *Fleet) all() []*member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.members))
}

func (f *Fleet) get(name string) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members[name]
}

// watch asks a server again and again. Each server has a moment of its own in the period: all of them at once would
// keep everything else waiting.
func (m *member) watch(ctx context.Context, within time.Duration) {
	select {
	case <-time.After(rand.N(within)):
	case <-ctx.Done():
	}
	tick := time.NewTicker(m.fleet.o.Every)
	defer tick.Stop()
	for ctx.Err() == nil {
		m.look(ctx)
		if ctx.Err() == nil {
			m.fleet.o.Changed(m.Name)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// look asks a server how it is and what leases it has.
func (m *member) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, max(m.fleet.o.Every, 5*time.Second))
	defer cancel()
	m.turn.Lock()
	defer m.turn.Unlock()
	st, err := m.ask.Status(ctx)
	var list []admin.Lease
	if err == nil {
		list, err = m.ask.Leases(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	if err != nil {
		if m.gone.IsZero() {
			m.gone = time.Now()
			m.fleet.o.Log.Warn("a server does not answer", "server", m.Name, "error", err)
		}
		return
	}
	if !m.gone.IsZero() {
		m.fleet.o.Log.Info("a server answers", "server", m.Name, "gpus", len(st.GPUs), "leases", len(list))
	}
	// One that has just started does not know its GPUs yet.
	if len(st.GPUs) > 0 && (m.status == nil || !alike(m.status, st)) {
		m.devices = devices(&m.Server, st)
	}
	m.gone, m.status = time.Time{}, st
	now := map[types.UID][]string{}
	for i := range list {
		if uid, ours := claimOf(m.fleet.o.Cluster, list[i].Label); ours {
			now[uid] = append(now[uid], list[i].ID)
		}
	}
	m.know(now)
}

// Resources are what is to be published now. What has not changed is the same memory as before ([unchanged]).
func (f *Fleet) Resources() *resourceslice.DriverResources {
	r := &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}}
	for _, m := range f.all() {
		m.mu.Lock()
		if m.devices == nil { // it has never answered
			m.mu.Unlock()
			continue
		}
		with := taints(m.status != nil && m.status.Draining, m.gone, time.Now(), f.o.Graces)
		if m.status == nil {
			with = former(m.devices, with)
		}
		p := &m.pool
		if len(p.Slices) == 0 || !same(p.from, m.devices) || !reflect.DeepEqual(p.with, with) {
			*p = published{pool(&m.Server, m.devices, with), m.devices, with}
		}
		r.Pools[m.Name] = p.Pool
		m.mu.Unlock()
	}
	return r
}

// former has the taints of a server that has not answered yet: those that a controller before this one has published
// stay until it does, where there are no worse ones.
func former(list []resourceapi.Device, now []resourceapi.DeviceTaint) []resourceapi.DeviceTaint {
	if len(list) == 0 {
		return now
	}
	for _, t := range list[0].Taints {
		at := slices.IndexFunc(now, func(n resourceapi.DeviceTaint) bool { return n.Key == t.Key })
		if at < 0 {
			now = append(now, t)
		} else if t.Effect == resourceapi.DeviceTaintEffectNoExecute {
			now[at] = t
		}
	}
	return now
}

// Seeds are the devices that were published, by pool. What is known of a server that has not answered yet is those.
type Seeds map[string][]resourceapi.Device

// Seed reads from ResourceSlices what a controller before this one has published.
func Seed(list []resourceapi.ResourceSlice) Seeds {
	seed, newest := Seeds{}, map[string]int64{}
	for i := range list {
		s := &list[i].Spec
		if s.Driver != names.Driver || s.NodeName != nil {
			continue
		}
		if g := s.Pool.Generation; g > newest[s.Pool.Name] {
			newest[s.Pool.Name], seed[s.Pool.Name] = g, nil
		} else if g < newest[s.Pool.Name] {
			continue
		}
		seed[s.Pool.Name] = append(seed[s.Pool.Name], s.Devices...)
	}
	return seed
}

// Server gives what is configured of a server, and the fingerprint that it says it has.
func (f *Fleet) Server(name string) (s Server, fingerprint string, err error) {
	m := f.get(name)
	if m == nil {
		return Server{}, "", fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gone.IsZero() {
		return Server{}, "", fmt.Errorf("%w: %s, since %v", ErrSilent, name, time.Since(m.gone).Round(time.Second))
	}
	return m.Server, m.status.Fingerprint, nil
}

// Memory is that of a server's GPU, by the name of its device; 0: it is not known.
func (f *Fleet) Memory(server, device string) int64 {
	m := f.get(server)
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.devices {
		if m.devices[i].Name == device {
			c := m.devices[i].Capacity["memory"]
			return c.Value.Value()
		}
	}
	return 0
}

// Up counts the servers that answer, those that drain, and those that do not answer.
func (f *Fleet) Up() (up, draining, gone int) {
	for _, m := range f.all() {
		m.mu.Lock()
		switch {
		case !m.gone.IsZero():
			gone++
		case m.status.Draining:
			draining++
		default:
			up++
		}
		m.mu.Unlock()
	}
	return up, draining, gone
}

// Held are the leases of a claim, on all servers.
func (f *Fleet) Held(claim types.UID) []Held { return f.held.get(claim) }

// Claims are those that have leases on a server.
func (f *Fleet) Claims(server string) (list []types.UID) {
	m := f.get(server)
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.leases))
}

// Grant has a lease made for a claim.
func (f *Fleet) Grant(ctx context.Context, server string, claim types.UID, r *admin.LeaseRequest) (*admin.Granted,
	error) {
	m := f.get(server)
	if m == nil {
		return nil, fmt.Errorf("%w: %q", ErrUnknown, server)
	}
	m.turn.Lock()
	defer m.turn.Unlock()
	g, err := m.ask.Grant(ctx, r)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leases == nil {
		m.leases = map[types.UID][]string{}
	}
	m.leases[claim] = append(m.leases[claim], g.ID)
	f.held.put(claim, Held{server, g.ID})
	return g, nil
}

// Revoke has a lease and its sessions ended; one that is over already is no error.
func (f *Fleet) Revoke(ctx context.Context, h Held, claim types.UID, reason string) error {
	m := f.get(h.Server)
	if m == nil {
		f.held.drop(claim, h) // who takes a server from the list takes its leases as well
		return nil
	}
	m.turn.Lock()
	defer m.turn.Unlock()
	if err := m.ask.Revoke(ctx, h.ID, reason); err != nil && !errors.Is(err, lease.ErrNone) {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	left := slices.DeleteFunc(m.leases[claim], func(id string) bool { return id == h.ID })
	if len(left) == 0 {
		delete(m.leases, claim)
	} else {
		m.leases[claim] = left
	}
	f.held.drop(claim, h)
	return nil
}
