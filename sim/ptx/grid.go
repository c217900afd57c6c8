package ptx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLaunch is what a Grid that cannot be run as described returns, wrapped with the cause.
var ErrLaunch = errors.New("ptx: invalid launch")

// Grid is one launch of a kernel.
type Grid struct {
	Kernel            *Entry
	GridDim, BlockDim [3]uint32
	ClusterDim        [3]uint32 // zero: the kernel's own, or none
	SharedBytes       uint32    // dynamic shared memory
	Params            []byte    // laid out as Kernel.Params says
	Mem               Memory
	Textures          Textures          // nil: none
	Globals           map[string]uint64 // addresses of the module's Globals
	// Cooperative keeps all blocks resident, so that they may wait for one another.
	Cooperative bool
	// Stdout receives what vprintf prints, one Write a call; nil discards it.
	Stdout io.Writer
	// MaxInstructions bounds the warp instructions of the whole grid, 0 is no bound.
	MaxInstructions uint64
	// Workers is the number of goroutines, 0 is GOMAXPROCS.
	Workers int
	// ClockKHz is the rate of %clock and %clock64, 0 is 1 GHz.
	ClockKHz uint64
	// SMs is what %nsmid says and %smid counts to, 0 is 1.
	SMs uint32
}

const (
	maxThreads = 1024
	blockSlice = 1 << 16 // instructions a block executes before the next resident one gets a turn
	maxBlocks  = 64      // resident for each worker, unless the launch is cooperative
)

// gridRun is what the blocks of a running grid share.
type gridRun struct {
	grid      *Grid
	cluster   [3]uint32
	threads   int // of a block
	clusters  uint64
	explicit  bool // somebody asked for clusters, though they may be of one block
	workers   uint64
	sharedLen int
	templates map[*function]*template
	started   time.Time

	next    atomic.Uint64
	stop    atomic.Bool
	left    atomic.Int64 // of MaxInstructions
	once    sync.Once
	fault   *Fault
	printMu sync.Mutex
}

// Run executes the grid and returns when all its blocks have ended: nil, a *Fault, an error that wraps ErrLaunch, or
// ctx's error where that ended it.
func (g *Grid) Run(ctx context.Context) error {
	r, err := g.prepare()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { r.stop.Store(true) })()
	if r.workers == 1 {
		r.work(0)
	} else {
		var wg sync.WaitGroup
		for i := range r.workers {
			wg.Go(func() { r.work(i) })
		}
		wg.Wait()
	}
	if r.fault != nil {
		return r.fault
	}
	if r.stop.Load() {
		return ctx.Err()
	}
	return nil
}

func launchErr(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrLaunch, fmt.Sprintf(format, args...))
}

func (g *Grid) prepare() (*gridRun, error) {
	e := g.Kernel
	if e == nil || g.Mem == nil {
		return nil, launchErr("a grid needs a kernel and memory")
	}
	if err := e.Load(); err != nil {
		return nil, err
	}
	threads, blocks := uint64(1), uint64(1)
	for i := range 3 {
		if g.GridDim[i] == 0 || g.BlockDim[i] == 0 || g.BlockDim[i] > maxThreads || g.GridDim[i] > 1<<31-1 ||
			i > 0 && g.GridDim[i] > 65535 {
			return nil, launchErr("grid %v of blocks %v", g.GridDim, g.BlockDim)
		}
		threads *= uint64(g.BlockDim[i])
		blocks *= uint64(g.GridDim[i])
	}
	if threads > maxThreads || blocks >= 1<<62 {
		return nil, launchErr("%d threads in a block", threads)
	}
	if len(g.Params) < e.ParamSize {
		return nil, launchErr("%d bytes of parameters where %s takes %d", len(g.Params), e.Name, e.ParamSize)
	}
	shared := uint64(e.dynOff) + uint64(g.SharedBytes)
	if shared > maxShared {
		return nil, launchErr("%d bytes of shared memory", shared)
	}
	r := &gridRun{grid: g, threads: int(threads), sharedLen: int(shared), started: time.Now(),
		templates: map[*function]*template{}, cluster: [3]uint32{1, 1, 1}}
	r.explicit = g.ClusterDim != [3]uint32{} || e.ClusterDim != [3]uint32{}
	size := uint64(1)
	for i, d := range g.ClusterDim {
		if d == 0 {
			d = e.ClusterDim[i]
		}
		if d != 0 {
			r.cluster[i] = d
		}
		if g.GridDim[i]%r.cluster[i] != 0 {
			return nil, launchErr("grid %v is no multiple of clusters of %v", g.GridDim, r.cluster)
		}
		if size *= uint64(r.cluster[i]); size > MaxCluster {
			return nil, launchErr("clusters of %v", r.cluster)
		}
	}
	r.clusters = blocks / size
	for _, fn := range e.reach {
		t, err := r.template(fn)
		if err != nil {
			return nil, err
		}
		r.templates[fn] = t
	}
	workers := g.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	r.workers = min(uint64(workers), r.clusters)
	r.left.Store(int64(min(g.MaxInstructions, 1<<63-1)))
	return r, nil
}

