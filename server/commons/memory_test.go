package commons

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain makes the test binary a worker that books memory, byte by byte, for as long as it gets some.
func TestMain(m *testing.M) {
	var place int
	var limit uint64
	if n, _ := fmt.Sscan(os.Getenv("SCUDA_TEST_BOOK"), &place, &limit); n < 2 {
		os.Exit(m.Run())
	}
	s, err := Open(3, place)
	if err != nil {
		panic(err)
	}
	has := uint64(0)
	for ok := true; ok; has++ {
		_, ok = s.Book(has, 1, limit)
	}
}

// Processes that book at the same time get together what there is: no byte more, and no byte less.
func TestBookingsOfProcesses(t *testing.T) {
	for range 5 {
		bookTogether(t)
	}
}

func bookTogether(t *testing.T) {
	const limit, processes = 20_000, 4
	var all Tenants
	visits := make([]*Visit, processes)
	workers := make([]*exec.Cmd, processes)
	for i := range visits {
		var err error
		if visits[i], err = all.Enter("a", 0); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Dup(visits[i].FD())
		if err != nil {
			t.Fatal(err)
		}
		w := exec.Command(os.Args[0])
		w.Env = append(os.Environ(), fmt.Sprintf("SCUDA_TEST_BOOK=%d %d", visits[i].Place, limit))
		w.ExtraFiles = []*os.File{os.NewFile(uintptr(fd), "commons")}
		w.Stderr = os.Stderr
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		w.ExtraFiles[0].Close()
		workers[i] = w
	}
	for _, w := range workers {
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	}
	if got := all.Memory()["a"]; got != limit {
		t.Errorf("%d bytes are booked, the limit is %d", got, limit)
	}
	for i, v := range visits {
		before := all.Memory()["a"]
		has := v.hall.places[v.Place].memory.Load()
		v.Leave()
		if got := all.Memory()["a"]; got != before-has {
			t.Errorf("worker %d ended, and %d bytes of %d are booked", i, got, before)
		}
	}
}

func TestBook(t *testing.T) {
	var all Tenants
	a, _ := sit(t, &all, "a")
	b, _ := sit(t, &all, "a")
	other, _ := sit(t, &all, "b")
	other.Has(1 << 40)
	for _, c := range []struct {
		s                *Seat
		has, more        uint64
		ok               bool
		others, together uint64
	}{
		{a, 0, 60, true, 0, 60}, {b, 0, 41, false, 60, 60}, {b, 0, 40, true, 60, 100}, {a, 60, 1, false, 40, 100},
		{a, 60, math.MaxUint64, false, 40, 100}, {a, 10, 0, true, 40, 50}, {a, 70, 0, false, 40, 110},
		{b, 0, 0, true, 70, 70},
	} {
		others, ok := c.s.Book(c.has, c.more, 100)
		if got := all.Memory()["a"]; ok != c.ok || others != c.others || got != c.together {
			t.Errorf("%d and %d more: %v beside %d, %d together", c.has, c.more, ok, others, got)
		}
	}
	// what a worker that was taken over writes is added up without an overflow
	a.Has(math.MaxUint64)
	if _, ok := b.Book(0, 1, math.MaxInt64); ok || b.Others() != math.MaxInt64 {
		t.Errorf("%d beside it", b.Others())
	}
}

// A session gets what both its lease and its tenant leave.
func TestBookOfALease(t *testing.T) {
	var all Tenants
	seat := func(lease uint64) *Seat {
		t.Helper()
		s, _ := sitUnder(t, &all, "a", lease)
		return s
	}
	one, two, other, none := seat(7), seat(7), seat(8), seat(0)
	for _, s := range []*Seat{one, two} {
		if limit := s.Bound(100, 40); limit != 40 {
			t.Errorf("the limit is %d", limit)
		}
	}
	if other.Bound(100, 0) != 100 || none.Bound(0, 0) != 0 || other.Bound(100, 200) != 100 {
		t.Error("other limits")
	}
	for i, c := range []struct {
		s                *Seat
		has, more, limit uint64
		others           uint64
		ok               bool
	}{
		{one, 0, 30, 40, 0, true},
		{two, 0, 11, 40, 30, false}, // of the lease, 10 are left
		{two, 0, 10, 40, 30, true},
		{other, 0, 60, 100, 40, true}, // of the tenant nothing is left now
		{two, 5, 5, 40, 35, false},    // those that were given back have gone: 5 of the tenant's would be
		{other, 40, 0, 100, 35, true},
		{two, 5, 5, 40, 30, true},
		{one, 0, 31, 40, 10, false},
	} {
		if i == 4 {
			two.Has(5)
			other.Has(65)
		}
		others, ok := c.s.Book(c.has, c.more, c.limit)
		if others != c.others || ok != c.ok {
			t.Errorf("%d: %d beside it, %v", i, others, ok)
		}
	}
}
