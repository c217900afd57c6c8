// Command nvml is the stand-alone simulation's libnvidia-ml.so.1, built with -buildmode=c-shared: the exports in
// exports_gen.c call package sim/smi through sim_call. SCUDA_SIM says what is simulated (docs/sim.md).
package main

/*
#cgo CFLAGS: -O1 -std=c11
#include <stdint.h>
*/
import "C"

import (
	"log/slog"
	"os"
	"sync"
	"unsafe"

	"scuda.dev/scuda/api/nvml"
	"scuda.dev/scuda/driver/invoke"
	"scuda.dev/scuda/sim"
)

var library = sync.OnceValue(func() nvml.Driver {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg, err := sim.OfProgram(sim.Config{Log: log}, os.Getenv)
	if err != nil {
		log.Error(err.Error())
		return nil
	}
	d, err := sim.OpenNVML(cfg)
	if err != nil {
		log.Error(err.Error())
		return nil
	}
	return d
})

//export sim_call
func sim_call(op C.int32_t, w *C.uint64_t) C.uint64_t {
	d := library()
	if d == nil {
		return C.uint64_t(nvml.NVML_ERROR_DRIVER_NOT_LOADED)
	}
	return C.uint64_t(uint32(invoke.NVML(d, uint16(op), (*nvml.Words)(unsafe.Pointer(w)))))
}

var texts sync.Map // of results, as C strings

//export nvmlErrorString
func nvmlErrorString(result C.int32_t) *C.char {
	text, known := texts.Load(result)
	if !known {
		// The library keeps its texts for ever.
		text, _ = texts.LoadOrStore(result, C.CString(nvml.ResultName(nvml.NvmlReturn(result))))
	}
	return text.(*C.char)
}

// nvmlInternalGetExportTable: private tables are not simulated.
//
//export nvmlInternalGetExportTable
func nvmlInternalGetExportTable() C.int32_t { return C.int32_t(nvml.NVML_ERROR_NOT_FOUND) }

func main() {}
