// Package mps speaks to NVIDIA's MPS, under which the programs of one user share a GPU without taking turns on it.
//
// An MPS server serves one user id, so each tenant has a daemon of its own, which runs as the tenant's user, in the
// tenant's folder. A process that the supervisor starts as it starts workers keeps the daemon ([Keep]) and passes on
// what the supervisor asks ([Control]); workers find the daemon by their environment ([Limits.Env]). The package knows
// neither sessions nor tenants, and has no state of its own.
//
// It has not been tried on a GPU yet: the tests have a program in the place of nvidia-cuda-mps-control
// (server/mps/mpstest). perf/gpu/mps.sh asks a real one what this package takes for given.
package mps
