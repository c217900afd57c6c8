package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/lease"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/mps"
)

// MPSMode says whether the server runs daemons of NVIDIA's MPS, one for each tenant.
type MPSMode string

// The modes. Auto is on where NVIDIA's program and folders of tenants are there, and the GPUs are real.
const (
	MPSOff  MPSMode = "off"
	MPSOn   MPSMode = "on"
	MPSAuto MPSMode = "auto"
)

// ErrMPS is MPS that was asked for and cannot be.
var ErrMPS = errors.New("there is no MPS")

// ParseMPS reads a mode.
func ParseMPS(s string) (MPSMode, error) {
	if m := MPSMode(s); slices.Contains([]MPSMode{MPSOff, MPSOn, MPSAuto}, m) {
		return m, nil
	}
	return MPSOff, fmt.Errorf("%w: %.40q is no mode; write on, off or auto", ErrMPS, s)
}

// Messages between the supervisor and the process that keeps a tenant's daemon.
const (
	msgMPS      = "mps"      // mpsInfo: a command for the daemon
	msgAnswered = "answered" // answeredInfo
)

type mpsInfo struct {
	Request uint64
	Command string
}

type answeredInfo struct {
	Request uint64
	Answer  string
	Error   string
}

// Times of daemons.
const (
	mpsLook      = 5 * time.Second  // between two looks at a daemon's servers
	mpsPatience  = 3 * time.Second  // with a daemon that is to take leave of a worker that is ended
	mpsIdle      = 10 * time.Minute // after which a daemon without workers ends
	mpsEnd       = 15 * time.Second // for daemons to end with the server
	mpsLeastWait = time.Second      // before a daemon that has failed is started anew; it doubles, up to mpsMostWait
	mpsMostWait  = time.Minute
)

// daemons are those of MPS: one a tenant, as an MPS server serves one user.
type daemons struct {
	s        *supervisor
	program  string // NVIDIA's
	look     time.Duration
	patience time.Duration // how long one may take to take leave of a worker
	idle     time.Duration

	mu sync.Mutex // guards what follows, and what daemons say of it
	by map[string]*daemon
}

// daemon is a tenant's. Its process is a worker that keeps it.
type daemon struct {
	of     *daemons
	tenant string

	starting sync.Mutex // held while it is started; taken before daemons.mu

	// guarded by daemons.mu
	keeper  *process // nil: it does not run
	workers int      // that are its clients, or are about to be
	last    time.Time
	wait    time.Duration // after its last failure
	failed  time.Time
	failure error
	again   uint64 // times that it was started after it had failed
	lost    uint64 // servers behind it that ended
}

// openMPS is nil on a server without MPS.
func openMPS(s *supervisor) (*daemons, error) {
	if s.cfg.MPS == "" || s.cfg.MPS == MPSOff {
		return nil, nil
	}
	facts, err := s.places.starter.Facts()
	if err != nil {
		return nil, err
	}
	program := s.cfg.mpsControl
	if program == "" {
		program, err = exec.LookPath(mps.Program)
	}
	if err == nil {
		program, err = filepath.Abs(program)
	}
	switch own := os.Getenv("CUDA_MPS_PIPE_DIRECTORY"); {
	case err != nil:
		err = fmt.Errorf("%w; NVIDIA's driver packages have it", err)
	case own != "":
		err = fmt.Errorf("CUDA_MPS_PIPE_DIRECTORY names an MPS of yours (%s), whose clients all workers are; unset it", own)
	case !facts.Folders:
		err = errors.New("tenants have no folders of their own; --worker-folder names a place for them")
	case s.cfg.MPS == MPSAuto && s.cfg.GPU == "sim":
		err = errors.New("the GPUs are simulated")
	}
	if err != nil {
		if s.cfg.MPS == MPSAuto {
			s.log.Info("workers run without MPS", "reason", err)
			return nil, nil
		}
		return nil, fmt.Errorf("%w: %w", ErrMPS, err)
	}
	s.log.Info("workers run under MPS, with a daemon for each tenant", "program", program)
	if facts.Keeps {
		s.log.Warn("sessions under MPS end with this server, also when it is only restarted, as their daemons do",
			"remedy", "end them before: stop the server, which waits for them (--drain), and start it again")
	}
	return &daemons{s: s, program: program, look: cmp.Or(s.cfg.mpsLook, mpsLook),
		patience: cmp.Or(s.cfg.mpsPatience, mpsPatience), idle: mpsIdle, by: map[string]*daemon{}}, nil
}

