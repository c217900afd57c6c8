package sim

import (
	"fmt"
	"os"
	"strings"

	"scuda.dev/scuda/api/cuda"
)

var nodeNames = map[cuda.CUgraphNodeType]string{
	cuda.CU_GRAPH_NODE_TYPE_KERNEL: "KERNEL", cuda.CU_GRAPH_NODE_TYPE_MEMCPY: "MEMCPY",
	cuda.CU_GRAPH_NODE_TYPE_MEMSET: "MEMSET",
	cuda.CU_GRAPH_NODE_TYPE_HOST:   "HOST", cuda.CU_GRAPH_NODE_TYPE_GRAPH: "GRAPH", cuda.CU_GRAPH_NODE_TYPE_EMPTY: "EMPTY",
	cuda.CU_GRAPH_NODE_TYPE_WAIT_EVENT: "EVENT_WAIT", cuda.CU_GRAPH_NODE_TYPE_EVENT_RECORD: "EVENT_RECORD",
	cuda.CU_GRAPH_NODE_TYPE_MEM_ALLOC: "MEM_ALLOC", cuda.CU_GRAPH_NODE_TYPE_MEM_FREE: "MEM_FREE",
	cuda.CU_GRAPH_NODE_TYPE_CONDITIONAL: "CONDITIONAL", cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: "MEM_OP",
}

// CuGraphDebugDotPrint writes a graph in the language of Graphviz; the flags ask for details that nodes here do not
// show.
func (g *GPU) CuGraphDebugDotPrint(h cuda.CUgraph, path pointer, _ uint32) cuda.CUresult {
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
