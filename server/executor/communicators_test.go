package executor

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"scuda.dev/scuda/api/nccl"
	"scuda.dev/scuda/api/wire"
)

func (f *fakeNCCL) Split(parent nccl.Comm, made *nccl.Comm, color, key int32, cfg *nccl.Config) nccl.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = cfg
	if color != nccl.NoColor {
		*made = parent + nccl.Comm(color) + nccl.Comm(key)
	}
	return nccl.Success
}

func (f *fakeNCCL) Shrink(
	parent nccl.Comm, made *nccl.Comm, excluded []int32, abort bool, cfg *nccl.Config,
) nccl.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = cfg
	*made = parent + nccl.Comm(len(excluded))
	if abort {
		f.ended = append(f.ended, "shrink")
	}
	return nccl.Success
}

func (*fakeNCCL) Place(comm nccl.Comm) (rank, ranks int32, r nccl.Result) {
	return 1, int32(comm & 15), nccl.Success
}

func (f *fakeNCCL) MakeReduction(
	_ nccl.Comm, op *nccl.ReduceOp, scalar uint64, _ bool, _ nccl.DataType,
) nccl.Result {
	if scalar == 13 {
		return nccl.InternalError
	}
	*op = nccl.ReduceOp(0x7000 + scalar&0xfff)
	return nccl.Success
}

func (f *fakeNCCL) EndReduction(_ nccl.Comm, op nccl.ReduceOp) nccl.Result {
	return f.end(fmt.Sprintf("reduction %#x", uint32(op)))
}

// splitOf is a split's message; what ranks it leaves out, and its configuration has no name.
func splitOf(m wire.NcclSplit, excluded ...int32) []byte {
	b := append(slices.Clone(wire.Bytes(&m)), configOf(wire.NcclConfig{})...)
	for _, rank := range excluded {
		b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	}
	return b
}

// part asks for a split, and gives the rank in it and how many there are.
func (c *client) part(want nccl.Result, m wire.NcclSplit, excluded ...int32) (rank, ranks int32) {
	c.t.Helper()
	m.Excluded = uint32(len(excluded))
	reply := c.must(wire.OpNcclSplit, splitOf(m, excluded...))
	p, text, ok := wire.View[wire.NcclPart](reply)
	if !ok || len(text) != int(p.TextBytes) || nccl.Result(p.Result) != want {
		c.t.Fatalf("split %+v: %v (%s), want %v", m, nccl.Result(p.Result), text, want)
	}
	return p.Rank, p.Ranks
}

// begun is a client with a communicator 1 of 4 ranks, whose rank 2 it is.
func begun(t *testing.T) (*fakeNCCL, *client) {
	f := newFakeNCCL()
	close(f.start)
	c := connect(t, with(f))
	c.nccl(nccl.Success, wire.OpNcclOpen, words(0))
	c.nccl(nccl.Success, wire.OpNcclInit, initOf(1, 4, 2))
	return f, c
}

// Parts of a communicator are communicators; those that cannot be are refused, and their numbers can be used again.
func TestParts(t *testing.T) {
	f, c := begun(t)
	close(f.enqueue)
	if rank, ranks := c.part(nccl.Success, wire.NcclSplit{Comm: 1, Made: 2, Color: 1, Key: 2}); rank != 1 || ranks != 3 {
		t.Errorf("rank %d of %d", rank, ranks)
	}
	if rank, _ := c.part(nccl.Success, wire.NcclSplit{Comm: 1, Made: 3, Color: nccl.NoColor}); rank != -1 {
		t.Errorf("rank %d without a colour", rank)
	}
	c.part(nccl.InvalidArgument, wire.NcclSplit{Comm: 1, Made: 3, Color: -2})
	c.part(nccl.InvalidArgument, wire.NcclSplit{Comm: 3, Made: 4})                                   // none
	c.part(nccl.InvalidArgument, wire.NcclSplit{Comm: 1, Made: 3}, 0)                                // no shrink
	c.part(nccl.InvalidArgument, wire.NcclSplit{Comm: 1, Made: 3, Verb: wire.NcclSplitShrink})       // none left out
	c.part(nccl.InvalidArgument, wire.NcclSplit{Comm: 1, Made: 3, Verb: wire.NcclSplitShrink}, 2)    // itself
	c.part(nccl.InvalidArgument, wire.NcclSplit{Comm: 1, Made: 3, Verb: wire.NcclSplitShrink}, 0, 0) // twice
	c.part(nccl.InvalidArgument, wire.NcclSplit{Comm: 1, Made: 3, Verb: wire.NcclSplitShrink}, 0, 4) // one too many
	c.part(nccl.InvalidArgument, wire.NcclSplit{Comm: 1, Made: 3, Verb: wire.NcclSplitShrink}, -1)   // below 0
	if _, n := c.part(nccl.Success, wire.NcclSplit{Comm: 1, Made: 3, Verb: wire.NcclSplitShrink}, 3, 0); n != 2 {
		t.Errorf("a shrink without two: %d", n)
	}
	a, s := c.alloc(4096), c.stream(0)
	whole := wire.NcclOperation{Comm: 2, Send: a, Recv: a, Count: 1024, Stream: s, Type: uint32(nccl.Float32)}
	far := whole
	far.Function, far.Peer, far.Count = wire.NcclFunctionSend, 3, 1
	c.nccl(nccl.InvalidArgument, wire.OpNcclGroup, groupOf(far)) // it has 3 ranks, not 4
	c.nccl(nccl.Success, wire.OpNcclGroup, groupOf(whole))
	c.nccl(nccl.Success, wire.OpNcclEnd, endOf(2, wire.NcclEndDestroy))
	c.nccl(nccl.Success, wire.OpNcclEnd, endOf(1, wire.NcclEndDestroy))
}

