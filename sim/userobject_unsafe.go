package sim

import (
	"math"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

// userObject is a CUuserObject. Its destructor comes from [GPU.HostNode], there are no others.
type userObject struct {
	handle  cuda.CUuserObject
	refs    uint64
	destroy func()
}

func (g *GPU) CuUserObjectCreate(out *cuda.CUuserObject, ptr, destroy unsafe.Pointer, refs, flags uint32) cuda.CUresult {
	if r := g.ready(); r != ok {
		return r
	}
	defer g.mu.Unlock()
	index := uintptr(ptr)
	if out == nil || refs == 0 || flags != uint32(cuda.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) || uintptr(destroy) != hostNodeEntry || index == 0 ||
		index > uintptr(len(g.hostNodes)) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	o := &userObject{refs: uint64(refs), destroy: g.hostNodes[index-1]}
	o.handle = cuda.CUuserObject(g.objects.add(o))
	*out = o.handle
	return ok
}

// unref drops references; with the last one the object ends.
func (g *GPU) unref(o *userObject, n uint64) cuda.CUresult {
	if n == 0 || n > o.refs {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if o.refs -= n; o.refs == 0 {
		g.objects.drop(uint64(o.handle))
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
	return g.unref(o, uint64(n))
}

const graphUserObjectMove = 1 // CU_GRAPH_USER_OBJECT_MOVE

func (g *GPU) CuGraphRetainUserObject(hg cuda.CUgraph, h cuda.CUuserObject, n, flags uint32) cuda.CUresult {
	gr, r := g.enterGraph(hg)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	o, found := lookup[*userObject](g, h)
	if !found || n == 0 || n > math.MaxInt32 || flags&^graphUserObjectMove != 0 || flags == graphUserObjectMove && uint64(n) > o.refs {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if flags&graphUserObjectMove == 0 {
		o.refs += uint64(n)
	}
	if gr.objects == nil {
		gr.objects = map[*userObject]uint64{}
	}
	gr.objects[o] += uint64(n)
	return ok
}

func (g *GPU) CuGraphReleaseUserObject(hg cuda.CUgraph, h cuda.CUuserObject, n uint32) cuda.CUresult {
	gr, r := g.enterGraph(hg)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	o, found := lookup[*userObject](g, h)
	if !found || n == 0 || n > math.MaxInt32 || uint64(n) > gr.objects[o] {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if gr.objects[o] -= uint64(n); gr.objects[o] == 0 {
		delete(gr.objects, o)
	}
	return g.unref(o, uint64(n))
}
