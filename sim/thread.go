package sim

import (
	"syscall"

	"scuda.dev/scuda/api/cuda"
)

// thread is the driver's state of one OS thread.
type thread struct {
	id          int
	stack       []*cudaContext
	captureMode cuda.CUstreamCaptureMode
	own         bool   // calls without a stream mean the thread's own, not the legacy one
	correlation uint32 // what its calls belong to
}

// thread finds the calling thread's state. g.mu is held.
func (g *GPU) thread() *thread {
	id := syscall.Gettid()
	t := g.threads[id]
	if t == nil {
		t = &thread{id: id}
		g.threads[id] = t
	}
	return t
}

// ThreadInit forgets what an earlier thread of the same id left behind.
func (g *GPU) ThreadInit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.threads, syscall.Gettid())
}

// PerThread begins or ends a call of the calling thread in the _ptds form: its default stream is the thread's own.
func (g *GPU) PerThread(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.thread().own = on
}

// implied is the stream of a call that names none. g.mu is held.
func (g *GPU) implied(c *cudaContext) *stream {
	if !g.thread().own {
		return c.legacy
	}
	s, _ := g.stream(c, streamPerThread)
	return s
}
