// Package take gets a program its GPUs of a pool: it stands in the queue, has each server that is chosen make a lease,
// keeps these alive and gives them back. `scuda-pool run` calls it. Leases are the servers'; what stands in etcd is
// only by what others choose. Nobody waits with a lease in hand: where one server of several makes none, those of the
// others are given back at once.
package take

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/deploy/pool/store"
	"scuda.dev/scuda/server/admin"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/transport"
)

// Errors of taking GPUs.
var (
	ErrNone    = errors.New("no server of the pool has that")
	ErrRefused = errors.New("no server of the pool gives that")
	ErrGone    = errors.New("the lease is lost")
)

// Admin is what is asked of a server.
type Admin interface {
	Status(context.Context) (*admin.Status, error)
	Grant(context.Context, *admin.LeaseRequest) (*admin.Granted, error)
	Renew(ctx context.Context, id string, lasts time.Duration) (*admin.Lease, error)
	Revoke(ctx context.Context, id, reason string) error
	Close()
}

// Options say what is wanted, and how.
type Options struct {
	plan.Want
	Who   string        // for people
	Lasts time.Duration // a lease, without being renewed
	TTL   time.Duration // of the place in the queue, when this process has died
	Dial  func(*plan.Server) (Admin, error)
	Note  io.Writer // people are told what is waited for
}

// Taken are the leases that a program has, one of each of its servers.
type Taken struct {
	Leases []*Lease

	session *store.Session
}

// Lease is one of them.
type Lease struct {
	admin.Granted
	Server      plan.Server
	Fingerprint string // as the server itself says it

	o     *Options
	until time.Time // it holds, by this machine's clock
}

const (
	pause    = 300 * time.Millisecond // before the same server is asked again
	askTime  = 5 * time.Second
	giveTime = 5 * time.Second
)

// taker is somebody who waits.
type taker struct {
	*Options
	pool    *store.Pool
	session *store.Session
	request plan.Request
	refused error
	rest    map[string]rest // servers that are not asked for a while
}

// rest ends with a time, or when more is known of the server.
type rest struct {
	until   time.Time
	version int64
}

// Take waits for GPUs, and gives the leases.
func Take(ctx context.Context, pool *store.Pool, o Options) (*Taken, error) {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	t := &taker{Options: &o, pool: pool, rest: map[string]rest{}, request: plan.Request{ID: hex.EncodeToString(id),
		Who: o.Who, Since: time.Now().UTC().Round(time.Second), Want: o.Want}}
	own, cancel := context.WithCancel(ctx)
	view, err := pool.Follow(own)
	if err != nil {
		cancel()
		return nil, err
	}
	defer view.Wait()
	defer cancel()
	st, _ := view.Now()
	if !st.Could(&t.request) {
		text := "all are of one server, unless --servers says how many"
		if o.Servers > 1 {
			text = "they are not of more servers than --servers says"
		}
		return nil, fmt.Errorf("%w: %v; %s; scuda-pool status shows what there is", ErrNone, o.Want, text)
	}
	if t.request.Tenant, err = t.tenant(ctx, &st); err != nil {
		return nil, err
	}
	if t.session, err = pool.Session(ctx, o.TTL); err != nil {
		return nil, err
	}
	taken, err := t.wait(ctx, view)
	if err != nil {
		t.session.Close(ctx)
	}
	return taken, err
}

