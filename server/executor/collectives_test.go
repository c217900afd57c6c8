package executor

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nccl"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// fakeNCCL waits in each call of the kinds that may wait until the test lets it go on.
type fakeNCCL struct {
	start, enqueue chan struct{} // closed: go on
	meets          bool          // its ids have an address, as NCCL's have
	mu             sync.Mutex
	groups         [][]nccl.Operation
	ended          []string
	settings       []string
	ids            []nccl.ID
	config         *nccl.Config
}

func (f *fakeNCCL) Open(settings []string) (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settings = settings
	return 23007, nil
}

func (f *fakeNCCL) UniqueID(id *nccl.ID) nccl.Result {
	if f.meets { // at 127.0.0.1
		id[8], id[12], id[15] = 2, 127, 1
		return nccl.Success
	}
	id[0], id[127] = 1, 2
	return nccl.Success
}

func (f *fakeNCCL) InitRank(comm *nccl.Comm, ranks, _ int32, ids []nccl.ID, cfg *nccl.Config) nccl.Result {
	<-f.start
	f.mu.Lock()
	f.ids, f.config = ids, cfg
	f.mu.Unlock()
	if ranks == 13 {
		return nccl.SystemError
	}
	*comm = 0xc0
	return nccl.Success
}

func (f *fakeNCCL) Group(list []nccl.Operation) nccl.Result {
	f.mu.Lock()
	f.groups = append(f.groups, list)
	f.mu.Unlock()
	<-f.enqueue
	return nccl.Success
}

func (f *fakeNCCL) end(how string) nccl.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, how)
	return nccl.Success
}

func (f *fakeNCCL) Finalize(nccl.Comm) nccl.Result { return f.end("finalize") }
func (f *fakeNCCL) Destroy(nccl.Comm) nccl.Result  { return f.end("destroy") }

func (f *fakeNCCL) Abort(nccl.Comm) nccl.Result {
	close(f.enqueue)
	return f.end("abort")
}

func (f *fakeNCCL) AsyncError(nccl.Comm) (state, r nccl.Result) {
	return nccl.RemoteError, nccl.Success
}
func (f *fakeNCCL) LastError() string { return "what was wrong" }

func newFakeNCCL() *fakeNCCL {
	return &fakeNCCL{start: make(chan struct{}), enqueue: make(chan struct{})}
}

func with(f nccl.Library) option { return func(cfg *Config) { cfg.NCCL = f } }

// ncclAnswer reads an answer.
func (c *client) ncclAnswer(reply []byte) (nccl.Result, uint32, string) {
	c.t.Helper()
	m, text, ok := wire.View[wire.NcclResult](reply)
	if !ok || len(text) != int(m.TextBytes) {
		c.t.Fatalf("a bad answer of %d bytes", len(reply))
	}
	return nccl.Result(m.Result), m.Value, string(text)
}

func (c *client) nccl(want nccl.Result, op uint16, payload []byte) string {
	c.t.Helper()
	r, _, text := c.ncclAnswer(c.must(op, payload))
	if r != want {
		c.t.Fatalf("%s: %v (%s), want %v", OpName(op), r, text, want)
	}
	return text
}

func initOf(comm uint64, ranks, rank int32) []byte {
	return initWith(wire.NcclInit{Comm: comm, Ranks: ranks, Rank: rank, Ids: 1}, make([]byte, nccl.IDBytes),
		configOf(wire.NcclConfig{}))
}

func initWith(m wire.NcclInit, more ...[]byte) []byte {
	return slices.Concat(append([][]byte{slices.Clone(wire.Bytes(&m))}, more...)...)
}

func configOf(m wire.NcclConfig) []byte { return slices.Clone(wire.Bytes(&m)) }

func groupOf(list ...wire.NcclOperation) []byte {
	b := append([]byte(nil), wire.Bytes(&wire.NcclGroup{Count: uint32(len(list))})...)
	for i := range list {
		b = append(b, wire.Bytes(&list[i])...)
	}
	return b
}

func endOf(comm uint64, verb uint32) []byte { return wire.Bytes(&wire.NcclEnd{Comm: comm, Verb: verb}) }

