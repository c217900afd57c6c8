package server

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/server/metrics"
)

// slowPools gives pools whose workers take a second to start.
func slowPools(ctx context.Context) *pools {
	return newPools(ctx, func(ctx context.Context, of whose) *pool {
		start := func(ctx context.Context) (*process, error) {
			time.Sleep(time.Second)
			none := func() metrics.Glance { return metrics.Glance{} }
			return &process{exited: make(chan struct{}), tenant: of.tenant, glance: none}, ctx.Err()
		}
		p := newPool(ctx, 1, start, func(error) {})
		p.discard = func(*process) {}
		return p
	})
}

func took(t *testing.T, p *pools, tenant string) time.Duration {
	t.Helper()
	began := time.Now()
	w, err := p.take(t.Context(), whose{tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	if w.tenant != tenant {
		t.Errorf("%s gets a worker of %q", tenant, w.tenant)
	}
	return time.Since(began)
}

// A tenant's first session waits for a start; the next one finds a worker, until the tenant has not come for long.
func TestPoolsOfTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := slowPools(ctx)
		p.keep(whose{tenant: "sole"})
		time.Sleep(2 * time.Second)
		if d := took(t, p, "sole"); d != 0 {
			t.Errorf("the server's only tenant waits %v", d)
		}
		if d := took(t, p, "alice"); d != time.Second {
			t.Errorf("alice's first session waits %v", d)
		}
		time.Sleep(10 * time.Second)
		if d := took(t, p, "alice"); d != 0 {
			t.Errorf("alice's second session waits %v", d)
		}
		time.Sleep(poolIdle - time.Second)
		if d := took(t, p, "alice"); d != 0 {
			t.Errorf("alice's third session waits %v", d)
		}
		time.Sleep(poolIdle + time.Minute)
		if d := took(t, p, "alice"); d != time.Second {
			t.Errorf("alice's session after a long time waits %v", d)
		}
		if d := took(t, p, "sole"); d != 0 {
			t.Errorf("the server's only tenant waits %v", d)
		}
		cancel()
		p.wait()
	})
}

// No more tenants have ready workers than the bound allows; who came last has.
func TestPoolsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := slowPools(ctx)
		p.most = 3
		p.keep(whose{tenant: "sole"})
		for i := range 10 {
			took(t, p, fmt.Sprint("tenant", i))
			time.Sleep(10 * time.Second)
			if len(p.by) > 3 {
				t.Fatalf("%d pools", len(p.by))
			}
		}
		for tenant, want := range map[string]time.Duration{"tenant9": 0, "tenant8": 0, "sole": 0} {
			if d := took(t, p, tenant); d != want {
				t.Errorf("%s waits %v", tenant, d)
			}
			time.Sleep(10 * time.Second)
		}
		if d := took(t, p, "tenant0"); d != time.Second {
			t.Errorf("tenant0 waits %v", d)
		}
		cancel()
		p.wait()
	})
}
