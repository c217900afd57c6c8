package sim

import "scuda.dev/scuda/api/cuda"

// objects is the table of handles. Handles are never used twice, so a stale one is always recognised; they look like
// addresses, as the driver's do, and lie below all memory, so that one is never mistaken for a device address.
type objects struct {
	last uint64
	live map[uint64]any
}

const (
	firstHandle  = 0x5c0da000
	handleStride = 16
)

func (t *objects) init() {
	t.last = firstHandle
	t.live = map[uint64]any{}
}

func (t *objects) add(o any) uint64 {
	t.last += handleStride
	t.live[t.last] = o
	return t.last
}

func (t *objects) drop(h uint64) { delete(t.live, h) }

// lookup finds the live object of type T with this handle.
func lookup[T any, H ~uint64](g *GPU, h H) (T, bool) {
	o, found := g.objects.live[uint64(h)].(T)
	return o, found
}

// find is lookup for calls: an unknown handle is CUDA_ERROR_INVALID_HANDLE.
func find[T any, H ~uint64](g *GPU, h H) (T, cuda.CUresult) {
	o, found := lookup[T](g, h)
	if !found {
		return o, cuda.CUDA_ERROR_INVALID_HANDLE
	}
	return o, ok
}