// mostSessions is how many CUDA sessions of a tenant fit on its daemon, beside those for which workers are ready.
func (d *daemons) mostSessions() uint64 {
	return uint64(max(1, mps.Contexts-max(d.s.cfg.Warm, defaultWarm)))
}

// bound is the limit of a tenant's CUDA sessions; 0: none.
func (d *daemons) bound(limit uint64) uint64 {
	if d == nil {
		return limit
	}
	if most := d.mostSessions(); limit == 0 || limit > most {
		return most
	}
	return limit
}

// join gives a worker that is to start its tenant's daemon, which is started where it does not run. nil, where the
// worker is to do without. Who gets one calls leave when the worker has ended.
func (d *daemons) join(ctx context.Context, of whose) (*daemon, error) {
	if of.tenant == nobody {
		return nil, nil
	}
	d.mu.Lock()
	x := d.by[of.tenant]
	if x == nil {
		x = &daemon{of: d, tenant: of.tenant}
		d.by[of.tenant] = x
	}
	if x.workers >= mps.Contexts {
		d.mu.Unlock()
		return nil, fmt.Errorf("the tenant's MPS server has room for %d workers, and has as many", mps.Contexts)
	}
	x.workers++
	d.mu.Unlock()
	if err := x.run(ctx); err != nil {
		x.leave()
		return nil, fmt.Errorf("MPS of tenant %s: %w", of.tenant, err)
	}
	return x, nil
}

// prepare has a worker that is to start be the client of its tenant's daemon, which it gives; nil: it does without.
func (d *daemons) prepare(ctx context.Context, wc *workerConfig, of whose) (*daemon, error) {
	if d == nil {
		return nil, nil
	}
	if wc.Mode == modeMPS {
		wc.MPS = d.program
		return nil, nil
	}
	if wc.Mode != modeCUDA {
		return nil, nil
	}
	s := d.s
	x, err := d.join(ctx, of)
	if err != nil && s.cfg.MPS == MPSAuto {
		s.warn(s.log, "a worker runs without MPS", "error", err)
		return nil, nil
	}
	if x == nil || err != nil {
		return nil, err
	}
	wc.MPS, wc.MPSLimits = d.program, of.limits
	if wc.Visible != "" {
		wc.MPSGPUs = len(strings.Split(wc.Visible, ","))
	} else if facts := s.facts.Load(); facts != nil {
		wc.MPSGPUs = len(facts.Devices)
	}
	return x, nil
}

// leave counts a worker off. A daemon that nobody has needed for long ends.
func (x *daemon) leave() {
	if x == nil {
		return
	}
	d := x.of
	d.mu.Lock()
	defer d.mu.Unlock()
	x.workers--
	x.last = time.Now()
	if x.workers == 0 {
		time.AfterFunc(d.idle, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if x.workers == 0 && time.Since(x.last) >= d.idle && x.keeper != nil {
				x.keeper.line.Close() // it ends the daemon, and itself
			}
		})
	}
}

// close ends all daemons.
func (d *daemons) close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	var list []*process
	for _, x := range d.by {
		if x.keeper != nil {
			list = append(list, x.keeper)
		}
	}
	d.mu.Unlock()
	var ends sync.WaitGroup
	for _, p := range list {
		ends.Go(func() {
			p.line.Close()
			select {
			case <-p.exited:
			case <-time.After(mpsEnd):
				p.kill()
			}
		})
	}
	ends.Wait()
}

