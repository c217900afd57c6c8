package board

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/internal/memfd"
)

// size is that of the seats, in whole pages.
const size = (int(unsafe.Sizeof(layout{})) + 4095) &^ 4095

// whole is the size of a board's file that has room for the memory of devices.
const whole = int64(size) + Seats*Devices*Room

// New makes a board and gives a descriptor with which other processes can open it.
func New() (*Board, *os.File, error) {
	fd, err := memfd.New("scuda-sim-board", whole)
	if err != nil {
		return nil, nil, fmt.Errorf("the board of the simulated machine: %w", err)
	}
	f := os.NewFile(uintptr(fd), "board")
	b, err := Open(f)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return b, f, nil
}

// Open opens the board in a file. One of [New] stays open, any other may be closed afterwards. A file that is too short
// is made longer.
func Open(f *os.File) (*Board, error) {
	info, err := f.Stat()
	if err == nil && info.Size() < int64(size) {
		err = f.Truncate(int64(size))
	}
	var mem []byte
	if err == nil {
		mem, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, fmt.Errorf("the board of the simulated machine: %w", err)
	}
	b := &Board{seats: (*layout)(unsafe.Pointer(&mem[0])), now: monotonic}
	if info.Size() >= whole {
		b.file = f
	}
	return b, nil
}

// At opens the board of processes that have no server: the one in the file with this name, which is made when it is not
// there; "" is a file in memory that all of the calling user's processes on this machine share.
func At(name string) (*Board, error) {
	if name == "" {
		name = fmt.Sprintf("/dev/shm/scuda-sim-%d-%d", os.Geteuid(), size)
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the board of the simulated machine: %w", err)
	}
	defer f.Close()
	var info unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &info); err != nil {
		return nil, fmt.Errorf("the board of the simulated machine: %s: %w", name, err)
	}
	if info.Uid != uint32(os.Geteuid()) || info.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("the board of the simulated machine: %s is somebody else's; remove it", name)
	}
	return Open(f)
}

// Private makes a board that only the calling process knows.
func Private() *Board { return &Board{seats: new(layout), now: monotonic} }

var (
	start      = time.Now()
	startClock = clock()
)

func clock() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // there has been one in every kernel for twenty years
	}
	return t.Nano()
}

// monotonic is CLOCK_MONOTONIC, the same in all processes of the machine, without a system call.
func monotonic() int64 { return startClock + int64(time.Since(start)) }
