package executor

import (
	"unsafe"

	"scuda.dev/scuda/api/class"
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/server/metrics"
)

const (
	runMost     = 32  // launches of a run
	runPointers = 128 // parameters of a run; a launch with more goes alone
)

// run is the launches that have been read and not yet made: those that follow each other go to the driver together.
// Everything else that the executor does with the driver comes behind them; see launchAll.
type run struct {
	list     []cuda.Launch
	params   []unsafe.Pointer
	n        int
	pointers int
}

// newRun makes a run of memory outside of Go's heap.
func newRun() (run, error) {
	list := runMost * int(unsafe.Sizeof(cuda.Launch{}))
	mem, err := mapMemory(list + runPointers*8)
	if err != nil {
		return run{}, err
	}
	return run{
		list:   unsafe.Slice((*cuda.Launch)(pointerTo(mem)), runMost),
		params: unsafe.Slice((*unsafe.Pointer)(pointerTo(mem[list:])), runPointers),
	}, nil
}

func (r *run) free() {
	if r.list != nil {
		bytes := runMost*int(unsafe.Sizeof(cuda.Launch{})) + runPointers*8
		unmapMemory(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(r.list))), bytes))
	}
}

// room says whether a launch with so many parameters fits.
func (r *run) room(params int) bool { return r.n < runMost && params <= runPointers-r.pointers }

// place gives memory for the addresses of a launch's parameters.
func (r *run) place(params int) []unsafe.Pointer {
	p := r.params[r.pointers : r.pointers+params]
	r.pointers += params
	return p
}

// add gives the place of the next launch.
func (r *run) add() *cuda.Launch {
	r.n++
	return &r.list[r.n-1]
}

// launchAll makes the launches of the run. It is called before anything else that happens in the driver in the order
// of the commands, and before their memory in the input buffer is used again. None of them is answered: failures are
// kept.
func (b *base) launchAll() {
	if b.run.n == 0 {
		if b.order != nil {
			b.order.handedOver()
		}
		return
	}
	list := b.run.list[:b.run.n]
	b.run.n, b.run.pointers = 0, 0
	began := metrics.Now()
	if b.launcher != nil {
		b.launcher.LaunchAll(list)
	} else {
		for i := range list {
			l := &list[i]
			l.Result = b.gpu.CuLaunchKernel(l.Function, l.Grid[0], l.Grid[1], l.Grid[2],
				l.Block[0], l.Block[1], l.Block[2], l.Shared, l.Stream, driverPointer(l.Params), nil)
		}
	}
	b.metrics.Observe(metrics.Histogram(class.Launch), (metrics.Now()-began)/int64(len(list)))
	for i := range list {
		if r := list[i].Result; r != cuda.CUDA_SUCCESS {
			b.unanswered(wire.OpLaunch, r)
		}
	}
	if b.order != nil {
		b.order.handedOver()
	}
}

// driverPointer makes a pointer of an address outside of Go's heap.
func driverPointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
