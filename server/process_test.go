package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// What a client has just begun with is not disturbed by the making of the next worker, unless somebody waits for that.
func TestPoolLetsClientsBegin(t *testing.T) {
	const making = 100 * time.Millisecond
	for name, c := range map[string]struct {
		takes []time.Duration // when workers are asked for
		got   []time.Duration // and when they are there
	}{
		"at leisure": {[]time.Duration{time.Second, 2 * time.Second}, []time.Duration{time.Second, 2 * time.Second}},
		"at once":    {[]time.Duration{time.Second, time.Second}, []time.Duration{time.Second, time.Second + making}},
		"soon after": {[]time.Duration{time.Second, time.Second + 200*time.Millisecond}, []time.Duration{time.Second, time.Second + 200*time.Millisecond + making}},
		"just ready": {[]time.Duration{time.Second, time.Second + refillAfter + making}, []time.Duration{time.Second, time.Second + refillAfter + making}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				made := 0
				start := func(ctx context.Context) (*process, error) {
					if made++; made > len(c.takes) {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					time.Sleep(making)
					return &process{exited: make(chan struct{})}, nil
				}
				p := newPool(ctx, 1, start, func(err error) { t.Error(err) })
				began := time.Now()
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
