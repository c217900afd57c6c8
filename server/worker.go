package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nccl"
	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/driver/cupti"
	ncclibrary "scuda.dev/scuda/driver/nccl"
	"scuda.dev/scuda/driver/real"
	"scuda.dev/scuda/server/addresses"
	"scuda.dev/scuda/server/commons"
	"scuda.dev/scuda/server/executor"
	"scuda.dev/scuda/server/handoff"
	"scuda.dev/scuda/server/isolation"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/nvmldispatch"
	"scuda.dev/scuda/server/probe"
	"scuda.dev/scuda/server/stdio"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/sim/board"
	"scuda.dev/scuda/transport"
)

// controlFD is the worker's end of the line to the supervisor.
const controlFD = 3

// hangLimit is how long a session may take to end after its client is gone. A driver call that does not return by then
// (a kernel without end) is ended with the process.
const hangLimit = time.Second

// Worker is the main program of a worker process. It returns when its session is over or the supervisor is gone; the
// caller then exits, which is what frees the session's GPU memory. ctx is not watched: the supervisor says when to
// stop.
func Worker(context.Context) error {
	unix.CloseOnExec(controlFD)
	f := os.NewFile(controlFD, "control")
	if f == nil {
		return errors.New("a worker is started by the server, not by hand")
	}
	line, err := handoff.FromFile(f)
	if err != nil {
		return fmt.Errorf("a worker is started by the server, not by hand: %w", err)
	}
	w := &worker{
		line: line, sharer: &sharer{line: line}, images: &imageClient{line: line}, work: make(chan func() error, 1),
		told: make(chan processList, 1),
	}
	return w.run()
}

type worker struct {
	cfg     workerConfig
	line    *handoff.Conn
	log     *slog.Logger
	work    chan func() error
	told    chan processList // answers to processes
	session atomic.Pointer[executor.Session]
	sharer  *sharer
	images  *imageClient
	over    atomic.Bool // the session has ended; the process is about to

	gpu      cuda.GPU
	recorder cuda.Recorder // nil: the GPU itself
	machine  *probe.Machine
	nvml     nvml.Driver
	text     *stdio.Capture
	page     *metrics.Shared
	seat     *commons.Seat   // comes before the session
	ender    *ender          // of an NVML session; of the goroutine that listens
	kept     *addresses.Kept // nil: any address
	lines    *lines          // of a session that outlives its sockets, else nil; set before there is one
}

func (w *worker) run() error {
	// The session runs on this thread; the driver is initialised on it as well.
	runtime.LockOSThread()
	m, err := w.line.Receive()
	if err == nil && m.Type != msgPage {
		err = fmt.Errorf("%w: %q instead of a page", handoff.ErrMalformed, m.Type)
	}
	if err == nil {
		w.page, err = metrics.OpenPage(m.FD)
	}
	if err == nil {
		m, err = w.line.Receive()
	}
	if err == nil && m.Type != msgConfig {
		err = fmt.Errorf("%w: %q instead of a configuration", handoff.ErrMalformed, m.Type)
	}
	if err == nil {
		err = m.Decode(&w.cfg)
	}
	if err == nil {
		w.cfg.board = os.NewFile(uintptr(m.FD), "board")
	}
	if err != nil {
		return err
	}
	own := stdio.Private()
	w.log = slog.New(w.cfg.LogFormat.Handler(own, slog.Level(w.cfg.LogLevel))).With("worker", os.Getpid())
	slog.SetDefault(w.log)
	if w.cfg.Mode == modeCUDA {
		if err := debug.SetCrashOutput(own, debug.CrashOptions{}); err != nil {
			return err
		}
		if w.text, err = stdio.Redirect(); err != nil {
			return err
		}
	}
	if w.cfg.Mode == modeMPS {
		return w.keepMPS()
	}
	ready, err := w.open()
	if err == nil {
		ready.Isolation = isolation.Apply(w.cfg.Isolation, w.cfg.Profile)
	}
	if err != nil {
		return w.line.Send(msgFailed, failure(err), -1)
	}
	if err := w.line.Send(msgReady, ready, -1); err != nil {
		return err
	}
	go w.listen()
	work, ok := <-w.work
	if !ok {
		return nil
	}
	ended := endedInfo{}
	err = w.lines.ending(work())
	w.over.Store(true)
	if ended.How = howEnded(err); err != nil {
		ended.Reason = err.Error()
	}
	if s := w.session.Load(); s != nil {
		ended.Calls = s.Calls()
	}
	w.logText()
	return w.line.Send(msgEnded, ended, -1)
}

