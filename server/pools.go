package server

import (
	"context"
	"sync"
	"time"

	"scuda.dev/scuda/server/mps"
)

// A worker is its tenant's before it has a session: it has the tenant's user and folder. So each tenant has a pool of
// its own, made when its first client comes, which waits for a start from nothing. A tenant that has not come for a
// while has none any more: ready workers hold a context on the GPU each.
const (
	// mostPools bounds the tenants for which workers are kept ready, beside the server's only one.
	mostPools = 8
	poolIdle  = 10 * time.Minute
)

// whose says for whom workers are: a tenant, and those of its sessions that see certain GPUs.
type whose struct {
	tenant string
	gpus   string // UUIDs with commas between them; "": all
	limits mps.Limits
	window portion // of a worker that is made for one session
}

// portion is which of how many windows of addresses a worker keeps to; of 0 or 1: any address.
type portion struct{ Number, Of int }

// pools keep workers ready for tenants.
type pools struct {
	make func(context.Context, whose) *pool
	ctx  context.Context

	mu   sync.Mutex
	by   map[whose]*tenantPool
	wg   sync.WaitGroup // pools that were given up
	most int
}

// tenantPool is a tenant's pool.
type tenantPool struct {
	*pool
	keep   bool // for the server's whole life
	cancel context.CancelFunc
	users  int // clients that wait there
	last   time.Time
	idle   *time.Timer
}

func newPools(ctx context.Context, make func(context.Context, whose) *pool) *pools {
	return &pools{make: make, ctx: ctx, by: map[whose]*tenantPool{}, most: mostPools}
}

// keep makes a pool that stays.
func (p *pools) keep(tenant whose) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.enter(tenant)
	t.keep = true
	t.users--
}

// take hands out a ready worker of a tenant's.
func (p *pools) take(ctx context.Context, tenant whose) (*process, error) {
	p.mu.Lock()
	t := p.enter(tenant)
	p.mu.Unlock()
	defer p.leave(tenant, t)
	return t.take(ctx)
}

// enter finds or makes a tenant's pool, where it counts the caller. p.mu is held.
func (p *pools) enter(tenant whose) *tenantPool {
	t, ok := p.by[tenant]
	if !ok {
		for len(p.by) >= p.most && p.retire(p.longest()) {
		}
		ctx, cancel := context.WithCancel(p.ctx)
		t = &tenantPool{pool: p.make(ctx, tenant), cancel: cancel}
		p.by[tenant] = t
	}
	t.users++
	t.last = time.Now()
	if t.idle != nil {
		t.idle.Stop()
	}
	return t
}

// leave counts the caller off. Nobody's wish ends a pool at once: the tenant's next program finds a worker.
func (p *pools) leave(tenant whose, t *tenantPool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.users--
	t.last = time.Now()
	if t.users > 0 || t.keep {
		return
	}
	t.idle = time.AfterFunc(poolIdle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.by[tenant] == t && time.Since(t.last) >= poolIdle {
			p.retire(tenant)
		}
	})
}

// longest is the tenant that has not come for the longest time; nobody if all pools are in use. p.mu is held.
func (p *pools) longest() (tenant whose) {
	var last time.Time
	for name, t := range p.by {
		if !t.keep && t.users == 0 && (tenant == whose{} || t.last.Before(last)) {
			tenant, last = name, t.last
		}
	}
	return tenant
}

// retire ends a tenant's ready workers, unless a client waits for one. p.mu is held.
func (p *pools) retire(tenant whose) bool {
	t := p.by[tenant]
	if t == nil || t.keep || t.users > 0 {
		return false
	}
	delete(p.by, tenant)
	t.cancel()
	if t.idle != nil {
		t.idle.Stop()
	}
	p.wg.Go(t.wg.Wait)
	return true
}

// replace has a tenant's ready workers replaced.
func (p *pools) replace(tenant string) {
	p.mu.Lock()
	var list []*pool
	for of, t := range p.by {
		if of.tenant == tenant {
			list = append(list, t.pool)
		}
	}
	p.mu.Unlock()
	for _, t := range list {
		t.flush()
	}
}

// wait waits until all pools have ended with their context.
func (p *pools) wait() {
	p.mu.Lock()
	for _, t := range p.by {
		if t.idle != nil {
			t.idle.Stop()
		}
		p.wg.Go(t.wg.Wait)
	}
	p.by = nil
	p.mu.Unlock()
	p.wg.Wait()
}