// A shrink that ends what is under way does not wait for it.
func TestShrinkThatAborts(t *testing.T) {
	f, c := begun(t)
	a, s := c.alloc(4096), c.stream(0)
	sum := wire.NcclOperation{Comm: 1, Send: a, Recv: a, Count: 16, Stream: s, Type: uint32(nccl.Float32)}
	called := c.start(7, wire.OpNcclGroup, 0, groupOf(sum), nil)
	c.part(nccl.Success, wire.NcclSplit{Comm: 1, Made: 2, Verb: wire.NcclSplitShrinkAbort}, 3)
	c.unanswered(called)
	close(f.enqueue)
	c.await(called)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.ended, []string{"shrink"}) {
		t.Errorf("the library ended by %q", f.ended)
	}
}

// A configuration reaches the library as far as it is known and may be; without one there is none.
func TestConfigurations(t *testing.T) {
	f, c := begun(t)
	f.mu.Lock()
	if f.config != nil || len(f.ids) != 1 {
		t.Errorf("it was given %+v, and %d ids", f.config, len(f.ids))
	}
	f.mu.Unlock()
	undefined := [8]int32{}
	for i := range undefined {
		undefined[i] = nccl.Undefined
	}
	for name, x := range map[string]struct {
		change func(m *wire.NcclConfig)
		name   string
		says   string // "": it is taken
	}{
		"nothing":    {change: func(*wire.NcclConfig) {}},
		"sockets":    {change: func(m *wire.NcclConfig) { m.Net = wire.NcclNetSockets }},
		"infiniband": {change: func(m *wire.NcclConfig) { m.Net = wire.NcclNetInfiniband }},
		"a name":     {change: func(*wire.NcclConfig) {}, name: "PG 0"},
		"no text":    {change: func(*wire.NcclConfig) {}, name: "PG\n", says: "plain text"},
		"CTAs":       {change: func(m *wire.NcclConfig) { m.Hints[nccl.MinCTAs], m.Hints[nccl.MaxCTAs] = 2, 4 }},
		"CTAs reversed": {change: func(m *wire.NcclConfig) {
			m.Hints[nccl.MinCTAs], m.Hints[nccl.MaxCTAs] = 4, 2
		}, says: "minCTAs"},
		"many CTAs":      {change: func(m *wire.NcclConfig) { m.Hints[nccl.MaxCTAs] = 65 }, says: "maxCTAs"},
		"a large share":  {change: func(m *wire.NcclConfig) { m.Hints[nccl.SplitShare] = 2 }, says: "splitShare"},
		"large clusters": {change: func(m *wire.NcclConfig) { m.Hints[nccl.ClusterSize] = -1 }, says: "cgaClusterSize"},
	} {
		m := wire.NcclConfig{Given: 1, Hints: undefined, NameBytes: uint32(len(x.name))}
		x.change(&m)
		message := initWith(wire.NcclInit{Comm: 9, Ranks: 4, Rank: 1, Ids: 2}, make([]byte, 2*nccl.IDBytes), configOf(m),
			[]byte(x.name))
		if x.says != "" {
			if text := c.nccl(nccl.InvalidArgument, wire.OpNcclInit, message); !strings.Contains(text, x.says) {
				t.Errorf("%s: %q", name, text)
			}
			continue
		}
		c.nccl(nccl.Success, wire.OpNcclInit, message)
		c.nccl(nccl.Success, wire.OpNcclEnd, endOf(9, wire.NcclEndDestroy))
		want := map[uint32]string{wire.NcclNetSockets: "Socket", wire.NcclNetInfiniband: "IB"}[m.Net]
		f.mu.Lock()
		if f.config == nil || *f.config != (nccl.Config{Hints: m.Hints, Net: want, Name: x.name}) || len(f.ids) != 2 {
			t.Errorf("%s: the library was given %+v", name, f.config)
		}
		f.mu.Unlock()
	}
	c.nccl(nccl.InvalidArgument, wire.OpNcclInit, initWith(wire.NcclInit{Comm: 9, Ranks: 1, Ids: 2},
		make([]byte, 2*nccl.IDBytes), configOf(wire.NcclConfig{})))
}

