package main

// #cgo CFLAGS: -std=gnu11 -O1 -Wall -Wextra
// #cgo LDFLAGS: -ldl
// #include "driver.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"unsafe"
)

func result(text *C.char) error {
	if text == nil {
		return nil
	}
	return errors.New(C.GoString(text))
}

func open() error              { return result(C.trial_open()) }
func ptx() error               { return result(C.trial_ptx()) }
func managed() error           { return result(C.trial_managed()) }
func checkpoint(pid int) error { return result(C.trial_checkpoint(C.int(pid))) }

func cupti(library string) error {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	return result(C.trial_cupti(name))
}
