package metrics

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"scuda.dev/scuda/server/door"
)

// Bounds of an answer: of a scrape, which is longer than two reads of etcd, and of writing it.
const (
	scrapeTime = 5 * time.Second
	writeTime  = 30 * time.Second
)

// Handler answers /metrics, and /healthz (the process is alive).
func Handler(r *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true, Registry: r,
		MaxRequestsInFlight: door.PortPlaces, Timeout: scrapeTime}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return mux
}

// Open opens a port at HOST:PORT.
func Open(ctx context.Context, address string, h http.Handler) (*door.Port, error) {
	return door.OpenPort(ctx, address, h, writeTime)
}