// A rank that waits, in its start or in a call, holds nothing up; what it uses does not end meanwhile.
func TestCollectivesWait(t *testing.T) {
	f := newFakeNCCL()
	c := connect(t, with(f))
	c.nccl(nccl.Success, wire.OpNcclOpen, words(0))
	id, _, _ := wire.View[wire.NcclID](c.must(wire.OpNcclUniqueID, words(0)))
	if id.Result != 0 || id.ID[0] != 1 || id.ID[127] != 2 {
		t.Fatalf("an id that begins with %v", id.ID[:4])
	}
	a, s := c.alloc(4096), c.stream(uint64(cuda.CU_STREAM_NON_BLOCKING))
	started := c.start(7, wire.OpNcclInit, 0, initOf(1, 2, 0), nil)
	c.upload(a, pattern(4096, 1), 0, 0)
	same(t, c.download(a, 4096, 0), pattern(4096, 1))
	c.unanswered(started)
	close(f.start)
	c.await(started)

	sum := wire.NcclOperation{Comm: 1, Send: a, Recv: a + 1024, Count: 16, Stream: s, Type: uint32(nccl.Float32)}
	send := wire.NcclOperation{Comm: 1, Send: a, Recv: 0x1234, Count: 16, Stream: s,
		Function: wire.NcclFunctionSend, Peer: 1}
	called := c.start(7, wire.OpNcclGroup, 0, groupOf(sum, send), nil)
	same(t, c.download(a, 64, 0), pattern(64, 1))
	c.unanswered(called)
	c.expect(inCollective, cuda.OpCuStreamDestroy_v2, words(s))
	c.expect(inCollective, wire.OpPrimary, wire.Bytes(&wire.Primary{Context: c.context, Verb: primaryReset}))
	if r, state, text := c.ncclAnswer(c.must(wire.OpNcclState, words(1))); r != 0 ||
		nccl.Result(state) != nccl.RemoteError || text != "what was wrong" {
		t.Errorf("the state is %v, %d, %q", r, state, text)
	}
	waiting := c.start(8, wire.OpNcclGroup, 0, groupOf(sum), nil) // behind the first
	c.nccl(nccl.Success, wire.OpNcclEnd, endOf(1, wire.NcclEndAbort))
	c.await(called)
	if r, _, text := c.ncclAnswer(c.await(waiting).payload); r != nccl.InvalidUsage {
		t.Errorf("what came behind the aborted call: %v (%s)", r, text)
	}
	c.nccl(nccl.InvalidArgument, wire.OpNcclGroup, groupOf(sum))
	c.must(cuda.OpCuStreamDestroy_v2, words(s))
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.groups) != 1 || len(f.groups[0]) != 2 {
		t.Fatalf("the library was given %v", f.groups)
	}
	if got := f.groups[0][1]; got.Comm != 0xc0 || got.Send != a || got.Recv != 0 || got.Stream == s {
		t.Errorf("of a send it was given %+v", got)
	}
}

// Nothing of the client's reaches the library that the server did not look at.
func TestCollectivesAreChecked(t *testing.T) {
	f := newFakeNCCL()
	close(f.start)
	close(f.enqueue)
	c := connect(t, with(f))
	c.nccl(nccl.InvalidUsage, wire.OpNcclInit, initOf(1, 2, 0)) // not opened
	c.nccl(nccl.Success, wire.OpNcclOpen, words(0))
	c.nccl(nccl.InvalidArgument, wire.OpNcclInit, initOf(1, 0, 0))
	c.nccl(nccl.InvalidArgument, wire.OpNcclInit, initOf(1, 2, 2))
	c.nccl(nccl.InvalidArgument, wire.OpNcclInit, initOf(1, 2, -1))
	if text := c.nccl(nccl.SystemError, wire.OpNcclInit, initOf(1, 13, 0)); text != "what was wrong" {
		t.Errorf("a failure says %q", text)
	}
	c.nccl(nccl.Success, wire.OpNcclInit, initOf(1, 2, 1))
	a, s := c.alloc(4096), c.stream(0)
	good := wire.NcclOperation{Comm: 1, Send: a, Recv: a, Count: 1024, Stream: s, Type: uint32(nccl.Float32)}
	for name, change := range map[string]func(*wire.NcclOperation){
		"communicator":     func(o *wire.NcclOperation) { o.Comm = 2 },
		"no buffer":        func(o *wire.NcclOperation) { o.Send = 0 },
		"the worker's own": func(o *wire.NcclOperation) { o.Recv = 0x400000 },
		"too long":         func(o *wire.NcclOperation) { o.Count++ },
		"that overflows":   func(o *wire.NcclOperation) { o.Count = 1 << 62 },
		"of all ranks":     func(o *wire.NcclOperation) { o.Function = wire.NcclFunctionAllGather },
		"stream":           func(o *wire.NcclOperation) { o.Stream = 0x1234 },
		"function":         func(o *wire.NcclOperation) { o.Function = 7 },
		"type":             func(o *wire.NcclOperation) { o.Type = 12 },
		"reduction":        func(o *wire.NcclOperation) { o.Op = 5 },
		"peer":             func(o *wire.NcclOperation) { o.Function, o.Peer = wire.NcclFunctionSend, 2 },
	} {
		bad := good
		change(&bad)
		r, _, _ := c.ncclAnswer(c.must(wire.OpNcclGroup, groupOf(good, bad)))
		if r != nccl.InvalidArgument {
			t.Errorf("%s: %v", name, r)
		}
	}
	f.mu.Lock()
	if len(f.groups) != 0 {
		t.Errorf("the library was given %v", f.groups)
	}
	f.mu.Unlock()
	c.nccl(nccl.Success, wire.OpNcclGroup, groupOf(good))
	c.nccl(nccl.Success, wire.OpNcclEnd, endOf(1, wire.NcclEndFinalize))
	c.nccl(nccl.Success, wire.OpNcclEnd, endOf(1, wire.NcclEndDestroy))
	c.nccl(nccl.InvalidArgument, wire.OpNcclEnd, endOf(1, wire.NcclEndDestroy))
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := strings.Join(f.ended, " "); got != "finalize destroy" {
		t.Errorf("the library ended by %q", got)
	}
}

