// Package sim is a simulated GPU: it implements the driver interfaces of api/cuda and api/nvml on CPU threads, so that
// everything above the driver can be tested where no GPU is.
//
// It keeps the driver's rules rather than a device's speed: contexts are current per OS thread, streams run
// asynchronously and in order (each a queue of tasks that may wait for tasks of other streams), the legacy stream waits
// for the blocking streams and they for it, events mark places in streams, captures turn submissions into graph nodes,
// and a kernel that faults poisons its context. Device addresses are addresses of this process, inside ranges reserved
// for each device, so a kernel's access is a look-up in the table of live allocations (memory) and nothing more.
// Kernels are run from PTX by package sim/ptx.
//
// Files are named by subject: device, context, stream, event, capture, graph, module, memory, copy, texture. What has
// state of its own is a type with methods: scheduler (schedule.go), graphs (graph.go), virtualMemory
// (memory_virtual.go), memory (memory.go), gate (hold.go), objects (object.go). GPU has the functions of the driver
// interface, which call them. raw_unsafe.go alone imports unsafe.
//
// Locking: gpu.mu guards every object but memory contents; no call waits for work while it holds it.
package sim

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/board"
)

const ok = cuda.CUDA_SUCCESS

// Config says what the simulated machine looks like.
type Config struct {
	Devices     int          // number of GPUs, default 1
	MIG         int          // instances of MIG into which each GPU is split; 0: none
	MemoryBytes uint64       // memory of each GPU; default the smaller of 8 GiB and half of the machine's memory
	Name        string       // device name, default the preset's
	Driver      int          // CUDA version that the driver says it is of, such as 12020; default 13000
	Capability  uint32       // compute capability times ten, default 90, an H200's; see capability
	Preset      string       // "h200" or "small"; default an H200 in all but its name and its memory
	Log         *slog.Logger // default slog.Default()
	Stdout      io.Writer    // where kernels' printf goes, default os.Stdout
	Stderr      io.Writer    // where kernels' assert goes, default os.Stderr
	Visible     string       // which GPUs the process sees, as CUDA_VISIBLE_DEVICES says it; "": all
	Board       *board.Board // where load and memory in use are told to NVML; default one that nobody else knows

	// Exchange passes memory files between processes; nil: they open each other's through /proc, which takes one user,
	// and processes that may look into each other.
	Exchange Exchange

	// KernelTime and KernelInstructions (of warps) end kernels that go on for longer; 0 is no limit.
	KernelTime         time.Duration
	KernelInstructions uint64
	// Turns has each GPU work for one kernel at a time, whichever process it is of, and for at least so long; 0: each
	// process has the GPUs to itself.
	Turns    time.Duration
	Faults   Faults
	Contents Contents // of memory that was freed
	// Hold names the calls that are held up until the context's work is over, joined by "+"; see [HoldAll].
	Hold string

	alone bool   // a program without a server; only that may name the file of its board
	file  string // of the board; "": the user's
}

// Contents says what new memory of a device holds.
type Contents int

const (
	ContentsClear   Contents = iota // zeros
	ContentsProcess                 // what the process itself has left there, else zeros
	ContentsMachine                 // what any process has left there
)

// ErrConfig is wrapped by errors about a Config that no machine can have.
var ErrConfig = errors.New("sim: bad configuration")

const maxDevices = board.Devices

