package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"scuda.dev/scuda/server/door"
)

// ErrListen is a port that cannot be opened.
var ErrListen = errors.New("cannot offer metrics")

// Bounds of the port, which asks nobody for a token.
const (
	places     = 64              // connections
	idle       = 2 * time.Minute // of a connection that is kept: longer than between two scrapes
	scrapeTime = 5 * time.Second // of a scrape: longer than two reads of etcd
)

// Handler answers /metrics, and /healthz (the process is alive).
func Handler(r *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, Registry: r,
		MaxRequestsInFlight: places, Timeout: scrapeTime}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return mux
}

// Port is an HTTP port.
type Port struct {
	listener net.Listener
	server   *http.Server
	done     sync.WaitGroup
}

// Open opens a port at HOST:PORT.
func Open(ctx context.Context, address string, h http.Handler) (*Port, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w on %s; choose another port with --metrics HOST:PORT (0 picks one): %w", ErrListen, address,
			err)
	}
	p := &Port{listener: l, server: &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: idle, MaxHeaderBytes: 16 << 10}}
	p.done.Go(func() { _ = p.server.Serve(door.Listen(l, places)) })
	return p, nil
}

// Addr is where it listens.
func (p *Port) Addr() net.Addr { return p.listener.Addr() }

// Close ends it.
func (p *Port) Close() {
	_ = p.server.Close()
	p.done.Wait()
}
