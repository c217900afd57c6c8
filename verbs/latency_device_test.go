//go:build rdma

package verbs_test

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"scuda.dev/scuda/verbs"
)

// Round trips of WRITEs of 4 KiB between two spinning ends, as ib_write_lat measures them: each end waits until the
// other's bytes are in its memory, and polls the completion of its own. Half of a round trip is the latency of one.
//
// Go's monitor thread takes processors (of GOMAXPROCS) from goroutines that are in C and have not given way for 10 ms,
// or of which none is idle, and for a while looks every 20 µs whether there are more. On a machine whose two processors
// both spin that costs a tenth of the latency and more. So the ends give way every few milliseconds, and one processor
// is idle, as on larger machines.
func TestWriteLatency(t *testing.T) {
	const n, rounds = 4096, 4000
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	a, b := connected(t, 2*n, verbs.QPConfig{})
	play := func(me, other *end, first bool) []time.Duration {
		// The request is made once and posted again.
		req := []verbs.SendRequest{
			{Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: other.remote(0), RKey: other.mr.RKey, Count: 1,
				SGE: me.sge(n, n)},
		}
		done := make([]verbs.Completion, 1)
		last := (*uint32)(unsafe.Pointer(&me.mem[n-4]))   // where the other's bytes end
		mine := (*uint32)(unsafe.Pointer(&me.mem[2*n-4])) // what is sent lies behind
		times := make([]time.Duration, 0, rounds)
		start, began := time.Now(), time.Duration(0)
		for i := uint32(1); i <= rounds; i++ {
			if !first {
				for atomic.LoadUint32(last) != i {
				}
			}
			atomic.StoreUint32(mine, i)
			_, k, err := me.qp.PostSpin(req, done, looks)
			for ; k == 0 && err == nil; k, err = me.cq.Spin(done, looks) {
			}
			if err != nil || done[0].Err() != nil {
				t.Error(err, done[0].Err())
				return nil
			}
			if i%16 == 0 {
				runtime.Gosched()
			}
			if first {
				for atomic.LoadUint32(last) != i {
				}
				now := time.Since(start) // once a round, as ib_write_lat does; it reads one clock, [time.Now] two
				times = append(times, now-began)
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

const looks = 1000

// A post that spins gives the completion of its own request, or those of earlier ones, and says what it could not post.
func TestPostSpin(t *testing.T) {
	a, b := connected(t, 1<<12, verbs.QPConfig{SendDepth: 64})
	done := make([]verbs.Completion, 4)
	if k, err := a.cq.Spin(done, looks); k != 0 || err != nil {
		t.Errorf("an empty queue gave %d completions, %v", k, err)
	}
	if k, err := a.cq.Spin(nil, looks); k != 0 || err != nil {
		t.Errorf("no room was filled with %d completions, %v", k, err)
	}
	write := func(id uint64) verbs.SendRequest {
		return verbs.SendRequest{
			ID: id, Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: b.remote(int(id)), RKey: b.mr.RKey, Count: 1,
			SGE: a.sge(int(id), 1),
		}
	}
	fill(a.mem, 5)
	next, id := uint64(0), uint64(0)
	take := func(k int) {
		t.Helper()
		for i := range k {
			if c := done[i]; c.Err() != nil || c.ID != next || c.Kind != verbs.WorkWrite {
				t.Fatalf("completion %d is %+v", next, c)
			}
			next++
		}
	}
	for size := range 4 { // requests at once
		list := make([]verbs.SendRequest, size)
		for i := range list {
			list[i] = write(id)
			id++
		}
		taken, k, err := a.qp.PostSpin(list, done, looks)
		if taken != size || err != nil {
			t.Fatalf("%d of %d requests were taken: %v", taken, size, err)
		}
		for take(k); next < id-uint64(size/2); take(k) { // some remain for the next
			k, err = a.cq.Spin(done, looks)
			check(t, err)
		}
	}
	for next < id {
		k, err := a.cq.Spin(done, looks)
		check(t, err)
		take(k)
	}
	if !bytes.Equal(a.mem[:id], b.mem[:id]) {
		t.Error("the bytes differ")
	}

	bad := write(0)
	bad.Count = verbs.MaxSGE + 1
	if taken, k, err := a.qp.PostSpin([]verbs.SendRequest{write(0), bad, write(0)}, done, looks); !errors.Is(err,
		syscall.EINVAL) || taken != 1 || k != 0 {
		t.Errorf("of three requests, the second impossible, %d were taken and %d completed: %v", taken, k, err)
	}
}
