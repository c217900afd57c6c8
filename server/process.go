package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/door"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/modcache"
	"scuda.dev/scuda/server/mps"
	"scuda.dev/scuda/server/probe"
	"scuda.dev/scuda/server/spawner"
	"scuda.dev/scuda/server/turn"
	"scuda.dev/scuda/transport"
	"scuda.dev/scuda/transport/tlsrecord"
)

// Messages between supervisor and worker.
const (
	msgConfig   = "config"               // workerConfig, with the board of the simulated machine
	msgReady    = "ready"                // readyInfo, the worker's answer
	msgFailed   = "failed"               // failedInfo, the worker's other answer
	msgSession  = "session"              // sessionInfo with the main connection
	msgCallback = transport.KindCallback // joinInfo with the callback connection
	msgBulk     = transport.KindBulk     // joinInfo with a bulk connection
	msgRDMA     = transport.KindRDMA     // joinInfo with the control connection of RDMA
	msgResume   = transport.KindResume   // joinInfo with another socket for a connection
	msgPeer     = transport.KindPeer     // peerInfo with a connection of another server of the program
	msgNotice   = "notice"               // noticeInfo, a line for the log of the session's client
	msgPage     = "page"                 // the page of memory that the worker counts in, before its configuration
	msgCommons  = "commons"              // commonsInfo with the memory of the tenant's sessions, before a CUDA session
	msgGPUs     = "gpus"                 // what does NVML say about the GPUs? The worker's answer: gpuList
	msgEnded    = "ended"                // endedInfo, the session is over and the worker exits
)

// Worker modes.
const (
	modeCUDA = "cuda"
	modeNVML = "nvml"
	modeMPS  = "mps" // keeps a tenant's daemon
)

type workerConfig struct {
	Mode       string
	GPU        string
	Library    string
	SimMemory  uint64
	SimDevices int
	Sim        string
	Visible    string // the GPUs that a CUDA worker's driver shows, by UUID; "": all
	Images     bool   // the supervisor keeps images
	Staging    int
	RDMASlots  int
	RDMADevice string
	GPUDirect  executor.GPUDirect
	Isolation  isolation.Mode
	Profile    isolation.Profile
	Fabric     bool   // the network between servers is trusted
	NCCL       string // path of its library
	MPS        string // NVIDIA's control program; "": the worker runs without MPS
	MPSLimits  mps.Limits
	MPSGPUs    int // how many GPUs the worker sees; 0: nobody knows yet
	Window     portion
	Settings   bool // NVML functions that change settings are carried out
	LogLevel   int
	LogFormat  config.LogFormat

	board *os.File // of the simulated machine; it travels beside the rest
}

type readyInfo struct {
	GPU           string
	Driver        string
	DriverVersion int
	Devices       []transport.Device
	Isolation     isolation.Report
}

type failedInfo struct {
	Error  string
	Result cuda.CUresult // what the driver answered, where it is that
}

// failure is what a worker says that cannot serve.
func failure(err error) failedInfo {
	f := failedInfo{Error: err.Error()}
	if e := new(probe.Error); errors.As(err, &e) {
		f.Result = e.Result
	}
	return f
}

type sessionInfo struct {
	ID      string
	Remote  string
	Hello   transport.Hello
	Welcome []byte // of an NVML session, whose worker sends it with its first answers
	TLS     *tlsrecord.State
	Limits  config.Limits // those of a CUDA session's tenant
	GPUs    []string      // those that an NVML session sees, by UUID; none: all
	Grace   time.Duration // how long it outlives its connections; 0: not at all
}

type commonsInfo struct {
	Place int // the session's
}

type joinInfo struct {
	Count    int    // bulk connections that there will be
	Line     uint32 // which of the session's connections it is
	Epoch    uint64 // of another socket: how many the connection has had
	Received uint64 // of another socket: bytes that the client has received
	TLS      *tlsrecord.State
}

type peerInfo struct {
	executor.Peering
	TLS *tlsrecord.State
}

type endedInfo struct {
	How    string // metrics.End…
	Reason string // empty after a clean end
	Calls  uint64
}

// process is a worker process, ready for a session.
type process struct {
	*spawner.Worker
	line  *handoff.Conn
	says  *os.File        // what the worker writes
	page  *metrics.Shared // in which it counts
	ready readyInfo
	who   atomic.Pointer[func() processList] // of an NVML session: what its client's machine has running
	took  chan struct{}                      // closed when a session gets it
	// whose sessions it may serve, and with whose workers it may share memory
	tenant  string
	profile isolation.Profile // what it may do
	// closed once the process is reaped; err, ended, clean and final are valid then
	exited chan struct{}
	err    error
	ended  endedInfo
	clean  bool // the worker said that its session ended
	gpus   chan gpuList
	glance func() metrics.Glance // of the page in which it counts
	final  metrics.Glance        // the last one
	slot   *turn.Slot            // of its turns; nil once it has ended. Guarded by turns.mu
	got    turn.Got              // what came of them, once it has ended. Guarded by turns.mu
	grant  atomic.Pointer[grant]
	asking atomic.Bool // for an image
	asked  requests    // of a process that keeps an MPS daemon
	mps    *daemon     // whose client it is; nil: none's
	parted atomic.Bool // the daemon was told that it ends
}

// noticeInfo is what a session's client is told.
type noticeInfo struct {
	Text string
	Last bool // the session ends now
}

// grant is what a CUDA worker may have of what its supervisor keeps: what its session's tenant has brought.
type grant struct {
	tenant string
	images *modcache.Holder // nil: there is no module cache
}

