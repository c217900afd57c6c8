package order

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestBoard(t *testing.T) {
	mine, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	fd, err := unix.FcntlInt(uintptr(mine.FD), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := Open(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if unix.Ftruncate(mine.FD, 0) == nil {
		t.Error("the memory can be taken away from those who use it")
	}
	n, p, ok := theirs.Claim(7, 100)
	if !ok || p.Patience() != Patience || p.Position() != 0 {
		t.Fatalf("claim: %v, patience %v, position %d", ok, p.Patience(), p.Position())
	}
	p.Reach(40)
	if q := mine.Find(uint32(n), 7); q == nil || q.Position() != 40 || !q.Is(7) || q.Is(8) {
		t.Errorf("%v", q)
	}
	mine.Free(101) // of somebody else
	if mine.Find(uint32(n), 7) == nil {
		t.Error("the place is gone")
	}
	mine.Free(100)
	if mine.Find(uint32(n), 7) != nil || mine.Find(uint32(n), 0) != nil {
		t.Error("the place outlives its session")
	}
	for range Places {
		if _, _, ok := mine.Claim(9, 100); !ok {
			t.Fatal("no room")
		}
	}
	if _, _, ok := mine.Claim(9, 100); ok {
		t.Error("more places than there are")
	}
}

func TestOpenRefusesOthers(t *testing.T) {
	fd, err := unix.MemfdCreate("small", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := Open(fd); err == nil {
		b.Close()
		t.Error("memory of another size is a board")
	}
}
