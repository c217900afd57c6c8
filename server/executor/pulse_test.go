package executor

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"scuda.dev/scuda/api/cuda"
	"scuda.dev/scuda/api/wire"
	"scuda.dev/scuda/transport"
)

// held is a GPU whose driver does not return for a while.
type held struct {
	quick
	inside, leave chan struct{}
}

func (h held) CuMemFree_v2(cuda.CUdeviceptr) cuda.CUresult {
	h.inside <- struct{}{}
	<-h.leave
	return 0
}

// While the executor is in the driver, the client gets signs of life if it asks for something, and nothing else; and
// the executor's own answer once it is back.
func TestSignsOfLife(t *testing.T) {
	h := held{inside: make(chan struct{}), leave: make(chan struct{})}
	c := connect(t, func(cfg *Config) { cfg.GPU, cfg.Beat = h, 5*time.Millisecond })
	c.mu.Lock()
	c.keepLog = true
	c.mu.Unlock()
	signs := func() (n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range c.log {
			if m.Type == transport.MsgAlive && m.Seq == 0 {
				n++
			}
		}
		return n
	}
	ch := c.start(0, cuda.OpCuMemFree_v2, 0, words(1), nil)
	<-h.inside
	time.Sleep(30 * time.Millisecond) // nobody asks: a sign would come within this time
	if n := signs(); n != 0 {
		t.Errorf("%d signs of life that nobody asked for", n)
	}
	ping := transport.CommandHeader{Size: 40, Op: wire.OpPing, Seq: 1, Thread: transport.CoreThread}
	c.wmu.Lock()
	c.write(frame(append(ping.Append(nil), make([]byte, 8)...)))
	c.wmu.Unlock()
	for began := time.Now(); signs() < 3; time.Sleep(time.Millisecond) {
		if time.Since(began) > deadline {
			t.Fatal("no sign of life")
		}
	}
	close(h.leave)
	c.await(ch)
	c.must(wire.OpPing, words(0))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.log {
		if m.Type == transport.MsgAlive && m.Seq == 1 {
			return
		}
	}
	t.Error("the ping was not answered")
}

// landing is a GPU that says when an upload's bytes have come to it.
type landing struct {
	cuda.GPU
	landed chan struct{}
}

func (l landing) CuMemcpyHtoDAsync_v2(
	dst cuda.CUdeviceptr, src unsafe.Pointer, n uint64, st cuda.CUstream,
) cuda.CUresult {
	defer func() { l.landed <- struct{}{} }()
	return l.GPU.CuMemcpyHtoDAsync_v2(dst, src, n, st)
}

// While the executor waits for an upload's bytes it gives no sign of life: what was lost on the way would be waited for
// without end.
func TestNoSignsOfLifeForWhatIsMissing(t *testing.T) {
	gpu := landing{openSim(t), make(chan struct{}, 2)}
	c := connect(t, func(cfg *Config) { cfg.GPU, cfg.Beat = gpu, 5*time.Millisecond })
	c.mu.Lock()
	c.keepLog = true
	c.mu.Unlock()
	lines := c.bulkLines(1)
	seq := c.transferUp(c.alloc(2<<20), 2<<20)
	_, _ = lines[0].Write(chunkOf(seq, 0, make([]byte, 1<<20)))
	<-gpu.landed // before that it is in the driver, of which a sign of life may speak
	until(t, "the executor waits", func() bool { return c.session.pulse.expects.Load() })
	c.wmu.Lock()
	c.write(frame(c.command(0, wire.OpPing, 0, words(0))))
	c.wmu.Unlock()
	time.Sleep(60 * time.Millisecond) // a sign would come within this time
	c.mu.Lock()
	for _, m := range c.log {
		if m.Type == transport.MsgAlive {
			t.Errorf("a sign of life: %+v", m)
		}
	}
	c.mu.Unlock()
	_, _ = lines[0].Write(chunkOf(seq, 1<<20, make([]byte, 1<<20)))
	c.sync(0)
	if c.session.pulse.expects.Load() {
		t.Error("the executor waits on")
	}
}

// A client whose machine is gone is a time-out.
func TestGoneIsATimeOut(t *testing.T) {
	c := connect(t)
	c.session.pulse.gone.Store(true)
	c.session.Stop()
	if err := c.wait(); !errors.Is(err, unix.ETIMEDOUT) || !errors.Is(err, ErrGone) {
		t.Error(err)
	}
}
