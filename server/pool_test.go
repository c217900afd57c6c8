package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/spawner"
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
						exited: make(chan struct{}), glance: func() metrics.Glance {
							return metrics.Glance{Calls: uint64(min(time.Since(began), c.takes[0]+c.busy))}
						},
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
					return &process{exited: make(chan struct{}), glance: func() metrics.Glance { return metrics.Glance{} }}, nil
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
		const want = "no worker was free within 30s; 0 other clients wait, 2 workers are being started, one for 30s already"
		if err.Error() != want {
			t.Errorf("it says %q, not %q", err, want)
		}
		cancel()
		p.wg.Wait()
	})
}

// A worker that hangs while it starts holds nobody up for long: another is started for who waits for it.
func TestPoolPassesHangingStarts(t *testing.T) {
	const making = time.Second
	for _, c := range []struct{ fillers, hanging, crowd int }{{1, 1, 1}, {1, 1, 5}, {3, 3, 1}, {3, 3, 3}, {3, 2, 6}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var made atomic.Int64
				start := func(ctx context.Context) (*process, error) {
					limit, stop := context.WithTimeout(ctx, startTimeout)
					defer stop()
					took := time.After(making)
					if made.Add(1) <= int64(c.hanging) {
						took = nil
					}
					select {
					case <-took:
						return &process{exited: make(chan struct{}), glance: func() metrics.Glance { return metrics.Glance{} }}, nil
					case <-limit.Done():
						return nil, limit.Err()
					}
				}
				p := newPool(ctx, c.fillers, start, func(error) {})
				p.discard = func(*process) {}
				synctest.Wait()
				var crowd sync.WaitGroup
				for range c.crowd {
					crowd.Go(func() {
						if _, err := p.take(ctx); err != nil {
							t.Error(err)
						}
					})
				}
				began := time.Now()
				crowd.Wait()
				if took, most := time.Since(began), slowStart+time.Duration(c.crowd)*making; took > most {
					t.Errorf("%d clients waited %v, not %v", c.crowd, took, most)
				}
				if n := p.waiting.Load(); n != 0 {
					t.Errorf("%d clients are counted as waiting", n)
				}
				cancel()
				p.wg.Wait()
				if n := p.stuck.Load(); n != 0 {
					t.Errorf("%d fillers are counted as stuck", n)
				}
			})
		})
	}
}

// Whatever becomes of workers (they start slowly, fail, die while they wait or in their sessions), each client gets one
// about as soon as they can be made, and the account is right in the end.
func TestPoolForgetsNobody(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var mu sync.Mutex
				rnd := rand.New(rand.NewPCG(seed, 0))
				roll := func(n int) int {
					mu.Lock()
					defer mu.Unlock()
					return rnd.IntN(n)
				}
				start := func(ctx context.Context) (*process, error) {
					select {
					case <-time.After(time.Duration(300+roll(700)) * time.Millisecond):
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					w := &process{
						Worker: &spawner.Worker{PID: 1}, exited: make(chan struct{}),
						glance: func() metrics.Glance { return metrics.Glance{Calls: uint64(roll(3))} },
					}
					switch roll(12) {
					case 0:
						return nil, errors.New("no context")
					case 1: // it dies, perhaps while nobody has it yet
						time.AfterFunc(time.Duration(roll(1000))*time.Millisecond, func() { close(w.exited) })
					}
					return w, nil
				}
				p := newPool(ctx, 1+int(seed%3), start, func(error) {})
				p.helpers, p.discard = make(chan struct{}, 1+roll(4)), func(*process) {}
				var clients sync.WaitGroup
				for range 3 + roll(3) {
					clients.Go(func() {
						for range 40 {
							limit, stop := context.WithTimeout(ctx, time.Duration(1+roll(60_000))*time.Millisecond)
							began := time.Now()
							_, err := p.take(limit)
							gone := limit.Err() != nil
							stop()
							// five who wait, a second each, and a pause after a failure
							if took := time.Since(began); took > 6*time.Second && !gone || errors.Is(err, errCrowd) {
								t.Errorf("a client waited %v: %v", took, err)
							}
							time.Sleep(time.Duration(roll(3000)) * time.Millisecond) // its session
						}
					})
				}
				clients.Wait()
				synctest.Wait()
				if n := p.waiting.Load(); n != 0 {
					t.Errorf("%d clients are counted as waiting", n)
				}
				cancel()
				p.wg.Wait()
			})
		})
	}
}
