// Command scuda-connect connects to the server for a program in which no Go runtime may be: the C fronts start it
// (shim/front/base/connect.c) where they need a connection of their own. It lies beside the client's libraries and is
// of no use to people.
//
// Standard input is one end of a socket pair (SOCK_SEQPACKET). On it comes one request and goes one answer, to which
// the connected socket is attached (package shim/connect). The other end's closing, which the end of the program is,
// too, ends this process at once. With TLS it goes on until the connection ends, and passes the bytes on (relay.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/shim/connect"
	"scuda.dev/scuda/transport"
)

// version is the release, set by the linker.
var version = "dev"

func main() {
	if err := serve(os.Stdin.Fd(), detach); err != nil {
		fmt.Fprintln(os.Stderr, "scuda-connect:", err, "(the client's libraries start this program; it is not for people)")
		os.Exit(1)
	}
}

// serve answers the one request that comes over a socket. Where it goes on afterwards, because the connection has TLS,
// it calls alone before.
func serve(fd uintptr, alone func()) error {
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
	if c == nil {
		return send(ctx, int(fd), a, nil)
	}
	defer c.Close() // the front has its own by then
	if _, ok := c.(*transport.TLSConn); !ok {
		return send(ctx, int(fd), a, transport.Socket(c))
	}
	r, front, err := newRelay(c)
	if err != nil {
		return err
	}
	defer r.close()
	a.Relay = 1
	err = send(ctx, int(fd), a, front)
	if err := errors.Join(err, front.Close()); err != nil {
		return err
	}
	alone()
	return r.run()
}

// send sends the answer with a connection, unless nobody listens.
func send(ctx context.Context, fd int, a *connect.Answer, c syscall.Conn) (err error) {
	var rights []byte
	if c != nil {
		if rights, err = attach(c); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return unix.Sendmsg(fd, a.Append(nil), rights, nil, unix.MSG_NOSIGNAL)
}

// attach gives the control message that hands a connection over.
func attach(c syscall.Conn) (rights []byte, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	err = raw.Control(func(fd uintptr) { rights = unix.UnixRights(int(fd)) })
	return rights, err
}

// answer does what a request asks for. The connection is nil where there is none to hand over.
func answer(ctx context.Context, packet []byte) (*connect.Answer, net.Conn) {
	a := &connect.Answer{ABI: connect.ABI}
	r, first, err := connect.ParseRequest(packet)
	var c net.Conn
	var w *transport.Welcome
	if err == nil {
		var to transport.Target
		var servers int
		to, servers, err = config.TargetOf(int(r.Number))
		a.Servers = uint32(servers)
		connect.SetText(a.Server[:], to.Address)
		if err == nil {
			c, w, err = dial(ctx, to, r, first)
		}
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

// dial connects to a server.
func dial(
	ctx context.Context, to transport.Target, r *connect.Request, first []byte,
) (net.Conn, *transport.Welcome, error) {
	host, _ := os.Hostname()
	return transport.DialNetFirst(ctx, to, &transport.Hello{
		Kind: connect.Text(r.Kind[:]), Version: version, Digest: connect.Text(r.Digest[:]), Host: host,
		Program: connect.Text(r.Program[:]), PID: int(r.PID), User: config.User(),
	}, first)
}
