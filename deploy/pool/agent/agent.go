// Package agent announces a server to a pool: it asks the server again and again how it is and what leases it has, over
// its admin interface, and keeps that in etcd. A server that does not answer is taken out, and so is one whose agent
// dies. `scuda-pool announce` runs one for each server.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/deploy/pool/plan"
	"scuda.dev/scuda/deploy/pool/store"
	"scuda.dev/scuda/server/admin"
)

// ErrBlind is an agent that does not see all leases.
var ErrBlind = errors.New("an agent has to be an administrator of the server, to see all leases")

// Admin is what is asked of a server.
type Admin interface {
	Status(context.Context) (*admin.Status, error)
	Leases(context.Context) ([]admin.Lease, error)
	Close()
}

// Agent announces one server.
type Agent struct {
	Pool    *store.Pool
	Address string // HOST:PORT, as programs reach it
	Dial    func(context.Context) (Admin, error)
	Every   time.Duration // it is asked so often
	Grace   time.Duration // a server that is silent for longer is taken out
	TTL     time.Duration // it is in the pool for so long after the agent has died
	Log     *slog.Logger

	session *store.Session
	heard   time.Time // when the server answered last
	told    string    // the last complaint

	answers, announced atomic.Bool
}

// Now says, at any time and to anybody, whether the server answered when it was asked last, and whether it is in the
// pool because of this agent.
func (a *Agent) Now() (answers, announced bool) { return a.answers.Load(), a.announced.Load() }

// Run announces the server until the context ends; then it is taken out.
func (a *Agent) Run(ctx context.Context) {
	changed := a.Pool.Changes(ctx, a.Address)
	tick := time.NewTicker(a.Every)
	defer tick.Stop()
	defer a.withdraw(ctx)
	for ctx.Err() == nil {
		a.look(ctx)
		select {
		case <-tick.C:
		case _, ok := <-changed:
			if !ok { // etcd has ended the watch
				changed = nil
			}
		case <-ctx.Done():
		}
	}
	for changed != nil {
		if _, ok := <-changed; !ok {
			changed = nil
		}
	}
}

// look asks the server once, and announces what it says.
func (a *Agent) look(ctx context.Context) {
	now, err := a.ask(ctx)
	a.answers.Store(err == nil)
	if err != nil {
		a.complain(ctx, "the server does not answer", err)
		if a.session != nil && time.Since(a.heard) > a.Grace {
			a.Log.Warn("the server is taken out of the pool", "server", a.Address)
			a.withdraw(ctx)
		}
		return
	}
	a.heard = time.Now()
	err = a.announce(ctx, now)
	a.announced.Store(err == nil)
	if err != nil {
		a.complain(ctx, "the server cannot be announced", err)
		return
	}
	if a.told != "" {
		a.told = ""
		a.Log.Info("the server is announced", "server", a.Address, "gpus", len(now.GPUs), "leases", len(now.Leases))
	}
}

// complain says once what is wrong.
func (a *Agent) complain(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && a.told != what {
		a.told = what
		a.Log.Warn(what, "server", a.Address, "error", err)
	}
}

func (a *Agent) ask(ctx context.Context) (*plan.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Grace)
	defer cancel()
	c, err := a.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	if st.Role != admin.RoleAdmin {
		return nil, fmt.Errorf("%w: it is %s here; give it the admin socket, or a token with role=admin", ErrBlind,
			cmp.Or(st.Tenant, st.Role))
	}
	list, err := c.Leases(ctx)
	if err != nil {
		return nil, err
	}
	v := &plan.Server{Address: a.Address, Fingerprint: st.Fingerprint, Draining: st.Draining, GPUs: []plan.GPU{},
		Leases: []plan.Lease{}}
	for _, g := range st.GPUs {
		v.GPUs = append(v.GPUs, plan.GPU{UUID: g.UUID, Name: g.Name, Memory: config.Size(g.Memory)})
	}
	for i := range list {
		l := &list[i]
		v.Leases = append(v.Leases, plan.Lease{ID: l.ID, Label: l.Label, Tenant: l.Tenant, GPUs: l.GPUs})
	}
	return v, nil
}

func (a *Agent) announce(ctx context.Context, v *plan.Server) (err error) {
	if a.session != nil {
		select {
		case <-a.session.Done(): // etcd was away for too long
			a.withdraw(ctx)
		default:
		}
	}
	if a.session == nil {
		if a.session, err = a.Pool.Session(ctx, a.TTL); err != nil {
			return err
		}
		a.told = cmp.Or(a.told, "new")
	}
	return a.session.Announce(ctx, v)
}

func (a *Agent) withdraw(ctx context.Context) {
	a.announced.Store(false)
	if a.session != nil {
		a.session.Close(ctx)
		a.session = nil
	}
}
