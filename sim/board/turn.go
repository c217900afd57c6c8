package board

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// Locks of a device lie at these bytes of the board's file, and at the next ones for the next device. The kernel takes
// them from a process that ends. (They are locks of processes: workers have one open file together.)
const (
	lockUse  = 0 // is held while the GPU works for the process
	lockNext = 1 // ... and by the process that is next
	locks    = 2 // of a device
)

// lockNap is how long a process that wants a device sleeps between two looks.
const lockNap = 50 * time.Microsecond

// Take waits until the device works for nobody else, of this process or another, and has it to itself until the
// function that it gives is called. Who has just had it comes behind those who wait.
func (s *Seat) Take(ctx context.Context, device int) (leave func(), err error) {
	select {
	case s.turns[device] <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if s.board.file == nil { // there are no other processes
		return func() { <-s.turns[device] }, nil
	}
	at := int64(device * locks)
	if err = s.lock(ctx, at+lockNext); err == nil {
		err = s.lock(ctx, at+lockUse)
		s.unlock(at + lockNext)
	}
	if err != nil {
		<-s.turns[device]
		return nil, err
	}
	return func() {
		s.unlock(at + lockUse)
		<-s.turns[device]
	}, nil
}

// lock takes the lock of a byte. It does not sleep in the kernel, where nothing that happens to the context wakes it.
func (s *Seat) lock(ctx context.Context, at int64) error {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
	for unix.FcntlFlock(s.board.file.Fd(), unix.F_SETLK, &l) != nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockNap):
		}
	}
	return nil
}

func (s *Seat) unlock(at int64) {
	l := unix.Flock_t{Type: unix.F_UNLCK, Start: at, Len: 1}
	_ = unix.FcntlFlock(s.board.file.Fd(), unix.F_SETLK, &l) // giving a lock back does not fail
}
