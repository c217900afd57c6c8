package executor

import (
	"bytes"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/sim"
)

// printed is what a simulated GPU printed.
type printed struct {
	mu    sync.Mutex
	text  [3]bytes.Buffer
	looks int
}

type printedTo struct {
	p      *printed
	stream int
}

func (w printedTo) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.text[w.stream].Write(b)
}

func (p *printed) Take(stream, limit int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looks++
	return bytes.Clone(p.text[stream].Next(limit))
}

func connectPrinting(t *testing.T) (*client, *printed) {
	p := &printed{}
	g, err := sim.Open(sim.Config{MemoryBytes: 64 << 20, Stdout: printedTo{p, 1}, Stderr: printedTo{p, 2}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return connect(t, func(cfg *Config) { cfg.GPU, cfg.Text = g, p }), p
}

func (c *client) takeText() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.text = "" }()
	return c.text
}

func TestTextComesBeforeTheAnswer(t *testing.T) {
	image, err := os.ReadFile("../../testdata/kernels/print.ptx")
	if err != nil {
		t.Fatal(err)
	}
	c, _ := connectPrinting(t)
	mod := c.loadModule(append(image, 0))
	f, _ := c.function(mod, "print", ofModule)
	st := c.stream(1)
	const want = "block 0 thread 0: scuda 0.00\n"
	for name, wait := range map[string]func(){
		"stream":   func() { c.must(cuda.OpCuStreamSynchronize, words(st)) },
		"context":  func() { c.must(cuda.OpCuCtxSynchronize, nil) },
		"download": func() { c.download(c.alloc(8), 8, st) },
	} {
		c.launch(f, st, 1, 1, make([]byte, 8))
		wait()
		if got := c.takeText(); got != "1:"+want {
			t.Errorf("%s: got %q", name, got)
		}
	}
	check, _ := c.function(mod, "check", ofModule)
	c.launch(check, st, 1, 1, make([]byte, 4))
	c.expect(cuda.CUDA_ERROR_ASSERT, cuda.OpCuStreamSynchronize, words(st))
	const asserted = "2:print.cu:17: check: block: [0,0,0], thread: [0,0,0] Assertion `condition` failed.\n"
	if got := c.takeText(); got != asserted {
		t.Errorf("assertion: got %q", got)
	}
}

// A session whose kernels print nothing never looks for text.
func TestNoTextCostsNothing(t *testing.T) {
	c, p := connectPrinting(t)
	f, offsets := c.function(c.loadModule(kernels(t)), "vector_add", ofModule)
	c.launch(f, 0, 1, 1, make([]byte, offsets[3]+4))
	c.must(cuda.OpCuStreamSynchronize, words(0))
	c.must(cuda.OpCuCtxSynchronize, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.looks != 0 {
		t.Errorf("looked for text %d times", p.looks)
	}
}

// late is a GPU whose queries do not yet know of an assertion that failed, as an H200's now and then.
type late struct{ cuda.GPU }

func (g late) unaware(r cuda.CUresult) cuda.CUresult {
	if r == cuda.CUDA_ERROR_ASSERT {
		return cuda.CUDA_SUCCESS
	}
	return r
}
func (g late) CuEventQuery(e cuda.CUevent) cuda.CUresult { return g.unaware(g.GPU.CuEventQuery(e)) }
func (g late) CuStreamQuery(st cuda.CUstream) cuda.CUresult {
	return g.unaware(g.GPU.CuStreamQuery(st))
}

// counted is a GPU that counts the driver's waiting calls for events, and its answers about streams.
type counted struct {
	cuda.GPU
	waits, queries atomic.Int32
}

func (g *counted) CuEventSynchronize(e cuda.CUevent) cuda.CUresult {
	g.waits.Add(1)
	return g.GPU.CuEventSynchronize(e)
}

func (g *counted) CuStreamQuery(s cuda.CUstream) cuda.CUresult {
	g.queries.Add(1)
	return g.GPU.CuStreamQuery(s)
}

// Of many small downloads behind kernels with assertions only the first makes the driver's waiting call.
func TestDownloadsAskOnceForAssertions(t *testing.T) {
	image, err := os.ReadFile("../../testdata/kernels/print.ptx")
	if err != nil {
		t.Fatal(err)
	}
	g, err := sim.Open(sim.Config{MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	gpu := &counted{GPU: g}
	c := connect(t, func(cfg *Config) { cfg.GPU = late{gpu} })
	check, _ := c.function(c.loadModule(append(image, 0)), "check", ofModule)
	st, other, mem := c.stream(1), c.stream(1), c.alloc(8)
	fetch := func(stream uint64, want int32) {
		t.Helper()
		before := gpu.waits.Load()
		for range 10 {
			c.download(mem, 8, stream)
		}
		if got := gpu.waits.Load() - before; got != want {
			t.Errorf("%d waiting calls for ten downloads, want %d", got, want)
		}
	}
	fetch(st, 0)
	c.launch(check, st, 1, 1, words(1))
	fetch(st, 1)
	fetch(other, 0)
	c.launch(check, other, 1, 1, words(1))
	fetch(st, 10) // the kernel of the other stream may still fail
	fetch(other, 1)
	fetch(st, 0)
	c.launch(check, other, 1, 1, words(1))
	c.must(cuda.OpCuStreamDestroy_v2, words(other))
	fetch(st, 10)
	fetch(0, 1)
	fetch(st, 0)
	c.launch(check, st, 1, 1, make([]byte, 4))
	if m := c.await(c.startDownload(9, make([]byte, 8), mem, st)); cuda.CUresult(m.Result) != cuda.CUDA_ERROR_ASSERT {
		t.Errorf("behind an assertion that fails: %d", m.Result)
	}
}

func TestAssertionsAreTold(t *testing.T) {
	image, err := os.ReadFile("../../testdata/kernels/print.ptx")
	if err != nil {
		t.Fatal(err)
	}
	for name, op := range map[string]uint16{"stream": cuda.OpCuStreamSynchronize, "context": cuda.OpCuCtxSynchronize} {
		t.Run(name, func(t *testing.T) {
			g, err := sim.Open(sim.Config{MemoryBytes: 64 << 20})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { g.Close() })
			c := connect(t, func(cfg *Config) { cfg.GPU = late{g} })
			check, _ := c.function(c.loadModule(append(image, 0)), "check", ofModule)
			st := c.stream(1)
			args := []byte(nil)
			if op == cuda.OpCuStreamSynchronize {
				args = words(st)
			}
			c.launch(check, st, 1, 1, make([]byte, 4))
			c.expect(cuda.CUDA_ERROR_ASSERT, op, args)
		})
	}
}