// A reduction of the program's own has a number of the server's, is its communicator's alone, and ends.
func TestOwnReductions(t *testing.T) {
	f, c := begun(t)
	close(f.enqueue)
	a, s := c.alloc(4096), c.stream(0)
	made := func(want nccl.Result, m wire.NcclReduction) uint32 {
		r, number, text := c.ncclAnswer(c.must(wire.OpNcclReduction, wire.Bytes(&m)))
		if r != want {
			t.Fatalf("%+v: %v (%s), want %v", m, r, text, want)
		}
		return number
	}
	use := func(want nccl.Result, comm uint64, op uint32) {
		c.nccl(want, wire.OpNcclGroup, groupOf(wire.NcclOperation{Comm: comm, Send: a, Recv: a, Count: 4, Stream: s,
			Type: uint32(nccl.Float32), Op: op}))
	}
	half := wire.NcclReduction{Comm: 1, Scalar: 0x3f000000, Type: uint32(nccl.Float32), Residence: wire.NcclScalarHost}
	first, second := made(nccl.Success, half), made(nccl.Success, half)
	if first != nccl.FirstReduction || second != first+1 {
		t.Errorf("reductions %d and %d", first, second)
	}
	use(nccl.Success, 1, second)
	c.part(nccl.Success, wire.NcclSplit{Comm: 1, Made: 2, Color: 1})
	use(nccl.InvalidArgument, 2, second)
	end := wire.Bytes(&wire.NcclReductionEnd{Comm: 1, Reduction: first})
	c.nccl(nccl.Success, wire.OpNcclReductionEnd, end)
	c.nccl(nccl.InvalidArgument, wire.OpNcclReductionEnd, end)
	use(nccl.InvalidArgument, 1, first)
	onDevice := wire.NcclReduction{Comm: 1, Scalar: a, Type: uint32(nccl.Float32)}
	if again := made(nccl.Success, onDevice); again != first {
		t.Errorf("the number after one has ended is %d", again)
	}
	onDevice.Scalar = a + 4094
	made(nccl.InvalidArgument, onDevice)
	onDevice.Scalar = 0x1234
	made(nccl.InvalidArgument, onDevice)
	half.Type = 12
	made(nccl.InvalidArgument, half)
	half.Type, half.Scalar = uint32(nccl.Int8), 13
	made(nccl.InternalError, half)
	half.Comm = 77
	made(nccl.InvalidArgument, half)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.groups) != 1 || f.groups[0][0].Op != 0x7000 {
		t.Errorf("the library was given %v", f.groups)
	}
}

// A configuration that anybody could have sent is refused or can be given to the library.
func FuzzConfigurations(f *testing.F) {
	f.Add(configOf(wire.NcclConfig{}), 0)
	f.Add(append(configOf(wire.NcclConfig{Given: 1, Net: 2, NameBytes: 4}), "name"...), 0)
	f.Add(configOf(wire.NcclConfig{Given: 1, NameBytes: wire.MaxNcclName + 1}), 8)
	f.Fuzz(func(t *testing.T, rest []byte, between int) {
		between = max(0, min(between, 1<<16))
		cfg, middle, text, err := readConfig(slices.Clone(rest), between)
		if err != nil || cfg == nil {
			return
		}
		if len(middle) != between || len(cfg.Name) > wire.MaxNcclName {
			t.Errorf("%d bytes between, and a name of %d", len(middle), len(cfg.Name))
		}
		if text == "" && (strings.ContainsAny(cfg.Name, "\x00\n") || cfg.Hints[nccl.MaxCTAs] > 64) {
			t.Errorf("it takes %+v", cfg)
		}
	})
}

func openOf(settings, size uint32, list string) []byte {
	return append(slices.Clone(wire.Bytes(&wire.NcclOpen{Settings: settings, SettingBytes: size})), list...)
}

// Of a program's variables the library gets those that may be set, and the client learns which may not.
func TestSettings(t *testing.T) {
	f := newFakeNCCL()
	c := connect(t, with(f))
	list := "NCCL_ALGO=Ring\x00NCCL_NET_PLUGIN=x\x00NCCL_PROTO=/tmp/x\x00NCCL_MIN_NCHANNELS=2\x00"
	r, version, text := c.ncclAnswer(c.must(wire.OpNcclOpen, openOf(4, uint32(len(list)), list)))
	if r != nccl.Success || version != 23007 || text != "NCCL_NET_PLUGIN NCCL_PROTO" {
		t.Errorf("%v, version %d, %q", r, version, text)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.settings, []string{"NCCL_ALGO=Ring", "NCCL_MIN_NCHANNELS=2"}) {
		t.Errorf("the library was given %q", f.settings)
	}
}
