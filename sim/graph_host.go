package sim

import (
	"context"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
)

// hostNodeEntry stands for the C function of host nodes: they come from [GPU.HostNode], there are no others.
const hostNodeEntry = 0x5c0d

// HostNode keeps f for graph nodes.
func (g *GPU) HostNode(f func()) cuda.CUDA_HOST_NODE_PARAMS {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hostNodes == nil {
		g.hostNodes = make(map[uintptr]func())
	}
	g.lastNode++
	g.hostNodes[g.lastNode] = f
	return cuda.CUDA_HOST_NODE_PARAMS{Fn: hostNodeEntry, UserData: g.lastNode}
}

// DropNode forgets what HostNode gave.
func (g *GPU) DropNode(p cuda.CUDA_HOST_NODE_PARAMS) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.hostNodes, p.UserData)
}

// LaunchNode puts a function that HostNode keeps into a stream.
func (g *GPU) LaunchNode(h cuda.CUstream, p cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	s, r := g.enterStream(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	o, r := g.hostNodeOp(&p)()
	if r == ok {
		_, r = g.submit(s, o)
	}
	return r
}

func (g *GPU) hostNodeOp(p *cuda.CUDA_HOST_NODE_PARAMS) func() (op, cuda.CUresult) {
	return func() (op, cuda.CUresult) {
		if p == nil || p.Fn != hostNodeEntry || g.hostNodes[p.UserData] == nil {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		f := g.hostNodes[p.UserData]
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_HOST, params: *p, run: func(context.Context) error { f(); return nil }}, ok
	}
}

func (g *GPU) CuGraphAddHostNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return g.add(ph, h, deps, n, g.hostNodeOp(p))
}

func (g *GPU) CuGraphHostNodeSetParams(h cuda.CUgraphNode, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_HOST, g.hostNodeOp(p))
}

func (g *GPU) CuGraphExecHostNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode, p *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_HOST, g.hostNodeOp(p))
}

func (g *GPU) CuGraphHostNodeGetParams(h cuda.CUgraphNode, out *cuda.CUDA_HOST_NODE_PARAMS) cuda.CUresult {
	return params(g, h, out == nil, func(p cuda.CUDA_HOST_NODE_PARAMS) { *out = p })
}

// allocation is what a graph's allocation node was made with.
type allocation struct {
	cuda.CUDA_MEM_ALLOC_NODE_PARAMS
	region *region
}