// startProcess starts a worker for a tenant and waits until its driver is initialised.
func (s *supervisor) startProcess(ctx context.Context, mode string, of whose) (*process, error) {
	p, err := s.tryProcess(ctx, mode, of)
	if errors.Is(err, spawner.ErrLost) { // while it was asked: there may be another by now
		p, err = s.tryProcess(ctx, mode, of)
	}
	return p, err
}

func (s *supervisor) tryProcess(ctx context.Context, mode string, of whose) (*process, error) {
	wc, pages := s.workerConfig(mode, of), &s.metrics.Pages
	client, err := s.mps.prepare(ctx, &wc, of)
	if err != nil {
		return nil, err
	}
	line, theirs, err := handoff.Pair()
	if err != nil {
		client.leave()
		return nil, err
	}
	var worker *spawner.Worker
	var says *os.File
	page, err := pages.Add()
	if err == nil {
		if worker, says, err = s.places.start(of.tenant, mode, wc.Profile, theirs); err != nil {
			pages.Remove(page)
		}
	}
	theirs.Close()
	if err != nil {
		line.Close()
		client.leave()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	p := newProcess(s, worker, line, says, page)
	p.tenant, p.profile, p.mps = of.tenant, wc.Profile, client
	answer := make(chan error, 1)
	watch(s, p, func() { answer <- p.handshake(wc, page.FD) })
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = fmt.Errorf("worker %d did not get ready: %w", p.pid(), context.Cause(ctx))
	}
	if err == nil && mode != modeMPS { // which is NVIDIA's, and reads nothing of clients
		p.ready.Isolation.Add(s.places.given)
		err = p.ready.Isolation.Check(s.cfg.Isolation)
	}
	if err != nil {
		p.kill()
		<-p.exited
		if p.err != nil && !errors.As(err, new(*workerError)) {
			err = fmt.Errorf("%w (%w)", err, p.err)
		}
		return nil, err
	}
	return p, nil
}

// newProcess is a worker that nobody follows yet.
func newProcess(s *supervisor, w *spawner.Worker, line *handoff.Conn, says *os.File, page *metrics.Shared) *process {
	p := &process{Worker: w, line: line, says: says, page: page, slot: page.Turn, exited: make(chan struct{}),
		gpus: make(chan gpuList, 1), took: make(chan struct{})}
	p.glance = func() metrics.Glance { return s.metrics.Pages.Glance(page) }
	return p
}

// watch follows a worker to its end: what it says, behind what begin reads of it, and what becomes of it.
func watch(s *supervisor, p *process, begin func()) {
	text := s.follow(p.Worker, p.says)
	var reader sync.WaitGroup
	reader.Go(func() {
		begin()
		p.listen(s.shares)
		p.kill() // a worker without its line is over, whatever it thinks
		s.shares.forget(p)
	})
	go func() {
		err := p.Wait()
		reader.Wait() // whatever the worker said before it ended has been read
		text.end(err)
		p.err = err
		p.line.Close()
		p.final = s.metrics.Pages.Glance(p.page)
		s.turns.end(p)
		s.metrics.Pages.Remove(p.page)
		p.mps.leave()
		close(p.exited)
	}()
}

// workerError is a worker that says why it cannot serve.
type workerError struct {
	text   string
	result cuda.CUresult // the driver's, where it is that
}

func (e *workerError) Error() string { return e.text }

func (p *process) handshake(wc workerConfig, page int) error {
	if err := p.line.Send(msgPage, struct{}{}, page); err != nil {
		return fmt.Errorf("configure a worker: %w", err)
	}
	if err := p.line.Send(msgConfig, wc, int(wc.board.Fd())); err != nil {
		return fmt.Errorf("configure a worker: %w", err)
	}
	m, err := p.line.Receive()
	if err != nil {
		return fmt.Errorf("worker ended before it was ready: %w", err)
	}
	closeFD(m.FD)
	switch m.Type {
	case msgReady:
		return m.Decode(&p.ready)
	case msgFailed:
		var f failedInfo
		if err := m.Decode(&f); err != nil {
			return err
		}
		return &workerError{f.Error, f.Result}
	}
	return fmt.Errorf("%w: a new worker says %q", handoff.ErrMalformed, m.Type)
}

// listen reads what the worker says until it ends.
func (p *process) listen(shares *shelf) {
	for {
		m, err := p.line.Receive()
		if err != nil {
			return
		}
		if shares.serve(p, m) || p.serveImage(m) {
			continue
		}
		closeFD(m.FD)
		if m.Type == msgAnswered {
			_ = p.asked.answered(m) // nobody waits any more
			continue
		}
		if m.Type == msgWho {
			p.answerWho()
			continue
		}
		if m.Type == msgGPUs {
			p.answerGPUs(m)
			continue
		}
		if m.Type == msgEnded {
			p.hearEnd(m)
		}
	}
}

// hearEnd hears that the worker's session is over.
func (p *process) hearEnd(m *handoff.Message) {
	if m.Decode(&p.ended) == nil {
		p.ended.Reason, p.clean = door.Clip(p.ended.Reason, maxReason), true
	}
}

func (p *process) pid() int { return p.PID }

func (p *process) gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// kill ends the process at once; the driver frees what it held. An MPS server takes leave of it first.
func (p *process) kill() {
	p.part()
	if p.Kill() != nil { // it has ended, or its spawner has: then it ends with its line
		p.line.Close()
	}
}

// part has the MPS server whose client the process is take leave of it, once.
func (p *process) part() {
	if p.mps != nil && !p.gone() && !p.parted.Swap(true) {
		p.mps.farewell(p.PID)
	}
}

// end ends a process that has no session, and waits until it is gone.
func (p *process) end() {
	p.part()
	p.line.Close()
	p.kill()
	<-p.exited
}

func exitReason(p *process) error {
	if p.err != nil {
		return p.err
	}
	return errors.New("exit status 0")
}
