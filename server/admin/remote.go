package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"scuda.dev/scuda/config"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/transport"
)

// Over gives a client that asks a server over its port, with the credentials of a target ([config.To] gives one as all
// of scuda's programs have it). The connections are made when something is asked: an error of theirs is a
// [*transport.Error]. Program is how the server's log calls the client; "": by its file.
//
//	to, err := config.To("gpu1.example.org:14833", "/etc/scuda/token")
//	…
//	c, err := admin.Over(to, "prolog")
//	…
//	defer c.Close()
//	lease, err := c.Grant(ctx, &admin.LeaseRequest{Tenant: "vision", Seconds: 3600})
//
// What may be asked depends on whose the credentials are ([Who]); the error of what they may not is [ErrForbidden].
func Over(to transport.Target, program string) (*Client, error) {
	full, err := transport.ParseAddress(to.Address)
	if err != nil {
		return nil, err
	}
	if host, _, _ := net.SplitHostPort(full); to.TLS == nil && !config.IsLoopback(host) {
		return nil, &transport.Error{Address: full, Kind: transport.ErrTLS,
			Detail: "the admin interface is not offered without TLS",
			Remedy: "start the server without --insecure and run scuda login " + full + ", or run this on its machine"}
	}
	if program == "" {
		program, _ = os.Executable()
	}
	host, _ := os.Hostname()
	hello := transport.Hello{
		Kind: transport.KindAdmin, Version: release.Version(), Host: host, Program: program, PID: os.Getpid(),
		User: config.User(), Requires: []string{transport.CapAdmin},
	}
	return newClient(full, func(ctx context.Context) (net.Conn, error) {
		c, _, err := transport.DialNet(ctx, to, &hello)
		if e, ok := errors.AsType[*transport.Error](err); ok && errors.Is(e.Kind, transport.ErrBusy) {
			e.Remedy = "close some of these connections, or try again" // the usual one is for sessions
		}
		return c, err
	}, func(err error) error {
		if e, ok := errors.AsType[*transport.Error](err); ok {
			return e
		}
		return fmt.Errorf("%w: %s: %w", ErrNoServer, full, err)
	}), nil
}
