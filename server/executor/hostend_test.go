package executor

import (
	"errors"
	"sync/atomic"
	"testing"
	"unsafe"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// tally counts what a session takes of a GPU for the nodes of graphs.
type tally struct {
	cuda.GPU
	pinned, freed, functions atomic.Int64
}

func (h *tally) CuMemHostAlloc(p unsafe.Pointer, n uint64, flags uint32) cuda.CUresult {
	h.pinned.Add(1)
	return h.GPU.CuMemHostAlloc(p, n, flags)
}

func (h *tally) CuMemFreeHost(p unsafe.Pointer) cuda.CUresult {
	h.freed.Add(1)
	return h.GPU.CuMemFreeHost(p)
}

func (h *tally) HostNode(f func()) cuda.CUDA_HOST_NODE_PARAMS {
	h.functions.Add(1)
	return h.GPU.HostNode(f)
}

func (h *tally) DropNode(p cuda.CUDA_HOST_NODE_PARAMS) {
	h.functions.Add(-1)
	h.GPU.DropNode(p)
}

// forgotten counts what the client was told that no graph has any more.
func (c *client) forgotten(kind uint32) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.log {
		if h.Type == transport.MsgForget && h.ID == kind {
			n++
		}
	}
	return n
}

// TestGraphsLetGo: what captured copies and functions take up is free again when their graphs are gone, and serves the
// next ones.
func TestGraphsLetGo(t *testing.T) {
	const n, rounds = 1 << 20, 50
	copy3D := func(c *client, st, buf uint64, down bool) wire.Copy3D {
		p := wire.Copy3D{ID: 1 << 16, Bytes: n, Stream: st, Flags: copy3DPull}
		b := copy3DOf(&p.Copy)
		b.WidthInBytes, b.Height, b.Depth = 1<<10, 1<<10, 1
		b.SrcPitch, b.SrcHeight, b.DstPitch, b.DstHeight = 1<<10, 1<<10, 1<<10, 1<<10
		b.SrcMemoryType, b.DstMemoryType, b.DstDevice =
			cuda.CU_MEMORYTYPE_HOST, cuda.CU_MEMORYTYPE_DEVICE, cuda.CUdeviceptr(buf)
		if down {
			p.Flags = copy3DDownload
			b.SrcMemoryType, b.DstMemoryType, b.SrcDevice, b.DstDevice =
				cuda.CU_MEMORYTYPE_DEVICE, cuda.CU_MEMORYTYPE_HOST, cuda.CUdeviceptr(buf), 0
		}
		return p
	}
	for name, x := range map[string]struct {
		kind    uint32
		capture func(c *client, st, buf uint64)
	}{
		"download": {transport.ForgetTransfer, func(c *client, st, buf uint64) {
			c.must(wire.OpCopyD2H, wire.Bytes(&wire.CopyD2H{Src: buf, Bytes: n, Stream: st, Transfer: 1 << 16}))
		}},
		"upload": {transport.ForgetSource, func(c *client, st, buf uint64) {
			c.must(wire.OpCopyH2DPull, wire.Bytes(&wire.CopyH2DPull{Dst: buf, Bytes: n, Stream: st, Source: 1 << 16}))
		}},
		"rows to the device": {transport.ForgetSource, func(c *client, st, buf uint64) {
			p := copy3D(c, st, buf, false)
			c.must(wire.OpCopy3D, wire.Bytes(&p))
		}},
		"rows to the host": {transport.ForgetTransfer, func(c *client, st, buf uint64) {
			p := copy3D(c, st, buf, true)
			c.must(wire.OpCopy3D, wire.Bytes(&p))
		}},
		"function": {transport.ForgetFunction, func(c *client, st, buf uint64) {
			c.must(wire.OpHostFunc, wire.Bytes(&wire.HostFunc{Stream: st, Registration: 4}))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := &tally{GPU: openSim(t)}
			c := connect(t, func(cfg *Config) { cfg.GPU = g })
			c.keepLog = true
			c.openCallback()
			c.mu.Lock()
			c.transfers[1<<16], c.sources[1<<16], c.hostFns[4] = make([]byte, n), make([]byte, n), func() {}
			c.mu.Unlock()
			st, buf := c.stream(1), c.alloc(n)
			var pinned, functions int64
			for round := range rounds {
				c.must(cuda.OpCuStreamBeginCapture_v2, words(st, 0))
				x.capture(c, st, buf)
				graph, exec, clone := word(c.must(cuda.OpCuStreamEndCapture, words(st, 1)), 1), c.newHandle(), c.newHandle()
				c.must(cuda.OpCuGraphInstantiateWithFlags, words(exec, graph, 0))
				c.must(cuda.OpCuGraphClone, words(clone, graph))
				c.must(cuda.OpCuGraphDestroy, words(graph))
				if round > 0 && c.forgotten(x.kind) > round {
					t.Fatal("forgotten while graphs have it")
				}
				c.send(cuda.OpCuGraphLaunch, words(exec, st))
				c.must(cuda.OpCuGraphExecDestroy, words(exec)) // its launch may be under way
				c.sync(st)
				c.must(cuda.OpCuGraphDestroy, words(clone))
				if round == 1 { // what a launch holds may be free a moment later
					pinned, functions = g.pinned.Load(), g.functions.Load()
				}
			}
			c.must(cuda.OpCuCtxSynchronize, nil)
			if got := g.pinned.Load(); got > pinned+1 {
				t.Errorf("page-locked memory was allocated %d times for %d graphs, %d times for 2", got, rounds, pinned)
			}
			if got := g.functions.Load(); got > functions+2 {
				t.Errorf("%d functions are kept after %d graphs, %d after 2", got, rounds, functions)
			}
			if got := c.forgotten(x.kind); got < rounds-1 {
				t.Errorf("%d of %d were forgotten", got, rounds)
			}
			c.conn.Close()
			if err := c.wait(); !errors.Is(err, ErrGone) {
				t.Fatal(err)
			}
			if got := len(c.session.graphs.hostEnds); got > 1 {
				t.Errorf("%d ends are left", got)
			}
		})
	}
}

// TestGraphMemoryIsBounded: what ended graphs leave is given back above a bound, when the GPU is idle.
func TestGraphMemoryIsBounded(t *testing.T) {
	const n = 24 << 20
	g := &tally{GPU: openSim(t)}
	c := connect(t, func(cfg *Config) { cfg.GPU = g })
	c.openCallback()
	st, buf := c.stream(1), c.alloc(n)
	var graphs []uint64
	for range 5 {
		c.must(cuda.OpCuStreamBeginCapture_v2, words(st, 0))
		c.must(wire.OpCopyD2H, wire.Bytes(&wire.CopyD2H{Src: buf, Bytes: n, Stream: st, Transfer: 1 << 16}))
		graphs = append(graphs, word(c.must(cuda.OpCuStreamEndCapture, words(st, 1)), 1))
	}
	for _, graph := range graphs {
		c.must(cuda.OpCuGraphDestroy, words(graph))
	}
	if left := g.pinned.Load() - g.freed.Load(); left > maxSpareNodes/n {
		t.Errorf("%d pieces of %d bytes are kept", left, n)
	}
}
