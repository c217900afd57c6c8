package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/transport"
)

// target is a server as somebody named it, by a name or an address, with the token of a file that somebody named, else
// the configured one.
func target(server, tokenFile string) (transport.Target, error) {
	full, err := config.Address(server)
	if err != nil {
		return transport.Target{}, usage(err)
	}
	return config.To(full, tokenFile)
}

// ask opens a session that the command line itself uses.
func ask(ctx context.Context, server, tokenFile, kind string) (net.Conn, *transport.Welcome, error) {
	to, err := target(server, tokenFile)
	if err != nil {
		return nil, nil, err
	}
	return askOf(ctx, to, kind)
}

// askOf is ask of a server of which it is known how to meet it.
func askOf(ctx context.Context, to transport.Target, kind string) (net.Conn, *transport.Welcome, error) {
	program, _ := os.Executable()
	host, _ := os.Hostname()
	c, w, err := transport.DialNet(ctx, to, &transport.Hello{
		Kind: kind, Version: release.Version(), Digest: cuda.Digest, Host: host, Program: program, PID: os.Getpid(),
		User: config.User(),
	})
	if err != nil {
		return nil, nil, serverError(err)
	}
	return c, w, nil
}

// serverError gives the error of a connection its exit code.
func serverError(err error) error {
	switch {
	case errors.Is(err, transport.ErrToken), errors.Is(err, transport.ErrVersion), errors.Is(err, transport.ErrDigest),
		errors.Is(err, transport.ErrBusy), errors.Is(err, transport.ErrTLS), errors.Is(err, transport.ErrUntrusted),
		errors.Is(err, transport.ErrDraining), errors.Is(err, transport.ErrCapability):
		return &exitError{exitRefused, err}
	case errors.Is(err, transport.ErrAddress):
		return usage(err)
	}
	return &exitError{exitUnreachable, err}
}

// ping measures one round trip over an information session.
func ping(c net.Conn, seq uint64) (time.Duration, error) {
	_ = c.SetDeadline(time.Now().Add(transport.HandshakeTimeout))
	h := transport.MessageHeader{Type: transport.MsgPing, Seq: seq}
	b := h.Append(make([]byte, 0, transport.MessageHeaderSize))
	begin := time.Now()
	if _, err := c.Write(b); err != nil {
		return 0, err
	}
	for n := 0; n < len(b); {
		k, err := c.Read(b[n:])
		if err != nil {
			return 0, err
		}
		n += k
	}
	took := time.Since(begin)
	got, _, err := transport.ParseMessage(b)
	if err == nil && (got.Type != transport.MsgPong || got.Seq != seq) {
		err = fmt.Errorf("the server answered the ping with a message of type %d", got.Type)
	}
	return took, err
}
