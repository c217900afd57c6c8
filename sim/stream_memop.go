package sim

import (
	"context"
	"slices"
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
		return uint64(atomic.LoadUint32(view[uint32](at(o.addr))))
	}
	return atomic.LoadUint64(view[uint64](at(o.addr)))
}

func (o *memOp) run(ctx context.Context, g *GPU) error {
	for {
		switch {
		case !g.mem.covers(o.addr, o.bytes):
			return &deviceError{cuda.CUDA_ERROR_ILLEGAL_ADDRESS, "memory operation on memory that was freed"}
		case o.write && o.bytes == 4:
			atomic.StoreUint32(view[uint32](at(o.addr)), uint32(o.value))
			return nil
		case o.write:
			atomic.StoreUint64(view[uint64](at(o.addr)), o.value)
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
		if s.capture == nil && !s.ctx.reaches(&g.mem, ops[i].addr) {
			return cuda.CUDA_ERROR_INVALID_VALUE
		}
	}
	_, r = g.submit(s, op{kind: cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
		params: &batch{ctx: s.ctx.handle, records: recordsOf(ops), ops: ops}, run: g.runMemOps(ops)})
	return r
}

func (g *GPU) runMemOps(ops []memOp) func(context.Context) error {
	return func(ctx context.Context) error {
		for i := range ops {
			if err := ops[i].run(ctx, g); err != nil {
				return err
			}
		}
		return nil
	}
}

// recordsOf gives operations the form in which a captured node's parameters are read.
func recordsOf(ops []memOp) []cuda.CUstreamBatchMemOpParams {
	records := make([]cuda.CUstreamBatchMemOpParams, len(ops))
	for i, o := range ops {
		kind := cuda.CU_STREAM_MEM_OP_WAIT_VALUE_32
		switch {
		case o.write && o.bytes == 4:
			kind = cuda.CU_STREAM_MEM_OP_WRITE_VALUE_32
		case o.write:
			kind = cuda.CU_STREAM_MEM_OP_WRITE_VALUE_64
		case o.bytes == 8:
			kind = cuda.CU_STREAM_MEM_OP_WAIT_VALUE_64
		}
		records[i] = cuda.CUstreamBatchMemOpParams{uint64(kind), o.addr, o.value, uint64(o.flags)}
	}
	return records
}

func (g *GPU) CuStreamWaitValue32_v2(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint32,
	flags uint32) cuda.CUresult {
	return g.memOps(s, memOp{addr: uint64(addr), value: uint64(value), bytes: 4, flags: flags})
}

func (g *GPU) CuStreamWaitValue64_v2(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint64,
	flags uint32) cuda.CUresult {
	return g.memOps(s, memOp{addr: uint64(addr), value: uint64(value), bytes: 8, flags: flags})
}

func (g *GPU) CuStreamWriteValue32_v2(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint32,
	flags uint32) cuda.CUresult {
	return g.memOps(s, memOp{addr: uint64(addr), value: uint64(value), bytes: 4, write: true, flags: flags})
}

func (g *GPU) CuStreamWriteValue64_v2(s cuda.CUstream, addr cuda.CUdeviceptr, value cuda.Cuuint64,
	flags uint32) cuda.CUresult {
	return g.memOps(s, memOp{addr: uint64(addr), value: uint64(value), bytes: 8, write: true, flags: flags})
}

func (g *GPU) CuStreamBatchMemOp_v2(s cuda.CUstream, count uint32, array *cuda.CUstreamBatchMemOpParams,
	flags uint32) cuda.CUresult {
	if flags != 0 || count > maxBatch || count > 0 && array == nil {
		return cuda.CUDA_ERROR_INVALID_VALUE
	}
	ops, r := memOpsOf(sliceOf(array, uint64(count)))
	if r != ok {
		return r
	}
	return g.memOps(s, ops...)
}

const maxBatch = 256

// memOpsOf reads a batch. A record is {operation, address, value, flags, alias}, 8 bytes each.
func memOpsOf(records []cuda.CUstreamBatchMemOpParams) ([]memOp, cuda.CUresult) {
	var ops []memOp
	for _, p := range records {
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
			return nil, cuda.CUDA_ERROR_NOT_SUPPORTED
		}
		ops = append(ops, o)
	}
	return ops, ok
}

// batch is what a graph's node with memory operations was made with.
type batch struct {
	ctx     cuda.CUcontext
	records []cuda.CUstreamBatchMemOpParams
	ops     []memOp
}

// batchOp makes a batch node's operation. An executable graph's node keeps the size of its batch; see
// CuGraphExecBatchMemOpNodeSetParams.
func (g *GPU) batchOp(p *cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS) func() (op, cuda.CUresult) {
	return func() (op, cuda.CUresult) {
		if p == nil || p.Flags != 0 || p.Ctx == 0 || p.Count > maxBatch || p.Count > 0 && p.ParamArray == 0 {
			return op{}, cuda.CUDA_ERROR_INVALID_VALUE
		}
		if _, r := g.graphContext(p.Ctx); r != ok {
			return op{}, r
		}
		b := &batch{ctx: p.Ctx}
		if p.Count > 0 {
			b.records = slices.Clone(sliceOf(view[cuda.CUstreamBatchMemOpParams](at(uint64(p.ParamArray))), uint64(p.Count)))
		}
		var r cuda.CUresult
		if b.ops, r = memOpsOf(b.records); r != ok {
			return op{}, r
		}
		for i := range b.ops {
			if r := b.ops[i].check(g); r != ok {
				return op{}, r
			}
		}
		return op{kind: cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params: b, run: g.runMemOps(b.ops)}, ok
	}
}

func (g *GPU) CuGraphAddBatchMemOpNode(ph *cuda.CUgraphNode, h cuda.CUgraph, deps *cuda.CUgraphNode, n uint64,
	p *cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS) cuda.CUresult {
	return g.add(ph, h, deps, n, g.batchOp(p))
}

func (g *GPU) CuGraphBatchMemOpNodeSetParams(h cuda.CUgraphNode, p *cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS) cuda.CUresult {
	return g.change(h, cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, g.batchOp(p))
}

func (g *GPU) CuGraphExecBatchMemOpNodeSetParams(hx cuda.CUgraphExec, h cuda.CUgraphNode,
	p *cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS) cuda.CUresult {
	return g.changeExec(hx, h, cuda.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, func() (op, cuda.CUresult) {
		o, r := g.batchOp(p)()
		if n, found := lookup[*node](g, h); r == ok && found {
			if old, was := n.op.params.(*batch); was && len(old.records) != int(p.Count) {
				return op{}, cuda.CUDA_ERROR_INVALID_VALUE
			}
		}
		return o, r
	})
}

func (g *GPU) CuGraphBatchMemOpNodeGetParams(h cuda.CUgraphNode,
	out *cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS) cuda.CUresult {
	return params(g, h, out == nil, func(b *batch) {
		*out = cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS{Ctx: b.ctx, Count: uint32(len(b.records)),
			ParamArray: uintptr(firstOf(b.records))}
	})
}
