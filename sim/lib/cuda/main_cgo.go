// Command cuda is the stand-alone simulation of the CUDA driver, built with -buildmode=c-shared: libcuda.so.1, which
// sim/lib/front makes, loads it and calls package sim through sim_call. SCUDA_SIM says what is simulated (docs/sim.md).
package main

/*
#cgo CFLAGS: -O1 -std=c11
#include <stdint.h>
#include <stdio.h>
static inline void put(const void *text, size_t n, int error) { fwrite(text, 1, n, error ? stderr : stdout); }
static inline void run_host(uintptr_t f, uintptr_t data) { ((void (*)(void *))f)((void *)data); }
static inline void run_callback(uintptr_t f, uint64_t stream, int32_t status, uintptr_t data) {
  ((void (*)(uint64_t, int32_t, void *))f)(stream, status, (void *)data);
}
*/
import "C"

import (
	"log/slog"
	"os"
	"sync"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/driver/invoke"
	"scuda.dev/scuda/sim"
)

// perThread in an operation asks for the _ptds form; the exports that api/gen writes have the same.
const perThread = 1 << 30

// gpu is the machine that all calls of the process are about, or nil if its settings are wrong.
var gpu = sync.OnceValue(func() cuda.Driver {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg, err := sim.OfProgram(sim.Config{Log: log, Stdout: stdio{}, Stderr: stdio{errors: true}}, os.Getenv)
	if err != nil {
		log.Error(err.Error())
		return nil
	}
	g, err := sim.Open(cfg)
	if err != nil {
		log.Error(err.Error())
		return nil
	}
	return driver{g, &sync.Map{}}
})

// sim_ready returns once Go runs, which is when it has taken the process's signals.
//
//export sim_ready
func sim_ready() {}

//export sim_call
func sim_call(op C.int32_t, w *C.uint64_t) C.uint64_t {
	d := gpu()
	if d == nil {
		return C.uint64_t(cuda.CUDA_ERROR_NO_DEVICE)
	}
	if op&perThread != 0 {
		g := d.(driver)
		g.PerThread(true)
		defer g.PerThread(false)
		op &^= perThread
	}
	return C.uint64_t(uint32(invoke.CUDA(d, uint16(op), (*cuda.Words)(unsafe.Pointer(w)))))
}

// pointer makes an argument the pointer that it is in C.
func pointer(word uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&word)) }

// stdio is the program's own buffered output, as what kernels print is in order with what the program prints.
type stdio struct{ errors bool }

func (s stdio) Write(p []byte) (int, error) {
	if len(p) > 0 {
		errors := C.int(0)
		if s.errors {
			errors = 1
		}
		C.put(unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)), errors)
	}
	return len(p), nil
}

// driver is the simulated GPU with the calls that take C functions.
type driver struct {
	*sim.GPU
	functions *sync.Map // of host nodes, by what stands for them: hostCall
}

type hostCall struct{ f, data uintptr }

func (d driver) CuLaunchHostFunc(stream cuda.CUstream, f, data unsafe.Pointer) cuda.CUresult {
	if f == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	var status cuda.CUstreamCaptureStatus
	if d.CuStreamIsCapturing(stream, &status) == cuda.CUDA_SUCCESS && status == cuda.CU_STREAM_CAPTURE_STATUS_ACTIVE {
		return d.LaunchNode(stream, *d.hostNode(&cuda.CUDA_HOST_NODE_PARAMS{Fn: uintptr(f), UserData: uintptr(data)}))
	}
	return d.HostFunc(stream, hostFunction(uintptr(f), uintptr(data)))
}

func (d driver) CuStreamAddCallback(stream cuda.CUstream, f, data unsafe.Pointer, flags uint32) cuda.CUresult {
	if f == nil || flags != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return d.HostFunc(stream, func() {
		C.run_callback(C.uintptr_t(uintptr(f)), C.uint64_t(stream), 0, C.uintptr_t(uintptr(data)))
	})
}

