package executor

import (
	"encoding/binary"

	"scuda.dev/scuda/api/cuda"
)

// deviceLaunch is CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.
const deviceLaunch = 4

// instantiate: cuGraphInstantiateWithFlags and cuGraphInstantiateWithParams. Kernels launch a graph by its handle,
// which they get as a parameter: it has to be the driver's.
func (g *graphs) instantiate(c *command) (cuda.CUresult, error) {
	h := g.args(c).U64()
	r, err := g.loop.general(c)
	real, ok := g.table.Real(cuda.KindGraphExec, h)
	if err != nil || r != cuda.CUDA_SUCCESS || !ok {
		return r, err
	}
	flags := alloc[cuda.Cuuint64](&g.arena)
	if g.gpu.CuGraphExecGetFlags(cuda.CUgraphExec(real), flags) == cuda.CUDA_SUCCESS && *flags&deviceLaunch != 0 {
		g.deviceGraphs[h] = real
	}
	return r, nil
}

// swapGraphs puts the driver's handles of graphs that kernels may launch into packed parameters.
func (g *graphs) swapGraphs(packed []byte) {
	for i := 0; i+8 <= len(packed); i += 8 {
		if real, ok := g.deviceGraphs[binary.LittleEndian.Uint64(packed[i:])]; ok {
			binary.LittleEndian.PutUint64(packed[i:], real)
		}
	}
}

// destroyExec forgets an executable graph that kernels may launch.
func (g *graphs) destroyExec(c *command) (cuda.CUresult, error) {
	if len(g.deviceGraphs) > 0 {
		delete(g.deviceGraphs, g.args(c).U64())
	}
	return g.releaseObjects(c)
}