// whoseOf says which workers a session of somebody's may have.
func whoseOf(s *supervisor, who bearer, terms *lease.Terms, limits *config.Limits) whose {
	of := whose{tenant: who.Name, gpus: strings.Join(terms.GPUs, ",")}
	if s.mps != nil {
		share := terms.Share
		if who.lease == "" { // between tenants shares are made by turns
			share = 0
		}
		of.limits = mps.LimitsOf(share, uint64(limits.MostVRAM()))
	}
	return of
}

// figures is what is known of all daemons, for metrics. A process that has ended counts as one that does not run.
func (d *daemons) figures() (list []metrics.MPSDaemon) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range d.by {
		list = append(list, metrics.MPSDaemon{Tenant: x.tenant, Runs: x.keeper != nil && !x.keeper.gone(),
			Wanted: x.workers > 0, Clients: x.workers, Restarts: x.again, Lost: x.lost})
	}
	return list
}

// run starts the daemon, unless it runs.
func (x *daemon) run(ctx context.Context) error {
	x.starting.Lock()
	defer x.starting.Unlock()
	d := x.of
	d.mu.Lock()
	runs := x.keeper != nil && !x.keeper.gone()
	left := x.wait - time.Since(x.failed)
	failure := x.failure
	d.mu.Unlock()
	if runs {
		return nil
	}
	if failure != nil && left > 0 {
		return fmt.Errorf("it failed, and is started again in %v: %w", left.Round(time.Millisecond), failure)
	}
	p, err := d.s.startProcess(ctx, modeMPS, whose{tenant: x.tenant})
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		x.fails(err)
		return err
	}
	if x.keeper = p; x.failure != nil {
		x.again++
		x.failure = nil
	}
	d.s.log.Info("an MPS daemon was started", "tenant", x.tenant, "worker", p.pid())
	d.s.workers.Go(func() { x.follow(p) })
	return nil
}

// fails notes a failure. d.mu is held.
func (x *daemon) fails(err error) {
	if x.wait = min(max(2*x.wait, mpsLeastWait), mpsMostWait); time.Since(x.failed) > 2*mpsMostWait {
		x.wait = mpsLeastWait
	}
	x.failure, x.failed = err, time.Now()
}

// follow watches a daemon to its end. Where one of its servers, or it itself, has ended, the contexts of ready workers
// are lost: they are replaced. Sessions go on: their programs see what the driver says.
func (x *daemon) follow(p *process) {
	d := x.of
	tick := time.NewTicker(d.look)
	defer tick.Stop()
	var before []int
	for {
		select {
		case <-tick.C:
			ctx, cancel := context.WithTimeout(d.s.stop, mpsLook)
			now, err := mps.Servers(ctx, p)
			cancel()
			if err != nil { // it is busy, or about to end
				continue
			}
			if slices.ContainsFunc(before, func(pid int) bool { return !slices.Contains(now, pid) }) {
				d.mu.Lock()
				x.lost++
				d.mu.Unlock()
				d.s.log.Warn("an MPS server has ended; the tenant's ready workers are replaced", "tenant", x.tenant)
				d.s.pools.replace(x.tenant)
			}
			before = now
		case <-p.exited:
			d.mu.Lock()
			x.keeper = nil
			wanted := x.workers > 0 && d.s.stop.Err() == nil
			if wanted {
				x.fails(exitReason(p))
			}
			d.mu.Unlock()
			if wanted {
				d.s.log.Error("an MPS daemon has ended; it is started again when the tenant's next worker is", "tenant",
					x.tenant, "error", exitReason(p))
				d.s.pools.replace(x.tenant)
			}
			return
		}
	}
}

