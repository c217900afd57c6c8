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

// looks is how often a spinning end looks for a completion before it looks at something else.
const looks = 1000

// pingPong has two spinning ends send WRITEs of 4 KiB to each other, as ib_write_lat does: each end waits until the
// other's bytes are in its memory, and polls the completion of its own. It gives how long each round trip took.
//
// Go's monitor thread takes processors (of GOMAXPROCS) from goroutines that are in C and have not given way for 10 ms,
// or of which none is idle, and for a while looks every 20 µs whether there are more. On a machine whose two processors
// both spin that costs a tenth of the latency and more. So the ends give way every few milliseconds, and one processor
// is idle, as on larger machines.
func pingPong(t testing.TB, rounds uint32) []time.Duration {
	t.Helper()
	const n = 4096
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	a, b := connected(t, 2*n, verbs.QPConfig{})
	var failed atomic.Bool // one end gave up: the other waits in vain
	play := func(me, other *end, first bool) []time.Duration {
		// The request is made once and posted again.
		req := []verbs.SendRequest{
			{Op: verbs.OpWrite, Flags: verbs.Signaled, Remote: other.remote(0), RKey: other.mr.RKey, Count: 1,
				SGE: me.sge(n, n)},
		}
		done := make([]verbs.Completion, 1)
		last := (*uint32)(unsafe.Pointer(&me.mem[n-4]))   // where the other's bytes end
		mine := (*uint32)(unsafe.Pointer(&me.mem[2*n-4])) // what is sent lies behind
		arrived := func(i uint32) bool {
			for atomic.LoadUint32(last) != i {
				if failed.Load() {
					return false
				}
			}
			return true
		}
		times := make([]time.Duration, 0, rounds)
		start, began := time.Now(), time.Duration(0)
		for i := uint32(1); i <= rounds; i++ {
			if !first && !arrived(i) {
				return nil
			}
			atomic.StoreUint32(mine, i)
			_, k, err := me.qp.PostSpin(req, done, looks)
			for ; k == 0 && err == nil; k, err = me.cq.Spin(done, looks) {
			}
			if err != nil || done[0].Err() != nil {
				t.Errorf("round %d: %v, %v", i, err, done[0].Err())
				failed.Store(true)
				return nil
			}
			if i%16 == 0 {
				runtime.Gosched()
			}
			if first {
				if !arrived(i) {
					return nil
				}
				now := time.Since(start) // once a round, as ib_write_lat does; it reads one clock, [time.Now] two
				times = append(times, now-began)
				began = now
			}
		}
		return times
	}
	second := make(chan struct{})
	go func() {
		defer close(second)
		play(b, a, false)
	}()
	times := play(a, b, true)
	<-second
	return times
}

// The bytes of a WRITE are in the other end's memory by the time that the answer to them comes, round after round.
// How long that takes is for [BenchmarkWriteLatency] to say.
func TestPingPong(t *testing.T) {
	const rounds = 64
	if times := pingPong(t, rounds); len(times) != rounds {
		t.Errorf("%d of %d rounds were played", len(times), rounds)
	}
}

// Half of a round trip is the latency of one WRITE; perf/rdma.sh compares its median with ib_write_lat's.
func BenchmarkWriteLatency(b *testing.B) {
	const rounds = 4000
	for b.Loop() {
		if times := pingPong(b, rounds); len(times) == rounds {
			slices.Sort(times)
			b.Logf("FIGURE latency %.2f us", float64(times[rounds/2].Nanoseconds())/2e3)
		}
	}
}

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
