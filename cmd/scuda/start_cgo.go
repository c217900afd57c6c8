package main

// The force-included shim/front/base/compat.h gives the program a start that old systems have, too (../build.sh).

// #cgo CFLAGS: -DSCUDA_PROGRAM
import "C"
