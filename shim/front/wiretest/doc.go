// Package wiretest tests what libcuda.so.1, the C front in the folder above, puts on the wire: testdata/cases.c calls
// the driver API over a core (testdata/recorder.c) that keeps every command and answers as the case says.
package wiretest
