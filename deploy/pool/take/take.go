// Package take gets a program its GPUs of a pool: it stands in the queue, has the server that is chosen make a lease,
// keeps that alive and gives it back. `scuda-pool run` calls it. The lease is the server's; what stands in etcd is only
// by what others choose.
package take

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
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
	Lasts time.Duration // the lease, without being renewed
	TTL   time.Duration // of the place in the queue, when this process has died
	Dial  func(*plan.Server) (Admin, error)
	Note  io.Writer // people are told what is waited for
}

// Taken is a lease that a program has.
type Taken struct {
	Server      plan.Server
	Fingerprint string // as the server itself says it
	Lease       admin.Granted

	o       *Options
	session *store.Session
	until   time.Time // the lease holds, by this machine's clock
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

// Take waits for GPUs, and gives the lease.
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
		return nil, fmt.Errorf("%w: %v; a program uses one server; scuda-pool status shows what there is", ErrNone, o.Want)
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
	for i := range st.Servers {
		s := &st.Servers[i]
		alone := plan.State{Servers: []plan.Server{*s}}
		if !alone.Could(&t.request) {
			continue
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

// wait stands in the queue until there is a lease.
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
				s := &st.Servers[slices.IndexFunc(st.Servers, func(s plan.Server) bool { return s.Address == place.Server })]
				if taken, err := t.try(ctx, s, place); taken != nil || err != nil {
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

// try has a server make the lease. Without an error and a lease it is to be tried again.
func (t *taker) try(ctx context.Context, s *plan.Server, place plan.Place) (*Taken, error) {
	if r, ok := t.rest[s.Address]; ok && r.version == s.Version && time.Now().Before(r.until) {
		return nil, nil
	}
	delete(t.rest, s.Address)
	taken, err := t.grant(ctx, s, place)
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
	st, err := t.pool.See(ctx)
	if err != nil {
		return nil, err
	}
	if !st.Could(&t.request) {
		return nil, fmt.Errorf("%w: %w", ErrRefused, t.refused)
	}
	return nil, t.session.Wait(ctx, &t.request)
}

func (t *taker) grant(ctx context.Context, s *plan.Server, place plan.Place) (*Taken, error) {
	c, err := t.Dial(s)
	if err != nil {
		return nil, err
	}
	defer c.Close() // a tenant has few connections, and may have many programs
	own, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	st, err := c.Status(own)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	uuids := ""
	for i, g := range place.GPUs {
		if i > 0 {
			uuids += ","
		}
		uuids += g
	}
	g, err := c.Grant(own, &admin.LeaseRequest{Tenant: st.Tenant, Label: plan.Label + t.request.ID, GPUs: uuids,
		Exclusive: true, Seconds: t.Lasts.Seconds()})
	if err != nil {
		return nil, err
	}
	taken := &Taken{Server: *s, Fingerprint: st.Fingerprint, Lease: *g, o: t.Options, session: t.session,
		until: asked.Add(t.Lasts)}
	err = t.session.Served(ctx, &t.request, &plan.Held{Server: s.Address, Lease: g.ID, GPUs: g.GPUs, Tenant: g.Tenant,
		Who: t.Who})
	if err != nil { // the lease holds all the same; its request goes from the queue with the session
		fmt.Fprintf(t.Note, "scuda-pool: the lease is there, and the pool is not told: %v\n", err)
		t.session.Orphan()
	}
	return taken, nil
}

// Keep renews the lease until the context ends. The error is [ErrGone] where it could not.
func (t *Taken) Keep(ctx context.Context) error {
	wait := t.o.Lasts / 3
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		asked := time.Now()
		err := t.ask(ctx, min(t.o.Lasts/3, time.Until(t.until)), func(ctx context.Context, c Admin) error {
			_, err := c.Renew(ctx, t.Lease.ID, t.o.Lasts)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			t.until, wait = asked.Add(t.o.Lasts), t.o.Lasts/3
		case errors.Is(err, lease.ErrNone):
			return fmt.Errorf("%w: %s has ended it", ErrGone, t.Server.Address)
		case !time.Now().Before(t.until):
			return fmt.Errorf("%w: %s could not be asked to prolong it for %v: %w", ErrGone, t.Server.Address, t.o.Lasts, err)
		default:
			wait = min(time.Second, t.o.Lasts/20, time.Until(t.until))
		}
	}
}

func (t *Taken) ask(ctx context.Context, within time.Duration, do func(context.Context, Admin) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	c, err := t.o.Dial(&t.Server)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(ctx, c)
}

// Give gives the lease back. Where the server does not answer, it ends by itself.
func (t *Taken) Give(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveTime)
	defer cancel()
	defer t.session.Close(ctx)
	for {
		err := t.ask(ctx, giveTime, func(ctx context.Context, c Admin) error {
			return c.Revoke(ctx, t.Lease.ID, "the program has ended")
		})
		if err == nil || errors.Is(err, lease.ErrNone) {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%s was not told that the lease is over: %w; it ends by itself within %v", t.Server.Address, err,
				t.o.Lasts)
		}
	}
}
