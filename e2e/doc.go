// Package e2e tests scuda as its users have it: the binaries of build/, real processes, C programs over the driver API (programs/), a
// server with the simulated GPU, and what can go wrong between them. `make test` builds what the tests need; without it they fail.
//
// testdata/*.golden is what the programs print on an NVIDIA H200 with its own driver.
package e2e