// refused looks at why a tenant's worker could not start. Behind a fault of a kernel an MPS server takes no client
// before all that it has have ended, ready workers among them. Sessions end with their programs, which the fault told.
func (d *daemons) refused(tenant string, err error) {
	e := new(workerError)
	if d == nil || !errors.As(err, &e) || e.result != cuda.CUDA_ERROR_MPS_SERVER_NOT_READY {
		return
	}
	d.s.log.Warn("an MPS server takes no programs until those that it has have ended, as a kernel has faulted; the "+
		"tenant's ready workers are replaced", "tenant", tenant, "remedy", "end the tenant's other sessions (scuda ps)")
	d.s.pools.replace(tenant)
}

// farewell has the daemon take leave of a worker that is about to be killed: its peers have errors otherwise.
func (x *daemon) farewell(pid int) {
	d := x.of
	d.mu.Lock()
	p := x.keeper
	d.mu.Unlock()
	if p == nil || p.gone() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.patience)
	defer cancel()
	if had, err := mps.Terminate(ctx, p, pid); err != nil {
		d.s.log.Warn("an MPS server did not take leave of a worker that is ended; its peers may have errors", "tenant",
			x.tenant, "worker", pid, "error", err)
	} else if had {
		d.s.log.Debug("an MPS server took leave of a worker", "tenant", x.tenant, "worker", pid)
	}
}

// Ask passes a command on to the daemon that a process keeps. It is [mps.Asker]'s.
func (p *process) Ask(ctx context.Context, command string) (string, error) {
	q := &question{line: p.line, kind: msgMPS, fd: -1}
	if err := p.asked.begin(q, func(number uint64) any { return mpsInfo{number, command} }); err != nil {
		return "", err
	}
	select {
	case m := <-q.answer:
		var a answeredInfo
		if err := m.Decode(&a); err != nil {
			return "", err
		}
		if a.Error != "" {
			return "", errors.New(a.Error)
		}
		return a.Answer, nil
	case <-p.exited:
		return "", exitReason(p)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// control is a daemon as a process of its tenant's sees it.
func (c *workerConfig) control() (*mps.Control, error) {
	folder, err := mps.FolderIn(os.Getenv("HOME"))
	return &mps.Control{Program: c.MPS, Folder: folder}, err
}

// joinMPS has the driver of this worker find its tenant's daemon.
func (w *worker) joinMPS() error {
	if w.cfg.MPS == "" {
		return nil
	}
	c, err := w.cfg.control()
	if err != nil {
		return err
	}
	for _, v := range append(c.Env(), w.cfg.MPSLimits.Env(w.cfg.MPSGPUs)...) {
		name, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(name, value); err != nil { // the C library's environment as well
			return err
		}
	}
	return nil
}

// keepMPS is the whole life of a process that keeps a daemon: until its line ends.
func (w *worker) keepMPS() error {
	c, err := w.cfg.control()
	if err != nil {
		return w.line.Send(msgFailed, failure(err), -1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	said := false
	err = mps.Keep(ctx, c, func() error {
		said = true
		go func() {
			defer cancel() // the supervisor is gone, or wants it to end
			w.askMPS(ctx, c)
		}()
		return w.line.Send(msgReady, readyInfo{}, -1)
	})
	if err != nil && !said {
		return w.line.Send(msgFailed, failure(err), -1)
	}
	return err
}

// askMPS passes commands on until the line ends.
func (w *worker) askMPS(ctx context.Context, c *mps.Control) {
	for {
		m, err := w.line.Receive()
		if err != nil {
			return
		}
		closeFD(m.FD)
		var info mpsInfo
		if m.Type != msgMPS || m.Decode(&info) != nil {
			return
		}
		a := answeredInfo{Request: info.Request}
		if a.Answer, err = c.Ask(ctx, info.Command); err != nil {
			a.Error = err.Error()
		}
		if w.line.Send(msgAnswered, a, -1) != nil {
			return
		}
	}
}