// howEnded says in the words of the metrics how a session ended.
func howEnded(err error) string {
	switch {
	case err == nil:
		return metrics.EndClosed
	case errors.As(err, new(*awayError)):
		return metrics.EndAway
	case errors.Is(err, executor.ErrEnded):
		return metrics.EndLeft
	case errors.Is(err, executor.ErrTime):
		return metrics.EndLimited
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.EHOSTUNREACH):
		return metrics.EndTimeout
	}
	return metrics.EndBroken
}

// logText logs what the driver had to say that was no kernel's.
func (w *worker) logText() {
	if w.text == nil {
		return
	}
	if text := w.text.Take(stdio.Error, 4096); text != nil {
		w.log.Warn("the driver wrote to its standard error", "text", string(text))
	}
}

// open opens the driver for the worker's mode.
func (w *worker) open() (*readyInfo, error) {
	if w.cfg.Mode == modeNVML {
		info, err := w.openNVML()
		if err == nil {
			_ = w.nvml.NvmlInit_v2() // takes long; the client's own finds it done, or says what is wrong
		}
		return info, err
	}
	info := &readyInfo{GPU: w.cfg.GPU}
	if err := w.keepToWindow(); err != nil {
		return nil, err
	}
	if err := w.joinMPS(); err != nil {
		return nil, err
	}
	if w.cfg.Visible != "" {
		if err := os.Setenv(sim.VisibleDevices, w.cfg.Visible); err != nil { // the C library's environment as well
			return nil, err
		}
	}
	err := w.openGPU(info.GPU)
	if w.cfg.GPU == "auto" {
		if info.GPU = "real"; err != nil {
			level := slog.LevelDebug
			if _, missing := os.Stat("/dev/nvidiactl"); missing == nil { // isolation may be what is in the way
				level = slog.LevelWarn
			}
			w.log.Log(context.Background(), level, "no usable driver; the simulated GPU serves", "error", err)
			info.GPU = "sim"
			err = w.openGPU(info.GPU)
		}
	}
	if err != nil {
		return nil, err
	}
	info.DriverVersion, info.Devices = w.machine.DriverVersion, w.machine.Devices
	if err := allSeen(info.Devices, w.cfg.Visible); err != nil {
		return nil, err
	}
	if info.Driver = "simulated"; info.GPU == "real" {
		info.Driver = kernelDriver()
	}
	return info, nil
}

func (w *worker) openGPU(kind string) (err error) {
	switch kind {
	case "sim":
		w.gpu, err = w.openSim()
	case "real", "auto":
		w.gpu, err = real.Open(w.cfg.Library)
		w.recorder = cupti.New("")
	default:
		return fmt.Errorf("unknown GPU kind %q; it is real, sim or auto", kind)
	}
	if err == nil {
		err = w.begin()
	}
	if err == nil {
		w.machine, err = probe.Run(w.gpu)
	}
	return err
}

func (w *worker) simConfig() (sim.Config, error) {
	shared, err := board.Open(w.cfg.board)
	if err != nil {
		return sim.Config{}, err
	}
	return simOf(w.cfg.Sim, sim.Config{Devices: w.cfg.SimDevices, MemoryBytes: w.cfg.SimMemory, Log: w.log, Board: shared,
		Exchange: exchange{w.sharer}})
}

// simOf is the simulated machine of a configuration, with what the environment and a specification say of it.
func simOf(spec string, cfg sim.Config) (sim.Config, error) {
	cfg, err := sim.FromEnvironment(cfg, os.Getenv)
	if err != nil || spec == "" {
		return cfg, err
	}
	return sim.ParseSpec(cfg, spec)
}

func (w *worker) openSim() (cuda.GPU, error) {
	cfg, err := w.simConfig()
	if err != nil {
		return nil, err
	}
	g, err := sim.Open(cfg)
	if err != nil {
		return nil, err // not a nil *sim.GPU in an interface
	}
	return g, nil
}

