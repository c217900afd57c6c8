package session

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A launch that faults a page of the ring in is slow, and a page that no launch gets to is memory for nothing.
func TestRingIsPopulatedAheadOfTheProgram(t *testing.T) {
	f := newFront(t, 4<<20)
	if unix.Madvise(f.ring[:unix.Getpagesize()], unix.MADV_POPULATE_WRITE) != nil {
		return // such a kernel leaves it to page faults
	}
	var s sender
	if err := s.takeRing(f.shared); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ end, there uint64 }{
		{100, ringPiece}, {ringPiece, ringPiece}, {ringPiece + 1, 2 * ringPiece}, {1, 2 * ringPiece},
		{1 << 20, 1 << 20}, {9 << 20, 4 << 20}, {10 << 20, 4 << 20},
	} {
		s.populate(c.end)
		if n := present(t, f.ring[:4<<20]); n != c.there {
			t.Errorf("populated up to %d: %d bytes are there, expected %d", c.end, n, c.there)
		}
	}
}

// present says how many bytes of memory are there.
func present(t *testing.T, b []byte) (n uint64) {
	t.Helper()
	page := unix.Getpagesize()
	pages := make([]byte, len(b)/page)
	if _, _, err := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		uintptr(unsafe.Pointer(&pages[0]))); err != 0 {
		t.Fatal(err)
	}
	for _, p := range pages {
		if p&1 != 0 {
			n += uint64(page)
		}
	}
	return n
}
