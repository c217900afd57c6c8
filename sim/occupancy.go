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
func occupancy(e *ptx.Entry, threads int, dynamic uint64) int {
	if threads > maxThreads(e) {
		return 0
	}
	warps := (threads + warpSize - 1) / warpSize
	perWarp := int(roundUp(uint64(registers(e)*warpSize), registerUnit))
	shared := roundUp(uint64(e.SharedSize)+dynamic+sharedReserved, sharedUnit)
	if shared > sharedPerBlockOptIn+sharedReserved {
		return 0
	}
	return min(blocksPerSM, threadsPerSM/warpSize/warps, registersPerSM/perWarp/warps, int(sharedPerSM/shared))
}

func (g *GPU) CuOccupancyMaxActiveBlocksPerMultiprocessor(n *int32, h cuda.CUfunction, block int32, dynamic uint64) cuda.CUresult {
	return g.CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, h, block, dynamic, 0)
}

func (g *GPU) CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n *int32, h cuda.CUfunction, block int32, dynamic uint64, flags uint32) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if n == nil || block <= 0 || flags&^uint32(cuda.CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) != 0 {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		*n = int32(occupancy(f.entry, int(block), dynamic))
		return ok
	})
}

func (g *GPU) CuOccupancyAvailableDynamicSMemPerBlock(size *uint64, h cuda.CUfunction, blocks, threads int32) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if size == nil || blocks <= 0 || threads <= 0 || int(blocks) > occupancy(f.entry, int(threads), 0) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		each := uint64(sharedPerSM) / uint64(blocks) / sharedUnit * sharedUnit
		*size = min(each-min(each, sharedReserved+uint64(f.entry.SharedSize)), sharedPerBlockOptIn-uint64(f.entry.SharedSize))
		return ok
	})
}

// CuOccupancyMaxActiveClusters knows clusters of one block only, as launches do.
func (g *GPU) CuOccupancyMaxActiveClusters(n *int32, h cuda.CUfunction, config *cuda.CUlaunchConfig) cuda.CUresult {
	return g.withFunction(h, func(f *function) cuda.CUresult {
		if n == nil || config == nil {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		cluster, found := clusterOf(config)
		if !found {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		if cluster != [3]uint32{1, 1, 1} {
			*n = 0
			return ok
		}
		threads := uint64(config.BlockDimX) * uint64(config.BlockDimY) * uint64(config.BlockDimZ)
		if threads == 0 || threads > maxThreadsPerBlock {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		*n = int32(occupancy(f.entry, int(threads), uint64(config.SharedMemBytes))) * g.sms()
		return ok
	})
}

func (g *GPU) CuOccupancyMaxPotentialClusterSize(size *int32, h cuda.CUfunction, config *cuda.CUlaunchConfig) cuda.CUresult {
	return g.withFunction(h, func(*function) cuda.CUresult {
		if size == nil || config == nil {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
		*size = 1
		return ok
	})
}