func (c Config) withDefaults() (Config, error) {
	if c.Devices == 0 {
		c.Devices = 1
	}
	if c.Devices < 0 || c.Devices > maxDevices {
		return c, fmt.Errorf("%w: %d devices; choose 1 to %d", ErrConfig, c.Devices, maxDevices)
	}
	if c.MIG < 0 || c.MIG > maxInstances || c.Devices*max(c.MIG, 1) > maxDevices {
		return c, fmt.Errorf("%w: mig=%d; choose 0 to %d instances, and no more than %d of all GPUs", ErrConfig, c.MIG,
			maxInstances, maxDevices)
	}
	kind, known := presets[c.Preset]
	if !known {
		return c, fmt.Errorf("%w: preset %q; choose h200 or small", ErrConfig, c.Preset)
	}
	if c.Driver == 0 {
		c.Driver = driverVersion
	}
	if c.Driver < oldestDriver || c.Driver > newestDriver {
		return c, fmt.Errorf("%w: driver %d; choose %d (CUDA %d.%d) to %d", ErrConfig, c.Driver, oldestDriver,
			oldestDriver/1000, oldestDriver%1000/10, newestDriver)
	}
	if c.Capability == 0 {
		c.Capability = defaultCapability
	}
	if capabilityOf(c.Capability) == nil {
		return c, fmt.Errorf("%w: compute capability %d.%d; choose one of %s", ErrConfig, c.Capability/10, c.Capability%10,
			capabilities())
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = kind.memory
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err == nil {
			c.MemoryBytes = min(c.MemoryBytes, info.Totalram*uint64(info.Unit)/2)
		}
	}
	c.MemoryBytes &^= vmmGranularity - 1
	if c.instanceMemory() == 0 && c.MemoryBytes > 0 {
		return c, fmt.Errorf("%w: mig=%d of %d bytes; choose more memory or fewer instances: 2 MiB of each",
			ErrConfig, c.MIG, c.MemoryBytes)
	}
	if c.MemoryBytes == 0 || c.MemoryBytes > 1<<40 {
		return c, fmt.Errorf("%w: %d bytes of device memory; choose 2 MiB to 1 TiB", ErrConfig, c.MemoryBytes)
	}
	if c.Name == "" {
		c.Name = kind.name
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	return c, nil
}

// GPU is the simulated driver with its devices. Its methods may be called from any thread; what is "current" belongs to
// the OS thread, so callers lock their goroutine to one.
type GPU struct {
	cuda.Unimplemented
	recorder

	cfg        Config
	log        *slog.Logger
	capability *capability
	devices    []*device
	mem        memory
	arrays     sync.Map // CUarray → *array
	textures   sync.Map // handle → *texture
	strings    stringArena
	vmm        virtualMemory
	work       scheduler
	graphs     graphs
	kernels    atomic.Uint64 // that began
	seat       *board.Seat

	mu           sync.Mutex
	initialised  bool
	closed       bool
	threads      map[int]*thread
	objects      objects
	contexts     map[*cudaContext]struct{}
	captures     map[*capture]struct{}
	lent         lending
	sharedEvents []*sharedState
	gate         gate
	allocs       uint64 // of device memory, as Faults count them
	lastID       uint64 // contexts, streams, captures, allocations
}

var _ cuda.GPU = (*GPU)(nil)

// Open makes the machine that cfg describes. Close frees it.
func Open(cfg Config) (*GPU, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &GPU{
		cfg: cfg, log: cfg.Log, capability: capabilityOf(cfg.Capability),
		threads:  map[int]*thread{},
		contexts: map[*cudaContext]struct{}{},
		captures: map[*capture]struct{}{}, lent: lending{cfg.Exchange, map[int]Name{}},
	}
	g.objects.init()
	g.recorder.of = g
	g.work.mu, g.work.failed = &g.mu, g.workFailed
	g.graphs = graphs{work: &g.work, objects: &g.objects, free: g.freeOwned}
	if err := g.gate.init(cfg.Hold, &g.mu); err != nil {
		return nil, fmt.Errorf("%w: hold=%s: %w", ErrConfig, cfg.Hold, err)
	}
	if cfg.Board == nil {
		cfg.Board = board.Private()
	}
	if g.seat, err = cfg.Board.Join(); err != nil {
		cfg.Log.Warn("sim: NVML will not see what this process does", "error", err)
		if g.seat, err = board.Private().Join(); err != nil {
			return nil, err
		}
	}
	for ordinal, number := range cfg.visible() {
		d, err := newDevice(g, number, ordinal)
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
		g.devices = append(g.devices, d)
	}
	return g, nil
}

// Close stops what runs (kernels are cancelled, host functions are waited for) and frees all memory.
func (g *GPU) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	for c := range g.contexts {
		c.stop(cuda.CUDA_ERROR_DEINITIALIZED)
	}
	g.mu.Unlock()
	g.work.tasks.Wait()

	var errs []error
	g.mu.Lock()
	for c := range g.contexts {
		g.freeContext(c)
	}
	g.mu.Unlock()
	for _, r := range g.mem.all() {
		errs = append(errs, g.freeRegion(r))
	}
	errs = append(errs, g.vmmClose(), g.strings.close(), g.closeSharedEvents())
	for _, d := range g.devices {
		errs = append(errs, d.arena.close())
	}
	g.seat.Leave()
	return errors.Join(errs...)
}

// CuInit makes the other calls usable.
func (g *GPU) CuInit(flags uint32) cuda.CUresult {
	if flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return cuda.CUDA_ERROR_DEINITIALIZED
	}
	if len(g.devices) == 0 {
		return cuda.CUDA_ERROR_NO_DEVICE
	}
	g.initialised = true
	return ok
}

const (
	driverVersion = 13000 // the CUDA version whose behaviour is simulated
	oldestDriver  = 11040 // that a driver may say it is of
	newestDriver  = 13090
	tellsParams   = 12040 // from which version on a driver tells the parameters of kernels
)

func (g *GPU) CuDriverGetVersion(version *int32) cuda.CUresult {
	if version == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*version = int32(g.cfg.Driver)
	return ok
}

func (g *GPU) CuModuleGetLoadingMode(mode *cuda.CUmoduleLoadingMode) cuda.CUresult {
	if mode == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	*mode = cuda.CU_MODULE_EAGER_LOADING
	return ok
}

// ready locks the GPU for a call that needs no context. On success the caller unlocks g.mu.
func (g *GPU) ready() cuda.CUresult {
	g.mu.Lock()
	g.passGate()
	var r cuda.CUresult
	switch {
	case g.closed:
		r = cuda.CUDA_ERROR_DEINITIALIZED
	case !g.initialised:
		r = cuda.CUDA_ERROR_NOT_INITIALIZED
	default:
		return ok
	}
	g.mu.Unlock()
	return r
}

// enter locks the GPU for a call in the calling thread's current context, which has not failed. On success the caller
// unlocks g.mu.
func (g *GPU) enter() (*cudaContext, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return nil, r
	}
	c, r := g.currentOf(g.thread())
	if r == ok {
		r = c.usable()
	}
	if r != ok {
		g.mu.Unlock()
		return nil, r
	}
	return c, ok
}

func (g *GPU) nextID() uint64 {
	g.lastID++
	return g.lastID
}