// CuGraphAddMemAllocNode takes the memory at once: its address stays its own for as long as the graph can be launched.
func (g *GPU) CuGraphAddMemAllocNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUDA_MEM_ALLOC_NODE_PARAMS) cuda.CUresult {
	var reg *region
	r := g.add(ph, h, deps, n, func() (op, cuda.CUresult) {
		if p == nil || p.Bytesize == 0 || p.PoolProps.AllocType != cuda.CU_MEM_ALLOCATION_TYPE_PINNED ||
			p.PoolProps.Location.Type != cuda.CU_MEM_LOCATION_TYPE_DEVICE || p.PoolProps.HandleTypes != 0 {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		c, r := g.graphContext(0)
		if r != ok {
			return op{}, r
		}
		if int(p.PoolProps.Location.Id) != c.dev.ordinal || p.AccessDescCount != 0 {
			return op{}, cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		if reg, r = g.allocateOrWait(c, regionPool, p.Bytesize); r != ok {
			return op{}, r
		}
		p.Dptr = cuda.CUdeviceptr(reg.base)
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC, params: &allocation{*p, reg}}, ok
	})
	if r != ok {
		return r
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if gr, found := lookup[*graph](g, h); found {
		g.ownRegion(gr, reg)
	}
	return ok
}

// ownRegion makes memory part of a graph.
func (g *GPU) ownRegion(gr *graph, reg *region) {
	reg.graph = gr
	reg.dev.graphUsed += reg.size
	reg.dev.graphHigh = max(reg.dev.graphHigh, reg.dev.graphUsed)
	gr.regions = append(gr.regions, reg)
}

func (g *GPU) CuGraphMemAllocNodeGetParams(h cuda.CUgraphNode, out *cuda.CUDA_MEM_ALLOC_NODE_PARAMS) cuda.CUresult {
	return params(g, h, out == nil, func(a *allocation) { *out = a.CUDA_MEM_ALLOC_NODE_PARAMS })
}

func (g *GPU) CuGraphAddMemFreeNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, dptr cuda.CUdeviceptr) cuda.CUresult {
	return g.add(ph, h, deps, n, func() (op, cuda.CUresult) {
		reg := g.mem.find(uint64(dptr))
		if reg == nil || reg.base != uint64(dptr) || reg.graph == nil {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_MEM_FREE, params: reg}, ok
	})
}

// condition is what a conditional handle stands for. Kernels cannot change its value here: PTX that calls the device runtime is refused.
type condition struct {
	graph *graph
	value uint32
}

const (
	assignDefault = 1 // CU_GRAPH_COND_ASSIGN_DEFAULT, a macro in C
	maxBodies     = 512
)

func (g *GPU) CuGraphConditionalHandleCreate(out *cuda.CUgraphConditionalHandle, h cuda.CUgraph, ctx cuda.CUcontext, value, flags uint32) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	if out == nil || flags&^assignDefault != 0 {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if _, r := g.graphContext(ctx); r != ok {
		return r
	}
	if flags&assignDefault == 0 {
		value = 0
	}
	*out = cuda.CUgraphConditionalHandle(g.objects.add(&condition{gr, value}))
	return ok
}

// conditional is what a conditional node does: one of its bodies or none.
type conditional struct {
	bodies []*graph
	choice int  // -1: none
	list   span // the bodies' handles, for the caller
}

func (g *GPU) addConditional(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUDA_CONDITIONAL_NODE_PARAMS) cuda.CUresult {
	return g.add(ph, h, deps, n, func() (op, cuda.CUresult) {
		c, found := lookup[*condition](g, p.Handle)
		if !found || p.Size == 0 || p.Size > maxBodies {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		k := &conditional{choice: -1}
		switch {
		case p.Type == cuda.CU_GRAPH_COND_TYPE_IF && p.Size <= 2:
			if c.value != 0 {
				k.choice = 0
			} else if p.Size == 2 {
				k.choice = 1
			}
		case p.Type == cuda.CU_GRAPH_COND_TYPE_SWITCH:
			if c.value < p.Size {
				k.choice = int(c.value)
			}
		case p.Type == cuda.CU_GRAPH_COND_TYPE_WHILE:
			return op{}, cuda.CUDA_ERROR_NOT_SUPPORTED // nothing could end the loop
		default:
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		size := roundUp(8*uint64(p.Size), 4096)
		base, err := reserve(0, size, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			return op{}, cuda.CUDA_ERROR_OUT_OF_MEMORY
		}
		k.list = span{base, size}
		list := sliceOf((*cuda.CUgraph)(at(base)), uint64(p.Size))
		for i := range list {
			body := newGraph()
			g.nameGraph(body)
			k.bodies, list[i] = append(k.bodies, body), body.handle
		}
		p.PhGraph_out = uintptr(base)
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL, params: k}, ok
	})
}

// member gives the parameters of one type.
func member[T any](p *cuda.CUgraphNodeParams) *T { return (*T)(unsafe.Pointer(&p.U)) }

func (g *GPU) CuGraphAddNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64, p *cuda.CUgraphNodeParams) cuda.CUresult {
	if p == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	switch p.Type {
	case cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return g.CuGraphAddMemAllocNode(ph, h, deps, n, member[cuda.CUDA_MEM_ALLOC_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_MEM_FREE:
		return g.CuGraphAddMemFreeNode(ph, h, deps, n, member[cuda.CUDA_MEM_FREE_NODE_PARAMS](p).Dptr)
	case cuda.CU_GRAPH_NODE_TYPE_GRAPH:
		if c := member[cuda.CUDA_CHILD_GRAPH_NODE_PARAMS](p); c.Ownership == cuda.CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE {
			return g.CuGraphAddChildGraphNode(ph, h, deps, n, c.Graph)
		}
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	case cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return g.addConditional(ph, h, deps, n, member[cuda.CUDA_CONDITIONAL_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_EMPTY:
		return g.CuGraphAddEmptyNode(ph, h, deps, n)
	}
	build := g.generalOp(p)
	if build == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.add(ph, h, deps, n, build)
}

func (g *GPU) CuGraphAddNode_v2(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, data *cuda.CUgraphEdgeData, n uint64, p *cuda.CUgraphNodeParams) cuda.CUresult {
	if !noEdgeData(data, n) {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.CuGraphAddNode(ph, h, deps, n, p)
}

// generalOp makes the operation of a node whose parameters can be changed; nil for other types.
func (g *GPU) generalOp(p *cuda.CUgraphNodeParams) func() (op, cuda.CUresult) {
	switch p.Type {
	case cuda.CU_GRAPH_NODE_TYPE_KERNEL:
		return g.kernelOp(member[cuda.CUDA_KERNEL_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_MEMCPY:
		m := member[cuda.CUDA_MEMCPY_NODE_PARAMS](p)
		return g.memcpyOp(&m.CopyParams, m.CopyCtx)
	case cuda.CU_GRAPH_NODE_TYPE_MEMSET:
		m := member[cuda.CUDA_MEMSET_NODE_PARAMS_v2](p)
		return g.memsetOp((*cuda.CUDA_MEMSET_NODE_PARAMS)(unsafe.Pointer(m)), m.Ctx)
	case cuda.CU_GRAPH_NODE_TYPE_HOST:
		return g.hostNodeOp(member[cuda.CUDA_HOST_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return g.batchOp(member[cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS](p))
	case cuda.CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return g.eventOp(member[cuda.CUDA_EVENT_RECORD_NODE_PARAMS](p).Event, g.recordOp)
	case cuda.CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return g.eventOp(member[cuda.CUDA_EVENT_WAIT_NODE_PARAMS](p).Event, g.waitOp)
	}
	return nil
}

func (g *GPU) CuGraphNodeSetParams(h cuda.CUgraphNode, p *cuda.CUgraphNodeParams) cuda.CUresult {
	if p == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	build := g.generalOp(p)
	if build == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.change(h, p.Type, build)
}

func (g *GPU) CuGraphExecNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode, p *cuda.CUgraphNodeParams) cuda.CUresult {
	if p == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if p.Type == cuda.CU_GRAPH_NODE_TYPE_GRAPH {
		return g.CuGraphExecChildGraphNodeSetParams(hx, h, member[cuda.CUDA_CHILD_GRAPH_NODE_PARAMS](p).Graph)
	}
	build := g.generalOp(p)
	if build == nil {
		return cuda.CUDA_ERROR_NOT_SUPPORTED
	}
	return g.changeExec(hx, h, p.Type, build)
}

var nodeNames = map[cuda.CUgraphNodeType]string{
	cuda.CU_GRAPH_NODE_TYPE_KERNEL: "KERNEL", cuda.CU_GRAPH_NODE_TYPE_MEMCPY: "MEMCPY", cuda.CU_GRAPH_NODE_TYPE_MEMSET: "MEMSET",
	cuda.CU_GRAPH_NODE_TYPE_HOST: "HOST", cuda.CU_GRAPH_NODE_TYPE_GRAPH: "GRAPH", cuda.CU_GRAPH_NODE_TYPE_EMPTY: "EMPTY",
	cuda.CU_GRAPH_NODE_TYPE_WAIT_EVENT: "EVENT_WAIT", cuda.CU_GRAPH_NODE_TYPE_EVENT_RECORD: "EVENT_RECORD",
	cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC: "MEM_ALLOC", cuda.CU_GRAPH_NODE_TYPE_MEM_FREE: "MEM_FREE",
	cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL: "CONDITIONAL", cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: "MEM_OP",
}

// CuGraphDebugDotPrint writes a graph in the language of Graphviz; the flags ask for details that nodes here do not show.
func (g *GPU) CuGraphDebugDotPrint(h cuda.CUgraph, path unsafe.Pointer, _ uint32) cuda.CUresult {
	gr, r := g.enterGraph(h)
	if r != ok {
		return r
	}
	var text strings.Builder
	text.WriteString("digraph dot {\n")
	number := map[*node]int{}
	for i, n := range gr.nodes {
		number[n] = i
		fmt.Fprintf(&text, "  \"node_%d\" [label=%q];\n", i, nodeNames[n.op.kind])
	}
	for i, n := range gr.nodes {
		for _, d := range n.deps {
			fmt.Fprintf(&text, "  \"node_%d\" -> \"node_%d\";\n", number[d], i)
		}
	}
	text.WriteString("}\n")
	g.mu.Unlock()
	name, found := cString(path, 4096)
	if !found {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	if err := os.WriteFile(name, []byte(text.String()), 0o644); err != nil {
		g.log.Error("sim: graph description", "error", err)
		return cuda.CUDA_ERROR_OPERATING_SYSTEM
	}
	return ok
}
