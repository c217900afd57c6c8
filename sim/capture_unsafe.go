package sim

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
)

// dependencyList is memory outside the Go heap for the node array that CuStreamGetCaptureInfo points its caller to.
type dependencyList struct{ span }

const edgeDataSize = uint64(unsafe.Sizeof(cuda.CUgraphEdgeData{}))

func (l *dependencyList) free() {
	if l.size != 0 {
		_ = unmap(l.base, l.size) // a range of our own: the call cannot fail
		l.span = span{}
	}
}

// set stores the nodes and as many empty edge records, and gives the addresses of both.
func (l *dependencyList) set(nodes []*node) (handles, edges unsafe.Pointer, err error) {
	n := uint64(len(nodes))
	if need := n * (8 + edgeDataSize); need > l.size || l.size == 0 {
		l.free()
		size := roundUp(max(need, 1), 4096)
		base, err := reserve(0, size, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			return nil, nil, err
		}
		l.span = span{base, size}
	}
	array := sliceOf((*cuda.CUgraphNode)(at(l.base)), n)
	for i, node := range nodes {
		array[i] = node.handle
	}
	clear(bytesAt(l.base+8*n, n*edgeDataSize))
	return at(l.base), at(l.base + 8*n), nil
}

func (g *GPU) CuStreamGetCaptureInfo_v2(h cuda.CUstream, status *cuda.CUstreamCaptureStatus, id *cuda.Cuuint64, gr *cuda.CUgraph, deps unsafe.Pointer, n *uint64) cuda.CUresult {
	return g.CuStreamGetCaptureInfo_v3(h, status, id, gr, deps, nil, n)
}

func (g *GPU) CuStreamGetCaptureInfo_v3(h cuda.CUstream, status *cuda.CUstreamCaptureStatus, id *cuda.Cuuint64, gr *cuda.CUgraph, deps, edges unsafe.Pointer, n *uint64) cuda.CUresult {
	return g.readCapture(h, status, func(cap *capture, s *stream) cuda.CUresult {
		if id != nil {
			*id = cuda.Cuuint64(cap.id)
		}
		if gr != nil {
			g.nameGraph(cap.graph)
			*gr = cap.graph.handle
		}
		nodes, data, err := cap.deps.set(s.capDeps)
		if err != nil {
			return cuda.CUDA_ERROR_OUT_OF_MEMORY
		}
		if deps != nil {
			*(*unsafe.Pointer)(deps) = nodes
		}
		if edges != nil {
			*(*unsafe.Pointer)(edges) = data
		}
		if n != nil {
			*n = uint64(len(s.capDeps))
		}
		return ok
	})
}
