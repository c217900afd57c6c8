package server

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/transport"
)

// What a client has just begun with is not disturbed by the making of the next worker, unless somebody waits for that.
func TestPoolLetsClientsBegin(t *testing.T) {
	const making = 100 * time.Millisecond
	for name, c := range map[string]struct {
		takes []time.Duration // when workers are asked for
		got   []time.Duration // and when they are there
		busy  time.Duration   // how long the first client makes calls
		ends  time.Duration   // when the first client ends
	}{
		"at leisure": {takes: []time.Duration{time.Second, 2 * time.Second},
			got: []time.Duration{time.Second, 2 * time.Second}},
		"at once": {takes: []time.Duration{time.Second, time.Second},
			got: []time.Duration{time.Second, time.Second + making}},
		"soon after": {takes: []time.Duration{time.Second, time.Second + 200*time.Millisecond},
			got: []time.Duration{time.Second, time.Second + 200*time.Millisecond + making}},
		"just ready": {takes: []time.Duration{time.Second, time.Second + refillAfter + making},
			got: []time.Duration{time.Second, time.Second + refillAfter + making}},
		"while the first one works": {takes: []time.Duration{time.Second, 3 * time.Second},
			got: []time.Duration{time.Second, 3*time.Second + making}, busy: time.Minute},
		"when the first one has worked": {takes: []time.Duration{time.Second, 3 * time.Second},
			got: []time.Duration{time.Second, 3 * time.Second}, busy: time.Second},
		"when the first one works on": {takes: []time.Duration{time.Second, time.Second + refillLatest + making},
			got: []time.Duration{time.Second, time.Second + refillLatest + making}, busy: time.Minute},
		"when the first one has ended": {takes: []time.Duration{time.Second, time.Second + 50*time.Millisecond + making},
			got: []time.Duration{time.Second, time.Second + 50*time.Millisecond + making}, ends: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				made, began := 0, time.Now()
				start := func(ctx context.Context) (*process, error) {
					if made++; made > len(c.takes) {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					time.Sleep(making)
					w := &process{
						exited: make(chan struct{}), calls: func() uint64 { return uint64(min(time.Since(began), c.takes[0]+c.busy)) },
					}
					if made == 1 && c.ends > 0 {
						time.AfterFunc(time.Until(began.Add(c.takes[0]+c.ends)), func() { close(w.exited) })
					}
					return w, nil
				}
				p := newPool(ctx, 1, start, func(err error) { t.Error(err) })
				for i, at := range c.takes {
					time.Sleep(time.Until(began.Add(at)))
					if _, err := p.take(ctx); err != nil {
						t.Fatal(err)
					}
					if got := time.Since(began); got != c.got[i] {
						t.Errorf("worker %d was there after %v, not %v", i+1, got, c.got[i])
					}
				}
				cancel()
				p.wg.Wait()
			})
		})
	}
}

// A crowd gets its workers as fast as they can be made: no client waits for a pause that is meant for others, and
// several workers are made at once.
func TestPoolServesCrowd(t *testing.T) {
	const making = 20 * time.Millisecond
	for name, c := range map[string]struct{ crowd, helpers int }{
		"40 at once":               {40, 0},
		"40 at once, with helpers": {40, 3},
		"200 at once":              {200, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				start := func(ctx context.Context) (*process, error) {
					select {
					case <-time.After(making):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					return &process{exited: make(chan struct{}), calls: func() uint64 { return 0 }}, nil
				}
				p := newPool(ctx, 1, start, func(err error) { t.Error(err) })
				p.helpers, p.discard = make(chan struct{}, c.helpers), func(*process) {}
				time.Sleep(time.Second)
				began := time.Now()
				var crowd sync.WaitGroup
				for range c.crowd {
					crowd.Go(func() {
						if _, err := p.take(ctx); err != nil {
							t.Error(err)
						}
					})
				}
				crowd.Wait()
				// one is ready; each round of makers makes one each
				most := time.Duration((c.crowd+c.helpers)/(c.helpers+1)) * making
				if took := time.Since(began); took > most {
					t.Errorf("%d workers took %v, one after the other %v", c.crowd, took, most)
				}
				if n := p.waiting.Load(); n != 0 {
					t.Errorf("%d clients are counted as waiting", n)
				}
				cancel()
				p.wg.Wait()
			})
		})
	}
}

// Who waits too long is told that the server is busy.
func TestPoolSaysBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := func(ctx context.Context) (*process, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		p := newPool(ctx, 1, start, func(err error) { t.Error(err) })
		_, err := p.take(ctx)
		var r *refusal
		if !errors.As(err, &r) || r.status != transport.StatusBusy {
			t.Errorf("%v, not busy", err)
		}
		cancel()
		p.wg.Wait()
	})
}
