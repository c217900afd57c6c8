// Command core is libscuda-core.so: package shim/session behind the C interface of shim/front/base/core.h. It is built
// with -buildmode=c-shared and loaded by the front on the first call that needs a server.
//
// It lives in somebody else's process, so it keeps small and quiet: asynchronous preemption (a signal) is switched off
// by the linker flag -X runtime.godebugDefault=asyncpreemptoff=1 (a //go:debug line cannot name it), name resolution is
// Go's own (build tags netgo and osusergo), and nothing happens before scuda_core_open.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/shim/metrics"
	"scuda.dev/scuda/shim/session"
	"scuda.dev/scuda/transport"
)

// version is the release, set by the linker.
var version = "dev"

// processors is how many threads may be inside Go at once without one of them waiting until the runtime notices that
// another is blocked.
const processors = 32

var (
	current atomic.Pointer[session.Sessions]
	logger  = sync.OnceValue(config.Logger)
	opening sync.Mutex
)

func init() {
	runtime.GOMAXPROCS(max(processors, runtime.NumCPU()))
	debug.SetGCPercent(50)
}

func main() {} // never runs in a shared library

// lastFailure is why the last attempt to connect failed; a program that tries again is told only what is new. Guarded
// by opening.
var lastFailure string

func notConnected(log *slog.Logger, why string) int32 {
	if why != lastFailure {
		lastFailure = why
		log.Error(why)
	}
	return session.SystemNotReady
}

// open connects; the result is 0 or a CUresult, and what went wrong has been logged.
func open(shared *session.Shared) int32 {
	opening.Lock()
	defer opening.Unlock()
	if current.Load() != nil {
		return session.Success
	}
	log := logger()
	tellLost(shared)
	transport.KeepHigh()
	c, err := config.ReadClient()
	if err != nil {
		return notConnected(log, err.Error())
	}
	var servers []session.Config
	for _, server := range c.Servers {
		h := hello()
		h.Wait, h.Waiting = c.Queue, transport.Teller(server.Address, func(line string) {
			if log.Enabled(context.Background(), slog.LevelWarn) {
				fmt.Fprintln(os.Stderr, "scuda: "+line)
			}
		})
		servers = append(servers, session.Config{Server: server, Hello: h, Log: log,
			HostRun: runHost, Print: print, Mapped: nextMapped, Threads: threadsReady,
			Opening: expectSocket, Opened: rememberSocket,
			Bulk: c.Bulk, Resume: c.Resume, Transport: c.Transport, RDMADevice: c.RDMADevice, RDMAMemory: int(c.RDMAMemory)})
	}
	var started sync.WaitGroup
	started.Go(func() { threadsReady(0) }) // while the servers are asked
	defer started.Wait()
	for range servers[1:] {
		expectSocket() // beside that of the first one
	}
	all, err := session.OpenAll(shared, servers...)
	if err != nil {
		return notConnected(log, err.Error())
	}
	current.Store(all)
	if address, err := config.Metrics(); err != nil {
		log.Warn("this process has no metrics; correct SCUDA_METRICS", "error", err)
	} else if address != "" {
		offer(log, all, address)
	}
	return session.Success
}

// offer answers Prometheus at an address for as long as the process lives. Where that cannot be the program runs all
// the same.
func offer(log *slog.Logger, all *session.Sessions, address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		log.Warn("this process has no metrics: SCUDA_METRICS is to be HOST:PORT of this machine, with port 0 where several "+
			"processes have the same", "error", err)
		return
	}
	if raw, err := l.(*net.TCPListener).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { rememberSocket(int(fd)) })
	}
	metrics.Serve(l, func(t *metrics.Text) { metrics.Sessions(t, all, version) })
	log.Info("metrics", "url", "http://"+l.Addr().String()+"/metrics", "pid", os.Getpid())
}

func hello() transport.Hello {
	h := transport.Hello{Version: version, Digest: cuda.Digest, PID: os.Getpid(), User: config.User()}
	h.Host, _ = os.Hostname()
	if exe, err := os.Executable(); err == nil {
		h.Program = filepath.Base(exe)
	}
	if f, err := os.Open("/proc/self/cmdline"); err == nil {
		defer f.Close()
		line := make([]byte, 1024) // in one read
		n, _ := f.Read(line)
		h.Command, _, _ = strings.Cut(string(line[:n]), "\x00")
	}
	return h
}

func logLine(level int32, text string) {
	logger().Log(context.Background(), slog.Level(level), text)
}