// A call without an answer is made before the next command is carried out, and what is wrong with it is the
// communicator's error from then on.
func TestCollectivesWithoutAnswer(t *testing.T) {
	f := newFakeNCCL()
	close(f.start)
	c := connect(t, with(f))
	c.nccl(nccl.Success, wire.OpNcclOpen, words(0))
	c.nccl(nccl.Success, wire.OpNcclInit, initOf(1, 2, 0))
	a, s := c.alloc(4096), c.stream(0)
	sum := wire.NcclOperation{Comm: 1, Send: a, Recv: a, Count: 16, Stream: s, Type: uint32(nccl.Float32)}
	made := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.groups)
	}
	first := c.start(7, wire.OpNcclGroup, 0, groupOf(sum), nil)
	until(t, "the first call", func() bool { return made() == 1 })
	c.send(wire.OpNcclGroup, groupOf(sum)) // the communicator's thread is in the first
	behind := c.start(8, wire.OpNcclState, 0, words(1), nil)
	c.unanswered(behind)
	close(f.enqueue)
	c.await(first)
	c.await(behind)
	if n := made(); n != 2 {
		t.Fatalf("%d calls were made, want 2", n)
	}
	c.send(wire.OpNcclGroup, groupOf(sum, sum))
	c.must(wire.OpNcclState, words(1))
	if n := made(); n != 3 {
		t.Fatalf("%d calls were made, want 3", n)
	}
	bad := sum
	bad.Count = 1 << 20
	c.send(wire.OpNcclGroup, groupOf(bad))
	r, state, text := c.ncclAnswer(c.must(wire.OpNcclState, words(1)))
	if r != nccl.Success || nccl.Result(state) != nccl.InvalidArgument || !strings.Contains(text, "a buffer does not") {
		t.Errorf("the state is %v, %d, %q", r, state, text)
	}
	if later := c.nccl(nccl.InvalidArgument, wire.OpNcclGroup, groupOf(sum)); later != text {
		t.Errorf("a later call says %q, and the state %q", later, text)
	}
	c.send(wire.OpNcclGroup, groupOf(sum))
	other := sum
	other.Comm = 5
	c.send(wire.OpNcclGroup, groupOf(other)) // there is none: nothing to keep it at
	c.must(cuda.OpCuStreamDestroy_v2, words(s))
	if n := made(); n != 3 {
		t.Errorf("%d calls were made after a failure, want 3", n)
	}
}

// Without a library the client is told why.
func TestCollectivesAreNotOffered(t *testing.T) {
	c := connect(t, func(cfg *Config) { cfg.NoNCCL = "not here" })
	if text := c.nccl(nccl.InvalidUsage, wire.OpNcclOpen, words(0)); text != "not here" {
		t.Errorf("it says %q", text)
	}
	c.nccl(nccl.InvalidUsage, wire.OpNcclInit, initOf(1, 1, 0))
	reply, _, ok := wire.View[wire.NcclID](c.must(wire.OpNcclUniqueID, words(0)))
	if !ok || nccl.Result(reply.Result) != nccl.InvalidUsage {
		t.Error("an id was made")
	}
}

