package executor

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/nccl"
	"scuda.dev/scuda/server/liveness"
)

// Ranks that are lost (see package liveness). The others' communicators, and the parts that were made of them, have an
// asynchronous error at once, which a program may answer by an abort, or by a shrink that leaves the lost rank out.
// After abortAfter the server aborts: NCCL's kernels may wait for the lost rank, and the program for them.

const abortAfter = 3 * time.Second

// commFailure is what is wrong with a communicator.
type commFailure struct {
	result nccl.Result
	text   string
}

// rankWatch is what a communicator has of it. gone is set by whoever ends it: the program's call, or the server.
type rankWatch struct {
	place  liveness.Place
	splits uint64 // that were begun

	member  atomic.Pointer[liveness.Member] // nil: nobody watches
	failed  atomic.Pointer[commFailure]     // the first: a lost rank, or a call without an answer
	gone    atomic.Bool
	overdue atomic.Pointer[time.Timer]
}

// newHub has the ranks of an id be watched, where that is possible.
func (cl *collectives) newHub(id *nccl.ID) *liveness.Hub {
	h, err := liveness.Listen(id)
	if err != nil {
		cl.log.Debug("the ranks of a communicator are not watched", "error", err)
		return nil
	}
	return h
}

// watchRank begins to watch a communicator that has just begun, where that is possible. It is called on the thread that
// made it.
func (cl *collectives) watchRank(cm *communicator, made nccl.Comm, rank int32, real cuda.CUcontext) {
	if !cm.place.Known() {
		return
	}
	m, err := liveness.Join(cm.place, rank, func(lost int32) { cl.rankLost(cm, made, real, lost) })
	if err != nil {
		cl.log.Warn("the ranks of a communicator are not watched", "error", err)
		return
	}
	cm.member.Store(m)
}

// rankLost is called on a goroutine of its own.
func (cl *collectives) rankLost(cm *communicator, made nccl.Comm, real cuda.CUcontext, rank int32) {
	text := fmt.Sprintf("rank %d of the communicator was lost: its session or its server has ended", rank)
	if rank == liveness.Unknown {
		text = "the server that made the communicator's id was lost"
	}
	cm.failed.CompareAndSwap(nil, &commFailure{nccl.RemoteError, text})
	cl.log.Warn("a rank of a communicator was lost", "rank", rank)
	cm.overdue.Store(time.AfterFunc(cl.abortAfter, func() {
		if !cm.gone.CompareAndSwap(false, true) {
			return
		}
		runtime.LockOSThread() // and ends with this goroutine
		cl.gpu.ThreadInit()
		cl.gpu.CuCtxSetCurrent(real)
		cm.aborted.Store(true)
		r := cl.library.Abort(made)
		cl.log.Warn("a communicator was aborted, as a rank was lost", "result", r)
	}))
}

// unwatch ends the watch. Where the communicator does not end as it should, the other ranks learn of it.
func (cm *communicator) unwatch(fine bool) {
	if t := cm.overdue.Load(); t != nil {
		t.Stop()
	}
	switch m := cm.member.Load(); {
	case m == nil:
	case fine:
		m.Leave()
	default:
		m.Drop()
	}
}
