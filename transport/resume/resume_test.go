package resume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const window = 256

// end is one end of a stream: what it wrote, and what it has read.
type end struct {
	out          *Out
	in           *In
	wrote, read  []byte
	wire         []byte // what its socket has taken and not yet delivered
	ended, heard bool   // it said farewell; it heard the other's
	direct       bool   // it reads past the buffer where it can
	lent         int    // bytes that it lent and has not got back
	mostKept     int
}

func newEnd() *end { return &end{out: NewOut(window), in: NewIn(64, 64)} }

// write writes some bytes, as many as there is room for.
func (e *end) write(n int) {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((len(e.wrote) + i) * 7 >> 3)
	}
	half := len(b) / 2
	k := e.out.Write([][]byte{b[:half], b[half:]})
	e.wrote = append(e.wrote, b[:k]...)
	e.mostKept = max(e.mostKept, e.out.Kept())
}

// lend lends some bytes, if there is room.
func (e *end) lend(n int) {
	if n == 0 || e.out.Room() < n {
		return
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((len(e.wrote) + i) * 5 >> 2)
	}
	e.lent += n
	e.wrote = append(e.wrote, b...)
	e.out.Lend(b, &loan{e: e, b: b})
	e.mostKept = max(e.mostKept, e.out.Kept())
}

// loan is memory of a lender, who uses it again as soon as it can.
type loan struct {
	e      *end
	b      []byte
	copied bool
}

func (l *loan) Copied() {
	if l.b == nil {
		panic("given back twice")
	}
	l.e.lent -= len(l.b)
	l.copied = true
	clear(l.b)
}

func (l *loan) Settled(bool) {
	if !l.copied {
		l.Copied()
	}
	l.b = nil // so that nothing comes back twice
}

// send gives the socket at most n bytes of what is pending.
func (e *end) send(n int, say bool) (sent int) {
	for n > 0 {
		p := slices.Concat(e.out.Pending(e.in.Count(), say)...)
		p = p[:min(len(p), n)]
		if len(p) == 0 {
			break
		}
		e.wire = append(e.wire, p...)
		e.out.Sent(len(p))
		n, sent = n-len(p), sent+len(p)
	}
	return sent
}

