package sim

import (
	"math"

	"scuda.dev/scuda/api/cuda"
)

// userObject is a CUuserObject. Its destructor comes from [GPU.HostNode], there are no others.
type userObject struct {
	handle  cuda.CUuserObject
	refs    uint64
	destroy func()
}

func (g *GPU) CuUserObjectCreate(out *cuda.CUuserObject, ptr, destroy pointer, refs, flags uint32) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	f := g.graphs.functions.find(uintptr(destroy), uintptr(ptr))
	if out == nil || refs == 0 || flags != uint32(cuda.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) || f == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	o := &userObject{refs: uint64(refs), destroy: f}
	o.handle = cuda.CUuserObject(g.objects.add(o))
	*out = o.handle
	return ok
}

// unref drops references; with the last one the object ends.
func (t *graphs) unref(o *userObject, n uint64) cuda.CUresult {
	if n == 0 || n > o.refs {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if o.refs -= n; o.refs == 0 {
		t.objects.drop(uint64(o.handle))
		o.destroy()
	}
	return ok
}

func (g *GPU) enterObject(h cuda.CUuserObject) (*userObject, cuda.CUresult) {
	if r := g.ready(); r != ok {
		return nil, r
	}
	o, found := lookup[*userObject](g, h)
	if !found {
		g.mu.Unlock()
		return nil, cuda.CUDA_ERROR_INVALID_VALUE
	}
	return o, ok
}

func (g *GPU) CuUserObjectRetain(h cuda.CUuserObject, n uint32) cuda.CUresult {
	o, r := g.enterObject(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if n == 0 || n > math.MaxInt32 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	o.refs += uint64(n)
	return ok
}

func (g *GPU) CuUserObjectRelease(h cuda.CUuserObject, n uint32) cuda.CUresult {
	o, r := g.enterObject(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	return g.graphs.unref(o, uint64(n))
}

const graphUserObjectMove = 1 // CU_GRAPH_USER_OBJECT_MOVE

func (g *GPU) CuGraphRetainUserObject(hg cuda.CUgraph, h cuda.CUuserObject, n, flags uint32) cuda.CUresult {
	gr, r := g.enterGraph(hg)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	o, found := lookup[*userObject](g, h)
	if !found || n == 0 || n > math.MaxInt32 || flags&^graphUserObjectMove != 0 ||
		flags == graphUserObjectMove && uint64(n) > o.refs {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if flags&graphUserObjectMove == 0 {
		o.refs += uint64(n)
	}
	if gr.parent == nil { // else nobody ever lets go of it, as with an H200's driver
		gr.objects.add(o, uint64(n))
	}
	return ok
}

func (g *GPU) CuGraphReleaseUserObject(hg cuda.CUgraph, h cuda.CUuserObject, n uint32) cuda.CUresult {
	gr, r := g.enterGraph(hg)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	o, found := lookup[*userObject](g, h)
	if !found || n == 0 || n > math.MaxInt32 || uint64(n) > gr.holds(o) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	gr.letGo(o, uint64(n))
	return g.graphs.unref(o, uint64(n))
}

// holds counts a graph's references to an object, with those of the graphs inside it.
func (gr *graph) holds(o *userObject) uint64 {
	n := gr.objects[o]
	for _, nd := range gr.nodes {
		for _, inner := range nd.op.graphs() {
			n += inner.holds(o)
		}
	}
	return n
}

// letGo takes references away, its own first, and returns how many there were not.
func (gr *graph) letGo(o *userObject, n uint64) uint64 {
	own := min(n, gr.objects[o])
	if own > 0 {
		if gr.objects[o] -= own; gr.objects[o] == 0 {
			delete(gr.objects, o)
		}
	}
	n -= own
	for _, nd := range gr.nodes {
		for _, inner := range nd.op.graphs() {
			n = inner.letGo(o, n)
		}
	}
	return n
}

// references are how often something refers to user objects.
type references map[*userObject]uint64

func (r *references) add(o *userObject, n uint64) {
	if *r == nil {
		*r = references{}
	}
	(*r)[o] += n
}

// retain adds references of its own to everything that more refers to.
func (r *references) retain(more references) {
	for o, n := range more {
		o.refs += n
		r.add(o, n)
	}
}

func (t *graphs) release(r references) {
	for o, n := range r {
		t.unref(o, n)
	}
}

// releaseBehind releases them when a task is over.
func (t *graphs) releaseBehind(last *task, r references) {
	if last == nil || last.finished() || len(r) == 0 {
		t.release(r)
		return
	}
	t.work.tasks.Go(func() {
		<-last.done
		t.work.mu.Lock()
		defer t.work.mu.Unlock()
		t.release(r)
	})
}

// held gives references to all that a graph holds: its own (nil), and for each node those of the graphs inside it.
func (gr *graph) held() map[*node]references {
	var own references
	own.retain(gr.objects)
	all := map[*node]references{nil: own}
	for _, n := range gr.nodes {
		var inside references
		for _, inner := range n.op.graphs() {
			inside.retainAll(inner)
		}
		if inside != nil {
			all[n] = inside
		}
	}
	return all
}

// retainAll adds references to what a graph and all graphs inside it hold.
func (r *references) retainAll(gr *graph) {
	r.retain(gr.objects)
	for _, n := range gr.nodes {
		for _, inner := range n.op.graphs() {
			r.retainAll(inner)
		}
	}
}
