package main

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// relay passes the bytes of a connection with TLS on to the front, which knows no TLS: the front gets one end of a
// socket pair in the connection's place. It goes on until one side closes.
type relay struct {
	server net.Conn
	near   net.Conn
}

// newRelay gives a relay and the end that the front is to have.
func newRelay(server net.Conn) (*relay, *os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs, ours := os.NewFile(uintptr(ends[0]), "front"), os.NewFile(uintptr(ends[1]), "relay")
	defer ours.Close()
	near, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return &relay{server, near}, theirs, nil
}

func (r *relay) run() error {
	var toServer, toFront error
	var both sync.WaitGroup
	both.Go(func() {
		defer r.close()
		_, toServer = io.Copy(onlyWriter{r.server}, r.near)
	})
	both.Go(func() {
		defer r.close()
		_, toFront = io.Copy(onlyWriter{r.near}, r.server)
	})
	both.Wait()
	for _, err := range []error{toServer, toFront} {
		if err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

func (r *relay) close() {
	r.server.Close()
	r.near.Close()
}

// onlyWriter keeps io.Copy from sockets' own ways of copying.
type onlyWriter struct{ io.Writer }

// detach lets the process live beside the program without being in its way: no signal of its terminal or process group
// arrives, and nobody who reads its output waits for us.
func detach() {
	_, _ = unix.Setsid()
	if null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Dup3(null, int(os.Stderr.Fd()), 0)
		_ = unix.Close(null)
	}
}
