package executor

import (
	"bytes"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
)

// A thread that fetches a number and waits for its stream waits for the download; where anything else came before the
// wait, for the stream.
func TestWaitForDownload(t *testing.T) {
	gpu := &counted{GPU: openSim(t)}
	c := connect(t, func(cfg *Config) { cfg.GPU = gpu })
	c.openCallback()
	const n = 3 << 20 // several chunks
	data := pattern(n, 1)
	src := c.alloc(n)
	a, b := c.stream(1), c.stream(1)
	c.upload(src, data, a, 0)
	c.sync(a)
	for id, tt := range []struct {
		name    string
		between func()
		asks    int32 // about the stream
	}{
		{"nothing between", func() {}, 0},
		{"more work on the stream", func() { c.hostFunc(a, 1, func() {}) }, 1},
		{"an event", func() { c.send(cuda.OpCuEventRecord, words(c.event(), a)) }, 1},
		{"work on another stream", func() { c.hostFunc(b, 2, func() {}) }, 1},
		{"a question", func() { c.must(wire.OpPing, words(0)) }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			hold := make(chan struct{})
			c.hostFunc(a, 10, func() { <-hold })
			got := make([]byte, n)
			c.asyncDownload(1<<16+uint32(id), got, src, a, flagDone)
			tt.between()
			before := gpu.queries.Load()
			wait := c.start(1, cuda.OpCuStreamSynchronize, 0, words(a), nil)
			c.must(wire.OpPing, words(0)) // so that the wait has begun
			if asks := gpu.queries.Load() - before; asks != tt.asks {
				t.Errorf("the driver was asked %d times about the stream, want %d", asks, tt.asks)
			}
			c.unanswered(wait)
			close(hold)
			if m := c.await(wait); m.Result != 0 {
				t.Fatal(m.Result)
			}
			c.mu.Lock()
			if !bytes.Equal(got, data) {
				t.Error("the wait ended before the data came")
			}
			c.mu.Unlock()
			c.sync(b)
		})
	}
}

// A wait for a download ends with its context.
func TestWaitForDownloadOfAContextThatEnds(t *testing.T) {
	c := connect(t)
	c.openCallback()
	own := c.newHandle()
	c.must(cuda.OpCuCtxCreate_v2, words(own, 0, 0))
	c.context = own
	a := c.stream(1)
	src := c.alloc(64)
	hold := make(chan struct{})
	c.hostFunc(a, 10, func() { <-hold })
	c.asyncDownload(1<<16, make([]byte, 64), src, a, flagDone)
	wait := c.start(1, cuda.OpCuStreamSynchronize, 0, words(a), nil)
	end := c.start(2, cuda.OpCuCtxDestroy_v2, 0, words(own), nil)
	close(hold)
	if m := c.await(wait); m.Result != 0 && m.Result != int32(cuda.CUDA_ERROR_CONTEXT_IS_DESTROYED) {
		t.Fatal(m.Result)
	}
	if m := c.await(end); m.Result != 0 {
		t.Fatal(m.Result)
	}
}
