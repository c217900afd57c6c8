package metrics

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Kinds of sessions, and how they end.
const (
	KindCUDA = "cuda"
	KindNVML = "nvml"

	EndClosed  = "closed"  // the program took its leave (of NVML: it closed its connection between two calls)
	EndLeft    = "left"    // the program's process ended, and had not taken its leave
	EndTimeout = "timeout" // the client's machine, or the way to it, did not answer any more
	EndBroken  = "broken"  // the connection broke, in the middle of something too, or the client broke the protocol
	EndCrashed = "crashed" // the worker process died
	EndKilled  = "killed"  // the server ended the session: it shuts down, or somebody may not go on
	EndLimited = "limited" // a limit of time ended it
	EndAway    = "away"    // its client did not come back in time
	EndCrowded = "crowded" // it waited for its client as too many others did
)

// Build says which scuda it is.
type Build struct {
	Version string
	Digest  string // of the API description
}

// Server are the metrics of a server process. All its fields are safe for use by several goroutines.
type Server struct {
	Pages Pages

	Sessions       *prometheus.GaugeVec   // kind
	Tenants        *prometheus.GaugeVec   // tenant
	Opened         *prometheus.CounterVec // kind
	Ended          *prometheus.CounterVec // kind, how
	Refused        *prometheus.CounterVec // reason
	Opening        prometheus.Histogram
	Workers        *prometheus.GaugeVec // state
	WorkerStarts   prometheus.Histogram
	WorkerFailures prometheus.Counter
	Draining       prometheus.Gauge
	Waiting        *prometheus.GaugeVec     // class
	Waited         *prometheus.HistogramVec // class, outcome
	Asked          *prometheus.CounterVec   // request, role, code

	registry *prometheus.Registry
	driver   *prometheus.GaugeVec
}

// Times are a histogram's options by scuda's conventions: classic buckets of 1 µs to 8.4 s, and a native histogram
// beside them.
func Times(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help,
		Buckets:                     prometheus.ExponentialBuckets(1e-6, 2, classicBuckets),
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour}
}

// NewServer registers a server's metrics. readGPUs may be nil.
func NewServer(b Build, readGPUs func() ([]GPU, error)) *Server {
	s := &Server{
		Sessions: gauges("scuda_sessions", "Sessions that are open, by kind.", "kind"),
		Tenants:  gauges("scuda_tenant_sessions", "Sessions that are open, by tenant.", "tenant"),
		Opened:   counters("scuda_sessions_opened_total", "Sessions that were opened, by kind.", "kind"),
		Ended:    counters("scuda_sessions_ended_total", "Sessions that ended, by kind and by how they did.", "kind", "how"),
		Refused:  counters("scuda_connections_refused_total", "Connections that were refused, by reason.", "reason"),
		Opening: prometheus.NewHistogram(
			Times("scuda_session_opening_seconds", "Time from a connection's preface until its session was open.")),
		Workers: gauges("scuda_workers", "Worker processes, by state: warm ones wait for a session, busy ones serve one.",
			"state"),
		WorkerStarts: prometheus.NewHistogram(Times("scuda_worker_start_seconds",
			"Time that a worker process took until its driver was initialised.")),
		WorkerFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "scuda_worker_failures_total", Help: "Worker processes that did not start, or died while they were waiting.",
		}),
		Draining: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "scuda_draining", Help: "Whether the server is shutting down and takes no new sessions (1).",
		}),
		Waiting: gauges("scuda_admission_waiting", "Programs that wait for a CUDA session's place, by class.", "class"),
		Waited: prometheus.NewHistogramVec(waits("scuda_admission_wait_seconds",
			"Time that programs waited for a place which did not have one at once, by class and by what came of it."),
			[]string{"class", "outcome"}),
		Asked: counters("scuda_admin_requests_total",
			"Requests to the admin interface, by what was asked for, by the role of whoever asked, and by HTTP's status.",
			"request", "role", "code"),
		registry: prometheus.NewRegistry(),
		driver: gauges("scuda_driver_info",
			"The driver that serves, as the newest worker saw it: gpu is real or sim.", "driver", "cuda", "gpu"),
	}
	for _, kind := range []string{KindCUDA, KindNVML} {
		s.Sessions.WithLabelValues(kind)
		s.Opened.WithLabelValues(kind)
		for _, how := range []string{EndClosed, EndLeft, EndTimeout, EndBroken, EndCrashed, EndKilled, EndLimited,
			EndAway, EndCrowded} {
			s.Ended.WithLabelValues(kind, how)
		}
	}
	s.Workers.WithLabelValues(StateWarm)
	s.Workers.WithLabelValues(StateBusy)
	info := gauges("scuda_build_info", "The release of scuda and its API description.", "version", "goversion", "api")
	info.WithLabelValues(b.Version, runtime.Version(), b.Digest).Set(1)
	s.registry.MustRegister(s.Waiting, s.Waited, s.Asked)
	s.registry.MustRegister(&s.Pages, s.Sessions, s.Tenants, s.Opened, s.Ended, s.Refused, s.Opening, s.Workers,
		s.WorkerStarts, s.WorkerFailures, s.Draining, s.driver, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if readGPUs != nil {
		s.registry.MustRegister(GPUs{readGPUs})
	}
	return s
}

