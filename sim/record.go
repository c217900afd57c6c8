package sim

import (
	"context"
	"time"

	"scuda.dev/scuda/api/cuda"
)

// The simulated GPU says what it did when: real times of the goroutines that did it.

var _ cuda.Recorder = (*GPU)(nil)

// recorder is the GPU's part that says whose work is to be told of, and to whom.
type recorder struct{ of *GPU }

// origin is where work comes from that is to be told of. It travels in the context of the work.
type origin struct {
	sink        func(*cuda.Work)
	correlation uint32
	stream      *stream
	exec        *exec // that runs; nil: none
	node        *node // of it
	graphs      bool  // are told of as a whole
}

type originKey struct{}

// Record begins or ends it.
func (r *recorder) Record(sink func(*cuda.Work), graphs bool) error {
	g := r.of
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.work.origin = nil; sink == nil {
		return nil
	}
	g.work.origin = func(s *stream) *origin {
		id := g.thread().correlation
		if id == 0 {
			return nil
		}
		return &origin{sink: sink, correlation: id, stream: s, graphs: graphs}
	}
	return nil
}

// Correlate names what the calling thread's next calls belong to.
func (r *recorder) Correlate(id uint32) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.of.thread().correlation = id
}

// Flush has nothing to do: work is told of before it is done.
func (*recorder) Flush() {}

// with gives the context of work that comes from o.
func (o *origin) with(ctx context.Context) context.Context {
	if o == nil {
		return ctx
	}
	return context.WithValue(ctx, originKey{}, o)
}

// inExec gives the context of an executable graph's launch.
func inExec(ctx context.Context, x *exec) context.Context {
	o, _ := ctx.Value(originKey{}).(*origin)
	if o == nil {
		return ctx
	}
	of := *o
	of.exec = x
	return of.with(ctx)
}

// inNode gives the context of a graph's node.
func inNode(ctx context.Context, n *node) context.Context {
	o, _ := ctx.Value(originKey{}).(*origin)
	if o == nil || n == nil {
		return ctx
	}
	of := *o
	of.node = n
	return of.with(ctx)
}

// telling begins work that may be to be told of; what it gives ends it.
func telling(ctx context.Context, describe func(*cuda.Work)) func() {
	o, _ := ctx.Value(originKey{}).(*origin)
	if o == nil || o.graphs && o.node != nil {
		return func() {}
	}
	c := o.stream.ctx
	w := &cuda.Work{Correlation: o.correlation, Device: cuda.CUdevice(c.dev.ordinal), Context: c.id, Stream: o.stream.id}
	if n := o.node; n != nil {
		c.gpu.mu.Lock()
		w.Graph, w.Node = o.exec.number, c.gpu.graphs.nodeNumber(n, o.exec)
		c.gpu.mu.Unlock()
	}
	describe(w)
	w.Start = time.Now().UnixNano() // both by one clock: what comes next on the stream begins later
	return func() {
		w.End = max(time.Now().UnixNano(), w.Start)
		o.sink(w)
	}
}

// tellingGraph begins the launch of a graph, which may be to be told of as a whole.
func tellingGraph(ctx context.Context) func() {
	o, _ := ctx.Value(originKey{}).(*origin)
	if o == nil || !o.graphs {
		return func() {}
	}
	return telling(ctx, func(w *cuda.Work) { w.Kind, w.Graph = cuda.WorkGraph, o.exec.number })
}

// nodeNumber is a node's number in its graph, or in an executable graph that was made of that.
func (t *graphs) nodeNumber(n *node, x *exec) uint64 {
	if x != nil && x.graph == n.graph {
		return uint64(x.number)<<32 | uint64(n.local)
	}
	return uint64(t.numberOf(n.graph))<<32 | uint64(n.local)
}

// Numbers has nothing to find out.
func (*recorder) Numbers() error { return nil }

func (r *recorder) GraphNumber(h cuda.CUgraph) (uint32, cuda.CUresult) {
	gr, res := r.of.enterGraph(h)
	if res != ok {
		return 0, res
	}
	defer r.of.mu.Unlock()
	return r.of.graphs.numberOf(gr), ok
}

func (r *recorder) ExecNumber(h cuda.CUgraphExec) (uint32, cuda.CUresult) {
	x, res := r.of.enterExec(h)
	if res != ok {
		return 0, res
	}
	defer r.of.mu.Unlock()
	return x.number, ok
}

func (r *recorder) NodeNumber(h cuda.CUgraphNode) (uint64, cuda.CUresult) {
	n, res := r.of.enterNode(h)
	if res != ok {
		return 0, res
	}
	defer r.of.mu.Unlock()
	return r.of.graphs.nodeNumber(n, nil), ok
}

func (l *launch) describe(w *cuda.Work) {
	w.Kind, w.Name, w.Grid, w.Block = cuda.WorkKernel, l.fn.entry.Name, l.grid, l.block
	w.Static, w.Dynamic = uint32(l.fn.entry.SharedSize()), l.shared
}

func (b *copy3D) describe(m *memory) func(*cuda.Work) {
	return func(w *cuda.Work) {
		w.Kind, w.Bytes = cuda.WorkCopy, b.width*b.height*b.depth
		w.Source, w.Target = m.kindOf(b.src.addr), m.kindOf(b.dst.addr)
	}
}

func (f *fill) describe(m *memory) func(*cuda.Work) {
	return func(w *cuda.Work) {
		w.Kind, w.Bytes, w.Value = cuda.WorkMemset, f.width*f.height*uint64(f.elem), f.value
		w.Target = m.kindOf(f.dst)
	}
}

func (m *memory) kindOf(addr uint64) cuda.MemoryKind {
	switch reg := m.find(addr); {
	case reg == nil:
		return cuda.MemoryPageable
	case reg.kind == regionManaged:
		return cuda.MemoryManaged
	case reg.kind.host():
		return cuda.MemoryPinned
	}
	return cuda.MemoryDevice
}
