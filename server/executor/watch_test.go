package executor

import (
	"strings"
	"testing"
	"time"

	"scuda.dev/scuda/api/nccl"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/liveness"
)

// twoRanks are two sessions with a rank each, of which the first made the id; when a rank is lost, it aborts after a
// while.
func twoRanks(t *testing.T, a, b *fakeNCCL, abort time.Duration) (first, second *client) {
	t.Helper()
	a.meets = true
	patient := func(cfg *Config) { cfg.abortAfter = abort }
	first, second = connect(t, with(a), patient), connect(t, with(b))
	first.nccl(nccl.Success, wire.OpNcclOpen, words(0))
	second.nccl(nccl.Success, wire.OpNcclOpen, words(0))
	made, _, _ := wire.View[wire.NcclID](first.must(wire.OpNcclUniqueID, words(0)))
	if made.Result != 0 || string(made.ID[80:86]) != "scudaw" {
		t.Fatalf("an id %q", made.ID)
	}
	for i, c := range []*client{first, second} {
		c.nccl(nccl.Success, wire.OpNcclInit, initWith(wire.NcclInit{Comm: 1, Ranks: 2, Rank: int32(i), Ids: 1}, made.ID[:],
			configOf(wire.NcclConfig{})))
	}
	for _, f := range []*fakeNCCL{a, b} {
		f.mu.Lock()
		if want := (nccl.ID{8: 2, 12: 127, 15: 1}); f.ids[0] != want {
			t.Errorf("the library got %v", f.ids[0])
		}
		f.mu.Unlock()
	}
	return first, second
}

func (c *client) commState(comm uint64) (nccl.Result, string) {
	c.t.Helper()
	r, state, text := c.ncclAnswer(c.must(wire.OpNcclState, words(comm)))
	if r != nccl.Success {
		c.t.Fatalf("the state is not known: %v", r)
	}
	return nccl.Result(state), text
}

// lostRank says whether a communicator's state is that its rank 1 was lost.
func (c *client) lostRank(comm uint64) bool {
	c.t.Helper()
	state, text := c.commState(comm)
	return state == nccl.RemoteError && strings.HasPrefix(text, "rank 1 of the communicator was lost")
}

// A rank whose session is lost is an asynchronous error at the others, and the server ends what waits for it.
func TestRankIsLost(t *testing.T) {
	f, g := newFakeNCCL(), newFakeNCCL()
	close(f.start)
	close(g.start)
	a, b := twoRanks(t, f, g, 50*time.Millisecond)
	p, s := a.alloc(4096), a.stream(0)
	sum := wire.NcclOperation{Comm: 1, Send: p, Recv: p, Count: 16, Stream: s, Type: uint32(nccl.Float32)}
	waits := a.start(7, wire.OpNcclGroup, 0, groupOf(sum), nil)
	until(t, "the call", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.groups) == 1
	})
	b.conn.Close()
	if err := b.wait(); err == nil {
		t.Fatal("the session ended as it should")
	}
	a.await(waits)
	if !a.lostRank(1) {
		t.Error("the lost rank is not the state")
	}
	_, text := a.commState(1)
	if again := a.nccl(nccl.RemoteError, wire.OpNcclGroup, groupOf(sum)); again != text {
		t.Errorf("another call says %q", again)
	}
	a.nccl(nccl.RemoteError, wire.OpNcclEnd, endOf(1, wire.NcclEndFinalize))
	a.nccl(nccl.Success, wire.OpNcclEnd, endOf(1, wire.NcclEndAbort)) // it is the program's until then
	a.nccl(nccl.InvalidArgument, wire.OpNcclGroup, groupOf(sum))
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := strings.Join(f.ended, " "); got != "abort" {
		t.Errorf("the library ended by %q, want one abort", got)
	}
}

// A rank that is lost is one of all the parts that it was in, and of no other.
func TestRankOfPartsIsLost(t *testing.T) {
	f, g := newFakeNCCL(), newFakeNCCL()
	close(f.start)
	close(g.start)
	a, b := twoRanks(t, f, g, time.Hour)
	both := func(m wire.NcclSplit, excluded ...int32) {
		a.part(nccl.Success, m, excluded...)
		b.part(nccl.Success, m, excluded...)
	}
	both(wire.NcclSplit{Comm: 1, Made: 2, Color: 1, Key: 3})
	a.part(nccl.Success, wire.NcclSplit{Comm: 1, Made: 3, Color: 2, Key: 3}) // each alone
	b.part(nccl.Success, wire.NcclSplit{Comm: 1, Made: 3, Color: 3, Key: 3})
	both(wire.NcclSplit{Comm: 2, Made: 4, Color: 2, Key: 3}) // a part of a part
	b.conn.Close()
	for _, comm := range []uint64{1, 2, 4} {
		until(t, "the loss", func() bool { return a.lostRank(comm) })
	}
	a.part(nccl.Success, wire.NcclSplit{Comm: 1, Made: 5, Verb: wire.NcclSplitShrink}, 1)
	for _, comm := range []uint64{3, 5} {
		if a.lostRank(comm) {
			t.Errorf("communicator %d has lost a rank that was not in it", comm)
		}
	}
}

// A program that aborts by itself is not aborted once more.
func TestRankIsLostAndAborted(t *testing.T) {
	f, g := newFakeNCCL(), newFakeNCCL()
	close(f.start)
	close(g.start)
	a, b := twoRanks(t, f, g, time.Hour)
	b.conn.Close()
	until(t, "the loss", func() bool { return a.lostRank(1) })
	a.nccl(nccl.Success, wire.OpNcclEnd, endOf(1, wire.NcclEndAbort))
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := strings.Join(f.ended, " "); got != "abort" {
		t.Errorf("the library ended by %q, want one abort", got)
	}
}

// A rank that ends its communicator, or its session, as it should is not lost. Another rank, which is the test's own,
// says so.
func TestRankEnds(t *testing.T) {
	for name, x := range map[string]struct {
		end  func(c *client)
		lost bool
	}{
		"destroyed": {end: func(c *client) { c.nccl(nccl.Success, wire.OpNcclEnd, endOf(1, wire.NcclEndDestroy)) }},
		"left":      {end: func(c *client) { c.send(wire.OpBye, nil) }},
		"gone":      {end: func(*client) {}, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeNCCL()
			close(f.start)
			id := nccl.ID{8: 2, 12: 127, 15: 1}
			hub, err := liveness.Listen(&id)
			if err != nil {
				t.Fatal(err)
			}
			defer hub.Close()
			c := connect(t, with(f))
			c.nccl(nccl.Success, wire.OpNcclOpen, words(0))
			c.nccl(nccl.Success, wire.OpNcclInit, initWith(wire.NcclInit{Comm: 1, Ranks: 2, Rank: 1, Ids: 1}, id[:],
				configOf(wire.NcclConfig{})))
			place, _ := liveness.Open(&id)
			lost := make(chan int32, 1)
			other, err := liveness.Join(place, 0, func(rank int32) { lost <- rank })
			if err != nil {
				t.Fatal(err)
			}
			x.end(c)
			c.conn.Close()
			_ = c.wait()
			if x.lost {
				if rank := <-lost; rank != 1 {
					t.Errorf("rank %d is lost, want 1", rank)
				}
			}
			other.Leave()
			other.Wait()
			if len(lost) > 0 {
				t.Errorf("rank %d is lost", <-lost)
			}
		})
	}
}
