package executor

import (
	"bytes"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/config"
	"scuda.dev/scuda/server/metrics"
	"scuda.dev/scuda/transport"
)

// limited opens a session with limits, and gives what it counts.
func limited(t *testing.T, l config.Limits) (*client, *metrics.Page, *tally) {
	t.Helper()
	page, g := new(metrics.Page), &tally{GPU: openSim(t)}
	c := connect(t, func(cfg *Config) { cfg.Limits, cfg.Metrics, cfg.GPU = l, page, g })
	return c, page, g
}

// What the linker is given counts until its state ends.
func TestLinkerInputsAreBounded(t *testing.T) {
	c, page, _ := limited(t, config.Limits{HostMemory: 8 * config.MiB})
	text := func(mib int) []byte { return append(bytes.Repeat([]byte{' '}, mib<<20-1), 0) }
	give := func(link uint64, mib int) cuda.CUresult {
		for piece := range bytesIn(text(mib), 1<<19) {
			c.send(wire.OpLinkData, append(wire.Bytes(&wire.LinkData{Link: link, Bytes: uint64(len(piece))}), piece...))
		}
		r, _ := c.call(wire.OpLinkAdd, wire.Bytes(&wire.LinkAdd{Link: link, Type: uint32(cuda.CU_JIT_INPUT_PTX)}))
		return r
	}
	one, two := c.newHandle(), c.newHandle()
	for _, l := range []uint64{one, two} {
		c.must(wire.OpLinkCreate, wire.Bytes(&wire.LinkCreate{Link: l}))
	}
	if r := give(one, 6); r == cuda.CUDA_ERROR_OUT_OF_MEMORY {
		t.Fatal("6 of 8 MiB:", r)
	}
	for range 3 {
		if r := give(two, 2); r != cuda.CUDA_ERROR_OUT_OF_MEMORY {
			t.Fatal("8 of 8 MiB, and the logs:", r)
		}
	}
	if n := page.Value(metrics.RefusedHost); n != 3 {
		t.Errorf("%d were counted", n)
	}
	if r := give(two, 1); r == cuda.CUDA_ERROR_OUT_OF_MEMORY {
		t.Error("what was refused is still counted")
	}
	c.must(wire.OpLinkDestroy, wire.Bytes(&wire.LinkDestroy{Link: one}))
	if r := give(two, 5); r == cuda.CUDA_ERROR_OUT_OF_MEMORY {
		t.Error("what has ended is still counted")
	}
	c.must(wire.OpPing, words(0)) // no refusal is left for a later call
}

// Images count where no file holds them.
func TestImagesInMemoryAreBounded(t *testing.T) {
	c, page, _ := limited(t, config.Limits{HostMemory: 3 * config.MiB})
	image := func(b byte) []byte { return append(bytes.Repeat([]byte{' '}, 1<<20), b) }
	for i, want := range []cuda.CUresult{0, 0, cuda.CUDA_ERROR_OUT_OF_MEMORY, cuda.CUDA_ERROR_OUT_OF_MEMORY} {
		if r := c.offerImage(image(byte(i))); r != want {
			t.Errorf("image %d: %v", i, r)
		}
	}
	if n := page.Value(metrics.RefusedHost); n != 2 {
		t.Errorf("%d were counted", n)
	}
}

// Captured copies have page-locked memory of their own, and a session has so much.
func TestPinnedMemoryIsBounded(t *testing.T) {
	c, page, g := limited(t, config.Limits{PinnedMemory: 16 * config.MiB})
	st, buf := c.stream(1), c.alloc(4<<20)
	capture := func(copies int, want cuda.CUresult) (graph uint64) {
		t.Helper()
		c.must(cuda.OpCuStreamBeginCapture_v2, words(st, 0))
		for i := range copies {
			p := wire.CopyD2H{Src: buf, Bytes: 4 << 20, Stream: st, Transfer: transport.FirstTransfer + uint32(i)}
			if r, _ := c.call(wire.OpCopyD2H, wire.Bytes(&p)); i < copies-1 && r != 0 || i == copies-1 && r != want {
				t.Fatalf("copy %d: %v", i, r)
			}
		}
		return word(c.must(cuda.OpCuStreamEndCapture, words(st, 1)), 1)
	}
	graph := capture(5, cuda.CUDA_ERROR_OUT_OF_MEMORY)
	if n, m := page.Value(metrics.RefusedPinned), g.pinned.Load(); n != 1 || m != 4 {
		t.Errorf("%d were counted; the driver was asked %d times", n, m)
	}
	c.must(cuda.OpCuGraphDestroy, words(graph))
	c.must(cuda.OpCuGraphDestroy, words(capture(4, 0)))

	// What a context had is free again when it has ended.
	primary := c.context
	second := c.newHandle()
	c.must(cuda.OpCuCtxCreate_v2, words(second, 0, 0))
	c.context = second
	small := c.alloc(1 << 20)
	if r := c.tryDownload(small, 1<<20); r != cuda.CUDA_ERROR_OUT_OF_MEMORY {
		t.Error("a copy in another context:", r)
	}
	c.must(wire.OpPrimary, wire.Bytes(&wire.Primary{Context: primary, Verb: wire.PrimaryReset}))
	if r := c.tryDownload(small, 1<<20); r != cuda.CUDA_SUCCESS {
		t.Error("what ended with its context is still counted:", r)
	}
}

func (c *client) tryDownload(src uint64, n int) cuda.CUresult {
	c.t.Helper()
	return cuda.CUresult(c.await(c.startDownload(7, make([]byte, n), src, 0)).Result)
}

// The buffers of deferred 3-D uploads serve the next ones.
func TestCopies3DShareTheirBuffers(t *testing.T) {
	c, _, g := limited(t, config.Limits{PinnedMemory: 64 * config.MiB})
	c.openCallback()
	const n = 16 << 20
	st, buf := c.stream(1), c.alloc(n)
	c.mu.Lock()
	c.sources[1<<16] = make([]byte, n)
	c.mu.Unlock()
	for range 20 {
		p := wire.Copy3D{ID: 1 << 16, Bytes: n, Stream: st, Flags: copy3DPull}
		b := copy3DOf(&p.Copy)
		b.WidthInBytes, b.Height, b.Depth, b.SrcPitch, b.SrcHeight, b.DstPitch, b.DstHeight =
			1<<12, 1<<12, 1, 1<<12, 1<<12, 1<<12, 1<<12
		b.SrcMemoryType, b.DstMemoryType, b.DstDevice =
			cuda.CU_MEMORYTYPE_HOST, cuda.CU_MEMORYTYPE_DEVICE, cuda.CUdeviceptr(buf)
		c.must(wire.OpCopy3D, wire.Bytes(&p))
		c.sync(st)
	}
	if m := g.pinned.Load(); m != 1 {
		t.Errorf("the driver was asked for memory %d times", m)
	}
}
