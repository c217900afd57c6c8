package transport

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrTaken says that a descriptor stands for this socket no longer: the process has closed it, as programs do that
// close all descriptors which they do not know, or has put something else in its place.
var ErrTaken = errors.New("the program has closed the connection's descriptor")

// descriptor is a socket by its number, and by what shows that the number still stands for it. A program that uses this
// package as a library may do with numbers what it likes; what is its own is neither shut down, closed nor replaced.
// Between the look and the act the program would have to close the number and take it again.
type descriptor struct {
	fd       int
	dev, ino uint64 // of the socket, which no other one has while it is open
}

// describe notes what a number stands for.
func describe(fd int) (descriptor, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return descriptor{}, err
	}
	return descriptor{fd, st.Dev, st.Ino}, nil
}

// isOurs says whether the number still stands for the socket.
func (d descriptor) isOurs() bool {
	now, err := describe(d.fd)
	return err == nil && now == d
}

// shutdown ends the connection both ways, and says whether it was there.
func (d descriptor) shutdown() bool {
	if !d.isOurs() {
		return false
	}
	_ = unix.Shutdown(d.fd, unix.SHUT_RDWR)
	return true
}

// close releases the number.
func (d descriptor) close() error {
	if !d.isOurs() {
		return ErrTaken
	}
	return unix.Close(d.fd)
}

// moveTo gives the socket the number of another one, which is closed by that.
func (d descriptor) moveTo(other descriptor) (descriptor, error) {
	if !other.isOurs() {
		return d, ErrTaken
	}
	if err := unix.Dup3(d.fd, other.fd, unix.O_CLOEXEC); err != nil {
		return d, fmt.Errorf("a socket in the place of another: %w", err)
	}
	_ = unix.Close(d.fd)
	return descriptor{other.fd, d.dev, d.ino}, nil
}
