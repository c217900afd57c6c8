package executor

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/turn"
	"scuda.dev/scuda/transport"
)

// told is a record as a client reads it.
type told struct {
	wire.ProfileRecord
	name string
}

// profile switches recording.
func (c *client) profile(kinds uint32) uint32 {
	c.t.Helper()
	m := wire.Profile{Kinds: kinds}
	state, _, ok := wire.View[wire.ProfileState](c.must(wire.OpProfile, wire.Bytes(&m)))
	if !ok || state.Now == 0 {
		c.t.Fatal("a short answer")
	}
	return state.Kinds
}

// readProfile reads all that there is, in answers of so many bytes.
func (c *client) readProfile(most uint32, all bool) (list []told, lost uint64) {
	c.t.Helper()
	m := wire.ProfileRead{Bytes: most}
	if all {
		m.All = 1
	}
	names := map[uint32]string{}
	for {
		reply := c.must(wire.OpProfileRead, wire.Bytes(&m))
		if len(reply) > int(most) {
			c.t.Fatalf("%d bytes, at most %d were wanted", len(reply), most)
		}
		head, rest, ok := wire.View[wire.ProfileRecords](reply)
		if !ok {
			c.t.Fatal("a short answer")
		}
		for range head.Names {
			n, after, _ := wire.View[wire.ProfileName](rest)
			names[n.ID] = string(after[:n.Bytes])
			rest = after[(n.Bytes+7)&^7:]
		}
		for range head.Records {
			r, after, ok := wire.View[wire.ProfileRecord](rest)
			if !ok {
				c.t.Fatal("fewer records than it says")
			}
			list, rest = append(list, told{*r, names[r.Name]}), after
		}
		if len(rest) > 0 {
			c.t.Fatalf("%d bytes behind the records", len(rest))
		}
		if head.More == 0 {
			return list, head.Lost
		}
	}
}

// What the simulated GPU does for correlated commands is told: kernels by name and grid, a copy that was made in parts
// as one, memsets; nothing of the library's own, and nothing once recording is over.
func TestProfile(t *testing.T) {
	c := connect(t)
	f, offsets := c.function(c.loadModule(kernels(t)), "vector_add", ofModule)
	const n = 3 << 20 // more than a staging slot has
	a := c.alloc(n)
	stream := c.stream(uint64(cuda.CU_STREAM_NON_BLOCKING))
	params := make([]byte, int(offsets[len(offsets)-1])+8)
	for i := range 3 {
		binary.LittleEndian.PutUint64(params[offsets[i]:], a)
	}
	binary.LittleEndian.PutUint32(params[offsets[3]:], 64)
	work := func() {
		c.correlation = 7
		c.launch(f, stream, 2, 32, params)
		c.correlation = 8
		c.launch(f, stream, 3, 32, params)
		c.correlation = 9
		c.upload(a, bytes.Repeat([]byte{1}, n), stream, 0)
		c.correlation = 10
		c.must(cuda.OpCuMemsetD32Async, words(a, 5, 16, stream))
		c.correlation = 12 // of the client's library itself
		c.await(c.start(0, cuda.OpCuMemsetD32Async, transport.FlagOwn, words(a, 6, 16, stream), nil))
		c.correlation = 0
		c.launch(f, stream, 4, 32, params)
		c.sync(stream)
		c.correlation = 11
		c.download(a, n, stream)
		c.correlation = 0
	}
	work()
	all := uint32(workKinds)
	if kinds := c.profile(all); kinds != all {
		t.Fatalf("%d is recorded, want %d", kinds, all)
	}
	work()
	list, lost := c.readProfile(1<<20, true)
	if len(list) != 5 || lost != 0 {
		t.Fatalf("%d records, %d lost: %+v", len(list), lost, list)
	}
	byID := map[uint32]told{}
	last := uint64(0)
	for _, r := range list {
		byID[r.Correlation] = r
		if r.Start < last || r.End < r.Start {
			t.Errorf("%d: from %d to %d, and the one before ended at %d", r.Correlation, r.Start, r.End, last)
		}
		if r.Stream == 0 || r.Context == 0 {
			t.Errorf("%d: stream %d, context %d", r.Correlation, r.Stream, r.Context)
		}
		last = r.End
	}
	for id, grid := range map[uint32]uint32{7: 2, 8: 3} {
		if r := byID[id]; r.Kind != wire.ProfileKernels || r.name != "vector_add" || r.Grid != [3]uint32{grid, 1, 1} ||
			r.Block != [3]uint32{32, 1, 1} {
			t.Errorf("kernel: %+v", r)
		}
	}
	if r := byID[9]; r.Kind != wire.ProfileCopies || r.Bytes != n || r.Target != wire.ProfileMemoryDevice {
		t.Errorf("upload: %+v", r)
	}
	if r := byID[10]; r.Kind != wire.ProfileMemsets || r.Bytes != 64 || r.Value != 5 {
		t.Errorf("memset: %+v", r)
	}
	if r := byID[11]; r.Kind != wire.ProfileCopies || r.Bytes != n || r.Source != wire.ProfileMemoryDevice {
		t.Errorf("download: %+v", r)
	}

	// in answers that have room for one
	work()
	const one = wire.SizeProfileRecords + wire.SizeProfileName + 16 + wire.SizeProfileRecord
	if list, _ = c.readProfile(one, true); len(list) != 5 {
		t.Fatalf("%d records in small answers", len(list))
	}
	// a copy that may go on is kept back once
	work()
	if list, _ = c.readProfile(1<<20, false); len(list) != 3 {
		t.Errorf("%d records, want those that are no copies: %+v", len(list), list)
	}
	if list, _ = c.readProfile(1<<20, false); len(list) != 2 {
		t.Errorf("%d records, want the copies: %+v", len(list), list)
	}
	if kinds := c.profile(wire.ProfileMemsets); kinds != wire.ProfileMemsets {
		t.Errorf("%d is recorded", kinds)
	}
	work()
	if list, _ = c.readProfile(1<<20, true); len(list) != 1 || list[0].Correlation != 10 {
		t.Errorf("of memsets alone: %+v", list)
	}
	c.profile(0)
	work()
	if list, _ = c.readProfile(1<<20, true); len(list) != 0 {
		t.Errorf("recorded afterwards: %+v", list)
	}
}

