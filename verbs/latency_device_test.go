//go:build rdma

package verbs_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"scuda.dev/scuda/verbs"
)

// Round trips of WRITEs of 4 KiB between two spinning ends, as ib_write_lat measures them: each end waits until the other's bytes are in its memory, and polls
// the completion of its own. Half of a round trip is the latency of one.
func TestWriteLatency(t *testing.T) {
	const n, rounds = 4096, 1000
	a, b := connected(t, 2*n, verbs.QPConfig{})
	play := func(me, other *end, first bool) []time.Duration {
		req := make([]verbs.SendRequest, 1)
		done := make([]verbs.Completion, 1)
		last := (*uint32)(unsafe.Pointer(&me.mem[n-4]))   // where the other's bytes end
		mine := (*uint32)(unsafe.Pointer(&me.mem[2*n-4])) // what is sent lies behind
		times := make([]time.Duration, 0, rounds)
		began := time.Now()
		for i := uint32(1); i <= rounds; i++ {
			if !first {
				for atomic.LoadUint32(last) != i {
				}
			}
			atomic.StoreUint32(mine, i)
			req[0] = verbs.SendRequest{Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: other.remote(0), RKey: other.mr.RKey, Count: 1, SGE: me.sge(n, n)}
			if _, err := me.qp.PostSend(req); err != nil {
				t.Error(err)
				return nil
			}
			for k := 0; k == 0; {
				var err error
				if k, err = me.cq.Poll(done); err != nil || k > 0 && done[0].Err() != nil {
					t.Error(err, done[0].Err())
					return nil
				}
			}
			if first {
				for atomic.LoadUint32(last) != i {
				}
				now := time.Now() // once a round, as ib_write_lat does: reading the clock of an emulated machine takes microseconds
				times = append(times, now.Sub(began))
				began = now
			}
		}
		return times
	}
	result := make(chan []time.Duration)
	go func() { result <- play(b, a, false) }()
	times := play(a, b, true)
	<-result
	if len(times) == rounds {
		slices.Sort(times)
		t.Logf("FIGURE latency %.2f us", float64(times[rounds/2].Nanoseconds())/2e3)
	}
}
