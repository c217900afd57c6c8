package bulk_test

import (
	"errors"
	"runtime"
	"testing"

	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/bulk"
)

// More than a transfer has, or beside it, is no chunk of it.
func TestInboundExcess(t *testing.T) {
	for _, c := range []struct {
		name   string
		chunks []bulk.Chunk
	}{
		{"behind the end", []bulk.Chunk{{Seq: 1, Offset: 90, Bytes: 11}}},
		{"at a huge offset", []bulk.Chunk{{Seq: 1, Offset: ^uint64(0), Bytes: 2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := bulk.NewInbound()
			in.Begin(1, 100)
			for _, k := range c.chunks {
				in.Arrived(k, &plain{})
			}
			if got, err := in.Take(); !errors.Is(err, bulk.ErrExcess) || !errors.Is(err, bulk.ErrProtocol) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	for _, second := range []bulk.Chunk{{Bytes: 60}, {Offset: 59, Bytes: 41}, {Offset: 30, Bytes: 1}} {
		in := bulk.NewInbound()
		in.Begin(1, 100)
		second.Seq = 1
		in.Arrived(bulk.Chunk{Seq: 1, Bytes: 60}, &plain{})
		in.Arrived(second, &plain{})
		if got, err := in.Take(); !errors.Is(err, bulk.ErrTwice) || !errors.Is(err, bulk.ErrProtocol) {
			t.Errorf("%+v behind the first 60 bytes: %v, %v", second, got, err)
		}
	}
	in := bulk.NewInbound()
	in.Begin(1, 100)
	in.Lend(&plain{})
	if b, err := in.Room(bulk.Chunk{Seq: 1, Offset: 99, Bytes: 2}); !errors.Is(err, bulk.ErrProtocol) {
		t.Errorf("room was given behind the end: %v, %v", b, err)
	}
}

// The end of all transfers wakes those who wait, and says whether a chunk was expected.
func TestInboundFails(t *testing.T) {
	in, gone := bulk.NewInbound(), errors.New("gone")
	done := make(chan error)
	go func() {
		_, err := in.Room(bulk.Chunk{Seq: 1, Bytes: 1})
		done <- err
	}()
	if in.Fail(gone) {
		t.Error("a chunk was expected")
	}
	if err := <-done; !errors.Is(err, gone) {
		t.Error(err)
	}
	in = bulk.NewInbound()
	in.Begin(1, 1)
	if !in.Fail(gone) || in.Fail(gone) {
		t.Error("the end of a transfer is not told, or twice")
	}
	if _, err := in.Take(); !errors.Is(err, gone) {
		t.Error(err)
	}
}

// What is added or posted behind the end is the owner's again, and nothing allocates for a chunk.
func TestOutboundEnds(t *testing.T) {
	var out bulk.Outbound
	o := &owner{}
	tr := &bulk.Transfer{Data: make([]byte, 8), Bytes: 8, Owner: o}
	out.Post(tr)
	if !out.Fail(nil) || out.Fail(nil) || out.Err() == nil || o.sent.Load() != 1 || tr.Err == nil {
		t.Errorf("what was not sent is not told as lost, or not given back: %d, %v", o.sent.Load(), tr.Err)
	}
	if out.Add(tr) {
		t.Error("a transfer was taken behind the end")
	}
	if _, taken := out.Post(tr); !taken || o.sent.Load() != 2 {
		t.Error("memory of a chunk behind the end is kept")
	}
}

// broken is a fallback whose connection breaks within each piece.
type broken struct {
	immediate
	err error
}

func (b *broken) Send(bulk.Piece, bulk.Region) error { return b.err }

// The owner of a transfer that a fallback broke off knows of it as soon as the memory is its own again.
func TestOutboundBreaks(t *testing.T) {
	var out bulk.Outbound
	gone, o := errors.New("gone"), &owner{}
	tr := &bulk.Transfer{Data: make([]byte, 8), Owner: o}
	out.Fallback()
	out.Add(tr)
	if err := out.Feed(&broken{err: gone}); !errors.Is(err, gone) {
		t.Error(err)
	}
	if o.sent.Load() != 1 || !errors.Is(tr.Err, gone) {
		t.Errorf("the owner was told %d times, of %v", o.sent.Load(), tr.Err)
	}
}

// immediate is a preferred sender that is through with a piece at once.
type immediate struct{ out *bulk.Outbound }

func (i *immediate) State() bulk.State                      { return bulk.Up }
func (i *immediate) ChunkBytes() int                        { return piece }
func (i *immediate) Register([]byte) (bulk.Region, error)   { return nil, nil }
func (i *immediate) Send(p bulk.Piece, _ bulk.Region) error { i.out.Settled(p, true); return nil }

// keeping is a preferred sender that is never through with a piece.
type keeping struct {
	immediate
	got chan bulk.Piece
}

func (k *keeping) Send(p bulk.Piece, _ bulk.Region) error { k.got <- p; return nil }

// What the preferred sender still has when it is closed is the owner's again, once, whatever it says later.
func TestOutboundAbandons(t *testing.T) {
	var out bulk.Outbound
	k := &keeping{got: make(chan bulk.Piece)}
	out.Prefer(k)
	done := make(chan struct{})
	go func() { defer close(done); out.FeedPreferred() }()
	o := &owner{}
	if !out.Add(&bulk.Transfer{Data: make([]byte, 3*piece), Owner: o}) {
		t.Fatal("a transfer was not taken")
	}
	first := <-k.got
	for out.Pieces() < 2 {
		runtime.Gosched()
	}
	if !out.Fail(nil) {
		t.Error("the end loses nothing")
	}
	second := <-k.got
	<-done
	if n := o.sent.Load(); n != 0 || out.Pieces() != 2 {
		t.Errorf("the owner was told %d times while the sender has %d pieces", n, out.Pieces())
	}
	out.Abandon()
	out.Settled(first, false)
	out.Settled(second, true)
	if n := o.sent.Load(); n != 1 || out.Pieces() != 0 {
		t.Errorf("the owner was told %d times; the sender has %d pieces", n, out.Pieces())
	}
}

func TestChunksAllocateNothing(t *testing.T) {
	var out bulk.Outbound
	out.Prefer(&immediate{&out})
	o := &owner{}
	var tr bulk.Transfer
	data := make([]byte, piece)
	if n := testing.AllocsPerRun(100, func() {
		tr = bulk.Transfer{Data: data, Bytes: piece, Direct: true, Owner: o}
		out.Post(&tr)
	}); n != 0 {
		t.Errorf("a chunk of the preferred sender allocates %v times", n)
	}
	in := bulk.NewInbound()
	b := &plain{}
	if n := testing.AllocsPerRun(100, func() {
		in.Begin(1, piece)
		in.Lend(b)
		got, _ := in.Room(bulk.Chunk{Seq: 1, Bytes: piece})
		in.Arrived(bulk.Chunk{Seq: 1, Bytes: piece}, got)
		_, _ = in.Take()
		in.End(func(bulk.Buffer) {})
	}); n != 0 {
		t.Errorf("an arriving chunk allocates %v times", n)
	}
}

// copying is a fallback that keeps pieces, and has copies of them as soon as it is asked for.
type copying struct {
	immediate
	kept   []transport.Loan
	copied int
	second chan struct{}
	end    chan error
}

func (c *copying) Keeps() bool { return true }
func (c *copying) Keep(_ bulk.Piece, l transport.Loan) error {
	c.kept = append(c.kept, l)
	if len(c.kept) == 2 {
		c.second <- struct{}{}
		return <-c.end
	}
	return nil
}

func (c *copying) Copy() {
	for ; c.copied < len(c.kept); c.copied++ {
		c.kept[c.copied].Copied()
	}
}

func (c *copying) Abandon() {
	for _, l := range c.kept {
		l.Settled(false)
	}
}

// Memory of which there is a copy is its owner's again, once; but the copy counts as under way until it has arrived.
func TestOutboundCopies(t *testing.T) {
	var out bulk.Outbound
	o := []*owner{{}, {}}
	gone := errors.New("gone")
	c := &copying{second: make(chan struct{}), end: make(chan error)}
	out.Fallback()
	fed := make(chan error)
	go func() { fed <- out.Feed(c) }()
	var tr []*bulk.Transfer
	for _, o := range o {
		tr = append(tr, &bulk.Transfer{Data: make([]byte, 8), Owner: o})
	}
	out.Add(tr[0])
	for o[0].sent.Load() == 0 {
		runtime.Gosched()
	}
	out.Add(tr[1])
	<-c.second
	if !out.Fail(gone) {
		t.Error("a copy that has not arrived is not told as lost")
	}
	c.end <- gone
	if err := <-fed; !errors.Is(err, gone) {
		t.Error(err)
	}
	for i, want := range []error{nil, gone} {
		if o[i].sent.Load() != 1 || !errors.Is(tr[i].Err, want) {
			t.Errorf("the owner of transfer %d was told %d times, of %v", i, o[i].sent.Load(), tr[i].Err)
		}
	}
}
