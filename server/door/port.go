package door

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// ErrPort is a port for metrics that cannot be opened.
var ErrPort = errors.New("cannot offer metrics")

// PortPlaces is how many connections a [Port] has.
const PortPlaces = 64

// Port is an HTTP port for metrics, which asks nobody for a token. None was asked for where it is nil.
type Port struct {
	listener net.Listener
	server   *http.Server
	done     sync.WaitGroup
}

// OpenPort opens a port at HOST:PORT. An answer is written for so long at most. Errors are [ErrPort].
func OpenPort(ctx context.Context, address string, h http.Handler, writing time.Duration) (*Port, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w on %s; choose another port with --metrics HOST:PORT (0 picks one): %w", ErrPort, address,
			err)
	}
	p := &Port{listener: l, server: &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: writing,
		IdleTimeout:    2 * time.Minute, // longer than between two scrapes
		MaxHeaderBytes: 16 << 10,
	}}
	p.done.Go(func() { _ = p.server.Serve(Listen(l, PortPlaces)) })
	return p, nil
}

// Addr is where it listens.
func (p *Port) Addr() net.Addr {
	if p == nil {
		return nil
	}
	return p.listener.Addr()
}

// Close ends it.
func (p *Port) Close() {
	if p == nil {
		return
	}
	_ = p.server.Close()
	p.done.Wait()
}