func (w *worker) openNVML() (*readyInfo, error) {
	info := &readyInfo{GPU: w.cfg.GPU}
	var err error
	if w.cfg.GPU != "sim" {
		var lib *real.NVML
		if lib, err = real.OpenNVML(nvmlBeside(w.cfg.Library)); err == nil {
			w.nvml, info.GPU, info.Driver = lib, "real", kernelDriver()
			return info, nil
		}
		if w.cfg.GPU != "auto" {
			return nil, err
		}
	}
	cfg, err := w.simConfig()
	if err != nil {
		return nil, err
	}
	drv, err := sim.OpenNVML(cfg)
	if err != nil {
		return nil, err
	}
	w.nvml, info.GPU, info.Driver = drv, "sim", "simulated"
	return info, nil
}

// nvmlBeside gives the management library that lies beside a driver library that was named with its path.
func nvmlBeside(library string) string {
	if i := strings.LastIndexByte(library, '/'); i >= 0 {
		return library[:i+1] + real.DefaultNVML
	}
	return ""
}

// kernelDriver is the version of the kernel module.
func kernelDriver() string {
	f, err := os.Open("/proc/driver/nvidia/version")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, 4096)).ReadString('\n')
	for word := range strings.FieldsSeq(line) {
		if word[0] >= '0' && word[0] <= '9' && strings.Contains(word, ".") {
			return word
		}
	}
	return "unknown"
}

// listen follows the supervisor. When that is gone, so is the worker, whatever its session is doing.
func (w *worker) listen() {
	for {
		m, err := w.line.Receive()
		if err != nil {
			if w.session.Load() == nil {
				os.Exit(0)
			}
			w.log.Error("the server process is gone; its sessions end")
			w.leaveWord()
			os.Exit(1)
		}
		switch m.Type {
		case msgCommons:
			err = w.sit(m)
		case msgSession:
			err = w.openSession(m)
		case msgCallback, msgBulk, msgRDMA, msgResume:
			err = w.join(m)
		case msgPeer:
			err = w.joinPeer(m)
		case msgProcesses:
			closeFD(m.FD)
			err = w.toldProcesses(m)
		case msgShared:
			err = w.sharer.answered(m)
		case msgImage:
			err = w.images.answered(m)
		case msgGPUs:
			closeFD(m.FD)
			err = w.line.Send(msgGPUs, w.readGPUs(), -1)
		case msgAdopt:
			closeFD(m.FD)
			w.log.Info("another server process has taken over")
			err = w.adopted()
		case msgGo:
			closeFD(m.FD)
			err = errors.Join(w.sharer.resume(), w.images.resume())
		case msgNotice:
			closeFD(m.FD)
			var info noticeInfo
			if err = m.Decode(&info); err == nil {
				if s := w.session.Load(); s != nil {
					s.Notice(info.Text)
				} else if info.Last && w.ender != nil {
					w.ender.end(info.Text)
				}
			}
		default:
			closeFD(m.FD)
		}
		if err != nil {
			w.log.Error("cannot do what the server asks for", "request", m.Type, "error", err)
			if m.Type == msgSession {
				os.Exit(1)
			}
		}
	}
}

// leaveWord tells the client of a session why that ends. The client has a moment to read it: what is on its way is lost
// with a connection that ends with something unread.
func (w *worker) leaveWord() {
	s := w.session.Load()
	if s == nil {
		return
	}
	go s.Notice("the server process is gone, and nobody has taken its sessions over; this one ends")
	time.Sleep(farewell)
}

// adopted tells another supervisor what it has to know, and asks it nothing until it is ready.
func (w *worker) adopted() error {
	return w.images.hold(func() error {
		return w.sharer.hold(func() error {
			if err := w.sharer.tellAll(); err != nil {
				return err
			}
			return w.line.Send(msgAdopted, struct{}{}, -1)
		})
	})
}

// sit takes the session's place among those of its tenant.
func (w *worker) sit(m *handoff.Message) error {
	var info commonsInfo
	err := m.Decode(&info)
	if err == nil && w.seat != nil {
		err = fmt.Errorf("%w: a second place for one worker", handoff.ErrMalformed)
	}
	if err != nil {
		closeFD(m.FD)
		return err
	}
	w.seat, err = commons.Open(m.FD, info.Place)
	return err
}