// AdminRequest counts a request to the admin interface.
func (s *Server) AdminRequest(request, role string, status int) {
	s.Asked.WithLabelValues(request, role, strconv.Itoa(status)).Inc()
}

// What comes of a wait for a place.
const (
	WaitAdmitted = "admitted"
	WaitRefused  = "refused" // it lasted too long, or the server takes nobody any more
	WaitLeft     = "left"    // the client went away
)

// waits are a histogram's options for times that people wait: classic buckets of 1 s to 36 hours.
func waits(name, help string) prometheus.HistogramOpts {
	o := Times(name, help)
	o.Buckets = prometheus.ExponentialBuckets(1, 2, 18)
	return o
}

// States of workers.
const (
	StateWarm = "warm"
	StateBusy = "busy"
)

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// TenantMemory offers what tenants' sessions have of the GPUs' memory, which is asked for at each scrape.
func (s *Server) TenantMemory(figures TenantMemory) { s.registry.MustRegister(figures) }

// Leases offers how many leases hold, by tenant, which is asked for at each scrape.
func (s *Server) Leases(figures Leases) { s.registry.MustRegister(figures) }

// Turns offers what has come of turns, which is asked for at each scrape.
func (s *Server) Turns(counts TurnCounts) { s.registry.MustRegister(counts) }

// MPS offers the daemons of MPS, which are asked for at each scrape.
func (s *Server) MPS(daemons MPSDaemons) { s.registry.MustRegister(daemons) }

// TenantWaiting offers how many programs of tenants wait for a place, which is asked for at each scrape.
func (s *Server) TenantWaiting(counts TenantWaiting) { s.registry.MustRegister(counts) }

// TenantUsage offers what tenants have used, which is asked for at each scrape.
func (s *Server) TenantUsage(figures TenantUsage) { s.registry.MustRegister(figures) }

// ModuleCache offers the figures of the module cache, which are asked for at each scrape.
func (s *Server) ModuleCache(figures func() CacheFigures) {
	s.registry.MustRegister(ModuleCache(figures))
}

// Driver notes what serves; version is CUDA's number, such as 13000.
func (s *Server) Driver(driver string, version int, gpu string) {
	s.driver.Reset()
	s.driver.WithLabelValues(driver, fmt.Sprintf("%d.%d", version/1000, version%1000/10), gpu).Set(1)
}

// Handler answers /metrics, /healthz (the process is alive), /readyz (ready returns nil) and, if wanted, /debug/pprof/.
func (s *Server) Handler(ready func() error, profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics",
		promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{EnableOpenMetrics: true, Registry: s.registry}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, `<!doctype html><title>scuda</title><a href="/metrics">metrics</a> `+
			`<a href="/healthz">healthz</a> <a href="/readyz">readyz</a>`)
	})
	return mux
}