// template resolves a function's initial registers for this launch.
func (r *gridRun) template(fn *function) (*template, error) {
	t := &template{}
	for _, s := range fn.inits {
		val := s.val
		switch s.kind {
		case initSpecial, initLocal:
			t.special = append(t.special, s)
			continue
		case initGlobal:
			addr, ok := r.grid.Globals[s.sym]
			if !ok {
				return nil, launchErr("variable %s has no address", s.sym)
			}
			val += addr
		case initShared:
			if r.cluster != [3]uint32{1, 1, 1} {
				t.special = append(t.special, s)
				continue
			}
			val += uint64(r.grid.Kernel.shared[s.v])
		case initUniform:
			val = r.uniform(uniform(s.val))
		}
		t.uniform = append(t.uniform, struct {
			off int
			val uint64
		}{s.off, val})
	}
	return t, nil
}

type uniform uint8

const (
	unNtidX uniform = iota
	unNtidY
	unNtidZ
	unNctaidX
	unNctaidY
	unNctaidZ
	unNclusterX
	unNclusterY
	unNclusterZ
	unClusterDimX
	unClusterDimY
	unClusterDimZ
	unClusterSize
	unWarps
	unSMs
	unDynamicShared
	unTotalShared
)

func (r *gridRun) uniform(u uniform) uint64 {
	g := r.grid
	switch {
	case u <= unNtidZ:
		return uint64(g.BlockDim[u-unNtidX])
	case u <= unNctaidZ:
		return uint64(g.GridDim[u-unNctaidX])
	case u <= unNclusterZ:
		return uint64(g.GridDim[u-unNclusterX] / r.cluster[u-unNclusterX])
	case u <= unClusterDimZ:
		return uint64(r.cluster[u-unClusterDimX])
	}
	size := uint64(r.cluster[0]) * uint64(r.cluster[1]) * uint64(r.cluster[2])
	switch u {
	case unClusterSize:
		return size
	case unWarps:
		return uint64(r.threads+lanes-1) / lanes
	case unSMs:
		return uint64(max(g.SMs, 1))
	case unDynamicShared:
		return uint64(g.SharedBytes)
	case unTotalShared:
		return uint64(r.sharedLen)
	}
	return 0
}

// fail ends the grid with its first fault.
func (r *gridRun) fail(f *Fault) {
	r.once.Do(func() { r.fault = f })
	r.stop.Store(true)
}

// worker is one goroutine of a grid.
type worker struct {
	run     *gridRun
	regions [8]Region
	victim  int
	start   uint64 // the region used last
	bytes   []byte
	ro      bool
	idle    []*cluster
}

func (r *gridRun) work(index uint64) {
	wk := &worker{run: r}
	var resident []*cluster
	limit := 1
	if r.grid.Cooperative {
		for flat := index; flat < r.clusters; flat += r.workers {
			resident = append(resident, wk.begin(flat))
		}
		limit = 0
	}
	for i := 0; !r.stop.Load(); i++ {
		if len(resident) < limit {
			if flat := r.next.Add(1) - 1; flat < r.clusters {
				resident = append(resident, wk.begin(flat))
			} else {
				limit = 0
			}
		}
		if len(resident) == 0 {
			return
		}
		i %= len(resident)
		c := resident[i]
		used, fault := c.step(blockSlice)
		if fault != nil {
			r.fail(fault)
			return
		}
		if c.live() == 0 {
			resident[i] = resident[len(resident)-1]
			resident = resident[:len(resident)-1]
			wk.idle = append(wk.idle, c)
			i--
		} else {
			if limit > 0 {
				// It may wait for a block that has not begun, so let another one in.
				limit = min(len(resident)+1, maxBlocks)
			}
			runtime.Gosched()
		}
		if r.grid.MaxInstructions != 0 && r.left.Add(-int64(used)) < 0 {
			r.fail(c.stuck(Timeout))
			return
		}
	}
}