// openSession prepares the worker's one session, which the main goroutine carries out.
func (w *worker) openSession(m *handoff.Message) error {
	var info sessionInfo
	if err := m.Decode(&info); err != nil {
		closeFD(m.FD)
		return err
	}
	conn, err := transport.NewTLSConn(m.FD, info.Remote, info.TLS)
	if err != nil {
		closeFD(m.FD)
		return err
	}
	log := w.log.With("session", info.ID)
	if info.Grace > 0 {
		w.lines = newLines(info.Grace, log, w.page.Page)
		r, err := w.lines.resumable(transport.LineMain, 0, conn, transport.MainWindows)
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		conn = r
	}
	var work func() error
	if w.cfg.Mode == modeNVML {
		options := nvmldispatch.Options{
			Settings:  w.cfg.Settings,
			Processes: func() []nvmldispatch.Process { return w.askWho().Processes },
			Memory:    func() nvmldispatch.Memory { return w.askWho().Memory },
			GPUs:      info.GPUs,
			Log:       log,
		}
		last := &ender{fd: conn.FD()}
		w.ender = last
		work = func() error {
			return serveNVML(conn, nvmldispatch.New(w.nvml, options), info.Welcome, transport.Beat, last)
		}
	} else {
		s, err := executor.New(executor.Config{Conn: conn, GPU: w.gpu, Hello: info.Hello, Images: w.keeper(),
			Staging: w.cfg.Staging, RDMASlots: w.cfg.RDMASlots, RDMADevice: w.cfg.RDMADevice, GPUDirect: w.cfg.GPUDirect,
			Limits: info.Limits, Abort: w.abort, Log: log, Metrics: w.page.Page, Primary: w.machine.Retained,
			Sharer: w.sharer, Seat: w.seat, Turn: w.page.Turn, Text: w.text, Recorder: w.recorder,
			NCCL: w.nccl(), NoNCCL: w.noNCCL(), Room: w.room()})
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		w.session.Store(s)
		work = s.Run
	}
	if r, ok := conn.(*transport.Resumable); ok {
		go func() {
			<-r.Ended()
			w.endStuck(log)
		}()
	} else {
		watch, err := unix.FcntlInt(uintptr(m.FD), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		go w.watch(watch, log)
	}
	select {
	case w.work <- work:
		return nil
	default:
		return errors.New("a second session for one worker")
	}
}

// noNCCL says why no session of this worker has NCCL; "": it has.
func (w *worker) noNCCL() string {
	switch {
	case !w.cfg.Fabric:
		return "the server does not carry it out: NCCL's connections between servers are neither encrypted nor " +
			"authenticated, so its operator has to say that their network is trusted (scuda serve --fabric trusted)"
	case w.cfg.Profile&isolation.NCCL == 0:
		return "the server does not let this tenant's sessions connect to other machines (scuda serve --profiles nccl, or " +
			"profiles=nccl in its tenants file)"
	case w.recorder == nil:
		return "the simulated GPU of --gpu sim has no NCCL"
	}
	return ""
}

// nccl is the session's NCCL, if it has one.
func (w *worker) nccl() nccl.Library {
	if w.noNCCL() != "" {
		return nil
	}
	return ncclibrary.New(w.cfg.NCCL)
}

// keeper keeps the session's images, if anybody does.
func (w *worker) keeper() executor.Images {
	if !w.cfg.Images {
		return nil
	}
	return w.images
}

// watch ends the process when the client is gone and the session does not notice: it is stuck in the driver.
func (w *worker) watch(fd int, log *slog.Logger) {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n > 0 {
			break
		}
	}
	w.endStuck(log)
}

// endStuck ends the process of a session whose client is gone, if it does not end by itself.
func (w *worker) endStuck(log *slog.Logger) {
	time.Sleep(hangLimit)
	if w.over.Load() {
		return
	}
	log.Warn("the client is gone and the driver does not return; the worker ends")
	err := w.lines.ending(fmt.Errorf("%w while the GPU was busy", executor.ErrEnded))
	_ = w.line.Send(msgEnded, endedInfo{How: howEnded(err), Reason: err.Error()}, -1)
	os.Exit(1)
}

// abort ends the process though the driver does not return.
func (w *worker) abort(err error) {
	if w.over.Load() {
		return
	}
	_ = w.line.Send(msgEnded, endedInfo{Reason: err.Error(), How: howEnded(err)}, -1)
	os.Exit(1)
}
