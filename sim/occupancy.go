package sim

import (
	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim/ptx"
)

const (
	registerUnit = 256 // registers are given to warps in units of this
	sharedUnit   = 128
)

// occupancy is the number of blocks that a multiprocessor holds at a time.
func (l *capability) occupancy(e *ptx.Entry, threads int, dynamic uint64) int {
	if threads > maxThreads(e) {
		return 0
	}
	warps := (threads + warpSize - 1) / warpSize
	perWarp := int(roundUp(uint64(registers(e)*warpSize), registerUnit))
	shared := roundUp(uint64(e.SharedSize())+dynamic+uint64(l.sharedReserved), sharedUnit)
	if shared > uint64(l.sharedPerBlock+l.sharedReserved) {
		return 0
	}
	return min(int(l.blocksPerSM), int(l.threadsPerSM)/warpSize/warps, registersPerSM/perWarp/warps,
		int(uint64(l.sharedPerSM)/max(shared, 1)))
}

func (g *GPU) CuOccupancyMaxActiveBlocksPerMultiprocessor(n *int32, h cuda.CUfunction, block int32,
	dynamic uint64) cuda.CUresult {
	return g.CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, h, block, dynamic, 0)
}

func (g *GPU) CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n *int32, h cuda.CUfunction, block int32,
	dynamic uint64, flags uint32) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if n == nil || block <= 0 || flags&^uint32(cuda.CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) != 0 {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		*n = int32(g.capability.occupancy(f.entry, int(block), dynamic))
		return ok
	})
}

func (g *GPU) CuOccupancyAvailableDynamicSMemPerBlock(size *uint64, h cuda.CUfunction, blocks,
	threads int32) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if size == nil || blocks <= 0 || threads <= 0 || int(blocks) > g.capability.occupancy(f.entry, int(threads), 0) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		each := uint64(g.capability.sharedPerSM) / uint64(blocks) / sharedUnit * sharedUnit
		*size = min(each-min(each, uint64(g.capability.sharedReserved)+uint64(f.entry.SharedSize())),
			uint64(g.capability.sharedPerBlock)-uint64(f.entry.SharedSize()))
		return ok
	})
}

// smsPerCluster is the number of multiprocessors that share what a cluster needs: all blocks of a cluster run on one
// such group.
const smsPerCluster = 18

// activeClusters is the number of clusters of so many blocks that run at a time.
func (g *GPU) activeClusters(f *function, config *cuda.CUlaunchConfig, size uint64) uint64 {
	threads := uint64(config.BlockDimX) * uint64(config.BlockDimY) * uint64(config.BlockDimZ)
	each := uint64(g.capability.occupancy(f.entry, int(threads), uint64(config.SharedMemBytes)))
	sms := uint64(g.sms())
	return sms/smsPerCluster*(smsPerCluster*each/size) + sms%smsPerCluster*each/size
}

// clustered reads a launch configuration that has blocks.
func clustered(f *function, config *cuda.CUlaunchConfig) (*launch, bool) {
	if config == nil || config.BlockDimX == 0 || config.BlockDimY == 0 || config.BlockDimZ == 0 ||
		uint64(config.BlockDimX)*uint64(config.BlockDimY)*uint64(config.BlockDimZ) > maxThreadsPerBlock {
		return nil, false
	}
	cluster, found := clusterOf(config)
	return &launch{fn: f, cluster: cluster, grid: [3]uint32{config.GridDimX, config.GridDimY, config.GridDimZ}}, found
}

func (g *GPU) CuOccupancyMaxActiveClusters(n *int32, h cuda.CUfunction, config *cuda.CUlaunchConfig) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		l, found := clustered(f, config)
		if n == nil || !found {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		if r := l.checkCluster(); r != ok {
			return r
		}
		size := uint64(1)
		for _, d := range l.clusters() {
			size *= uint64(max(d, 1))
		}
		*n = int32(g.activeClusters(f, config, size))
		return ok
	})
}

func (g *GPU) CuOccupancyMaxPotentialClusterSize(size *int32, h cuda.CUfunction,
	config *cuda.CUlaunchConfig) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if _, found := clustered(f, config); size == nil || !found {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		most := f.attrs.largestCluster()
		for most > 1 && g.activeClusters(f, config, most) == 0 {
			most /= 2
		}
		*size = int32(most)
		return ok
	})
}