// tenant asks the servers who asks. Whoever does not know it gets no request of it.
func (t *taker) tenant(ctx context.Context, st *plan.State) (string, error) {
	var last error
	for _, s := range st.Of(&t.request) {
		if !st.Could(&t.request) { // without those that have refused
			break
		}
		c, err := t.Dial(s)
		if err == nil {
			var got *admin.Status
			got, err = c.Status(ctx)
			c.Close()
			if err == nil {
				return got.Tenant, nil
			}
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if final(err) {
			t.request.Except = append(t.request.Except, s.Address)
		}
		last = fmt.Errorf("%s: %w", s.Address, err)
	}
	return "", fmt.Errorf("%w: %w", ErrRefused, last)
}

// final says of a server's error that it will be the same the next time.
func final(err error) bool {
	for _, e := range []error{transport.ErrToken, transport.ErrTLS, transport.ErrUntrusted, transport.ErrVersion,
		transport.ErrCapability, transport.ErrNotScuda, admin.ErrForbidden, lease.ErrTerms} {
		if errors.Is(err, e) {
			return true
		}
	}
	return !errors.As(err, new(*transport.Error)) && !errors.As(err, new(*admin.Fault)) &&
		!errors.Is(err, admin.ErrNoServer) && !errors.Is(err, context.DeadlineExceeded)
}

// wait stands in the queue until there are leases.
func (t *taker) wait(ctx context.Context, view *store.View) (*Taken, error) {
	if err := t.session.Wait(ctx, &t.request); err != nil {
		return nil, err
	}
	told := ""
	for {
		st, changed := view.Now()
		i := slices.IndexFunc(st.Queue, func(r plan.Request) bool { return r.ID == t.request.ID })
		if i >= 0 {
			if place, ok := st.Next()[t.request.ID]; ok {
				if taken, err := t.try(ctx, &st, place); taken != nil || err != nil {
					return taken, err
				}
			} else if text := position(&st, t.request.ID); text != told {
				told = text
				fmt.Fprintf(t.Note, "scuda-pool: %v: %s\n", t.Want, text)
			}
		}
		timer := time.NewTimer(pause)
		var again <-chan time.Time
		if len(t.rest) > 0 {
			again = timer.C
		}
		select {
		case <-changed:
		case <-again:
		case <-t.session.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: the pool's etcd has not answered for %v; run it again when it does", store.ErrLost,
				t.TTL)
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

// position says where in the queue a request stands.
func position(st *plan.State, id string) string {
	before := slices.IndexFunc(st.Sorted(), func(r plan.Request) bool { return r.ID == id })
	if before == 0 {
		return "it is the first in the queue, and waits for GPUs that are leased"
	}
	return fmt.Sprintf("it waits behind %d", before)
}

// try has the servers make the leases. Without an error and leases it is to be tried again.
func (t *taker) try(ctx context.Context, st *plan.State, place plan.Place) (*Taken, error) {
	servers := make([]*plan.Server, len(place))
	for i, p := range place {
		s := &st.Servers[slices.IndexFunc(st.Servers, func(s plan.Server) bool { return s.Address == p.Server })]
		if r, ok := t.rest[s.Address]; ok && r.version == s.Version && time.Now().Before(r.until) {
			return nil, nil
		}
		servers[i] = s
	}
	for _, s := range servers {
		delete(t.rest, s.Address)
	}
	taken, s, err := t.grant(ctx, servers, place)
	if err == nil {
		return taken, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	t.rest[s.Address] = rest{time.Now().Add(pause), s.Version}
	if !final(err) {
		return nil, nil
	}
	t.refused = fmt.Errorf("%s: %w", s.Address, err)
	t.request.Except = append(t.request.Except, s.Address)
	now, err := t.pool.See(ctx)
	if err != nil {
		return nil, err
	}
	if !now.Could(&t.request) {
		return nil, fmt.Errorf("%w: %w", ErrRefused, t.refused)
	}
	return nil, t.session.Wait(ctx, &t.request)
}

// asked is a server that is ready to make a lease.
type asked struct {
	Admin
	status *admin.Status
}

// grant has the servers make the leases, all or none. Of an error it says whose it is. All are asked how they are
// before the first makes a lease, so that none is made for nothing where another one is away.
func (t *taker) grant(ctx context.Context, servers []*plan.Server, place plan.Place) (*Taken, *plan.Server, error) {
	all := make([]asked, len(servers))
	for i, s := range servers {
		c, err := t.Dial(s)
		if err != nil {
			return nil, s, err
		}
		defer c.Close() // a tenant has few connections, and may have many programs
		own, cancel := context.WithTimeout(ctx, askTime)
		st, err := c.Status(own)
		cancel()
		if err != nil {
			return nil, s, err
		}
		all[i] = asked{c, st}
	}
	taken := &Taken{session: t.session}
	var held []plan.Held
	for i, s := range servers {
		l, err := t.lease(ctx, all[i], s, place[i].GPUs)
		if err != nil {
			for _, bad := range taken.revoke(ctx, "another server of the program's made none") {
				fmt.Fprintln(t.Note, "scuda-pool:", bad)
			}
			return nil, s, err
		}
		taken.Leases = append(taken.Leases, l)
		held = append(held, plan.Held{Server: s.Address, Lease: l.ID, GPUs: l.GPUs, Tenant: l.Tenant, Who: t.Who})
	}
	if err := t.session.Served(ctx, &t.request, held); err != nil {
		// The leases hold all the same; their request goes from the queue with the session.
		fmt.Fprintf(t.Note, "scuda-pool: the lease is there, and the pool is not told: %v\n", err)
		t.session.Orphan()
	}
	return taken, nil, nil
}

func (t *taker) lease(ctx context.Context, a asked, s *plan.Server, gpus []string) (*Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	began := time.Now()
	g, err := a.Grant(ctx, &admin.LeaseRequest{Tenant: a.status.Tenant, Label: plan.Label + t.request.ID,
		GPUs: strings.Join(gpus, ","), Exclusive: true, Seconds: t.Lasts.Seconds()})
	if err != nil {
		return nil, err
	}
	return &Lease{*g, *s, a.status.Fingerprint, t.Options, began.Add(t.Lasts)}, nil
}

// Keep renews the leases until the context ends, or all are lost. It tells of each that is: the error is [ErrGone]. The
// others are renewed on, as the program may need a while to end.
func (t *Taken) Keep(ctx context.Context, lost func(error)) {
	var all sync.WaitGroup
	for _, l := range t.Leases {
		all.Go(func() {
			if err := l.keep(ctx); err != nil {
				lost(err)
			}
		})
	}
	all.Wait()
}

func (l *Lease) keep(ctx context.Context) error {
	wait := l.o.Lasts / 3
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		began := time.Now()
		err := l.ask(ctx, min(l.o.Lasts/3, time.Until(l.until)), func(ctx context.Context, c Admin) error {
			_, err := c.Renew(ctx, l.ID, l.o.Lasts)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			l.until, wait = began.Add(l.o.Lasts), l.o.Lasts/3
		case errors.Is(err, lease.ErrNone):
			return fmt.Errorf("%w: %s has ended it", ErrGone, l.Server.Address)
		case !time.Now().Before(l.until):
			return fmt.Errorf("%w: %s could not be asked to prolong it for %v: %w", ErrGone, l.Server.Address, l.o.Lasts, err)
		default:
			wait = min(time.Second, l.o.Lasts/20, time.Until(l.until))
		}
	}
}

func (l *Lease) ask(ctx context.Context, within time.Duration, do func(context.Context, Admin) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	c, err := l.o.Dial(&l.Server)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(ctx, c)
}

// Give gives the leases back. Those of servers that do not answer end by themselves; each is an error.
func (t *Taken) Give(ctx context.Context) []error {
	defer t.session.Close(ctx)
	return t.revoke(ctx, "the program has ended")
}

// revoke has the servers end the leases, all at the same time.
func (t *Taken) revoke(ctx context.Context, reason string) (bad []error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveTime)
	defer cancel()
	errs := make([]error, len(t.Leases))
	var all sync.WaitGroup
	for i, l := range t.Leases {
		all.Go(func() { errs[i] = l.revoke(ctx, reason) })
	}
	all.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func (l *Lease) revoke(ctx context.Context, reason string) error {
	for {
		err := l.ask(ctx, giveTime, func(ctx context.Context, c Admin) error { return c.Revoke(ctx, l.ID, reason) })
		if err == nil || errors.Is(err, lease.ErrNone) {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%s was not told that the lease is over: %w; it ends by itself within %v", l.Server.Address, err,
				l.o.Lasts)
		}
	}
}