// TestProfileClock: what the server says of its clock lies between the question and the answer.
func TestProfileClock(t *testing.T) {
	c := connect(t)
	c.profile(workKinds)
	c.correlation = 7
	c.must(cuda.OpCuMemsetD32Async, words(c.alloc(64), 6, 16, 0))
	c.correlation = 0
	for range 100 {
		m := wire.ProfileRead{Bytes: wire.SizeProfileRecords}
		asked := uint64(time.Now().UnixNano())
		reply := c.must(wire.OpProfileRead, wire.Bytes(&m))
		answered := uint64(time.Now().UnixNano())
		head, rest, ok := wire.View[wire.ProfileRecords](reply)
		if !ok || len(rest) != 0 || head.Records != 0 {
			t.Fatalf("%+v with %d bytes behind it", head, len(rest))
		}
		if head.Now-uint64(head.Held) < asked || head.Now > answered {
			t.Errorf("held for %d ns until %d; asked at %d, answered at %d", head.Held, head.Now, asked, answered)
		}
	}
	if list, _ := c.readProfile(1<<20, true); len(list) != 1 {
		t.Errorf("%d records are left", len(list))
	}
}

// Numbers of graphs and nodes are said to who asked whether there are any, and no others are.
func TestProfileNumbers(t *testing.T) {
	c := connect(t)
	graph, node, exec := c.graph(), c.newHandle(), c.newHandle()
	add := wire.GraphNode{Graph: graph, Node: node}
	c.must(wire.OpGraphNode, nodeOf(add, cuda.CU_GRAPH_NODE_TYPE_EMPTY, uint64(0), nil))
	c.must(cuda.OpCuGraphInstantiateWithFlags, words(exec, graph, 0))
	ask := func(kind uint32, object uint64) []byte {
		return wire.Bytes(&wire.ProfileNumber{Object: object, Kind: kind})
	}
	c.expect(cuda.CUDA_ERROR_NOT_FOUND, wire.OpProfileNumber, ask(wire.ProfileObjectGraph, graph))
	if kinds := c.profile(wire.ProfileNumbers); kinds != wire.ProfileNumbers {
		t.Fatalf("%d is answered", kinds)
	}
	c.profile(0) // numbers stay
	number := func(kind uint32, object uint64) uint64 {
		t.Helper()
		n, _, ok := wire.View[wire.ProfileNumbered](c.must(wire.OpProfileNumber, ask(kind, object)))
		if !ok || n.Number == 0 {
			t.Fatal("no number")
		}
		return n.Number
	}
	g, x := number(wire.ProfileObjectGraph, graph), number(wire.ProfileObjectExec, exec)
	if n := number(wire.ProfileObjectNode, node); g == x || n != g<<32 {
		t.Errorf("graph %d, executable graph %d, node %#x", g, x, n)
	}
	c.expect(cuda.CUDA_ERROR_INVALID_HANDLE, wire.OpProfileNumber, ask(wire.ProfileObjectExec, graph))
	c.expect(cuda.CUDA_ERROR_INVALID_VALUE, wire.OpProfileNumber, ask(3, graph))
	silent := connect(t, func(cfg *Config) { cfg.GPU = quick{} })
	if kinds := silent.profile(wire.ProfileNumbers); kinds != 0 {
		t.Errorf("a GPU that cannot tell: %d is answered", kinds)
	}
}