// What no client of scuda's sends ends the session.
func TestHostileCollectives(t *testing.T) {
	const answer = wire.CommandAnswer
	for name, x := range map[string]struct {
		op      uint16
		flags   transport.CommandFlags
		payload []byte
	}{
		"without an answer":       {wire.OpNcclOpen, 0, words(0)},
		"an init without answer":  {wire.OpNcclInit, 0, initOf(1, 1, 0)},
		"an end without answer":   {wire.OpNcclEnd, 0, endOf(1, 0)},
		"a state without answer":  {wire.OpNcclState, 0, words(1)},
		"an id without answer":    {wire.OpNcclUniqueID, 0, words(0)},
		"settings not there":      {wire.OpNcclOpen, answer, openOf(1, 5, "")},
		"settings without an end": {wire.OpNcclOpen, answer, openOf(1, 8, "NCCL_A=1")},
		"settings of more":        {wire.OpNcclOpen, answer, openOf(2, 8, "NCCL_A=\x00")},
		"many settings":           {wire.OpNcclOpen, answer, openOf(0, 1<<30, "")},
		"an empty init":           {wire.OpNcclInit, answer, words(0)},
		"an init without ids":     {wire.OpNcclInit, answer, initWith(wire.NcclInit{Comm: 1, Ranks: 1})},
		"an init of many ids":     {wire.OpNcclInit, answer, initWith(wire.NcclInit{Comm: 1, Ranks: 1, Ids: 1 << 31})},
		"an id that is cut off":   {wire.OpNcclInit, answer, initOf(1, 1, 0)[:100]},
		"no configuration":        {wire.OpNcclInit, answer, initOf(1, 1, 0)[:160]},
		"a name that is cut off": {wire.OpNcclInit, answer, initWith(wire.NcclInit{Comm: 1, Ranks: 1, Ids: 1},
			make([]byte, nccl.IDBytes), configOf(wire.NcclConfig{NameBytes: 9}), make([]byte, 8))},
		"a long name": {wire.OpNcclInit, answer, initWith(wire.NcclInit{Comm: 1, Ranks: 1, Ids: 1},
			make([]byte, nccl.IDBytes), configOf(wire.NcclConfig{NameBytes: 257}), make([]byte, 257))},
		"a network": {wire.OpNcclInit, answer, initWith(wire.NcclInit{Comm: 1, Ranks: 1, Ids: 1},
			make([]byte, nccl.IDBytes), configOf(wire.NcclConfig{Given: 1, Net: 3}))},
		"a split without answer":  {wire.OpNcclSplit, 0, splitOf(wire.NcclSplit{Comm: 1, Made: 2})},
		"a split into 0":          {wire.OpNcclSplit, answer, splitOf(wire.NcclSplit{Comm: 1})},
		"a split of a verb":       {wire.OpNcclSplit, answer, splitOf(wire.NcclSplit{Comm: 1, Made: 2, Verb: 3})},
		"a split without many":    {wire.OpNcclSplit, answer, splitOf(wire.NcclSplit{Comm: 1, Made: 2, Excluded: 1 << 30})},
		"a split without one":     {wire.OpNcclSplit, answer, splitOf(wire.NcclSplit{Comm: 1, Made: 2, Excluded: 1})},
		"a reduction unanswered":  {wire.OpNcclReduction, 0, wire.Bytes(&wire.NcclReduction{Comm: 1})},
		"a reduction elsewhere":   {wire.OpNcclReduction, answer, wire.Bytes(&wire.NcclReduction{Comm: 1, Residence: 2})},
		"an end of a reduction":   {wire.OpNcclReductionEnd, 0, words(1, 5)},
		"communicator 0":          {wire.OpNcclInit, answer, initOf(0, 1, 0)},
		"an empty group":          {wire.OpNcclGroup, answer, groupOf()},
		"a group that is cut off": {wire.OpNcclGroup, answer, words(2)},
		"a group of many":         {wire.OpNcclGroup, answer, words(wire.MaxNcclOperations + 1)},
		"a verb":                  {wire.OpNcclEnd, answer, endOf(1, 3)},
		"nothing behind nothing":  {wire.OpNcclBehind, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeNCCL()
			c := connect(t, with(f))
			c.nccl(nccl.Success, wire.OpNcclOpen, words(0))
			c.write(frame(c.command(0, x.op, x.flags, x.payload)))
			if err := c.wait(); !errors.Is(err, ErrProtocol) {
				t.Fatalf("ended with %v, want a protocol error", err)
			}
			<-c.lost
		})
	}
}
