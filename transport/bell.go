package transport

import (
	"sync/atomic"
	"time"
)

// Bell wakes those who wait for bytes. Unlike those of a [sync.Cond] they look for a moment first, where there are
// processors for it, and then sleep as threads, so that one system call wakes them all. The zero value is ready.
type Bell struct {
	rung   atomic.Uint32
	asleep atomic.Int32
}

// Now is what Await wants to know: how often the bell was rung before the caller looked for work.
func (b *Bell) Now() uint32 { return b.rung.Load() }

// Ring wakes all who wait.
func (b *Bell) Ring() {
	b.rung.Add(1)
	if b.asleep.Load() > 0 {
		wakeAll(&b.rung)
	}
}

// Await returns when the bell was rung since Now gave seen; perhaps earlier.
func (b *Bell) Await(seen uint32) {
	if !FewCPUs() {
		for began := time.Now(); time.Since(began) < lineSpin; yield() {
			if b.rung.Load() != seen {
				return
			}
		}
	}
	b.asleep.Add(1)
	sleepWhile(&b.rung, seen)
	b.asleep.Add(-1)
}

// AwaitFor is Await for so long at most; negative: without limit.
func (b *Bell) AwaitFor(seen uint32, most time.Duration) {
	if most == 0 || b.rung.Load() != seen {
		return
	}
	b.asleep.Add(1)
	sleepWhileFor(&b.rung, seen, most)
	b.asleep.Add(-1)
}
