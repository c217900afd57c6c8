package bulk_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"scuda.dev/scuda/transport/bulk"
	"scuda.dev/scuda/transport/bulk/bulktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	piece    = 64 // bytes of a chunk
	patience = 2 * time.Minute
)

// network is a path in memory, some streams, and faults of the path: after so many arrivals it breaks and heals by
// turns.
type network struct {
	out     bulk.Outbound
	path    *bulktest.Path
	cfg     bulktest.PathConfig
	streams []*bulktest.Stream
	arrived atomic.Int64 // chunks
	faults  []int
	over    atomic.Bool // all is there

	anyOrder bool // pieces come in
	errs     chan error
	wg       sync.WaitGroup
}

// ordered is a stream on which no piece may come behind one of a later command.
type ordered struct {
	*bulktest.Stream
	n    *network
	last uint64
}

func (o *ordered) Send(p bulk.Piece, from bulk.Region) error {
	if p.Transfer.Seq < o.last && !o.n.anyOrder {
		o.n.errs <- fmt.Errorf("a piece of %d behind one of %d", p.Transfer.Seq, o.last)
	}
	o.last = p.Transfer.Seq
	return o.Stream.Send(p, from)
}

func (n *network) start(to bulk.Receiver, streams int) {
	n.errs = make(chan error, 1<<10)
	n.out.CutFrom(piece)
	n.cfg.To, n.cfg.From = to, &n.out
	n.path = bulktest.NewPath(&n.cfg)
	for range streams {
		s := bulktest.NewStream(to, 2)
		n.streams = append(n.streams, s)
		n.out.Fallback()
	}
	for _, s := range n.streams {
		n.wg.Go(func() { _ = n.out.Feed(&ordered{Stream: s, n: n}) })
		n.wg.Go(func() {
			if err := s.Receive(); !errors.Is(err, bulktest.ErrBroken) {
				n.errs <- err
			}
		})
	}
	n.out.Prefer(n.path)
	if err := n.path.Heal(); err != nil {
		n.errs <- err
	}
	n.wg.Go(n.out.FeedPreferred)
	n.wg.Go(func() {
		if err := n.path.Deliver(); err != nil {
			n.errs <- err
		}
	})
	n.wg.Go(func() {
		at := int64(0)
		for i, d := range n.faults {
			for at += int64(d); n.arrived.Load() < at && !n.over.Load(); {
				runtime.Gosched()
			}
			do := n.path.Break
			if i%2 == 1 {
				do = n.path.Heal
			}
			if err := do(); err != nil {
				n.errs <- fmt.Errorf("fault %d: %w", i, err)
			}
		}
	})
}

func (n *network) stop(t *rapid.T) {
	n.over.Store(true)
	n.path.Close()
	if n.out.Fail(errors.New("over")) {
		t.Error("bytes are said to be lost, and all have arrived")
	}
	n.out.Abandon()
	for _, s := range n.streams {
		s.Break(nil)
	}
	n.wg.Wait()
	select {
	case err := <-n.errs:
		t.Error(err)
	default:
	}
	if r := n.cfg.Regions.Load(); r != 0 {
		t.Errorf("%d regions stay registered", r)
	}
	if p := n.out.Pieces(); p != 0 {
		t.Errorf("the path has %d pieces", p)
	}
}

// within fails a run that does not end. It says where everybody stands.
func within(t *rapid.T, f func()) {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		buf := make([]byte, 1<<20)
		panic(fmt.Sprintf("no end:\n%s", buf[:runtime.Stack(buf, true)]))
	}
}

// owner counts how often a transfer's memory was given back.
type owner struct{ sent atomic.Int32 }

func (o *owner) Sent() { o.sent.Add(1) }

// account is the memory of a transfer where it arrives, and how often each byte came.
type account struct {
	mu    sync.Mutex
	mem   []byte
	times []int
}

func newAccount(n int) *account { return &account{mem: make([]byte, n), times: make([]int, n)} }

func (a *account) note(c bulk.Chunk) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range int(c.Bytes) {
		a.times[int(c.Offset)+i]++
	}
}

func (a *account) check(t *rapid.T, what string, want []byte) {
	for i, k := range a.times {
		if k != 1 || a.mem[i] != want[i] {
			t.Fatalf("%s: byte %d of %d came %d times and is %d, not %d", what, i, len(want), k, a.mem[i], want[i])
		}
	}
}

// plain is memory that is lent for chunks of streams.
type plain struct{ mem [piece]byte }

func (p *plain) Bytes() []byte { return p.mem[:] }

