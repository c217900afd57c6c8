package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/ptx"
)

// task is one piece of work in a stream.
type task struct {
	deps []*task                     // of other streams
	run  func(context.Context) error // nil: only a place in the stream
	done chan struct{}
	at   time.Time // when it was done; read after done
	from *origin   // nil: nobody is to be told of it
}

func (t *task) finished() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// scheduler runs what streams are given, each stream on a goroutine of its own for as long as it has work.
type scheduler struct {
	// the GPU's; it guards streams and their queues, and no call waits for work while it holds it
	mu     *sync.Mutex
	tasks  sync.WaitGroup            // running goroutines
	failed func(*cudaContext, error) // told when a context's work goes wrong
	origin func(*stream) *origin     // where a call's work comes from; nil: nobody records. The lock guards it.
}

// push puts work at the end of s. The lock is held.
func (w *scheduler) push(s *stream, run func(context.Context) error, deps ...*task) *task {
	t := &task{run: run, done: make(chan struct{})}
	if w.origin != nil {
		t.from = w.origin(s)
	}
	for _, d := range deps {
		if d != nil && !d.finished() {
			t.deps = append(t.deps, d)
		}
	}
	if b := s.ctx.behind; b != nil && !b.finished() {
		t.deps = append(t.deps, b)
	}
	switch c := s.ctx; {
	case s.legacy():
		for other := range c.streams {
			if other.blocking() && !other.idle() {
				t.deps = append(t.deps, other.last)
			}
		}
	case s.blocking() && !c.legacy.idle():
		t.deps = append(t.deps, c.legacy.last)
	}
	s.queue = append(s.queue, t)
	s.last = t
	if !s.running {
		s.running = true
		w.tasks.Go(func() { w.drain(s) })
	}
	return t
}

// after makes a task that belongs to no stream and is done behind others. The lock is held.
func (w *scheduler) after(c *cudaContext, run func(context.Context) error, tasks ...*task) *task {
	t := &task{done: make(chan struct{})}
	runCtx := c.run
	w.tasks.Go(func() {
		for _, d := range tasks {
			<-d.done
		}
		if run != nil {
			_ = run(runCtx) // which ends early only with the context
		}
		t.at = time.Now()
		close(t.done)
	})
	return t
}

// drain does the work of s until there is none.
func (w *scheduler) drain(s *stream) {
	for {
		w.mu.Lock()
		if len(s.queue) == 0 {
			s.queue, s.running = nil, false
			if s.destroyed {
				delete(s.ctx.streams, s)
			}
			w.mu.Unlock()
			return
		}
		t, c := s.queue[0], s.ctx
		s.queue = s.queue[1:]
		runCtx := c.run
		w.mu.Unlock()

		for _, d := range t.deps {
			<-d.done
		}
		if t.run != nil && c.failed() == ok {
			if err := t.run(t.from.with(runCtx)); err != nil && c.failed() == ok {
				w.failed(c, err)
			}
		}
		t.deps, t.run = nil, nil
		t.at = time.Now()
		close(t.done)
	}
}

// deviceError is the failure of work on the simulated device.
type deviceError struct {
	Result cuda.CUresult
	What   string
}

func (e *deviceError) Error() string { return "sim: " + e.What + ": " + e.Result.Error() }

// resultOf says what the driver makes of an error of stream work.
func resultOf(err error) cuda.CUresult {
	if d, found := errors.AsType[*deviceError](err); found {
		return d.Result
	}
	f, found := errors.AsType[*ptx.Fault](err)
	if !found {
		return cuda.CUDA_ERROR_LAUNCH_FAILED
	}
	switch f.Kind {
	case ptx.IllegalAddress:
		return cuda.CUDA_ERROR_ILLEGAL_ADDRESS
	case ptx.Misaligned:
		return cuda.CUDA_ERROR_MISALIGNED_ADDRESS
	case ptx.Assert:
		return cuda.CUDA_ERROR_ASSERT
	case ptx.IllegalInstruction:
		return cuda.CUDA_ERROR_ILLEGAL_INSTRUCTION
	case ptx.InvalidPC:
		return cuda.CUDA_ERROR_INVALID_PC
	case ptx.Timeout, ptx.Deadlock:
		return cuda.CUDA_ERROR_LAUNCH_TIMEOUT
	}
	return cuda.CUDA_ERROR_LAUNCH_FAILED
}

// wait waits for tasks. The lock is held, and given up meanwhile.
func (w *scheduler) wait(tasks []*task) {
	w.mu.Unlock()
	defer w.mu.Lock()
	for _, t := range tasks {
		<-t.done
	}
}

// pending is what a synchronisation with s waits for.
func (s *stream) pending() []*task {
	var tasks []*task
	if !s.idle() {
		tasks = append(tasks, s.last)
	}
	if s.legacy() {
		for other := range s.ctx.streams {
			if other.blocking() && !other.idle() {
				tasks = append(tasks, other.last)
			}
		}
	}
	return tasks
}

// waitContext waits for all work of c and says whether it went well. The lock is held, and given up meanwhile.
func (w *scheduler) waitContext(c *cudaContext) cuda.CUresult {
	w.wait(c.pending())
	return c.failed()
}

// pending is the last work of each stream that has any.
func (c *cudaContext) pending() []*task {
	tasks := c.legacy.pending()
	for s := range c.streams {
		if !s.idle() {
			tasks = append(tasks, s.last)
		}
	}
	return tasks
}

// waitAll waits for all work of all contexts. g.mu is held, and given up meanwhile.
func (g *GPU) waitAll() {
	for _, c := range slices.Collect(maps.Keys(g.contexts)) {
		g.work.waitContext(c)
	}
}

// op is work on its way into a stream, or into the graph that the stream captures.
type op struct {
	kind   cuda.CUgraphNodeType
	run    func(context.Context) error
	params any // of the graph node
}

// queueMost is how much a stream of an H200's driver takes before it holds the caller.
const queueMost = 1021

// submit puts o into s. The task is nil when it was captured. g.mu is held.
func (g *GPU) submit(s *stream, o op) (*task, cuda.CUresult) {
	if s.capture != nil {
		_, r := s.capture.add(s, o)
		return nil, r
	}
	if r := g.implicitInCapture(s); r != ok {
		return nil, r
	}
	for len(s.queue) >= queueMost {
		g.work.wait(s.queue[:1])
	}
	return g.work.push(s, o.run), ok
}
