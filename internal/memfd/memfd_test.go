package memfd

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNobodyChangesTheSize(t *testing.T) {
	const size = 8192
	fd, err := New("test", size)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, to := range []int64{0, size - 1, size + 1, 1 << 30} {
		if err := unix.Ftruncate(fd, to); !errors.Is(err, unix.EPERM) {
			t.Errorf("a size of %d: %v, want EPERM", to, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("a seal was added: %v", err)
	}
	if n, err := unix.Pwrite(fd, []byte("x"), size-1); n != 1 || err != nil {
		t.Errorf("the last byte cannot be written: %v", err)
	}
}

func TestNoMemory(t *testing.T) {
	if fd, err := New("test", -1); err == nil {
		unix.Close(fd)
		t.Fatal("memory of -1 bytes")
	}
}