// receive takes at most n bytes of what the peer's socket has taken.
func (e *end) receive(from *end, n int) error {
	b := from.wire[:min(n, len(from.wire))]
	from.wire = from.wire[len(b):]
	for len(b) > 0 {
		if k := min(e.in.Direct(), len(b)); e.direct && k > 0 {
			e.read = append(e.read, b[:k]...)
			e.in.Took(k)
			b = b[k:]
			continue
		}
		k := copy(e.in.Room(), b)
		if k == 0 {
			return errors.New("no room in the buffer, and nothing to read")
		}
		e.in.Received(k)
		b = b[k:]
		if err := e.drain(); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) drain() error {
	into := make([]byte, 37)
	for {
		n, err := e.in.Read(into)
		e.read = append(e.read, into[:n]...)
		switch {
		case errors.Is(err, ErrShort):
			return e.out.Acknowledged(e.in.Peer())
		case errors.Is(err, io.EOF):
			e.heard = true
			return e.out.Acknowledged(e.in.Peer())
		case err != nil:
			return err
		}
	}
}

// cut loses both sockets with what they have not delivered, and goes on at others.
func cut(a, b *end) error {
	a.wire, b.wire = nil, nil
	a.in.Resume()
	b.in.Resume()
	return errors.Join(a.out.Resume(b.in.Count()), b.out.Resume(a.in.Count()))
}

// right says what is wrong between a writer and a reader.
func right(from, to *end) error {
	if !bytes.HasPrefix(from.wrote, to.read) {
		return fmt.Errorf("%d bytes were read that are no prefix of %d written", len(to.read), len(from.wrote))
	}
	if from.out.Lent() != from.lent {
		return fmt.Errorf("%d bytes are lent, and the stream says %d", from.lent, from.out.Lent())
	}
	if from.mostKept > window || from.out.Room() < 0 || from.out.Room() > window {
		return fmt.Errorf("%d bytes were kept, there is room for %d", from.mostKept, from.out.Room())
	}
	if to.heard && (!from.ended || len(to.read) < len(from.wrote)) {
		return errors.New("a farewell came too early")
	}
	return nil
}

// Whatever the network does, what is read is what was written; once it leaves the stream alone, all arrives.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ends := [2]*end{newEnd(), newEnd()}
		ends[0].direct = rapid.Bool().Draw(t, "direct")
		pick := func() (*end, *end) {
			i := rapid.IntRange(0, 1).Draw(t, "end")
			return ends[i], ends[1-i]
		}
		some := func(most int) int { return rapid.IntRange(0, most).Draw(t, "bytes") }
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(*rapid.T) {
				if e, _ := pick(); !e.ended {
					e.write(some(100))
				}
			},
			"lend": func(*rapid.T) {
				if e, _ := pick(); !e.ended {
					e.lend(some(100))
				}
			},
			"copy": func(*rapid.T) { e, _ := pick(); e.out.Copy() },
			"end": func(*rapid.T) {
				e, _ := pick()
				e.out.End()
				e.ended = true
			},
			"send":    func(t *rapid.T) { e, _ := pick(); e.send(some(200), rapid.Bool().Draw(t, "say")) },
			"receive": func(*rapid.T) { e, other := pick(); check(e.receive(other, some(200))) },
			"cut":     func(*rapid.T) { check(cut(ends[0], ends[1])) },
			"": func(*rapid.T) {
				check(right(ends[0], ends[1]))
				check(right(ends[1], ends[0]))
			},
		})
		for _, e := range ends {
			e.out.End()
			e.ended = true
		}
		check(settle(ends[0], ends[1]))
	})
}

// settle lets everything arrive.
func settle(a, b *end) error {
	for more := true; more; {
		more = a.send(1<<20, true)+b.send(1<<20, true)+len(a.wire)+len(b.wire) > 0
		if err := errors.Join(a.receive(b, 1<<20), b.receive(a, 1<<20)); err != nil {
			return err
		}
	}
	for _, p := range [][2]*end{{a, b}, {b, a}} {
		if err := right(p[0], p[1]); err != nil {
			return err
		}
		if !bytes.Equal(p[0].wrote, p[1].read) || p[0].out.Kept()+p[0].lent != 0 || !p[1].heard {
			return fmt.Errorf("%d of %d bytes were read, %d are kept, farewell %v", len(p[1].read), len(p[0].wrote),
				p[0].out.Kept(), p[1].heard)
		}
	}
	return nil
}

// A conversation whose socket breaks behind each of its bytes, in each direction, and again behind each of some later
// ones, ends as one without a break.
func TestCutAtEveryByte(t *testing.T) {
	talk := func(first, second int) (total int, err error) {
		a, b := newEnd(), newEnd()
		b.direct = true
		move := func(from, to *end) error {
			for from.send(1, true) > 0 {
				if total++; total%3 == 0 {
					from.out.Copy()
				}
				if err := to.receive(from, 1); err != nil {
					return err
				}
				if total == first || total == second {
					if err := cut(a, b); err != nil {
						return err
					}
				}
			}
			return nil
		}
		for round := range 5 {
			a.write(40 + 9*round)
			a.lend(30 * (round % 2))
			b.write(20 * (round % 3))
			if err := errors.Join(move(a, b), move(b, a)); err != nil {
				return total, err
			}
		}
		for _, e := range []*end{a, b} {
			e.out.End()
			e.ended = true
		}
		if err := errors.Join(move(a, b), move(b, a)); err != nil {
			return total, err
		}
		return total, settle(a, b)
	}
	all, err := talk(-1, -1)
	if err != nil {
		t.Fatal(err)
	}
	for first := 1; first <= all; first++ {
		for _, later := range []int{1, 3, HeaderSize, HeaderSize + 5, 200} {
			if _, err := talk(first, first+later); err != nil {
				t.Fatalf("cut behind bytes %d and %d: %v", first, first+later, err)
			}
		}
	}
}

