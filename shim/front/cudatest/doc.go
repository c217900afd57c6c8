// Package cudatest tests libcuda.so.1, the C front in the folder above, from outside: C programs call its exported
// functions and private tables over a core that answers in the process (testdata/fakecore.c), so that no server and no
// Go runtime is involved.
package cudatest
