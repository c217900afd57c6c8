package main

// #include <gnu/libc-version.h>
import "C"

// libcVersion is that of the C library with which this process runs.
func libcVersion() string { return C.GoString(C.gnu_get_libc_version()) }
