// Package cupti records what a real GPU does, by NVIDIA's CUPTI in the worker's process. The library is opened when a
// client first records a profile, and not before: other sessions pay nothing for it.
//
// Its tests run against a library that stands in for CUPTI; perf/gpu/profiles.py tries it on a GPU.
//
// Locks: none. Record, Flush and Correlate are called by the executor's thread. CUPTI's own threads fill buffers,
// behind a lock of source.c that is held for moments.
package cupti

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
// #cgo LDFLAGS: -ldl -lpthread
// #include "source.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	facts "scuda.dev/scuda/api/cupti"
)

// libraries are where CUPTI is looked for.
var libraries = []string{
	"libcupti.so.13", "libcupti.so.12", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
	"/usr/local/cuda/lib64/libcupti.so",
}

// ErrNone is wrapped where this machine has no CUPTI that can be used.
var ErrNone = errors.New("CUPTI cannot be opened on the server")

var errNumbers = errors.New("this CUPTI says no numbers of graphs")

// Source is a cuda.Recorder.
type Source struct {
	libraries []string
	sink      func(*cuda.Work) // nil: nothing is recorded
	graphs    bool             // are told of as a whole
	open      bool
	names     map[uintptr]string // of kernels, by their address in CUPTI
}

var _ cuda.Recorder = (*Source)(nil)

// New makes a source by a library; an empty path means that it is looked for. Nothing is opened yet.
func New(library string) *Source {
	s := &Source{libraries: libraries, names: map[uintptr]string{}}
	if library != "" {
		s.libraries = []string{library}
	}
	return s
}

func (s *Source) openLibrary() error {
	var reasons []error
	for _, path := range s.libraries {
		name := C.CString(path)
		reason := C.source_open(name)
		C.free(unsafe.Pointer(name))
		if reason == nil {
			s.open = true
			return nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %s", path, C.GoString(reason)))
	}
	return fmt.Errorf("%w: %w", ErrNone, errors.Join(reasons...))
}

func check(what string, r C.int) error {
	if r == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s (%d)", what, C.GoString(C.source_text(r)), int(r))
}

// Record begins or ends recording.
func (s *Source) Record(sink func(*cuda.Work), graphs bool) error {
	switch {
	case sink == nil && s.sink == nil:
		return nil
	case sink == nil:
		err := check("ending a profile", C.source_end(&kinds[0]))
		s.take()
		s.sink = nil
		return err
	case s.sink != nil:
		s.sink = sink
		return nil
	}
	if !s.open {
		if err := s.openLibrary(); err != nil {
			return err
		}
	}
	s.graphs = graphs
	var step C.struct_source_step
	r := C.source_begin(&kinds[0], &calls[0], C.size_t(callbackSite), C.size_t(callbackID), &step)
	what := fmt.Sprintf("beginning a profile: %s of %d", C.GoString(step.what), step.of)
	if err := check(what, r); err != nil {
		C.source_end(&kinds[0])
		for C.source_next() != nil { // what came meanwhile belongs to no profile, and would be taken for the next one's
		}
		return err
	}
	s.sink = sink
	return nil
}

// Correlate says what the calling thread's next calls belong to.
func (*Source) Correlate(id uint32) { C.source_correlate(C.uint32_t(id)) }

// Flush tells of everything that is over.
func (s *Source) Flush() {
	if s.sink != nil {
		C.source_flush()
		s.take()
	}
}

// Numbers opens the library: who asks for numbers records a profile.
func (s *Source) Numbers() error {
	if !s.open {
		if err := s.openLibrary(); err != nil {
			return err
		}
	}
	if C.source_has_numbers() == 0 {
		return errNumbers
	}
	return nil
}

func (s *Source) GraphNumber(h cuda.CUgraph) (uint32, cuda.CUresult) {
	n, r := s.number(C.SOURCE_GRAPH, uint64(h))
	return uint32(n), r
}

func (s *Source) ExecNumber(h cuda.CUgraphExec) (uint32, cuda.CUresult) {
	n, r := s.number(C.SOURCE_EXEC, uint64(h))
	return uint32(n), r
}

func (s *Source) NodeNumber(h cuda.CUgraphNode) (uint64, cuda.CUresult) {
	return s.number(C.SOURCE_NODE, uint64(h))
}

func (s *Source) number(kind C.int, h uint64) (uint64, cuda.CUresult) {
	if s.Numbers() != nil {
		return 0, cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	var n C.uint64_t
	if C.source_number(kind, C.uint64_t(h), &n) != 0 {
		return 0, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return uint64(n), cuda.CUDA_SUCCESS
}

// take tells of the records that have come.
func (s *Source) take() {
	for {
		p := C.source_next()
		if p == nil {
			return
		}
		w, ok := s.work(record{unsafe.Pointer(p)})
		if !ok {
			continue
		}
		if s.graphs && w.Graph != 0 { // a part of it
			w = cuda.Work{Kind: cuda.WorkGraph, Correlation: w.Correlation, Start: w.Start, End: w.End,
				Device: w.Device, Context: w.Context, Stream: w.Stream, Graph: w.Graph}
		}
		if id := C.source_of(C.uint32_t(w.Correlation)); id != 0 {
			w.Correlation = uint32(id)
			s.sink(&w)
		}
	}
}

// kinds are recorded in every profile, with a 0 behind them. Graphs as a whole (GRAPH_TRACE) are not among them: with
// CUDA 13.0 on an H200 a worker crashed in the launch of a graph that it had instantiated before it opened CUPTI. What
// is told of graphs comes from the records of what is in them.
var kinds = []C.uint32_t{facts.CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, facts.CUPTI_ACTIVITY_KIND_MEMCPY,
	facts.CUPTI_ACTIVITY_KIND_MEMCPY2, facts.CUPTI_ACTIVITY_KIND_MEMSET, 0}

// calls are the callback ids of calls that bring work.
var calls = func() []C.uint32_t {
	var list []C.uint32_t
	for _, id := range facts.Working {
		list = append(list, C.uint32_t(id))
	}
	return append(list, 0)
}()

// name is a kernel's name, which CUPTI keeps at its address until the process ends.
func (s *Source) name(at uintptr) string {
	if at == 0 {
		return ""
	}
	text, known := s.names[at]
	if !known {
		text = C.GoString(*(**C.char)(unsafe.Pointer(&at)))
		s.names[at] = text
	}
	return text
}
