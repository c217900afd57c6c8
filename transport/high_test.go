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
	fds := r.fds
	if len(fds) != reserved {
		t.Fatalf("%d are kept", len(fds))
	}
	r.Release()
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("%d stays open", fd)
		}
	}
}
