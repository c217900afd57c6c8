package transport

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Descriptors get high numbers once that is asked for, and the reserve gives back what it took.
func TestHighDescriptors(t *testing.T) {
	defer least.Store(0)
	low, err := duplicate(2)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(low)
	KeepHigh()
	high, err := duplicate(2)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(high)
	if from := int(least.Load()); from <= lowest || high < from {
		t.Errorf("descriptors %d and %d, the numbers begin at %d", low, high, from)
	}
	r := NewReserve()
	kept := r.all
	if len(kept) != reserved {
		t.Fatalf("%d are kept", len(kept))
	}
	if err := unix.Dup3(low, kept[0].fd, unix.O_CLOEXEC); err != nil { // as a program may do
		t.Fatal(err)
	}
	r.Release()
	for i, d := range kept {
		if _, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETFD, 0); (err == nil) != (i == 0) {
			t.Errorf("%d of %d: %v", i, len(kept), err)
		}
	}
	_ = unix.Close(kept[0].fd)
}
