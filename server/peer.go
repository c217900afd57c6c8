package server

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/transport"
)

// What ends the wait for a worker, or for a place.
var (
	errPeerGone  = errors.New("the client went away while it waited")
	errPeerSpoke = refusef(transport.StatusMalformed, "a client in the queue sends something")
)

// whilePeerStays gives a context that ends when c's peer closes the connection, so that nobody makes a worker for it.
// The function that it gives ends the watch; what the peer has sent stays unread. It also ends when the peer sends
// something, where that is not to.
func whilePeerStays(ctx context.Context, c *net.TCPConn, silent bool) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	raw, err := c.SyscallConn()
	if err != nil {
		return ctx, func() { cancel(nil) }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var peek [1]byte
		gone, spoke := false, false
		_ = raw.Read(func(fd uintptr) bool {
			n, _, err := unix.Recvfrom(int(fd), peek[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				return false
			}
			gone, spoke = n <= 0, n > 0
			return true
		})
		switch {
		case gone:
			cancel(errPeerGone)
		case spoke && silent:
			cancel(errPeerSpoke)
		}
	}()
	return ctx, func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-done
		_ = c.SetReadDeadline(time.Time{})
		cancel(nil)
	}
}
