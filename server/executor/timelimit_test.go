package executor

import (
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/transport"
)

func (c *client) logMessages() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepLog = true
}

// endsBy waits for the session's end, and gives the last notice and what calls answer from then on.
func (c *client) endsBy(t *testing.T) (string, int32) {
	t.Helper()
	select {
	case err := <-c.ended:
		c.ended <- err
		if !errors.Is(err, ErrTime) {
			t.Fatalf("it ended with %v", err)
		}
	case <-time.After(deadline):
		t.Fatal("it does not end")
	}
	<-c.lost
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.notices) == 0 {
		t.Fatal("nothing was said")
	}
	result := int32(0)
	for _, h := range c.log {
		if h.Type == transport.MsgNotice {
			result = h.Result
		}
	}
	return c.notices[len(c.notices)-1], result
}

// A session that makes no call ends, though it sends a ping now and then.
func TestIdleSessionEnds(t *testing.T) {
	c := connect(t, func(cfg *Config) { cfg.Limits.Idle = 50 * time.Millisecond })
	c.logMessages()
	over := make(chan struct{})
	pings := make(chan struct{})
	go func() {
		defer close(pings)
		for {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
			}
			c.wmu.Lock()
			_, err := c.conn.Write(frame(c.command(0, wire.OpPing, 0, words(0))))
			c.wmu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	says, result := c.endsBy(t)
	close(over)
	<-pings
	if !strings.Contains(says, "made no call for 50ms") || result != 0 {
		t.Errorf("%q, result %d", says, result)
	}
}

// What counts as idle: no call, and no work on a GPU.
func TestRest(t *testing.T) {
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	b := new(base)
	l := timelimit{base: b, idle: 10 * time.Second, since: start}
	working := false
	rest := func(s int) (time.Duration, error) { return l.rest(at(s), func() bool { return working }) }
	for i, step := range []struct {
		at            int
		calls, pings  uint64
		working, over bool
		rest          int
	}{
		{1, 1, 0, false, false, 10},
		{5, 0, 0, false, false, 6},
		{6, 3, 3, false, false, 5}, // pings alone
		{7, 2, 1, false, false, 10},
		{17, 0, 0, true, false, 10}, // a GPU works
		{27, 0, 0, false, true, 0},
	} {
		b.commands, l.pings, working = b.commands+step.calls, l.pings+step.pings, step.working
		d, err := rest(step.at)
		if errors.Is(err, ErrTime) != step.over || d != time.Duration(step.rest)*time.Second {
			t.Errorf("step %d: %v, %v", i, d, err)
		}
	}
	if d, err := (&timelimit{base: b}).rest(start, nil); d >= 0 || err != nil {
		t.Errorf("without limits: %v, %v", d, err)
	}
}

// Work that takes too long ends the session, and its calls answer 702: those that wait, and those in which the driver
// holds the executor.
func TestWorkWithoutEnd(t *testing.T) {
	for name, x := range map[string]struct {
		wait  func(c *client, st, buf uint64)
		limit time.Duration
		held  bool // by the driver, which must have the call before the time is over
	}{
		"nothing waits": {func(*client, uint64, uint64) {}, 100 * time.Millisecond, false},
		"a call waits": {func(c *client, st, buf uint64) {
			c.start(0, cuda.OpCuStreamSynchronize, 0, words(st), nil)
		}, 100 * time.Millisecond, false},
		"the driver waits": {func(c *client, st, buf uint64) {
			c.start(0, cuda.OpCuMemFree_v2, 0, words(buf), nil)
		}, 2 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			release, aborted := make(chan struct{}), make(chan error, 1)
			c := connect(t, func(cfg *Config) {
				cfg.Limits = config.Limits{Work: x.limit}
				cfg.Abort = func(err error) {
					aborted <- err
					close(release)
				}
			})
			c.logMessages()
			c.openCallback()
			st := c.stream(1)
			buf := c.alloc(4096)
			c.hostFunc(st, 1, func() { <-release })
			x.wait(c, st, buf)
			if x.held {
				if err := <-aborted; !errors.Is(err, ErrTime) {
					t.Errorf("%v", err)
				}
			}
			says, result := c.endsBy(t)
			if !strings.Contains(says, "for more than "+x.limit.String()) || result != int32(cuda.CUDA_ERROR_LAUNCH_TIMEOUT) {
				t.Errorf("%q, result %d", says, result)
			}
			if !x.held {
				close(release)
			}
		})
	}
}

// What the GPU has written is not late, whatever came behind it.
func TestLate(t *testing.T) {
	l := timelimit{work: 10}
	var a, b atomic.Uint32
	a.Store(math.MaxUint32)
	l.open = []openMark{{word: &a, number: 1, since: 100}, {word: &b, number: 1, since: 105}}
	for i, step := range []struct {
		now  int64
		act  func()
		late bool
	}{
		{110, func() {}, false}, {111, func() {}, true}, {111, func() { a.Store(1) }, false}, {115, func() {}, false},
		{116, func() {}, true}, {116, func() { b.Store(2) }, false}, {1000, func() {}, false},
	} {
		step.act()
		if got := l.late(step.now); got != step.late {
			t.Errorf("step %d: late %v", i, got)
		}
	}
	if l.isOpen(nil) || len(l.open) != 0 {
		t.Errorf("%v are left", l.open)
	}
}