func hostFunction(f, data uintptr) func() {
	return func() { C.run_host(C.uintptr_t(f), C.uintptr_t(data)) }
}

// hostNode replaces the C function of a graph's host node.
func (d driver) hostNode(p *cuda.CUDA_HOST_NODE_PARAMS) *cuda.CUDA_HOST_NODE_PARAMS {
	if p == nil || p.Fn == 0 {
		return p
	}
	own := d.HostNode(hostFunction(p.Fn, p.UserData))
	d.functions.Store(own.UserData, hostCall{p.Fn, p.UserData})
	return &own
}

// hostFields lie at the beginning of the union of CUgraphNodeParams.
const hostFields = 16

// anyNode is hostNode for the parameters of any node.
func (d driver) anyNode(p *cuda.CUgraphNodeParams) *cuda.CUgraphNodeParams {
	if p == nil || *(*cuda.CUgraphNodeType)(unsafe.Pointer(p)) != cuda.CU_GRAPH_NODE_TYPE_HOST {
		return p
	}
	own := *p
	fields := (*cuda.CUDA_HOST_NODE_PARAMS)(unsafe.Add(unsafe.Pointer(&own), hostFields))
	*fields = *d.hostNode(fields)
	return &own
}

func (d driver) CuGraphAddNode(n *cuda.CUgraphNode, g cuda.CUgraph, deps *cuda.CUgraphNode, count uint64,
	p *cuda.CUgraphNodeParams) cuda.CUresult {
	return d.GPU.CuGraphAddNode(n, g, deps, count, d.anyNode(p))
}

func (d driver) CuGraphAddNode_v2(n *cuda.CUgraphNode, g cuda.CUgraph, deps *cuda.CUgraphNode,
	edges *cuda.CUgraphEdgeData, count uint64, p *cuda.CUgraphNodeParams) cuda.CUresult {
	return d.GPU.CuGraphAddNode_v2(n, g, deps, edges, count, d.anyNode(p))
}

func (d driver) CuGraphNodeSetParams(n cuda.CUgraphNode, p *cuda.CUgraphNodeParams) cuda.CUresult {
	return d.GPU.CuGraphNodeSetParams(n, d.anyNode(p))
}

func (d driver) CuGraphExecNodeSetParams(x cuda.CUgraphExec, n cuda.CUgraphNode,
	p *cuda.CUgraphNodeParams) cuda.CUresult {
	return d.GPU.CuGraphExecNodeSetParams(x, n, d.anyNode(p))
}

func (d driver) CuGraphHostNodeGetParams(n cuda.CUgraphNode, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	r := d.GPU.CuGraphHostNodeGetParams(n, p)
	if r == cuda.CUDA_SUCCESS {
		if c, known := d.functions.Load(p.UserData); known {
			p.Fn, p.UserData = c.(hostCall).f, c.(hostCall).data
		}
	}
	return r
}

func (d driver) CuUserObjectCreate(o *cuda.CUuserObject, data, destroy unsafe.Pointer, refs,
	flags uint32) cuda.CUresult {
	if destroy == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	own := d.HostNode(hostFunction(uintptr(destroy), uintptr(data)))
	return d.GPU.CuUserObjectCreate(o, pointer(uint64(own.UserData)), pointer(uint64(own.Fn)), refs, flags)
}

func (d driver) CuGraphAddHostNode(n *cuda.CUgraphNode, g cuda.CUgraph, deps *cuda.CUgraphNode, count uint64,
	p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return d.GPU.CuGraphAddHostNode(n, g, deps, count, d.hostNode(p))
}

func (d driver) CuGraphHostNodeSetParams(n cuda.CUgraphNode, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return d.GPU.CuGraphHostNodeSetParams(n, d.hostNode(p))
}

func (d driver) CuGraphExecHostNodeSetParams(x cuda.CUgraphExec, n cuda.CUgraphNode,
	p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return d.GPU.CuGraphExecHostNodeSetParams(x, n, d.hostNode(p))
}

func main() {}