// A graph that is told of by what is in it is one piece of work for each launch.
func TestProfileOfGraphParts(t *testing.T) {
	var p profile
	p.kinds, p.copies, p.fresh = workKinds, map[uint32]int{}, map[uint32]bool{}
	for i := range int64(6) {
		p.add(&cuda.Work{Kind: cuda.WorkGraph, Correlation: uint32(i / 3), Stream: uint64(i), Start: 10 * i, End: 10*i + 5})
	}
	if len(p.work) != 2 || p.work[0].Start != 0 || p.work[0].End != 25 || p.work[1].Start != 30 || p.work[1].End != 55 {
		t.Errorf("%+v", p.work)
	}
}

// Without a place for more work is counted, not kept.
func TestProfileBounded(t *testing.T) {
	var p profile
	p.kinds, p.copies, p.fresh = workKinds, map[uint32]int{}, map[uint32]bool{}
	for i := range profileMost + 5 {
		p.add(&cuda.Work{Kind: cuda.WorkKernel, Correlation: uint32(i)})
	}
	if len(p.work) != profileMost || p.lost != 5 {
		t.Errorf("%d kept, %d lost", len(p.work), p.lost)
	}
}

// What the executor itself did is told without a recorder: when it carried commands out, which of them waited for the
// turn of another session, and nothing of the client's library.
func TestProfileOfCommands(t *testing.T) {
	slot := new(turn.Slot)
	c := connect(t, func(cfg *Config) { cfg.GPU, cfg.Turn = quick{}, slot })
	if kinds := c.profile(workKinds | ownKinds); kinds != ownKinds {
		t.Fatalf("%d is recorded, want %d", kinds, ownKinds)
	}
	before := now()
	c.correlation = 5
	c.must(cuda.OpCuCtxSynchronize, nil)
	c.await(c.start(0, cuda.OpCuCtxSynchronize, transport.FlagOwn, nil, nil))
	c.correlation = 0
	c.must(cuda.OpCuCtxSynchronize, nil)
	slot.Tell(turn.Report | turn.Wait)
	c.correlation = 6
	ch := c.start(0, cuda.OpCuMemsetD32Async, 0, words(4096, 5, 16, 0), nil)
	until(t, "it wants to go on", func() bool { return slot.Read().Doing&turn.Wants != 0 })
	slot.Tell(0)
	c.await(ch)
	c.correlation = 0
	list, _ := c.readProfile(1<<16, true)
	if len(list) != 3 || list[0].Kind != wire.ProfileCommands || list[1].Kind != wire.ProfileTurns ||
		list[2].Kind != wire.ProfileCommands {
		t.Fatalf("%+v", list)
	}
	for i, want := range []struct {
		correlation uint32
		op          uint16
	}{
		{5, cuda.OpCuCtxSynchronize}, {6, cuda.OpCuMemsetD32Async}, {6, cuda.OpCuMemsetD32Async},
	} {
		r := list[i]
		if r.Correlation != want.correlation || r.Value != uint32(want.op) || r.Start < before || r.End < r.Start ||
			r.End > now() {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	if list[2].End < list[1].End || list[2].Start > list[1].Start {
		t.Errorf("a command from %d to %d waited from %d to %d", list[2].Start, list[2].End, list[1].Start, list[1].End)
	}
	if kinds := c.profile(wire.ProfileTurns); kinds != wire.ProfileTurns {
		t.Errorf("%d is recorded", kinds)
	}
	c.correlation = 7
	c.must(cuda.OpCuCtxSynchronize, nil)
	if list, _ := c.readProfile(1<<16, true); len(list) != 0 {
		t.Errorf("of turns alone: %+v", list)
	}
}

// A server whose GPUs cannot tell what they do says that nothing is recorded.
func TestProfileWithoutRecorder(t *testing.T) {
	c := connect(t, func(cfg *Config) { cfg.GPU = quick{} })
	if kinds := c.profile(workKinds); kinds != 0 {
		t.Errorf("%d is recorded", kinds)
	}
	if list, _ := c.readProfile(1<<10, true); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}