func some(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// counting counts what an Inbound is told.
type counting struct {
	*bulk.Inbound
	n *network
}

func (c counting) Arrived(k bulk.Chunk, b bulk.Buffer) {
	c.n.arrived.Add(1)
	c.Inbound.Arrived(k, b)
}

// Whole transfers, as of uploads: the receiver takes one after the other, with little memory, while the path comes and
// goes. Every byte arrives once, all memory is given back once, and nobody waits for ever.
func TestUploads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 30*piece), 1, 8).Draw(t, "sizes")
		refused := rapid.SliceOfN(rapid.Bool(), len(sizes), len(sizes)).Draw(t, "cannot be registered")
		n := &network{cfg: bulktest.PathConfig{
			Chunk: piece, Depth: rapid.IntRange(1, 8).Draw(t, "depth"), Slots: rapid.IntRange(1, 8).Draw(t, "slots"),
		},
			faults: rapid.SliceOfN(rapid.IntRange(0, 12), 0, 12).Draw(t, "faults")}
		holds := rapid.IntRange(0, 2).Draw(t, "buffers that are held back")
		streams := rapid.IntRange(1, 3).Draw(t, "streams")
		var data [][]byte
		var owners []*owner
		for i, size := range sizes {
			data, owners = append(data, some(size, uint64(i))), append(owners, &owner{})
		}
		n.cfg.Registers = func(b []byte) bool {
			for i := range data {
				if &b[0] == &data[i][0] {
					return !refused[i]
				}
			}
			return false
		}
		in := bulk.NewInbound()
		n.start(counting{in, n}, streams)
		for range streams {
			in.Stream()
		}
		got := make([]*account, len(sizes))
		within(t, func() {
			go func() {
				for i := range data {
					n.out.Add(&bulk.Transfer{Seq: uint64(100 * i), Data: data[i], Owner: owners[i]})
				}
			}()
			for i := range data {
				got[i] = newAccount(sizes[i])
				receive(t, in, n.path, uint64(100*i), got[i], holds)
			}
			for _, o := range owners {
				for o.sent.Load() == 0 {
					runtime.Gosched()
				}
			}
		})
		n.stop(t)
		for i := range data {
			got[i].check(t, fmt.Sprintf("transfer %d", i), data[i])
			if k := owners[i].sent.Load(); k != 1 {
				t.Errorf("transfer %d was given back %d times", i, k)
			}
		}
	})
}

// receive takes a transfer as the server does: some buffers stay in use for a while.
func receive(t *rapid.T, in *bulk.Inbound, path *bulktest.Path, seq uint64, to *account, holds int) {
	var held []bulk.Buffer
	lent := 0
	free := func(b bulk.Buffer) {
		if s, ok := b.(*bulktest.Slot); ok {
			s.Release()
		}
	}
	in.Begin(seq, uint64(len(to.mem)))
	for left := uint64(len(to.mem)); left > 0; {
		for in.Wants(lent, path.State()) {
			in.Lend(&plain{})
			lent++
		}
		got, err := in.Take()
		if err != nil {
			t.Error(err)
			return
		}
		for _, a := range got {
			if _, ok := a.Buffer.(*plain); ok {
				lent--
			}
			left -= uint64(a.Bytes)
			to.note(a.Chunk)
			copy(a.In(to.mem), a.Buffer.Bytes())
			held = append(held, a.Buffer)
		}
		if len(got) == 0 {
			if runtime.Gosched(); len(held) > 0 { // the last ones would never leave otherwise
				free(held[0])
				held = held[1:]
			}
		}
		for len(held) > holds {
			free(held[0])
			held = held[1:]
		}
	}
	in.End(func(bulk.Buffer) { lent-- })
	if lent != 0 {
		t.Errorf("%d buffers were lent and neither filled nor given back", lent)
	}
	for _, b := range held {
		free(b)
	}
}

// straight is the receiving side of downloads: every transfer has memory of its own.
type straight struct {
	n        *network
	to       []*account
	arrivals *bulk.Arrivals
}

type place []byte

func (p place) Bytes() []byte { return p }

func (s *straight) Room(c bulk.Chunk) (bulk.Buffer, error) { return place(c.In(s.to[c.ID].mem)), nil }
func (s *straight) Abandoned(bulk.Buffer)                  {}
func (s *straight) Arrived(c bulk.Chunk, _ bulk.Buffer) {
	s.to[c.ID].note(c)
	s.n.arrived.Add(1)
	if err := s.arrivals.Add(c); err != nil {
		s.n.errs <- err
	}
}

