package sim

import (
	"testing"

	"scuda.dev/scuda/api/cuda"
)

// TestRowsOfExecutableGraphs: what an H200 lets a node of an executable graph become, by its parameters and by an
// update.
func TestRowsOfExecutableGraphs(t *testing.T) {
	m := open(t, Config{})
	p := m.alloc(1 << 16)
	q := m.alloc(1 << 16)
	fill := func(dst cuda.CUdeviceptr, width, height, pitch uint64) any {
		return &cuda.CUDA_MEMSET_NODE_PARAMS{Dst: dst, Pitch: pitch, Value: 7, ElementSize: 4, Width: width, Height: height}
	}
	copied := func(src cuda.CUdeviceptr, width, height, depth, pitch uint64) any {
		return &cuda.CUDA_MEMCPY3D{SrcMemoryType: cuda.CU_MEMORYTYPE_DEVICE, SrcDevice: src,
			SrcPitch: pitch, SrcHeight: height,
			DstMemoryType: cuda.CU_MEMORYTYPE_DEVICE, DstDevice: p, DstPitch: pitch, DstHeight: height,
			WidthInBytes: width, Height: height, Depth: depth}
	}
	bytes := &cuda.CUDA_MEMSET_NODE_PARAMS{Dst: p, Pitch: 512, Value: 7, ElementSize: 1, Width: 64, Height: 4}
	add := func(params any) (gr cuda.CUgraph, n cuda.CUgraphNode) {
		m.must(m.CuGraphCreate(&gr, 0))
		switch v := params.(type) {
		case *cuda.CUDA_MEMSET_NODE_PARAMS:
			m.must(m.CuGraphAddMemsetNode(&n, gr, nil, 0, v, m.ctx))
		case *cuda.CUDA_MEMCPY3D:
			m.must(m.CuGraphAddMemcpyNode(&n, gr, nil, 0, v, m.ctx))
		}
		return gr, n
	}
	for _, c := range []struct {
		name     string
		from, to any
		takes    bool
	}{
		{"a row of another length, elsewhere", fill(p, 64, 1, 0), fill(q, 128, 1, 512), true},
		{"a row to rows", fill(p, 64, 1, 0), fill(p, 64, 4, 512), false},
		{"rows elsewhere", fill(p, 64, 4, 512), fill(q+4096, 64, 4, 512), true},
		{"rows to a row", fill(p, 64, 4, 512), fill(p, 64, 1, 0), false},
		{"fewer rows", fill(p, 64, 4, 512), fill(p, 64, 2, 512), false},
		{"shorter rows", fill(p, 64, 4, 512), fill(p, 32, 4, 512), false},
		{"rows further apart", fill(p, 64, 4, 512), fill(p, 64, 4, 1024), false},
		{"rows of bytes", fill(p, 64, 4, 512), bytes, false},
		{"rows without a gap", fill(p, 64, 4, 256), fill(p, 256, 1, 0), false},
		{"a copied row of another length, elsewhere", copied(q, 256, 1, 1, 0), copied(q+4096, 512, 1, 1, 512), true},
		{"a copied row to rows", copied(q, 256, 1, 1, 0), copied(q, 256, 4, 1, 512), false},
		{"copied rows as they are", copied(q, 256, 4, 1, 512), copied(q, 256, 4, 1, 512), true},
		{"copied rows from elsewhere", copied(q, 256, 4, 1, 512), copied(q+4096, 256, 4, 1, 512), false},
		{"fewer copied rows", copied(q, 256, 4, 1, 512), copied(q, 256, 2, 1, 512), false},
		{"copied rows to a row", copied(q, 256, 4, 1, 512), copied(q, 256, 1, 1, 0), false},
		{"copied slices to one", copied(q, 256, 4, 2, 512), copied(q, 256, 4, 1, 512), false},
	} {
		t.Log(c.name)
		gr, n := add(c.from)
		x := m.instantiate(gr)
		want := cuda.CUDA_SUCCESS
		if !c.takes {
			want = cuda.CUDA_ERROR_INVALID_VALUE
		}
		switch v := c.to.(type) {
		case *cuda.CUDA_MEMSET_NODE_PARAMS:
			m.want(want, m.CuGraphExecMemsetNodeSetParams(x, n, v, m.ctx))
		case *cuda.CUDA_MEMCPY3D:
			m.want(want, m.CuGraphExecMemcpyNodeSetParams(x, n, v, m.ctx))
		}
		m.must(m.CuGraphLaunch(x, 0))
		other, _ := add(c.to)
		var info cuda.CUgraphExecUpdateResultInfo
		r := m.CuGraphExecUpdate_v2(m.instantiate(gr), other, &info)
		reason := cuda.CU_GRAPH_EXEC_UPDATE_SUCCESS
		if !c.takes {
			want, reason = cuda.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuda.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED
		}
		m.want(want, r)
		if info.Result != reason {
			t.Errorf("the update's result is %d, want %d", info.Result, reason)
		}
	}
}
