package sim

import (
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
)

func (m *machine) addNode(gr cuda.CUgraph, p *cuda.CUgraphNodeParams, deps ...cuda.CUgraphNode) cuda.CUgraphNode {
	m.t.Helper()
	var n cuda.CUgraphNode
	m.must(m.CuGraphAddNode_v2(&n, gr, unsafe.SliceData(deps), nil, uint64(len(deps)), p))
	return n
}

func memsetNode(dst cuda.CUdeviceptr, value uint32, n uint64) *cuda.CUgraphNodeParams {
	p := &cuda.CUgraphNodeParams{Type: cuda.CU_GRAPH_NODE_TYPE_MEMSET}
	*member[cuda.CUDA_MEMSET_NODE_PARAMS_v2](p) = cuda.CUDA_MEMSET_NODE_PARAMS_v2{Dst: dst, Value: value, ElementSize: 1,
		Width: n, Height: 1}
	return p
}

func TestConditionalNodes(t *testing.T) {
	m := open(t, Config{})
	const n = 16
	for name, x := range map[string]struct {
		kind  cuda.CUgraphConditionalNodeType
		size  uint32
		value uint32
		flags uint32
		want  byte
	}{
		"if":                    {cuda.CU_GRAPH_COND_TYPE_IF, 1, 7, assignDefault, 1},
		"if not":                {cuda.CU_GRAPH_COND_TYPE_IF, 1, 0, assignDefault, 0},
		"if without a default":  {cuda.CU_GRAPH_COND_TYPE_IF, 1, 7, 0, 0},
		"else":                  {cuda.CU_GRAPH_COND_TYPE_IF, 2, 0, assignDefault, 2},
		"switch":                {cuda.CU_GRAPH_COND_TYPE_SWITCH, 3, 2, assignDefault, 3},
		"switch to no body":     {cuda.CU_GRAPH_COND_TYPE_SWITCH, 3, 3, assignDefault, 0},
		"switch without a flag": {cuda.CU_GRAPH_COND_TYPE_SWITCH, 3, 2, 0, 1},
	} {
		dst := m.alloc(n)
		m.must(m.CuMemsetD8_v2(dst, 0, n))
		var gr, clone cuda.CUgraph
		m.must(m.CuGraphCreate(&gr, 0))
		var h cuda.CUgraphConditionalHandle
		m.must(m.CuGraphConditionalHandleCreate(&h, gr, m.ctx, x.value, x.flags))
		p := &cuda.CUgraphNodeParams{Type: cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL}
		k := member[cuda.CUDA_CONDITIONAL_NODE_PARAMS](p)
		*k = cuda.CUDA_CONDITIONAL_NODE_PARAMS{Handle: h, Type: x.kind, Size: x.size, Ctx: m.ctx}
		m.addNode(gr, p)
		for i, body := range sliceOf((*cuda.CUgraph)(at(uint64(k.PhGraph_out))), uint64(x.size)) {
			m.addNode(body, memsetNode(dst, uint32(i+1), n))
		}
		m.must(m.CuGraphLaunch(m.instantiate(gr), 0))
		if got := m.download(dst, n); got[0] != x.want || got[n-1] != x.want {
			t.Errorf("%s: got %d, want %d", name, got[0], x.want)
		}
		m.want(cuda.CUDA_ERROR_NOT_SUPPORTED, m.CuGraphClone(&clone, gr))
		k.Type = cuda.CU_GRAPH_COND_TYPE_WHILE
		var refused cuda.CUgraphNode
		m.want(cuda.CUDA_ERROR_NOT_SUPPORTED, m.CuGraphAddNode(&refused, gr, nil, 0, p))
		m.must(m.CuGraphDestroy(gr))
	}
}

func TestGraphMemoryAndHostNodes(t *testing.T) {
	m := open(t, Config{})
	const n = 1 << 16
	var gr cuda.CUgraph
	m.must(m.CuGraphCreate(&gr, 0))
	p := &cuda.CUgraphNodeParams{Type: cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC}
	a := member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](p)
	a.PoolProps.AllocType, a.PoolProps.Location.Type, a.Bytesize = cuda.CU_MEM_ALLOCATION_TYPE_PINNED,
		cuda.CU_MEM_LOCATION_TYPE_DEVICE, n
	alloc := m.addNode(gr, p)
	var got cuda.CUDA_MEM_ALLOC_NODE_PARAMS
	m.must(m.CuGraphMemAllocNodeGetParams(alloc, &got))
	if got.Dptr == 0 || got.Dptr != a.Dptr || got.Bytesize != n {
		t.Errorf("%+v", got)
	}
	set := m.addNode(gr, memsetNode(a.Dptr, 9, n), alloc)
	ran := 0
	var host, free cuda.CUgraphNode
	f, g := m.HostNode(func() { ran++ }), m.HostNode(func() { ran += 100 })
	m.must(m.CuGraphAddHostNode(&host, gr, &set, 1, &f))
	m.must(m.CuGraphAddMemFreeNode(&free, gr, &host, 1, a.Dptr))
	x := m.instantiate(gr)
	m.must(m.CuGraphLaunch(x, 0))
	m.must(m.CuStreamSynchronize(0))
	m.must(m.CuGraphExecHostNodeSetParams(x, host, &g))
	m.must(m.CuGraphLaunch(x, 0))
	m.must(m.CuStreamSynchronize(0))
	if ran != 101 {
		t.Errorf("ran %d", ran)
	}
	var back cuda.CUDA_HOST_NODE_PARAMS
	m.must(m.CuGraphHostNodeGetParams(host, &back))
	if back != f {
		t.Error("the graph changed with its executable form")
	}
	f.UserData = 1 << 20
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphHostNodeSetParams(host, &f))
	m.must(m.CuGraphNodeSetParams(set, memsetNode(a.Dptr, 1, n)))
	m.want(cuda.CUDA_ERROR_NOT_SUPPORTED, m.CuGraphNodeSetParams(set,
		&cuda.CUgraphNodeParams{Type: cuda.CU_GRAPH_NODE_TYPE_EMPTY}))
	m.want(cuda.CUDA_ERROR_INVALID_VALUE, m.CuGraphNodeSetParams(host, memsetNode(a.Dptr, 1, n)))
}
