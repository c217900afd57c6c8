// Package server serves GPUs to scuda's clients.
//
// [Serve] is the supervisor. It listens, checks token, protocol version and API digest of each connection, and hands
// the connection's descriptor to a worker process, so that a crash, a sticky error or a stuck kernel ends one client
// only. Worker processes are started ahead of need, with the driver initialised; each serves one session and exits, and
// with it goes everything the session held. The supervisor itself never calls the driver.
//
//	connection ── preface ──▶ "cuda": welcome, then the descriptor goes to a warm worker
//	                          "side": the callback connection of the session whose id and secret it names, same worker
//	                          "nvml": a worker that never initialises CUDA
//	                          "info": answered here
//
// [Worker] is what such a process runs. The session's engine is package executor.
package server