// Chunks that become ready one after the other, as of downloads: in memory that the path can read, that only the path
// can read, or that only streams can.
func TestDownloads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 30*piece), 1, 8).Draw(t, "sizes")
		kinds := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 30).Draw(t, "kinds of memory")
		n := &network{cfg: bulktest.PathConfig{Chunk: piece, Depth: rapid.IntRange(1, 8).Draw(t, "depth")},
			faults: rapid.SliceOfN(rapid.IntRange(0, 12), 0, 12).Draw(t, "faults")}
		n.anyOrder = true // nobody waits for a turn
		to := &straight{n: n, arrivals: bulk.NewArrivals()}
		var device []byte // which only the path reads
		var data [][]byte
		for i, size := range sizes {
			data, to.to = append(data, some(size, uint64(i))), append(to.to, newAccount(size))
			device = append(device, data[i]...)
		}
		n.cfg.Window = func(c bulk.Chunk) []byte { return c.In(to.to[c.ID].mem) }
		n.cfg.Read = func(addr uint64, k int) []byte { return device[addr-1 : addr-1+uint64(k)] }
		n.start(to, rapid.IntRange(1, 3).Draw(t, "streams"))
		var owners []*owner
		given := 0 // to owners
		rescue := func() {
			for _, p := range n.out.Stranded() {
				c, o := p.Chunk(), &owner{}
				owners = append(owners, o)
				n.out.Post(&bulk.Transfer{
					Seq: c.Seq, ID: c.ID, Offset: c.Offset, Bytes: p.N, Data: n.cfg.Read(p.Addr(), p.N), Owner: o,
				})
				n.out.Rescued(p)
			}
		}
		within(t, func() {
			chunk, base := 0, 0
			for i, b := range data {
				for off := 0; off < len(b); off += piece {
					rescue()
					k := min(piece, len(b)-off)
					o := &owner{}
					owners = append(owners, o)
					tr := &bulk.Transfer{Seq: uint64(i), ID: uint32(i), Offset: uint64(off), Bytes: k, More: off+k < len(b), Owner: o}
					switch kinds[chunk%len(kinds)] {
					case 0:
						tr.Data = b[off : off+k]
					case 1:
						tr.Data, tr.Direct = b[off:off+k], true
					case 2:
						tr.Addr, tr.Direct = uint64(base+off+1), true
					}
					if direct, taken := n.out.Post(tr); !taken {
						tr.Data = b[off : off+k] // fetched
						if _, taken = n.out.Post(tr); !taken {
							t.Error("memory that everybody reads was not taken")
						}
					} else if direct && !tr.Direct {
						t.Error("the path was given memory that it cannot read")
					}
					chunk++
				}
				base += len(b)
			}
			for i, b := range data {
				for !to.arrivals.Have(uint32(i), uint64(len(b))) {
					rescue()
					runtime.Gosched()
				}
				if !to.arrivals.Await(uint32(i), uint64(len(b))) {
					t.Error("the account was ended")
				}
			}
			for given < len(owners) {
				rescue()
				if owners[given].sent.Load() > 0 {
					given++
				}
			}
		})
		n.stop(t)
		for i := range data {
			to.to[i].check(t, fmt.Sprintf("transfer %d", i), data[i])
		}
		for i, o := range owners {
			if k := o.sent.Load(); k != 1 {
				t.Errorf("chunk %d was given back %d times", i, k)
			}
		}
	})
}

// slow is a preferred sender that keeps the first piece and refuses the second, as one does whose path breaks.
type slow struct {
	bulk.Sender // what it has of others is not called
	kept        chan bulk.Piece
	sends       atomic.Int32
	state       atomic.Int32
}

func (s *slow) State() bulk.State                    { return bulk.State(s.state.Load()) }
func (s *slow) ChunkBytes() int                      { return piece }
func (s *slow) Register([]byte) (bulk.Region, error) { return nil, nil }

func (s *slow) Send(p bulk.Piece, _ bulk.Region) error {
	if s.sends.Add(1) == 1 {
		s.kept <- p
		return nil
	}
	s.state.Store(int32(bulk.Settling))
	return bulk.ErrDown
}

// noting is a fallback that says what it is given.
type noting struct {
	bulk.Sender
	seqs chan uint64
}

func (n noting) Send(p bulk.Piece, _ bulk.Region) error {
	n.seqs <- p.Transfer.Seq
	return nil
}

// A piece that the preferred sender refused does not go by a fallback before one of an earlier command, of which it is
// not known yet that it is lost: the receiver takes the pieces of a stream in turn.
func TestRefusedBehindUnsettled(t *testing.T) {
	var out bulk.Outbound
	out.CutFrom(piece)
	s := &slow{kept: make(chan bulk.Piece, 1)}
	s.state.Store(int32(bulk.Up))
	n := noting{seqs: make(chan uint64, 4)}
	out.Fallback()
	out.Prefer(s)
	out.Add(&bulk.Transfer{Seq: 100, Data: make([]byte, 8)})
	out.Add(&bulk.Transfer{Seq: 200, Data: make([]byte, 8)})
	var wg sync.WaitGroup
	wg.Go(out.FeedPreferred)
	wg.Go(func() { _ = out.Feed(n) })
	lost := <-s.kept
	for s.State() == bulk.Up {
		runtime.Gosched()
	}
	s.kept <- bulk.Piece{}  // it takes no more
	for out.Pieces() != 1 { // the second one is back
		runtime.Gosched()
	}
	s.state.Store(int32(bulk.Down))
	out.Settled(lost, false)
	for i, want := range []uint64{100, 200} {
		if got := <-n.seqs; got != want {
			t.Errorf("piece %d of the fallback is of command %d, want %d", i, got, want)
		}
	}
	out.Fail(errors.New("over"))
	wg.Wait()
}
