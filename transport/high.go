package transport

import (
	"golang.org/x/sys/unix"
)

// Numbers of descriptors that are left to others: programs take the lowest that are free, and some close the first
// hundreds.
const (
	highest  = 1024
	highRoom = 64
)

// duplicate gives another descriptor for fd, with a high number where there is one.
func duplicate(fd int) (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		if least := int(min(limit.Cur, highest)) - highRoom; least > 3 {
			if high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, least); err == nil {
				return high, nil
			}
		}
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}

// Reserve keeps descriptors for a connection that is opened later, perhaps when the program has taken all others.
type Reserve struct{ fds []int }

// reserved is what opening a connection takes: a socket, another number for it, and a file of the resolver's.
const reserved = 3

// NewReserve takes them. Where there are none, there is no reserve.
func NewReserve() *Reserve {
	r := new(Reserve)
	first, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return r
	}
	defer unix.Close(first)
	for range reserved {
		if fd, err := duplicate(first); err == nil {
			r.fds = append(r.fds, fd)
		}
	}
	return r
}

// Release gives them back.
func (r *Reserve) Release() {
	for _, fd := range r.fds {
		_ = unix.Close(fd)
	}
	r.fds = nil
}
