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

// Frozen memory stays as it is, and nothing else passes for it.
func TestFrozen(t *testing.T) {
	const size = 8192
	fd, err := Draft("test", size)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := Frozen(fd); !errors.Is(err, ErrSeals) {
		t.Errorf("a draft: %v", err)
	}
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	copy(data, "content")
	if err := Freeze(fd); !errors.Is(err, unix.EBUSY) {
		t.Errorf("frozen while it is mapped for writing: %v", err)
	}
	if err := unix.Munmap(data); err != nil {
		t.Fatal(err)
	}
	if err := Freeze(fd); err != nil {
		t.Fatal(err)
	}
	if n, err := Frozen(fd); n != size || err != nil {
		t.Errorf("frozen: %d, %v", n, err)
	}
	if _, err := unix.Pwrite(fd, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("a write: %v", err)
	}
	if _, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
		t.Errorf("a mapping for writing: %v", err)
	}
	err = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("a hole: %v", err)
	}
}

func TestNotFrozen(t *testing.T) {
	sized, err := New("test", 10)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sized)
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	file, err := unix.Open(t.TempDir(), unix.O_TMPFILE|unix.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if n, err := Fixed(sized); n != 10 || err != nil {
		t.Errorf("of a fixed size: %d, %v", n, err)
	}
	for name, fd := range map[string]int{"sized": sized, "a pipe": pipe[0], "a file": file, "nothing": -1} {
		if _, err := Fixed(fd); fd != sized && !errors.Is(err, ErrSeals) {
			t.Errorf("%s is of a fixed size: %v", name, err)
		}
		if _, err := Frozen(fd); !errors.Is(err, ErrSeals) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
