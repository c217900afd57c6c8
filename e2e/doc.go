// Package e2e tests scuda as its users have it: the binaries of build/, real processes, C programs over the driver API
// (programs/), a server with the simulated GPU, and what can go wrong between them. `make test` builds what the tests
// need; without it they fail.
//
// On a machine with a GPU the same tests run on the real driver: SCUDA_E2E_GPU=real, and
// SCUDA_E2E_WRAP="perf/gpu/run.sh masked" hides the driver from the clients. `go test -c` makes a binary for machines
// without Go; TestRace needs Go, the strace tests strace.
//
// testdata/*.golden is what the programs print on an NVIDIA H200 with its own driver.
package e2e
