package liveness

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"scuda.dev/scuda/api/nccl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// madeBy is an id as NCCL makes it: a number, and where it listens.
func madeBy(at string) (id nccl.ID) {
	a := netip.MustParseAddr(at)
	binary.LittleEndian.PutUint64(id[:], 0x1234)
	if a.Is4() {
		binary.LittleEndian.PutUint16(id[familyAt:], inet)
		copy(id[familyAt+4:], a.AsSlice())
	} else {
		binary.LittleEndian.PutUint16(id[familyAt:], inet6)
		copy(id[familyAt+8:], a.AsSlice())
	}
	return id
}

type rank struct {
	*Member
	lost chan int32
}

// join gives a rank that the hub knows.
func join(t *testing.T, h *Hub, p Place, number int32) rank {
	t.Helper()
	lost := make(chan int32, 1)
	m, err := Join(p, number, func(r int32) { lost <- r })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Drop()
		m.Wait()
	})
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		known := false
		for c, s := range h.conns {
			known = known || s != nil && c.RemoteAddr().String() == m.conn.LocalAddr().String()
		}
		h.mu.Unlock()
		if known {
			return rank{m, lost}
		}
		if time.Now().After(end) {
			t.Fatal("the hub does not see a rank")
		}
	}
}

func (r rank) learns(t *testing.T, want int32) {
	t.Helper()
	select {
	case got := <-r.lost:
		if got != want {
			t.Errorf("rank %d learned that %d is lost, want %d", r.rank, got, want)
		}
	case <-time.After(patience):
		t.Errorf("rank %d learned nothing", r.rank)
	}
}

// learnsNothing is called when the rank is not watched any more.
func (r rank) learnsNothing(t *testing.T) {
	t.Helper()
	r.Wait()
	select {
	case got := <-r.lost:
		t.Errorf("rank %d learned that %d is lost", r.rank, got)
	default:
	}
}

func listen(t *testing.T) (*Hub, Place) {
	t.Helper()
	id := madeBy("127.0.0.1")
	h, err := Listen(&id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Drop)
	p, ok := Open(&id)
	if !ok || id != madeBy("127.0.0.1") {
		t.Fatalf("the id was not what NCCL had made, or had no place: %v", ok)
	}
	return h, p
}

// A rank that ends without a word is lost, and all others learn of it, also those that come later.
func TestLost(t *testing.T) {
	h, p := listen(t)
	a, b, c := join(t, h, p, 0), join(t, h, p, 1), join(t, h, p, 2)
	b.Drop()
	a.learns(t, 1)
	c.learns(t, 1)
	b.learnsNothing(t)
	late := join(t, h, p, 3)
	late.learns(t, 1)
}

// Only the group that a rank was in learns that it is lost, whatever the ranks' numbers in the others.
func TestGroups(t *testing.T) {
	h, p := listen(t)
	first, second := p.Split(0, 1), p.Split(0, 2)
	a, b := join(t, h, p, 0), join(t, h, p, 1)
	c, d, e := join(t, h, first, 0), join(t, h, first, 1), join(t, h, second, 0)
	d.Drop()
	c.learns(t, 1)
	join(t, h, first, 2).learns(t, 1)
	late := join(t, h, second, 1)
	h.Close()
	for _, r := range []rank{a, b, e, late} {
		r.learnsNothing(t)
	}
}

// What a hub keeps of lost ranks has a bound; those that are there learn of it all the same.
func TestManyLosses(t *testing.T) {
	h, p := listen(t)
	a, b := join(t, h, p, 0), join(t, h, p, 1)
	h.mu.Lock()
	h.losses = mostJoin
	h.mu.Unlock()
	b.Drop()
	a.learns(t, 1)
	late := join(t, h, p, 2)
	h.Close()
	late.learnsNothing(t)
	if len(h.lost) > 0 {
		t.Errorf("%d groups are kept", len(h.lost))
	}
}

// Parts are the same group where they have the same ranks in the same order, and nowhere else.
func TestParts(t *testing.T) {
	g, other := Place{group: 7}, Place{group: 8}
	if a, b := g.Shrink([]int32{1, 2}), g.Shrink([]int32{2, 1}); a != b {
		t.Errorf("what is left out, in another order: %+v, %+v", a, b)
	}
	seen := map[Place]string{{}: "no part", g: "the whole"}
	for what, x := range map[string]Place{
		"a split": g.Split(0, 0), "a colour": g.Split(0, 1), "the next split": g.Split(1, 0),
		"another's": other.Split(0, 0), "a part's": g.Split(0, 0).Split(0, 0), "a shrink": g.Shrink([]int32{0}),
		"another shrink": g.Shrink([]int32{1}), "a shrink of two": g.Shrink([]int32{0, 1}),
	} {
		if same, ok := seen[x]; ok {
			t.Errorf("%s is %s", what, same)
		}
		seen[x] = what
	}
}

// A rank that says that it has done is no lost one, nor is a hub that ends as it should.
func TestDone(t *testing.T) {
	h, p := listen(t)
	a, b, c := join(t, h, p, 0), join(t, h, p, 1), join(t, h, p, 2)
	b.Leave()
	b.Leave()
	b.learnsNothing(t)
	c.Leave()
	c.learnsNothing(t)
	h.Close()
	a.learnsNothing(t)
}

// Where the hub's process dies, nobody knows which rank that was.
func TestHubIsLost(t *testing.T) {
	h, p := listen(t)
	a := join(t, h, p, 7)
	h.Drop()
	a.learns(t, Unknown)
	if _, err := Join(p, 8, nil); err == nil {
		t.Error("a rank joined a hub that has ended")
	}
}

// Who does not know the secret is nobody, whatever becomes of it.
func TestStranger(t *testing.T) {
	h, p := listen(t)
	a := join(t, h, p, 0)
	for _, first := range [][]byte{nil, make([]byte, joinSize), bytes.Repeat([]byte{1}, 1<<16)} {
		c, err := net.Dial("tcp", p.at.String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(first)
		c.Close()
	}
	a.Leave()
	a.learnsNothing(t)
	h.Close()
}

func TestIDs(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "10.1.2.3", "::1", "fe80::1%3"} {
		a := netip.MustParseAddr(at)
		id := madeBy(a.WithZone("").String())
		if a.Zone() != "" {
			binary.LittleEndian.PutUint32(id[familyAt+24:], 3)
		}
		made, secret := id, newSecret()
		if err := seal(&id, 4321, secret[:]); err != nil {
			t.Fatal(err)
		}
		p, ok := Open(&id)
		if !ok || id != made || p.at != netip.AddrPortFrom(a, 4321) || p.secret != secret {
			t.Errorf("%s: %v, %+v", at, ok, p)
		}
		if _, ok := Open(&id); ok {
			t.Errorf("%s: there is a place where none was written", at)
		}
	}
	none, full := nccl.ID{}, madeBy("127.0.0.1")
	full[127] = 1
	for name, id := range map[string]*nccl.ID{"without an address": &none, "without room": &full} {
		if h, err := Listen(id); !errors.Is(err, ErrSeal) {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
}

// Whatever a client says that an id is, there is an address in it or not, and NCCL gets nothing of ours.
func FuzzOpen(f *testing.F) {
	id := madeBy("::1")
	_ = seal(&id, 1, make([]byte, secretSize))
	f.Add(id[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var id nccl.ID
		copy(id[:], b)
		if p, ok := Open(&id); ok && (!p.at.Addr().IsValid() || [8]byte(id[sealAt:]) == sealMagic) {
			t.Errorf("%+v", p)
		}
	})
}
