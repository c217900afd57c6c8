// Command scuda-connect connects to the server for a program in which no Go runtime may be: the C fronts start it
// (shim/front/base/connect.c) where they need a connection of their own. It lies beside the client's libraries and is
// of no use to people.
//
// Standard input is one end of a socket pair (SOCK_SEQPACKET). On it comes one request and goes one answer, to which
// the connected socket is attached (package shim/connect). The other end's closing, which the end of the program is,
// too, ends this process at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/shim/connect"
	"scuda.dev/scuda/transport"
)

// version is the release, set by the linker.
var version = "dev"

func main() {
	if err := serve(os.Stdin.Fd()); err != nil {
		fmt.Fprintln(os.Stderr, "scuda-connect:", err, "(the client's libraries start this program; it is not for people)")
		os.Exit(1)
	}
}

// serve answers the one request that comes over a socket.
func serve(fd uintptr) error {
	packet := make([]byte, 8<<10)
	n, err := unix.Read(int(fd), packet)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // the front says nothing more, so this is the end of its end
		_, _ = unix.Read(int(fd), make([]byte, 1))
		cancel()
	}()
	a, c := answer(ctx, packet[:n])
	var rights []byte
	if c != nil {
		defer c.Close() // the front has its own by then
		if rights, err = attach(c); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil // nobody listens
	}
	return unix.Sendmsg(int(fd), a.Append(nil), rights, nil, unix.MSG_NOSIGNAL)
}

// attach gives the control message that hands a connection over.
func attach(c *net.TCPConn) (rights []byte, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	err = raw.Control(func(fd uintptr) { rights = unix.UnixRights(int(fd)) })
	return rights, err
}

// answer does what a request asks for. The connection is nil where there is none to hand over.
func answer(ctx context.Context, packet []byte) (*connect.Answer, *net.TCPConn) {
	a := &connect.Answer{ABI: connect.ABI}
	r, first, err := connect.ParseRequest(packet)
	var c *net.TCPConn
	var w *transport.Welcome
	if err == nil {
		var address string
		address, c, w, err = dial(ctx, r, first)
		connect.SetText(a.Server[:], address)
	}
	if err != nil {
		a.Code = connect.Failed
		if errors.Is(err, transport.ErrBusy) {
			a.Code = connect.Busy
		}
		connect.SetText(a.Error[:], err.Error())
		return a, nil
	}
	a.DriverVersion = int32(w.DriverVersion)
	if r.Keep == 0 {
		_ = c.Close()
		c = nil
	}
	return a, c
}

// dial connects to the configured server.
func dial(ctx context.Context, r *connect.Request, first []byte) (string, *net.TCPConn, *transport.Welcome, error) {
	address, token, err := config.Target()
	if err != nil {
		return address, nil, nil, err
	}
	host, _ := os.Hostname()
	c, w, err := transport.DialNetFirst(ctx, address, token, &transport.Hello{
		Kind: connect.Text(r.Kind[:]), Version: version, Digest: connect.Text(r.Digest[:]), Host: host,
		Program: connect.Text(r.Program[:]), PID: int(r.PID),
	}, first)
	return address, c, w, err
}