// A full window stands still until the peer has said that it received something.
func TestWindow(t *testing.T) {
	a, b := newEnd(), newEnd()
	a.write(window + 100)
	if len(a.wrote) != window || a.out.Room() != 0 {
		t.Fatalf("%d bytes were taken, there is room for %d", len(a.wrote), a.out.Room())
	}
	a.send(1<<20, false)
	if err := b.receive(a, 1<<20); err != nil {
		t.Fatal(err)
	}
	if n := b.send(1<<20, false); n != 0 || a.out.Kept() != window {
		t.Errorf("%d bytes were sent that nobody wanted; %d are kept", n, a.out.Kept())
	}
	b.send(1<<20, true)
	if n := b.send(1<<20, true); n != 0 {
		t.Errorf("the same was said twice, in %d bytes", n)
	}
	if err := a.receive(b, 1<<20); err != nil || a.out.Room() != window {
		t.Errorf("there is room for %d (%v)", a.out.Room(), err)
	}
}

// What was lent comes back when the stream is given up, and not a moment before its last byte has been received.
func TestAbandon(t *testing.T) {
	e := newEnd()
	e.write(10)
	e.lend(20)
	e.lend(30)
	e.send(1<<20, false)
	if err := e.out.Acknowledged(29); err != nil || e.lent != 50 {
		t.Errorf("%d bytes are lent (%v)", e.lent, err)
	}
	if err := e.out.Acknowledged(30); err != nil || e.lent != 30 {
		t.Errorf("%d bytes are lent (%v)", e.lent, err)
	}
	e.out.Abandon()
	if e.lent != 0 || e.out.Pending(0, false) != nil {
		t.Errorf("%d bytes are lent, and something is pending", e.lent)
	}
}

// Copies stand for lent bytes that were sent, until they have been received, and their memory is used again.
func TestCopies(t *testing.T) {
	e, peer := newEnd(), newEnd()
	for round := range 3 {
		e.lend(20)
		e.send(10, false)
		if e.out.Copy(); e.lent != 20 {
			t.Errorf("round %d: %d bytes are lent of 20 that were not sent", round, e.lent)
		}
		e.send(1<<20, false)
		e.lend(30)
		if e.out.Copy(); e.lent != 30 {
			t.Errorf("round %d: %d bytes are lent, 30 were not sent", round, e.lent)
		}
		e.send(1<<20, false)
		if e.out.Copy(); e.lent != 0 || e.out.Kept() != 50 {
			t.Errorf("round %d: %d bytes are lent, %d kept", round, e.lent, e.out.Kept())
		}
		if round == 1 { // the copies are what goes to another socket
			if err := cut(e, peer); err != nil {
				t.Fatal(err)
			}
		}
		e.send(1<<20, false)
		if err := peer.receive(e, 1<<20); err != nil {
			t.Fatal(err)
		}
		peer.send(1<<20, true)
		if err := e.receive(peer, 1<<20); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(e.wrote, peer.read) || e.out.Kept() != 0 {
			t.Errorf("round %d: %d of %d bytes were read, or others; %d are kept", round, len(peer.read), len(e.wrote),
				e.out.Kept())
		}
		if e.out.spares < 50 || e.out.spares > window {
			t.Errorf("round %d: %d bytes wait for further copies", round, e.out.spares)
		}
	}
	e.lend(40)
	e.send(1<<20, false)
	e.out.Copy()
	if e.out.Abandon(); e.lent != 0 {
		t.Errorf("%d bytes are lent behind the end", e.lent)
	}
}

