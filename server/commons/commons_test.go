package commons

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// sit gives the seat of a new session of a tenant's.
func sit(t *testing.T, all *Tenants, tenant string) (*Seat, *Visit) {
	t.Helper()
	return sitUnder(t, all, tenant, 0)
}

// sitUnder is sit with a lease.
func sitUnder(t *testing.T, all *Tenants, tenant string, lease uint64) (*Seat, *Visit) {
	t.Helper()
	v, err := all.Enter(tenant, lease)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(v.FD()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(fd, v.Place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, v
}

func TestPlaces(t *testing.T) {
	var all Tenants
	mine, my := sit(t, &all, "a")
	theirs, their := sit(t, &all, "a")
	if unix.Ftruncate(my.FD(), 0) == nil {
		t.Error("the memory can be taken away from those who use it")
	}
	n, p := theirs.Join(7)
	if p.Patience() != Patience || p.Position() != 0 {
		t.Fatalf("patience %v, position %d", p.Patience(), p.Position())
	}
	p.Reach(40)
	if q := mine.Find(uint32(n), 7); q == nil || q.Position() != 40 || !q.Is(7) || q.Is(8) {
		t.Errorf("%v", q)
	}
	if mine.Find(uint32(n), 0) != nil || mine.Find(Places, 7) != nil || mine.Find(uint32(my.Place), 0) != nil {
		t.Error("a place that nobody has")
	}
	their.Leave()
	if mine.Find(uint32(n), 7) != nil {
		t.Error("the place outlives its session")
	}
	if _, again := sit(t, &all, "a"); again.Place != their.Place {
		t.Errorf("place %d is left empty for %d", their.Place, again.Place)
	}
}

// What one tenant's sessions write, another's do not see.
func TestTenantsHaveMemoryOfTheirOwn(t *testing.T) {
	var all Tenants
	a, ofA := sit(t, &all, "a")
	b, _ := sit(t, &all, "b")
	n, p := a.Join(7)
	p.Reach(40)
	b.all.places[n].Reach(1 << 60)
	if b.Find(uint32(n), 7) != nil || p.Position() != 40 {
		t.Error("two tenants share a place")
	}
	ofA.Leave()
	if len(all.by) != 1 {
		t.Errorf("the memory of %d tenants is there, and one has a session", len(all.by))
	}
}

func TestRoom(t *testing.T) {
	var all Tenants
	visits := make([]*Visit, Places)
	for i := range visits {
		var err error
		if visits[i], err = all.Enter("a", 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := all.Enter("a", 0); !errors.Is(err, ErrFull) {
		t.Errorf("more places than there are: %v", err)
	}
	for _, v := range visits {
		v.Leave()
	}
	if len(all.by) != 0 {
		t.Error("the memory is left")
	}
}

func TestOpenRefusesOthers(t *testing.T) {
	for place, name := range map[int]string{0: "small", -1: "before", Places: "behind"} {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if place != 0 {
			if err := unix.Ftruncate(fd, int64(boardBytes)); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := Open(fd, place); err == nil {
			s.Close()
			t.Errorf("%s is a seat", name)
		}
	}
}

// A session has its place again with another supervisor, in the memory that it had, and nobody has it twice.
func TestReturn(t *testing.T) {
	var before, after Tenants
	_, first := sit(t, &before, "a")
	_, second := sit(t, &before, "a")
	again := func(of *Visit) (*Visit, error) {
		fd, err := unix.FcntlInt(uintptr(of.FD()), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		return after.Return("a", fd, of.Place, 0)
	}
	b, err := again(second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again(second); err == nil {
		t.Error("a place is given twice")
	}
	a, err := again(first)
	if err != nil {
		t.Fatal(err)
	}
	first.hall.places[first.Place].memory.Store(5)
	if a.Memory() != 5 || b.Memory() != 0 || len(after.by) != 1 {
		t.Errorf("%d, %d, %d memories", a.Memory(), b.Memory(), len(after.by))
	}
	_, other := sit(t, &before, "b")
	if _, err := again(other); err == nil {
		t.Error("one tenant has two memories")
	}
	if _, third := sit(t, &after, "a"); third.Place != 2 {
		t.Errorf("the next one has place %d", third.Place)
	}
	a.Leave()
	b.Leave()
}
