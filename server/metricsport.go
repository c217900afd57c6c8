package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scuda.dev/scuda/internal/release"
	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/metrics"
)

// gpuTimeout bounds how long a scrape waits for NVML.
const gpuTimeout = 2 * time.Second

// metricsWriting is for how long an answer of the metrics port may be written: longer than a profile takes.
const metricsWriting = 3 * time.Minute

// recent is how long what a scrape has asked for serves the next ones.
const recent = time.Second

// Reasons why a server is not ready.
var (
	errDraining = errors.New("draining: the server takes no new sessions")
	errStarting = errors.New("starting: no worker has opened the driver yet")
)

// openMetrics prepares the server's metrics and, where the configuration says so, the port that offers them.
func (s *supervisor) openMetrics(ctx context.Context) (*door.Port, error) {
	build := metrics.Build{Version: release.Version(), Digest: digest[:12]}
	if s.cfg.Metrics == "" {
		s.metrics = metrics.NewServer(build, nil)
		return nil, nil
	}
	s.metrics = metrics.NewServer(build, func() ([]metrics.GPU, error) {
		list, err := s.readGPUs()
		return list.GPUs, err
	})
	s.metrics.TenantMemory(s.commons.Memory)
	s.metrics.Leases(s.leases.ByTenant)
	s.metrics.TenantUsage(s.tenantUsage)
	s.metrics.TenantWaiting(s.waiting.byTenant)
	s.metrics.Turns(s.turns.counts)
	s.metrics.MPS(s.mps.figures)
	if s.images != nil {
		s.metrics.ModuleCache(s.cacheFigures)
	}
	p, err := door.OpenPort(ctx, s.cfg.Metrics, s.metrics.Handler(s.readiness, s.cfg.Profiles), metricsWriting)
	if err != nil {
		return nil, err
	}
	s.log.Info("metrics", "address", p.Addr().String())
	return p, nil
}

func (s *supervisor) cacheFigures() metrics.CacheFigures {
	f := s.images.Figures()
	return metrics.CacheFigures{Images: f.Images, Bytes: f.Bytes, Stored: f.Stored, Evicted: f.Evicted, Refused: f.Refused,
		Tenants: f.Tenants}
}

// remember gives a function that asks ask at most once in a while: a scrape costs a question to a worker.
func remember[T any](ask func() (T, error)) func() (T, error) {
	var (
		mu   sync.Mutex // of what was answered, and held while it is asked
		when time.Time
		last T
		err  error
	)
	return func() (T, error) {
		mu.Lock()
		defer mu.Unlock()
		if when.IsZero() || time.Since(when) >= recent {
			last, err = ask()
			when = time.Now()
		}
		return last, err
	}
}

func (s *supervisor) readiness() error {
	if s.closed() != nil {
		return errDraining
	}
	if s.facts.Load() == nil {
		return errStarting
	}
	return nil
}

// countWorker follows a CUDA worker from now, when it is warm, to its end.
func (s *supervisor) countWorker(p *process) {
	warm := s.metrics.Workers.WithLabelValues(metrics.StateWarm)
	busy := s.metrics.Workers.WithLabelValues(metrics.StateBusy)
	warm.Inc()
	s.workers.Go(func() {
		select {
		case <-p.took:
			warm.Dec()
			busy.Inc()
			<-p.exited
			busy.Dec()
		case <-p.exited:
			warm.Dec()
		}
	})
}

// gpuReader asks a worker process what NVML says: the supervisor itself never calls the driver.
type gpuReader struct {
	start func() (*process, error)

	mu      sync.Mutex // one question at a time
	proc    *process
	retryAt time.Time
	failed  error
	closed  bool
}

// read is the collector's. After a failure the next attempt waits a while, so that a broken driver costs little.
func (g *gpuReader) read() (gpuList, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return gpuList{}, errDraining
	}
	if time.Now().Before(g.retryAt) {
		return gpuList{}, g.failed
	}
	list, err := g.ask()
	if err != nil {
		g.failed, g.retryAt = err, time.Now().Add(30*time.Second)
		g.end()
	}
	return list, err
}

func (g *gpuReader) ask() (gpuList, error) {
	if g.proc == nil || g.proc.gone() {
		var err error
		if g.proc, err = g.start(); err != nil {
			g.proc = nil
			return gpuList{}, err
		}
	}
	if err := g.proc.line.Send(msgGPUs, struct{}{}, -1); err != nil {
		return gpuList{}, err
	}
	t := time.NewTimer(gpuTimeout)
	defer t.Stop()
	select {
	case list := <-g.proc.gpus:
		if list.Error != "" {
			return gpuList{}, errors.New(list.Error)
		}
		return list, nil
	case <-g.proc.exited:
		return gpuList{}, fmt.Errorf("the worker that reads NVML died: %w", exitReason(g.proc))
	case <-t.C:
		return gpuList{}, errors.New("NVML does not answer")
	}
}

func (g *gpuReader) end() {
	if g.proc == nil {
		return
	}
	g.proc.end()
	g.proc = nil
}

func (g *gpuReader) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.end()
}

// gpuList is a worker's answer.
type gpuList struct {
	GPUs  []metrics.GPU
	Users []gpuUser
	Error string
}

// gpuUser is a process that has memory of a GPU.
type gpuUser struct {
	GPU   int // index in the list
	PID   int
	Bytes uint64
}

// answerGPUs takes a worker's answer; one that nobody waits for any more makes room.
func (p *process) answerGPUs(m *handoff.Message) {
	var list gpuList
	if err := m.Decode(&list); err != nil {
		list.Error = err.Error()
	}
	select {
	case <-p.gpus:
	default:
	}
	p.gpus <- list
}
