// Command gohost is a Go program that uses CUDA: it opens libcuda.so.1 with dlopen, as Go bindings do, and computes
// from many goroutines while its own garbage collector and preemption are busy.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../../shim/include
#cgo LDFLAGS: -ldl
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>

static void *library;
#define CALL(name, ...) ((typeof(name) *)dlsym(library, #name))(__VA_ARGS__)

static CUcontext context;

static int open_driver(void) {
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) return -1;
	int r = CALL(cuInit, 0);
	return r ? r : CALL(cuDevicePrimaryCtxRetain, &context, 0);
}

static int copy(char *data, char *back, size_t n) {
	CUdeviceptr p;
	CUstream s;
	int r = CALL(cuCtxSetCurrent, context);
	if (!r) r = CALL(cuMemAlloc_v2, &p, n);
	if (!r) r = CALL(cuStreamCreate, &s, 1);
	if (!r) r = CALL(cuMemcpyHtoDAsync_v2, p, data, n, s);
	if (!r) r = CALL(cuMemcpyDtoHAsync_v2, back, p, n, s);
	if (!r) r = CALL(cuStreamSynchronize, s);
	if (!r) r = CALL(cuStreamDestroy_v2, s);
	if (!r) r = CALL(cuMemFree_v2, p);
	return r;
}
*/
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

const goroutines = 64

func work(id int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for round := range 8 {
		data := bytes.Repeat([]byte{byte(id + round)}, 10000+id)
		back := make([]byte, len(data))
		if r := C.copy((*C.char)(unsafe.Pointer(&data[0])), (*C.char)(unsafe.Pointer(&back[0])),
			C.size_t(len(data))); r != 0 {
			return fmt.Errorf("goroutine %d: CUDA error %d", id, r)
		}
		if !bytes.Equal(data, back) {
			return fmt.Errorf("goroutine %d: wrong bytes", id)
		}
		runtime.GC()
	}
	return nil
}

// fault makes the runtime's own SIGSEGV handler work: a nil access becomes a panic.
func fault() (caught bool) {
	defer func() { caught = recover() != nil }()
	var p *int
	*p = 1
	return false
}

func run() error {
	if r := C.open_driver(); r != 0 {
		return fmt.Errorf("cannot open the driver: %d", r)
	}
	if !fault() {
		return fmt.Errorf("a nil access was no panic")
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		return err
	}
	<-signals
	stop := make(chan struct{})
	var spin, workers sync.WaitGroup
	spin.Go(func() { // needs preemption to let others run
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	errs := make([]error, goroutines)
	for id := range errs {
		workers.Go(func() { errs[id] = work(id) })
	}
	workers.Wait()
	close(stop)
	spin.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if !fault() {
		return fmt.Errorf("a nil access was no panic after CUDA calls")
	}
	fmt.Printf("%d goroutines right\n", goroutines)
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gohost:", err)
		os.Exit(1)
	}
}
