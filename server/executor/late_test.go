package executor

import (
	"bytes"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim"
	"scuda.dev/scuda/transport"
)

// holding is a GPU whose driver holds its caller up in the named calls until the context's work is over, and all other
// calls meanwhile.
func holding(t *testing.T, calls string) cuda.GPU {
	t.Helper()
	g, err := sim.Open(sim.Config{MemoryBytes: 256 << 20, Log: slog.New(slog.DiscardHandler), Hold: calls})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// oldDriver has no batched memory operations.
type oldDriver struct{ cuda.GPU }

func (oldDriver) CuStreamWriteValue32_v2(cuda.CUstream, cuda.CUdeviceptr, cuda.Cuuint32, uint32) cuda.CUresult {
	return cuda.CUDA_ERROR_NOT_SUPPORTED
}

// TestFlushWhileHeld: while the driver holds the executor up, what came down before a host function is sent, its end
// told and FLUSH answered.
func TestFlushWhileHeld(t *testing.T) {
	for _, test := range []struct {
		name  string
		bytes int
		bulk  bool
		gpu   func(cuda.GPU) cuda.GPU
	}{
		{name: "a number", bytes: 4},
		{name: "a number, on an old driver", bytes: 4, gpu: func(g cuda.GPU) cuda.GPU { return oldDriver{g} }},
		{name: "a chunk", bytes: 100 << 10},
		{name: "more than the socket takes", bytes: 7 << 20}, // and less than there is staging for
		{name: "over bulk connections", bytes: 7 << 20, bulk: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := holding(t, "cuMemFree")
			if test.gpu != nil {
				g = test.gpu(g)
			}
			c := connect(t, func(cfg *Config) { cfg.GPU = g })
			c.openCallback()
			c.keepLog = true
			chunks, got := &collector{}, make([]byte, test.bytes)
			if test.bulk {
				chunks = collect(t, c.bulkLines(3))
				chunks.got = got
			}
			st, mem, other := c.stream(1), c.alloc(uint64(test.bytes)), c.alloc(64)
			held, calls := make(chan struct{}), c.session.Calls()
			c.send(cuda.OpCuMemsetD8Async, words(mem, 0x5a, uint64(test.bytes), st))
			c.hostFunc(st, 1, func() { <-held })
			const id = transport.FirstTransfer
			c.asyncDownload(id, got, mem, st, flagDone)
			answered := make(chan []transport.MessageHeader, 1)
			c.hostFunc(st, 2, func() { answered <- c.flush(1) })
			c.send(cuda.OpCuMemFree_v2, words(other))
			until(t, "the executor frees the memory", func() bool { return c.session.Calls() == calls+5 })
			close(held)
			log := <-answered
			c.sync(st)
			ends := slices.DeleteFunc(log, func(h transport.MessageHeader) bool { return h.Type != transport.MsgDone })
			if len(ends) != 1 || ends[0].ID != id || ends[0].Result != 0 || (ends[0].Aux != 0) != test.bulk {
				t.Errorf("the ends before the answer are %+v", ends)
			}
			until(t, "the bytes are there", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				chunks.mu.Lock()
				defer chunks.mu.Unlock()
				return bytes.Count(got, []byte{0x5a}) == len(got)
			})
			c.mu.Lock()
			defer c.mu.Unlock()
			if more := slices.DeleteFunc(slices.Clone(c.log), func(h transport.MessageHeader) bool {
				return h.Type != transport.MsgDone
			}); len(more) != 1 {
				t.Errorf("all ends: %+v", more)
			}
		})
	}
}

// flush sends FLUSH and gives the messages that came before its answer, nil where that does not come.
func (c *client) flush(n uint64) []transport.MessageHeader {
	if err := c.sayBack(transport.MessageHeader{Type: transport.MsgFlush, Seq: n}, nil); err != nil {
		c.t.Error(err)
		return nil
	}
	for end := time.Now().Add(deadline); time.Now().Before(end); runtime.Gosched() {
		c.mu.Lock()
		at := slices.IndexFunc(c.log, func(h transport.MessageHeader) bool {
			return h.Type == transport.MsgFlushed && h.Seq >= n
		})
		log := slices.Clone(c.log)
		c.mu.Unlock()
		if at >= 0 {
			return log[:at]
		}
	}
	c.t.Errorf("FLUSH %d is not answered", n)
	return nil
}
