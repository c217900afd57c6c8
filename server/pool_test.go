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