// A peer that says what cannot be is refused, and what was kept stays.
func TestViolations(t *testing.T) {
	record := func(n int, k Kind, received uint64) []byte {
		return AppendHeader(nil, Header{Len: n, Kind: k, Received: received})
	}
	for name, b := range map[string][]byte{
		"no kind":               record(0, 0, 0),
		"an unknown kind":       record(0, 4, 0),
		"bytes without bytes":   record(0, Bytes, 0),
		"too many bytes":        record(MaxRecord+1, Bytes, 0),
		"an account of bytes":   record(1, Received, 0),
		"a farewell of bytes":   record(1, Farewell, 0),
		"bytes behind the end":  append(record(0, Farewell, 0), record(1, Bytes, 0)...),
		"two farewells":         append(record(0, Farewell, 0), record(0, Farewell, 0)...),
		"what was never sent":   record(0, Received, 11),
		"more than can be":      record(0, Received, 1<<64-1),
		"four thousand million": record(1<<32-1, Bytes, 0),
	} {
		e := newEnd()
		e.write(20)
		e.send(HeaderSize+10, false)
		err := e.receive(&end{wire: b}, len(b))
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if e.out.Kept() != 20 {
			t.Errorf("%s: %d bytes are kept", name, e.out.Kept())
		}
	}
	e := newEnd()
	e.write(20)
	e.send(HeaderSize+10, false)
	if err := e.out.Acknowledged(7); err != nil {
		t.Fatal(err)
	}
	for _, position := range []uint64{6, 11, 20, 21} {
		if err := e.out.Resume(position); !errors.Is(err, ErrProtocol) {
			t.Errorf("a peer that has received %d bytes: %v", position, err)
		}
	}
	if err := e.out.Resume(8); err != nil {
		t.Error(err)
	}
	if err := e.out.Acknowledged(9); !errors.Is(err, ErrProtocol) {
		t.Errorf("more than the peer said when it came back: %v", err)
	}
	var epoch Epoch
	for _, c := range []struct {
		next Epoch
		ok   bool
	}{{0, false}, {1, true}, {1, false}, {5, true}, {4, false}} {
		if err := epoch.Admit(c.next); (err == nil) != c.ok {
			t.Errorf("epoch %d: %v", c.next, err)
		}
	}
}

// What comes from a socket may be anything: it is read without more memory than there was, or refused.
func FuzzIn(f *testing.F) {
	good := newEnd()
	good.write(100)
	good.out.End()
	good.send(1<<20, true)
	f.Add(good.wire, 1)
	f.Add(AppendHeader(nil, Header{Kind: Received, Received: 1}), 16)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, 3)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		if step < 1 {
			step = 1
		}
		e := newEnd()
		from := &end{wire: b}
		for len(from.wire) > 0 {
			if err := e.receive(from, step); err != nil {
				if !errors.Is(err, ErrProtocol) {
					t.Fatal(err)
				}
				return
			}
			if e.heard {
				return
			}
		}
		if uint64(len(e.read)) != e.in.Count() || len(e.read) > len(b) {
			t.Errorf("%d bytes were read of %d, %d counted", len(e.read), len(b), e.in.Count())
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	for _, n := range []int{64, 4 << 10, 256 << 10} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			out, in := NewOut(1<<20), NewIn(64<<10, 64<<10)
			data, into := [][]byte{make([]byte, n)}, make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				out.Write(data)
				for at := 0; at < n; {
					for _, p := range out.Pending(0, false) {
						k := 0
						for len(p) > 0 {
							if d := min(in.Direct(), len(p)); d > 0 {
								copy(into[at:], p[:d])
								in.Took(d)
								p, at, k = p[d:], at+d, k+d
								continue
							}
							d := copy(in.Room(), p[:min(len(p), HeaderSize)])
							in.Received(d)
							p, k = p[d:], k+d
							got, _ := in.Read(into[at:])
							at += got
						}
						out.Sent(k)
					}
				}
				if err := out.Acknowledged(in.Count()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
