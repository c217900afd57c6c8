package sim

import (
	"context"
	"sync/atomic"
	"time"

	"scuda.dev/scuda/api/cuda"
)

// memOp writes a value to memory, or waits for one there, when its stream gets to it.
type memOp struct {
	addr  uint64
	value uint64
	bytes uint64
	write bool
	flags uint32
}

const memOpPoll = 20 * time.Microsecond // how often a waiting stream looks

func (o *memOp) check(g *GPU) cuda.CUresult {
	known := uint32(cuda.CU_STREAM_WAIT_VALUE_NOR)
	if o.write {
		known = uint32(cuda.CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
	}
	if o.flags&^known != 0 || o.addr%o.bytes != 0 || !g.mem.covers(o.addr, o.bytes) {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	return ok
}

// satisfied says whether a wait is over, given what stands in memory.
func (o *memOp) satisfied(have uint64) bool {
	switch cuda.CUstreamWaitValue_flags(o.flags) {
	case cuda.CU_STREAM_WAIT_VALUE_EQ:
		return have == o.value
	case cuda.CU_STREAM_WAIT_VALUE_AND:
		return have&o.value != 0
	case cuda.CU_STREAM_WAIT_VALUE_NOR:
		return ^(have|o.value)<<(64-8*o.bytes) != 0
	}
	if o.bytes == 4 { // a cyclic comparison
		return int32(uint32(have)-uint32(o.value)) >= 0
	}
	return int64(have-o.value) >= 0
}

func (o *memOp) load() uint64 {
	if o.bytes == 4 {
		return uint64(atomic.LoadUint32((*uint32)(at(o.addr))))
	}
	return atomic.LoadUint64((*uint64)(at(o.addr)))
}

func (o *memOp) run(ctx context.Context, g *GPU) error {
	for {
		switch {
		case !g.mem.covers(o.addr, o.bytes):
			return &deviceError{cuda.CUDA_ERROR_ILLEGAL_ADDRESS, "memory operation on memory that was freed"}
		case o.write && o.bytes == 4:
			atomic.StoreUint32((*uint32)(at(o.addr)), uint32(o.value))
			return nil
		case o.write:
			atomic.StoreUint64((*uint64)(at(o.addr)), o.value)
			return nil
		case o.satisfied(o.load()):
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(memOpPoll):
		}
	}
}

// memOps submits operations that are done in order, as one piece of work.
func (g *GPU) memOps(hs cuda.CUstream, ops ...memOp) cuda.CUresult {
	s, r := g.enterStream(hs)
	if r != ok {
		return r
	}
	defer g.mu.Unlock()
	for i := range ops {
		if r := ops[i].check(g); r != ok {
			return r
		}
	}
	_, r = g.submit(s, op{kind: cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params: ops, run: func(ctx context.Context) error {
		for i := range ops {
			if err := ops[i].run(ctx, g); err != nil {
				return err
			}
		}
		return nil
	}})
	return r
}

func (g *GPU) CuStreamWaitValue32_v2(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint32, flags uint32) cuda.CUresult {
	return g.memOps(s, memOp{addr: uint64(addr), value: uint64(value), bytes: 4, flags: flags})
}

func (g *GPU) CuStreamWaitValue64_v2(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint64, flags uint32) cuda.CUresult {
	return g.memOps(s, memOp{addr: uint64(addr), value: uint64(value), bytes: 8, flags: flags})
}

func (g *GPU) CuStreamWriteValue32_v2(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint32, flags uint32) cuda.CUresult {
	return g.memOps(s, memOp{addr: uint64(addr), value: uint64(value), bytes: 4, write: true, flags: flags})
}

func (g *GPU) CuStreamWriteValue64_v2(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint64, flags uint32) cuda.CUresult {
	return g.memOps(s, memOp{addr: uint64(addr), value: uint64(value), bytes: 8, write: true, flags: flags})
}

func (g *GPU) CuStreamBatchMemOp_v2(s cuda.CUstream, count uint32, array *cuda.CUstreamBatchMemOpParams, flags uint32) cuda.CUresult {
	if flags != 0 || count > 256 || count > 0 && array == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	var ops []memOp
	for _, p := range sliceOf(array, uint64(count)) {
		// A record is {operation, address, value, flags, alias}, 8 bytes each.
		o := memOp{addr: p[1], value: p[2], flags: uint32(p[3]), bytes: 8}
		switch cuda.CUstreamBatchMemOpType(uint32(p[0])) {
		case cuda.CU_STREAM_MEM_OP_WAIT_VALUE_32:
			o.bytes, o.value = 4, uint64(uint32(p[2]))
		case cuda.CU_STREAM_MEM_OP_WAIT_VALUE_64:
		case cuda.CU_STREAM_MEM_OP_WRITE_VALUE_32:
			o.bytes, o.value, o.write = 4, uint64(uint32(p[2])), true
		case cuda.CU_STREAM_MEM_OP_WRITE_VALUE_64:
			o.write = true
		case cuda.CU_STREAM_MEM_OP_BARRIER:
			continue // every operation here is one
		default:
			return cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		ops = append(ops, o)
	}
	return g.memOps(s, ops...)
}
