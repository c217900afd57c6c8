package executor

import (
	"log/slog"
	"sync/atomic"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/handle"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/server/quota"
)

// base is what the loop and all engines build on: the driver and memory for the arguments of its calls, the session's
// handles, contexts and streams, the launches that were read and not yet made, and the first failure of an unanswered
// command.
//
// No locks: it belongs to the executor's thread alone, but for gpu, log and metrics, which never change and are used
// by every thread.
type base struct {
	gpu      cuda.GPU
	quota    *quota.GPU    // is gpu; nil: there is no limit of its memory
	launcher cuda.Launcher // nil where the GPU launches one by one
	log      *slog.Logger
	metrics  *metrics.Page
	arena    arena
	host     budget // of the machine's memory
	pinned   budget // of it page-locked
	table    *handle.Table
	handles  *handles

	came     int64   // when there was last something on the connection, by metrics.Now
	commands uint64  // carried out, with this one
	cmd      command // the one being carried out
	params   args    // of it
	run      run
	refused  map[cuda.Part]bool // what was logged as not supported

	entered    *context
	enteredOK  bool // the driver's current context is that of entered
	contexts   map[uint64]*context
	streams    map[uint64]*stream
	threads    map[uint32]*thread
	captures   map[cuda.CUstream]capture
	threadMode bool // within inThreadMode
	barriers   barriers
	largeSlots int          // staging slots of a context
	lastDevice atomic.Int32 // of the context that was made last

	order    workOrder // nil: the program shares no memory with others
	pacer    pacer     // nil: the GPU may have as much work at a time as the driver takes
	asyncErr cuda.CUresult
}

// workOrder is what a session that shares memory with others is told of its work, so that the others know how far it
// has come.
type workOrder interface {
	handedOver()       // the driver has all commands so far
	limitWork(*stream) // one more command is about to be enqueued
}

// pacer bounds the work that the GPU has at a time.
type pacer interface {
	mark(*stream) // one more command is about to be enqueued
}

// newBase prepares it, but for the memory and the handles.
func newBase(cfg Config, table *handle.Table) base {
	launcher, _ := cfg.GPU.(cuda.Launcher)
	gpu, limited := cfg.GPU, newQuota(&cfg)
	if limited != nil {
		gpu = limited
	}
	return base{
		gpu:        gpu,
		quota:      limited,
		launcher:   launcher,
		log:        cfg.Log,
		metrics:    cfg.Metrics,
		host:       newBudget(&cfg, cfg.Limits.HostMemory, "max-host-memory", metrics.RefusedHost),
		pinned:     newBudget(&cfg, cfg.Limits.PinnedMemory, "max-pinned-memory", metrics.RefusedPinned),
		table:      table,
		largeSlots: cfg.Staging,
		refused:    make(map[cuda.Part]bool),
		contexts:   make(map[uint64]*context),
		streams:    make(map[uint64]*stream),
		threads:    make(map[uint32]*thread),
		captures:   make(map[cuda.CUstream]capture),
	}
}

// newQuota bounds the GPUs' memory, where it is bounded.
func newQuota(cfg *Config) *quota.GPU {
	l := cfg.Limits
	if l.MostVRAM() == 0 {
		return nil
	}
	together, name := l.TenantVRAM, "max-vram-per-tenant"
	if cfg.Seat != nil {
		together = config.Size(cfg.Seat.Bound(uint64(l.TenantVRAM), uint64(l.LeaseVRAM)))
	}
	if together != l.TenantVRAM {
		name = "memory of the lease"
	}
	own := newBudget(cfg, l.VRAM, "max-vram", metrics.RefusedVRAM)
	all := newBudget(cfg, together, name, metrics.RefusedTenantVRAM)
	var account quota.Account
	if cfg.Seat != nil {
		account = cfg.Seat
	}
	return quota.New(cfg.GPU, quota.Limit{Bytes: own.limit, Refused: own.refuse},
		quota.Limit{Bytes: all.limit, Refused: all.refuse}, account)
}

// refuse is the answer to what functions do not support though they work otherwise. The client knows the function's
// name, and logs it.
func (b *base) refuse(p cuda.Part) cuda.CUresult {
	if !b.refused[p] {
		b.refused[p] = true
		b.log.Warn("a call is not supported; CUDA_ERROR_NOT_SUPPORTED (801) was answered", "what", p)
	}
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}

// unanswered keeps the failure of a command that is not answered.
func (b *base) unanswered(op uint16, r cuda.CUresult) {
	b.log.Debug("an unanswered call failed", "function", OpName(op), "result", resultText(r))
	b.countError(r)
	if r == cuda.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED {
		return // the capture's end says so too; a later call that has nothing to do with it must not
	}
	b.keepAsyncError(r)
}

func (b *base) countError(r cuda.CUresult) {
	if r != cuda.CUDA_SUCCESS && r != cuda.CUDA_ERROR_NOT_READY {
		b.metrics.Error(int32(r))
	}
}

func (b *base) keepAsyncError(r cuda.CUresult) {
	if b.asyncErr == cuda.CUDA_SUCCESS {
		b.asyncErr = r
	}
}

// withAsyncError lets a successful answer report the first failure of an unanswered command.
func (b *base) withAsyncError(r cuda.CUresult) cuda.CUresult {
	if r == cuda.CUDA_SUCCESS {
		r, b.asyncErr = b.asyncErr, cuda.CUDA_SUCCESS
	}
	return r
}

func (b *base) args(c *command) *args {
	b.params.Reset(c.payload)
	return &b.params
}

// handleReply is the answer to one `ret` handle.
func (b *base) handleReply(kind cuda.Kind, real, parent uint64) []byte {
	type one struct{ n, handle uint64 }
	v := alloc[one](&b.arena)
	v.n, v.handle = 1, b.table.Client(kind, real, parent)
	return wire.Bytes(v)
}

// clientHandle is the client's handle of an object of the driver's, 0 where it has none.
func (b *base) clientHandle(kind cuda.Kind, real uint64) uint64 {
	h, _ := b.table.Find(kind, real)
	return h
}
